//! Requests that no server can take now.

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

fn one_place(server: &Backend) -> Setup {
    Setup::one_group([server]).section("queue", "{ server_max_in_flight: 1 }")
}

#[tokio::test]
async fn what_a_server_may_not_be_given_waits_and_is_served_in_order() {
    let gate = Gate::closed();
    let server = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let tidegate = Tidegate::start(&one_place(&server)).await;
    let mut clients = Vec::new();
    for number in 0..5_usize {
        clients.push(tidegate.begin(&post(CHAT, &body_of(100 + number))).await);
        if number == 0 {
            server.requests(1).await;
        } else {
            until("it waits", async || tidegate.metric("tidegate_queue_requests", &[]).await == number as f64).await;
        }
    }
    assert_eq!(server.count(), 1, "the others wait in Tidegate");
    assert_eq!(tidegate.status().await["groups"][0]["waiting"], 4);
    assert_eq!(tidegate.metric("tidegate_queue_bytes", &[]).await, 101.0 + 102.0 + 103.0 + 104.0);
    for client in &mut clients {
        gate.admit(1);
        assert_eq!(client.response().await.status(), 200);
    }
    let sizes: Vec<_> = server.received().iter().map(|request| request.body.len()).collect();
    assert_eq!(sizes, [100, 101, 102, 103, 104]);
    tidegate.idle().await;
    assert_eq!(tidegate.metric("tidegate_queue_exits_total", &["result=\"served\""]).await, 4.0);
}

#[tokio::test]
async fn a_client_that_leaves_leaves_the_queue() {
    let gate = Gate::closed();
    let server = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let tidegate = Tidegate::start(&one_place(&server)).await;
    let mut first = tidegate.begin(&post(CHAT, &body_of(100))).await;
    server.requests(1).await;
    let gone = tidegate.begin(&post(CHAT, &body_of(200))).await;
    until("it waits", async || tidegate.metric("tidegate_queue_requests", &[]).await == 1.0).await;
    gone.close();
    until("it has left", async || tidegate.metric("tidegate_queue_requests", &[]).await == 0.0).await;
    gate.admit(1);
    assert_eq!(first.response().await.status(), 200);
    tidegate.idle().await;
    assert_eq!(server.count(), 1, "nothing is sent for a client that has gone");
    assert_eq!(tidegate.metric("tidegate_queue_exits_total", &["result=\"client_gone\""]).await, 1.0);
}

#[tokio::test]
async fn when_time_is_up_the_client_is_told_when_to_come_back() {
    let server = Backend::start(silent()).await;
    let setup = one_place(&server).section("queue", "{ server_max_in_flight: 1, max_wait: 300ms }");
    let tidegate = Tidegate::start(&setup).await;
    let first = tidegate.begin(&post(CHAT, &body_of(100))).await;
    server.requests(1).await;
    let refused = tidegate.exchange(&post(CHAT, &body_of(100))).await;
    assert_refusal(&refused, 503);
    assert_eq!(refused.head.get("x-tidegate-error"), Some("no_free_server"));
    assert_eq!(refused.head.get("retry-after"), Some("5"));
    first.close();
    tidegate.idle().await;
    assert_eq!(tidegate.metric("tidegate_queue_exits_total", &["result=\"time_up\""]).await, 1.0);
}

#[tokio::test]
async fn the_queue_is_bounded_in_requests_and_in_bytes() {
    for (bound, body) in [("max_requests: 1", 100), ("max_size: 1KiB", 1_000)] {
        let server = Backend::start(silent()).await;
        let setup = one_place(&server).section("queue", &format!("{{ server_max_in_flight: 1, {bound} }}"));
        let tidegate = Tidegate::start(&setup).await;
        let running = tidegate.begin(&post(CHAT, &body_of(100))).await;
        server.requests(1).await;
        let waiting = tidegate.begin(&post(CHAT, &body_of(body))).await;
        until("it waits", async || tidegate.metric("tidegate_queue_requests", &[]).await == 1.0).await;
        let refused = tidegate.exchange(&post(CHAT, &body_of(100))).await;
        assert_refusal(&refused, 503);
        assert_eq!(refused.head.get("x-tidegate-error"), Some("queue_full"), "{bound}");
        assert!(refused.head.get("retry-after").is_some());
        assert_eq!(tidegate.metric("tidegate_queue_exits_total", &["result=\"full\""]).await, 1.0);
        waiting.close();
        running.close();
        tidegate.idle().await;
    }
}

#[tokio::test]
async fn without_a_queue_the_answer_comes_at_once() {
    let server = Backend::start(silent()).await;
    let setup = one_place(&server).section("queue", "{ server_max_in_flight: 1, max_wait: none }");
    let tidegate = Tidegate::start(&setup).await;
    let running = tidegate.begin(&post(CHAT, &body_of(100))).await;
    server.requests(1).await;
    let refused = tidegate.exchange(&post(CHAT, &body_of(100))).await;
    assert_refusal(&refused, 503);
    assert_eq!(refused.head.get("retry-after"), Some("5"));
    running.close();
    tidegate.idle().await;
}

