//! How long a server may keep silent, and how long a request may take.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use pingora::ErrorType;
use tokio::time::Instant;

use super::timer::Timer;
use super::watch::Watch;
use crate::config::PassiveChecks;
use crate::health::{Fault, Health, Signal};

/// The server did not send the first byte of its answer in time.
pub(super) const FIRST_BYTE_TIMEOUT: ErrorType = ErrorType::Custom("FirstByteTimeout");
/// The server paused for too long in the middle of its answer.
pub(super) const RESPONSE_IDLE_TIMEOUT: ErrorType = ErrorType::Custom("ResponseIdleTimeout");
/// The request as a whole took too long.
pub(super) const TOTAL_TIMEOUT: ErrorType = ErrorType::Custom("TotalTimeout");

/// The server accepts no connections any more, and this one is silent.
pub(super) const SERVER_GONE: ErrorType = ErrorType::Custom("ServerGone");

/// Watches the three limits of one request: relaying an event costs no more than reading the clock.
#[derive(Debug)]
pub(super) struct Silence {
    first_byte: Option<Duration>,
    between: Option<Duration>,
    total_at: Option<Instant>,
    /// When the server last gave a sign of life, or the attempt began.
    last: Instant,
    has_begun: bool,
    suspicion: Option<Suspicion>,
}

/// What is concluded from silence before a limit ends the request.
#[derive(Debug)]
struct Suspicion {
    /// A stream that has not begun after so long speaks against the server.
    overdue: Option<Duration>,
    /// After so long it is looked whether the server is gone.
    gone: Option<Duration>,
    is_stream: bool,
    looked_at: Option<Instant>,
}

impl Silence {
    /// Limits for a server that has just been given a request, which must be over at `total_at`.
    pub(super) fn new(first_byte: Option<Duration>, between: Option<Duration>, total_at: Option<Instant>) -> Self {
        let last = Instant::now();
        Self { first_byte, between, total_at, last, has_begun: false, suspicion: None }
    }

    /// Also draws conclusions from silence.
    pub(super) fn suspecting(mut self, checks: &PassiveChecks) -> Self {
        let (overdue, gone) = (checks.first_byte_limit, checks.dead_stream_limit);
        self.suspicion = Some(Suspicion { overdue, gone, is_stream: false, looked_at: None });
        self
    }

    /// The header of an event stream has come: its events are due.
    pub(super) fn stream_opened(&mut self) {
        if let Some(suspicion) = &mut self.suspicion {
            suspicion.is_stream = true;
        }
    }

    /// Time that was not the server's.
    pub(super) fn forgive(&mut self, time: Duration) {
        self.last += time;
    }

    /// The server sent a piece of its answer.
    pub(super) fn heard(&mut self, now: Instant) {
        self.last = now;
        self.has_begun = true;
    }

    /// The next limit, and what its passing is called.
    fn limit(&self) -> Option<(Instant, ErrorType)> {
        let silence = if self.has_begun {
            self.between.map(|limit| (self.last + limit, RESPONSE_IDLE_TIMEOUT))
        } else {
            self.first_byte.map(|limit| (self.last + limit, FIRST_BYTE_TIMEOUT))
        };
        let total = self.total_at.map(|at| (at, TOTAL_TIMEOUT));
        match (silence, total) {
            (Some(silence), Some(total)) => Some(if silence.0 <= total.0 { silence } else { total }),
            (either, None) | (None, either) => either,
        }
    }

    /// Ready when a limit has passed; pends for ever when there is none.
    pub(super) fn poll_exceeded(
        &mut self,
        cx: &mut Context<'_>,
        timer: &mut Timer,
        watch: &mut Watch,
        health: &Health,
    ) -> Poll<ErrorType> {
        loop {
            let limit = self.limit();
            let suspicion = self.suspicion.as_ref();
            let doubt_at = suspicion.and_then(|suspicion| suspicion.next(self.last, self.has_begun));
            let Some(at) = limit.iter().map(|(at, _)| *at).chain(doubt_at).min() else { return Poll::Pending };
            ready!(timer.poll(cx, at));
            let now = Instant::now();
            if let Some((_, error)) = limit.filter(|(at, _)| now >= *at) {
                return Poll::Ready(error);
            }
            if let Some(suspicion) = &mut self.suspicion
                && doubt_at.is_some_and(|at| now >= at)
                && suspicion.look(watch, health, self.last, self.has_begun, now)
            {
                return Poll::Ready(SERVER_GONE);
            }
        }
    }
}

