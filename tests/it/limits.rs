//! Time limits, each made short by configuration, and clients that are slow on purpose.

use std::time::{Duration, Instant};

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";
const SOON: Duration = Duration::from_secs(2);

/// Waits until so many requests and attempts are counted as ended by a time limit, and by no other.
async fn timed_out(tidegate: &Tidegate, limit: &str, count: f64) {
    let label = format!("limit=\"{limit}\"");
    until(&format!("{limit} has ended {count}"), async || {
        tidegate.metric("tidegate_timeouts_total", &[&label]).await == count
    })
    .await;
    assert_eq!(tidegate.metric("tidegate_timeouts_total", &[]).await, count);
}

fn with_timeouts<S: ToYaml>(servers: impl IntoIterator<Item = S>, timeouts: &str) -> Setup {
    Setup::one_group(servers).section("timeouts", timeouts)
}

// B67
#[tokio::test]
async fn a_server_that_cannot_be_connected_in_time_gives_502() {
    let hole = BlackHole::new().await;
    let setup = with_timeouts([hole.address()], "{ connect: 300ms }");
    let tidegate = Tidegate::start(&setup.section("retry", "{ max_attempts: 2, base_delay: 1ms }")).await;
    let start = Instant::now();
    assert_refusal(&tidegate.exchange(&post(CHAT, &body_of(100))).await, 502);
    assert!(start.elapsed() >= Duration::from_millis(600), "both attempts have their time");
    tidegate.idle().await;
    timed_out(&tidegate, "connect", 2.0).await;
}

// B67
#[tokio::test]
async fn a_connect_that_takes_too_long_is_tried_elsewhere() {
    let hole = BlackHole::new().await;
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&with_timeouts([hole.address(), server.address()], "{ connect: 300ms }")).await;
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(100))).await.status(), 200);
    tidegate.idle().await;
}

// B67
#[tokio::test]
async fn a_first_byte_that_does_not_come_in_time_gives_504_and_no_retry() {
    let nothing = Backend::start(silent()).await;
    let header_only = Backend::start(async |mut conn: Conn| {
        conn.request().await;
        conn.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
        conn.closed().await;
    })
    .await;
    for server in [&nothing, &header_only] {
        let other = Backend::start(echo()).await;
        let tidegate = Tidegate::start(&with_timeouts([server, &other], "{ first_byte: 500ms }")).await;
        let start = Instant::now();
        assert_refusal(&tidegate.exchange(&post(CHAT, &body_of(100))).await, 504);
        assert!(start.elapsed() >= Duration::from_millis(500));
        server.closed_within(SOON, 1).await;
        tidegate.idle().await;
        assert_eq!((server.count(), other.count()), (1, 0));
        timed_out(&tidegate, "first_byte", 1.0).await;
    }
}

// B67
#[tokio::test]
async fn a_stream_that_pauses_too_long_ends_broken() {
    let gate = Gate::closed();
    let server = Backend::start(sse(2, &gate)).await;
    let tidegate = Tidegate::start(&with_timeouts([&server], "{ response_idle: 500ms }")).await;
    gate.admit(1);
    let mut client = tidegate.begin(&post(CHAT, &body_of(100))).await;
    client.head().await;
    let (body, end) = client.rest().await;
    assert_eq!(body, sse_event(0).as_bytes());
    assert_ne!(end, End::Complete);
    server.closed_within(SOON, 1).await;
    tidegate.idle().await;
    tidegate.finished(1).await;
    assert_eq!(tidegate.metric("tidegate_requests_total", &["outcome=\"upstream_broken\""]).await, 1.0);
    timed_out(&tidegate, "response_idle", 1.0).await;
}

// B67
#[tokio::test]
async fn a_slow_but_steady_response_is_not_cut() {
    let server = Backend::start(async |mut conn: Conn| {
        while conn.request().await.is_some() {
            conn.send("HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n").await;
            for _ in 0..12 {
                tokio::time::sleep(Duration::from_millis(250)).await;
                conn.send("x").await;
            }
        }
    })
    .await;
    let tidegate = Tidegate::start(&with_timeouts([&server], "{ response_idle: 1s, first_byte: 1s }")).await;
    let response = tidegate.exchange(&post(CHAT, &body_of(100))).await;
    assert_eq!((response.text().as_str(), response.end), ("xxxxxxxxxxxx", End::Complete));
}

// B67
#[tokio::test]
async fn the_total_limit_gives_504_before_the_first_byte_and_a_broken_end_after_it() {
    let gate = Gate::closed();
    let server = Backend::start(sse(2, &gate)).await;
    let tidegate = Tidegate::start(&with_timeouts([&server], "{ total: 700ms }")).await;
    assert_refusal(&tidegate.exchange(&post(CHAT, &body_of(100))).await, 504);
    server.closed_within(SOON, 1).await;
    gate.admit(1);
    let response = tidegate.exchange(&post(CHAT, &body_of(100))).await;
    assert_eq!(response.body, sse_event(0).as_bytes());
    assert_ne!(response.end, End::Complete);
    server.closed_within(SOON, 2).await;
    tidegate.idle().await;
    timed_out(&tidegate, "total", 2.0).await;
}

