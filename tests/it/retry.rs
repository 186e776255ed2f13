//! What is tried again, where, and how often.

use std::time::Duration;

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

// B33
#[tokio::test]
async fn a_refusal_of_the_server_arrives_as_it_is() {
    for status in [400, 401, 404, 413, 422, 429, 500] {
        let body = format!(r#"{{"error":{{"message":"no {status}","code":{status}}}}}"#);
        let answer = format!(
            "HTTP/1.1 {status} Some Reason\r\ncontent-type: application/problem+json; x=1\r\nretry-after: 7\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let (s0, s1) = (Backend::start(reply(answer.clone())).await, Backend::start(reply(answer)).await);
        let tidegate = Tidegate::start(&Setup::one_group([&s0, &s1])).await;
        for stream in ["true", "false"] {
            let request = format!(r#"{{"messages":[],"stream":{stream}}}"#);
            let response = tidegate.exchange(&post(CHAT, request.as_bytes())).await;
            assert_eq!((response.status(), response.text()), (status, body.clone()));
            assert_eq!(response.head.get("content-type"), Some("application/problem+json; x=1"));
            assert_eq!(response.head.get("retry-after"), Some("7"));
            assert_eq!(response.head.get("x-tidegate-error"), None, "the error is the server's own");
            tidegate.idle().await;
        }
        assert_eq!((s0.count(), s1.count()), (2, 0), "{status} is not tried again");
    }
}

// B42
#[tokio::test]
async fn only_502_503_and_504_are_tried_again() {
    for status in [400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 500, 501, 502, 503, 504] {
        let s0 = Backend::start(reply(json_response(status, "\"from 0\""))).await;
        let s1 = Backend::start(reply(json_response(status, "\"from 1\""))).await;
        let s2 = Backend::start(reply(json_response(status, "\"from 2\""))).await;
        let s3 = Backend::start(reply(json_response(200, "\"from 3\""))).await;
        let tidegate = Tidegate::start(&Setup::one_group([&s0, &s1, &s2, &s3])).await;
        let response = tidegate.exchange(&post(CHAT, &body_of(100))).await;
        let attempts = if (502..=504).contains(&status) { 3 } else { 1 };
        assert_eq!(response.status(), status);
        assert_eq!(response.text(), format!("\"from {}\"", attempts - 1), "the last answer is relayed");
        assert_eq!(response.head.get("x-tidegate-error"), None, "the error is the server's own");
        let counts = [&s0, &s1, &s2, &s3].map(Backend::count);
        assert_eq!(counts, if attempts == 3 { [1, 1, 1, 0] } else { [1, 0, 0, 0] }, "{status}");
        let retries = f64::from(u32::try_from(attempts - 1).unwrap());
        assert_eq!(tidegate.metric("tidegate_retries_total", &[]).await, retries);
        tidegate.idle().await;
    }
}

// B42
#[tokio::test]
async fn attempts_are_spaced_by_a_growing_pause() {
    let server = Backend::start(reply(json_response(503, "{}"))).await;
    let setup =
        Setup::one_group([&server]).section("retry", "{ max_attempts: 4, base_delay: 200ms, max_delay: 300ms }");
    let tidegate = Tidegate::start(&setup).await;
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(100))).await.status(), 503);
    let times: Vec<_> = server.received().into_iter().map(|request| request.at).collect();
    assert_eq!(times.len(), 4, "a single server is tried again and again");
    let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // Half of the full pause is the least that jitter leaves.
    for (pause, least) in pauses.iter().zip([100, 150, 150]) {
        assert!(*pause >= Duration::from_millis(least), "{pauses:?}");
    }
}

// B46
#[tokio::test]
async fn the_second_attempt_goes_to_another_server_and_takes_the_load_along() {
    for refusing in [true, false] {
        let gate = Gate::closed();
        let busy = Backend::start(reply(json_response(503, "{}"))).await;
        let first = if refusing { closed_address() } else { busy.address() };
        let s1 = Backend::start(hold(&gate, json_response(200, "{}"))).await;
        let s2 = Backend::start(hold(&gate, json_response(200, "{}"))).await;
        let tidegate = Tidegate::start(&Setup::one_group([first, s1.address(), s2.address()])).await;
        let mut clients = Vec::new();
        // The failing server is always the least loaded, so that each request is tried there first.
        for (number, load) in [(1, [100.0, 0.0]), (2, [100.0, 100.0]), (3, [200.0, 100.0])] {
            clients.push(tidegate.begin(&post(CHAT, &body_of(400))).await);
            until("a live server has it", async || s1.count() + s2.count() == number).await;
            let usage = tidegate.usage().await;
            assert_eq!(usage[&first.to_string()], Usage { load_tokens: 0.0, in_flight: 0 });
            assert_eq!([&s1, &s2].map(|server| usage[&server.name()].load_tokens), load);
        }
        gate.open();
        for client in &mut clients {
            assert_eq!(client.response().await.status(), 200);
        }
        tidegate.idle().await;
    }
}

// B46
#[tokio::test]
async fn a_group_whose_servers_all_fail_is_helped_by_the_other_group() {
    let long = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::two_groups([closed_address()], [long.address()])).await;
    let response = tidegate.exchange(&post(CHAT, &body_of(100))).await;
    assert_eq!(response.json()["sha256"], sha256(&body_of(100)));
    tidegate.idle().await;
}

// B46
#[tokio::test]
async fn a_single_server_that_refuses_gives_502_in_the_end() {
    let address = closed_address();
    let tidegate = Tidegate::start(&Setup::one_group([address])).await;
    assert_refusal(&tidegate.exchange(&post(CHAT, &body_of(100))).await, 502);
    assert_eq!(tidegate.metric("tidegate_retries_total", &[]).await, 2.0);
    // It is used again as soon as it is there.
    let server = Backend::start_at(address, echo()).await;
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(100))).await.status(), 200);
    assert_eq!(server.count(), 1);
    tidegate.idle().await;
}

#[tokio::test]
async fn one_attempt_means_no_retry() {
    let (s0, s1) = (Backend::start(reply(json_response(503, "{}"))).await, Backend::start(echo()).await);
    let setup = Setup::one_group([&s0, &s1]).section("retry", "{ max_attempts: 1 }");
    let tidegate = Tidegate::start(&setup).await;
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(100))).await.status(), 503);
    assert_eq!(s1.connections(), 0);
}

#[tokio::test]
async fn a_503_without_a_body_is_tried_again_too() {
    let s0 = Backend::start(reply("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n")).await;
    let s1 = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&s0, &s1])).await;
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(100))).await.status(), 200);
    assert_eq!((s0.count(), s1.count()), (1, 1));
}
