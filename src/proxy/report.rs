//! What the journal is told of a request: where it went, and how it ended.

use std::time::Duration;

use pingora::Error;
use tokio::time::Instant;

use super::client::Client;
use super::context::RequestContext;
use super::reject::Reject;
use super::watch::Written;
use super::{Proxy, traced};
use crate::access::Admission;
use crate::access_log::{End, Record, VERSION};
use crate::balance::Lease;
use crate::explain::explain_demand;
use crate::journal::Placed;
use crate::metrics::{AnswerTimes, Outcome};
use crate::prompt::{self, Demand, Usage};
use crate::upstream::Server;

/// What an answer has brought, as far as somebody has counted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Brought {
    /// What its server says.
    pub(super) usage: Option<Usage>,
    /// Whether it is a good answer and comes as events.
    is_stream: bool,
    /// Tokens that were generated: as the server says, else as they were seen.
    pub(super) output_tokens: Option<u64>,
    /// When its first and its last token came.
    tokens_at: Option<(Instant, Instant)>,
    longest_gap: Option<Duration>,
}

impl Brought {
    pub(super) fn of(written: Written) -> Self {
        let Written { events, tail, tokens_at, longest_gap } = written;
        let usage = prompt::usage(&tail);
        let output_tokens = usage.and_then(|usage| usage.completion_tokens).or(events);
        // Without an event there are no tokens between which time goes by.
        let is_stream = events.is_some();
        Self { usage, is_stream, output_tokens, tokens_at, longest_gap: longest_gap.filter(|_| is_stream) }
    }

    /// The times that the client has waited.
    pub(super) fn times(&self, ctx: &RequestContext) -> AnswerTimes {
        let per_token = || {
            let (first, last) = self.tokens_at.filter(|_| self.longest_gap.is_some())?;
            let after_the_first = u32::try_from(self.output_tokens?.saturating_sub(1)).ok()?;
            (last - first).checked_div(after_the_first)
        };
        AnswerTimes {
            header: ctx.watch.header_at().map(|at| at - ctx.started),
            first_token: self.tokens_at.map(|(first, _)| first - ctx.started),
            per_token: per_token(),
            longest_gap: self.longest_gap,
        }
    }
}

impl Proxy {
    /// The request was given a place.
    pub(super) fn report_place(&self, ctx: &RequestContext, lease: &Lease, server: &Server, words: Vec<String>) {
        let journal = self.live.journal();
        if !journal.wants_places() {
            return;
        }
        journal.placed(Placed {
            request_id: ctx.id().to_owned(),
            attempt: ctx.attempts,
            tokens: ctx.demand.as_ref().map(Demand::prompt_tokens),
            standard_group: group_name(ctx, Some(lease.standard_group())).unwrap_or_default(),
            group: group_name(ctx, Some(lease.group())).unwrap_or_default(),
            server: server.name().to_owned(),
            reason: lease.reason(),
            waited_s: ctx.waited.as_secs_f64(),
            words,
        });
    }

    /// Why the request is going to go where it goes, in sentences; nothing when nobody wants to know, or enough others were
    /// explained in this second.
    pub(super) fn explained(&self, ctx: &RequestContext) -> Vec<String> {
        let Some(demand) = ctx.demand.as_ref().filter(|_| self.live.journal().wants_words()) else {
            return Vec::new();
        };
        let demand = Demand { work: demand.work.clone().or_else(|| ctx.work.clone()), ..demand.clone() };
        explain_demand(&self.live, ctx.endpoint, demand, &ctx.tried).words
    }

    /// The request is over.
    pub(super) fn report_end(
        &self,
        client: &Client<'_>,
        error: Option<&Error>,
        ctx: &mut RequestContext,
        brought: Brought,
    ) {
        let (journal, trace) = (self.live.journal(), ctx.trace.take().filter(|trace| trace.is_sampled));
        if !journal.wants_ends() && trace.is_none() {
            return;
        }
        let record = record(client, error, ctx, brought);
        if let Some(trace) = trace {
            let first_token = brought.tokens_at.map(|(first, _)| first).or_else(|| ctx.watch.first_byte_at());
            let first_token = first_token.map(|at| at - ctx.started);
            self.live.traces().ended(traced::ended(client, ctx, *trace, record.clone(), first_token));
        }
        if journal.wants_ends() {
            journal.ended(record);
        }
    }
}

/// A request that is over.
fn record(
    client: &Client<'_>,
    error: Option<&Error>,
    ctx: &RequestContext,
    Brought { usage, is_stream, output_tokens, .. }: Brought,
) -> Record {
    let (estimate, work) = (ctx.estimate.as_ref(), ctx.work.as_ref());
    let counted = || ctx.demand.as_ref().map(Demand::prompt_tokens);
    let group = group_name(ctx, ctx.standard_group);
    let is_elsewhere = ctx.group != ctx.standard_group;
    Record {
        version: VERSION,
        time: ctx.started_at,
        request_id: ctx.id().to_owned(),
        key: ctx.admission.as_ref().and_then(Admission::key_name).map(ToString::to_string),
        model: estimate.and_then(|estimate| estimate.model()).map(str::to_owned),
        endpoint: client.request().uri.path().to_owned(),
        body_bytes: ctx.request_bytes,
        // The same way by what was answered.
        stream: work.map_or(is_stream, |work| work.is_streamed),
        // Where the text was not read, a quarter of the bytes, as the policy counts.
        estimated_tokens: estimate.map_or_else(counted, |estimate| Some(estimate.tokens())),
        prompt_tokens: usage.map(|usage| usage.prompt_tokens),
        cached_tokens: usage.and_then(|usage| usage.cached_tokens),
        max_tokens: work.and_then(|work| work.output_limit_tokens),
        ignore_eos: ctx.demand.as_ref().is_some_and(|demand| demand.ignore_eos),
        output_tokens,
        redirected_from: group.clone().filter(|_| is_elsewhere),
        group,
        server: ctx.server.as_ref().map(|server| server.name().to_owned()),
        reason: ctx.reason.map(str::to_owned),
        attempts: u32::try_from(ctx.attempts).unwrap_or(u32::MAX),
        status: ctx.status,
        waited_s: ctx.waited.as_secs_f64(),
        ttft_s: ctx.watch.first_byte_at().map(|at| (at - ctx.started).as_secs_f64()),
        duration_s: ctx.started.elapsed().as_secs_f64(),
        sent_bytes: ctx.response_bytes,
        end: end_of(ctx.outcome(error)),
        rejected: ctx.reject.map(|reject: Reject| reject.reason().to_owned()),
    }
}

fn end_of(outcome: Outcome) -> End {
    match outcome {
        Outcome::Complete => End::Complete,
        Outcome::ClientGone => End::ClientGone,
        Outcome::UpstreamBroken => End::UpstreamBroken,
        Outcome::Rejected => End::Rejected,
    }
}

pub(super) fn group_name(ctx: &RequestContext, group: Option<usize>) -> Option<String> {
    ctx.config().groups.get(group?).map(|group| group.name.clone())
}
