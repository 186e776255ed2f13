//! So many in a second, and no more.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

const SECOND: Duration = Duration::from_secs(1);

/// What may be taken so often in a second. Nobody waits for it: where two ask at the same moment, one gets nothing.
#[derive(Debug)]
pub(super) struct Ration {
    most: u32,
    /// When the present second began, and how many were taken in it.
    taken: Mutex<(Option<Instant>, u32)>,
}

impl Ration {
    pub(super) fn of(most: u32) -> Self {
        Self { most, taken: Mutex::default() }
    }

    /// Whether one may be taken, which is then gone.
    pub(super) fn take(&self, now: Instant) -> bool {
        let Some(mut taken) = self.taken.try_lock() else { return false };
        if taken.0.is_none_or(|since| now.saturating_duration_since(since) >= SECOND) {
            *taken = (Some(now), 0);
        }
        let is_left = taken.1 < self.most;
        taken.1 += u32::from(is_left);
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_has_its_own() {
        let (ration, start) = (Ration::of(3), Instant::now());
        let taken = |after_ms: u64| {
            let now = start + Duration::from_millis(after_ms);
            (0..10).filter(|_| ration.take(now)).count()
        };
        assert_eq!([0, 999, 1_000, 1_500, 60_000].map(taken), [3, 0, 3, 0, 3]);
    }
}
