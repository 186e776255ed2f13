//! What is known of one server's engine.

use std::time::{Duration, Instant};

use super::tally::PromptTally;
use crate::work::EngineState;

/// What is known of one server's engine. Kept by each server, and changed by the loop that asks it; the proxy adds to its
/// tally.
#[derive(Debug, Default)]
pub struct EngineReport {
    /// How busy it was when it last said so.
    pub observed: Option<Observed>,
    /// The most tokens of a request with its answer, as it has said.
    pub max_model_len: Option<u64>,
    /// The prompts that it was sent lately.
    pub prompts: PromptTally,
}

/// How busy an engine was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observed {
    /// What it reported.
    pub state: EngineState,
    /// How many requests it had beyond those that were counted for it here; below 0 when it had fewer.
    pub drift_requests: f64,
    /// When that was.
    pub at: Instant,
    /// For how long it counts.
    pub valid_for: Duration,
}

impl EngineReport {
    /// Nobody asks any more: what was observed is forgotten.
    pub fn rest(&mut self) {
        self.observed = None;
        self.prompts.stop();
    }
}

impl Observed {
    /// Whether it still counts.
    #[must_use]
    pub fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < self.valid_for
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_observed_counts_for_a_while() {
        let at = Instant::now();
        let second = Duration::from_secs(1);
        let observed = Observed { state: EngineState::default(), drift_requests: 0.0, at, valid_for: 3 * second };
        let fresh = [0, 2, 3, 100].map(|seconds| observed.is_fresh(at + seconds * second));
        assert_eq!(fresh, [true, true, false, false]);
        let mut report = EngineReport { observed: Some(observed), max_model_len: Some(9), ..EngineReport::default() };
        report.rest();
        assert_eq!((report.observed, report.max_model_len), (None, Some(9)));
    }
}
