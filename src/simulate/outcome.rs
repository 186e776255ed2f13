//! What came out: the times of each request, and their distributions.

use super::slo::{Slo, share_met};
use super::traffic::{Job, as_f64};
use crate::work::Profile;

/// Prompts of so many tokens and more are called long in the tables, whatever a policy calls long.
pub const LONG_FROM_TOKENS: u64 = 32_768;

/// When things happened to a request, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// It arrived.
    pub arrival_s: f64,
    /// Its first token came.
    pub first_s: f64,
    /// Its last token came.
    pub end_s: f64,
}

impl Timing {
    pub(super) fn new(arrival_s: f64) -> Self {
        Self { arrival_s, first_s: arrival_s, end_s: arrival_s }
    }

    /// Time to first token.
    #[must_use]
    pub fn ttft_s(&self) -> f64 {
        self.first_s - self.arrival_s
    }

    /// From arrival to the last token.
    #[must_use]
    pub fn latency_s(&self) -> f64 {
        self.end_s - self.arrival_s
    }

    /// Time per output token after the first; an answer of one token has none.
    #[must_use]
    pub fn tpot_s(&self, job: &Job) -> Option<f64> {
        (job.output_tokens > 1).then(|| (self.end_s - self.first_s) / as_f64(job.output_tokens - 1))
    }
}

/// Mean and percentiles of some values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Distribution {
    /// How many.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Half of them are at most this.
    pub p50: f64,
    /// Nine of ten.
    pub p90: f64,
    /// Ninety-nine of a hundred.
    pub p99: f64,
}

impl Distribution {
    /// Of some values. All zero when there are none.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let at = |percent: usize| values[(count * percent / 100).min(count - 1)];
        let mean = values.iter().sum::<f64>() / as_f64(count as u64);
        Self { count, mean, p50: at(50), p90: at(90), p99: at(99) }
    }

    /// The means of several, figure by figure. Empty ones do not count.
    fn mean(of: impl Iterator<Item = Self>) -> Self {
        let of: Vec<Self> = of.filter(|distribution| distribution.count > 0).collect();
        let Some(first) = of.first() else { return Self::default() };
        let mean = |figure: fn(&Self) -> f64| mean_of(of.iter().map(figure));
        Self {
            count: first.count,
            mean: mean(|d| d.mean),
            p50: mean(|d| d.p50),
            p90: mean(|d| d.p90),
            p99: mean(|d| d.p99),
        }
    }
}

fn mean_of(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1);
    values.sum::<f64>() / as_f64(count as u64)
}

/// A simulation in numbers. Seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Summary {
    /// Time to first token of short requests.
    pub short_ttft: Distribution,
    /// Of long ones.
    pub long_ttft: Distribution,
    /// Of all.
    pub ttft: Distribution,
    /// From arrival to the last token, all.
    pub latency: Distribution,
    /// Time per output token after the first, short ones.
    pub short_tpot: Distribution,
    /// Of all.
    pub tpot: Distribution,
    /// The share of requests that met both targets, 0 to 1.
    pub met_share: f64,
    /// Requests per second that met both targets.
    pub goodput_per_s: f64,
    /// Requests per second.
    pub requests_per_s: f64,
    /// Generated tokens per second.
    pub output_tokens_per_s: f64,
    /// From the first arrival to the last token.
    pub makespan_s: f64,
}

