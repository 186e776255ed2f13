//! The part of a run that is worth looking at: where short requests waited longest.

use super::scale::time;
use crate::simulate::as_f64;
use crate::simulate::outcome::{LONG_FROM_TOKENS, Timing};
use crate::simulate::study::Study;
use crate::simulate::timeline::Window;

/// Seconds that are drawn.
const SPAN_S: f64 = 120.0;

/// The begin is moved by so much at a time.
const STEP_S: f64 = 5.0;

/// Who waits longer is counted.
const LONG_WAIT_S: f64 = 2.0;

/// The window in which the short requests that arrived waited longest in all, with the first seed.
pub(super) fn of(study: &Study, load: usize, contender: usize) -> Window {
    let short = short(study, load, contender);
    let begin_s = short.first().map_or(0.0, |timing| timing.arrival_s);
    let last_s = short.last().map_or(0.0, |timing| timing.arrival_s);
    let (mut best, mut from_s) = ((-1.0, begin_s), begin_s);
    let (mut first, mut next, mut sum) = (0, 0, 0.0);
    while from_s <= (last_s - SPAN_S).max(begin_s) {
        while next < short.len() && short[next].arrival_s < from_s + SPAN_S {
            sum += short[next].ttft_s();
            next += 1;
        }
        while first < next && short[first].arrival_s < from_s {
            sum -= short[first].ttft_s();
            first += 1;
        }
        best = if sum > best.0 { (sum, from_s) } else { best };
        from_s += STEP_S;
    }
    Window { from_s: best.1, to_s: best.1 + SPAN_S }
}

/// How the short requests that arrived in a window fared, in words.
pub(super) fn waited(study: &Study, load: usize, contender: usize, window: Window) -> String {
    let short = short(study, load, contender);
    let within: Vec<f64> = short
        .iter()
        .filter(|timing| (window.from_s..window.to_s).contains(&timing.arrival_s))
        .map(|timing| timing.ttft_s())
        .collect();
    let count = within.len();
    let long = within.iter().filter(|ttft_s| **ttft_s > LONG_WAIT_S).count();
    let mean_s = within.iter().sum::<f64>() / as_f64(count.max(1) as u64);
    let most_s = within.iter().copied().fold(0.0, f64::max);
    format!(
        "{long} of {count} short requests wait more than {}, {} on average, {} at most",
        time(LONG_WAIT_S),
        time(mean_s),
        time(most_s)
    )
}

fn short(study: &Study, load: usize, contender: usize) -> Vec<Timing> {
    let timings = study.runs(load, contender)[0].timings.iter().zip(&study.jobs[0]);
    timings.filter(|(_, job)| job.prompt_tokens < LONG_FROM_TOKENS).map(|(timing, _)| *timing).collect()
}
