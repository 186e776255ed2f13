//! Who is let in: API keys and their limits, closed paths, limits on the header. And that no secret comes out.

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";
const KEYS: &str = "keys: [{ name: a, key: sk-aaa }, { name: b, key: sk-bbb }]";

/// A Tidegate with these lines in its section `access`.
async fn with_access(server: &Backend, access: &str) -> Tidegate {
    Tidegate::start(&Setup::one_group([server]).section("access", &format!("{{ {access} }}"))).await
}

fn with_key(path: &str, key: &str, body: &[u8]) -> Vec<u8> {
    request("POST", path, &format!("Authorization: Bearer {key}\r\n"), body)
}

fn assert_denied(response: &Response, status: u16, reason: &str) {
    assert_refusal(response, status);
    assert_eq!(response.head.get("x-tidegate-error"), Some(reason));
}

#[tokio::test]
async fn with_keys_on_every_path_but_the_open_ones_needs_a_key() {
    let server = Backend::start(echo()).await;
    let tidegate = with_access(&server, KEYS).await;
    let mut kept = tidegate.client().await;
    for (method, path) in [
        ("POST", CHAT),
        ("POST", "/v1/completions"),
        ("POST", "/v1/messages"),
        ("POST", "/v1/embeddings"),
        ("POST", "/invocations"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("POST", "/generative_scoring"),
        ("POST", "/inference/v1/generate"),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/health/"),
        ("GET", "/HEALTH"),
        ("GET", "//health"),
        ("GET", "/health/../invocations"),
        ("GET", "/"),
        ("OPTIONS", "*"),
        ("HEAD", "/v1/models"),
    ] {
        for fields in ["", "Authorization: Bearer sk-\r\n", "Authorization: Basic sk-aaa\r\n", "x-api-key: sk-aaab\r\n"]
        {
            let bare = format!("{method} {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            let response = kept.exchange(bare.as_bytes()).await;
            assert_eq!(response.status(), 401, "{method} {path} {fields}");
            assert_eq!(response.head.all("www-authenticate"), ["Bearer"], "{method} {path}");
            if method != "HEAD" {
                assert_denied(&response, 401, "invalid_api_key");
            }
        }
    }
    assert_eq!(server.count(), 0);
    assert_eq!(tidegate.exchange(&get("/health")).await.status(), 200);
    assert_eq!(tidegate.exchange(&post("/ping", b"")).await.status(), 200);
    assert_eq!(tidegate.exchange(&get("/healthcheck")).await.json()["status"], "ok");
    assert_eq!(server.count(), 2);
    for fields in ["Authorization: bearer sk-aaa\r\n", "X-Api-Key: sk-bbb\r\n"] {
        assert_eq!(tidegate.exchange(&request("POST", CHAT, fields, b"{}")).await.status(), 200, "{fields}");
    }
    let h2 = H2Client::connect(tidegate.address).await;
    assert_denied(&h2.post(CHAT, &body_of(200_000)).await, 401, "invalid_api_key");
    assert_eq!(tidegate.metric("tidegate_key_requests_total", &["key=\"a\""]).await, 1.0);
    tidegate.finished(78).await;
    assert_eq!(tidegate.metric("tidegate_rejections_total", &["reason=\"invalid_api_key\""]).await, 73.0);
}

#[tokio::test]
async fn a_body_is_not_asked_for_when_the_key_is_wrong() {
    let server = Backend::start(echo()).await;
    let tidegate = with_access(&server, KEYS).await;
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    let mut client = tidegate.begin(head.as_bytes()).await;
    let response = client.response().await;
    assert_denied(&response, 401, "invalid_api_key");
    assert_eq!(response.interim, [0_u16; 0]);
    client.send(b"GET /v1/smuggled HTTP/1.1\r\nHost: a\r\n\r\n").await;
    client.closed().await;
    assert_eq!(server.count(), 0);
}

// B63 a, b, d: what a server sees of whose key, with and without keys at Tidegate
#[tokio::test]
async fn a_clients_key_stays_at_tidegate_unless_configured() {
    let both = "Authorization: Bearer sk-aaa\r\nx-api-key: other\r\n";
    let upstream = "{ api_key: sk-up }";
    for (access, upstream, authorization, x_api_key) in [
        ("", None, vec!["Bearer sk-aaa"], vec!["other"]),
        ("", Some(upstream), vec!["Bearer sk-up"], vec![]),
        (KEYS, None, vec![], vec![]),
        (KEYS, Some(upstream), vec!["Bearer sk-up"], vec![]),
        (&format!("{KEYS}, forward_credentials: true"), None, vec!["Bearer sk-aaa"], vec!["other"]),
        (&format!("{KEYS}, forward_credentials: true"), Some(upstream), vec!["Bearer sk-up"], vec![]),
    ] {
        let busy = Backend::start(reply(json_response(503, "{}"))).await;
        let server = Backend::start(echo()).await;
        let mut setup = Setup::one_group([&busy, &server]).section("access", &format!("{{ {access} }}"));
        if let Some(upstream) = upstream {
            setup = setup.section("upstream", upstream);
        }
        let tidegate = Tidegate::start(&setup).await;
        // Also on the open paths, also on a retry, also when all servers are asked.
        for request in [
            request("POST", CHAT, both, b"{}"),
            request("GET", "/health", both, b""),
            request("GET", "/v1/models", both, b""),
        ] {
            tidegate.exchange(&request).await;
        }
        assert!(busy.count() >= 1 && server.count() == 3, "{access}");
        for received in busy.received().into_iter().chain(server.received()) {
            assert_eq!(received.head.all("authorization"), authorization, "{access} {upstream:?}");
            assert_eq!(received.head.all("x-api-key"), x_api_key, "{access} {upstream:?}");
        }
    }
}

#[tokio::test]
async fn a_keys_requests_per_minute_are_bounded_and_the_other_keys_are_not() {
    let server = Backend::start(echo()).await;
    let keys = "keys: [{ name: a, key: sk-aaa, requests_per_minute: 2 }, { name: b, key: sk-bbb }]";
    let tidegate = with_access(&server, keys).await;
    let mut client = tidegate.client().await;
    let bare = format!("GET {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer sk-aaa\r\n\r\n");
    let responses = [0; 5].map(|_| bare.as_bytes());
    let mut statuses = Vec::new();
    for request in responses {
        let response = client.exchange(request).await;
        statuses.push(response.status());
        if response.status() == 429 {
            assert_denied(&response, 429, "key_request_rate");
            let error = &response.json()["error"];
            assert_eq!(
                (error["code"].as_str(), error["type"].as_str()),
                (Some("rate_limit_exceeded"), Some("requests"))
            );
            let wait: u64 = response.head.get("retry-after").unwrap().parse().unwrap();
            assert!((1..=30).contains(&wait), "{wait}");
        }
    }
    assert_eq!(statuses, [200, 200, 429, 429, 429]);
    for _ in 0..5 {
        assert_eq!(tidegate.exchange(&with_key(CHAT, "sk-bbb", b"{}")).await.status(), 200);
    }
    assert_eq!(tidegate.metric("tidegate_key_requests_total", &["key=\"a\""]).await, 2.0);
    assert_eq!(tidegate.metric("tidegate_key_requests_total", &["key=\"b\""]).await, 5.0);
    let labels = ["key=\"a\"", "reason=\"key_request_rate\""];
    assert_eq!(tidegate.metric("tidegate_key_rejections_total", &labels).await, 3.0);
}

#[tokio::test]
async fn a_keys_prompt_tokens_per_minute_are_bounded() {
    let server = Backend::start(echo()).await;
    let tidegate = with_access(&server, "keys: [{ name: a, key: sk-aaa, tokens_per_minute: 1000 }]").await;
    let mut client = tidegate.client().await;
    assert_eq!(client.exchange(&with_key(CHAT, "sk-aaa", &body_of(3_000))).await.status(), 200);
    let response = client.exchange(&with_key(CHAT, "sk-aaa", &body_of(3_000))).await;
    assert_denied(&response, 429, "key_token_rate");
    assert_eq!(response.json()["error"]["type"], "tokens");
    let wait: u64 = response.head.get("retry-after").unwrap().parse().unwrap();
    assert!((28..=30).contains(&wait), "750 of 1000 are used, 750 more come at 1000 a minute: {wait}");
    // The connection goes on, what is no prompt is not counted, and a shorter prompt still fits.
    assert_eq!(client.exchange(&with_key("/unheard_of", "sk-aaa", &body_of(9_000))).await.status(), 200);
    assert_eq!(client.exchange(&with_key(CHAT, "sk-aaa", &body_of(600))).await.status(), 200);
    assert_eq!(server.count(), 3);
    assert_eq!(tidegate.metric("tidegate_key_prompt_tokens_total", &["key=\"a\""]).await, 900.0);
    tidegate.idle().await;
}

#[tokio::test]
async fn a_key_runs_as_many_requests_at_once_as_it_may() {
    let gate = Gate::closed();
    let server = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let keys = "key_limits: { max_concurrent: 2 }, keys: [{ name: a, key: sk-aaa }, { name: b, key: sk-bbb }]";
    let tidegate = with_access(&server, keys).await;
    let request = with_key(CHAT, "sk-aaa", b"{}");
    let both = [tidegate.begin(&request).await, tidegate.begin(&request).await];
    server.whole_requests(2).await;
    let response = tidegate.exchange(&request).await;
    assert_denied(&response, 429, "key_concurrency");
    assert_eq!(response.head.get("retry-after"), Some("1"));
    // One place comes free when an answer is over, the other one when a client leaves.
    gate.admit(1);
    tidegate.finished(2).await;
    both.into_iter().for_each(Client::close);
    tidegate.finished(3).await;
    let _running = [tidegate.begin(&request).await, tidegate.begin(&request).await];
    server.whole_requests(4).await;
    assert_denied(&tidegate.exchange(&request).await, 429, "key_concurrency");
    let _other = tidegate.begin(&with_key(CHAT, "sk-bbb", b"{}")).await;
    server.whole_requests(5).await;
}

#[tokio::test]
async fn a_client_address_runs_as_many_requests_at_once_as_it_may() {
    let gate = Gate::closed();
    let server = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let setup = Setup::one_group([&server]).section("limits", "{ max_concurrent_per_client: 1 }");
    let from = |client: &str| request("POST", CHAT, &format!("X-Forwarded-For: {client}\r\n"), b"{}");
    let tidegate = Tidegate::start(&setup).await;
    let _running = tidegate.begin(&from("192.0.2.1")).await;
    server.whole_requests(1).await;
    let refused = tidegate.exchange(&from("192.0.2.2")).await;
    assert_denied(&refused, 429, "client_concurrency");

    let trusting = Tidegate::start(&setup.section("forwarded", "{ trusted_proxies: [127.0.0.0/8] }")).await;
    let _running = [trusting.begin(&from("192.0.2.1")).await, trusting.begin(&from("192.0.2.2")).await];
    server.whole_requests(3).await;
    assert_denied(&trusting.exchange(&from("192.0.2.2")).await, 429, "client_concurrency");
}

#[tokio::test]
async fn administrative_paths_are_closed_in_every_spelling() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let h2 = H2Client::connect(tidegate.address).await;
    for path in [
        "/sleep",
        "/sleep?level=1",
        "/sleep/",
        "//sleep",
        "/SLEEP",
        "/sl%65ep",
        "/sl%2565ep",
        "/sleep%0a",
        "/sleep%2f",
        "/./sleep",
        "/x/../sleep",
        "/prefix/sleep",
        "/wake_up",
        "/v1/load_lora_adapter",
        "/v1//load_lora_adapter",
        "/v1%2Funload_lora_adapter",
        "/scale_elastic_ep",
        "/is_scaling_elastic_ep",
        "/collective_rpc",
        "/update_weights",
        "/reset_prefix_cache",
        "/start_profile",
        "/stop_profile",
        "/inference/v1/abort_requests",
    ] {
        for bytes in [
            post(path, b"{}"),
            get(path),
            get(&format!("http://gateway.test{path}")),
            request("POST", path, "Upgrade: websocket\r\nConnection: upgrade\r\n", b""),
        ] {
            assert_denied(&tidegate.exchange(&bytes).await, 403, "closed_path");
        }
        assert_denied(&h2.post(path, b"{}").await, 403, "closed_path");
    }
    for raw in [&b"GET /sleep#x HTTP/1.1\r\nHost: a\r\n\r\n"[..], b"GET /\xff/../sleep HTTP/1.1\r\nHost: a\r\n\r\n"] {
        let status = tidegate.exchange(raw).await.status();
        assert!(matches!(status, 400 | 403), "{}: {status}", raw.escape_ascii());
    }
    assert_eq!(server.count(), 0);
    for path in ["/metrics", "/load", "/version", "/sleepy", "/v1/responses/resp_1/cancel"] {
        assert_eq!(tidegate.exchange(&get(path)).await.status(), 200, "{path}");
    }
    let opened = with_access(&server, "open_admin_paths: [/sleep], close_paths: [/metrics]").await;
    assert_eq!(opened.exchange(&post("/sleep", b"")).await.status(), 200);
    assert_denied(&opened.exchange(&post("/wake_up", b"")).await, 403, "closed_path");
    assert_denied(&opened.exchange(&get("/metrics/")).await, 403, "closed_path");
    let all = with_access(&server, "open_admin_paths: all").await;
    assert_eq!(all.exchange(&post("/wake_up", b"")).await.status(), 200);
}

#[tokio::test]
async fn headers_beyond_a_limit_are_refused_and_those_at_it_are_not() {
    let server = Backend::start(echo()).await;
    let limits = "{ max_header_size: 2KiB, max_headers: 10, max_uri_size: 500B }";
    let tidegate = Tidegate::start(&Setup::one_group([&server]).section("limits", limits)).await;
    let target = |bytes: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(bytes - 1));
    let fields = |count: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(count - 1));
    let header = |bytes: usize| {
        let start = "GET / HTTP/1.1\r\nHost: a\r\nx: ";
        format!("{start}{}\r\n\r\n", "x".repeat(bytes - start.len() - 4))
    };
    for (at, beyond, status, reason) in [
        (target(500), target(501), 414, "uri_too_long"),
        (fields(10), fields(11), 431, "too_many_header_fields"),
        (header(2_048), header(2_049), 431, "header_too_large"),
    ] {
        assert_eq!(tidegate.exchange(at.as_bytes()).await.status(), 200, "{reason}");
        server.forget();
        let mut client = tidegate.begin(beyond.as_bytes()).await;
        assert_denied(&client.response().await, status, reason);
        client.closed().await;
        assert_eq!(server.count(), 0);
    }
    let h2 = H2Client::connect(tidegate.address).await;
    assert_denied(&h2.get(&format!("/{}", "x".repeat(500))).await, 414, "uri_too_long");
    assert_eq!(h2.get("/").await.status(), 200);
}