impl Suspicion {
    /// When to look again.
    fn next(&self, last: Instant, has_begun: bool) -> Option<Instant> {
        let is_due = |at: &Instant| self.looked_at.is_none_or(|looked_at| *at > looked_at);
        let overdue = self.overdue.filter(|_| self.is_stream && !has_begun).map(|limit| last + limit);
        let gone = self.gone.map(|limit| self.looked_at.map_or(last, |looked_at| looked_at.max(last)) + limit);
        overdue.filter(is_due).into_iter().chain(gone).min()
    }

    /// Looks at a silence; true when the server is gone.
    fn look(&mut self, watch: &mut Watch, health: &Health, last: Instant, has_begun: bool, now: Instant) -> bool {
        let is_overdue = |limit| {
            let at = last + limit;
            at <= now && self.looked_at.is_none_or(|looked_at| looked_at < at)
        };
        if self.is_stream && !has_begun && self.overdue.is_some_and(is_overdue) {
            watch.speaks_against(health, Signal::Fault(Fault::FirstByte), "a stream has not begun in time");
        }
        self.looked_at = Some(now);
        self.gone.is_some_and(|limit| last + limit <= now) && watch.is_server_gone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::of_text;
    use crate::upstream::Live;

    const SECOND: Duration = Duration::from_secs(1);

    impl Silence {
        async fn exceeded(&mut self) -> ErrorType {
            let config = of_text("policy: {kind: reference_plain}\ngroups: [{name: all, servers: [\"127.0.0.1:9\"]}]");
            let health = Health::new(Arc::new(Live::new(config).unwrap()));
            let (mut timer, mut watch) = (Timer::default(), Watch::default());
            std::future::poll_fn(|cx| self.poll_exceeded(cx, &mut timer, &mut watch, &health)).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_byte_has_its_own_limit() {
        let begin = Instant::now();
        let mut silence = Silence::new(Some(5 * SECOND), Some(SECOND), None);
        assert_eq!(silence.exceeded().await, FIRST_BYTE_TIMEOUT);
        assert_eq!(begin.elapsed().as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn every_sign_of_life_begins_the_pause_anew() {
        let begin = Instant::now();
        let mut silence = Silence::new(Some(5 * SECOND), Some(2 * SECOND), None);
        for _ in 0..10 {
            let quiet = tokio::time::timeout(SECOND, silence.exceeded()).await;
            assert!(quiet.is_err(), "a pause of one second is allowed");
            silence.heard(Instant::now());
        }
        assert_eq!(silence.exceeded().await, RESPONSE_IDLE_TIMEOUT);
        assert_eq!(begin.elapsed().as_secs(), 12);
    }

    #[tokio::test(start_paused = true)]
    async fn the_total_limit_holds_however_lively_the_server_is() {
        let begin = Instant::now();
        let mut silence = Silence::new(None, Some(2 * SECOND), Some(begin + 3 * SECOND));
        let error = loop {
            match tokio::time::timeout(SECOND, silence.exceeded()).await {
                Ok(error) => break error,
                Err(_) => silence.heard(Instant::now()),
            }
        };
        assert_eq!(error, TOTAL_TIMEOUT);
        assert_eq!(begin.elapsed().as_secs(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn without_limits_it_waits_for_ever() {
        let mut silence = Silence::new(None, None, None);
        assert!(tokio::time::timeout(Duration::from_secs(1_000_000), silence.exceeded()).await.is_err());
    }
}