#[tokio::test]
async fn a_header_that_does_not_come_in_time_closes_the_connection() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&with_timeouts([&server], "{ request_header: 500ms }")).await;
    let starts = ["", "PO", "PRI * HTTP/2.0", "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"];
    let mut open = Vec::new();
    for start in starts {
        let mut client = tidegate.begin(start.as_bytes()).await;
        if client.closed_within(Duration::from_secs(3)).await.is_none() {
            open.push(start);
        }
    }
    assert!(open.is_empty(), "still open after these bytes and 3 s: {open:?}");
    assert_eq!(server.connections(), 0);
    timed_out(&tidegate, "request_header", 4.0).await;
}

#[tokio::test]
async fn a_header_that_comes_byte_by_byte_is_bounded_as_a_whole() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&with_timeouts([&server], "{ request_header: 500ms }")).await;
    let mut client = tidegate.client().await;
    let dribble = async {
        for byte in get("/version").iter().cycle() {
            client.send(&[*byte]).await;
            if !client.is_quiet_for(Duration::from_millis(100)).await {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, dribble).await.expect("the connection is closed in the end");
    assert_eq!(server.connections(), 0);
}

// B28 h
#[tokio::test]
async fn a_body_that_stops_coming_gives_408_or_a_close() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&with_timeouts([&server], "{ request_body_idle: 500ms }")).await;
    for framing in ["Content-Length: 100", "Transfer-Encoding: chunked"] {
        let head = format!("POST {CHAT} HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
        let mut client = tidegate.begin(head.as_bytes()).await;
        client.send(b"24\r\n{\"messages\":[],\"x\":\"0123456789abcdef").await;
        if let Ok(response) = client.try_response("POST").await {
            assert_refusal(&response, 408);
        }
        client.closed().await;
    }
    assert_eq!(server.connections(), 0);
    tidegate.idle().await;
    timed_out(&tidegate, "request_body_idle", 2.0).await;
}

#[tokio::test]
async fn a_body_that_comes_too_slowly_gives_408_or_a_close() {
    let server = Backend::start(echo()).await;
    let timeouts = "{ request_body_idle: 10s, request_body: 800ms }";
    let tidegate = Tidegate::start(&with_timeouts([&server], timeouts)).await;
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    let mut client = tidegate.begin(head.as_bytes()).await;
    let dribble = async {
        loop {
            client.send(b"x").await;
            if !client.is_quiet_for(Duration::from_millis(100)).await {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, dribble).await.expect("an end is put to it");
    if let Ok(response) = client.try_response("POST").await {
        assert_refusal(&response, 408);
    }
    assert_eq!(server.connections(), 0);
    tidegate.idle().await;
    timed_out(&tidegate, "request_body", 1.0).await;
}

#[tokio::test]
async fn slow_headers_and_bodies_do_not_hold_a_worker() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server]).section("pingora", "{ threads: 1 }")).await;
    let mut slow = Vec::new();
    for start in ["POST /v1/chat/completions HT", "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc"] {
        for _ in 0..100 {
            slow.push(tidegate.begin(start.as_bytes()).await);
        }
    }
    for _ in 0..10 {
        assert_eq!(tidegate.exchange(&post(CHAT, &body_of(100))).await.status(), 200);
    }
    assert_eq!(server.count(), 10);
    drop(slow);
    tidegate.idle().await;
}

#[tokio::test]
async fn idle_client_connections_are_closed() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&with_timeouts([&server], "{ client_keepalive: 1s }")).await;
    let mut client = tidegate.client().await;
    for _ in 0..3 {
        assert_eq!(client.exchange(&post(CHAT, &body_of(100))).await.status(), 200);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(client.closed().await, (Vec::new(), End::Truncated), "closed in order, without a stray byte");
}

#[tokio::test]
async fn idle_server_connections_are_used_again_and_closed_by_tidegate() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&with_timeouts([&server], "{ server_keepalive: 1s }")).await;
    for _ in 0..3 {
        assert_eq!(tidegate.exchange(&post(CHAT, &body_of(100))).await.status(), 200);
        tidegate.idle().await;
    }
    assert_eq!(server.connections(), 1, "used again");
    server.closed_within(Duration::from_secs(4), 1).await;
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(100))).await.status(), 200);
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_given_up_and_its_server_freed() {
    let body = body_of(64_000_000);
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    let server = Backend::start(reply([head.as_bytes(), &body].concat())).await;
    let tidegate = Tidegate::start(&with_timeouts([&server], "{ client_write: 500ms }")).await;
    let mut client = tidegate.begin(&post(CHAT, &body_of(400))).await;
    client.head().await;
    assert_eq!(tidegate.load("all").await, 100.0);
    until("the load is given back", async || tidegate.load("all").await == 0.0).await;
    assert_ne!(client.rest().await.1, End::Complete);
    until("the server is freed", async || server.ends().len() == 1).await;
    tidegate.idle().await;
    timed_out(&tidegate, "client_write", 1.0).await;
}
