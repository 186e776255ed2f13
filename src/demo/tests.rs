//! Tests of a demo server over real sockets, byte by byte.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::time::Duration;

use pingora::services::Service as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::*;

/// A test that waits this long for a byte hangs. Nothing is measured with it.
const HANG: Duration = Duration::from_secs(30);

/// A prompt of so many tokens, as a completion request that is streamed.
fn streamed(prompt_tokens: usize, max_tokens: u64) -> String {
    let prompt = "x".repeat(prompt_tokens * 4);
    format!(r#"{{"model":"demo","prompt":"{prompt}","max_tokens":{max_tokens},"ignore_eos":true,"stream":true}}"#)
}

fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: demo\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: demo\r\n\r\n")
}

/// A server that prefills so many tokens a second and makes tokens without pausing.
fn fast() -> DemoSettings {
    DemoSettings {
        prefill_tokens_per_second: NonZeroU64::new(1_000_000_000).unwrap(),
        token_interval: Duration::ZERO,
        ..DemoSettings::default()
    }
}

/// A server whose every prefill outlasts the test.
fn stuck() -> DemoSettings {
    DemoSettings { prefill_tokens_per_second: NonZeroU64::MIN, ..fast() }
}

struct Demo {
    address: SocketAddr,
    _stop: watch::Sender<bool>,
}