// B63: "Keys never in logs, metrics or error bodies."
#[tokio::test]
async fn no_secret_is_printed_or_served() {
    let refusing = Backend::start(reply(json_response(503, "{}"))).await;
    let servers = [format!("{{ address: \"{}\", api_key: secret-server }}", refusing.name())];
    let digest = sha256(b"secret-hashed");
    let access = format!(
        "{{ keys: [{{ name: a, key: secret-plain, requests_per_minute: 3 }}, {{ name: b, sha256: {digest} }}] }}"
    );
    let setup =
        Setup::one_group(servers).section("access", &access).section("upstream", "{ api_key: secret-upstream }");
    let mut tidegate = Tidegate::start(&setup.logging("trace")).await;
    let mut served = String::new();
    for key in ["secret-plain", "secret-hashed", "secret-wrong"] {
        for _ in 0..3 {
            for fields in [format!("Authorization: Bearer {key}\r\n"), format!("x-api-key: {key}\r\n")] {
                for path in [CHAT, "/sleep", "/v1/models"] {
                    let response = tidegate.exchange(&request("POST", path, &fields, b"{}")).await;
                    served += &format!("{:?}{}", response.head, response.text());
                }
            }
        }
        // What Pingora cannot read, and what it refuses itself.
        for bytes in [
            format!("GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\nbad header\r\n\r\n"),
            format!("CONNECT a:1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n\r\n"),
            format!("GET / HTTP/1.1\r\nAuthorization: Bearer {key}\r\n\r\n"),
        ] {
            let mut client = tidegate.begin(bytes.as_bytes()).await;
            served += &String::from_utf8_lossy(&client.closed().await.0);
        }
    }
    served += &tidegate.metrics().await;
    served += &tidegate.status().await.to_string();
    assert!(tidegate.terminate().await.success());
    let log = tidegate.stderr();
    assert!(log.contains("a request failed") || log.contains("is tried elsewhere"), "it logs finely: {log}");
    for secret in ["secret-", &digest, &sha256(b"secret-plain")] {
        for (what, text) in [("log", &log), ("answers", &served)] {
            let line = text.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "{secret} in the {what}");
        }
    }
}