#[tokio::test]
async fn tokens_are_limited_too_but_a_giant_alone_may_pass() {
    let gate = Gate::closed();
    let server = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let setup = Setup::one_group([&server]).section("queue", "{ server_max_active_tokens: 1000 }");
    let tidegate = Tidegate::start(&setup).await;
    let mut giant = tidegate.begin(&post(CHAT, &body_of(40_000))).await;
    server.requests(1).await;
    let mut small = tidegate.begin(&post(CHAT, &body_of(400))).await;
    until("it waits", async || tidegate.metric("tidegate_queue_requests", &[]).await == 1.0).await;
    gate.admit(1);
    assert_eq!(giant.response().await.status(), 200);
    gate.admit(1);
    assert_eq!(small.response().await.status(), 200);
    tidegate.idle().await;
}

#[tokio::test]
async fn a_burst_runs_through_a_narrow_place_without_loss() {
    let servers = [Backend::start(echo()).await, Backend::start(echo()).await];
    let setup = Setup::one_group(&servers).section("queue", "{ server_max_in_flight: 2 }");
    let tidegate = Tidegate::start(&setup).await;
    let mut clients = Vec::new();
    for _ in 0..200 {
        clients.push(tidegate.begin(&post(CHAT, &body_of(1_000))).await);
    }
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    tidegate.idle().await;
    assert_eq!(servers[0].count() + servers[1].count(), 200);
    assert_eq!(tidegate.metric("tidegate_queue_requests", &[]).await, 0.0);
}

#[tokio::test]
async fn waiting_ends_with_the_time_of_the_whole_request() {
    let server = Backend::start(silent()).await;
    let setup = one_place(&server).section("timeouts", "{ total: 400ms }");
    let tidegate = Tidegate::start(&setup).await;
    assert_eq!(tidegate.admin_post(&format!("/drain?server={}", server.name()), "").await.status(), 200);
    let response = tidegate.exchange(&post(CHAT, &body_of(100))).await;
    assert!([503, 504].contains(&response.status()), "{}", response.status());
    tidegate.idle().await;
    let exits =
        async |result: &str| tidegate.metric("tidegate_queue_exits_total", &[&format!("result=\"{result}\"")]).await;
    assert_eq!((exits("time_up").await, exits("client_gone").await), (1.0, 0.0), "its client stayed");
}

#[tokio::test]
async fn all_that_waited_in_vain_are_told_what_was_in_the_way_at_the_end() {
    let gate = Gate::closed();
    let server = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let tidegate =
        Tidegate::start(&one_place(&server).section("queue", "{ server_max_in_flight: 1, max_wait: 1s }")).await;
    let reasons = async |mut clients: Vec<Client>| {
        let mut reasons = Vec::new();
        for client in &mut clients {
            reasons.push(client.response().await.head.get("x-tidegate-error").unwrap_or_default().to_owned());
        }
        reasons
    };
    let mut running = tidegate.begin(&post(CHAT, &body_of(100))).await;
    server.requests(1).await;
    let begin = async || {
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(tidegate.begin(&post(CHAT, &body_of(100))).await);
        }
        clients
    };
    assert_eq!(reasons(begin().await).await, ["no_free_server"; 3]);
    let clients = begin().await;
    until("they wait", async || tidegate.metric("tidegate_queue_requests", &[]).await == 3.0).await;
    assert_eq!(tidegate.admin_post(&format!("/drain?server={}", server.name()), "").await.status(), 200);
    assert_eq!(reasons(clients).await, ["no_live_server"; 3]);
    gate.open();
    assert_eq!(running.response().await.status(), 200);
    tidegate.idle().await;
}

#[tokio::test]
async fn a_limit_that_a_reload_raises_lets_in_what_waits() {
    let gate = Gate::closed();
    let server = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let tidegate = Tidegate::start(&one_place(&server)).await;
    let mut first = tidegate.begin(&post(CHAT, &body_of(100))).await;
    server.requests(1).await;
    let mut second = tidegate.begin(&post(CHAT, &body_of(101))).await;
    until("it waits", async || tidegate.metric("tidegate_queue_requests", &[]).await == 1.0).await;
    tidegate.reload(&one_place(&server).section("queue", "{ server_max_in_flight: 2 }")).await;
    server.requests(2).await;
    gate.open();
    assert_eq!((first.response().await.status(), second.response().await.status()), (200, 200));
    tidegate.idle().await;
}

#[tokio::test]
async fn what_waits_for_a_drained_server_is_served_when_it_comes_back() {
    let server = Backend::start(reply(json_response(200, "{}"))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let page = |word: &str| format!("/{word}?server={}", server.name());
    assert_eq!(tidegate.admin_post(&page("drain"), "").await.status(), 200);
    let mut client = tidegate.begin(&post(CHAT, &body_of(100))).await;
    until("it waits", async || tidegate.metric("tidegate_queue_requests", &[]).await == 1.0).await;
    assert_eq!(tidegate.admin_post(&page("undrain"), "").await.status(), 200);
    assert_eq!(client.response().await.status(), 200);
}
