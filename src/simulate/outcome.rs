//! What came out: the times of each request, and their distributions.

use super::trace::{Job, as_f64};

/// Prompts of so many tokens and more are called long in the tables, whatever a policy calls long.
pub(super) const LONG_FROM_TOKENS: u64 = 32_768;

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

    fn ttft_s(&self) -> f64 {
        self.first_s - self.arrival_s
    }

    fn latency_s(&self) -> f64 {
        self.end_s - self.arrival_s
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
    fn of(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let at = |percent: usize| values[(count * percent / 100).min(count - 1)];
        let mean = values.iter().sum::<f64>() / as_f64(count as u64);
        Self { count, mean, p50: at(50), p90: at(90), p99: at(99) }
    }
}

/// A simulation in numbers. Seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
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
    /// From the first arrival to the last token.
    pub makespan_s: f64,
}

impl Summary {
    pub(super) fn of(jobs: &[Job], timings: &[Timing]) -> Self {
        let both = || jobs.iter().zip(timings);
        let is_long = |job: &Job| job.prompt_tokens >= LONG_FROM_TOKENS;
        let ttft = |long: bool| both().filter(move |(job, _)| is_long(job) == long).map(|(_, timing)| timing.ttft_s());
        let tpot = both().filter(|(job, _)| !is_long(job) && job.output_tokens > 1);
        let tpot = tpot.map(|(job, timing)| (timing.end_s - timing.first_s) / as_f64(job.output_tokens - 1));
        Self {
            short_ttft: Distribution::of(ttft(false).collect()),
            long_ttft: Distribution::of(ttft(true).collect()),
            ttft: Distribution::of(timings.iter().map(Timing::ttft_s).collect()),
            latency: Distribution::of(timings.iter().map(Timing::latency_s).collect()),
            short_tpot: Distribution::of(tpot.collect()),
            makespan_s: timings.iter().map(|timing| timing.end_s).fold(0.0, f64::max),
        }
    }
}
