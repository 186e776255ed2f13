//! What Tidegate tells browsers (CORS), and servers about where a request comes from.

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

fn preflight(target: &str, origin: &str) -> Vec<u8> {
    format!(
        "OPTIONS {target} HTTP/1.1\r\nHost: a\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\
         Access-Control-Request-Headers: authorization,x-stainless-os\r\n\r\n"
    )
    .into_bytes()
}

/// A server with an opinion of its own about origins.
async fn opinionated() -> Backend {
    Backend::start(reply(
        "HTTP/1.1 200 OK\r\naccess-control-allow-origin: https://server.test\r\nvary: Accept\r\n\
         access-control-allow-credentials: true\r\ncontent-length: 2\r\n\r\n{}",
    ))
    .await
}

// B64
#[tokio::test]
async fn a_browsers_question_is_answered_here_when_origins_are_configured() {
    let server = opinionated().await;
    let setup = Setup::one_group([&server])
        .section("access", "{ keys: [{ name: a, key: sk-aaa }] }")
        .section("cors", "{ allow_origins: [\"https://ui.test\"], max_age: 60s }");
    let tidegate = Tidegate::start(&setup).await;
    let mut client = tidegate.client().await;
    for target in [CHAT, "*"] {
        let response = client.exchange(&preflight(target, "https://ui.test")).await;
        assert_eq!((response.status(), response.body.len()), (204, 0));
        for (name, value) in [
            ("access-control-allow-origin", "https://ui.test"),
            ("access-control-allow-methods", "GET, POST"),
            ("access-control-allow-headers", "authorization,x-stainless-os"),
            ("access-control-max-age", "60"),
            ("vary", "Origin, Access-Control-Request-Headers"),
        ] {
            assert_eq!(response.head.all(name), [value], "{name}");
        }
        let response = client.exchange(&preflight(target, "https://evil.test")).await;
        assert_refusal(&response, 403);
        assert_eq!(response.head.get("access-control-allow-origin"), None);
    }
    assert_eq!(server.count(), 0);
    tidegate.finished(4).await;
    assert_eq!(tidegate.metric("tidegate_rejections_total", &["reason=\"origin_not_allowed\""]).await, 2.0);
    tidegate.idle().await;
}

#[tokio::test]
async fn the_body_of_a_question_that_is_answered_here_is_not_taken_for_a_request() {
    let server = opinionated().await;
    let setup = Setup::one_group([&server]).section("cors", "{ allow_origins: [\"https://ui.test\"] }");
    let tidegate = Tidegate::start(&setup).await;
    let hidden = String::from_utf8(post(CHAT, b"{}")).unwrap();
    let fields = "Origin: https://ui.test\r\nAccess-Control-Request-Method: POST\r\n";
    for framing in [
        format!("Content-Length: {}\r\n\r\n{hidden}", hidden.len()),
        format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{hidden}\r\n0\r\n\r\n", hidden.len()),
    ] {
        let question = format!("OPTIONS {CHAT} HTTP/1.1\r\nHost: a\r\n{fields}{framing}");
        let mut client = tidegate.begin(question.as_bytes()).await;
        let response = client.try_response("OPTIONS").await.unwrap();
        assert_eq!((response.status(), response.head.get("connection")), (204, Some("close")));
        assert_eq!(client.closed().await.0, b"", "{framing}");
    }
    assert_eq!(server.count(), 0);
}

// B64
#[tokio::test]
async fn every_answer_to_a_page_of_an_allowed_origin_can_be_read_by_it() {
    let (server, other) = (opinionated().await, opinionated().await);
    let setup = Setup::one_group([&server, &other])
        .section("access", "{ keys: [{ name: a, key: sk-aaa }] }")
        .section("cors", "{ allow_origins: [\"https://ui.test\"] }");
    let tidegate = Tidegate::start(&setup).await;
    let key = "Authorization: Bearer sk-aaa\r\n";
    for (method, path, key, status) in [
        ("POST", CHAT, key, 200),
        ("GET", "/v1/models", key, 200),
        ("GET", "/healthcheck", "", 200),
        ("POST", CHAT, "", 401),
        ("POST", "/sleep", key, 403),
    ] {
        let from = |origin: &str| request(method, path, &format!("{key}Origin: {origin}\r\n"), b"");
        let response = tidegate.exchange(&from("https://ui.test")).await;
        assert_eq!(response.status(), status, "{path}");
        assert_eq!(response.head.all("access-control-allow-origin"), ["https://ui.test"], "{path}");
        let exposed = ["x-request-id, x-tidegate-error, retry-after"];
        assert_eq!(response.head.all("access-control-expose-headers"), exposed, "{path}");
        assert_eq!(response.head.get("access-control-allow-credentials"), None, "{path}");
        assert!(response.head.all("vary").contains(&"Origin"), "{path}: {:?}", response.head);
        let response = tidegate.exchange(&from("https://evil.test")).await;
        assert_eq!(response.status(), status, "{path}");
        assert_eq!(
            response.head.get("access-control-allow-origin"),
            None,
            "{path}: the server's word is not Tidegate's"
        );
        assert!(response.head.all("vary").contains(&"Origin"), "{path}: {:?}", response.head);
    }
    assert_eq!(tidegate.exchange(&request("POST", CHAT, key, b"{}")).await.head.all("vary"), ["Accept", "Origin"]);
}

