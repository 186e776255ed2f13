#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "token counts of tests are small and not negative"
)]

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::prompt::{Content, Endpoint, content};

const ENGLISH: &str = "The tide comes in twice a day, and the gate lets it through when the levels differ enough. ";
const CHINESE: &str = "潮水每天涨落两次，闸门在水位差足够大时放行。";

fn chat(model: &str, text: &str) -> Content {
    let body = json!({"model": model, "messages": [{"role": "user", "content": text}]});
    content(Endpoint::Chat, body.to_string().as_bytes())
}

fn relative(estimate: u64, actual: u64) -> f64 {
    LengthError { estimated_tokens: estimate, counted_tokens: actual }.relative().abs()
}

#[test]
fn an_estimate_is_never_nothing_and_ids_are_exact() {
    let estimator = TokenEstimator::default();
    assert_eq!(estimator.prompt_tokens(Endpoint::Completions, &content(Endpoint::Completions, b"{}")), 1);
    let ids = content(Endpoint::Completions, br#"{"prompt":[[1,2,3],[4,5]]}"#);
    assert_eq!(estimator.prompt_tokens(Endpoint::Completions, &ids), 5);
}

#[test]
fn media_count_what_the_caller_says() {
    let parts = r#"{"type":"image_url","image_url":{"url":"data:,"}},{"type":"video_url","video_url":{"url":"x"}}"#;
    let body = format!(r#"{{"messages":[{{"content":[{parts},{parts}]}}]}}"#);
    let content = content(Endpoint::Chat, body.as_bytes());
    let media = MediaCosts { image_tokens: 100, audio_tokens: 10, video_tokens: 1_000 };
    assert_eq!(TokenEstimator::new(media).prompt_tokens(Endpoint::Chat, &content), 2_200);
    let audio = crate::prompt::content(Endpoint::Audio, b"--boundary");
    assert_eq!(TokenEstimator::new(media).prompt_tokens(Endpoint::Audio, &audio), 10);
}

#[test]
fn prompts_that_are_cut_count_no_more_than_that() {
    let body = json!({"input": [ENGLISH, ENGLISH], "truncate_prompt_tokens": 5});
    let content = content(Endpoint::Embeddings, body.to_string().as_bytes());
    let mut estimator = TokenEstimator::default();
    let estimate = estimator.estimate(Endpoint::Embeddings, &content);
    assert_eq!(estimate.tokens(), 10);
    estimator.learn(&estimate, 10);
    assert!(estimator.learned().all(|learned| learned.prompts == 0), "a cut prompt teaches nothing");
}

/// A tokenizer that finds so many times more tokens than the built-in ratios do, for each of two scripts.
fn learn(estimator: &mut TokenEstimator, model: &str, english: f64, chinese: f64, prompts: u64) {
    let builtin = TokenEstimator::default();
    for number in 0..usize::try_from(prompts).unwrap() {
        let (is_english, is_chinese) = (number % 3 != 0, number % 3 != 1);
        let parts = [
            ENGLISH.repeat((1 + number % 7) * usize::from(is_english)),
            CHINESE.repeat((1 + number % 5) * usize::from(is_chinese)),
        ];
        let tokens =
            |text: &str| builtin.prompt_tokens(Endpoint::Completions, &content(Endpoint::Completions, text.as_bytes()));
        let counted = english * tokens(&parts[0]) as f64 + chinese * tokens(&parts[1]) as f64 + 9.0;
        let estimate = estimator.estimate(Endpoint::Chat, &chat(model, &parts.concat()));
        estimator.learn(&estimate, counted.round() as u64);
    }
}

#[test]
fn scripts_are_learned_apart_and_models_too() {
    let mut estimator = TokenEstimator::default();
    learn(&mut estimator, "one", 1.1, 0.6, 300);
    learn(&mut estimator, "other", 0.8, 1.4, 300);
    let builtin = TokenEstimator::default();
    for (model, english, chinese) in [("one", 1.1, 0.6), ("other", 0.8, 1.4)] {
        for (text, factor) in [(ENGLISH, english), (CHINESE, chinese)] {
            let content = chat(model, &text.repeat(50));
            let (before, after) =
                [&builtin, &estimator].map(|estimator| estimator.prompt_tokens(Endpoint::Chat, &content)).into();
            let factor: f64 = factor;
            let error = relative(after, (factor * before as f64) as u64);
            assert!(error < 0.08, "{model}: {before} became {after} and not {factor} times as many");
        }
    }
    let learned: Vec<_> = estimator.learned().filter(|learned| learned.prompts > 0).collect();
    assert_eq!(learned.iter().map(|learned| learned.prompts).sum::<u64>(), 1_200);
    assert!(learned.iter().all(|learned| learned.class == PromptClass::Chat));
    assert!(learned.iter().filter(|learned| learned.model.is_some()).all(|learned| learned.median_error < Some(0.05)));
}

#[test]
fn outliers_move_little_and_factors_stay_in_their_range() {
    let mut estimator = TokenEstimator::default();
    learn(&mut estimator, "m", 1.0, 1.0, 100);
    let content = chat("m", &ENGLISH.repeat(40));
    let before = estimator.prompt_tokens(Endpoint::Chat, &content);
    let estimate = estimator.estimate(Endpoint::Chat, &content);
    estimator.learn(&estimate, 1_000_000_000);
    assert!(relative(estimator.prompt_tokens(Endpoint::Chat, &content), before) < 0.02);
    for _ in 0..10_000 {
        let estimate = estimator.estimate(Endpoint::Chat, &content);
        estimator.learn(&estimate, 1_000_000_000);
    }
    let most = estimator.prompt_tokens(Endpoint::Chat, &content);
    assert!(most > 3 * before && most <= 4 * before + 512, "{before} became {most}");
    for _ in 0..10_000 {
        let estimate = estimator.estimate(Endpoint::Chat, &content);
        estimator.learn(&estimate, 1);
    }
    let least = estimator.prompt_tokens(Endpoint::Chat, &content);
    assert!(least >= before / 4 - 10 && least < before / 3, "{before} became {least}");
}

#[test]
fn what_a_template_adds_is_learned_from_short_prompts() {
    let mut estimator = TokenEstimator::default();
    let content = chat("m", "What is a tide gate?");
    let before = estimator.prompt_tokens(Endpoint::Chat, &content);
    for _ in 0..200 {
        let estimate = estimator.estimate(Endpoint::Chat, &content);
        estimator.learn(&estimate, before + 40);
    }
    let after = estimator.prompt_tokens(Endpoint::Chat, &content);
    assert!(after.abs_diff(before + 40) <= 2, "{before} became {after}");
    let plain = crate::prompt::content(Endpoint::Completions, br#"{"model":"m","prompt":"What is a tide gate?"}"#);
    let builtin = TokenEstimator::default().prompt_tokens(Endpoint::Completions, &plain);
    assert_eq!(estimator.prompt_tokens(Endpoint::Completions, &plain), builtin, "completions have no template");
}

#[test]
fn a_new_model_begins_with_what_others_have_taught() {
    let mut estimator = TokenEstimator::default();
    learn(&mut estimator, "known", 1.5, 1.5, 200);
    let (known, new) = (chat("known", &ENGLISH.repeat(40)), chat("new", &ENGLISH.repeat(40)));
    let known = estimator.prompt_tokens(Endpoint::Chat, &known);
    assert!(relative(estimator.prompt_tokens(Endpoint::Chat, &new), known) < 0.02);
    learn(&mut estimator, "new", 1.0, 1.0, 30);
    let builtin = TokenEstimator::default().prompt_tokens(Endpoint::Chat, &new);
    assert!(relative(estimator.prompt_tokens(Endpoint::Chat, &new), builtin) < 0.1, "its own answers soon outweigh it");
}

#[test]
fn only_so_many_models_are_learned_apart() {
    let mut estimator = TokenEstimator::default();
    for number in 0..3 * MAX_MODELS {
        learn(&mut estimator, &format!("model {number}"), 1.2, 1.2, 5);
    }
    let models: std::collections::HashSet<_> = estimator.learned().filter_map(|learned| learned.model).collect();
    assert_eq!(models.len(), MAX_MODELS);
    let all: u64 = estimator.learned().filter(|learned| learned.model.is_none()).map(|learned| learned.prompts).sum();
    assert_eq!(all, 15 * MAX_MODELS as u64);
    // Asking makes no model known.
    assert!(estimator.prompt_tokens(Endpoint::Chat, &chat("asked for", "x")) > 0);
    assert!(estimator.learned().all(|learned| learned.model != Some("asked for")));
}

#[test]
fn totals_of_a_server_teach_as_well() {
    let mut estimator = TokenEstimator::default();
    for round in 0..100 {
        let requests = (1..=8).map(|length| chat("m", &ENGLISH.repeat(length * (1 + round % 3))));
        let estimates: Vec<_> = requests.map(|content| estimator.estimate(Endpoint::Chat, &content)).collect();
        let builtin = TokenEstimator::default();
        let counted: u64 = (1..=8)
            .map(|length| builtin.prompt_tokens(Endpoint::Chat, &chat("m", &ENGLISH.repeat(length * (1 + round % 3)))))
            .sum();
        let mut sum = estimates[0].clone();
        estimates[1..].iter().for_each(|estimate| sum += estimate);
        estimator.learn_total(&sum, counted * 13 / 10);
    }
    let content = chat("m", &ENGLISH.repeat(20));
    let before = TokenEstimator::default().prompt_tokens(Endpoint::Chat, &content);
    assert!(relative(estimator.prompt_tokens(Endpoint::Chat, &content), before * 13 / 10) < 0.05);
}

#[test]
fn errors_are_told_with_their_sign() {
    let low = LengthError { estimated_tokens: 90, counted_tokens: 100 };
    let high = LengthError { estimated_tokens: 150, counted_tokens: 100 };
    assert!((low.relative() + 0.1).abs() < 1e-9 && (high.relative() - 0.5).abs() < 1e-9);
    assert!(LengthError { estimated_tokens: 5, counted_tokens: 0 }.relative().is_finite());
}

proptest! {
    #[test]
    fn whatever_is_learned_estimates_stay_finite_and_bounded(
        prompts in prop::collection::vec((".{0,60}", any::<u64>(), prop::option::of("[a-c]")), 0..20),
        text in "[ -~潮水]{50,90}",
    ) {
        let mut estimator = TokenEstimator::default();
        for (text, counted, model) in &prompts {
            let body = json!({"messages": [{"role": "user", "content": text}], "model": model});
            let content = content(Endpoint::Chat, body.to_string().as_bytes());
            let estimate = estimator.estimate(Endpoint::Chat, &content);
            prop_assert!(estimator.learn(&estimate, *counted).relative().is_finite());
        }
        let content = chat("a", &text);
        let builtin = TokenEstimator::default().prompt_tokens(Endpoint::Chat, &content);
        let tokens = estimator.prompt_tokens(Endpoint::Chat, &content);
        prop_assert!(tokens >= 1 && tokens <= 4 * builtin + 512 + 1, "{} became {}", builtin, tokens);
        for learned in estimator.learned() {
            prop_assert!(learned.latin_factor.is_finite() && learned.added_tokens.is_finite());
        }
    }
}
