//! Replays what the vLLM-Ascend example does, recorded from the example itself (`tests/data/golden`), line by line.
//!
//! Every line must agree with Tidegate or be listed in [`deviations::DEVIATIONS`], and then Tidegate must do what is
//! listed there. A listed line that agrees after all fails too.

#![expect(clippy::unwrap_used, reason = "a recording that cannot be read fails the test")]

mod algo;
mod bodies;
mod deviations;
mod proxy;
mod pure;
mod rule;
mod vectors;

use serde_json::Value;

use deviations::{DEVIATIONS, Replays, judge};

/// How the lines of a recorded file are replayed.
fn replay_of(file: &str) -> &'static dyn Replays {
    match file {
        "proxy_plain.jsonl" | "proxy_dynamic.jsonl" | "proxy_edge.jsonl" => &proxy::Replay,
        "algo_random.jsonl" | "algo_nostandard.jsonl" | "algo_edge.jsonl" => &algo::Replay,
        "pure_functions.jsonl" => &pure::Replay,
        "request_bodies.jsonl" => &bodies::Replay,
        _ => panic!("nothing replays {file}"),
    }
}

#[test]
fn every_recorded_line_agrees_or_is_a_listed_deviation() {
    let manifest: Value = serde_json::from_str(&vectors::read("manifest.json")).unwrap();
    let files = manifest["files"].as_object().unwrap();
    assert!(DEVIATIONS.iter().all(|row| files.contains_key(row.file)), "a row names a file that is not there");
    for (file, recorded) in files {
        let replayed = judge(file, replay_of(file));
        assert_eq!(replayed, vectors::index(&recorded["lines"]), "lines of {file}");
    }
}
