//! How much a key may be used: requests and prompt tokens a minute, and requests at once.
//!
//! `pingora-limits` counts rates in whole windows, which lets twice the limit through across the border of two and
//! cannot say when there will be room. So rates are measured here as a bucket that holds a minute's worth, is filled
//! steadily, and may be emptied at once.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Denial;

const MINUTE: Duration = Duration::from_secs(60);

/// The limits of one key. `None` is no limit; all are at least 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyLimits {
    /// Requests a minute, whatever they are for.
    pub requests_per_minute: Option<u64>,
    /// Estimated prompt tokens a minute, of requests that make a model work.
    pub tokens_per_minute: Option<u64>,
    /// Requests that run at once.
    pub max_concurrent: Option<usize>,
}

/// What is left of one key's limits.
#[derive(Debug)]
pub(super) struct Quota {
    requests: Option<Arc<Rate>>,
    tokens: Option<Arc<Rate>>,
}

impl Quota {
    /// Limits of a key; those of a known one are used up as far as they were.
    pub(super) fn new(limits: &KeyLimits, before: Option<&Self>, now: Instant) -> Self {
        Self {
            requests: Rate::continued(
                limits.requests_per_minute,
                before.and_then(|quota| quota.requests.as_ref()),
                now,
            ),
            tokens: Rate::continued(limits.tokens_per_minute, before.and_then(|quota| quota.tokens.as_ref()), now),
        }
    }

    pub(super) fn take_request(&self, now: Instant) -> Result<(), Denial> {
        let taken = self.requests.as_ref().map_or(Ok(()), |rate| rate.take(1, now));
        taken.map_err(|wait| Denial::RequestRate { retry_after_seconds: whole_seconds(wait) })
    }

    pub(super) fn take_tokens(&self, tokens: u64, now: Instant) -> Result<(), Denial> {
        let taken = self.tokens.as_ref().map_or(Ok(()), |rate| rate.take(tokens, now));
        taken.map_err(|wait| Denial::TokenRate { retry_after_seconds: whole_seconds(wait) })
    }
}

/// Rounded up, so that nobody comes too early.
fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// A bucket of units, filled with `per_minute` of them in a minute, which is also what it holds.
#[derive(Debug)]
struct Rate {
    per_minute: u64,
    full_at: Mutex<Instant>,
}

impl Rate {
    fn new(per_minute: u64, full_at: Instant) -> Self {
        Self { per_minute, full_at: Mutex::new(full_at) }
    }

    /// The same bucket when its size stays, so that requests from before the change count in it too; else one of the
    /// new size that owes as many units.
    fn continued(per_minute: Option<u64>, before: Option<&Arc<Self>>, now: Instant) -> Option<Arc<Self>> {
        let per_minute = per_minute?;
        let Some(before) = before else { return Some(Arc::new(Self::new(per_minute, now))) };
        if before.per_minute == per_minute {
            return Some(Arc::clone(before));
        }
        let owed = before.full_at.lock().saturating_duration_since(now);
        let nanos = owed.as_nanos().saturating_mul(u128::from(before.per_minute)) / u128::from(per_minute);
        Some(Arc::new(Self::new(per_minute, now + at_most_a_year(nanos))))
    }

    /// Takes units out, or says how long to wait for them. More than a full bucket are given by a full one, which is
    /// then empty for longer than a minute.
    fn take(&self, units: u64, now: Instant) -> Result<(), Duration> {
        let mut full_at = self.full_at.lock();
        let owed = full_at.saturating_duration_since(now);
        let owed_after = owed + self.time_to_fill(units);
        if owed_after > MINUTE && !owed.is_zero() {
            return Err(owed.min(owed_after - MINUTE));
        }
        *full_at = now + owed_after;
        Ok(())
    }

    /// At most a year.
    fn time_to_fill(&self, units: u64) -> Duration {
        at_most_a_year(MINUTE.as_nanos() * u128::from(units) / u128::from(self.per_minute))
    }
}

fn at_most_a_year(nanos: u128) -> Duration {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    u64::try_from(nanos).map_or(YEAR, Duration::from_nanos).min(YEAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_minutes_worth_may_be_used_at_once_and_comes_back_steadily() {
        let start = Instant::now();
        let rate = Rate::new(6, start);
        assert!((0..6).all(|_| rate.take(1, start).is_ok()));
        assert_eq!(rate.take(1, start), Err(10 * SECOND));
        assert_eq!(rate.take(1, start + 9 * SECOND), Err(SECOND));
        assert_eq!(rate.take(1, start + 10 * SECOND), Ok(()));
        assert_eq!(rate.take(1, start + 10 * SECOND), Err(10 * SECOND));
        let later = start + 600 * SECOND;
        assert_eq!((0..20).filter(|_| rate.take(1, later).is_ok()).count(), 6, "not more than a minute's worth");
    }

    #[test]
    fn what_is_refused_is_not_counted() {
        let start = Instant::now();
        let rate = Rate::new(60, start);
        assert_eq!(rate.take(50, start), Ok(()));
        assert!((0..100).all(|_| rate.take(11, start) == Err(SECOND)));
        assert_eq!(rate.take(10, start), Ok(()));
    }

    #[test]
    fn more_than_a_minutes_worth_is_given_by_a_full_bucket_and_paid_for() {
        let start = Instant::now();
        let rate = Rate::new(60, start);
        assert_eq!(rate.take(1, start), Ok(()));
        assert_eq!(rate.take(180, start), Err(SECOND));
        assert_eq!(rate.take(180, start + SECOND), Ok(()));
        assert_eq!(rate.take(1, start + SECOND), Err(121 * SECOND));
        assert_eq!(rate.take(u64::MAX, start + 181 * SECOND), Ok(()));
        assert!(rate.take(1, start + 181 * SECOND).is_err());
    }

    #[test]
    fn a_bucket_of_another_size_owes_as_many_units() {
        let start = Instant::now();
        let old = Arc::new(Rate::new(60, start));
        assert_eq!(old.take(30, start), Ok(()));
        let rate = Rate::continued(Some(40), Some(&old), start).unwrap();
        assert_eq!((0..40).filter(|_| rate.take(1, start).is_ok()).count(), 10);
        let rate = Rate::continued(Some(u64::MAX), Some(&old), start).unwrap();
        assert_eq!(rate.take(1 << 60, start), Ok(()));
        assert!(Rate::continued(None, Some(&old), start).is_none());
    }

    #[test]
    fn a_request_that_asks_for_nothing_takes_nothing() {
        let start = Instant::now();
        let rate = Rate::new(1, start);
        assert_eq!(rate.take(1, start), Ok(()));
        assert_eq!(rate.take(0, start), Ok(()));
    }

    #[test]
    fn waits_are_whole_seconds_rounded_up() {
        let waits = [Duration::ZERO, Duration::from_nanos(1), SECOND, SECOND + Duration::from_nanos(1)];
        assert_eq!(waits.map(whole_seconds), [1, 1, 1, 2]);
    }
}
