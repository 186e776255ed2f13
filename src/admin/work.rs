//! What the policies by work know, as `/status` shows it.

use serde::Serialize;

use crate::balance::{LearnedEngine, WorkOnServer};
use crate::config::Group;
use crate::shadow::{Counts, Shadow};
use crate::upstream::Moment;

#[derive(Debug, Serialize)]
pub(super) struct WorkStatus<'a> {
    /// The servers that are lanes for long requests now.
    lanes: Vec<&'a str>,
    /// Requests that wait for their turn or for a server.
    held: usize,
    held_bytes: u64,
    /// For how long the oldest of them has waited.
    held_for_seconds: f64,
    /// From which predicted prefill on a request is long, unless a number of tokens is configured.
    long_from_prefill_seconds: f64,
    mean_output_tokens: f64,
    /// Of all work of the last minute.
    long_share: f64,
    servers: Vec<ServerWork<'a>>,
    engines: Vec<EngineWork<'a>>,
}

/// What was learned of the engines of one group.
#[derive(Debug, Serialize)]
struct EngineWork<'a> {
    group: &'a str,
    microseconds_per_token: f64,
    nanoseconds_per_token_pair: f64,
    floor_seconds: f64,
    /// First tokens on idle servers that it rests on.
    first_tokens: u64,
}

#[derive(Debug, Serialize)]
struct ServerWork<'a> {
    name: &'a str,
    /// Predicted prefill that is not done.
    prefill_seconds: f64,
    /// Requests without a first token.
    prefilling: u64,
    prefilling_long: u64,
    /// Requests with a first token.
    streams: u64,
    /// Prompts and answers of those.
    context_tokens: u64,
}

/// The choices of the policy beside the one in force, since it is there.
#[derive(Debug, Serialize)]
pub(super) struct ShadowStatus {
    policy: &'static str,
    /// Requests that went where it would have sent them.
    same_server: u64,
    same_group: u64,
    other_group: u64,
    /// Requests that it would have refused, or still held at their end.
    none: u64,
    /// Requests that run, and that it would hold.
    held: usize,
}

impl ShadowStatus {
    pub(super) fn of(shadow: &Shadow) -> Self {
        let Counts { same_server, same_group, other_group, none } = shadow.counts();
        Self { policy: shadow.policy(), same_server, same_group, other_group, none, held: shadow.held() }
    }
}

impl<'a> WorkStatus<'a> {
    pub(super) fn of(moment: &'a Moment) -> Option<Self> {
        let work = moment.usage.work.as_ref()?;
        let name = |number: usize| moment.in_force.server(number).map(|server| server.name());
        let server = |on: &WorkOnServer| {
            let WorkOnServer { server, prefill_s, prefilling, prefilling_long, streams, context_tokens } = *on;
            let name = name(server)?;
            Some(ServerWork { name, prefill_seconds: prefill_s, prefilling, prefilling_long, streams, context_tokens })
        };
        let engine = |(group, engine): (&'a Group, &LearnedEngine)| EngineWork {
            group: &group.name,
            microseconds_per_token: engine.per_token_s * 1e6,
            nanoseconds_per_token_pair: engine.per_token_pair_s * 1e9,
            floor_seconds: engine.floor_s,
            first_tokens: engine.first_tokens,
        };
        Some(Self {
            lanes: work.lanes.iter().filter_map(|number| name(*number)).collect(),
            held: work.held,
            held_bytes: work.held_bytes,
            held_for_seconds: work.held_for_s,
            long_from_prefill_seconds: work.long_from_s,
            mean_output_tokens: work.mean_output_tokens,
            long_share: work.long_share,
            servers: work.servers.iter().filter_map(server).collect(),
            engines: moment.in_force.config.groups.iter().zip(&work.engines).map(engine).collect(),
        })
    }
}
