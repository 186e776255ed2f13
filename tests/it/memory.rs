//! How much memory a request takes while it runs.

use std::time::Duration;

use crate::support::*;

const MIB: usize = 1_048_576;

#[tokio::test]
async fn a_body_is_in_memory_once() {
    let (requests, size) = (20_usize, 8 * MIB);
    // The server reads the header and then nothing, so that the bodies stay with Tidegate.
    let server = Backend::start(async |mut conn: Conn| {
        conn.head().await;
        std::future::pending().await
    })
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let request = post("/v1/completions", &body_of(size));
    let before = tidegate.rss_bytes();
    let mut clients = Vec::new();
    for number in 1..=requests {
        clients.push(tidegate.begin(&request).await);
        server.requests(number).await;
    }
    let grown = tidegate.rss_bytes().saturating_sub(before);
    let bodies = (requests * size) as u64;
    assert!(grown < bodies * 3 / 2, "{requests} bodies of {size} bytes took {grown} bytes");
    // They are really there: most of each body is still to be sent.
    assert!(grown > bodies / 2, "{grown} bytes");
    assert_eq!(tidegate.usage().await["all"].in_flight, requests as u64);
}

#[tokio::test]
async fn a_connection_that_is_kept_holds_nothing_of_its_requests() {
    let (connections, size) = (300_usize, 60 << 10);
    let server = Backend::start(reply(json_response(200, "{}"))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let request = post("/v1/completions", &body_of(size));
    // What the first ones take is there for the others.
    let mut clients = Vec::new();
    let mut before = 0;
    for number in 0..connections {
        if number == connections / 10 {
            before = tidegate.rss_bytes();
        }
        let mut client = tidegate.client().await;
        assert_eq!(client.exchange(&request).await.status(), 200);
        clients.push(client);
    }
    let grown = tidegate.rss_bytes().saturating_sub(before);
    assert!(grown < (connections * size / 3) as u64, "{connections} kept connections took {grown} bytes");
}

#[tokio::test]
async fn a_response_that_the_client_does_not_read_waits_at_the_server() {
    let size = 32 * MIB;
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n");
    let server = Backend::start(reply([head.as_bytes(), &vec![b'x'; size]].concat())).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let before = tidegate.rss_bytes();
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = tidegate.begin(&post("/v1/completions", b"{}")).await;
        client.head().await;
        clients.push(client);
    }
    // Time for the sockets to fill up.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let grown = tidegate.rss_bytes().saturating_sub(before);
    assert!(grown < (size / 4) as u64, "four unread responses took {grown} bytes");
    for client in &mut clients {
        let (body, end) = client.rest().await;
        assert_eq!((body.len(), end), (size, End::Complete));
    }
    tidegate.idle().await;
}
