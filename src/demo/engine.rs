//! The simulated engine: what takes how long, and what waits for what.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

/// One engine. All waiting happens in futures that may be dropped at any moment: that is how work is abandoned.
#[derive(Debug)]
pub(super) struct Engine {
    prefill_tokens_per_second: NonZeroU64,
    token_interval: Duration,
    /// Held by the prompt that is being prefilled. Fair: prompts are served in the order of arrival.
    prefill: Mutex<()>,
    running: AtomicUsize,
    /// Of the running ones, those whose prompts wait for others'.
    waiting: AtomicUsize,
}

/// How a prefill went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prefill {
    /// Time spent behind the prompts of others.
    pub(super) queued: Duration,
    /// Time of the prefill itself.
    pub(super) took: Duration,
}

/// A request that is in the engine. It has left when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it says that the request is over"]
pub(super) struct Running<'a>(&'a AtomicUsize);

impl<'a> Running<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Relaxed, here and elsewhere: a number to look at, nothing is published through it.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Engine {
    pub(super) fn new(prefill_tokens_per_second: NonZeroU64, token_interval: Duration) -> Self {
        Self {
            prefill_tokens_per_second,
            token_interval,
            prefill: Mutex::new(()),
            running: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Counts a request as running until the guard is dropped.
    pub(super) fn enter(&self) -> Running<'_> {
        Running::new(&self.running)
    }

    /// Requests in the engine, the waiting ones included.
    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Those of them whose prompts wait for others'.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits for its turn, then for as long as a prompt of so many tokens takes.
    pub(super) async fn prefill(&self, prompt_tokens: u64) -> Prefill {
        let arrived = Instant::now();
        let waiting = Running::new(&self.waiting);
        let _turn = self.prefill.lock().await;
        drop(waiting);
        let queued = arrived.elapsed();
        let took = Duration::from_micros(prompt_tokens.saturating_mul(1_000_000) / self.prefill_tokens_per_second);
        sleep(took).await;
        Prefill { queued, took }
    }

    /// Waits for as long as one token of an answer takes. Answers do not slow each other down.
    pub(super) async fn decode(&self) {
        sleep(self.token_interval).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn engine() -> Engine {
        Engine::new(NonZeroU64::new(1_000).unwrap(), Duration::from_millis(20))
    }

    #[tokio::test(start_paused = true)]
    async fn prefill_takes_time_in_proportion_to_the_prompt() {
        let engine = engine();
        let prefill = engine.prefill(2_500).await;
        assert_eq!(prefill, Prefill { queued: Duration::ZERO, took: SECOND * 5 / 2 });
    }

    #[tokio::test(start_paused = true)]
    async fn a_prompt_waits_for_the_prompts_before_it() {
        let engine = engine();
        let (long, short) = tokio::join!(engine.prefill(10_000), engine.prefill(100));
        assert_eq!(long.queued, Duration::ZERO);
        assert_eq!(short.queued, SECOND * 10);
        assert_eq!(short.took, SECOND / 10);
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_prefill_lets_the_next_one_start_at_once() {
        let engine = engine();
        let abandoned = tokio::time::timeout(SECOND, engine.prefill(10_000));
        let (abandoned, next) = tokio::join!(abandoned, engine.prefill(100));
        assert!(abandoned.is_err());
        assert_eq!(next.queued, SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_prompt_counts_as_waiting_until_it_is_its_turn_or_it_is_abandoned() {
        let engine = engine();
        let seen = async {
            tokio::time::sleep(SECOND).await;
            let at_first = engine.waiting();
            tokio::time::sleep(SECOND).await;
            [at_first, engine.waiting()]
        };
        let abandoned = tokio::time::timeout(SECOND * 3 / 2, engine.prefill(100));
        let (_, abandoned, seen) = tokio::join!(engine.prefill(10_000), abandoned, seen);
        assert!(abandoned.is_err());
        assert_eq!(seen, [1, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn decoding_is_not_held_up_by_a_prefill() {
        let engine = engine();
        let began = Instant::now();
        tokio::select! {
            _ = engine.prefill(10_000) => panic!("a token takes 20 ms, the prefill 10 s"),
            () = engine.decode() => assert_eq!(began.elapsed(), Duration::from_millis(20)),
        }
    }

    #[test]
    fn a_request_runs_until_its_guard_is_dropped() {
        let engine = engine();
        let (first, second) = (engine.enter(), engine.enter());
        assert_eq!(engine.running(), 2);
        drop(first);
        assert_eq!(engine.running(), 1);
        drop(second);
        assert_eq!(engine.running(), 0);
    }
}
