//! Request bodies: read whole before the choice, delivered byte for byte whatever their size and framing.

use std::time::Duration;

use crate::support::*;

const MIB: usize = 1_048_576;
const CHAT: &str = "/v1/chat/completions";
/// Long enough for the first half of a body to be read before the second comes.
const PAUSE: Duration = Duration::from_millis(100);

/// How a body is written.
#[derive(Debug, Clone, Copy)]
enum Write {
    OnePiece,
    SmallPieces,
    PauseInTheMiddle,
}

async fn send(client: &mut Client, bytes: &[u8], write: Write) {
    match write {
        Write::OnePiece => client.send(bytes).await,
        Write::SmallPieces => client.send_in_pieces(bytes, 1_000).await,
        Write::PauseInTheMiddle => {
            let (start, rest) = bytes.split_at(bytes.len() / 2);
            client.send(start).await;
            tokio::time::sleep(PAUSE).await;
            client.send(rest).await;
        }
    }
}

async fn send_h2c(tidegate: &Tidegate, body: &[u8], write: Write) -> Response {
    let client = H2Client::connect(tidegate.address).await;
    let (size, pause) = match write {
        Write::OnePiece => (usize::MAX, Duration::ZERO),
        Write::SmallPieces => (1_000, Duration::ZERO),
        Write::PauseInTheMiddle => (body.len() / 2 + 1, PAUSE),
    };
    client.post_in_pieces(CHAT, body, size, pause).await
}

/// Sends a body in every framing and way of writing; `well` is the server that answers in the end, `first` the one
/// that every request is tried on before, if any.
async fn arrives_whole(tidegate: &Tidegate, well: &Backend, first: Option<&Backend>, size: usize) {
    let body = body_of(size);
    let mut cases = 0;
    for write in [Write::OnePiece, Write::SmallPieces, Write::PauseInTheMiddle] {
        for framing in ["length", "chunked", "h2c"] {
            let mut client = tidegate.client().await;
            let response = match framing {
                "h2c" => send_h2c(tidegate, &body, write).await,
                "length" => {
                    send(&mut client, &post(CHAT, &body), write).await;
                    client.response().await
                }
                _ => {
                    send(&mut client, &chunked(CHAT, &body, 8_192), write).await;
                    client.response().await
                }
            };
            cases += 1;
            let case = format!("{size} bytes, {framing}, {write:?}");
            assert_eq!(response.status(), 200, "{case}: {}", response.text());
            assert_eq!(response.json()["length"], size, "{case}");
            let received = well.received();
            assert_eq!(received.len(), cases, "{case}: delivered once");
            let received = &received[cases - 1];
            assert!(received.body == body, "{case}: the server got other bytes than were sent");
            assert_eq!(received.head.all("content-length"), [size.to_string()], "{case}");
            assert_eq!(received.head.all("transfer-encoding").len(), 0, "{case}");
            if let Some(first) = first {
                assert_eq!(first.count(), cases, "{case}: the first server was tried once");
            }
        }
    }
    well.forget();
    if let Some(first) = first {
        first.forget();
    }
}

const SIZES: [usize; 6] = [65_535, 65_536, 65_537, 131_072, MIB, 10 * MIB];

// B27
#[tokio::test]
async fn every_size_framing_and_rhythm_arrives_whole() {
    let well = Backend::start(lengths()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&well])).await;
    for size in SIZES {
        arrives_whole(&tidegate, &well, None, size).await;
    }
    tidegate.idle().await;
}

// B27
#[tokio::test]
async fn every_size_framing_and_rhythm_arrives_whole_when_the_first_server_refuses() {
    let well = Backend::start(lengths()).await;
    let tidegate = Tidegate::start(&Setup::one_group([closed_address(), well.address()]).without_health()).await;
    for size in SIZES {
        arrives_whole(&tidegate, &well, None, size).await;
    }
    assert_eq!(tidegate.metric("tidegate_retries_total", &[]).await, 54.0, "each of 9 x 6 requests was retried once");
    tidegate.idle().await;
}

// B27
#[tokio::test]
async fn every_size_framing_and_rhythm_arrives_whole_when_the_first_server_closes() {
    let first = Backend::start(async |_conn| {}).await;
    let well = Backend::start(lengths()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&first, &well]).without_health()).await;
    for size in SIZES {
        arrives_whole(&tidegate, &well, None, size).await;
    }
    assert_eq!(first.connections(), 54, "each of 9 x 6 requests was tried on the first server once");
    tidegate.idle().await;
}

