//! Corners of the protocol: early answers, interim answers, bytes at odd moments.

use std::time::Duration;

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";
const SOON: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_client_that_leaves_with_a_pipelined_request_waiting_is_noticed() {
    let server = Backend::start(silent()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for (number, resets) in [false, true].into_iter().enumerate() {
        let mut client = tidegate.begin(&post(CHAT, &body_of(400))).await;
        server.whole_requests(number + 1).await;
        client.send(&post(CHAT, &body_of(400))).await;
        // Time for the second request to arrive.
        assert!(client.is_quiet_for(Duration::from_millis(100)).await);
        if resets {
            client.reset()
        } else {
            client.close()
        }
        server.closed_within(SOON, number + 1).await;
        tidegate.idle().await;
    }
    assert_eq!(server.count(), 2, "the second request was never begun");
}

#[tokio::test]
async fn an_empty_line_behind_a_body_is_passed_over() {
    let gate = Gate::closed();
    let server = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    for count in 1..=2 {
        client.send(&[post(CHAT, &body_of(400)), b"\r\n".to_vec()].concat()).await;
        server.whole_requests(count).await;
        assert!(client.is_quiet_for(Duration::from_millis(100)).await);
        gate.admit(1);
        assert_eq!(client.response().await.status(), 200);
    }
    assert_eq!(server.received()[1].body, body_of(400));
}

#[tokio::test]
async fn an_answer_that_comes_while_the_body_is_still_being_sent_is_relayed() {
    let server = Backend::start(async |mut conn: Conn| {
        conn.head().await;
        conn.send(json_response(413, "{\"detail\":\"too long\"}")).await;
        conn.finish().await;
    })
    .await;
    let other = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server, &other])).await;
    for _ in 0..5 {
        let response = tidegate.exchange(&post(CHAT, &body_of(10_000_000))).await;
        assert_eq!((response.status(), response.text().as_str()), (413, "{\"detail\":\"too long\"}"));
        tidegate.idle().await;
    }
    assert_eq!(other.count(), 0);
}

#[tokio::test]
async fn interim_answers_do_not_stand_in_for_the_final_one() {
    for interim in ["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Early Hints\r\nlink: </x>; rel=preload\r\n\r\n"] {
        let answer = [interim.as_bytes(), &json_response(200, "{\"a\":1}")].concat();
        let server = Backend::start(reply(answer)).await;
        let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
        let mut client = tidegate.client().await;
        for _ in 0..2 {
            let response = client.exchange(&post(CHAT, &body_of(100))).await;
            assert_eq!((response.status(), response.text().as_str()), (200, "{\"a\":1}"), "{interim:?}");
        }
        tidegate.idle().await;
    }
}

#[tokio::test]
async fn a_server_that_asks_to_close_is_not_used_again() {
    let answer = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
    let server = Backend::start(reply(answer)).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    for number in 1..=3 {
        let response = client.exchange(&post(CHAT, &body_of(100))).await;
        assert_eq!((response.text().as_str(), response.end), ("ok", End::Complete));
        server.closed_within(SOON, number).await;
    }
    assert_eq!(server.connections(), 3, "the client's connection stays, the server's do not");
}

#[tokio::test]
async fn a_response_without_a_length_ends_with_its_connection() {
    let server = Backend::start(reply_then_close("HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nold style")).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    for _ in 0..2 {
        let response = client.exchange(&get("/x")).await;
        assert_eq!((response.status(), response.text().as_str(), response.end), (200, "old style", End::Complete));
    }
    let h2 = H2Client::connect(tidegate.address).await;
    let response = h2.get("/x").await;
    assert_eq!((response.text().as_str(), response.end), ("old style", End::Complete));
}

#[tokio::test]
async fn a_body_that_stalls_over_h2c_gives_408_and_reaches_no_server() {
    let server = Backend::start(echo()).await;
    let setup = Setup::one_group([&server]).section("timeouts", "{ request_body_idle: 300ms }");
    let tidegate = Tidegate::start(&setup).await;
    let h2 = H2Client::connect(tidegate.address).await;
    let response = h2.post_in_pieces(CHAT, &body_of(1_000), 500, Duration::from_secs(1)).await;
    assert_refusal(&response, 408);
    assert_eq!(h2.post(CHAT, &body_of(100)).await.status(), 200, "the connection goes on");
    assert_eq!(server.count(), 1);
    tidegate.idle().await;
}

#[tokio::test]
async fn a_request_cut_within_its_body_over_h2c_reaches_no_server() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let h2 = H2Client::connect(tidegate.address).await;
    for _ in 0..3 {
        let body = body_of(1_000);
        let sending = h2.post_in_pieces(CHAT, &body, 500, PATIENCE);
        assert!(tokio::time::timeout(Duration::from_millis(100), sending).await.is_err());
    }
    assert_eq!(h2.post(CHAT, &body_of(100)).await.status(), 200, "the connection goes on");
    tidegate.idle().await;
    assert_eq!(server.only().body, body_of(100));
}
