//! HTTP/2 to the letter (RFC 9113): raw frames that a client must not send, or may, and floods of them.
//!
//! After each case another client is served, and nothing is counted any more.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const WITH_PRIORITY: u8 = 0x20;

/// A frame with a length that is true.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a frame is short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Fields in HPACK, each a literal that is not indexed.
fn fields<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).expect("a text is short")], text.as_bytes()].concat();
    fields.into_iter().flat_map(|(name, value)| [&[0][..], &text(name), &text(value)].concat()).collect()
}

const GET: [(&str, &str); 4] = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/v1/x")];
const POST: [(&str, &str); 4] =
    [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/v1/chat/completions")];

/// A whole request with these fields.
fn request_of<'a>(stream: u32, more: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(more))
}

fn get_request(stream: u32) -> Vec<u8> {
    request_of(stream, GET)
}

/// The beginning of a POST, whose body follows.
fn open(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &fields(POST))
}

/// What is to come of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// The request on stream 1 is answered with 200.
    Served,
    /// Stream 1 ends with an error, or the whole connection does.
    StreamError,
    /// The connection ends: with `GOAWAY`, or closed at once.
    ConnectionError,
    /// A ping is answered.
    Pong,
}

/// What came from Tidegate.
#[derive(Debug, Default)]
struct Came {
    status_200: bool,
    refused: bool,
    reset: bool,
    ended: bool,
    pong: bool,
}

impl Came {
    fn is(&self, then: Then) -> bool {
        match then {
            Then::Served => self.status_200,
            Then::StreamError => self.reset || self.refused || self.ended,
            Then::ConnectionError => self.ended,
            Then::Pong => self.pong,
        }
    }
}

/// Reads frames until what is expected has come, or long enough.
async fn read(stream: &mut TcpStream, then: Then) -> Came {
    let mut came = Came::default();
    let reading = async {
        while !came.is(then) {
            let mut head = [0; 9];
            if stream.read_exact(&mut head).await.is_err() {
                came.ended = true;
                return;
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            if stream.read_exact(&mut payload).await.is_err() {
                came.ended = true;
                return;
            }
            match head[3] {
                // `:status: 200` is the eighth of HPACK's static table; what it is otherwise is of no interest.
                HEADERS if payload.first() == Some(&0x88) => came.status_200 = true,
                HEADERS => came.refused = true,
                RST_STREAM => came.reset = true,
                GOAWAY if payload.get(4..8) != Some(&[0; 4]) => came.ended = true,
                PING if head[4] & ACK != 0 => came.pong = true,
                _ => {}
            }
        }
    };
    drop(tokio::time::timeout(Duration::from_secs(5), reading).await);
    came
}

async fn connect(to: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, b"")].concat()).await.unwrap();
    stream
}

