//! What an engine says of itself, and what follows for work that did not come through here.
//!
//! The book knows every request that it has dispatched, exactly. An engine that has more than that serves others too. The
//! difference is kept apart from the book: it is added to what a decision reads, less and less as the observation ages, and
//! never makes a server look idler than the book has it.

use super::book::Sums;
use super::profile::as_f64;

/// What an engine reports.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EngineState {
    /// Requests that it works on (`vllm:num_requests_running`).
    pub running: u64,
    /// Requests that wait in its queue (`vllm:num_requests_waiting`).
    pub waiting: u64,
    /// Share of its KV cache that is in use, 0 to 1 (`vllm:kv_cache_usage_perc`).
    pub kv_usage: Option<f64>,
}

/// What an engine has reported, beside what the book had of it at that time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// What it reported.
    pub engine: EngineState,
    /// What the book had.
    pub book: Sums,
    /// When.
    pub at_s: f64,
    /// For how many seconds it counts, less and less.
    pub valid_for_s: f64,
}

/// Work on an engine that did not come through here.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Foreign {
    /// Requests that run.
    pub(super) streams: f64,
    /// Tokens that they hold.
    pub(super) context_tokens: f64,
    /// Requests that wait.
    pub(super) waiting: f64,
}

impl Observation {
    /// How many requests more the engine has than the book; below 0 when it has fewer. A few are on their way at any time; a
    /// difference that stays is traffic from elsewhere, or a fault.
    #[must_use]
    pub fn drift_requests(&self) -> f64 {
        as_f64(self.engine.running.saturating_add(self.engine.waiting)) - self.own_requests()
    }

    /// How many requests the book had.
    #[must_use]
    pub fn own_requests(&self) -> f64 {
        as_f64(self.book.active())
    }

    /// What runs and waits there beyond the book, as far as it still counts. `kv_tokens`: the size of its cache; `mean_context_tokens`:
    /// what a request holds in the mean.
    pub(super) fn foreign(&self, kv_tokens: u64, mean_context_tokens: f64, now_s: f64) -> Foreign {
        let share = 1.0 - (now_s - self.at_s).max(0.0) / self.valid_for_s;
        // Also when it counts for no time at all, or for none that makes sense.
        if !(self.valid_for_s > 0.0 && share > 0.0) {
            return Foreign::default();
        }
        let more = self.drift_requests().max(0.0);
        let waiting = more.min(as_f64(self.engine.waiting.saturating_sub(self.book.waiting)));
        let streams = more - waiting;
        let held = self
            .engine
            .kv_usage
            .filter(|usage| usage.is_finite())
            .map(|usage| (usage.clamp(0.0, 1.0) * as_f64(kv_tokens) - as_f64(self.book.kv_tokens())).max(0.0));
        let context_tokens = held.unwrap_or(streams * mean_context_tokens);
        Foreign { streams: share * streams, context_tokens: share * context_tokens, waiting: share * waiting }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observation(running: u64, waiting: u64, kv_usage: Option<f64>) -> Observation {
        let book = Sums { waiting: 2, streams: 5, context_tokens: 5_000, waiting_tokens: 1_000, ..Sums::default() };
        Observation { engine: EngineState { running, waiting, kv_usage }, book, at_s: 10.0, valid_for_s: 10.0 }
    }

    fn foreign(observation: Observation, now_s: f64) -> [f64; 3] {
        let Foreign { streams, context_tokens, waiting } = observation.foreign(100_000, 1_000.0, now_s);
        [streams, context_tokens, waiting]
    }

    #[test]
    fn what_an_engine_has_beyond_the_book_is_from_elsewhere() {
        assert_eq!(foreign(observation(7, 0, None), 10.0), [0.0, 0.0, 0.0]);
        assert_eq!(foreign(observation(6, 1, None), 10.0), [0.0, 0.0, 0.0]);
        assert_eq!(foreign(observation(10, 0, None), 10.0), [3.0, 3_000.0, 0.0]);
        assert_eq!(foreign(observation(6, 6, None), 10.0), [1.0, 1_000.0, 4.0]);
        // Of its own requests two wait, wherever the engine has them.
        assert_eq!(foreign(observation(5, 4, None), 10.0), [0.0, 0.0, 2.0]);
        assert_eq!(foreign(observation(0, 0, None), 10.0), [0.0, 0.0, 0.0]);
        assert_eq!([7, 10, 3].map(|running| observation(running, 0, None).drift_requests()), [0.0, 3.0, -4.0]);
    }

    #[test]
    fn the_cache_tells_what_is_held_better_than_a_mean() {
        assert_eq!(foreign(observation(10, 0, Some(0.5)), 10.0), [3.0, 44_000.0, 0.0]);
        assert_eq!(foreign(observation(10, 0, Some(0.01)), 10.0), [3.0, 0.0, 0.0]);
        assert_eq!(foreign(observation(10, 0, Some(f64::NAN)), 10.0), [3.0, 3_000.0, 0.0]);
    }

    #[test]
    fn an_observation_counts_less_and_less_and_then_nothing() {
        assert_eq!(foreign(observation(10, 0, None), 15.0), [1.5, 1_500.0, 0.0]);
        assert_eq!(foreign(observation(10, 0, None), 20.0), [0.0; 3]);
        assert_eq!(foreign(observation(10, 0, None), 1e9), [0.0; 3]);
        for valid_for_s in [0.0, -1.0, f64::NAN] {
            assert_eq!(foreign(Observation { valid_for_s, ..observation(10, 0, None) }, 10.0), [0.0; 3]);
        }
    }
}