// B27
#[tokio::test]
async fn every_size_framing_and_rhythm_arrives_whole_when_the_first_server_answers_503() {
    let first = Backend::start(reply(json_response(503, "{}"))).await;
    let well = Backend::start(lengths()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&first, &well]).without_health()).await;
    for size in SIZES {
        arrives_whole(&tidegate, &well, Some(&first), size).await;
    }
    tidegate.idle().await;
}

// B45
#[tokio::test]
async fn a_retried_chunked_body_is_whole_wherever_the_first_server_failed() {
    let after_body = Backend::start(reply(json_response(503, "{}"))).await;
    let after_head = Backend::start(async |mut conn: Conn| {
        if conn.head().await.is_some() {
            conn.send(json_response(503, "{}")).await;
            conn.finish().await;
        }
    })
    .await;
    let echo = Backend::start(echo()).await;
    for first in [after_body.address(), after_head.address(), closed_address()] {
        let tidegate = Tidegate::start(&Setup::one_group([first, echo.address()])).await;
        for size in [10_240, 307_200] {
            let body = body_of(size);
            let response = tidegate.exchange(&chunked(CHAT, &body, 1_000)).await;
            assert_eq!(response.status(), 200, "{}", response.text());
            assert_eq!(response.json(), serde_json::json!({ "length": size, "sha256": sha256(&body) }));
        }
        tidegate.idle().await;
    }
}

// B28 a-d
#[tokio::test]
async fn requests_without_a_body_are_relayed_at_once() {
    let server = Backend::start(reply(json_response(400, r#"{"error":{"message":"empty"}}"#))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let requests = [
        post(CHAT, b""),
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        chunked(CHAT, b"", 1),
        get("/v1/models/tiny"),
        get("/v1/models"),
    ];
    for (number, request) in requests.iter().enumerate() {
        let response = tidegate.exchange(request).await;
        assert_eq!((response.status(), response.end), (400, End::Complete));
        assert_eq!(server.received()[number].body, b"");
    }
    let head = tidegate.exchange(b"HEAD /v1/models HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(head.status(), 400);
    tidegate.idle().await;
}

// B28 e
#[tokio::test]
async fn a_body_may_come_long_after_its_header() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let body = body_of(70_000);
    let request = post(CHAT, &body);
    let (head, body) = request.split_at(request.len() - body.len());
    let mut client = tidegate.begin(head).await;
    assert!(client.is_quiet_for(Duration::from_secs(2)).await);
    assert_eq!(server.connections(), 0, "no server is chosen before the body is there");
    client.send(body).await;
    assert_eq!(client.response().await.json()["sha256"], sha256(body));
    tidegate.idle().await;
}

// B28 f
#[tokio::test]
async fn half_a_chunk_header_and_a_close_leave_nothing_running() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for _ in 0..4 {
        let head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r";
        let mut client = tidegate.begin(head).await;
        client.half_close().await;
        client.closed().await;
    }
    tidegate.idle().await;
    let before = tidegate.cpu_time();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let used = tidegate.cpu_time() - before;
    assert!(used < Duration::from_millis(500), "an idle second cost {used:?} of processor time");
    assert_eq!(server.connections(), 0);
}

// B28 g
#[tokio::test]
async fn a_body_cut_by_the_client_reaches_no_server() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for resets in [false, true] {
        let head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n";
        let client = tidegate.begin(&[&head[..], &[b'x'; 40]].concat()).await;
        if resets { client.reset() } else { client.close() }
    }
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(100))).await.status(), 200);
    tidegate.idle().await;
    assert_eq!(server.only().body, body_of(100));
}

// B30
#[tokio::test]
async fn the_server_gets_the_very_bytes_of_a_body_full_of_oddities() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let body = "\u{feff}{ \"zz_vendor\": {\"a\": [1, {\"b\": null}]},\t\"max_tokens\": 5, \"messages\":\r\n [{\"role\": \"tool\", \
                \"content\": [{\"type\": \"text\", \"text\": \"r\"}]}, {\"content\": null, \"role\": \"assistant\", \
                \"tool_calls\": [{\"id\": \"c\\/1\", \"x\": 0.1}]}], \"p\": 1e-7, \"q\": 12345678901234567890, \"r\": 1.0, \
                \"model\": \"a\", \"model\": \"tiny\", \"max_tokens\": 7, \"u\": \"\\u4e2d\\ud83d\\ude00中😀\"}  \r\n\n";
    for request in [post(CHAT, body.as_bytes()), chunked(CHAT, body.as_bytes(), 3)] {
        assert_eq!(tidegate.exchange(&request).await.json()["sha256"], sha256(body.as_bytes()));
    }
    for received in server.received() {
        assert_eq!(String::from_utf8(received.body).unwrap(), body);
        assert_eq!(received.head.get("content-length"), Some(body.len().to_string().as_str()));
    }
}

