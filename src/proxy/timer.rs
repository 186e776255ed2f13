//! One timer for all the limits that a connection has, one after the other.
//!
//! It is moved only for an earlier limit than it stands for, and when it fires too early: most limits never pass, and moving
//! a timer for each of them would take a lock each time.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep, sleep_until};

/// The timer. It has one user at a time.
#[derive(Debug, Default)]
pub(super) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Ready when this time has passed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, at: Instant) -> Poll<()> {
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if timer.deadline() > at {
            timer.as_mut().reset(at);
        }
        loop {
            ready!(timer.as_mut().poll(cx));
            if Instant::now() >= at {
                return Poll::Ready(());
            }
            timer.as_mut().reset(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn every_limit_passes_in_its_time() {
        let (mut timer, begin) = (Timer::default(), Instant::now());
        for seconds in [5, 5, 9, 7, 20, 20] {
            let at = begin + seconds * SECOND;
            let waits_from = Instant::now();
            poll_fn(|cx| timer.poll(cx, at)).await;
            assert_eq!(Instant::now(), at.max(waits_from), "{seconds}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_that_was_given_up_is_none() {
        let (mut timer, begin) = (Timer::default(), Instant::now());
        for seconds in [10, 3, 30] {
            let given_up = timeout(SECOND, poll_fn(|cx| timer.poll(cx, begin + seconds * SECOND)));
            assert!(given_up.await.is_err(), "{seconds}");
        }
        poll_fn(|cx| timer.poll(cx, begin + 60 * SECOND)).await;
        assert_eq!(begin.elapsed().as_secs(), 60);
    }
}
