//! Requests whose end is ambiguous, and bytes that must not become a request.

use std::time::Duration;

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";
/// How long a refusal may take; much longer than it does.
const SOON: Duration = Duration::from_secs(2);
/// What must never arrive as a request of its own.
const HIDDEN: &str = "GET /v1/smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

fn has_smuggled(server: &Backend) -> bool {
    server.received().iter().any(|request| request.head.line.contains("smuggled"))
}

/// A request with the given header lines (`{all}` is the length of `start` and the hidden request) and body.
fn hiding(fields: &str, start: &str) -> String {
    let all = (start.len() + HIDDEN.len()).to_string();
    format!("POST {CHAT} HTTP/1.1\r\nHost: a\r\n{}\r\n{start}{HIDDEN}", fields.replace("{all}", &all))
}

/// Requests that have to be refused: what is odd about them, and the bytes.
fn ambiguous() -> Vec<(&'static str, String)> {
    let chunked = "Transfer-Encoding: chunked\r\n";
    let in_chunks = "5\r\nhello\r\n0\r\n\r\n";
    let mut cases = vec![
        ("chunked on HTTP/1.0", hiding(chunked, in_chunks).replacen("HTTP/1.1", "HTTP/1.0", 1)),
        ("lone LF line ends", format!("POST {CHAT} HTTP/1.1\nHost: a\nContent-Length: 5\n\nhello{HIDDEN}")),
        ("a lone LF within the header", hiding("X: a\nContent-Length: 5\r\n", "hello")),
        ("space before the colon", hiding("Content-Length : 5\r\n", "hello")),
        (
            "space before the colon of chunked",
            hiding("Content-Length: {all}\r\nTransfer-Encoding : chunked\r\n", "0\r\n\r\n"),
        ),
        ("folded line", hiding("X: a\r\n b\r\nContent-Length: 5\r\n", "hello")),
        ("folded framing", hiding("Content-Length: {all}\r\nTransfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n")),
        (
            "space in front of a name",
            format!("POST {CHAT} HTTP/1.1\r\n Host: a\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello{HIDDEN}"),
        ),
        ("NUL in a value", hiding("X: a\0b\r\nContent-Length: 5\r\n", "hello")),
        ("CR in a value", hiding("X: a\rTransfer-Encoding: chunked\r\nContent-Length: 5\r\n", "hello")),
        ("a name without a colon", hiding("Content-Length\r\nContent-Length: 5\r\n", "hello")),
        ("an empty name", hiding(": x\r\nContent-Length: 5\r\n", "hello")),
    ];
    let encodings = [
        "chunked, identity",
        "xchunked",
        "identity",
        "gzip",
        "chunked\r\nTransfer-Encoding: identity",
        "\u{b}chunked",
        "chunked, chunked",
        "chunked\r\nTransfer-Encoding: chunked",
        "\"chunked\"",
        "chunked;q=1",
    ];
    for encoding in encodings {
        cases.push((encoding, hiding(&format!("Transfer-Encoding: {encoding}\r\n"), in_chunks)));
    }
    for length in [
        "+5",
        "5, 5",
        "5\r\nContent-Length: 6",
        "5\r\nContent-Length: 5",
        "0x5",
        "-5",
        "5 5",
        "5;",
        "",
        "99999999999999999999",
        "5e0",
        "５",
    ] {
        cases.push((length, hiding(&format!("Content-Length: {length}\r\n"), "hello")));
    }
    for size in ["+5", "0x5", "-5", "5 5", " 5", "g", "FFFFFFFFFFFFFFFF5", "00000000000000005 x"] {
        cases.push((size, hiding(chunked, &format!("{size}\r\nhello\r\n0\r\n\r\n"))));
    }
    cases.extend([
        ("bare LF behind a chunk size", hiding(chunked, "5\nhello\r\n0\r\n\r\n")),
        ("a chunk longer than its size", hiding(chunked, "5\r\nhelloXX\r\n0\r\n\r\n")),
        ("a chunk without its line end", hiding(chunked, "5\r\nhello0\r\n\r\n")),
        ("bare LF in an extension", hiding(chunked, "5;x\nhello\r\n0\r\n\r\n")),
        ("bare LF in front of an extension's text", hiding(chunked, "2;\nxx\r\n45\r\n0\r\n\r\n")),
        ("bare LF in an extension of a chunk that is to come", hiding(chunked, "ffff;\n\r\n")),
        ("no size", hiding(chunked, "5\r\nhello\r\n\r\n\r\n")),
        ("no size before an extension", hiding(chunked, "5\r\nhello\r\n;x\r\n\r\n")),
        ("NUL in an extension", hiding(chunked, "5;\0\r\nhello\r\n0\r\n\r\n")),
        ("bare LF in a trailer", hiding(chunked, "5\r\nhello\r\n0\r\nX: a\nb: c\r\n\r\n")),
    ]);
    cases
}

