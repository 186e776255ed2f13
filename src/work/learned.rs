//! What is learned of the traffic: what counts as long, how much is written, how much of the work is long.

use super::book::{nanoseconds, seconds};
use super::profile::as_f64;
use super::window::{MedianWindow, MinuteSums, Work};

/// Requests whose median says what is usual.
const MEDIAN_REQUESTS: usize = 2_000;

/// From how many on it is believed: when the first request is a long one, the median is no measure.
const LEAST_MEDIAN_REQUESTS: usize = 100;

/// A prefill is long when it takes so many times the median.
const LONG_FACTOR: f64 = 5.0;

/// No prefill below this counts as long: it blocks nobody for longer than people notice.
const LEAST_LONG_S: f64 = 2.0;

/// Output tokens that are expected before any request has ended: an answer of a chat.
const FIRST_MEAN_OUTPUT_TOKENS: f64 = 200.0;

/// How many requests that first guess weighs.
const FIRST_MEAN_WEIGHT: f64 = 10.0;

/// The mean follows the traffic: what is further back than about so many requests fades.
const MEAN_REQUESTS: f64 = 1_000.0;

/// Statistics of the traffic, updated at each arrival and end.
#[derive(Debug)]
pub struct Learned {
    prefills_ns: MedianWindow,
    minute: MinuteSums,
    mean_output_tokens: f64,
    mean_weight: f64,
    mean_prefill_s: f64,
    mean_prompt_tokens: f64,
    arrivals: f64,
    long_from_tokens: Option<u64>,
    long_from_s: f64,
}

impl Learned {
    /// Nothing learned yet. With `long_from_tokens` what counts as long is pinned.
    #[must_use]
    pub fn new(long_from_tokens: Option<u64>) -> Self {
        Self {
            prefills_ns: MedianWindow::new(MEDIAN_REQUESTS),
            minute: MinuteSums::default(),
            mean_output_tokens: FIRST_MEAN_OUTPUT_TOKENS,
            mean_weight: FIRST_MEAN_WEIGHT,
            mean_prefill_s: 0.0,
            mean_prompt_tokens: 0.0,
            arrivals: 0.0,
            long_from_tokens,
            long_from_s: LEAST_LONG_S,
        }
    }

    /// Pins what counts as long, or lets it follow the traffic.
    pub fn pin(&mut self, long_from_tokens: Option<u64>) {
        self.long_from_tokens = long_from_tokens;
    }

    /// tau: from how many prefill seconds on a request is long: 5 times the median of the last 2,000, at least 2 s.
    #[must_use]
    pub fn long_from_s(&self) -> f64 {
        self.long_from_s
    }

    /// Whether so much prefill is long. A pin in tokens is compared with the new tokens: a prompt that a server still holds
    /// blocks nobody, however long it is.
    #[must_use]
    pub fn is_long(&self, prefill_s: f64, new_tokens: u64) -> bool {
        match self.long_from_tokens {
            Some(least) => new_tokens >= least,
            None => prefill_s >= self.long_from_s,
        }
    }

    /// m: mean output tokens.
    #[must_use]
    pub fn mean_output_tokens(&self) -> f64 {
        self.mean_output_tokens
    }

    /// Mean prefill seconds of the requests that came lately; 0 before the first.
    #[must_use]
    pub fn mean_prefill_s(&self) -> f64 {
        self.mean_prefill_s
    }

    /// Mean prompt tokens of the same.
    #[must_use]
    pub fn mean_prompt_tokens(&self) -> f64 {
        self.mean_prompt_tokens
    }

    /// The long requests' share of the work of the last 60 seconds, 0 to 1.
    #[must_use]
    pub fn long_share(&self) -> f64 {
        let Work { all_ns, long_ns, .. } = self.minute.sum();
        if all_ns == 0 { 0.0 } else { seconds(long_ns) / seconds(all_ns) }
    }

    /// Long prefill seconds that arrive per second.
    #[must_use]
    pub fn long_prefill_rate(&self, now_s: f64) -> f64 {
        seconds(self.minute.sum().long_prefill_ns) / self.minute.span_s(now_s)
    }

