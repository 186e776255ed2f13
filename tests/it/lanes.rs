//! The policy `lanes`, live: long prompts one at a time on the last servers, the rest held here.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

/// Long by any measure: about 50,000 tokens.
fn long() -> Vec<u8> {
    prompt(200_000, true)
}

fn short() -> Vec<u8> {
    prompt(400, true)
}

/// A chat with so many bytes of prose, which begins as no other does: nothing of it is in a server's cache.
fn prompt(bytes: usize, is_streamed: bool) -> Vec<u8> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let prose = format!("Number {number}. ")
        + &"The gate opens when the water behind it stands high enough, and closes again. ".repeat(bytes / 78 + 1);
    let body = serde_json::json!({
        "model": "m", "stream": is_streamed, "messages": [{ "role": "user", "content": &prose[..bytes] }],
    });
    post(CHAT, body.to_string().as_bytes())
}

fn lanes<'a>(servers: impl IntoIterator<Item = &'a Backend>) -> Setup {
    Setup::one_group(servers).section("policy", "{ kind: lanes, lanes: 1, long_from_tokens: 20000 }")
}

async fn held(tidegate: &Tidegate, requests: u64) {
    until(&format!("{requests} are held"), async || tidegate.status().await["work"]["held"] == requests).await;
}

async fn decisions(tidegate: &Tidegate, reason: &str) -> f64 {
    tidegate.metric("tidegate_decisions_total", &[&format!("reason=\"{reason}\"")]).await
}

#[tokio::test]
async fn long_prompts_go_to_the_last_server_one_after_the_other() {
    let gate = Gate::closed();
    let [first, last] = [Backend::start(sse(2, &Gate::closed())).await, Backend::start(sse(2, &gate)).await];
    let tidegate = Tidegate::start(&lanes([&first, &last])).await;
    assert_eq!(tidegate.status().await["work"]["lanes"], serde_json::json!([last.name()]));
    let mut clients = Vec::new();
    for number in 0..3 {
        clients.push(tidegate.begin(&long()).await);
        last.requests(1).await;
        held(&tidegate, number).await;
    }
    assert_eq!((first.count(), last.count()), (0, 1), "one has the lane, the others wait here");
    assert!(tidegate.metric("tidegate_server_prefill_seconds", &[&last.name()]).await > 2.0);
    // The policy holds a request a moment before the queue has it.
    until("both are in the queue", async || tidegate.metric("tidegate_queue_requests", &[]).await == 2.0).await;
    // Its first token frees the lane, not its end.
    gate.admit(1);
    last.requests(2).await;
    held(&tidegate, 1).await;
    assert_eq!(first.count(), 0);
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    tidegate.idle().await;
    assert_eq!(last.count(), 3);
    assert_eq!(decisions(&tidegate, "lane").await, 3.0);
    let status = tidegate.status().await;
    for server in status["work"]["servers"].as_array().unwrap() {
        for sum in ["prefill_seconds", "prefilling", "prefilling_long", "streams", "context_tokens"] {
            assert_eq!(server[sum].as_f64(), Some(0.0), "{sum}: {status}");
        }
    }
}

#[tokio::test]
async fn short_prompts_do_not_wait_for_long_ones() {
    let gate = Gate::closed();
    let [first, last] = [Backend::start(sse(2, &opened())).await, Backend::start(sse(2, &gate)).await];
    let tidegate = Tidegate::start(&lanes([&first, &last])).await;
    let mut running = tidegate.begin(&long()).await;
    last.requests(1).await;
    let mut waiting = tidegate.begin(&long()).await;
    held(&tidegate, 1).await;
    for _ in 0..20 {
        assert_eq!(tidegate.exchange(&short()).await.status(), 200);
    }
    assert_eq!((first.count(), last.count()), (20, 1), "a short prompt stays clear of a lane that prefills");
    gate.open();
    assert_eq!((running.response().await.status(), waiting.response().await.status()), (200, 200));
    tidegate.idle().await;
}

