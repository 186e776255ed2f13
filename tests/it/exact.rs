//! Prompts that are counted by the model's own tokenizer.

use serde_json::json;

use crate::support::*;

/// A tokenizer of whole words, none of which it knows: a word is a token.
fn tokenizer() -> String {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"},
    })
    .to_string()
}

fn words(count: usize) -> String {
    (0..count).map(|number| format!("incomprehensibility{number} ")).collect()
}

#[tokio::test]
async fn short_prompts_are_counted_and_long_ones_estimated_better_and_better() {
    let server = Backend::start(reply(json_response(200, "{}"))).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokenizer.json");
    std::fs::write(&file, tokenizer()).unwrap();
    let policy = format!("{{ kind: least_work, tokenizers: [{{ model: m, file: \"{}\" }}] }}", file.display());
    let setup = Setup::one_group([&server]).section("policy", &policy).section("headers", "{ decision: all }");
    let tidegate = Tidegate::start(&setup).await;
    assert_eq!(tidegate.status().await["config"]["tokenizers"], json!(["m"]));
    let tokens = async |model: &str, count: usize| {
        let body = json!({ "model": model, "prompt": words(count) }).to_string();
        let answer = tidegate.exchange(&post("/v1/completions", body.as_bytes())).await;
        answer.head.get("x-tidegate-prompt-tokens").unwrap().parse::<usize>().unwrap()
    };
    assert_eq!(tokens("m", 20).await, 20);
    assert!(tokens("another", 20).await > 60, "by its text it has several tokens a word");
    let long = tokens("m", 2_000).await;
    assert!(long > 6_000, "{long}");
    // As far as factors go that are learned.
    until("what was counted is learned", async || tokens("m", 2_000).await < long * 3 / 4).await;
}
