//! More connections than Tidegate may hold, more data than a client takes. The same with large numbers, and figures:
//! `cargo bench --bench streams`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";
const OPEN_FILES: u32 = 96;
const MIB: usize = 1_048_576;

/// Opens idle connections until Tidegate cannot open one more file; the first is surely served.
async fn exhaust(tidegate: &Tidegate) -> Vec<Client> {
    let mut idle = Vec::new();
    for _ in 0..OPEN_FILES {
        idle.push(tidegate.client().await);
    }
    until("no file is left", async || tidegate.open_files() >= OPEN_FILES as usize).await;
    idle
}

#[tokio::test]
async fn streams_go_on_when_no_file_is_left_and_everything_works_again_after() {
    let (second, end) = (Gate::closed(), Gate::closed());
    let gates = (second.clone(), end.clone());
    let server = Backend::start(move |mut conn: Conn| {
        let (second, end) = gates.clone();
        async move {
            let chunk = |event: String| format!("{:x}\r\n{event}\r\n", event.len());
            while conn.request().await.is_some() {
                conn.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
                conn.send(chunk(sse_event(0))).await;
                second.pass().await;
                conn.send(chunk(sse_event(1))).await;
                end.pass().await;
                conn.send("0\r\n\r\n").await;
            }
        }
    })
    .await;
    let setup = Setup::one_group([&server]).open_files(OPEN_FILES);
    let tidegate = Tidegate::start(&setup).await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        let mut client = tidegate.begin(&post(CHAT, &body_of(100))).await;
        client.head().await;
        client.body_bytes(sse_event(0).len()).await;
        streams.push(client);
    }
    let mut idle = exhaust(&tidegate).await;

    second.open();
    for stream in &mut streams {
        assert_eq!(stream.body_bytes(sse_event(1).len()).await, sse_event(1).as_bytes());
    }
    // A connection that is held already; what lacks is one to a server.
    let refused = idle[0].exchange(&post(CHAT, &body_of(100))).await;
    assert_refusal(&refused, 502);
    assert_eq!(refused.head.get("x-tidegate-error"), Some("not_reachable"));
    // One that waits to be accepted.
    let mut waiting = tidegate.begin(&post(CHAT, &body_of(100))).await;
    assert!(waiting.is_quiet_for(Duration::from_millis(300)).await, "there is no file for it");

    let (begin, before) = (Instant::now(), tidegate.cpu_time());
    tokio::time::sleep(Duration::from_secs(2)).await;
    let share = (tidegate.cpu_time() - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    assert!(share < 0.3, "accepting in vain takes {share} of a processor");

    drop(idle);
    end.open();
    for stream in &mut streams {
        assert_eq!(stream.rest().await, (Vec::new(), End::Complete));
    }
    assert_eq!(waiting.response().await.status(), 200, "it waited and is served");
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(100))).await.status(), 200);
    tidegate.idle().await;
    assert_eq!(tidegate.metric("tidegate_server_faults_total", &[]).await, 0.0, "it is no fault of the server's");
    drop((streams, waiting));
    until("files are closed again", async || tidegate.open_files() < OPEN_FILES as usize / 2).await;
}

#[tokio::test]
async fn a_stream_that_the_client_does_not_read_is_held_back_at_the_server() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let server = Backend::start(move |mut conn: Conn| {
        let sent = Arc::clone(&counted);
        async move {
            conn.request().await;
            conn.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
            let event = format!("data: {}\n\n", "x".repeat(1_000));
            let chunk = format!("{:x}\r\n{event}\r\n", event.len());
            while sent.load(Ordering::Relaxed) < 64 * MIB && conn.send(&chunk).await {
                sent.fetch_add(event.len(), Ordering::Relaxed);
            }
            conn.send("0\r\n\r\n").await;
        }
    })
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let before = tidegate.rss_bytes();
    let mut client = tidegate.begin(&post(CHAT, b"{}")).await;
    client.head().await;
    let mut last = 0;
    until("the server cannot send more", async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = sent.load(Ordering::Relaxed);
        std::mem::replace(&mut last, now) == now
    })
    .await;
    assert!(last < 32 * MIB, "{last} bytes are on their way to a client that reads nothing");
    let grown = tidegate.rss_bytes().saturating_sub(before);
    assert!(grown < 4 * MIB as u64, "one unread stream took {grown} bytes");
    let (body, end) = client.rest().await;
    assert_eq!((body.len(), end), (sent.load(Ordering::Relaxed), End::Complete));
    tidegate.idle().await;
}

#[tokio::test]
async fn many_idle_connections_hold_neither_memory_nor_others_up() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let before = tidegate.rss_bytes();
    let mut idle = Vec::new();
    for number in 0..400 {
        let mut stream = TcpStream::connect(tidegate.address).await.unwrap();
        // Half of them have begun a request.
        if number % 2 == 0 {
            stream.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n").await.unwrap();
        }
        idle.push(stream);
    }
    until("all are accepted", async || tidegate.open_files() > 400).await;
    let grown = tidegate.rss_bytes().saturating_sub(before);
    assert!(grown < 400 * 64 * 1024, "400 idle connections took {grown} bytes");
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(100))).await.status(), 200);
    drop(idle);
    until("they are closed", async || tidegate.open_files() < 100).await;
}