#[tokio::test]
async fn a_client_that_leaves_is_held_no_longer_and_never_sent() {
    let gate = Gate::closed();
    let [first, last] = [Backend::start(sse(2, &opened())).await, Backend::start(sse(2, &gate)).await];
    let tidegate = Tidegate::start(&lanes([&first, &last])).await;
    let mut running = tidegate.begin(&long()).await;
    last.requests(1).await;
    let gone = tidegate.begin(&long()).await;
    held(&tidegate, 1).await;
    gone.close();
    held(&tidegate, 0).await;
    gate.open();
    assert_eq!(running.response().await.status(), 200);
    tidegate.idle().await;
    assert_eq!((first.count(), last.count()), (0, 1));
    assert_eq!(tidegate.metric("tidegate_queue_exits_total", &["result=\"client_gone\""]).await, 1.0);
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_frees_its_lane() {
    let gate = Gate::closed();
    let [first, last] = [Backend::start(sse(2, &opened())).await, Backend::start(sse(2, &gate)).await];
    let tidegate = Tidegate::start(&lanes([&first, &last])).await;
    let running = tidegate.begin(&long()).await;
    last.requests(1).await;
    let mut waiting = tidegate.begin(&long()).await;
    held(&tidegate, 1).await;
    running.close();
    last.requests(2).await;
    gate.open();
    assert_eq!(waiting.response().await.status(), 200);
    tidegate.idle().await;
}

#[tokio::test]
async fn when_the_lane_is_drained_another_server_becomes_one_at_once() {
    let gate = Gate::closed();
    let servers = [
        Backend::start(sse(2, &opened())).await,
        Backend::start(sse(2, &opened())).await,
        Backend::start(sse(2, &gate)).await,
    ];
    let tidegate = Tidegate::start(&lanes(&servers)).await;
    let mut running = tidegate.begin(&long()).await;
    servers[2].requests(1).await;
    let mut waiting = tidegate.begin(&long()).await;
    held(&tidegate, 1).await;
    assert_eq!(tidegate.admin_post(&format!("/drain?server={}", servers[2].name()), "").await.status(), 200);
    assert_eq!(waiting.response().await.status(), 200);
    assert_eq!(servers.each_ref().map(Backend::count), [0, 1, 1]);
    assert_eq!(tidegate.status().await["work"]["lanes"], serde_json::json!([servers[1].name()]));
    gate.open();
    assert_eq!(running.response().await.status(), 200);
    tidegate.idle().await;
}

#[tokio::test]
async fn a_single_server_holds_nothing() {
    let gate = Gate::closed();
    let server = Backend::start(sse(2, &gate)).await;
    let tidegate = Tidegate::start(&lanes([&server])).await;
    let mut clients = [tidegate.begin(&long()).await, tidegate.begin(&long()).await, tidegate.begin(&short()).await];
    server.requests(3).await;
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    tidegate.idle().await;
}

#[tokio::test]
async fn with_least_work_nothing_is_held() {
    let gate = Gate::closed();
    let servers = [Backend::start(sse(2, &gate)).await, Backend::start(sse(2, &gate)).await];
    let tidegate = Tidegate::start(&Setup::one_group(&servers).section("policy", "{ kind: least_work }")).await;
    let mut clients = Vec::new();
    for number in 1..=4 {
        clients.push(tidegate.begin(&long()).await);
        until("it is there", async || servers[0].count() + servers[1].count() == number).await;
    }
    assert_eq!((servers[0].count(), servers[1].count()), (2, 2), "each goes where there is least work");
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    assert_eq!(decisions(&tidegate, "least_cost").await, 4.0);
    tidegate.idle().await;
}

#[tokio::test]
async fn a_prompt_that_has_been_held_for_too_long_goes_behind_another_one() {
    let gate = Gate::closed();
    let [first, last] = [Backend::start(sse(2, &gate)).await, Backend::start(sse(2, &gate)).await];
    let setup = Setup::one_group([&first, &last])
        .section("policy", "{ kind: lanes, lanes: 1, long_from_tokens: 20000, max_hold: 300ms }");
    let tidegate = Tidegate::start(&setup).await;
    let mut clients = [tidegate.begin(&long()).await, tidegate.begin(&long()).await];
    // The clock of the policy ticks once a second.
    last.requests(2).await;
    assert_eq!((first.count(), decisions(&tidegate, "lane_overdue").await), (0, 1.0));
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    tidegate.idle().await;
}

#[tokio::test]
async fn a_held_prompt_waits_longer_than_the_queue_lets_others() {
    let gate = Gate::closed();
    let [first, last] = [Backend::start(sse(2, &gate)).await, Backend::start(sse(2, &gate)).await];
    let tidegate = Tidegate::start(&lanes([&first, &last]).section("queue", "{ max_wait: 100ms }")).await;
    let mut running = tidegate.begin(&long()).await;
    last.requests(1).await;
    let mut waiting = tidegate.begin(&long()).await;
    held(&tidegate, 1).await;
    let early = tokio::time::timeout(std::time::Duration::from_secs(2), waiting.response()).await;
    assert!(early.is_err(), "its turn comes, and servers are there");
    gate.open();
    assert_eq!((running.response().await.status(), waiting.response().await.status()), (200, 200));
    tidegate.idle().await;
}

#[tokio::test]
async fn without_any_server_all_wait_and_are_refused_in_time_or_served_when_one_comes() {
    let server = Backend::start(sse(2, &opened())).await;
    let other = Backend::start(sse(2, &opened())).await;
    let tidegate = Tidegate::start(&lanes([&server, &other]).section("queue", "{ max_wait: 700ms }")).await;
    for server in [&server, &other] {
        assert_eq!(tidegate.admin_post(&format!("/drain?server={}", server.name()), "").await.status(), 200);
    }
    let mut clients = [tidegate.begin(&long()).await, tidegate.begin(&short()).await];
    for client in &mut clients {
        let refused = client.response().await;
        assert_refusal(&refused, 503);
        assert_eq!(refused.head.get("x-tidegate-error"), Some("no_live_server"));
        assert!(refused.head.get("retry-after").is_some());
    }
    held(&tidegate, 0).await;
    let mut clients = [tidegate.begin(&long()).await, tidegate.begin(&short()).await];
    held(&tidegate, 2).await;
    assert_eq!(tidegate.admin_post(&format!("/undrain?server={}", server.name()), "").await.status(), 200);
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    tidegate.idle().await;
}

#[tokio::test]
async fn another_policy_serves_what_was_held() {
    let gate = Gate::closed();
    let [first, last] = [Backend::start(sse(2, &opened())).await, Backend::start(sse(2, &gate)).await];
    let tidegate = Tidegate::start(&lanes([&first, &last])).await;
    let mut running = tidegate.begin(&long()).await;
    last.requests(1).await;
    let mut waiting = tidegate.begin(&long()).await;
    held(&tidegate, 1).await;
    tidegate.reload(&Setup::one_group([&first, &last])).await;
    until("it is counted", async || {
        tidegate.metric("tidegate_queue_exits_total", &["result=\"asked_again\""]).await >= 1.0
    })
    .await;
    assert_eq!(tidegate.metric("tidegate_queue_exits_total", &["result=\"time_up\""]).await, 0.0);
    assert_eq!(waiting.response().await.status(), 200);
    assert!(tidegate.status().await["work"].is_null());
    assert_eq!(tidegate.metric("tidegate_queue_requests", &[]).await, 0.0);
    // And back, while one runs that the book does not know.
    tidegate.reload(&lanes([&first, &last])).await;
    assert_eq!(tidegate.exchange(&short()).await.status(), 200);
    gate.open();
    assert_eq!(running.response().await.status(), 200);
    tidegate.idle().await;
}

#[tokio::test]
async fn a_reload_keeps_the_book_and_what_is_held() {
    let gate = Gate::closed();
    let servers =
        [Backend::start(sse(2, &gate)).await, Backend::start(sse(2, &gate)).await, Backend::start(sse(2, &gate)).await];
    let tidegate = Tidegate::start(&lanes(&servers[1..])).await;
    let mut running = tidegate.begin(&long()).await;
    servers[2].requests(1).await;
    let mut waiting = tidegate.begin(&long()).await;
    held(&tidegate, 1).await;
    // A server comes to stand in front: places shift, what runs and what waits stays where it is.
    tidegate.reload(&lanes(&servers)).await;
    held(&tidegate, 1).await;
    let status = tidegate.status().await;
    let on_last = &status["work"]["servers"][2];
    assert_eq!((on_last["name"].as_str(), on_last["prefilling_long"].as_u64()), (Some(&*servers[2].name()), Some(1)));
    gate.open();
    assert_eq!((running.response().await.status(), waiting.response().await.status()), (200, 200));
    tidegate.idle().await;
    assert_eq!(servers.each_ref().map(Backend::count), [0, 0, 2]);
}

#[tokio::test]
async fn a_failed_attempt_is_made_again_elsewhere_and_weighs_once() {
    let gate = Gate::closed();
    let [first, other] = [Backend::start(sse(2, &gate)).await, Backend::start(sse(2, &gate)).await];
    let dead = closed_address();
    let setup = Setup::one_group([first.address(), other.address(), dead]).without_health();
    let tidegate =
        Tidegate::start(&setup.section("policy", "{ kind: lanes, lanes: 1, long_from_tokens: 20000 }")).await;
    let mut client = tidegate.begin(&long()).await;
    until("it is elsewhere", async || first.count() + other.count() == 1).await;
    let status = tidegate.status().await;
    let prefilling: Vec<_> =
        status["work"]["servers"].as_array().unwrap().iter().map(|on| on["prefilling"].as_u64().unwrap()).collect();
    assert_eq!((prefilling.iter().sum::<u64>(), prefilling[2]), (1, 0), "{status}");
    gate.open();
    assert_eq!(client.response().await.status(), 200);
    tidegate.idle().await;
}

#[tokio::test]
async fn a_server_gets_no_request_that_is_longer_than_it_takes() {
    let [small, large] = [Backend::start(sse(2, &opened())).await, Backend::start(sse(2, &opened())).await];
    let server =
        |server: &Backend, most: u64| format!("{{ address: \"{}\", max_model_len: {most} }}", server.address());
    let setup = Setup::one_group([server(&small, 8_192), server(&large, 65_536)]);
    let tidegate = Tidegate::start(&setup.section("policy", "{ kind: least_work }")).await;
    for _ in 0..4 {
        assert_eq!(tidegate.exchange(&prompt(60_000, true)).await.status(), 200);
    }
    assert_eq!((small.count(), large.count()), (0, 4));
    let refused = tidegate.exchange(&prompt(600_000, true)).await;
    assert_refusal(&refused, 400);
    let error = &refused.json()["error"];
    assert_eq!(
        (error["code"].as_str(), error["type"].as_str()),
        (Some("context_length_exceeded"), Some("invalid_request_error"))
    );
    assert!(error["message"].as_str().unwrap().contains("maximum context length is 65536 tokens"), "{error}");
    assert_eq!(refused.head.get("retry-after"), None);
    assert_eq!(small.count() + large.count(), 4);
    tidegate.idle().await;
}

#[tokio::test]
async fn limits_of_a_server_hold_requests_here_and_its_place_is_given_on() {
    let gate = Gate::closed();
    let servers = [Backend::start(sse(2, &gate)).await, Backend::start(sse(2, &gate)).await];
    let setup = lanes(&servers).section("queue", "{ server_max_in_flight: 1 }");
    let tidegate = Tidegate::start(&setup).await;
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(tidegate.begin(&short()).await);
    }
    held(&tidegate, 4).await;
    until("both servers have one", async || servers.iter().all(|server| server.count() == 1)).await;
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    tidegate.idle().await;
}

