//! Addresses of servers, requests that any server can answer, and the two endpoints that Tidegate answers itself.

use std::net::SocketAddr;

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

// B54
#[tokio::test]
async fn ipv6_servers_names_and_listeners_work() {
    let v6: SocketAddr = "[::1]:0".parse().unwrap();
    let (six, named) =
        (Backend::start_at(v6, echo()).await, Backend::start_at("127.0.0.1:0".parse().unwrap(), echo()).await);
    let localhost = format!("localhost:{}", named.address().port());
    let [_, admin] = Loopback::new().free_ports();
    let free = std::net::TcpListener::bind(v6).unwrap().local_addr().unwrap();
    let setup = Setup::two_groups([format!("\"{}\"", six.name())], [localhost.clone()]);
    let tidegate = Tidegate::start_at(free, admin, &setup).await;
    for (size, server, host) in [(100, &six, six.name()), (200_000, &named, localhost.clone())] {
        let response = tidegate.exchange(&post(CHAT, &body_of(size))).await;
        assert_eq!(response.status(), 200, "{}", response.text());
        assert_eq!(server.only().head.all("host"), [host.as_str()]);
        assert!(tidegate.usage().await.contains_key(&host), "the status names the server {host}");
    }
    assert!(six.name().starts_with("[::1]:"));
}

#[tokio::test]
async fn a_server_has_the_name_it_was_given() {
    let server = Backend::start(echo()).await;
    let yaml = format!("{{ address: \"{}\", name: npu-0 }}", server.name());
    let tidegate = Tidegate::start(&Setup::one_group([yaml])).await;
    assert_eq!(tidegate.exchange(&post(CHAT, b"{}")).await.status(), 200);
    assert!(tidegate.usage().await.contains_key("npu-0"));
    assert!(tidegate.metrics().await.contains("tidegate_server_load_tokens{group=\"all\",server=\"npu-0\"} 0"));
}

#[tokio::test]
async fn the_health_check_is_answered_by_tidegate() {
    let tidegate = Tidegate::start(&Setup::two_groups([closed_address(), closed_address()], [closed_address()])).await;
    let response = tidegate.exchange(&get("/healthcheck")).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.head.get("content-type"), Some("application/json"));
    assert_eq!(response.json(), serde_json::json!({ "status": "ok", "server_instances": 3 }));
}

// B55
#[tokio::test]
async fn requests_that_any_server_can_answer_find_a_live_one() {
    let answer = json_response(200, r#"{"object":"list","data":[{"id":"tiny"}]}"#);
    let live = Backend::start(reply(answer)).await;
    let tidegate = Tidegate::start(&Setup::two_groups([closed_address()], [live.address()])).await;
    for path in ["/v1/models", "/version", "/foo"] {
        let response = tidegate.exchange(&get(path)).await;
        assert_eq!(response.status(), 200, "{path}: {}", response.text());
        assert_eq!(response.text(), r#"{"object":"list","data":[{"id":"tiny"}]}"#);
    }
    let head = tidegate.exchange(b"HEAD /v1/models HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(head.status(), 200);
    assert_eq!(tidegate.exchange(&get("/healthcheck")).await.status(), 200);
    tidegate.idle().await;
}

fn models(ids: &[&str]) -> String {
    let items: Vec<_> =
        ids.iter().map(|id| format!(r#"{{"id":"{id}","object":"model","max_model_len":4096}}"#)).collect();
    format!(r#"{{"object":"list","data":[{}]}}"#, items.join(","))
}

fn ids(response: &Response) -> Vec<String> {
    let json = response.json();
    let items = json["data"].as_array().expect("`data` is a list");
    items.iter().map(|item| item["id"].as_str().expect("`id` is text").to_owned()).collect()
}

#[tokio::test]
async fn the_models_of_all_servers_are_merged() {
    let a = Backend::start(reply(json_response(200, &models(&["base", "lora-a"])))).await;
    let b = Backend::start(reply(json_response(200, &models(&["base", "lora-b"])))).await;
    let broken = Backend::start(reply(json_response(500, "{}"))).await;
    let odd = Backend::start(reply(json_response(200, "no JSON"))).await;
    let servers = [a.address(), broken.address(), closed_address(), odd.address()];
    let tidegate = Tidegate::start(&Setup::two_groups(servers, [b.address()])).await;
    let authorized = request("GET", "/v1/models", "Authorization: Bearer user-key\r\n", b"");
    let response = tidegate.exchange(&authorized).await;
    assert_eq!(response.status(), 200, "{}", response.text());
    assert_eq!(response.json()["object"], "list");
    assert_eq!(ids(&response), ["base", "lora-a", "lora-b"]);
    assert_eq!(response.json()["data"][0]["max_model_len"], 4096, "what a server says of a model is kept");
    for server in [&a, &b] {
        assert_eq!(server.only().head.all("authorization"), ["Bearer user-key"]);
        assert_eq!(server.only().head.all("host"), [server.name()]);
    }
    tidegate.idle().await;
}

#[tokio::test]
async fn one_models_answer_is_relayed_as_it_is() {
    let text = format!("{} \n", models(&["b", "a"]));
    let (a, b) = (
        Backend::start(reply(json_response(200, &text))).await,
        Backend::start(reply(json_response(200, &text))).await,
    );
    for servers in [vec![a.address()], vec![a.address(), b.address()], vec![closed_address(), b.address()]] {
        let tidegate = Tidegate::start(&Setup::one_group(servers)).await;
        assert_eq!(tidegate.exchange(&get("/v1/models")).await.text(), text);
    }
}

#[tokio::test]
async fn an_error_for_the_models_is_relayed_when_nobody_has_more() {
    let unauthorized = Backend::start(reply(json_response(401, r#"{"error":"Unauthorized"}"#))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&unauthorized])).await;
    let response = tidegate.exchange(&get("/v1/models")).await;
    assert_eq!((response.status(), response.text().as_str()), (401, r#"{"error":"Unauthorized"}"#));
    let down = Tidegate::start(&Setup::one_group([closed_address(), closed_address()])).await;
    assert_refusal(&down.exchange(&get("/v1/models")).await, 502);
    down.idle().await;
}

#[tokio::test]
async fn a_silent_server_does_not_keep_the_models_of_the_others_back() {
    let text = models(&["a"]);
    let (well, hung) = (Backend::start(reply(json_response(200, &text))).await, Backend::start(silent()).await);
    let tidegate = Tidegate::start(&Setup::one_group([&hung, &well])).await;
    assert_eq!(tidegate.exchange(&get("/v1/models")).await.text(), text);
    // A client that leaves does not keep the question waiting.
    let client = tidegate.begin(&get("/v1/models")).await;
    hung.whole_requests(2).await;
    client.close();
    hung.closed_within(PATIENCE, 2).await;
    tidegate.idle().await;
}
