//! Why a request would go where it would go, without sending it.

use std::collections::HashMap;

use super::dispatch::{Decision, Dispatch};
use super::state::{State, too_long, unavailable};
use super::{Load, Placement, Policy, Topology, Tried, Unavailable, Usage};
use crate::prompt::Demand;
use crate::work::{Explained, Rejection};

/// What would become of a request now, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The policy's name.
    pub policy: &'static str,
    /// Tokens of the prompt, as the policy sees it.
    pub prompt_tokens: u64,
    /// What the request would weigh.
    pub load: Load,
    /// What would become of it.
    pub verdict: WouldBe,
    /// The groups, in order.
    pub groups: Vec<ExplainedGroup>,
    /// The servers, group by group.
    pub servers: Vec<ExplainedServer>,
    /// Requests that are held now, by work.
    pub held: usize,
    /// From which predicted prefill on a request is long, in seconds, by work.
    pub long_from_s: Option<f64>,
}

/// What would become of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WouldBe {
    /// It would go to a server.
    On {
        /// The server's number.
        server: usize,
        /// The server's group.
        group: usize,
        /// The group that the length is for.
        standard_group: usize,
        /// Why it is in that group.
        placement: Placement,
        /// Why that server, in the policy's words.
        reason: &'static str,
    },
    /// It would be held until it is its turn.
    Held,
    /// It would have to wait for a server, or be refused.
    Not(Unavailable),
}

/// A group in the eyes of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExplainedGroup {
    /// What runs in it.
    pub usage: Usage,
    /// Whether a server of it takes requests.
    pub is_live: bool,
    /// Whether the request's length is for it; by buckets only.
    pub is_standard: bool,
    /// What speaks for crossing to it; `None` when it is no neighbour of the standard group.
    pub crossing: Option<Crossing>,
}

/// What speaks for crossing to a neighbour of the standard group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Crossing {
    /// `1 - (load / load of the standard group)^sensitivity`, 0 to 1; 0 when it is not lighter.
    pub gap: f64,
    /// `exp(-strength x distance)`, 0 to 1.
    pub affinity: f64,
    /// Their product.
    pub score: f64,
    /// What the score has to be above.
    pub threshold: f64,
}

/// A server in the eyes of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExplainedServer {
    /// Its number.
    pub server: usize,
    /// Its group.
    pub group: usize,
    /// What runs on it.
    pub usage: Usage,
    /// Why the request cannot go there, in a word or two of a closed list.
    pub obstacle: Option<&'static str>,
    /// What it would cost there, by work.
    pub work: Option<Explained>,
}

impl State {
    pub(super) fn explain(&mut self, demand: &Demand, tried: &Tried) -> Explanation {
        let load = self.policy.load_of(demand);
        let (verdict, costs) = match &mut self.dispatch {
            Some(dispatch) => self::verdict_by_work(dispatch, &self.topology, demand, tried),
            None => {
                (self.find_by_load(load, tried).map_or_else(WouldBe::Not, |found| self.would_be(found)), Vec::new())
            }
        };
        let costs: HashMap<usize, Explained> = costs.into_iter().collect();
        let cost_of = |server: usize| costs.get(&server).copied();
        let server = |server: usize| {
            let (usage, admission, work) = (self.ledger.server(server), self.ledger.admission(server), cost_of(server));
            let obstacle = match work.and_then(|cost| cost.obstacle) {
                Some(obstacle) => Some(obstacle.label()),
                None if !admission.is_open => Some("out"),
                None if !admission.admits(usage, load) => Some("full"),
                None if tried.contains(server) => Some("tried"),
                None => None,
            };
            ExplainedServer { server, group: self.topology.group_of(server).unwrap_or(0), usage, obstacle, work }
        };
        let long_from_s = self.dispatch.as_ref().map(Dispatch::long_from_s);
        Explanation {
            policy: self.policy.name(),
            prompt_tokens: demand.prompt_tokens(),
            load,
            verdict,
            groups: self.explained_groups(load),
            servers: self.topology.servers().map(server).collect(),
            held: self.dispatch.as_ref().map_or(0, Dispatch::held),
            long_from_s,
        }
    }

    fn would_be(&self, (server, standard_group, placement): (usize, usize, Placement)) -> WouldBe {
        let group = self.topology.group_of(server).unwrap_or(standard_group);
        WouldBe::On { server, group, standard_group, placement, reason: placement.label() }
    }

    fn explained_groups(&self, load: Load) -> Vec<ExplainedGroup> {
        let buckets = match &*self.policy {
            Policy::ReferenceBucket(buckets) => Some(buckets),
            Policy::ReferencePlain | Policy::ByWork(_) => None,
        };
        let standard = buckets.map(|buckets| buckets.standard(load.tokens()));
        let load_of = |group: usize| self.drawing_load(group);
        let crossing = |group: usize| {
            let (buckets, standard) = (buckets?, standard?);
            buckets.is_neighbour(standard, group).then(|| {
                let (gap, affinity) =
                    (buckets.gap(load_of(group), load_of(standard)), buckets.affinity(group, load.tokens()));
                Crossing { gap, affinity, score: gap * affinity, threshold: buckets.tuning().threshold }
            })
        };
        let group = |group: usize| ExplainedGroup {
            usage: self.ledger.group(group),
            is_live: self.is_live(group),
            is_standard: standard == Some(group),
            crossing: crossing(group),
        };
        (0..self.topology.groups().len()).map(group).collect()
    }
}

/// What the dispatcher would do with a request, and what it would cost on each server, by number.
fn verdict_by_work(
    dispatch: &mut Dispatch,
    topology: &Topology,
    demand: &Demand,
    tried: &Tried,
) -> (WouldBe, Vec<(usize, Explained)>) {
    let (decision, costs) = dispatch.explain(demand, tried);
    let verdict = match decision {
        Some(Decision::Server { server, reason }) => {
            let group = topology.group_of(server).unwrap_or(0);
            WouldBe::On { server, group, standard_group: group, placement: Placement::Standard, reason }
        }
        None => WouldBe::Held,
        Some(Decision::Not(Rejection::TooLong { max_model_len })) => match too_long(demand, max_model_len) {
            Some(smaller) => return verdict_by_work(dispatch, topology, &smaller, tried),
            None => WouldBe::Not(unavailable(Rejection::TooLong { max_model_len }, demand)),
        },
        Some(Decision::Not(why)) => WouldBe::Not(unavailable(why, demand)),
    };
    (verdict, costs)
}