// B64
#[tokio::test]
async fn without_configured_origins_servers_speak_for_themselves_also_when_keys_are_on() {
    let server = opinionated().await;
    let setup = Setup::one_group([&server]).section("access", "{ keys: [{ name: a, key: sk-aaa }] }");
    let tidegate = Tidegate::start(&setup).await;
    let response = tidegate.exchange(&preflight(CHAT, "https://ui.test")).await;
    assert_eq!(response.head.all("access-control-allow-origin"), ["https://server.test"]);
    assert_eq!(response.head.all("vary"), ["Accept"]);
    // A question with a body is none that a browser asks.
    let fields = "Origin: https://ui.test\r\nAccess-Control-Request-Method: POST\r\n";
    assert_refusal(&tidegate.exchange(&request("OPTIONS", CHAT, fields, b"{}")).await, 401);
    assert_eq!(server.count(), 1);
}

const NAMES: [&str; 6] =
    ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-real-ip", "forwarded"];

const SAID: &str = "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: 192.0.2.2\r\nX-Forwarded-Proto: https\r\n\
                    X-Forwarded-Host: api.test\r\nX-Forwarded-Port: 443\r\nX-Real-IP: 192.0.2.1\r\n\
                    Forwarded: for=192.0.2.1\r\n";

/// The values of [`NAMES`] as the server got them last.
fn told(server: &Backend) -> Vec<Vec<String>> {
    let head = server.received().pop().unwrap().head;
    NAMES.map(|name| head.all(name).into_iter().map(str::to_owned).collect()).into()
}

fn values(values: [&str; 6]) -> Vec<Vec<String>> {
    values.iter().map(|value| if value.is_empty() { Vec::new() } else { vec![(*value).to_owned()] }).collect()
}

#[tokio::test]
async fn what_an_untrusted_client_says_of_its_origin_is_replaced() {
    let (server, other) = (Backend::start(echo()).await, Backend::start(echo()).await);
    let tidegate = Tidegate::start(&Setup::one_group([&server, &other])).await;
    let port = tidegate.address.port().to_string();
    // Whatever loopback address is connected to, Linux connects from this one.
    let element = "for=127.0.0.1;host=\"gateway.test\";proto=http";
    let expected = values(["127.0.0.1", "http", "gateway.test", &port, "", element]);
    for fields in [SAID, "", &format!("Connection: {}\r\n{SAID}", NAMES.join(", "))] {
        for (method, path) in [("POST", CHAT), ("GET", "/v1/models")] {
            server.forget();
            tidegate.exchange(&request(method, path, fields, b"")).await;
            if server.count() > 0 {
                assert_eq!(told(&server), expected, "{path} {fields}");
            }
        }
    }
    server.forget();
    tidegate.exchange(&request("GET", "/v1/models", SAID, b"")).await;
    assert_eq!(told(&server), expected);
}

#[tokio::test]
async fn what_a_trusted_proxy_says_is_kept_and_the_proxy_appended() {
    let server = Backend::start(echo()).await;
    let setup = Setup::one_group([&server]).section("forwarded", "{ trusted_proxies: [127.0.0.0/8] }");
    let tidegate = Tidegate::start(&setup).await;
    let port = tidegate.address.port().to_string();
    tidegate.exchange(&request("POST", CHAT, SAID, b"{}")).await;
    let element = "for=192.0.2.1, for=127.0.0.1;host=\"gateway.test\";proto=http";
    let all = "192.0.2.1, 192.0.2.2, 127.0.0.1";
    assert_eq!(told(&server), values([all, "https", "api.test", "443", "192.0.2.1", element]));
    tidegate.exchange(&request("POST", CHAT, "X-Forwarded-For: 192.0.2.1\r\n", b"{}")).await;
    assert_eq!(told(&server), values(["192.0.2.1, 127.0.0.1", "http", "gateway.test", &port, "", ""]));
    let h2 = H2Client::connect(tidegate.address).await;
    assert_eq!(h2.post(CHAT, b"{}").await.status(), 200);
    let authority = tidegate.address.to_string();
    assert_eq!(told(&server), values(["127.0.0.1", "http", &authority, &port, "", ""]));
}

#[tokio::test]
async fn an_ipv4_client_of_an_ipv6_listener_has_its_ipv4_address() {
    let server = Backend::start(echo()).await;
    let [free, admin] = Loopback::new().free_ports();
    let listen = std::net::SocketAddr::new("::".parse().unwrap(), free.port());
    let setup = Setup::one_group([&server]).section("forwarded", "{ trusted_proxies: [127.0.0.1] }");
    let tidegate = Tidegate::start_at(listen, admin, &setup).await;
    let mut client = Client::connect(free).await;
    let response = client.exchange(&request("POST", CHAT, "X-Forwarded-For: 192.0.2.1\r\n", b"{}")).await;
    assert_eq!(response.status(), 200);
    assert_eq!(told(&server)[0], ["192.0.2.1, 127.0.0.1"]);
    drop(tidegate);
}
