//! Work on all cores, with results that do not depend on how many there are.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;

/// Told how far it is.
pub trait Observer: Sync {
    /// So many more simulations will be run.
    fn planned(&self, _simulations: usize) {}

    /// One has been run.
    fn finished(&self) {}
}

/// Nobody watches.
impl Observer for () {}

/// Works on all cases, at most `threads` at once, and gives the results in their order.
pub(crate) fn in_parallel<C: Sync, R: Send>(
    cases: &[C],
    threads: usize,
    observer: &dyn Observer,
    work: impl Fn(&C) -> R + Sync,
) -> Vec<R> {
    observer.planned(cases.len());
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, cases.len().max(1)) {
            scope.spawn(|| {
                while let Some((index, case)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    cases.get(index).map(|case| (index, case))
                } {
                    let result = work(case);
                    results.lock().push((index, result));
                    observer.finished();
                }
            });
        }
    });
    let mut results = results.into_inner();
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// The cores of this machine.
#[must_use]
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Counts(AtomicUsize, AtomicUsize);

    impl Observer for Counts {
        fn planned(&self, simulations: usize) {
            self.0.fetch_add(simulations, Ordering::Relaxed);
        }
        fn finished(&self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn results_come_in_the_order_of_the_cases_and_all_are_counted() {
        let cases: Vec<usize> = (0..100).collect();
        for threads in [0, 1, 3, 200] {
            let counts = Counts::default();
            let squares = in_parallel(&cases, threads, &counts, |case| case * case);
            assert_eq!(squares, cases.iter().map(|case| case * case).collect::<Vec<_>>());
            assert_eq!((counts.0.into_inner(), counts.1.into_inner()), (100, 100));
        }
        assert_eq!(in_parallel(&[], 2, &(), |case: &usize| *case), [0; 0]);
    }
}
