//! An attempt failed: may the request be tried again?
//!
//! Only while nothing has gone to the client, and only on faults that say that the server did not take the request or
//! did not begin its answer: a connection that cannot be made or that ends before the first body byte, and 502, 503,
//! 504. Once more also on a 400 that says that the request is longer than the server takes, when another server may take
//! it. Never for another answer of the server's own, however bad, and never after a time limit: the work may be running.

use std::net::SocketAddr;

use pingora::{Error, ErrorSource, ErrorType};

use super::Proxy;
use super::answer::{LEAVING, STREAM_ERROR, TOO_LONG};
use super::client::Client;
use super::context::RequestContext;
use super::reject::Reject;
use super::silence::{FIRST_BYTE_TIMEOUT, RESPONSE_IDLE_TIMEOUT, SERVER_GONE, TOTAL_TIMEOUT};
use super::watch::of_status;
use crate::health::{Fault, Signal, is_our_own};
use crate::metrics::{AttemptResult, RetryReason};

/// The server answered with a status that is better tried elsewhere.
pub(super) const RETRYABLE_STATUS: ErrorType = ErrorType::Custom("RetryableStatus");

/// The server's answer cannot be relayed: it can be read in two ways, or switches protocols unasked.
pub(super) const BAD_RESPONSE: ErrorType = ErrorType::Custom("BadResponse");

pub(super) fn is_timeout(etype: &ErrorType) -> bool {
    [FIRST_BYTE_TIMEOUT, RESPONSE_IDLE_TIMEOUT, TOTAL_TIMEOUT].contains(etype)
}

/// The key of the time limit that ended an attempt, of those after which the request may be tried elsewhere.
fn attempts_limit(error: &Error) -> Option<&'static str> {
    match error.etype() {
        ErrorType::ConnectTimedout | ErrorType::TLSHandshakeTimedout => Some("connect"),
        etype if *etype == SERVER_GONE => Some("dead_stream_limit"),
        _ => None,
    }
}

/// The key of the time limit that ended a request.
pub(super) fn requests_limit(error: &Error) -> Option<&'static str> {
    match error.etype() {
        etype if *etype == FIRST_BYTE_TIMEOUT => Some("first_byte"),
        etype if *etype == RESPONSE_IDLE_TIMEOUT => Some("response_idle"),
        etype if *etype == TOTAL_TIMEOUT => Some("total"),
        // Towards servers there is no such limit.
        ErrorType::WriteTimedout => Some("client_write"),
        _ => None,
    }
}

/// Whether the server's answer sends the request elsewhere.
pub(super) fn is_refusal(etype: &ErrorType) -> bool {
    [RETRYABLE_STATUS, LEAVING, STREAM_ERROR, TOO_LONG].contains(etype)
}

impl Proxy {
    /// No connection could be made.
    pub(super) fn connect_failed(
        &self,
        client: &Client<'_>,
        address: SocketAddr,
        ctx: &mut RequestContext,
        error: Box<Error>,
    ) -> Box<Error> {
        if let Some(server) = &ctx.server {
            server.address_failed(Some(&address));
            server.note_tls_failure(&error);
        }
        let mut error = error.into_up();
        if is_our_own(&error) {
            // Pingora calls it internal when no socket can be made; for the request it is a connection that did not
            // come about.
            error.etype = ErrorType::SocketError;
        }
        self.judge_failure(client, ctx, &error, false);
        self.attempt_failed(client, ctx, error)
    }

    /// A connection was there, and the exchange on it failed.
    pub(super) fn exchange_failed(
        &self,
        client: &Client<'_>,
        ctx: &mut RequestContext,
        error: Box<Error>,
        is_reused: bool,
    ) -> Box<Error> {
        // A server that wants another certificate says so only when the handshake is over.
        if let Some(server) = &ctx.server {
            server.note_tls_failure(&error);
        }
        self.judge_failure(client, ctx, &error, is_reused);
        self.attempt_failed(client, ctx, error)
    }