// B75
#[tokio::test]
async fn requests_with_an_ambiguous_end_get_400_and_reach_no_server() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut wrong = Vec::new();
    for (what, bytes) in ambiguous() {
        let mut client = tidegate.begin(bytes.as_bytes()).await;
        let response = client.response_within(SOON).await;
        let status = response.map(|response| response.map(|response| response.status()));
        let rest = client.closed_within(SOON).await.map(|(rest, _)| rest);
        let reached = server.count();
        server.forget();
        // A length beyond any limit may as well be refused as too large.
        let is_refused = status == Some(Ok(400)) || (what.starts_with("999") && status == Some(Ok(413)));
        if !is_refused || reached > 0 || rest != Some(Vec::new()) {
            wrong.push(format!(
                "{what:?}: {status:?}, {reached} requests at the server, then {:?}",
                rest.map(|rest| String::from_utf8_lossy(&rest).into_owned())
            ));
        }
        let other = tidegate.exchange(&post(CHAT, &body_of(100))).await;
        assert_eq!(other.json()["sha256"], sha256(&body_of(100)), "after {what:?}: another client's own answer");
        server.forget();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    tidegate.idle().await;
}

// B75
#[tokio::test]
async fn a_request_with_a_length_and_chunks_is_refused_or_taken_as_chunked_and_closed() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for (fields, start, decoded) in [
        ("Content-Length: {all}\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n", ""),
        ("Transfer-Encoding: chunked\r\nContent-Length: {all}\r\n", "0\r\n\r\n", ""),
        ("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", "5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n", "hello"),
    ] {
        let mut client = tidegate.begin(hiding(fields, start).as_bytes()).await;
        let status = client.response().await.status();
        let (rest, _) = client.closed().await;
        assert_eq!(String::from_utf8_lossy(&rest), "", "{fields}: what follows is not answered");
        let received = server.received();
        server.forget();
        if status != 400 {
            assert_eq!((status, received.len()), (200, 1), "{fields}");
            assert_eq!(received[0].body, decoded.as_bytes(), "{fields}");
            assert_eq!(received[0].head.all("content-length"), [decoded.len().to_string()], "{fields}");
            assert_eq!(received[0].head.get("transfer-encoding"), None, "{fields}");
        }
    }
}

// B75
#[tokio::test]
async fn odd_but_clear_requests_are_passed_on_in_one_framing() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let chunked = "Transfer-Encoding: chunked\r\n";
    let hidden_body = format!("{:x}\r\n{HIDDEN}\r\n0\r\n\r\n", HIDDEN.len());
    let cases = [
        ("tab before the value", "Transfer-Encoding:\tchunked\r\n", "5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("upper case", "TRANSFER-ENCODING: CHUNKED\r\n", "5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("chunk extension", chunked, "5;a=b;c=\"d e\"\r\nhello\r\n0;x\r\n\r\n", "hello"),
        ("leading zeros in a length", "Content-Length: 0005\r\n", "hello", "hello"),
        ("leading zeros in a chunk size", chunked, "0005\r\nhello\r\n000\r\n\r\n", "hello"),
        ("trailers", chunked, "5\r\nhello\r\n0\r\nContent-Length: 99\r\nX: y\r\n\r\n", "hello"),
        ("a request as the body", chunked, &hidden_body, HIDDEN),
    ];
    for (what, fields, body, decoded) in cases {
        let request = format!("POST {CHAT} HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}");
        let mut client = tidegate.client().await;
        // Twice on one connection: nothing is left over.
        for _ in 0..2 {
            let response = client.exchange(request.as_bytes()).await;
            assert_eq!(response.status(), 200, "{what}: {}", response.text());
            let received = server.received().pop().unwrap();
            assert_eq!(received.body, decoded.as_bytes(), "{what}");
            assert_eq!(received.head.all("content-length"), [decoded.len().to_string()], "{what}");
            assert_eq!(received.head.get("transfer-encoding"), None, "{what}");
        }
    }
    assert!(!has_smuggled(&server));
}

// B75
#[tokio::test]
async fn a_fault_in_a_chunked_request_is_no_matter_to_those_before_it() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let clear = hiding("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n").replace(HIDDEN, "");
    let faulty = hiding("Transfer-Encoding: chunked\r\n", "2;\nxx\r\n45\r\n0\r\n\r\n");
    // All at once, or the fault in a write of its own.
    let (start, rest) = faulty.split_at(faulty.find("2;").unwrap());
    for writes in [vec![format!("{clear}{clear}{faulty}")], vec![format!("{clear}{clear}{start}"), rest.to_owned()]] {
        let mut client = tidegate.begin(writes[0].as_bytes()).await;
        for _ in 0..2 {
            assert_eq!(client.response().await.status(), 200, "{writes:?}");
        }
        for rest in &writes[1..] {
            client.send(rest.as_bytes()).await;
        }
        assert_eq!(client.response().await.status(), 400, "{writes:?}");
        assert_eq!(client.closed().await.0, b"");
        assert_eq!(server.count(), 2, "{writes:?}");
        server.forget();
    }
    tidegate.idle().await;
}

