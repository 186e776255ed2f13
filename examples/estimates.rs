//! Says how far estimated prompt lengths are from what tokenizers count, before and after learning.
//!
//! Reads the lines that `tests/estimates/count.py` writes, and prints a table of medians and 90 % quantiles of the size
//! of the relative error. Behind them: the same when the texts come in random order, each is learned after it was
//! estimated, and only those of the second half count.

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::sync::Arc;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use serde::Deserialize;
use tidegate::prompt::{Content, Endpoint, TokenEstimator, content};

/// A text, and how many tokens the tokenizers of several models make of it.
#[derive(Deserialize)]
struct Counted {
    category: String,
    prompt: String,
    tokens: BTreeMap<String, u64>,
}

/// Sizes of errors in percent, by category and tokenizer.
type Errors = BTreeMap<(String, String), Vec<f64>>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut texts = Vec::new();
    for line in io::stdin().lock().lines() {
        texts.push(serde_json::from_str::<Counted>(&line?)?);
    }
    texts.shuffle(&mut rand::rngs::StdRng::seed_from_u64(1));
    let (builtin, mut learning) = (TokenEstimator::default(), TokenEstimator::default());
    let (mut cold, mut learned) = (Errors::new(), Errors::new());
    for (place, text) in texts.iter().enumerate() {
        for (tokenizer, counted) in text.tokens.iter().filter(|(_, counted)| **counted > 0) {
            let content = completion(&text.prompt, tokenizer)?;
            let estimate = learning.estimate(Endpoint::Completions, &content);
            let error = learning.learn(&estimate, *counted).relative().abs() * 100.0;
            let first = builtin.prompt_tokens(Endpoint::Completions, &content) as f64 / *counted as f64 - 1.0;
            for category in [&text.category, "all"] {
                let key = || (category.to_owned(), tokenizer.clone());
                cold.entry(key()).or_default().push(first.abs() * 100.0);
                if place >= texts.len() / 2 {
                    learned.entry(key()).or_default().push(error);
                }
            }
        }
    }
    let tokenizers: Vec<_> = texts.iter().flat_map(|text| text.tokens.keys()).collect();
    let tokenizers: std::collections::BTreeSet<_> = tokenizers.into_iter().collect();
    println!(
        "| median / p90 error, % | {} |",
        tokenizers.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" | ")
    );
    println!("|---|{}", "---|".repeat(tokenizers.len()));
    let mut categories: Vec<_> = cold.keys().map(|(category, _)| category.clone()).collect();
    categories.dedup();
    for category in categories {
        print!("| {category} |");
        for tokenizer in &tokenizers {
            let key = (category.clone(), (*tokenizer).clone());
            print!(" {}, then {} |", quantiles(cold.get(&key)), quantiles(learned.get(&key)));
        }
        println!();
    }
    Ok(())
}

fn completion(prompt: &str, model: &str) -> Result<Content, serde_json::Error> {
    let body = serde_json::to_vec(&serde_json::json!({"prompt": prompt}))?;
    Ok(Content { model: Some(Arc::from(model)), ..content(Endpoint::Completions, &body) })
}

fn quantiles(errors: Option<&Vec<f64>>) -> String {
    let Some(errors) = errors else { return "-".to_owned() };
    let mut errors = errors.clone();
    errors.sort_by(f64::total_cmp);
    format!("{:.1} / {:.1}", errors[errors.len() / 2], errors[errors.len() * 9 / 10])
}
