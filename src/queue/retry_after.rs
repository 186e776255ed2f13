//! When is it worth coming back? An estimate for `Retry-After`, from how fast the queue has moved.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// The past that is looked at.
const WINDOW: Duration = Duration::from_secs(30);

/// More than this many are not remembered: the pace is then taken from the last ones.
const REMEMBERED: usize = 256;

/// While nothing has moved there is nothing to go by.
const UNKNOWN_SECONDS: u64 = 5;

/// Nobody is sent away for longer.
const LONGEST_SECONDS: u64 = 60;

/// When requests of one class were last served from the queue.
#[derive(Debug, Default)]
pub(super) struct Pace(VecDeque<Instant>);

impl Pace {
    /// One was served.
    pub(super) fn count(&mut self, now: Instant) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(now);
    }

    /// The time until so many who wait have been served, in whole seconds, 1 to [`LONGEST_SECONDS`].
    pub(super) fn seconds_for(&self, waiting: usize, now: Instant) -> u64 {
        let recent: Vec<_> = self.0.iter().filter(|at| now.duration_since(**at) <= WINDOW).collect();
        let Some(first) = recent.first() else {
            return UNKNOWN_SECONDS;
        };
        let each = now.duration_since(**first) / u32::try_from(recent.len()).unwrap_or(u32::MAX);
        let all = each.saturating_mul(u32::try_from(waiting + 1).unwrap_or(u32::MAX));
        let seconds = if all.subsec_nanos() > 0 { all.as_secs() + 1 } else { all.as_secs() };
        seconds.clamp(1, LONGEST_SECONDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(now: Instant, ages_ms: &[u64]) -> Pace {
        let mut pace = Pace::default();
        ages_ms.iter().for_each(|age| pace.count(now - Duration::from_millis(*age)));
        pace
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_is_what_those_ahead_take_at_the_present_pace() {
        tokio::time::advance(Duration::from_secs(100)).await;
        let now = Instant::now();
        let two_a_second = pace(now, &[2_000, 1_500, 1_000, 500]);
        assert_eq!(two_a_second.seconds_for(19, now), 10);
        assert_eq!(two_a_second.seconds_for(20, now), 11, "a part of a second counts as one");
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_at_least_a_second_and_at_most_a_minute() {
        tokio::time::advance(Duration::from_secs(100)).await;
        let now = Instant::now();
        assert_eq!(pace(now, &[10, 5]).seconds_for(0, now), 1);
        assert_eq!(pace(now, &[20_000]).seconds_for(1_000, now), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_recent_past_it_is_a_guess() {
        tokio::time::advance(Duration::from_secs(100)).await;
        let now = Instant::now();
        assert_eq!(pace(now, &[]).seconds_for(3, now), 5);
        assert_eq!(pace(now, &[31_000]).seconds_for(3, now), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_much_is_remembered() {
        tokio::time::advance(Duration::from_secs(100)).await;
        let now = Instant::now();
        let mut pace = Pace::default();
        (0..1_000).for_each(|_| pace.count(now));
        assert_eq!(pace.0.len(), REMEMBERED);
    }
}
