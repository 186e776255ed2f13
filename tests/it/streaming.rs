//! Responses on their way back: byte for byte, each piece when it comes, and broken when the server broke.

use std::time::Duration;

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";
const SSE_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                        transfer-encoding: chunked\r\n\r\n";
const LAST_CHUNK: &str = "0\r\n\r\n";

fn chunk(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn streamed(chunks: &[&[u8]]) -> Vec<u8> {
    let chunks: Vec<u8> = chunks.iter().flat_map(chunk).collect();
    [SSE_HEAD.as_bytes(), &chunks, LAST_CHUNK.as_bytes()].concat()
}

const TEXT: &str = "data: {\"text\":\"你好，世界 😀👩‍💻 é\"}\n\ndata: [DONE]\n\n";

// B34 a, b
#[tokio::test]
async fn characters_survive_being_split_into_single_bytes() {
    let by_segment = Backend::start(async |mut conn: Conn| {
        while conn.request().await.is_some() {
            for byte in [SSE_HEAD.as_bytes(), &chunk(TEXT), LAST_CHUNK.as_bytes()].concat() {
                conn.send([byte]).await;
                tokio::task::yield_now().await;
            }
        }
    })
    .await;
    let single: Vec<&[u8]> = TEXT.as_bytes().chunks(1).collect();
    let by_chunk = Backend::start(reply(streamed(&single))).await;
    for server in [&by_segment, &by_chunk] {
        let tidegate = Tidegate::start(&Setup::one_group([server])).await;
        let response = tidegate.exchange(&post(COMPLETIONS, b"{\"stream\":true}")).await;
        assert_eq!((response.text().as_str(), response.end), (TEXT, End::Complete));
        tidegate.idle().await;
    }
}

// B34 c
#[tokio::test]
async fn characters_survive_a_cut_at_every_offset() {
    let server = Backend::start(async |mut conn: Conn| {
        for at in 1..TEXT.len() {
            if conn.request().await.is_none() {
                return;
            }
            let (start, rest) = TEXT.as_bytes().split_at(at);
            conn.send([SSE_HEAD.as_bytes(), &chunk(start)].concat()).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
            conn.send([&chunk(rest), LAST_CHUNK.as_bytes()].concat()).await;
        }
        conn.closed().await;
    })
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    for at in 1..TEXT.len() {
        let response = client.exchange(&post(COMPLETIONS, b"{\"stream\":true}")).await;
        assert_eq!(response.text(), TEXT, "cut at {at}");
        assert_eq!(response.head.get("content-type"), Some("text/event-stream; charset=utf-8"));
    }
}

/// Reads a stream of [`sse`] whose events the gate lets through one by one: event k must be here before event k+1 is
/// released.
async fn every_event_comes_before_the_next(client: &mut Client, gate: &Gate, events: usize) {
    gate.admit(1);
    let head = client.head().await;
    assert_eq!((head.status(), head.get("content-encoding")), (200, None));
    for number in 0..events - 1 {
        let event = sse_event(number);
        assert_eq!(client.body_bytes(event.len()).await, event.as_bytes());
        gate.admit(1);
    }
    // The server sends the end right behind the last event.
    let end = sse_event(events - 1) + "data: [DONE]\n\n";
    assert_eq!(client.rest().await, (end.into_bytes(), End::Complete));
}

// B36
#[tokio::test]
async fn every_event_is_passed_on_before_the_next_one_exists() {
    let gate = Gate::closed();
    let server = Backend::start(sse(60, &gate)).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for fields in ["", "Accept-Encoding: gzip, deflate, br, zstd\r\n"] {
        let mut client = tidegate.begin(&request("POST", COMPLETIONS, fields, b"{\"stream\":true}")).await;
        every_event_comes_before_the_next(&mut client, &gate, 60).await;
        tidegate.idle().await;
    }
}

// B36
#[tokio::test]
async fn events_of_two_hundred_streams_at_once_are_passed_on_one_by_one() {
    let gates: Vec<Gate> = (0..200).map(|_| Gate::closed()).collect();
    let of_number = gates.clone();
    let server = Backend::start(move |mut conn: Conn| {
        let gates = of_number.clone();
        async move {
            let request = conn.head().await.expect("a request comes");
            let number: usize = request.get("x-number").unwrap().parse().unwrap();
            conn.body(&request).await;
            sse_answer(&mut conn, 10, &gates[number]).await;
            conn.closed().await;
        }
    })
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut streams = tokio::task::JoinSet::new();
    for (number, gate) in gates.into_iter().enumerate() {
        let mut client = tidegate.client().await;
        streams.spawn(async move {
            let fields = format!("X-Number: {number}\r\n");
            client.send(&request("POST", COMPLETIONS, &fields, b"{\"stream\":true}")).await;
            every_event_comes_before_the_next(&mut client, &gate, 10).await;
        });
    }
    streams.join_all().await;
    tidegate.idle().await;
}

// B36
#[tokio::test]
async fn every_event_is_passed_on_over_h2c_before_the_next_one_exists() {
    let gate = Gate::closed();
    let server = Backend::start(sse(20, &gate)).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let client = H2Client::connect(tidegate.address).await;
    gate.admit(1);
    let mut stream = client.begin(COMPLETIONS, b"{\"stream\":true}").await.into_body();
    for number in 0..19 {
        let data = tokio::time::timeout(PATIENCE, stream.data()).await.expect("the event comes").unwrap().unwrap();
        assert_eq!(data, sse_event(number).as_bytes());
        stream.flow_control().release_capacity(data.len()).unwrap();
        gate.admit(1);
    }
}

// B37
#[tokio::test]
async fn every_legal_form_of_an_event_stream_is_relayed_as_it_is() {
    let forms = [
        ": ping\n\ndata: 1\n\n: keep-alive\n\n",
        "data: 1\r\n\r\ndata: 2\r\n\r\n",
        "data: 1\r\rdata: 2\r\r",
        "event: message\nid: 7\nretry: 1000\ndata: a\ndata: b\n\n",
        "data:{\"a\":1}\n\ndata:\n\ndata\n\n",
        "\u{feff}data: 1\n\n\n\n\n",
        "data: no end",
    ];
    for form in forms {
        let server = Backend::start(reply(streamed(&[form.as_bytes()]))).await;
        let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
        let response = tidegate.exchange(&post(COMPLETIONS, b"{\"stream\":true}")).await;
        assert_eq!((response.text().as_str(), response.end), (form, End::Complete));
    }
}

// B37; but they do not reset the limit on pauses, because vLLM sends them while its engine hangs: engine.rs
#[tokio::test]
async fn comments_of_a_quiet_stream_are_relayed_at_once() {
    let gate = Gate::closed();
    let its_gate = gate.clone();
    let server = Backend::start(move |mut conn: Conn| {
        let gate = its_gate.clone();
        async move {
            conn.request().await;
            conn.send(SSE_HEAD).await;
            for _ in 0..8 {
                conn.send(chunk(": ping\n\n")).await;
                gate.pass().await;
            }
            conn.send(streamed(&[b"data: [DONE]\n\n"]).split_off(SSE_HEAD.len())).await;
            conn.closed().await;
        }
    })
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.begin(&post(COMPLETIONS, b"{\"stream\":true}")).await;
    assert_eq!(client.head().await.status(), 200);
    for _ in 0..8 {
        assert_eq!(client.body_bytes(8).await, b": ping\n\n");
        gate.admit(1);
    }
    assert_eq!(client.rest().await, (b"data: [DONE]\n\n".to_vec(), End::Complete));
}

// B26
#[tokio::test]
async fn the_stream_field_of_a_request_changes_nothing_in_the_response() {
    let plain = json_response(200, "{\"object\":\"text_completion\"}");
    let stream = streamed(&[b"data: {}\n\n", b"data: [DONE]\n\n"]);
    let bodies = [
        r#"{"stream":"true"}"#,
        r#"{"stream":1}"#,
        r#"{"stream":null}"#,
        r"{}",
        r#"{"stream":false}"#,
        r#"{"stream":true}"#,
        r#"{"stream":true,"stream_options":{"include_usage":false}}"#,
        r#"{"stream":true,"stream_options":{}}"#,
        r#"{"stream":true,"stream_options":null}"#,
        r#"{"stream_options":{"include_usage":true}}"#,
    ];
    for (answer, framing, body_out) in [
        (plain, "content-length", "{\"object\":\"text_completion\"}"),
        (stream, "transfer-encoding", "data: {}\n\ndata: [DONE]\n\n"),
    ] {
        let server = Backend::start(reply(answer)).await;
        let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
        for body in bodies {
            let response = tidegate.exchange(&post(COMPLETIONS, body.as_bytes())).await;
            assert_eq!(response.text(), body_out, "{body}");
            assert_eq!(response.head.all(framing).len(), 1, "{body}: framed as the server did");
            assert_eq!(server.received().last().unwrap().body, body.as_bytes());
        }
    }
}

// B43, B07 d
#[tokio::test]
async fn a_stream_that_breaks_ends_broken_and_is_not_begun_again() {
    let started = Gate::closed();
    for resets in [true, false] {
        let go_on = started.clone();
        let broken = Backend::start(move |mut conn: Conn| {
            let go_on = go_on.clone();
            async move {
                conn.request().await;
                conn.send([SSE_HEAD.as_bytes(), &chunk(sse_event(0))].concat()).await;
                go_on.pass().await;
                if resets { conn.reset() } else { conn.finish().await }
            }
        })
        .await;
        let other = Backend::start(echo()).await;
        let tidegate = Tidegate::start(&Setup::one_group([&broken, &other])).await;
        let mut client = tidegate.begin(&post(COMPLETIONS, b"{\"stream\":true}")).await;
        client.head().await;
        client.body_bytes(sse_event(0).len()).await;
        started.admit(1);
        let (rest, end) = client.rest().await;
        assert_eq!(rest, b"", "nothing is added");
        assert_ne!(end, End::Complete, "the client can tell that the stream is not whole");

        tidegate.idle().await;
        let h2 = H2Client::connect(tidegate.address).await;
        let mut stream = h2.begin(COMPLETIONS, b"{\"stream\":true}").await.into_body();
        assert_eq!(stream.data().await.unwrap().unwrap(), sse_event(0).as_bytes());
        started.admit(1);
        let end = tokio::time::timeout(PATIENCE, stream.data()).await.expect("the stream ends");
        assert!(end.is_some_and(|end| end.is_err()), "the stream is reset");
        tidegate.idle().await;
        assert_eq!(other.count(), 0);
        tidegate.finished(2).await;
        assert_eq!(tidegate.metric("tidegate_requests_total", &["outcome=\"upstream_broken\""]).await, 2.0);
    }
}

// B43
#[tokio::test]
async fn a_server_that_dies_after_its_header_is_replaced_and_the_client_sees_one_response() {
    for resets in [true, false] {
        let broken = Backend::start(move |mut conn: Conn| async move {
            conn.request().await;
            conn.send(SSE_HEAD.replace("200 OK", "200 Broken")).await;
            // Time for the header to be read by itself.
            tokio::time::sleep(Duration::from_millis(50)).await;
            if resets { conn.reset() } else { conn.finish().await }
        })
        .await;
        let well = Backend::start(reply(streamed(&[b"data: well\n\n"]))).await;
        let tidegate = Tidegate::start(&Setup::one_group([&broken, &well])).await;
        let mut client = tidegate.client().await;
        let response = client.exchange(&post(COMPLETIONS, b"{\"stream\":true}")).await;
        assert_eq!(response.head.line, "HTTP/1.1 200 OK");
        assert_eq!((response.text().as_str(), response.end), ("data: well\n\n", End::Complete));
        assert!(client.is_quiet_for(Duration::from_millis(50)).await, "nothing comes after the one response");
        assert_eq!((broken.count(), well.count()), (1, 1));
        tidegate.idle().await;
    }
}

// B43
#[tokio::test]
async fn an_error_event_in_a_stream_is_relayed_and_not_retried() {
    // As the first event it is tried elsewhere: engine.rs.
    let body = b"data: {\"id\": 1}\n\ndata: {\"error\": {\"message\": \"engine died\", \"code\": 500}}\n\n";
    let server = Backend::start(reply(streamed(&[body, b"data: [DONE]\n\n"]))).await;
    let other = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server, &other])).await;
    let response = tidegate.exchange(&post(COMPLETIONS, b"{\"stream\":true}")).await;
    assert_eq!((response.body, response.end), ([&body[..], b"data: [DONE]\n\n"].concat(), End::Complete));
    assert_eq!(other.count(), 0);
}

