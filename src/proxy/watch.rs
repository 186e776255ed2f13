//! The present attempt, as the parts that relay its answer see it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::balance::Progress;
use crate::engines::Tallied;
use crate::health::{Health, Signal};
use crate::metrics::Prefilling;
use crate::shadow::Followed;
use crate::upstream::Server;

/// The present attempt of one request.
#[derive(Default)]
pub(super) struct Watch {
    server: Option<Arc<Server>>,
    may_try: MayTry,
    /// What is to be said against the server has been said.
    is_judged: bool,
    first_byte_at: Option<Instant>,
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

impl Watch {
    /// An attempt on this server begins.
    pub(super) fn attempt(
        &mut self,
        server: Arc<Server>,
        may_try: MayTry,
        told: Told,
        tallied: Option<Tallied>,
        prefilling: Option<Prefilling>,
    ) {
        self.told = told;
        self.tallied = tallied;
        self.is_counted = prefilling.is_some();
        self.prefilling = prefilling;
        self.written = Written::default();
        self.server = Some(server);
        self.may_try = may_try;
        self.is_judged = false;
    }

    /// Something speaks against the server.
    pub(super) fn speaks_against(&mut self, health: &Health, signal: Signal, detail: &str) {
        self.is_judged = true;
        if let Some(server) = &self.server {
            health.note(server, signal, detail);
        }
    }

    /// The answer has begun; `is_good` says that it speaks for the server.
    pub(super) fn begun(&mut self, health: &Health, now: Instant, is_good: bool) {
        self.first_byte_at.get_or_insert(now);
        if let Some(server) = self.server.as_ref().filter(|_| is_good) {
            health.note(server, Signal::Began, "");
        }
    }

    /// The attempt has ended with a whole answer of this status.
    pub(super) fn answered(&self, health: &Health, status: Option<u16>) {
        if let Some(server) = self.server.as_ref().filter(|_| !self.is_judged) {
            health.note(server, of_status(status), "");
        }
    }

    /// Whom to tell how the request gets on.
    pub(super) fn told(&self) -> &Told {
        &self.told
    }

    /// The header of an answer has come.
    pub(super) fn header_came(&mut self) {
        self.header_at = Some(Instant::now());
    }

    /// When the header of the last answer came.
    pub(super) fn header_at(&self) -> Option<Instant> {
        self.header_at
    }

    /// Whether anybody wants to know what the answer brings.
    pub(super) fn is_counted(&self) -> bool {
        self.is_counted
    }

    /// The first token of the answer has come, or the answer as a whole.
    pub(super) fn first_token(&mut self) {
        self.told.first_token();
        self.prefilling = None;
        if let Some(tallied) = self.tallied.take() {
            tallied.has_first_token();
        }
    }

    /// The attempt has failed: the request waits on that server no longer, and its header was not that of the answer.
    pub(super) fn left_server(&mut self) {
        (self.prefilling, self.tallied, self.header_at) = (None, None, None);
    }

    /// The request is over.
    pub(super) fn over(&mut self) {
        self.tallied = None;
        self.prefilling = None;
        self.told = Told::default();
    }

    /// The answer has come to its end, or was broken off.
    pub(super) fn wrote(&mut self, written: Written) {
        self.written = written;
    }

    /// What the answer of the present attempt has brought.
    pub(super) fn take_written(&mut self) -> Written {
        std::mem::take(&mut self.written)
    }

    /// Whether a server can be asked that may take longer requests than this one.
    pub(super) fn may_try_larger(&self) -> bool {
        self.may_try.larger
    }

    /// Whether another server may be asked when this one fails.
    pub(super) fn may_try_elsewhere(&self) -> bool {
        self.may_try.elsewhere
    }

    /// When the first byte of the answer came; comments do not count.
    pub(super) fn first_byte_at(&self) -> Option<Instant> {
        self.first_byte_at
    }

    /// Whether nobody accepts connections at the server any more.
    pub(super) fn is_server_gone(&self) -> bool {
        self.server.as_ref().is_some_and(|server| server.health().lock().is_refusing())
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