// B31
#[tokio::test]
async fn nesting_of_any_depth_is_forwarded() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    for depth in [120, 127, 128, 129, 1_000, 100_000] {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
            let nested = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            for body in [
                format!(r#"{{"messages":[],"extra":{nested}}}"#),
                format!(r#"{{"tools":[{{"function":{{"parameters":{nested}}}}}],"messages":[]}}"#),
                format!(r#"{{"messages":[],"extra":{}"#, open.repeat(depth)),
            ] {
                let response = client.exchange(&post(CHAT, body.as_bytes())).await;
                assert_eq!(response.status(), 200, "depth {depth}: {}", response.text());
                assert_eq!(response.json()["length"], body.len());
            }
        }
    }
    tidegate.idle().await;
}

// B66
#[tokio::test]
async fn by_default_a_body_of_12_mb_is_accepted() {
    let server = Backend::start(lengths()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let body = body_of(12_000_000);
    assert_eq!(tidegate.exchange(&post(CHAT, &body)).await.status(), 200);
    assert!(server.only().body == body);
}

// B66
#[tokio::test]
async fn a_body_above_the_limit_is_refused_and_reaches_no_server() {
    let server = Backend::start(lengths()).await;
    let setup = Setup::one_group([&server]).section("limits", "{ max_body_size: 1MiB }");
    let tidegate = Tidegate::start(&setup).await;
    let mut other = tidegate.begin(&post(CHAT, &body_of(100))[..150]).await;
    for path in [CHAT, "/v1/completions", "/some/other"] {
        for size in [MIB - 1, MIB] {
            let body = body_of(size);
            for request in [post(path, &body), chunked(path, &body, 65_536)] {
                assert_eq!(tidegate.exchange(&request).await.status(), 200, "{path}, {size} bytes");
            }
        }
        server.forget();
        let body = body_of(MIB + 1);
        for request in [post(path, &body), chunked(path, &body, 65_536), chunked(path, &body_of(3 * MIB), 65_536)] {
            let response = tidegate.exchange(&request).await;
            assert_refusal(&response, 413);
        }
        let h2 = H2Client::connect(tidegate.address).await;
        assert_refusal(&h2.post(path, &body).await, 413);
        assert_eq!(h2.post(path, &body_of(MIB)).await.status(), 200, "the connection goes on");
        assert!(server.only().body == body_of(MIB), "nothing of the bodies above the limit came");
        server.forget();
    }
    other.send(&post(CHAT, &body_of(100))[150..]).await;
    assert_eq!(other.response().await.status(), 200, "other connections are not touched");
    tidegate.idle().await;
}

// B66
#[tokio::test]
async fn a_content_length_above_the_limit_is_refused_before_anything_is_read() {
    let server = Backend::start(lengths()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for expect in ["", "Expect: 100-continue\r\n"] {
        let head = format!("POST {CHAT} HTTP/1.1\r\nHost: a\r\n{expect}Content-Length: 10000000000\r\n\r\n");
        let mut client = tidegate.begin(head.as_bytes()).await;
        let response = client.response().await;
        assert_refusal(&response, 413);
        assert_eq!(response.interim, [0_u16; 0], "the client is not told to send");
        client.closed().await;
    }
    assert_eq!(server.connections(), 0);
    tidegate.idle().await;
}

#[tokio::test]
async fn a_client_that_expects_100_is_told_to_send_and_the_server_sees_no_expectation() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let body = body_of(70_000);
    let request = request("POST", CHAT, "Expect: 100-continue\r\n", &body);
    let (head, body) = request.split_at(request.len() - body.len());
    let mut client = tidegate.begin(head).await;
    assert_eq!(client.interim_response().await, 100);
    assert_eq!(server.connections(), 0, "no server is chosen before the body is there");
    client.send(body).await;
    let response = client.response().await;
    assert_eq!(response.json()["sha256"], sha256(body));
    assert_eq!(response.interim, [0_u16; 0], "told once");
    assert_eq!(server.only().head.all("expect").len(), 0);
}

#[tokio::test]
async fn a_body_of_any_announced_length_is_refused_without_taking_memory_for_it() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for length in [u64::MAX, 1 << 50, 1 << 40] {
        let header = format!("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        let mut client = tidegate.begin(&[header.as_bytes(), &[b'x'; 100_000]].concat()).await;
        assert_refusal(&client.response().await, 413);
    }
    assert_eq!(tidegate.exchange(&post("/v1/completions", b"{}")).await.status(), 200);
    assert_eq!(server.count(), 1);
}
