//! The support module itself: servers and clients without Tidegate between them.

use std::time::Duration;

use crate::support::*;

#[tokio::test]
async fn a_client_and_a_server_agree_on_every_framing() {
    let server = Backend::start(echo()).await;
    let body = body_of(100_000);
    let mut client = Client::connect(server.address()).await;
    for bytes in [post("/x", &body), chunked("/x", &body, 999)] {
        client.send_in_pieces(&bytes, 1_000).await;
        let response = client.response().await;
        assert_eq!((response.status(), response.end.clone()), (200, End::Complete));
        assert_eq!(response.json()["sha256"], sha256(&body));
    }
    assert_eq!(server.connections(), 1);
    assert_eq!(server.received()[1].body, body);
}

#[tokio::test]
async fn a_client_tells_a_whole_body_from_a_truncated_and_a_reset_one() {
    let whole = Backend::start(reply_then_close("HTTP/1.1 200 OK\r\n\r\nuntil close")).await;
    let short = Backend::start(reply_then_close("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc")).await;
    let no_last_chunk = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n";
    let unended = Backend::start(reply_then_close(no_last_chunk)).await;
    let reset = Backend::start(move |mut conn: Conn| async move {
        conn.request().await.unwrap();
        conn.send(no_last_chunk).await;
        conn.request().await.unwrap();
        conn.reset();
    })
    .await;
    for (server, body, end) in
        [(&whole, "until close", End::Complete), (&short, "abc", End::Truncated), (&unended, "abc", End::Truncated)]
    {
        let response = Client::connect(server.address()).await.exchange(&get("/")).await;
        assert_eq!((response.text().as_str(), response.end), (body, end));
    }
    let mut client = Client::connect(reset.address()).await;
    client.send(&get("/")).await;
    client.head().await;
    assert_eq!(client.body_bytes(3).await, b"abc");
    client.send(&get("/")).await;
    assert_eq!(client.rest().await.1, End::Reset);
}

#[tokio::test]
async fn a_server_sees_how_its_client_leaves() {
    let server = Backend::start(silent()).await;
    let (mut first, mut second) = (Client::connect(server.address()).await, Client::connect(server.address()).await);
    first.send(&post("/x", b"{}")).await;
    second.send(&post("/x", b"{}")).await;
    server.whole_requests(2).await;
    first.close();
    server.closed_within(PATIENCE, 1).await;
    second.reset();
    server.closed_within(PATIENCE, 2).await;
    assert_eq!(server.ends(), [End::Truncated, End::Reset]);
}

#[tokio::test]
async fn a_gate_lets_events_through_one_at_a_time() {
    let gate = Gate::closed();
    let server = Backend::start(sse(3, &gate)).await;
    let mut client = Client::connect(server.address()).await;
    client.send(&post("/x", b"{}")).await;
    client.head().await;
    for number in 0..2 {
        assert!(client.is_quiet_for(Duration::from_millis(20)).await);
        gate.admit(1);
        let event = sse_event(number);
        assert_eq!(client.body_bytes(event.len()).await, event.as_bytes());
    }
    gate.open();
    assert_eq!(client.rest().await, ((sse_event(2) + "data: [DONE]\n\n").into_bytes(), End::Complete));
}

#[tokio::test]
async fn a_closed_address_refuses_connections() {
    let refused = tokio::net::TcpStream::connect(closed_address()).await;
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_black_hole_neither_accepts_nor_refuses() {
    let hole = BlackHole::new().await;
    let connecting = tokio::net::TcpStream::connect(hole.address());
    assert!(tokio::time::timeout(Duration::from_millis(500), connecting).await.is_err());
}
