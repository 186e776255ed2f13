//! Header fields in both directions, and the framing of responses.

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

/// A server that tells which fields it got; answers 400 when `Host` is not its own authority.
async fn strict_host() -> Backend {
    Backend::start(async |mut conn: Conn| {
        let own = conn.local_address().to_string();
        while let Some(request) = conn.request().await {
            let status = if request.head.all("host") == [own.as_str()] { 200 } else { 400 };
            if !conn.send(json_response(status, "{}")).await {
                return;
            }
        }
    })
    .await
}

/// A request with exactly these header lines.
fn raw(fields: &str) -> Vec<u8> {
    format!("POST {CHAT} HTTP/1.1\r\n{fields}Content-Length: 2\r\n\r\n{{}}").into_bytes()
}

// B60
#[tokio::test]
async fn the_server_sees_its_own_authority_as_host() {
    let server = strict_host().await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    assert_eq!(tidegate.exchange(&raw("Host: api.example.test\r\n")).await.status(), 200);
    assert_eq!(tidegate.exchange(&raw(&format!("Host: {}\r\n", server.name()))).await.status(), 200);
    let absolute = b"GET http://other.example.test/version?a=1 HTTP/1.1\r\nHost: other.example.test\r\n\r\n";
    assert_eq!(tidegate.exchange(absolute).await.status(), 200);
    assert_eq!(server.received()[2].head.line, "GET /version?a=1 HTTP/1.1");
    let h2 = H2Client::connect(tidegate.address).await;
    assert_eq!(h2.post(CHAT, b"{}").await.status(), 200);
}

// B60
#[tokio::test]
async fn a_request_without_a_host_or_with_two_is_refused() {
    let server = strict_host().await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for fields in ["", "Host: a\r\nHost: b\r\n", "Host: a\r\nHost: a\r\n"] {
        let mut client = tidegate.begin(&raw(fields)).await;
        assert_eq!(client.response().await.status(), 400, "{fields:?}");
        client.closed().await;
    }
    assert_eq!(server.connections(), 0);
}

// B60
#[tokio::test]
async fn every_request_has_one_request_id_and_the_client_is_told() {
    let server = strict_host().await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let long = "x".repeat(128);
    let kept = [
        ("abc", "X-Request-Id: abc\r\n".to_owned()),
        ("abc", "x-request-id: abc\r\nX-REQUEST-ID: def\r\n".to_owned()),
        (long.as_str(), format!("X-Request-Id: {long}\r\n")),
    ];
    for (id, fields) in kept {
        let response = tidegate.exchange(&raw(&format!("Host: a\r\n{fields}"))).await;
        assert_eq!(response.head.all("x-request-id"), [id]);
        assert_eq!(server.received().last().unwrap().head.all("x-request-id"), [id]);
    }
    let mut made = std::collections::BTreeSet::new();
    for fields in [
        String::new(),
        String::new(),
        format!("X-Request-Id: {long}x\r\n"),
        "X-Request-Id: a b\r\n".into(),
        "X-Request-Id: \u{e4}\r\n".into(),
        "X-Request-Id:\r\n".into(),
    ] {
        let response = tidegate.exchange(&raw(&format!("Host: a\r\n{fields}"))).await;
        assert_eq!(response.status(), 200, "{fields:?}");
        let [id] = response.head.all("x-request-id")[..] else { panic!("one id is expected: {:?}", response.head) };
        assert!((1..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()), "{id:?}");
        assert_eq!(server.received().last().unwrap().head.all("x-request-id"), [id]);
        assert!(made.insert(id.to_owned()), "made ids differ");
    }
    // The same id twice at the same time is the client's own business.
    let gate = Gate::closed();
    let server = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut first = tidegate.begin(&raw("Host: a\r\nX-Request-Id: abc\r\n")).await;
    let mut second = tidegate.begin(&raw("Host: a\r\nX-Request-Id: abc\r\n")).await;
    server.whole_requests(2).await;
    gate.open();
    for client in [&mut first, &mut second] {
        assert_eq!(client.response().await.head.all("x-request-id"), ["abc"]);
    }
}

