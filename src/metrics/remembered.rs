//! A family whose first series are found without its lock and its hash: of closed lists of labels all there are.

use std::hash::Hash;
use std::sync::OnceLock;

use prometheus_client::metrics::family::{Family, MetricConstructor};

/// More series than this are looked up.
const REMEMBERED: usize = 32;

/// The family, with what has been found in it so far. For families that no series is ever taken out of.
pub(super) struct Remembered<L, M, C = fn() -> M> {
    family: Family<L, M, C>,
    found: [OnceLock<(L, M)>; REMEMBERED],
}

impl<L, M, C> std::fmt::Debug for Remembered<L, M, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remembered").finish_non_exhaustive()
    }
}

impl<L: Copy + Eq + Hash, M: Clone, C: MetricConstructor<M>> Remembered<L, M, C> {
    pub(super) fn of(family: Family<L, M, C>) -> Self {
        Self { family, found: [const { OnceLock::new() }; REMEMBERED] }
    }

    /// Does something with the series of these labels.
    pub(super) fn with(&self, labels: &L, count: impl FnOnce(&M)) {
        for place in &self.found {
            // Whoever comes first takes a place; who comes second looks at the next one.
            let (of, series) = place.get_or_init(|| (*labels, self.family.get_or_create_owned(labels)));
            if of == labels {
                return count(series);
            }
        }
        count(&self.family.get_or_create_owned(labels));
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::EncodeLabelSet;
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
    struct Labels {
        number: u64,
    }

    #[test]
    fn every_series_is_the_familys_own_also_beyond_those_that_are_remembered() {
        let family = Family::<Labels, Counter>::default();
        let remembered = Remembered::of(family.clone());
        let numbers = || 0..2 * REMEMBERED as u64;
        for _ in 0..3 {
            numbers().for_each(|number| {
                remembered.with(&Labels { number }, |counter| {
                    counter.inc();
                })
            });
        }
        for number in numbers() {
            assert_eq!(family.get_or_create(&Labels { number }).get(), 3, "{number}");
        }
    }
}
