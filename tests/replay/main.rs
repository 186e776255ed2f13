//! Replays the fuzz corpora and seeded mutations of them, without cargo-fuzz.
//!
//! `fuzz/` searches for new inputs; here the checks run on what was found. A failure names its input, which belongs
//! into `fuzz/corpus` when it is mended.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails right there")]

mod body;
mod config;
mod content;
mod head;
mod mutate;
mod strict;

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use rand::SeedableRng;
use rand::rngs::StdRng;

/// Any number will do; the same one makes a failure come again.
const SEED: u64 = 3;

fn replay(target: &str, mutations: usize, check: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let corpus: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    assert!(corpus.len() > 10, "{} holds {} files", directory.display(), corpus.len());
    for (file, input) in files.iter().zip(&corpus) {
        run(check, input, &file.display().to_string());
    }
    let mut random = StdRng::seed_from_u64(SEED);
    for number in 0..mutations {
        let input = mutate::mutate(&corpus, &mut random);
        run(check, &input, &format!("mutation {number} of seed {SEED}"));
    }
}

fn run(check: fn(&[u8]), input: &[u8], name: &str) {
    if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| check(input))) {
        eprintln!("{name} fails: {}", input.escape_ascii());
        panic::resume_unwind(panic);
    }
}

#[test]
fn bodies_are_measured_as_a_tree_says() {
    replay("body", 20_000, body::check);
}

#[test]
fn what_is_found_in_a_body_is_bounded_by_its_size() {
    replay("content", 3_000, content::check);
}

#[test]
fn every_file_is_a_configuration_or_has_problems() {
    replay("config", 2_000, config::check);
}

#[test]
fn servers_see_the_requests_that_clients_send() {
    replay("head", 2_500, head::check);
}