/// Cases by the section of RFC 9113 that rules them.
#[allow(clippy::too_many_lines, reason = "one table")]
fn cases() -> Vec<(&'static str, Vec<u8>, Then)> {
    let with = |more: &[(&'static str, &'static str)]| request_of(1, GET.into_iter().chain(more.iter().copied()));
    let ping = || frame(PING, 0, 0, b"12345678");
    vec![
        // 4.1, 5.5: what is not known is passed over.
        ("4.1 unknown frame", [frame(0x16, 0, 0, b"x"), ping()].concat(), Then::Pong),
        ("4.1 unknown flags on a ping", frame(PING, 0x16, 0, b"12345678"), Then::Pong),
        ("4.1 reserved bit of a stream", frame(PING, 0, 1 << 31, b"12345678"), Then::Pong),
        ("4.2 data larger than allowed", [open(1), frame(DATA, 0, 1, &[b'x'; 16_385])].concat(), Then::ConnectionError),
        ("4.2 header larger than allowed", frame(HEADERS, END_HEADERS, 1, &[0; 16_385]), Then::ConnectionError),
        ("4.3 a broken header block", frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xff; 6]), Then::ConnectionError),
        (
            "4.3 another frame within a header",
            [frame(HEADERS, 0, 1, &fields(GET)), ping()].concat(),
            Then::ConnectionError,
        ),
        (
            "4.3 another header within a header",
            [frame(HEADERS, 0, 1, &fields(GET)), get_request(3)].concat(),
            Then::ConnectionError,
        ),
        ("5.1 data on an idle stream", frame(DATA, END_STREAM, 1, b"x"), Then::ConnectionError),
        ("5.1 reset of an idle stream", frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]), Then::ConnectionError),
        ("5.1 window of an idle stream", frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 9]), Then::ConnectionError),
        (
            "5.1 continuation of an idle stream",
            frame(CONTINUATION, END_HEADERS, 1, &fields(GET)),
            Then::ConnectionError,
        ),
        ("5.1 data behind the end", [get_request(1), frame(DATA, END_STREAM, 1, b"x")].concat(), Then::StreamError),
        (
            "5.1 data behind a reset",
            [open(1), frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]), frame(DATA, 0, 1, b"x"), ping()].concat(),
            Then::Pong,
        ),
        ("5.1.1 even stream", get_request(2), Then::ConnectionError),
        ("5.1.1 stream 0", frame(HEADERS, END_HEADERS | END_STREAM, 0, &fields(GET)), Then::ConnectionError),
        ("5.1.1 a lower stream than before", [get_request(5), get_request(3)].concat(), Then::ConnectionError),
        (
            "5.3.1 a stream that depends on itself",
            [frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 9]), ping()].concat(),
            Then::Pong,
        ),
        ("6.1 data on stream 0", frame(DATA, 0, 0, b"x"), Then::ConnectionError),
        (
            "6.1 padding longer than the frame",
            [open(1), frame(DATA, PADDED, 1, &[9, 1])].concat(),
            Then::ConnectionError,
        ),
        (
            "6.2 padded header",
            frame(HEADERS, END_HEADERS | END_STREAM | PADDED, 1, &{ [&[3][..], &fields(GET), &[0; 3]].concat() }),
            Then::Served,
        ),
        (
            "6.2 header with a priority",
            frame(HEADERS, END_HEADERS | END_STREAM | WITH_PRIORITY, 1, &{
                [&[0, 0, 0, 0, 9][..], &fields(GET)].concat()
            }),
            Then::Served,
        ),
        (
            "6.2 padding longer than the header",
            frame(HEADERS, END_HEADERS | PADDED, 1, &[200, 0]),
            Then::ConnectionError,
        ),
        ("6.3 priority of stream 0", frame(PRIORITY, 0, 0, &[0, 0, 0, 1, 9]), Then::ConnectionError),
        ("6.3 short priority", [open(1), frame(PRIORITY, 0, 1, &[0; 4])].concat(), Then::StreamError),
        ("6.4 reset of stream 0", frame(RST_STREAM, 0, 0, &[0, 0, 0, 8]), Then::ConnectionError),
        ("6.4 short reset", [open(1), frame(RST_STREAM, 0, 1, &[0; 3])].concat(), Then::ConnectionError),
        ("6.5 settings on a stream", frame(SETTINGS, 0, 1, b""), Then::ConnectionError),
        ("6.5 an acknowledgement with a payload", frame(SETTINGS, ACK, 0, &[0; 6]), Then::ConnectionError),
        ("6.5 half a setting", frame(SETTINGS, 0, 0, &[0; 3]), Then::ConnectionError),
        ("6.5.2 push neither on nor off", frame(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2]), Then::ConnectionError),
        ("6.5.2 a window too large", frame(SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]), Then::ConnectionError),
        ("6.5.2 frames too small", frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0x3f, 0xff]), Then::ConnectionError),
        ("6.5.2 an unknown setting", [frame(SETTINGS, 0, 0, &[0, 0xff, 0, 0, 0, 1]), ping()].concat(), Then::Pong),
        ("6.6 a promise", frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]), Then::ConnectionError),
        ("6.7 ping", ping(), Then::Pong),
        ("6.7 ping on a stream", frame(PING, 0, 1, b"12345678"), Then::ConnectionError),
        ("6.7 short ping", frame(PING, 0, 0, b"1234567"), Then::ConnectionError),
        ("6.8 goodbye on a stream", frame(GOAWAY, 0, 1, &[0; 8]), Then::ConnectionError),
        ("6.9 window by 0", frame(WINDOW_UPDATE, 0, 0, &[0; 4]), Then::ConnectionError),
        ("6.9 a stream's window by 0", [open(1), frame(WINDOW_UPDATE, 0, 1, &[0; 4])].concat(), Then::StreamError),
        ("6.9 short window", frame(WINDOW_UPDATE, 0, 0, &[0; 3]), Then::ConnectionError),
        ("6.9.1 too large a window", frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]), Then::ConnectionError),
        (
            "6.9.1 too large a window of a stream",
            [open(1), frame(WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff])].concat(),
            Then::StreamError,
        ),
        (
            "6.10 a header in parts",
            {
                let block = fields(GET);
                let [a, b, c] = [&block[..5], &block[5..20], &block[20..]];
                [frame(HEADERS, END_STREAM, 1, a), frame(CONTINUATION, 0, 1, b), frame(CONTINUATION, END_HEADERS, 1, c)]
                    .concat()
            },
            Then::Served,
        ),
        ("6.10 continuation on stream 0", frame(CONTINUATION, END_HEADERS, 0, &fields(GET)), Then::ConnectionError),
        (
            "6.10 continuation behind a header's end",
            [open(1), frame(CONTINUATION, END_HEADERS, 1, &fields(GET))].concat(),
            Then::ConnectionError,
        ),
        (
            "8.1 trailers without the end",
            [open(1), frame(HEADERS, END_HEADERS, 1, &fields([("x", "y")]))].concat(),
            Then::StreamError,
        ),
        (
            // They ought to be an error; the h2 crate (0.4) leaves them out. No trailers of requests are passed on.
            "8.1 pseudo fields in trailers",
            [open(1), frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields([(":method", "GET")]))].concat(),
            Then::Served,
        ),
        ("8.2.1 upper case", with(&[("X-Test", "ok")]), Then::StreamError),
        ("8.2.1 line feed in a value", with(&[("x-test", "a\nb: c")]), Then::StreamError),
        ("8.2.1 NUL in a value", with(&[("x-test", "a\0b")]), Then::StreamError),
        ("8.2.1 colon in a name", with(&[("x:y", "ok")]), Then::StreamError),
        ("8.2.2 connection", with(&[("connection", "keep-alive")]), Then::StreamError),
        ("8.2.2 transfer-encoding", with(&[("transfer-encoding", "chunked")]), Then::StreamError),
        ("8.2.2 te other than trailers", with(&[("te", "gzip")]), Then::StreamError),
        ("8.2.2 te: trailers", with(&[("te", "trailers")]), Then::Served),
        ("8.3 unknown pseudo field", with(&[(":test", "ok")]), Then::StreamError),
        ("8.3 a response's pseudo field", with(&[(":status", "200")]), Then::StreamError),
        ("8.3 a pseudo field behind another", request_of(1, [("x", "y")].into_iter().chain(GET)), Then::StreamError),
        ("8.3.1 no path", request_of(1, GET[..3].iter().copied()), Then::StreamError),
        ("8.3.1 no method", request_of(1, GET[1..].iter().copied()), Then::StreamError),
        ("8.3.1 no scheme", request_of(1, [GET[0], GET[2], GET[3]]), Then::StreamError),
        ("8.3.1 an empty path", request_of(1, [GET[0], GET[1], GET[2], (":path", "")]), Then::StreamError),
        ("8.3.1 two methods", with(&[(":method", "GET")]), Then::StreamError),
        ("8.3.1 two paths", with(&[(":path", "/")]), Then::StreamError),
        (
            "8.1.1 less data than announced",
            [
                frame(HEADERS, END_HEADERS, 1, &fields(POST.into_iter().chain([("content-length", "3")]))),
                frame(DATA, END_STREAM, 1, b"{}"),
            ]
            .concat(),
            Then::StreamError,
        ),
        (
            "8.1.1 more data than announced",
            [
                frame(HEADERS, END_HEADERS, 1, &fields(POST.into_iter().chain([("content-length", "1")]))),
                frame(DATA, END_STREAM, 1, b"{}"),
            ]
            .concat(),
            Then::StreamError,
        ),
        (
            "8.1.1 data without an announcement",
            [open(1), frame(DATA, 0, 1, b"{"), frame(DATA, END_STREAM, 1, b"}")].concat(),
            Then::Served,
        ),
        ("8.1 a whole request", get_request(1), Then::Served),
    ]
}