// B60
#[tokio::test]
async fn a_request_id_of_a_megabyte_or_with_control_bytes_gets_no_further() {
    let server = strict_host().await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let megabyte = "x".repeat(1_000_000);
    for id in [megabyte.as_str(), "a\u{1}b", "a\u{7f}b", "a\0b"] {
        let mut client = tidegate.begin(&raw(&format!("Host: a\r\nX-Request-Id: {id}\r\n"))).await;
        if let Ok(response) = client.try_response("POST").await {
            assert!(!response.head.all("x-request-id").contains(&id));
        }
    }
    for received in server.received() {
        let id = received.head.get("x-request-id").unwrap();
        assert!(id.len() <= 128 && id.bytes().all(|byte| byte.is_ascii_graphic()), "{id:?}");
    }
    assert_eq!(tidegate.exchange(&raw("Host: a\r\n")).await.status(), 200);
}

#[tokio::test]
async fn errors_made_by_tidegate_have_a_request_id_too() {
    let tidegate = Tidegate::start(&Setup::one_group([closed_address()])).await;
    let response = tidegate.exchange(&raw("Host: a\r\nX-Request-Id: mine\r\n")).await;
    assert_refusal(&response, 502);
    assert_eq!(response.head.all("x-request-id"), ["mine"]);
}

#[tokio::test]
async fn a_connection_field_cannot_take_the_framing_or_the_address_away() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for named in ["content-length", "Content-Length, x-request-id", "close, CONTENT-length, authorization"] {
        let fields = format!("Host: a\r\nConnection: {named}\r\nX-Request-Id: mine\r\nContent-Length: 5\r\n");
        let mut client = tidegate.begin(format!("POST {CHAT} HTTP/1.1\r\n{fields}\r\nhello").as_bytes()).await;
        let response = client.response().await;
        assert_eq!((response.status(), &response.json()["sha256"]), (200, &sha256(b"hello").into()), "{named}");
        let head = server.only().head;
        assert_eq!(head.all("content-length"), ["5"], "{named}");
        assert_eq!(
            (head.all("x-request-id"), head.all("host")),
            (vec!["mine"], vec![server.name().as_str()]),
            "{named}"
        );
        server.forget();
    }
}

