//! An attempt failed: may the request be tried again?
//!
//! Only while nothing has gone to the client, and only on faults that say that the server did not take the request or
//! did not begin its answer: a connection that cannot be made or that ends before the first body byte, and 502, 503,
//! 504. Never for an answer of the server's own, however bad, and never after a time limit: the work may be running.

use pingora::proxy::Session;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType};

use super::Proxy;
use super::context::RequestContext;
use super::reject::Reject;
use super::silence::{FIRST_BYTE_TIMEOUT, RESPONSE_IDLE_TIMEOUT, TOTAL_TIMEOUT};
use crate::metrics::{AttemptResult, RetryReason};

/// The server answered with a status that is better tried elsewhere.
pub(super) const RETRYABLE_STATUS: ErrorType = ErrorType::Custom("RetryableStatus");

/// The server's answer cannot be relayed: it can be read in two ways, or switches protocols unasked.
pub(super) const BAD_RESPONSE: ErrorType = ErrorType::Custom("BadResponse");

pub(super) fn is_timeout(etype: &ErrorType) -> bool {
    [FIRST_BYTE_TIMEOUT, RESPONSE_IDLE_TIMEOUT, TOTAL_TIMEOUT].contains(etype)
}

impl Proxy {
    /// No connection could be made.
    pub(super) fn connect_failed(
        &self,
        session: &mut Session,
        peer: &HttpPeer,
        ctx: &mut RequestContext,
        error: Box<Error>,
    ) -> Box<Error> {
        if let Some(server) = &ctx.server {
            server.address_failed(peer._address.as_inet());
            server.note_tls_failure(&error);
        }
        self.attempt_failed(session, ctx, error.into_up())
    }

    /// A connection was there, and the exchange on it failed.
    pub(super) fn exchange_failed(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        mut error: Box<Error>,
    ) -> Box<Error> {
        // The time limits are watched where the client is: Pingora takes them for the client's fault.
        if is_timeout(error.etype()) {
            error.as_up();
        }
        // A server that wants another certificate says so only when the handshake is over.
        if let Some(server) = &ctx.server {
            server.note_tls_failure(&error);
        }
        self.attempt_failed(session, ctx, error)
    }

    /// Ends an attempt: gives its load back, and decides whether there is another one.
    pub(super) fn attempt_failed(
        &self,
        session: &mut Session,
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
            _ => None,
        };
        if let Some(lease) = ctx.lease.take() {
            self.metrics.attempt_ended(lease.server(), result);
            ctx.tried.insert(lease.server());
        }
        let may_retry = reason.is_some() && has_attempts_left(ctx) && !has_answer_begun(session);
        ctx.retry_reason = reason.filter(|_| may_retry);
        error.set_retry(may_retry);
        error
    }
}

pub(super) fn has_attempts_left(ctx: &RequestContext) -> bool {
    ctx.attempts < ctx.config().retry.max_attempts
}

/// Whether a byte of a final answer has gone to the client.
pub(super) fn has_answer_begun(session: &Session) -> bool {
    session.response_written().is_some_and(|header| !header.status.is_informational())
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
