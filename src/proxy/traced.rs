//! A request's place in a trace, while spans are exported: where it begins, where its attempts begin and end, and what
//! servers are told of it.

use std::time::Duration;

use pingora::http::RequestHeader;

use super::Proxy;
use super::client::Client;
use super::context::RequestContext;
use super::report::group_name;
use crate::access_log::Record;
use crate::http1::Changes;
use crate::metrics::AttemptResult;
use crate::prompt::Endpoint;
use crate::traces::{Attempt, Ended, TRACEPARENT, TRACESTATE, Trace};

impl Proxy {
    /// Finds the request's place. What is taken out of requests is not believed either, so that clients who are not
    /// trusted cannot decide what is exported.
    pub(super) fn begin_trace(&self, header: &RequestHeader, ctx: &mut RequestContext) {
        let traces = self.live.traces();
        ctx.trace = if ctx.config().strip_request_headers.contains(&TRACEPARENT) {
            traces.begin(&http::HeaderMap::new())
        } else {
            traces.begin(&header.headers)
        };
    }
}

impl RequestContext {
    /// Whether its spans are exported.
    pub(super) fn is_traced(&self) -> bool {
        self.trace.as_ref().is_some_and(|trace| trace.is_sampled)
    }

    /// The request has a place on its present server, for which it has waited so long.
    pub(super) fn attempt_begins(&mut self, waited: Duration) {
        if !self.is_traced() {
            return;
        }
        let (begun, group) = (self.started.elapsed(), group_name(self, self.group).unwrap_or_default());
        let (Some(trace), Some(server)) = (&mut self.trace, &self.server) else { return };
        trace.attempts.push(Attempt {
            span_id: rand::random(),
            begun,
            waited,
            ended: None,
            server: server.name().to_owned(),
            host: server.config().host.clone(),
            port: server.config().port,
            has_tls: server.has_tls(),
            group,
            reason: self.reason.unwrap_or_default(),
            status: None,
            // Until more is known: no word from the proxy's phases means that the client has left.
            result: AttemptResult::ClientGone.label(),
        });
    }

    /// The present attempt is over.
    pub(super) fn attempt_is_over(&mut self, status: Option<u16>, result: AttemptResult) {
        let at = self.started.elapsed();
        if let Some(trace) = &mut self.trace {
            trace.attempt_over(at, status, result.label());
        }
    }
}

/// Tells a server which span its own ones are to hang under.
pub(super) fn tell(changes: &mut Changes<'_>, ctx: &RequestContext) {
    let Some(trace) = &ctx.trace else { return };
    if let Some(traceparent) = trace.traceparent() {
        changes.set(TRACEPARENT.as_str(), traceparent.as_bytes().to_vec());
    }
    if trace.is_own() {
        changes.remove(TRACESTATE.as_str());
    }
}

/// All that the spans of a request are made of.
pub(super) fn ended(
    client: &Client<'_>,
    ctx: &RequestContext,
    trace: Trace,
    record: Record,
    first_token: Option<Duration>,
) -> Box<Ended> {
    let header = client.request();
    Box::new(Ended {
        trace,
        record,
        method: header.method.clone(),
        version: header.version,
        has_tls: client.origin().has_tls,
        is_known_path: ctx.endpoint != Endpoint::Other,
        length: ctx.length.map(crate::balance::Length::label),
        first_token,
    })
}