impl Demo {
    /// Starts a server on a loopback address of this process, so that no other can take the port in between.
    async fn start(settings: DemoSettings) -> Self {
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let own = IpAddr::V4(Ipv4Addr::new(127, high.wrapping_add(1), middle, low.max(1)));
        let address = TcpListener::bind((own, 0)).await.unwrap().local_addr().unwrap();
        let (stop, shutdown) = watch::channel(false);
        let mut service = service("short-0", address, settings);
        tokio::spawn(async move { service.start_service(None, shutdown, 1).await });
        let until_it_listens = async {
            while TcpStream::connect(address).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        timeout(HANG, until_it_listens).await.expect("the server never listened");
        Self { address, _stop: stop }
    }

    async fn connect(&self) -> Client {
        Client { socket: TcpStream::connect(self.address).await.unwrap(), read: String::new() }
    }

    /// One request on a connection of its own: the whole response.
    async fn exchange(&self, request: &str) -> String {
        let mut client = self.connect().await;
        client.send(&request.replacen("\r\n", "\r\nConnection: close\r\n", 1)).await;
        client.read_to_end().await
    }

    async fn load(&self) -> String {
        let response = self.exchange(&get("/load")).await;
        response.rsplit("\r\n\r\n").next().unwrap().to_owned()
    }

    async fn until_load_is(&self, load: usize) {
        let expected = format!(r#"{{"server_load":{load}}}"#);
        let reached = async { while self.load().await != expected {} };
        timeout(HANG, reached).await.unwrap_or_else(|_| panic!("the load never became {load}"));
    }
}

struct Client {
    socket: TcpStream,
    /// What came since the last `send`.
    read: String,
}

impl Client {
    async fn send(&mut self, bytes: &str) {
        self.read.clear();
        self.socket.write_all(bytes.as_bytes()).await.unwrap();
    }

    /// Reads until something was received, and returns all that came up to then.
    async fn read_until(&mut self, wanted: &str) -> &str {
        while !self.read.contains(wanted) {
            assert!(self.read_some().await > 0, "closed before {wanted:?} came: {:?}", self.read);
        }
        &self.read
    }

    async fn read_to_end(mut self) -> String {
        while self.read_some().await > 0 {}
        self.read
    }

    async fn read_some(&mut self) -> usize {
        let mut buffer = [0; 4_096];
        let count = timeout(HANG, self.socket.read(&mut buffer)).await.expect("no byte came").unwrap();
        self.read.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        count
    }
}

#[tokio::test]
async fn a_whole_answer_names_the_server_and_the_length_of_the_prompt() {
    let demo = Demo::start(fast()).await;
    let body = r#"{"model":"demo","messages":[{"role":"user","content":"twelve bytes"}]}"#;
    let response = demo.exchange(&post("/v1/chat/completions", body)).await;
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    assert!(response.contains("content-type: application/json\r\n"), "{response}");
    assert!(response.contains("\"content\":\"short-0 answers: prompt of 3 tokens, "), "{response}");
    assert!(response.contains(r#""finish_reason":"stop""#), "{response}");
    assert!(response.contains(r#""usage":{"prompt_tokens":3,"total_tokens":17,"completion_tokens":14,"#), "{response}");
    assert!(response.contains(r#""system_fingerprint":"tidegate-demo-short-0""#), "{response}");
}

#[tokio::test]
async fn a_stream_is_one_event_a_chunk_and_ends_with_done() {
    let demo = Demo::start(fast()).await;
    let body = r#"{"messages":[{"role":"user","content":"hello"}],"max_tokens":2,"stream":true,"stream_options":{"include_usage":true}}"#;
    let response = demo.exchange(&post("/v1/chat/completions", body)).await;
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("content-type: text/event-stream; charset=utf-8\r\n"), "{head}");
    assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
    let mut chunks = Vec::new();
    let mut rest = body;
    loop {
        let (size, after) = rest.split_once("\r\n").unwrap();
        let (chunk, after) = after.split_at(usize::from_str_radix(size, 16).unwrap());
        rest = after.strip_prefix("\r\n").unwrap();
        if chunk.is_empty() {
            break;
        }
        chunks.push(chunk);
    }
    assert_eq!(rest, "", "nothing follows the last chunk");
    let expected = [r#""role":"assistant""#, "short-0 ", r#""finish_reason":"length""#, r#""usage":{"#, "data: [DONE]"];
    assert_eq!(chunks.len(), expected.len(), "{chunks:?}");
    for (chunk, expected) in chunks.iter().zip(expected) {
        assert!(chunk.starts_with("data: ") && chunk.ends_with("\n\n") && chunk.contains(expected), "{chunk}");
    }
}

#[tokio::test]
async fn the_header_of_a_stream_comes_before_its_prompt_is_prefilled() {
    let demo = Demo::start(stuck()).await;
    let mut client = demo.connect().await;
    client.send(&post("/v1/completions", &streamed(100_000, 1))).await;
    let head = client.read_until("\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.ends_with("\r\n\r\n"), "no event before the prefill is done: {head}");
    assert_eq!(demo.load().await, r#"{"server_load":1}"#);
}

#[tokio::test]
async fn a_short_prompt_waits_behind_a_long_one_that_leaves() {
    let demo = Demo::start(DemoSettings { prefill_tokens_per_second: NonZeroU64::new(100).unwrap(), ..fast() }).await;
    let mut long = demo.connect().await;
    long.send(&post("/v1/completions", &streamed(100_000, 1))).await;
    demo.until_load_is(1).await;
    let mut short = demo.connect().await;
    short.send(&post("/v1/completions", &streamed(1, 1))).await;
    demo.until_load_is(2).await;
    let head = short.read_until("\r\n\r\n").await;
    assert!(head.ends_with("\r\n\r\n"), "its prompt is behind one of 1,000 s: {head}");
    drop(long);
    short.read_until("[DONE]").await;
    demo.until_load_is(0).await;
}

#[tokio::test]
async fn a_client_that_leaves_stops_the_work_wherever_it_is() {
    let prefilling = stuck();
    let decoding = DemoSettings { token_interval: HANG, ..fast() };
    let whole = streamed(1_000, 10).replace(",\"stream\":true", "");
    for (settings, body, last_seen) in [
        (prefilling.clone(), streamed(1_000, 10), "\r\n\r\n"),
        (prefilling, whole.clone(), ""),
        (decoding.clone(), streamed(1_000, 10), "data: "),
        (decoding, whole, ""),
    ] {
        let demo = Demo::start(settings).await;
        let mut client = demo.connect().await;
        client.send(&post("/v1/completions", &body)).await;
        client.read_until(last_seen).await;
        demo.until_load_is(1).await;
        drop(client);
        demo.until_load_is(0).await;
    }
}

#[tokio::test]
async fn a_client_that_half_closes_counts_as_gone() {
    let demo = Demo::start(stuck()).await;
    let mut client = demo.connect().await;
    client.send(&post("/v1/completions", &streamed(1_000, 10))).await;
    demo.until_load_is(1).await;
    client.socket.shutdown().await.unwrap();
    demo.until_load_is(0).await;
    assert!(!client.read_to_end().await.contains("data: "));
}

#[tokio::test]
async fn a_stream_that_nobody_reads_ends_when_its_client_leaves() {
    let demo = Demo::start(fast()).await;
    let mut client = demo.connect().await;
    client.send(&post("/v1/completions", &streamed(1, 131_000))).await;
    client.read_until("data: ").await;
    drop(client);
    demo.until_load_is(0).await;
}

#[tokio::test]
async fn one_connection_serves_many_requests_also_pipelined_ones() {
    let demo = Demo::start(fast()).await;
    let mut client = demo.connect().await;
    for _ in 0..3 {
        client.send(&post("/v1/completions", &streamed(1, 2))).await;
        client.read_until("0\r\n\r\n").await;
    }
    client.send(&(post("/v1/completions", &streamed(1, 2)) + &get("/version"))).await;
    let response = client.read_until("\"version\"").await;
    assert_eq!(response.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{response}");
}

#[tokio::test]
async fn paths_and_methods_are_answered_as_vllm_does() {
    let demo = Demo::start(fast()).await;
    let not_found = r#"{"detail":"Not Found"}"#;
    let not_allowed = r#"{"detail":"Method Not Allowed"}"#;
    let json = r#"{"model":"demo","input":"x"}"#;
    for (request, status, body) in [
        (get("/health"), "200 OK", ""),
        (get("/ping"), "200 OK", ""),
        (post("/ping", ""), "200 OK", ""),
        (get("/version"), "200 OK", concat!(r#"{"version":"demo-"#, env!("CARGO_PKG_VERSION"), r#""}"#)),
        (get("/load"), "200 OK", r#"{"server_load":0}"#),
        (get("/metrics"), "200 OK", &reply::metrics("demo", 0, 0)),
        (get("/nope"), "404 Not Found", not_found),
        (post("/v1/embeddings", json), "404 Not Found", not_found),
        (post("/health", ""), "405 Method Not Allowed", not_allowed),
        (get("/v1/completions"), "405 Method Not Allowed", not_allowed),
        (get("/health").replace("GET", "HEAD"), "405 Method Not Allowed", ""),
    ] {
        let response = demo.exchange(&request).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request}{response}");
        assert_eq!(response.split_once("\r\n\r\n").unwrap().1, body, "{request}");
    }
    let models = demo.exchange(&get("/v1/models?limit=1")).await;
    assert!(models.contains(r#""id":"demo","object":"model""#) && models.contains(r#""max_model_len":131072"#));
    assert!(demo.exchange(&get("/v1/completions")).await.contains("allow: POST\r\n"));
}

#[tokio::test]
async fn refusals_come_with_their_status_for_streams_too() {
    let demo = Demo::start(fast()).await;
    let too_long = streamed(131_073, 1);
    let wrong_model = r#"{"model":"nope","prompt":"x","stream":true}"#;
    for (body, status, says) in [
        (too_long.as_str(), "400 Bad Request", r#""param":"input_tokens","code":400"#),
        (wrong_model, "404 Not Found", "The model `nope` does not exist. Valid aliases: demo."),
        ("{", "400 Bad Request", "json_invalid"),
    ] {
        let response = demo.exchange(&post("/v1/completions", body)).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{response}");
        assert!(response.contains(says), "{response}");
    }
    let untyped = post("/v1/completions", "{}").replace("application/json", "text/plain");
    assert!(demo.exchange(&untyped).await.contains("Unsupported Media Type"));
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused_without_being_kept() {
    let demo = Demo::start(fast()).await;
    let mut client = demo.connect().await;
    client.send("POST /v1/completions HTTP/1.1\r\nHost: demo\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
    for _ in 0..64 {
        client.send(&chunk).await;
    }
    client.send("1\r\nx\r\n").await;
    let response = client.read_until("\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
}

#[tokio::test]
async fn a_client_that_asks_first_is_told_to_continue() {
    let demo = Demo::start(fast()).await;
    let mut client = demo.connect().await;
    let request = post("/v1/completions", r#"{"prompt":"x"}"#).replacen("\r\n", "\r\nExpect: 100-continue\r\n", 1);
    let (head, body) = request.split_at(request.find("\r\n\r\n").unwrap() + 4);
    client.send(head).await;
    client.read_until("HTTP/1.1 100 Continue\r\n\r\n").await;
    client.send(body).await;
    client.read_until("short-0 answers").await;
}

#[tokio::test]
async fn the_id_of_the_request_becomes_the_id_of_the_answer() {
    let demo = Demo::start(fast()).await;
    let request = post("/v1/completions", r#"{"prompt":"x"}"#).replacen("\r\n", "\r\nX-Request-Id: req-\"42\r\n", 1);
    let response = demo.exchange(&request).await;
    assert!(response.contains(r#"{"id":"cmpl-req-\"42","object""#), "{response}");
}

#[tokio::test]
async fn bytes_that_are_no_request_are_refused_and_the_connection_is_closed() {
    let demo = Demo::start(fast()).await;
    let mut client = demo.connect().await;
    client.send("\x16\x03\x01 no HTTP\r\n\r\n").await;
    let response = client.read_to_end().await;
    assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
}