async fn another_is_served(tidegate: &Tidegate, after: &str) {
    let response = tidegate.exchange(&post("/v1/chat/completions", &body_of(100))).await;
    assert_eq!(response.json()["sha256"], sha256(&body_of(100)), "after {after:?}: another client's own answer");
}

#[tokio::test]
async fn frames_are_taken_refused_or_passed_over_as_the_standard_says() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut wrong = Vec::new();
    for (what, bytes, then) in cases() {
        let mut stream = connect(tidegate.address).await;
        stream.write_all(&bytes).await.unwrap();
        let came = read(&mut stream, then).await;
        if !came.is(then) {
            wrong.push(format!("{what}: expected {then:?}, {came:?}"));
        }
        drop(stream);
        another_is_served(&tidegate, what).await;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    tidegate.idle().await;
    let odd = |received: &Received| {
        let fields = ["x-test", "x:y", "X-Test", "te", "transfer-encoding"];
        received.head.line.contains("/v1/x") && fields.iter().any(|name| received.head.get(name).is_some())
    };
    assert!(!server.received().iter().any(odd), "{:?}", server.received());
}

/// Sends more and more, until Tidegate ends the connection or takes no more, or enough was sent.
async fn flood(to: SocketAddr, start: &[u8], mut next: impl FnMut(u32) -> Vec<u8>, times: u32) -> TcpStream {
    let mut stream = connect(to).await;
    stream.write_all(start).await.unwrap();
    for number in 0..times {
        let written = tokio::time::timeout(Duration::from_secs(1), stream.write_all(&next(number))).await;
        if !matches!(written, Ok(Ok(()))) {
            break;
        }
    }
    stream
}

