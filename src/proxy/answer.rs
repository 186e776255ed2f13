//! What a server's answer says of the server, found while it is relayed.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorType, Result};
use tokio::time::Instant;

use super::events::Events;
use super::watch::{Watch, Written};
use crate::health::{Fault, Health, Signal};

/// The server says that it is shutting down and has not begun the request.
pub(super) const LEAVING: ErrorType = ErrorType::Custom("ServerLeaving");

/// The first thing in a stream is an error.
pub(super) const STREAM_ERROR: ErrorType = ErrorType::Custom("StreamError");

/// The request is longer than the server takes.
pub(super) const TOO_LONG: ErrorType = ErrorType::Custom("TooLongForServer");

/// What vLLM answers to such a request, with status 400.
const CONTEXT_LENGTH: &[u8] = b"maximum context length";

/// What a shutting down vLLM answers to new requests, with status 500.
const SHUTTING_DOWN: &[u8] = b"cannot schedule new futures after shutdown";

/// Longer error bodies are not looked into; vLLM's is 119 bytes.
const MAX_LOOKED_INTO_BYTES: usize = 4096;

/// The policy is told of what a stream has brought after so many tokens: each time takes a lock.
const TOKENS_TOLD_AT_ONCE: u64 = 16;

/// At least as much of the end of a body is kept, as may hold `usage`: in vLLM's answers it stands within the last 700 bytes.
const TAIL_BYTES: usize = 1024;

/// The end of a body that comes in pieces, as the last two parts of it: when one is long enough the other is given up.
#[derive(Debug, Default)]
struct Tail {
    older: Vec<u8>,
    newer: Vec<u8>,
}

impl Tail {
    fn push(&mut self, piece: &[u8]) {
        if self.newer.len() >= TAIL_BYTES {
            std::mem::swap(&mut self.older, &mut self.newer);
            self.newer.clear();
        }
        self.newer.extend_from_slice(&piece[piece.len().saturating_sub(TAIL_BYTES)..]);
    }

    fn take(&mut self) -> Vec<u8> {
        let Self { mut older, newer } = std::mem::take(self);
        if older.is_empty() {
            return newer;
        }
        older.extend_from_slice(&newer);
        older
    }
}

/// One answer while it is relayed.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) health: Arc<Health>,
    status: u16,
    is_good: bool,
    has_begun: bool,
    has_failed: bool,
    events: Option<Events>,
    /// The length of a body that is to be looked into as a whole.
    whole_bytes: Option<usize>,
    kept: Vec<u8>,
    /// It is a good answer, and somebody wants to know what it brings.
    is_counted: bool,
    /// Tokens that were seen, and those that were told of.
    tokens: u64,
    tokens_told: u64,
    tail: Tail,
    /// When the first and the last token came.
    tokens_at: Option<(Instant, Instant)>,
    longest_gap: Option<Duration>,
}

/// What a piece of an answer's body means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    /// The server works.
    Life,
    /// It only keeps the connection open.
    Comment,
    /// More is needed to tell.
    Unclear,
}

impl Answer {
    pub(super) fn new(health: Arc<Health>) -> Self {
        Self {
            health,
            status: 0,
            is_good: false,
            has_begun: false,
            has_failed: false,
            events: None,
            whole_bytes: None,
            kept: Vec::new(),
            is_counted: false,
            tokens: 0,
            tokens_told: 0,
            tail: Tail::default(),
            tokens_at: None,
            longest_gap: None,
        }
    }

    /// A final header has come. True when an event stream follows.
    pub(super) fn header(&mut self, watch: &mut Watch, header: &ResponseHeader) -> bool {
        let text = |name| header.headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
        let is_stream = text(CONTENT_TYPE).is_some_and(|kind| kind.starts_with("text/event-stream"));
        let length = text(CONTENT_LENGTH).and_then(|length| length.parse().ok());
        let status = header.status.as_u16();
        watch.header_came();
        *self = Self::new(Arc::clone(&self.health));
        self.is_good = status < 500 && status != 429;
        if header.status.is_success() {
            self.is_counted = watch.is_counted();
        }
        self.events = (is_stream && !header.headers.contains_key(CONTENT_ENCODING)).then(Events::default);
        let is_looked_into = status == 500 || (status == 400 && watch.may_try_larger());
        self.whole_bytes = length.filter(|length| is_looked_into && (1..=MAX_LOOKED_INTO_BYTES).contains(length));
        self.status = status;
        self.events.is_some()
    }