impl Summary {
    /// Of the times of some jobs, in the same order, wherever they were measured.
    #[must_use]
    pub fn of(jobs: &[Job], timings: &[Timing], slo: &Slo, profile: &Profile) -> Self {
        let both = || jobs.iter().zip(timings);
        let is_long = |job: &Job| job.prompt_tokens >= LONG_FROM_TOKENS;
        let ttft = |long: bool| both().filter(move |(job, _)| is_long(job) == long).map(|(_, timing)| timing.ttft_s());
        let tpot = both().filter_map(|(job, timing)| timing.tpot_s(job));
        let short_tpot = both().filter(|(job, _)| !is_long(job)).filter_map(|(job, timing)| timing.tpot_s(job));
        let begin_s = timings.iter().map(|timing| timing.arrival_s).fold(f64::INFINITY, f64::min);
        let end_s = timings.iter().map(|timing| timing.end_s).fold(0.0, f64::max);
        let makespan_s = (end_s - begin_s).max(1e-9);
        let (count, tokens) = (jobs.len() as u64, jobs.iter().map(|job| job.output_tokens).sum());
        let met_share = share_met(slo, profile, jobs, timings);
        Self {
            short_ttft: Distribution::of(ttft(false).collect()),
            long_ttft: Distribution::of(ttft(true).collect()),
            ttft: Distribution::of(timings.iter().map(Timing::ttft_s).collect()),
            latency: Distribution::of(timings.iter().map(Timing::latency_s).collect()),
            short_tpot: Distribution::of(short_tpot.collect()),
            tpot: Distribution::of(tpot.collect()),
            met_share,
            goodput_per_s: met_share * as_f64(count) / makespan_s,
            requests_per_s: as_f64(count) / makespan_s,
            output_tokens_per_s: as_f64(tokens) / makespan_s,
            makespan_s,
        }
    }

    /// The means of several, figure by figure.
    #[must_use]
    pub fn mean(of: &[Self]) -> Self {
        let all = |part: fn(&Self) -> Distribution| Distribution::mean(of.iter().map(part));
        let mean = |figure: fn(&Self) -> f64| mean_of(of.iter().map(figure));
        Self {
            short_ttft: all(|summary| summary.short_ttft),
            long_ttft: all(|summary| summary.long_ttft),
            ttft: all(|summary| summary.ttft),
            latency: all(|summary| summary.latency),
            short_tpot: all(|summary| summary.short_tpot),
            tpot: all(|summary| summary.tpot),
            met_share: mean(|summary| summary.met_share),
            goodput_per_s: mean(|summary| summary.goodput_per_s),
            requests_per_s: mean(|summary| summary.requests_per_s),
            output_tokens_per_s: mean(|summary| summary.output_tokens_per_s),
            makespan_s: mean(|summary| summary.makespan_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::LLAMA3_8B_A100;

    fn summary() -> Summary {
        let jobs = [Job::new(0.0, 100, 11), Job::new(1.0, 50_000, 1), Job::new(2.0, 100, 21)];
        let timing = |arrival_s, first_s, end_s| Timing { arrival_s, first_s, end_s };
        let timings = [timing(0.0, 1.0, 2.0), timing(1.0, 9.0, 9.0), timing(2.0, 5.0, 10.0)];
        Summary::of(&jobs, &timings, &Slo::of(&LLAMA3_8B_A100), &LLAMA3_8B_A100)
    }

    #[test]
    fn times_and_rates_are_those_of_the_requests() {
        let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
        let summary = summary();
        close(summary.short_ttft.mean, 2.0);
        close(summary.long_ttft.mean, 8.0);
        close(summary.ttft.mean, 4.0);
        close(summary.latency.mean, 6.0);
        close(summary.tpot.mean, (0.1 + 0.25) / 2.0);
        close(summary.makespan_s, 10.0);
        close(summary.requests_per_s, 0.3);
        close(summary.output_tokens_per_s, 3.3);
        // The third came too late, and too slowly.
        close(summary.met_share, 2.0 / 3.0);
        close(summary.goodput_per_s, 0.2);
    }

    #[test]
    fn the_mean_of_summaries_is_that_of_each_figure_and_empty_parts_do_not_count() {
        let none = Summary { long_ttft: Distribution::default(), ..Summary::default() };
        let mean = Summary::mean(&[summary(), none]);
        assert!((mean.requests_per_s - 0.15).abs() < 1e-9);
        assert!((mean.long_ttft.mean - 8.0).abs() < 1e-9);
        assert_eq!(Summary::mean(&[summary()]), summary());
    }
}
