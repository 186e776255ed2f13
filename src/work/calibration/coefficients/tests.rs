use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::work::{LLAMA3_8B_A100, PROFILES};

/// What goes wrong with what share of the first tokens.
#[derive(Debug, Clone, Copy, Default)]
struct Trouble {
    /// The engine had a part of the prompt in its cache, and nobody knew.
    hits: f64,
    /// Something ran there, and nobody knew.
    queues: f64,
    /// Relative deviation of every time.
    noise: f64,
}

/// Log-uniform between the two.
fn length(random: &mut StdRng, from: f64, to: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a length")]
    let length = (from * (to / from).powf(random.random::<f64>())) as u64;
    length
}

fn first_token(random: &mut StdRng, engine: &Profile, new_tokens: u64, trouble: Trouble) -> FirstToken {
    let computed =
        if random.random::<f64>() < trouble.hits { length(random, 1.0, as_f64(new_tokens)) } else { new_tokens };
    let queue = if random.random::<f64>() < trouble.queues { 1.0 + 3.0 * random.random::<f64>() } else { 1.0 };
    let noise = 1.0 + trouble.noise * (2.0 * random.random::<f64>() - 1.0);
    let seconds = engine.prefill_s(computed, new_tokens - computed) * queue * noise + 0.004 * random.random::<f64>();
    FirstToken { new_tokens, cached_tokens: 0, seconds }
}

fn learned(prior: Profile, engine: &Profile, times: usize, seed: u64, trouble: Trouble) -> Profile {
    let (mut coefficients, mut random) = (Coefficients::new(prior), StdRng::seed_from_u64(seed));
    for _ in 0..times {
        let new_tokens = length(&mut random, 32.0, 120_000.0);
        coefficients.add(first_token(&mut random, engine, new_tokens, trouble));
    }
    *coefficients.profile()
}

/// How far b and d are from those of the engine, as shares of these; the worse of the two.
fn deviation(found: &Profile, engine: &Profile) -> f64 {
    let b = found.per_token_s / engine.per_token_s;
    let d = found.per_token_pair_s / engine.per_token_pair_s;
    (b - 1.0).abs().max((d - 1.0).abs())
}

fn engine(prior: Profile, b: f64, d: f64) -> Profile {
    Profile { per_token_s: prior.per_token_s * b, per_token_pair_s: prior.per_token_pair_s * d, ..prior }
}

/// The worst deviation over engines that differ from what is believed of them, profiles, and seeds.
fn worst(trouble: Trouble, times: usize) -> f64 {
    let factors = [(1.0, 1.0), (0.5, 0.5), (2.0, 2.0), (3.0, 3.0), (0.5, 3.0), (1.4, 0.7)];
    let cases = PROFILES.into_iter().flat_map(|prior| factors.map(|(b, d)| (prior, engine(prior, b, d))));
    let cases = cases.flat_map(|(prior, engine)| (0..10).map(move |seed| (prior, engine, seed)));
    let deviations =
        cases.map(|(prior, engine, seed)| deviation(&learned(prior, &engine, times, seed, trouble), &engine));
    deviations.fold(0.0, f64::max)
}

const TROUBLE: Trouble = Trouble { hits: 0.2, queues: 0.1, noise: 0.05 };

#[test]
fn the_coefficients_of_an_engine_that_is_not_as_believed_are_found() {
    let found = worst(Trouble { noise: 0.05, ..Trouble::default() }, 160);
    assert!(found < 0.15, "{found}");
}

#[test]
fn one_prompt_in_five_that_was_cached_and_one_in_ten_that_queued_mislead_nobody() {
    let found = worst(TROUBLE, 304);
    assert!(found < 0.15, "{found}");
}

#[test]
fn where_the_quadratic_part_is_too_small_to_be_told_the_times_are_right_all_the_same() {
    for prior in PROFILES {
        let engine = engine(prior, 3.0, 0.5);
        for seed in 0..10 {
            let found = learned(prior, &engine, 304, seed, TROUBLE);
            for tokens in [100, 1_000, 10_000, 50_000, 120_000] {
                let share = found.prefill_s(tokens, 0) / engine.prefill_s(tokens, 0);
                assert!((0.9..1.1).contains(&share), "{tokens}: {share}");
            }
        }
    }
}

#[test]
fn an_engine_that_is_slower_in_everything_is_found_too() {
    for speed in [1.0 / 3.0, 2.0] {
        for seed in 0..10 {
            let engine = LLAMA3_8B_A100.at_speed(speed);
            let found = deviation(&learned(LLAMA3_8B_A100, &engine, 304, seed, TROUBLE), &engine);
            assert!(found < 0.15, "{speed}: {found}");
        }
    }
}

#[test]
fn before_long_prompts_were_seen_d_follows_b() {
    let (mut coefficients, mut random) = (Coefficients::new(LLAMA3_8B_A100), StdRng::seed_from_u64(1));
    let engine = LLAMA3_8B_A100.at_speed(0.5);
    for _ in 0..200 {
        let new_tokens = length(&mut random, 100.0, 2_000.0);
        coefficients.add(first_token(&mut random, &engine, new_tokens, Trouble::default()));
    }
    let (found, factor) = (coefficients.profile(), |found: f64, before: f64| found / before);
    let b = factor(found.per_token_s, LLAMA3_8B_A100.per_token_s);
    let d = factor(found.per_token_pair_s, LLAMA3_8B_A100.per_token_pair_s);
    assert!((1.8..2.2).contains(&b) && (1.5..2.5).contains(&d), "{b} {d}");
}

#[test]
fn a_single_time_is_not_believed_and_absurd_ones_stay_within_the_range() {
    let time = |new_tokens, seconds| FirstToken { new_tokens, cached_tokens: 0, seconds };
    let mut coefficients = Coefficients::new(LLAMA3_8B_A100);
    coefficients.add(time(500, 1.0));
    assert!((coefficients.profile().per_token_s / LLAMA3_8B_A100.per_token_s) < 2.0, "{coefficients:?}");
    for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        coefficients.add(time(500, seconds));
    }
    assert_eq!(coefficients.times(), 1);
    for seconds in [1e-9, 1e9] {
        let mut coefficients = Coefficients::new(LLAMA3_8B_A100);
        (0..1_000).for_each(|number| coefficients.add(time(number * 100, seconds)));
        let found = coefficients.profile();
        for factor in
            [found.per_token_s / LLAMA3_8B_A100.per_token_s, found.per_token_pair_s / LLAMA3_8B_A100.per_token_pair_s]
        {
            assert!((0.249..=4.001).contains(&factor), "{factor}");
        }
        assert!(found.prefill_s(1, 0) > 0.0 && found.prefill_s(100_000, 0).is_finite());
    }
}

#[test]
fn what_is_known_to_be_cached_is_no_surprise() {
    let mut coefficients = Coefficients::new(LLAMA3_8B_A100);
    for number in 1..200 {
        let (new_tokens, cached_tokens) = (number * 50, number * 200);
        let seconds = LLAMA3_8B_A100.prefill_s(new_tokens, cached_tokens);
        coefficients.add(FirstToken { new_tokens, cached_tokens, seconds });
    }
    let (found, before) = (coefficients.profile(), LLAMA3_8B_A100);
    assert!((found.per_token_s / before.per_token_s - 1.0).abs() < 0.01);
    assert!((found.per_token_pair_s / before.per_token_pair_s - 1.0).abs() < 0.02);
}