// B75
#[tokio::test]
async fn control_bytes_in_a_target_are_refused_or_escaped() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for odd in ["\u{1}", "\r", "\0", "\u{7f}", "\t"] {
        let request = String::from_utf8(post("/v1/ODD/x", b"{}")).unwrap().replace("ODD", odd);
        let response = tidegate.exchange(request.as_bytes()).await;
        assert!(matches!(response.status(), 200 | 400), "{odd:?}: {}", response.status());
    }
    let has_control = |line: &str| line.contains(char::is_control);
    assert!(server.received().iter().all(|request| !has_control(&request.head.line)), "{:?}", server.received());
}

// B75
#[tokio::test]
async fn a_request_id_cannot_inject_a_header() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for id in ["a\rX-Evil: 1", "a\nX-Evil: 1", "a\0", "a%0d%0aX-Evil: 1"] {
        let request = request("POST", CHAT, &format!("X-Request-Id: {id}\r\n"), b"{}");
        let mut client = tidegate.begin(&request).await;
        if let Ok(response) = client.try_response("POST").await {
            assert_eq!(response.head.get("x-evil"), None, "{id:?}");
        }
    }
    assert!(server.received().iter().all(|request| request.head.get("x-evil").is_none()
        || request.head.all("x-request-id").iter().all(|id| !id.contains('\n'))));
    assert_eq!(tidegate.exchange(&post(CHAT, b"{}")).await.status(), 200);
}

/// Sends a request whose body is itself a request, then a legal one, on one connection; either both are answered in
/// order, or the first is and the connection closes.
async fn body_is_no_request(tidegate: &Tidegate, head: &str, body: &[u8], status: u16, late: Option<Duration>) {
    let mut client = tidegate.client().await;
    client.send(head.as_bytes()).await;
    if let Some(late) = late {
        tokio::time::sleep(late).await;
    }
    client.send(&[body, &get("/v1/models")].concat()).await;
    let response = client.response().await;
    assert_eq!((response.status(), response.end), (status, End::Complete), "{head}");
    match client.try_head("GET").await {
        Ok(next) => {
            assert!(matches!(next.status(), 200 | 502), "{head}: {next:?}");
            client.rest().await;
        }
        Err(End::Garbage(what)) => panic!("{head}: {what}"),
        Err(_) => {}
    }
}

// B76
#[tokio::test]
async fn the_body_of_an_answered_request_never_becomes_a_request() {
    let server = Backend::start(async |mut conn: Conn| {
        while let Some(request) = conn.request().await {
            let status = match request.head.line.as_str() {
                "GET /v1/models HTTP/1.1" => 200,
                line if line.starts_with("PUT") => 405,
                line if line.contains("unknown") => 404,
                _ => 400,
            };
            if !conn.send(json_response(status, r#"{"object":"list","data":[]}"#)).await {
                return;
            }
        }
    })
    .await;
    let setup = Setup::one_group([&server]).section("limits", "{ max_body_size: 4KiB }");
    let tidegate = Tidegate::start(&setup).await;
    let down = Tidegate::start(&Setup::one_group([closed_address()])).await;
    let small = HIDDEN.repeat(3);
    let large = HIDDEN.repeat(200);
    for late in [None, Some(Duration::from_millis(300))] {
        for (at, method, path, body, status) in [
            (&tidegate, "POST", "/unknown", &small, 404),
            (&tidegate, "PUT", CHAT, &small, 405),
            (&tidegate, "POST", CHAT, &small, 400),
            (&tidegate, "POST", CHAT, &large, 413),
            (&tidegate, "POST", "/unknown", &large, 413),
            (&down, "POST", CHAT, &small, 502),
        ] {
            let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
            body_is_no_request(at, &head, body.as_bytes(), status, late).await;
            let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
            let chunk = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
            body_is_no_request(at, &head, chunk.as_bytes(), status, late).await;
        }
        let head = format!("GET /healthcheck HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", small.len());
        body_is_no_request(&tidegate, &head, small.as_bytes(), 200, late).await;
        assert!(!has_smuggled(&server));
    }
    tidegate.idle().await;
}

// B76
#[tokio::test]
async fn a_server_that_answers_before_it_has_read_the_body_does_not_mix_up_requests() {
    let server = Backend::start(async |mut conn: Conn| {
        while let Some(head) = conn.head().await {
            conn.send(json_response(404, r#"{"detail":"Not Found"}"#)).await;
            if conn.body(&head).await.is_none() {
                return;
            }
        }
    })
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    let body = HIDDEN.repeat(50_000);
    for _ in 0..5 {
        let response = client.exchange(&post("/unknown", body.as_bytes())).await;
        assert_eq!((response.status(), response.text().as_str()), (404, r#"{"detail":"Not Found"}"#));
    }
    assert!(!has_smuggled(&server));
    assert!(server.received().iter().all(|request| request.head.line == "POST /unknown HTTP/1.1"));
    tidegate.idle().await;
}