    /// Tells health what a failed attempt says of the server.
    pub(super) fn judge_failure(&self, client: &Client<'_>, ctx: &mut RequestContext, error: &Error, is_reused: bool) {
        if is_our_own(error) {
            return;
        }
        let fault = match RequestContext::attempt_result(Some(error)) {
            AttemptResult::ConnectFailed => Fault::Connect,
            AttemptResult::Refused5xx if *error.etype() == RETRYABLE_STATUS => {
                ctx.watch.speaks_against(&self.health, of_status(ctx.refused_status), "");
                return;
            }
            AttemptResult::TimedOut if *error.etype() == FIRST_BYTE_TIMEOUT => Fault::FirstByte,
            AttemptResult::TimedOut if *error.etype() == RESPONSE_IDLE_TIMEOUT => Fault::Stream,
            AttemptResult::Broken if *error.esource() != ErrorSource::Upstream || *error.etype() == BAD_RESPONSE => {
                return;
            }
            AttemptResult::Broken if has_answer_begun(client) => Fault::Stream,
            // A kept connection may have been closed in order just when it was used.
            AttemptResult::Broken if !is_reused => Fault::Reset,
            _ => return,
        };
        ctx.watch.speaks_against(&self.health, Signal::Fault(fault), error.etype().as_str());
    }

    /// Ends an attempt: gives its load back, and decides whether there is another one.
    pub(super) fn attempt_failed(
        &self,
        client: &Client<'_>,
        ctx: &mut RequestContext,
        mut error: Box<Error>,
    ) -> Box<Error> {
        let result = RequestContext::attempt_result(Some(&error));
        let reason = match result {
            AttemptResult::ConnectFailed => Some(RetryReason::Connect),
            // An answer that came, if a bad one, is not asked for again.
            AttemptResult::Broken if *error.etype() == BAD_RESPONSE => None,
            AttemptResult::Broken if *error.esource() == ErrorSource::Upstream => Some(RetryReason::Reset),
            AttemptResult::Refused5xx => Some(RetryReason::Status),
            AttemptResult::TooLong => Some(RetryReason::ContextLength),
            _ => None,
        };
        if let Some(lease) = ctx.lease.take() {
            self.metrics.attempt_ended(lease.server(), result);
            let is_refused = *error.etype() == RETRYABLE_STATUS;
            ctx.attempt_is_over(if is_refused { ctx.refused_status } else { ctx.status }, result);
            ctx.tried.insert(lease.server());
            if result == AttemptResult::TooLong {
                ctx.was_too_long_for(lease.server(), lease.group());
            }
        }
        if let Some(limit) = attempts_limit(&error) {
            self.metrics.timed_out(limit);
        }
        if !has_answer_begun(client) {
            // The client was sent nothing of what this attempt has brought.
            (ctx.status, ctx.response_bytes) = (None, 0);
        }
        let may_retry = reason.is_some() && has_attempts_left(ctx) && !has_answer_begun(client);
        ctx.retry_reason = reason.filter(|_| may_retry);
        error.set_retry(may_retry);
        error
    }
}

pub(super) fn has_attempts_left(ctx: &RequestContext) -> bool {
    ctx.attempts < ctx.config().retry.max_attempts
}

/// Whether a byte of a final answer has gone to the client.
pub(super) fn has_answer_begun(client: &Client<'_>) -> bool {
    client.answered().is_some()
}

/// The answer to a request whose attempts are spent.
pub(super) fn reject_for(error: &Error) -> Reject {
    match (error.esource(), RequestContext::attempt_result(Some(error))) {
        (_, AttemptResult::ConnectFailed) => Reject::NotReachable,
        (_, AttemptResult::TimedOut) if *error.etype() == TOTAL_TIMEOUT => Reject::TotalTimeout,
        (_, AttemptResult::TimedOut) => Reject::FirstByteTimeout,
        (ErrorSource::Upstream, _) if [BAD_RESPONSE, ErrorType::InvalidHTTPHeader].contains(error.etype()) => {
            Reject::BadAnswer
        }
        (ErrorSource::Upstream, _) => Reject::ServerBroke,
        _ => Reject::Internal,
    }
}
