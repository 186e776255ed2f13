//! An explanation with names, as JSON.

use serde::Serialize;

use super::asked::Asked;
use super::words;
use crate::balance::{Crossing, ExplainedGroup, ExplainedServer, Explanation, Unavailable, WouldBe};
use crate::upstream::InForce;

/// Why a request would go where it would go.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// The policy in force.
    pub policy: &'static str,
    /// The kind of endpoint.
    pub endpoint: &'static str,
    /// Tokens of the prompt, as the policy sees it: by buckets a quarter of the bytes.
    pub prompt_tokens: f64,
    /// Whether that is an estimate from the text.
    pub is_estimated: bool,
    /// What the request would weigh while it runs, in tokens.
    pub load_tokens: f64,
    /// Tokens that a server's context must have room for, with the answer; null when nobody knows.
    pub needed_tokens: Option<u64>,
    /// From which predicted prefill on a request is long; null when the policy does not ask.
    pub long_from_seconds: Option<f64>,
    /// Requests that are held.
    pub held: usize,
    /// What would become of it.
    pub decision: Decision,
    /// The groups, in order.
    pub groups: Vec<GroupView>,
    /// The servers, group by group.
    pub servers: Vec<ServerView>,
    /// The same in sentences.
    pub words: Vec<String>,
}

/// What would become of a request.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Decision {
    /// It would go to a server.
    Server {
        /// Its name.
        server: String,
        /// Its group.
        group: String,
        /// The group that the length is for.
        standard_group: String,
        /// Why it is in that group: `standard`, `redirected` or `failover`.
        placement: &'static str,
        /// Why that server, in the policy's words.
        reason: &'static str,
    },
    /// The policy would hold it until it is its turn.
    Held,
    /// It would wait for a server, if waiting is allowed.
    Waits {
        /// What it waits for.
        why: String,
    },
    /// It would be refused.
    Refused {
        /// Why.
        why: String,
    },
}

/// A group in the eyes of a request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupView {
    /// Its name.
    pub name: String,
    /// What runs in it.
    pub load_tokens: f64,
    /// Requests that run in it.
    pub in_flight: u64,
    /// `1 - (load / load of the standard group)^sensitivity`; null when it is no neighbour of the standard group.
    pub gap: Option<f64>,
    /// `exp(-strength x distance)`.
    pub affinity: Option<f64>,
    /// Their product.
    pub product: Option<f64>,
    /// What the product has to be above.
    pub threshold: Option<f64>,
    /// `chosen`, `standard` (and not chosen), `not_enough` (the product), `not_lighter`, `no_live_server`, or `no_choice` when
    /// the policy does not choose among groups.
    pub verdict: &'static str,
}

/// A server in the eyes of a request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerView {
    /// Its name.
    pub name: String,
    /// Its group.
    pub group: String,
    /// What runs on it.
    pub load_tokens: f64,
    /// Requests that run on it.
    pub in_flight: u64,
    /// `chosen`, `dearer` (by work, or with more load), `other_group`, `out`, `full`, `too_long`; for a long
    /// request that is held also `lane_taken` and `no_lane`.
    pub verdict: &'static str,
    /// Whether it is a lane for long requests; by work.
    pub is_lane: Option<bool>,
    /// What it would cost, by work.
    pub cost: Option<CostView>,
}

/// What a request would cost on a server, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CostView {
    /// Prefill that waits there.
    pub waiting: f64,
    /// The request's own prefill.
    pub prefill: f64,
    /// What generating the answer takes there.
    pub decode: f64,
    /// The wait for room in the KV cache.
    pub kv_wait: f64,
    /// Harm done to the streams that are there, weighed.
    pub harm: f64,
    /// The risk that a long prefill comes.
    pub risk: f64,
    /// All of it.
    pub total: f64,
    /// Whether the request is long there.
    pub is_long: bool,
}

