//! What a server's answer says of the server, found while it is relayed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorType, Result};
use tokio::time::Instant;

use super::events::Events;
use super::watch::{Told, Watch, Written};
use crate::health::{Fault, Signal};

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

/// As much of the end of a body as may hold `usage`: in vLLM's answers it stands within the last 700 bytes.
const TAIL_BYTES: usize = 2048;

/// One answer while it is relayed.
#[derive(Debug)]
pub(super) struct Answer {
    watch: Arc<Watch>,
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
    /// Whom to tell how it gets on; nobody when it is no good answer.
    told: Told,
    /// Tokens that were seen, and those that were told of.
    tokens: u64,
    tokens_told: u64,
    tail: Vec<u8>,
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
    pub(super) fn new(watch: Arc<Watch>) -> Self {
        Self {
            watch,
            status: 0,
            is_good: false,
            has_begun: false,
            has_failed: false,
            events: None,
            whole_bytes: None,
            kept: Vec::new(),
            is_counted: false,
            told: Told::default(),
            tokens: 0,
            tokens_told: 0,
            tail: Vec::new(),
            tokens_at: None,
            longest_gap: None,
        }
    }

    /// A final header has come. True when an event stream follows.
    pub(super) fn header(&mut self, header: &ResponseHeader) -> bool {
        let text = |name| header.headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
        let is_stream = text(CONTENT_TYPE).is_some_and(|kind| kind.starts_with("text/event-stream"));
        let length = text(CONTENT_LENGTH).and_then(|length| length.parse().ok());
        let status = header.status.as_u16();
        self.watch.header_came();
        *self = Self::new(Arc::clone(&self.watch));
        self.is_good = status < 500 && status != 429;
        if header.status.is_success() {
            self.is_counted = self.watch.is_counted();
            self.told = self.watch.told();
        }
        self.events = (is_stream && !header.headers.contains_key(CONTENT_ENCODING)).then(Events::default);
        let is_looked_into = status == 500 || (status == 400 && self.watch.may_try_larger());
        self.whole_bytes = length.filter(|length| is_looked_into && (1..=MAX_LOOKED_INTO_BYTES).contains(length));
        self.status = status;
        self.events.is_some()
    }

    /// Looks at a piece of the body; `is_held` says that nothing of the answer has gone to the client.
    ///
    /// # Errors
    /// When the request is better tried elsewhere, and can be.
    pub(super) fn piece(&mut self, data: &Bytes, is_end: bool, is_held: bool) -> Result<Piece> {
        self.keep_tail(data);
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
                self.watch.speaks_against(Signal::Leaving, "it says that it is shutting down");
                self.elsewhere_or(LEAVING, is_held)?;
            }
        } else if let Some(events) = &mut self.events {
            let seen = events.look(data);
            if seen.has_error && !self.has_failed {
                self.has_failed = true;
                self.watch.speaks_against(Signal::Fault(Fault::Stream), "an error within a stream");
                if seen.begins_with_error() {
                    self.elsewhere_or(STREAM_ERROR, is_held)?;
                    self.begun();
                    return Ok(Piece::Life);
                }
            }
            if !seen.has_content {
                return Ok(Piece::Comment);
            }
            self.brought(seen.tokens);
        } else {
            self.brought(1);
        }
        self.begun();
        Ok(Piece::Life)
    }

    /// So many more tokens, or a piece of an answer that comes as a whole.
    fn brought(&mut self, tokens: u64) {
        if tokens == 0 || !self.is_counted {
            return;
        }
        let now = Instant::now();
        match &mut self.tokens_at {
            Some((_, last)) => {
                let gap = now.saturating_duration_since(*last);
                self.longest_gap = Some(self.longest_gap.map_or(gap, |longest| longest.max(gap)));
                *last = now;
            }
            None => {
                self.tokens_at = Some((now, now));
                self.told.first_token();
                self.watch.first_token();
            }
        }
        if self.events.is_some() {
            self.tokens += tokens;
            if self.tokens - self.tokens_told >= TOKENS_TOLD_AT_ONCE {
                self.tokens_told = self.tokens;
                self.told.generated(self.tokens);
            }
        }
    }

    fn keep_tail(&mut self, data: &Bytes) {
        if !self.is_counted {
            return;
        }
        if data.len() >= TAIL_BYTES {
            self.tail.clear();
        } else if self.tail.len() + data.len() > 2 * TAIL_BYTES {
            self.tail.drain(..self.tail.len() + data.len() - TAIL_BYTES);
        }
        self.tail.extend_from_slice(&data[data.len().saturating_sub(TAIL_BYTES)..]);
    }

    /// The answer is there, or its first byte.
    pub(super) fn begun(&mut self) {
        if !self.has_begun {
            self.has_begun = true;
            self.watch.begun(self.is_good && !self.has_failed);
        }
    }

    /// # Errors
    /// With this one, when the request can be tried elsewhere. What has come is void then.
    fn elsewhere_or(&mut self, error: ErrorType, is_held: bool) -> Result<()> {
        if is_held && self.watch.may_try_elsewhere() {
            self.is_counted = false;
            return Error::err_up(error);
        }
        Ok(())
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.is_counted {
            let events = self.events.as_ref().map(|_| self.tokens);
            // Pieces of an answer that comes as a whole are no tokens.
            let longest_gap = self.longest_gap.filter(|_| self.events.is_some());
            let (tail, tokens_at) = (std::mem::take(&mut self.tail), self.tokens_at);
            self.watch.wrote(Written { events, tail, tokens_at, longest_gap });
        }
    }
}
