//! One line for each request that has ended.

use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

/// Settings whose file is in a folder.
fn log_to(path: &Path, keys: &str) -> String {
    format!("{{ format: json, path: \"{}\"{keys} }}", path.display())
}

fn chat(prose: &str, is_streamed: bool) -> Vec<u8> {
    post(CHAT, chat_body(prose, is_streamed).as_bytes())
}

fn chat_body(prose: &str, is_streamed: bool) -> String {
    let messages = serde_json::json!([{ "role": "user", "content": prose }]);
    serde_json::json!({ "model": "qwen", "stream": is_streamed, "max_tokens": 64, "messages": messages }).to_string()
}

/// The lines, once there are so many.
async fn lines(path: &Path, count: usize) -> Vec<Value> {
    let text = || std::fs::read_to_string(path).unwrap_or_default();
    until(&format!("there are {count} lines"), async || text().lines().count() >= count).await;
    let lines: Vec<Value> = text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), count, "{}", text());
    lines
}

#[tokio::test]
async fn a_line_says_what_was_asked_where_it_went_and_how_it_ended() {
    let usage = r#"{"choices":[{"index":0,"message":{"content":"Secret answer"}}],
        "usage":{"prompt_tokens":31,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":16}}}"#;
    let [stream, whole] =
        [Backend::start(sse(5, &opened())).await, Backend::start(reply(json_response(200, usage))).await];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    for policy in ["{ kind: reference_bucket, ties: first }", "{ kind: least_work }"] {
        let keys = "{ keys: [{ name: team-a, key: very-secret-key }] }";
        let setup =
            |server| Setup::one_group([server]).section("policy", policy).section("access_log", &log_to(&path, ""));
        std::fs::remove_file(&path).ok();
        let tidegate = Tidegate::start(&setup(&stream)).await;
        assert_eq!(tidegate.exchange(&chat("Tell me a secret story of the sea.", true)).await.status(), 200);
        let line = &lines(&path, 1).await[0];
        assert_eq!((line["version"].as_u64(), line["endpoint"].as_str()), (Some(1), Some(CHAT)), "{line}");
        assert_eq!((line["model"].as_str(), line["stream"].as_bool()), (Some("qwen"), Some(true)), "{line}");
        assert_eq!((line["status"].as_u64(), line["end"].as_str()), (Some(200), Some("complete")), "{line}");
        assert_eq!((line["attempts"].as_u64(), line["max_tokens"].as_u64()), (Some(1), Some(64)), "{line}");
        assert_eq!(
            (line["server"].as_str(), line["group"].as_str()),
            (Some(stream.name().as_str()), Some("all")),
            "{line}"
        );
        assert_eq!(line["output_tokens"].as_u64(), Some(5), "{line}");
        assert!((5..40).contains(&line["estimated_tokens"].as_u64().unwrap()), "{line}");
        let (first, end) = (line["ttft_s"].as_f64().unwrap(), line["duration_s"].as_f64().unwrap());
        assert!(0.0 < first && first <= end && end < 20.0, "{line}");
        assert!(line["sent_bytes"].as_u64().unwrap() > 0 && line["reason"].is_string(), "{line}");
        assert!(
            line["body_bytes"].as_u64().unwrap() > 100 && !line["request_id"].as_str().unwrap().is_empty(),
            "{line}"
        );

        tidegate.reload(&setup(&whole).section("access", keys)).await;
        let (with_key, body) = ("authorization: Bearer very-secret-key\r\n", chat_body("Another secret story", false));
        let answer = tidegate.exchange(&request("POST", CHAT, with_key, body.as_bytes())).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(tidegate.exchange(&chat("Without the key, which is secret", true)).await.status(), 401);
        let all = lines(&path, 3).await;
        let line = &all[1];
        assert_eq!((line["key"].as_str(), line["stream"].as_bool()), (Some("team-a"), Some(false)), "{line}");
        assert_eq!((line["prompt_tokens"].as_u64(), line["cached_tokens"].as_u64()), (Some(31), Some(16)), "{line}");
        assert_eq!(line["output_tokens"].as_u64(), Some(7), "{line}");
        let line = &all[2];
        assert_eq!((line["end"].as_str(), line["status"].as_u64()), (Some("rejected"), Some(401)), "{line}");
        assert_eq!((line["attempts"].as_u64(), line["server"].as_str()), (Some(0), None), "{line}");
        assert!(line["rejected"].is_string(), "{line}");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.to_lowercase().contains("secret"), "{text}");
        let written = ["result=\"written\""];
        assert_eq!(tidegate.metric("tidegate_access_log_lines_total", &written).await, 3.0);
    }
}

#[tokio::test]
async fn a_line_names_what_went_wrong() {
    let gate = Gate::closed();
    let (dead, alive) = (closed_address(), Backend::start(sse_held(&gate)).await);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    // What goes well is not asked for.
    let settings = log_to(&path, ", sample: 0.0");
    let setup = Setup::one_group([dead, alive.address()]).without_health().section("access_log", &settings);
    let tidegate = Tidegate::start(&setup).await;
    let client = tidegate.begin(&chat("Hello", true)).await;
    alive.requests(1).await;
    client.reset();
    let line = &lines(&path, 1).await[0];
    assert_eq!((line["end"].as_str(), line["attempts"].as_u64()), (Some("client_gone"), Some(2)), "{line}");
    assert_eq!(line["server"].as_str(), Some(alive.name().as_str()), "{line}");
    // As text, also after a signal.
    tidegate.write(&setup.section("access_log", &settings.replace("json", "text").replace("0.0", "1.0")));
    tidegate.signal(Signal::SIGHUP);
    tidegate.generation(2).await;
    std::fs::remove_file(&path).unwrap();
    tidegate.signal(Signal::SIGHUP);
    until("the file is there again", async || path.exists()).await;
    gate.open();
    assert_eq!(tidegate.exchange(&chat("Hello", true)).await.status(), 200);
    let text = || std::fs::read_to_string(&path).unwrap();
    until("there is a line", async || text().ends_with('\n')).await;
    let text = text();
    assert!(text.starts_with("time=2"), "{text}");
    for word in [" status=200 ", " end=complete", " attempts=2 ", " model=qwen ", " group=all "] {
        assert!(text.contains(word), "{word} in {text}");
    }
}

#[tokio::test]
async fn what_has_ended_is_in_the_file_when_the_process_is_gone() {
    let server = Backend::start(sse(1, &opened())).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let mut tidegate = Tidegate::start(&Setup::one_group([&server]).section("access_log", &log_to(&path, ""))).await;
    for _ in 0..40 {
        assert_eq!(tidegate.exchange(&chat("Hello", true)).await.status(), 200);
    }
    assert!(tidegate.terminate().await.success());
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 40);
}

#[tokio::test]
async fn a_file_that_cannot_be_opened_is_refused_by_its_key() {
    let server = Backend::start(echo()).await;
    let setup = Setup::one_group([&server]);
    let tidegate = Tidegate::start(&setup).await;
    tidegate.write(&setup.section("access_log", "{ format: json, path: /nowhere/at/all.log }"));
    let answer = tidegate.admin_post("/reload", "").await;
    assert_eq!(answer.status(), 400, "{}", answer.text());
    assert!(answer.text().contains("access_log.path /nowhere/at/all.log: No such file"), "{}", answer.text());
    assert_eq!(tidegate.status().await["config_generation"], 1);
}