    /// Lets time go by.
    pub fn pass(&mut self, now_s: f64) {
        self.minute.pass(now_s);
    }

    /// Notes a request that has arrived: its prompt, its prefill, and the seconds that its answer will take of the engine.
    pub fn arrived(&mut self, prompt_tokens: u64, prefill_s: f64, decode_s: f64, is_long: bool, now_s: f64) {
        self.arrivals = (self.arrivals + 1.0).min(MEAN_REQUESTS);
        self.mean_prefill_s += (prefill_s - self.mean_prefill_s) / self.arrivals;
        self.mean_prompt_tokens += (as_f64(prompt_tokens) - self.mean_prompt_tokens) / self.arrivals;
        self.prefills_ns.add(nanoseconds(prefill_s));
        let median = self.prefills_ns.median().filter(|_| self.prefills_ns.len() >= LEAST_MEDIAN_REQUESTS);
        let median_s = median.map_or(0.0, seconds);
        self.long_from_s = (LONG_FACTOR * median_s).max(LEAST_LONG_S);
        let (all_ns, prefill_ns) = (nanoseconds(prefill_s + decode_s), nanoseconds(prefill_s));
        let (long_ns, long_prefill_ns) = if is_long { (all_ns, prefill_ns) } else { (0, 0) };
        self.minute.add(Work { all_ns, long_ns, long_prefill_ns }, now_s);
    }

    /// Notes how much a request has written that came to its proper end.
    pub fn wrote(&mut self, tokens: f64) {
        self.mean_weight = (self.mean_weight + 1.0).min(MEAN_REQUESTS);
        self.mean_output_tokens += (tokens - self.mean_output_tokens) / self.mean_weight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_is_five_times_the_median_and_at_least_two_seconds() {
        let mut learned = Learned::new(None);
        assert!(!learned.is_long(1.9, 1) && learned.is_long(2.0, 1));
        (0..3_000).for_each(|_| learned.arrived(100, 1.0, 0.0, false, 0.0));
        assert!((learned.long_from_s() - 5.0).abs() < 1e-9);
        (0..2_000).for_each(|_| learned.arrived(100, 0.1, 0.0, false, 0.0));
        assert!((learned.long_from_s() - 2.0).abs() < 1e-9);
    }

    #[test]
    fn the_first_few_requests_do_not_say_what_is_usual() {
        let mut learned = Learned::new(None);
        (0..99).for_each(|_| learned.arrived(100, 10.0, 0.0, true, 0.0));
        assert!(learned.is_long(2.0, 1));
        learned.arrived(100, 10.0, 0.0, true, 0.0);
        assert!(!learned.is_long(49.0, 1));
    }

    #[test]
    fn a_pin_compares_tokens() {
        let learned = Learned::new(Some(32_768));
        assert!(learned.is_long(0.0, 32_768) && !learned.is_long(99.0, 32_767));
    }

    #[test]
    fn the_share_of_long_work_is_of_the_last_minute() {
        let mut learned = Learned::new(None);
        assert!(learned.long_share().abs() < 1e-9);
        learned.arrived(100, 6.0, 0.0, true, 0.0);
        assert!((learned.mean_prefill_s() - 6.0).abs() < 1e-9 && (learned.mean_prompt_tokens() - 100.0).abs() < 1e-9);
        learned.arrived(100, 1.0, 1.0, false, 10.0);
        assert!((learned.long_share() - 0.75).abs() < 1e-9);
        assert!((learned.long_prefill_rate(10.0) - 0.6).abs() < 1e-9);
        learned.pass(65.0);
        assert!(learned.long_share().abs() < 1e-9);
    }

    #[test]
    fn the_mean_output_begins_with_a_guess_and_follows_the_traffic() {
        let mut learned = Learned::new(None);
        learned.wrote(200.0);
        assert!((learned.mean_output_tokens() - 200.0).abs() < 1e-9);
        (0..5_000).for_each(|_| learned.wrote(50.0));
        assert!((learned.mean_output_tokens() - 50.0).abs() < 2.0);
    }
}
