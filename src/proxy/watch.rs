//! The present attempt, as the parts that relay it see it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::trail::Trail;
use super::trailers::Trailers;
use crate::balance::Progress;
use crate::engines::Tallied;
use crate::health::{Health, Signal};
use crate::metrics::Prefilling;
use crate::shadow::Followed;
use crate::upstream::Server;

/// Shared by a request's context and the session that relays its answer.
pub(super) struct Watch {
    health: Arc<Health>,
    attempt: Mutex<Attempt>,
}

#[derive(Debug, Default)]
struct Attempt {
    server: Option<Arc<Server>>,
    may_try: MayTry,
    /// What is to be said against the server has been said.
    is_judged: bool,
    first_byte_at: Option<Instant>,
    /// Where the answer is followed, once there is a connection.
    trail: Option<Trail>,
    /// Whom to tell how the request gets on.
    told: Told,
    /// Counts the prompt with others, until its first token has been seen.
    tallied: Option<Tallied>,
    /// Whether anybody wants to know what the answer brings.
    is_counted: bool,
    header_at: Option<Instant>,
    /// Counts the request among those that wait on the server, until its first token has been seen.
    prefilling: Option<Prefilling>,
    written: Written,
}

/// Whom to tell how a request gets on.
#[derive(Debug, Clone, Default)]
pub(super) struct Told {
    /// The policy, when it asks.
    pub(super) policy: Option<Progress>,
    /// The policy beside it, if there is one.
    pub(super) shadow: Option<Arc<Followed>>,
}

impl Told {
    /// The first token of the answer has been seen.
    pub(super) fn first_token(&self) {
        if let Some(policy) = &self.policy {
            policy.first_token();
        }
        if let Some(shadow) = &self.shadow {
            shadow.first_token();
        }
    }

    /// So many tokens have been generated in all.
    pub(super) fn generated(&self, tokens: u64) {
        if let Some(policy) = &self.policy {
            policy.generated(tokens);
        }
        if let Some(shadow) = &self.shadow {
            shadow.generated(tokens);
        }
    }
}

/// What can be done when the server fails or refuses.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MayTry {
    /// Another server may be asked.
    pub(super) elsewhere: bool,
    /// There is another one that may take longer requests.
    pub(super) larger: bool,
}

/// What an answer has brought, as far as somebody counts it.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Events with a token; `None` when it is no stream.
    pub(super) events: Option<u64>,
    /// The last of the body.
    pub(super) tail: Vec<u8>,
    /// When its first and its last token came.
    pub(super) tokens_at: Option<(Instant, Instant)>,
    /// The longest pause between two pieces with tokens.
    pub(super) longest_gap: Option<Duration>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("attempt", &self.attempt).finish_non_exhaustive()
    }
}

impl Watch {
    pub(super) fn new(health: Arc<Health>) -> Self {
        Self { health, attempt: Mutex::default() }
    }

    /// The request goes to this server now.
    pub(super) fn attempt(
        &self,
        server: Arc<Server>,
        may_try: MayTry,
        told: Told,
        tallied: Option<Tallied>,
        prefilling: Option<Prefilling>,
    ) {
        let mut attempt = self.attempt.lock();
        attempt.told = told;
        attempt.tallied = tallied;
        attempt.is_counted = prefilling.is_some();
        attempt.prefilling = prefilling;
        attempt.written = Written::default();
        attempt.server = Some(server);
        attempt.may_try = may_try;
        attempt.is_judged = false;
        attempt.trail = None;
    }

    /// There is a connection, whose answers are followed there.
    pub(super) fn connected(&self, trail: Trail) {
        self.attempt.lock().trail = Some(trail);
    }

    /// The trailers of the answer, whose end has come. They are given once.
    pub(super) fn trailers(&self) -> Option<Trailers> {
        self.attempt.lock().trail.as_ref()?.take()
    }

