//! How servers become alike again, and what that means for a choice between them.
//!
//! A request that goes where there are fewer streams is soon followed by others that do so too. While its answer is
//! generated, as many requests come to each server as it has streams, and each of them evens one stream out; besides, what
//! is there ends after half of that time. So of what makes one server's decode steps longer than those of the others now, only
//! a share of about
//!
//! ```text
//! 1 / (2 + streams of a server in the mean)
//! ```
//!
//! makes the answer take longer: with twenty streams on each, one stream less is not worth a prompt that waits there.

/// What differences between servers are worth now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Evening {
    /// The mean decode step of all servers that the request may go to, in seconds.
    mean_step_s: f64,
    /// The share of a difference from it that lasts while an answer is generated, 0 to 1.
    lasting: f64,
}

impl Evening {
    /// Differences last.
    pub(super) const NONE: Self = Self { mean_step_s: 0.0, lasting: 1.0 };

    /// Of servers with so many requests and decode steps of so many seconds, in the mean.
    pub(super) fn of(mean_active: f64, mean_step_s: f64) -> Self {
        Self { mean_step_s, lasting: 1.0 / (2.0 + mean_active) }
    }

    /// What a decode step takes in the mean while an answer is generated.
    ///
    /// `step_s`: what it takes now; `idle_step_s`: what it takes when the server has nothing else to do. A server whose steps are
    /// longer than those of the others even then is a slow one, and stays so.
    pub(super) fn step_s(self, step_s: f64, idle_step_s: f64) -> f64 {
        let level_s = self.mean_step_s.max(idle_step_s);
        level_s + self.lasting * (step_s - level_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-12
    }

    #[test]
    fn the_more_streams_there_are_the_sooner_is_a_difference_evened_out() {
        let step_s = |mean_active| Evening::of(mean_active, 0.020).step_s(0.024, 0.013);
        assert!(close(step_s(0.0), 0.022) && close(step_s(2.0), 0.021) && close(step_s(18.0), 0.0202));
        assert!(close(Evening::of(18.0, 0.020).step_s(0.016, 0.013), 0.0198));
        assert!(close(Evening::NONE.step_s(0.024, 0.013), 0.024) && close(Evening::NONE.step_s(0.016, 0.013), 0.016));
    }

    #[test]
    fn a_slow_server_stays_slow() {
        let evening = Evening::of(18.0, 0.020);
        assert!(close(evening.step_s(0.026, 0.026), 0.026) && close(evening.step_s(0.028, 0.026), 0.0261));
    }
}
