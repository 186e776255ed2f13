//! The end of a request: the last word to the client, and giving everything back.

use pingora::{Error, ErrorSource, ErrorType};

use super::Proxy;
use super::client::Client;
use super::context::RequestContext;
use super::reject::Reject;
use super::report::Brought;
use super::retry::{has_answer_begun, reject_for, requests_limit};
use crate::metrics::{AttemptResult, FinishedRequest};

impl Proxy {
    /// All attempts are spent, or the client has gone: answers if someone is there to hear it.
    pub(super) async fn fail(&self, client: &mut Client<'_>, error: &Error, ctx: &mut RequestContext) {
        client.close_after();
        if has_answer_begun(client) {
            return;
        }
        let reject = match ctx.reject {
            Some(reject) => reject,
            None if is_malformed(error) => Reject::BadHeader,
            None if ctx.is_client_gone(error) => return,
            None => reject_for(error),
        };
        if let Err(error) = self.reject(client, ctx, reject).await {
            log::debug!("the client did not take the answer {}: {error}", reject.status());
        }
    }

    /// The request is over.
    pub(super) fn finish(&self, client: &Client<'_>, error: Option<&Error>, ctx: &mut RequestContext) {
        let brought = Brought::of(ctx.watch.take_written());
        if let Some(mut lease) = ctx.lease.take() {
            let result = RequestContext::attempt_result(error);
            self.metrics.attempt_ended(lease.server(), result);
            ctx.attempt_is_over(ctx.status, result);
            if result == AttemptResult::Answered {
                ctx.watch.answered(&self.health, ctx.status);
                if ctx.status.is_some_and(|status| (200..300).contains(&status)) {
                    self.learn(ctx, brought.usage);
                    lease.answered(brought.output_tokens);
                    if let Some(shadow) = &ctx.shadow {
                        shadow.answered(brought.output_tokens);
                    }
                }
            }
        }
        if let (Some(length), Some(demand)) = (ctx.length, &ctx.demand) {
            self.metrics.latency().answered(length, demand.prompt_tokens(), &brought.times(ctx));
        }
        ctx.watch.over();
        ctx.shadow = None;
        if let Some(reject) = ctx.reject {
            self.metrics.rejected(reject.reason());
        }
        if let Some(limit) = ended_by(error, ctx.reject) {
            self.metrics.timed_out(limit);
        }
        log_end(error, ctx);
        self.report_end(client, error, ctx, brought);
        self.metrics.request_finished(&FinishedRequest {
            endpoint: ctx.endpoint,
            outcome: ctx.outcome(error),
            status: ctx.status,
            group: ctx.group,
            time_to_first_byte: ctx.watch.first_byte_at().map(|at| at - ctx.started),
            duration: ctx.started.elapsed(),
            request_bytes: ctx.request_bytes,
            response_bytes: ctx.response_bytes,
        });
    }
}

/// The key of the time limit that ended the request, if one did.
fn ended_by(error: Option<&Error>, reject: Option<Reject>) -> Option<&'static str> {
    match reject {
        Some(Reject::BodyTimeout { limit }) => Some(limit),
        _ => error.and_then(requests_limit),
    }
}

/// One line a request, for whoever looks for one: its id stands in the answer, and in the server's log.
fn log_end(error: Option<&Error>, ctx: &RequestContext) {
    log::debug!(
        "request {} has ended: {}, status {}, reason {}, {} attempts, the last on {}, {} ms{}",
        ctx.id(),
        ctx.outcome(error).label(),
        ctx.status.map_or_else(|| "none".to_owned(), |status| status.to_string()),
        ctx.reject.map_or("none", Reject::reason),
        ctx.attempts,
        ctx.server.as_ref().map_or("no server", |server| server.name()),
        ctx.started.elapsed().as_millis(),
        error.map_or_else(String::new, |error| format!(": {error}")),
    );
}

/// Whether the client sent something that cannot be passed on, as opposed to leaving.
fn is_malformed(error: &Error) -> bool {
    *error.esource() == ErrorSource::Downstream && *error.etype() == ErrorType::InvalidHTTPHeader
}