#[tokio::test]
async fn floods_of_frames_end_and_take_nothing_along() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    another_is_served(&tidegate, "nothing").await;
    let memory = tidegate.rss_bytes();
    // CVE-2023-44487: requests that are taken back at once.
    let reset =
        |number: u32| [get_request(number * 2 + 1), frame(RST_STREAM, 0, number * 2 + 1, &[0, 0, 0, 8])].concat();
    // CVE-2024-27316: a header that does not end.
    let field = fields([("x-filler", "some text that is of no use")]);
    let continued = |_| frame(CONTINUATION, 0, 1, &field.repeat(300));
    // CVE-2019-9518: frames without content.
    let empty = |_| frame(DATA, 0, 1, b"").repeat(100);
    // CVE-2019-9512 and CVE-2019-9515: what has to be answered, by a client that does not read.
    let pings = |_| frame(PING, 0, 0, b"12345678").repeat(100);
    let settings = |_| frame(SETTINGS, 0, 0, b"").repeat(100);
    let floods = [
        ("resets", flood(tidegate.address, b"", reset, 20_000).await),
        ("continuations", flood(tidegate.address, &frame(HEADERS, 0, 1, &fields(GET)), continued, 3_000).await),
        ("empty data", flood(tidegate.address, &open(1), empty, 2_000).await),
        ("pings", flood(tidegate.address, b"", pings, 20_000).await),
        ("settings", flood(tidegate.address, b"", settings, 20_000).await),
    ];
    for (what, stream) in floods {
        another_is_served(&tidegate, what).await;
        drop(stream);
    }
    tidegate.idle().await;
    let grown = tidegate.rss_bytes().saturating_sub(memory);
    assert!(grown < 64 << 20, "memory grew by {grown} bytes");
}