#[tokio::test]
async fn end_to_end_fields_pass_and_hop_by_hop_fields_do_not() {
    let answer = "HTTP/1.1 200 OK\r\nserver: uvicorn\r\nvary: Origin\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\
                  x-odd: \u{e9}  two  blanks\r\nconnection: x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\n\
                  proxy-connection: keep-alive\r\ncontent-length: 2\r\n\r\nok";
    let answer: Vec<u8> = answer.chars().map(|c| u8::try_from(c).unwrap()).collect();
    let server = Backend::start(reply(answer)).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let response = tidegate
        .exchange(&raw(
            "Host: a\r\nAuthorization: bearer user-key\r\nx-api-key: k\r\nCookie: a=b\r\nTraceparent: 00-1\r\n\
             X-Forwarded-For: 9.9.9.9\r\nX-Session-ID: s\r\nX-Twice: 1\r\nX-Twice: 2\r\nAccept-Encoding: gzip\r\n\
             Connection: x-mine, keep-alive\r\nX-Mine: 1\r\nKeep-Alive: timeout=9\r\nProxy-Connection: close\r\n\
             TE: trailers\r\nUpgrade: foo/1\r\nProxy-Authorization: Basic x\r\n",
        ))
        .await;
    let out = &response.head;
    assert_eq!(out.all("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(
        (out.all("server"), out.all("vary"), out.all("x-odd")),
        (vec!["uvicorn"], vec!["Origin"], vec!["\u{e9}  two  blanks"])
    );
    for name in ["x-hop", "proxy-connection"] {
        assert_eq!(out.get(name), None, "{name} came back");
    }
    assert!(!out.all("connection").contains(&"x-hop") && out.get("keep-alive") != Some("timeout=5"), "{out:?}");
    let head = server.only().head;
    for (name, values) in [
        ("authorization", vec!["bearer user-key"]),
        ("x-api-key", vec!["k"]),
        ("cookie", vec!["a=b"]),
        ("traceparent", vec!["00-1"]),
        ("x-session-id", vec!["s"]),
        ("x-twice", vec!["1", "2"]),
        ("accept-encoding", vec!["gzip"]),
        ("content-type", vec![]),
    ] {
        assert_eq!(head.all(name), values, "{name}");
    }
    for name in ["connection", "x-mine", "keep-alive", "proxy-connection", "te", "upgrade", "proxy-authorization"] {
        assert_eq!(head.get(name), None, "{name} reached the server");
    }
}

#[tokio::test]
async fn fields_that_steer_the_engine_are_stripped_as_configured() {
    let server = strict_host().await;
    let fields = "Host: a\r\nX-data-parallel-rank: 1\r\nX-Vllm-Priority: 0\r\nX-Session-ID: s\r\n";
    let strip = |list: &str| Setup::one_group([&server]).section("headers", &format!("{{ strip: [{list}] }}"));
    for (setup, passed) in [
        (strip("x-data-parallel-rank, x-vllm-priority"), vec!["x-session-id"]),
        (strip(""), vec!["x-data-parallel-rank", "x-vllm-priority", "x-session-id"]),
        (strip("X-Session-Id"), vec!["x-data-parallel-rank", "x-vllm-priority"]),
    ] {
        let tidegate = Tidegate::start(&setup).await;
        assert_eq!(tidegate.exchange(&raw(fields)).await.status(), 200);
        let head = server.received().pop().unwrap().head;
        for name in ["x-data-parallel-rank", "x-vllm-priority", "x-session-id"] {
            assert_eq!(head.get(name).is_some(), passed.contains(&name), "{name}");
        }
    }
}

// B63 a, d
#[tokio::test]
async fn each_server_gets_its_own_key_also_on_a_retry() {
    let busy = Backend::start(reply(json_response(503, "{}"))).await;
    let (keyed, plain) = (Backend::start(echo()).await, Backend::start(echo()).await);
    let keyed_yaml = |server: &Backend, key: &str| format!("{{ address: \"{}\", api_key: {key} }}", server.name());
    let servers = [keyed_yaml(&busy, "key-0"), keyed_yaml(&keyed, "key-1")];
    let tidegate = Tidegate::start(&Setup::one_group(servers)).await;
    let response = tidegate.exchange(&raw("Host: a\r\nAuthorization: Bearer user-key\r\n")).await;
    assert_eq!(response.status(), 200);
    assert_eq!(tidegate.exchange(&raw("Host: a\r\n")).await.status(), 200);
    for (server, key) in [(&busy, "Bearer key-0"), (&keyed, "Bearer key-1")] {
        for received in server.received() {
            assert_eq!(received.head.all("authorization"), [key]);
        }
    }
    assert!(!tidegate.stderr().contains("key-1") && !tidegate.metrics().await.contains("key-1"));
    let tidegate = Tidegate::start(&Setup::one_group([&plain])).await;
    tidegate.exchange(&raw("Host: a\r\n")).await;
    assert_eq!(plain.only().head.get("authorization"), None, "nothing is invented");
}

#[tokio::test]
async fn targets_and_methods_pass_as_they_are() {
    let server = strict_host().await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for line in [
        "GET /v1/%6dodels/a%2Fb?x=1&y=%20&z=a/b;c HTTP/1.1",
        "GET //v1/models HTTP/1.1",
        "DELETE /v1/responses/../x HTTP/1.1",
        "PATCH / HTTP/1.1",
        "PROPFIND /x HTTP/1.1",
        "OPTIONS /v1/chat/completions HTTP/1.1",
    ] {
        let response = tidegate.exchange(format!("{line}\r\nHost: a\r\n\r\n").as_bytes()).await;
        assert_eq!(response.status(), 200, "{line}");
        assert_eq!(server.received().last().unwrap().head.line, line);
    }
}

/// A response, whether its request is a HEAD, and the body that the client must see.
type Framed = (&'static str, bool, &'static [u8]);

// B61
#[tokio::test]
async fn the_framing_of_a_response_always_fits_its_body() {
    let cases: [Framed; 11] = [
        ("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n\x1f\x08zz", false, b"\x1f\x08zz"),
        (
            "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n4\r\n\x1f\x08zz\r\n0\r\n\r\n",
            false,
            b"\x1f\x08zz",
        ),
        ("HTTP/1.1 200 OK\r\ncontent-encoding: identity\r\ncontent-length: 2\r\n\r\nok", false, b"ok"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", false, b""),
        ("HTTP/1.1 204 No Content\r\n\r\n", false, b""),
        ("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n", false, b""),
        ("HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\n\r\n", false, b""),
        ("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", false, b""),
        ("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n", true, b""),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", true, b""),
        ("HTTP/1.1 500 No\r\ncontent-length: 3\r\nx-y: z\r\n\r\nno\n", false, b"no\n"),
    ];
    for (answer, is_head, body) in cases {
        let server = Backend::start(reply(answer)).await;
        let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
        let mut client = tidegate.client().await;
        let expected = Head::parse(answer.split("\r\n\r\n").next().unwrap().as_bytes()).unwrap();
        // Twice, so that anything left over would show in the second response.
        for _ in 0..2 {
            let line = if is_head { "HEAD /x" } else { "GET /x" };
            let response = client.exchange(format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await;
            assert_eq!(response.status(), expected.status(), "{answer:?}");
            assert_eq!((response.body.as_slice(), response.end), (body, End::Complete), "{answer:?}");
            assert_eq!(response.head.get("content-encoding"), expected.get("content-encoding"), "{answer:?}");
            if is_head {
                assert_eq!(response.head.get("content-length"), expected.get("content-length"), "{answer:?}");
            }
        }
        assert_eq!(server.count(), 2, "{answer:?}");
    }
}

// B61
#[tokio::test]
async fn a_response_with_a_broken_length_gives_502_and_its_connection_is_dropped() {
    for framing in [
        "content-length: 2\r\ncontent-length: 5\r\n\r\nok",
        "content-length: 5\r\ncontent-length: 2\r\n\r\nok",
        "content-length: 2\r\ncontent-length: 2\r\n\r\nok",
        "content-length: x\r\n\r\nok",
        "content-length: -1\r\n\r\nok",
    ] {
        let server = Backend::start(reply(format!("HTTP/1.1 200 OK\r\n{framing}"))).await;
        let setup = Setup::one_group([&server]).section("retry", "{ max_attempts: 1 }");
        let tidegate = Tidegate::start(&setup).await;
        for number in 1..=2 {
            assert_refusal(&tidegate.exchange(&raw("Host: a\r\n")).await, 502);
            server.closed_within(PATIENCE, number).await;
        }
        assert_eq!(server.connections(), 2, "{framing:?}: the connection is not used again");
        tidegate.idle().await;
    }
}

// B61
#[tokio::test]
async fn a_response_with_a_length_and_chunks_is_taken_as_chunked() {
    for framing in
        ["content-length: 5\r\ntransfer-encoding: chunked", "transfer-encoding: chunked\r\ncontent-length: 2"]
    {
        let answer = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n2\r\nok\r\n0\r\n\r\n");
        let server = Backend::start(reply(answer)).await;
        let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
        let mut client = tidegate.client().await;
        for _ in 0..2 {
            let response = client.exchange(&raw("Host: a\r\n")).await;
            assert_eq!((response.text().as_str(), response.end), ("ok", End::Complete), "{framing:?}");
            assert_eq!(response.head.all("transfer-encoding"), ["chunked"], "{framing:?}");
            assert_eq!(response.head.get("content-length"), None, "{framing:?}");
        }
    }
}

// B64
#[tokio::test]
async fn a_preflight_is_relayed_and_weighs_nothing() {
    let gate = Gate::closed();
    let answer = "HTTP/1.1 200 OK\r\naccess-control-allow-origin: https://ui.test\r\n\
                  access-control-allow-headers: authorization\r\ncontent-length: 2\r\n\r\nOK";
    let server = Backend::start(hold(&gate, answer)).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for target in [CHAT, "*"] {
        let preflight = format!(
            "OPTIONS {target} HTTP/1.1\r\nHost: a\r\nOrigin: https://ui.test\r\n\
             Access-Control-Request-Method: POST\r\n\r\n"
        );
        let mut client = tidegate.begin(preflight.as_bytes()).await;
        until("the server has it", async || server.count() == 1).await;
        assert_eq!(tidegate.usage().await["all"], Usage { load_tokens: 0.0, in_flight: 1 });
        gate.admit(1);
        let response = client.response().await;
        assert_eq!(response.head.get("access-control-allow-origin"), Some("https://ui.test"));
        assert_eq!((response.status(), response.text().as_str()), (200, "OK"));
        assert_eq!(server.only().head.line, format!("OPTIONS {target} HTTP/1.1"));
        assert_eq!(server.only().head.get("origin"), Some("https://ui.test"));
        server.forget();
    }
}
