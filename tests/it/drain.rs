//! Servers that are to run empty.

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

async fn answers() -> Backend {
    Backend::start(reply(json_response(200, "{}"))).await
}

#[tokio::test]
async fn a_drained_server_gets_nothing_new_and_its_stream_ends_in_peace() {
    let gate = Gate::closed();
    let first = Backend::start(sse(2, &gate)).await;
    let second = answers().await;
    let tidegate = Tidegate::start(&Setup::one_group([&first, &second])).await;
    let mut stream = tidegate.begin(&post(CHAT, &body_of(200))).await;
    first.requests(1).await;

    let drain = format!("/drain?server={}", first.name());
    let answer = tidegate.admin_post(&drain, "").await.json();
    assert_eq!(
        (&answer["draining"], &answer["in_flight"], &answer["drained"]),
        (&true.into(), &1.into(), &false.into())
    );
    for _ in 0..5 {
        assert_eq!(tidegate.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    }
    assert_eq!((first.count(), second.count()), (1, 5));
    let labels = [format!("server=\"{}\"", first.name())];
    let labels = [labels[0].as_str()];
    assert_eq!(tidegate.metric("tidegate_server_draining", &labels).await, 1.0);

    gate.open();
    let response = stream.response().await;
    assert_eq!((response.status(), response.end), (200, End::Complete));
    until("the server is drained", async || tidegate.status().await["groups"][0]["servers"][0]["drained"] == true)
        .await;

    let answer = tidegate.admin_post(&format!("/undrain?server={}", first.name()), "").await.json();
    assert_eq!((&answer["draining"], &answer["drained"]), (&false.into(), &false.into()));
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    assert_eq!(first.count(), 2);
    assert_eq!(tidegate.metric("tidegate_server_draining", &labels).await, 0.0);
}

#[tokio::test]
async fn a_drain_by_hand_holds_through_reloads_and_ends_when_the_server_leaves() {
    let (first, second) = (answers().await, answers().await);
    let both = Setup::one_group([&first, &second]);
    let tidegate = Tidegate::start(&both).await;
    assert_eq!(tidegate.admin_post(&format!("/drain?server={}", first.name()), "").await.status(), 200);
    tidegate.reload(&both.clone().section("headers", "{ strip: [] }")).await;
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    assert_eq!((first.count(), second.count()), (0, 1));
    tidegate.reload(&Setup::one_group([&second])).await;
    tidegate.reload(&both).await;
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    assert_eq!((first.count(), second.count()), (1, 1));
}

#[tokio::test]
async fn a_server_may_be_drained_by_configuration_and_only_there_be_taken_back() {
    let (first, second) = (answers().await, answers().await);
    let setup = |drain| {
        Setup::one_group([
            format!("{{ address: \"{}\", name: one, drain: {drain} }}", first.address()),
            second.address().to_yaml(),
        ])
    };
    let tidegate = Tidegate::start(&setup(true)).await;
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    assert_eq!((first.count(), second.count()), (0, 1));
    assert_eq!(tidegate.metric("tidegate_server_draining", &["server=\"one\""]).await, 1.0);
    let refused = tidegate.admin_post("/undrain?server=one", "").await;
    assert_eq!((refused.status(), &refused.json()["error"]["code"]), (409, &"drained_by_configuration".into()));
    tidegate.reload(&setup(false)).await;
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    assert_eq!((first.count(), second.count()), (1, 1));
    tidegate.reload(&setup(true)).await;
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    assert_eq!((first.count(), second.count()), (1, 2));
}

#[tokio::test]
async fn a_drain_without_a_known_server_is_refused() {
    let backend = answers().await;
    let tidegate = Tidegate::start(&Setup::one_group([&backend])).await;
    for (path, status) in
        [("/drain", 400), ("/drain?server=", 404), ("/drain?server=nobody", 404), ("/undrain?x=y", 400)]
    {
        assert_eq!(tidegate.admin_post(path, "").await.status(), status, "{path}");
    }
    let read = Client::connect(tidegate.admin).await.exchange(&get("/drain?server=x")).await;
    assert_eq!((read.status(), read.head.get("allow")), (405, Some("POST")));
}

#[tokio::test]
async fn a_server_that_leaves_with_a_stream_is_shown_until_it_is_over_and_keeps_its_load_when_it_returns() {
    let gate = Gate::closed();
    let (leaving, other) = (Backend::start(sse(1, &gate)).await, answers().await);
    let tidegate = Tidegate::start(&Setup::one_group([&leaving, &other])).await;
    let mut stream = tidegate.begin(&post(CHAT, &body_of(400))).await;
    leaving.requests(1).await;
    tidegate.reload(&Setup::one_group([&other])).await;
    let status = tidegate.status().await;
    assert_eq!(
        (&status["leaving"][0]["name"], &status["leaving"][0]["in_flight"]),
        (&leaving.name().into(), &1.into())
    );
    tidegate.reload(&Setup::one_group([&other, &leaving])).await;
    assert_eq!(tidegate.load(&leaving.name()).await, 100.0);
    gate.open();
    assert_eq!(stream.response().await.end, End::Complete);
    tidegate.idle().await;
}
