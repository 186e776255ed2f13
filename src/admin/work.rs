//! What the policies by work know, as `/status` shows it.

use serde::Serialize;

use crate::balance::WorkOnServer;
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

impl<'a> WorkStatus<'a> {
    pub(super) fn of(moment: &'a Moment) -> Option<Self> {
        let work = moment.usage.work.as_ref()?;
        let name = |number: usize| moment.in_force.server(number).map(|server| server.name());
        let server = |on: &WorkOnServer| {
            let WorkOnServer { server, prefill_s, prefilling, prefilling_long, streams, context_tokens } = *on;
            let name = name(server)?;
            Some(ServerWork { name, prefill_seconds: prefill_s, prefilling, prefilling_long, streams, context_tokens })
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
        })
    }
}