impl Answer {
    pub(super) fn new(in_force: &InForce, asked: &Asked, explanation: &Explanation) -> Self {
        let names = Names(in_force);
        let Explanation { policy, prompt_tokens: _, load, verdict, groups, servers, held, long_from_s } = explanation;
        let chosen = match verdict {
            WouldBe::On { server, group, .. } => Some((*server, *group)),
            WouldBe::Held | WouldBe::Not(_) => None,
        };
        let is_by_work = long_from_s.is_some();
        let tokens =
            if is_by_work { as_f64(asked.demand.prompt_tokens()) } else { as_f64(asked.demand.body_bytes) / 4.0 };
        let group =
            |(number, group): (usize, &ExplainedGroup)| names.group_view(number, group, chosen.map(|(_, group)| group));
        let mut answer = Self {
            policy,
            endpoint: asked.endpoint.label(),
            prompt_tokens: tokens,
            is_estimated: asked.is_estimated,
            load_tokens: load.tokens(),
            needed_tokens: asked.demand.work.as_ref().and_then(|work| work.needed_tokens),
            long_from_seconds: *long_from_s,
            held: *held,
            decision: names.decision(verdict),
            groups: groups.iter().enumerate().map(group).collect(),
            servers: servers.iter().map(|server| names.server_view(server, chosen)).collect(),
            words: Vec::new(),
        };
        answer.words = words::of(&answer);
        answer
    }
}

/// The names of what is in force.
struct Names<'a>(&'a InForce);

impl Names<'_> {
    fn group(&self, number: usize) -> String {
        self.0.config.groups.get(number).map(|group| group.name.clone()).unwrap_or_default()
    }

    fn server(&self, number: usize) -> String {
        self.0.server(number).map(|server| server.name().to_owned()).unwrap_or_default()
    }

    fn decision(&self, verdict: &WouldBe) -> Decision {
        match *verdict {
            WouldBe::On { server, group, standard_group, placement, reason } => Decision::Server {
                server: self.server(server),
                group: self.group(group),
                standard_group: self.group(standard_group),
                placement: placement.label(),
                reason,
            },
            WouldBe::Held => Decision::Held,
            WouldBe::Not(why @ (Unavailable::NoneLive | Unavailable::NoneFree)) => {
                Decision::Waits { why: why.to_string() }
            }
            WouldBe::Not(why) => Decision::Refused { why: why.to_string() },
        }
    }

    fn group_view(&self, number: usize, group: &ExplainedGroup, chosen: Option<usize>) -> GroupView {
        let ExplainedGroup { usage, is_live, is_standard, crossing } = group;
        let verdict = match crossing {
            _ if chosen == Some(number) => "chosen",
            _ if !is_live => "no_live_server",
            _ if *is_standard => "standard",
            Some(Crossing { gap, .. }) if *gap <= 0.0 => "not_lighter",
            Some(_) => "not_enough",
            None => "no_choice",
        };
        GroupView {
            name: self.group(number),
            load_tokens: usage.load.tokens(),
            in_flight: usage.in_flight,
            gap: crossing.map(|crossing| crossing.gap),
            affinity: crossing.map(|crossing| crossing.affinity),
            product: crossing.map(|crossing| crossing.score),
            threshold: crossing.map(|crossing| crossing.threshold),
            verdict,
        }
    }

    fn server_view(&self, server: &ExplainedServer, chosen: Option<(usize, usize)>) -> ServerView {
        let ExplainedServer { server: number, group, usage, obstacle, work } = server;
        let verdict = match (obstacle, chosen) {
            (_, Some((chosen, _))) if chosen == *number => "chosen",
            (Some(obstacle), _) => obstacle,
            // By work all servers are compared, whatever group they are in.
            (None, Some((_, chosen_group))) if work.is_none() && chosen_group != *group => "other_group",
            (None, Some(_)) => "dearer",
            (None, None) if work.is_some_and(|work| !work.is_lane) => "no_lane",
            (None, None) => "lane_taken",
        };
        let cost = work.map(|work| CostView {
            waiting: work.cost.waiting_s,
            prefill: work.cost.prefill_s,
            decode: work.cost.decode_s,
            kv_wait: work.cost.kv_wait_s,
            harm: work.cost.harm_s,
            risk: work.surcharge_s,
            total: work.total_s(),
            is_long: work.cost.is_long,
        });
        ServerView {
            name: self.server(*number),
            group: self.group(*group),
            load_tokens: usage.load.tokens(),
            in_flight: usage.in_flight,
            verdict,
            is_lane: work.map(|work| work.is_lane),
            cost,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "lengths stay far below 2^53")]
fn as_f64(count: u64) -> f64 {
    count as f64
}