/// A server that takes no request of more than so many bytes, and says it as vLLM does.
async fn taking_up_to(bytes: usize) -> Backend {
    const TOO_LONG: &str = r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input tokens.","type":"BadRequestError","param":"input_tokens","code":400}}"#;
    Backend::start(move |mut conn| async move {
        while let Some(request) = conn.request().await {
            let is_short = request.body.len() <= bytes;
            let response = if is_short { json_response(200, "{}") } else { json_response(400, TOO_LONG) };
            if !conn.send(response).await {
                return;
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_server_that_says_that_a_request_is_too_long_is_followed_by_a_larger_one_once() {
    let [small, large] = [taking_up_to(1_000).await, taking_up_to(100_000).await];
    let groups = || Setup::two_groups([&small], [&large]);
    let lanes = |setup: Setup| setup.section("policy", "{ kind: least_work }");
    for setup in [groups().section("policy", "{ kind: reference_bucket, redirect_threshold: 1 }"), lanes(groups())] {
        let tidegate = Tidegate::start(&setup).await;
        small.forget();
        large.forget();
        // Whichever is asked first, the larger one answers.
        for _ in 0..4 {
            assert_eq!(tidegate.exchange(&post(CHAT, &body_of(5_000))).await.status(), 200);
        }
        assert_eq!(large.count(), 4);
        let retries = tidegate.metric("tidegate_retries_total", &["reason=\"context_length\""]).await;
        assert_eq!(retries, small.count() as f64);
        // What is too long for both gets the last one's own answer; nobody is asked a third time.
        let refused = tidegate.exchange(&post(CHAT, &body_of(110_000))).await;
        assert_eq!((refused.status(), refused.head.get("x-tidegate-error")), (400, None));
        assert!(refused.text().contains("maximum context length is 4096"), "{}", refused.text());
        tidegate.idle().await;
        assert!(tidegate.metric("tidegate_server_faults_total", &[]).await < 0.5, "that is no fault of the server's");
    }
}

#[tokio::test]
async fn a_too_long_request_is_the_servers_to_refuse_when_no_other_takes_more() {
    let small = taking_up_to(1_000).await;
    let twin = taking_up_to(1_000).await;
    for setup in [
        Setup::one_group([&small]),
        Setup::one_group([&small, &twin]),
        Setup::one_group(
            [&small, &twin].map(|server| format!("{{ address: \"{}\", max_model_len: 9000 }}", server.address())),
        )
        .section("policy", "{ kind: lanes }"),
    ] {
        let tidegate = Tidegate::start(&setup).await;
        small.forget();
        twin.forget();
        let refused = tidegate.exchange(&post(CHAT, &body_of(5_000))).await;
        assert_eq!((refused.status(), refused.head.get("x-tidegate-error")), (400, None));
        assert_eq!(small.count() + twin.count(), 1);
        tidegate.idle().await;
    }
}
