//! What another policy would have done is counted, and changes nothing; conversations that clients name.

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

fn chat(name: &str, bytes: usize) -> String {
    let prose = format!("{name}. ") + &"The gate opens when the water stands high enough. ".repeat(bytes / 50 + 1);
    let messages = serde_json::json!([{ "role": "user", "content": &prose[..bytes] }]);
    serde_json::json!({ "model": "m", "stream": true, "messages": messages }).to_string()
}

#[tokio::test]
async fn what_another_policy_would_have_chosen_is_counted_and_changes_nothing() {
    let gate = Gate::closed();
    let [short, long] = [Backend::start(sse(2, &gate)).await, Backend::start(sse(2, &gate)).await];
    let setup = |shadow: &str| {
        let policy = format!("{{ kind: reference_bucket, ties: first, lanes: 1, long_from_tokens: 20000{shadow} }}");
        Setup::two_groups([&short], [&long]).section("policy", &policy)
    };
    let tidegate = Tidegate::start(&setup(", shadow: lanes")).await;
    let shadow = async || tidegate.status().await["shadow"].clone();
    let choices = async |labels: &[&str]| tidegate.metric("tidegate_shadow_choices_total", labels).await;
    assert_eq!(shadow().await["policy"], "lanes");
    // Two long ones at once: with lanes the second would wait.
    let mut clients = Vec::new();
    for number in 1..=2 {
        clients.push(tidegate.begin(&post(CHAT, chat(&format!("long {number}"), 400_000).as_bytes())).await);
        until("a server has it", async || short.count() + long.count() >= number).await;
    }
    until("the shadow holds the second", async || shadow().await["held"] == 1).await;
    // The other one runs: it crossed to the short group, as it does in the example.
    for number in 0..4 {
        clients.push(tidegate.begin(&post(CHAT, chat(&number.to_string(), 400).as_bytes())).await);
    }
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    tidegate.idle().await;
    let all = shadow().await;
    let sum: u64 =
        ["same_server", "same_group", "other_group", "none"].iter().map(|key| all[key].as_u64().unwrap()).sum();
    assert_eq!((sum, all["held"].as_u64()), (6, Some(0)), "{all}");
    assert_eq!(choices(&["policy=\"lanes\""]).await, 6.0);
    assert_eq!(choices(&["group=\"long\"", "reason=\"lane\"", "agreement=\"same_server\""]).await, 1.0);
    // Another one begins at nothing, and none is none.
    tidegate.reload(&setup(", shadow: least_work")).await;
    let all = shadow().await;
    assert_eq!((all["policy"].as_str(), all["same_server"].as_u64()), (Some("least_work"), Some(0)), "{all}");
    assert_eq!(tidegate.exchange(&post(CHAT, chat("one more", 400).as_bytes())).await.status(), 200);
    assert_eq!(choices(&["policy=\"least_work\""]).await, 1.0);
    tidegate.reload(&setup("")).await;
    assert!(shadow().await.is_null());
    assert_eq!(tidegate.exchange(&post(CHAT, chat("the last", 400).as_bytes())).await.status(), 200);
    assert_eq!(choices(&["policy=\"least_work\""]).await, 1.0);
}

#[tokio::test]
async fn a_shadow_follows_drains_ends_and_failures() {
    let dead = closed_address();
    let [one, other] = [Backend::start(sse(2, &opened())).await, Backend::start(sse(2, &opened())).await];
    let policy = "{ kind: least_work, shadow: reference_plain, ties: first }";
    let setup = Setup::one_group([dead, one.address(), other.address()]).without_health().section("policy", policy);
    let tidegate = Tidegate::start(&setup).await;
    tidegate.admin_post(&format!("/drain?server={dead}"), "").await;
    tidegate.admin_post(&format!("/drain?server={}", one.name()), "").await;
    for number in 0..5 {
        assert_eq!(tidegate.exchange(&post(CHAT, chat(&number.to_string(), 400).as_bytes())).await.status(), 200);
    }
    let shadow = tidegate.status().await["shadow"].clone();
    assert_eq!(shadow["same_server"], 5, "both have one server left: {shadow}");
    tidegate.admin_post(&format!("/undrain?server={dead}"), "").await;
    for number in 5..9 {
        assert_eq!(tidegate.exchange(&post(CHAT, chat(&number.to_string(), 400).as_bytes())).await.status(), 200);
    }
    tidegate.idle().await;
    let shadow = tidegate.status().await["shadow"].clone();
    let sum: u64 = ["same_server", "same_group"].iter().map(|key| shadow[key].as_u64().unwrap()).sum();
    assert_eq!(sum, 9, "retries are no requests: {shadow}");
}

#[tokio::test]
async fn a_conversation_with_a_name_goes_where_its_last_prompt_went() {
    let servers = [Backend::start(sse(1, &opened())).await, Backend::start(sse(1, &opened())).await];
    let policy = |more: &str| format!("{{ kind: least_work{more} }}");
    let named = Setup::one_group(&servers).section("policy", &policy(", session_header: x-session-id"));
    let tidegate = Tidegate::start(&named).await;
    // The texts have nothing in common, so that the name alone tells.
    let ask = async |name: &str, text: usize| {
        let fields = format!("x-session-id: {name}\r\n");
        let body = chat(&text.to_string(), 20_000);
        assert_eq!(tidegate.exchange(&request("POST", CHAT, &fields, body.as_bytes())).await.status(), 200);
    };
    for text in 0..6 {
        ask("a", text).await;
    }
    let counts = servers.each_ref().map(Backend::count);
    assert!(counts.contains(&6) && counts.contains(&0), "{counts:?}");
    for text in 10..16 {
        ask(&format!("other {text}"), text).await;
    }
    assert!(servers.iter().all(|server| server.count() >= 2), "{:?}", servers.each_ref().map(Backend::count));
    // Without the setting the name is a header like any other.
    let before = servers.each_ref().map(Backend::count);
    tidegate.reload(&Setup::one_group(&servers).section("policy", &policy(""))).await;
    for text in 20..26 {
        ask("a", text).await;
    }
    let after = servers.each_ref().map(Backend::count);
    assert!((0..2).all(|server| after[server] > before[server]), "{before:?} {after:?}");
}
