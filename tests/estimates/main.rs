//! Estimates against tokenizers: texts whose tokens were counted by `count.py`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use tidegate::prompt::{Endpoint, TokenEstimator, content};

/// A text, and how many tokens the tokenizers of several models make of it.
#[derive(Deserialize)]
struct Sample {
    category: String,
    prompt: String,
    tokens: BTreeMap<String, u64>,
}

fn samples() -> Vec<Sample> {
    let lines = include_str!("samples.jsonl").lines();
    lines.map(|line| serde_json::from_str(line).expect("a sample is JSON")).collect()
}

/// Sizes of the relative errors of all samples with each tokenizer, sorted.
fn errors(estimator: &TokenEstimator) -> Vec<(f64, String)> {
    let mut errors = Vec::new();
    for sample in samples() {
        let body = serde_json::json!({"prompt": sample.prompt}).to_string();
        for (tokenizer, counted) in &sample.tokens {
            let mut content = content(Endpoint::Completions, body.as_bytes());
            content.model = Some(Arc::from(tokenizer.as_str()));
            let estimated = estimator.prompt_tokens(Endpoint::Completions, &content);
            let error = estimated as f64 / *counted as f64 - 1.0;
            errors.push((error.abs(), format!("{} by {tokenizer}: {estimated} for {counted}", sample.category)));
        }
    }
    errors.sort_by(|one, other| one.0.total_cmp(&other.0));
    errors
}

#[test]
fn built_in_ratios_are_close_to_what_tokenizers_count() {
    let errors = errors(&TokenEstimator::default());
    assert!(errors[errors.len() - 1].0 < 0.4, "the worst is {:?}", errors[errors.len() - 1]);
    let is_common = |name: &str| ["english", "chat", "chinese", "rust", "python", "json", "mixed"].contains(&name);
    let common: Vec<_> = errors.iter().filter(|(_, what)| what.split(' ').next().is_some_and(is_common)).collect();
    assert!(common.len() >= 28, "{}", common.len());
    assert!(common[common.len() / 2].0 < 0.1, "the median is {:?}", common[common.len() / 2]);
    assert!(common[common.len() * 9 / 10].0 < 0.25, "nine of ten: {:?}", common[common.len() * 9 / 10]);
}

#[test]
fn learning_brings_estimates_closer() {
    let mut estimator = TokenEstimator::default();
    let before = errors(&estimator);
    for _ in 0..20 {
        for sample in samples() {
            let body = serde_json::json!({"prompt": sample.prompt}).to_string();
            for (tokenizer, counted) in &sample.tokens {
                let mut content = content(Endpoint::Completions, body.as_bytes());
                content.model = Some(Arc::from(tokenizer.as_str()));
                let estimate = estimator.estimate(Endpoint::Completions, &content);
                estimator.learn(&estimate, *counted);
            }
        }
    }
    let after = errors(&estimator);
    let mean = |errors: &[(f64, String)]| errors.iter().map(|error| error.0).sum::<f64>() / errors.len() as f64;
    assert!(mean(&after) < 0.75 * mean(&before), "{} became {}", mean(&before), mean(&after));
    assert!(after[after.len() * 9 / 10].0 < 0.15, "nine of ten: {:?}", after[after.len() * 9 / 10]);
}