    /// Looks at a piece of the body; `is_held` says that nothing of the answer has gone to the client.
    ///
    /// # Errors
    /// When the request is better tried elsewhere, and can be.
    pub(super) fn piece(
        &mut self,
        watch: &mut Watch,
        data: &[u8],
        is_end: bool,
        is_held: bool,
        now: Instant,
    ) -> Result<Piece> {
        if self.is_counted {
            self.tail.push(data);
        }
        if let Some(whole) = self.whole_bytes {
            self.kept.extend_from_slice(data);
            if self.kept.len() < whole && !is_end {
                return Ok(Piece::Unclear);
            }
            self.whole_bytes = None;
            let says = |words: &[u8]| self.kept.windows(words.len()).any(|window| window == words);
            if self.status == 400 && says(CONTEXT_LENGTH) && is_held {
                return Error::err_up(TOO_LONG);
            }
            if self.status == 500 && says(SHUTTING_DOWN) {
                watch.speaks_against(&self.health, Signal::Leaving, "it says that it is shutting down");
                self.elsewhere_or(watch, LEAVING, is_held)?;
            }
        } else if let Some(events) = &mut self.events {
            let seen = events.look(data);
            if seen.has_error && !self.has_failed {
                self.has_failed = true;
                watch.speaks_against(&self.health, Signal::Fault(Fault::Stream), "an error within a stream");
                if seen.begins_with_error() {
                    self.elsewhere_or(watch, STREAM_ERROR, is_held)?;
                    self.begun(watch, now);
                    return Ok(Piece::Life);
                }
            }
            if !seen.has_content {
                return Ok(Piece::Comment);
            }
            self.brought(watch, seen.tokens, now);
        } else {
            self.brought(watch, 1, now);
        }
        self.begun(watch, now);
        Ok(Piece::Life)
    }

    /// So many more tokens, or a piece of an answer that comes as a whole.
    fn brought(&mut self, watch: &mut Watch, tokens: u64, now: Instant) {
        if tokens == 0 || !self.is_counted {
            return;
        }
        match &mut self.tokens_at {
            Some((_, last)) => {
                let gap = now.saturating_duration_since(*last);
                self.longest_gap = Some(self.longest_gap.map_or(gap, |longest| longest.max(gap)));
                *last = now;
            }
            None => {
                self.tokens_at = Some((now, now));
                watch.first_token();
            }
        }
        if self.events.is_some() {
            self.tokens += tokens;
            if self.tokens - self.tokens_told >= TOKENS_TOLD_AT_ONCE {
                self.tokens_told = self.tokens;
                watch.told().generated(self.tokens);
            }
        }
    }

    /// The answer is there, or its first byte.
    pub(super) fn begun(&mut self, watch: &mut Watch, now: Instant) {
        if !self.has_begun {
            self.has_begun = true;
            watch.begun(&self.health, now, self.is_good && !self.has_failed);
        }
    }

    /// # Errors
    /// With this one, when the request can be tried elsewhere. What has come is void then.
    fn elsewhere_or(&mut self, watch: &Watch, error: ErrorType, is_held: bool) -> Result<()> {
        if is_held && watch.may_try_elsewhere() {
            self.is_counted = false;
            return Error::err_up(error);
        }
        Ok(())
    }

    /// What it has brought, now that it has come to its end or was broken off; `None` when nobody counts that.
    pub(super) fn written(&mut self) -> Option<Written> {
        if !self.is_counted {
            return None;
        }
        let events = self.events.as_ref().map(|_| self.tokens);
        // Pieces of an answer that comes as a whole are no tokens.
        let longest_gap = self.longest_gap.filter(|_| self.events.is_some());
        Some(Written { events, tail: self.tail.take(), tokens_at: self.tokens_at, longest_gap })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_end_of_a_body_is_kept_however_it_is_cut(sizes in prop::collection::vec(1..3_000_usize, 1..20)) {
            let body: Vec<u8> = (0..=250).cycle().take(sizes.iter().sum()).collect();
            let (mut tail, mut rest) = (Tail::default(), &body[..]);
            for size in sizes {
                let (piece, later) = rest.split_at(size);
                tail.push(piece);
                rest = later;
            }
            let kept = tail.take();
            let least = body.len().min(TAIL_BYTES);
            prop_assert!(kept.len() <= 4 * TAIL_BYTES);
            prop_assert!(kept.ends_with(&body[body.len() - least..]));
        }
    }
}