#[tokio::test]
async fn the_header_of_a_stream_comes_with_its_first_event() {
    let gate = Gate::closed();
    let server = Backend::start(sse(1, &gate)).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.begin(&post(COMPLETIONS, b"{\"stream\":true}")).await;
    server.whole_requests(1).await;
    assert!(client.is_quiet_for(Duration::from_millis(300)).await, "a header alone proves nothing and is held back");
    gate.admit(1);
    assert_eq!(client.response().await.status(), 200);
}

#[tokio::test]
async fn the_pieces_of_a_response_with_a_length_are_passed_on_as_they_come() {
    let gate = Gate::closed();
    let go_on = gate.clone();
    let server = Backend::start(move |mut conn: Conn| {
        let gate = go_on.clone();
        async move {
            conn.request().await;
            conn.send("HTTP/1.1 200 OK\r\ncontent-length: 30\r\n\r\n").await;
            for _ in 0..3 {
                gate.pass().await;
                conn.send("0123456789").await;
            }
            conn.closed().await;
        }
    })
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.begin(&post(COMPLETIONS, b"{}")).await;
    gate.admit(1);
    client.head().await;
    for _ in 0..2 {
        assert_eq!(client.body_bytes(10).await, b"0123456789");
        gate.admit(1);
    }
    assert_eq!(client.rest().await, (b"0123456789".to_vec(), End::Complete));
}

#[tokio::test]
async fn a_long_response_to_a_slow_reader_arrives_whole() {
    let body = body_of(20_000_000);
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    let server = Backend::start(reply([head.as_bytes(), &body].concat())).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.begin(&post(COMPLETIONS, b"{}")).await;
    client.head().await;
    // The socket buffers fill up and the server has to wait.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (received, end) = client.rest().await;
    assert_eq!(end, End::Complete);
    assert!(received == body, "other bytes came than were sent");
    tidegate.idle().await;
}
