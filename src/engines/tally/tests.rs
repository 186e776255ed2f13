use super::*;
use crate::config::of_text;
use crate::prompt::{Endpoint, MediaCosts, TokenEstimator, content};

fn estimate_of(model: &str, prompt: &str) -> Estimate {
    let body = serde_json::json!({ "model": model, "prompt": prompt }).to_string();
    let content = content(Endpoint::Completions, body.as_bytes());
    TokenEstimator::new(MediaCosts::default()).estimate(Endpoint::Completions, &content)
}

fn estimate() -> Estimate {
    estimate_of("m", &"the water stands high behind the gate and falls when it opens ".repeat(40))
}

fn server() -> Arc<Server> {
    let config = of_text("groups: [{name: a, servers: [x:1]}]");
    Arc::new(Server::new(0, config.groups[0].servers[0].clone()).unwrap())
}

/// A look at an engine that serves us alone.
fn look(server: &Server, prompt_tokens: u64) -> Option<Lesson> {
    look_with(server, prompt_tokens, 0.0)
}

fn look_with(server: &Server, prompt_tokens: u64, drift_requests: f64) -> Option<Lesson> {
    let counters = Counters { prompt_tokens, generation_tokens: 0 };
    server.engine().lock().prompts.look(counters, drift_requests, 10.0)
}

fn answer(server: &Arc<Server>, estimate: Estimate) {
    Tallied::begin(Arc::clone(server), estimate, true).has_first_token();
}

#[test]
fn what_was_counted_between_two_looks_belongs_to_the_prompts_between_them() {
    let server = server();
    answer(&server, estimate());
    assert_eq!(look(&server, 7_000), None, "nobody knows since when it counts");
    answer(&server, estimate());
    answer(&server, estimate());
    let lesson = look(&server, 8_000).unwrap();
    assert_eq!(lesson.prompt_tokens, 1_000);
    assert_eq!(lesson.estimates.tokens(), 2 * estimate().tokens());
    assert_eq!(look(&server, 8_000), None, "it is learned once");
    answer(&server, estimate());
    assert_eq!(look(&server, 8_500).unwrap().estimates, estimate());
}

#[test]
fn a_stream_without_its_first_token_belongs_to_the_next_span() {
    let server = server();
    look(&server, 0);
    answer(&server, estimate());
    let late = Tallied::begin(Arc::clone(&server), estimate(), true);
    assert_eq!(look(&server, 500).unwrap().estimates, estimate());
    late.has_first_token();
    assert_eq!(look(&server, 1_000).unwrap().estimates, estimate());
}

#[test]
fn a_span_goes_on_while_it_is_unsure_what_was_counted() {
    let server = server();
    let running = Tallied::begin(Arc::clone(&server), estimate(), false);
    look(&server, 0);
    answer(&server, estimate());
    // The one that runs may have been counted before the span, in it, or not at all.
    assert_eq!(look(&server, 500), None);
    running.has_first_token();
    assert_eq!(look(&server, 1_000), None);
    for _ in 0..100 {
        answer(&server, estimate());
    }
    assert_eq!(look(&server, 51_000).unwrap().estimates.tokens(), 102 * estimate().tokens());
}

#[test]
fn requests_that_failed_may_have_been_counted() {
    let server = server();
    look(&server, 0);
    drop(Tallied::begin(Arc::clone(&server), estimate(), true));
    answer(&server, estimate());
    assert_eq!(look(&server, 500), None);
    for _ in 0..100 {
        answer(&server, estimate());
    }
    assert!(look(&server, 50_000).is_some());
}

#[test]
fn a_span_that_stays_unsure_comes_to_an_end() {
    let server = server();
    look(&server, 0);
    drop(Tallied::begin(Arc::clone(&server), estimate(), true));
    for _ in 0..MOST_LOOKS {
        assert_eq!(look(&server, 500), None);
    }
    answer(&server, estimate());
    assert!(look(&server, 1_000).is_some());
}

#[test]
fn nothing_is_learned_from_an_engine_that_serves_others() {
    let server = server();
    look(&server, 0);
    answer(&server, estimate());
    assert_eq!(look_with(&server, 500, 1.0), None);
    answer(&server, estimate());
    assert!(look_with(&server, 1_000, 0.5).is_some(), "one of ten, half the time, is as good as none");
    // Nor while fewer run than are counted here.
    answer(&server, estimate());
    assert!(look_with(&server, 1_500, -9.0).is_some());
}

#[test]
fn nothing_is_learned_across_a_restart_of_the_engine() {
    let server = server();
    look(&server, 10_000);
    answer(&server, estimate());
    assert_eq!(look(&server, 500), None);
    answer(&server, estimate());
    assert_eq!(look(&server, 1_000).unwrap().prompt_tokens, 500);
}

#[test]
fn nothing_is_learned_from_what_is_far_off_mixed_told_or_exact() {
    let one = estimate().tokens();
    for (prompt_tokens, is_learned) in
        [(one / 2 - 1, false), (one / 2, true), (2 * one, true), (2 * one + 1, false), (0, false)]
    {
        let server = server();
        look(&server, 0);
        answer(&server, estimate());
        assert_eq!(look(&server, prompt_tokens).is_some(), is_learned, "{prompt_tokens} for {one}");
    }
    let mixed = server();
    look(&mixed, 0);
    answer(&mixed, estimate());
    answer(&mixed, estimate_of("other", "and falls when it opens"));
    assert_eq!(look(&mixed, one), None);
    let told = server();
    look(&told, 0);
    answer(&told, estimate());
    told.engine().lock().prompts.told(one);
    assert_eq!(look(&told, one), None);
    let exact = server();
    let body = serde_json::json!({ "model": "m", "prompt": vec![1; 100] }).to_string();
    let ids = content(Endpoint::Completions, body.as_bytes());
    look(&exact, 0);
    answer(&exact, TokenEstimator::new(MediaCosts::default()).estimate(Endpoint::Completions, &ids));
    assert_eq!(look(&exact, 100), None);
}

#[test]
fn while_nobody_looks_nothing_is_kept() {
    let server = server();
    look(&server, 0);
    answer(&server, estimate());
    server.engine().lock().prompts.stop();
    answer(&server, estimate());
    assert_eq!(look(&server, 1_000), None);
    assert_eq!(look(&server, 1_000), None);
}
