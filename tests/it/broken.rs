//! Servers that die in the middle of a request: what the client gets, and that the load is given back.

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

/// Fifty requests, ten at a time, to two servers that break in the same way.
async fn fifty_with_broken_servers<F>(
    script: impl Fn(Conn) -> F + Clone + Send + Sync + 'static,
    check: impl Fn(&Response),
) where
    F: Future<Output = ()> + Send + 'static,
{
    let (s0, s1) = (Backend::start(script.clone()).await, Backend::start(script).await);
    let tidegate = Tidegate::start(&Setup::one_group([&s0, &s1])).await;
    for _ in 0..5 {
        let mut clients = Vec::new();
        for _ in 0..10 {
            clients.push(tidegate.begin(&post(CHAT, &body_of(400))).await);
        }
        for mut client in clients {
            check(&client.response().await);
        }
    }
    tidegate.idle().await;
}

fn is_bad_gateway(response: &Response) {
    assert_refusal(response, 502);
}

// B07 a
#[tokio::test]
async fn servers_that_close_without_an_answer_give_502() {
    fifty_with_broken_servers(
        async |mut conn: Conn| {
            conn.request().await;
            conn.finish().await;
        },
        is_bad_gateway,
    )
    .await;
}

// B07 b
#[tokio::test]
async fn servers_that_reset_without_an_answer_give_502() {
    fifty_with_broken_servers(
        async |mut conn: Conn| {
            conn.request().await;
            conn.reset();
        },
        is_bad_gateway,
    )
    .await;
}

// B07 c: the header is held back until the first body byte, so that the client gets a clean error
#[tokio::test]
async fn servers_that_reset_after_the_header_give_502() {
    fifty_with_broken_servers(
        async |mut conn: Conn| {
            conn.request().await;
            conn.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
            conn.reset();
        },
        is_bad_gateway,
    )
    .await;
}

#[tokio::test]
async fn servers_that_close_within_the_header_give_502() {
    fifty_with_broken_servers(
        async |mut conn: Conn| {
            conn.request().await;
            conn.send("HTTP/1.1 200 OK\r\ncontent-le").await;
            conn.finish().await;
        },
        is_bad_gateway,
    )
    .await;
}

// B07 e
#[tokio::test]
async fn a_body_shorter_than_its_length_ends_broken() {
    fifty_with_broken_servers(
        async |mut conn: Conn| {
            conn.request().await;
            conn.send("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n").await;
            conn.send([b'x'; 400]).await;
            conn.finish().await;
        },
        |response| {
            assert_eq!((response.status(), response.body.len()), (200, 400));
            assert_ne!(response.end, End::Complete);
        },
    )
    .await;
}

// B07 f
#[tokio::test]
async fn garbage_in_place_of_a_status_line_gives_502() {
    fifty_with_broken_servers(
        async |mut conn: Conn| {
            conn.request().await;
            conn.send("\u{1}\u{2}garbage\r\n\r\n").await;
            conn.closed().await;
        },
        is_bad_gateway,
    )
    .await;
}