    /// Something speaks against the server.
    pub(super) fn speaks_against(&self, signal: Signal, detail: &str) {
        let server = {
            let mut attempt = self.attempt.lock();
            attempt.is_judged = true;
            attempt.server.clone()
        };
        if let Some(server) = server {
            self.health.note(&server, signal, detail);
        }
    }

    /// The answer has begun; `is_good` says that it speaks for the server.
    pub(super) fn begun(&self, is_good: bool) {
        let server = {
            let mut attempt = self.attempt.lock();
            attempt.first_byte_at.get_or_insert_with(Instant::now);
            attempt.server.clone()
        };
        if let Some(server) = server.filter(|_| is_good) {
            self.health.note(&server, Signal::Began, "");
        }
    }

    /// The attempt has ended with a whole answer of this status.
    pub(super) fn answered(&self, status: Option<u16>) {
        let (server, is_judged) = {
            let attempt = self.attempt.lock();
            (attempt.server.clone(), attempt.is_judged)
        };
        if let Some(server) = server.filter(|_| !is_judged) {
            self.health.note(&server, of_status(status), "");
        }
    }

    /// Whom to tell how the request gets on.
    pub(super) fn told(&self) -> Told {
        self.attempt.lock().told.clone()
    }

    /// The header of an answer has come.
    pub(super) fn header_came(&self) {
        self.attempt.lock().header_at = Some(Instant::now());
    }

    /// When the header of the last answer came.
    pub(super) fn header_at(&self) -> Option<Instant> {
        self.attempt.lock().header_at
    }

    /// Whether anybody wants to know what the answer brings.
    pub(super) fn is_counted(&self) -> bool {
        self.attempt.lock().is_counted
    }

    /// The first token of the answer has come, or the answer as a whole.
    pub(super) fn first_token(&self) {
        let (tallied, prefilling) = {
            let mut attempt = self.attempt.lock();
            (attempt.tallied.take(), attempt.prefilling.take())
        };
        drop(prefilling);
        if let Some(tallied) = tallied {
            tallied.has_first_token();
        }
    }

    /// The attempt has failed: the request waits on that server no longer, and its header was not that of the answer.
    pub(super) fn left_server(&self) {
        let mut attempt = self.attempt.lock();
        (attempt.prefilling, attempt.tallied, attempt.header_at) = (None, None, None);
    }

    /// The request is over.
    pub(super) fn over(&self) {
        let mut attempt = self.attempt.lock();
        attempt.tallied = None;
        attempt.prefilling = None;
        attempt.told = Told::default();
    }

    /// The answer has come to its end, or was broken off.
    pub(super) fn wrote(&self, written: Written) {
        self.attempt.lock().written = written;
    }

    /// What the answer of the present attempt has brought.
    pub(super) fn take_written(&self) -> Written {
        std::mem::take(&mut self.attempt.lock().written)
    }

    /// Whether a server can be asked that may take longer requests than this one.
    pub(super) fn may_try_larger(&self) -> bool {
        self.attempt.lock().may_try.larger
    }

    /// Whether another server may be asked when this one fails.
    pub(super) fn may_try_elsewhere(&self) -> bool {
        self.attempt.lock().may_try.elsewhere
    }

    /// When the first byte of the answer came; comments do not count.
    pub(super) fn first_byte_at(&self) -> Option<Instant> {
        self.attempt.lock().first_byte_at
    }

    /// Whether nobody accepts connections at the server any more.
    pub(super) fn is_server_gone(&self) -> bool {
        let server = self.attempt.lock().server.clone();
        server.is_some_and(|server| server.health().lock().is_refusing())
    }
}

/// What a status says of the server. A full one is not at fault, and what a client does wrong is no matter.
pub(super) fn of_status(status: Option<u16>) -> Signal {
    match status {
        Some(429 | 503) => Signal::Saturated,
        Some(500 | 502 | 504) => Signal::Fault(crate::health::Fault::Status),
        _ => Signal::Answered,
    }
}
