//! How much memory a request takes while it runs.

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
