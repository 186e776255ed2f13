//! The policy `lanes`: long prefills are concentrated on a few servers, one at a time each, and wait in the balancer.
//!
//! Least work alone puts each long prefill where there is least work, so that soon several servers are blocked at once, and
//! short requests that have not even arrived yet pay for it. Here the last K servers are *lanes*:
//!
//! - a **long** request goes to the cheapest lane that is free: no unfinished long prefill, and room in the KV cache; while
//!   there is none it is held. (In an engine without room it would stand in front of everything that comes after it.) One that
//!   may go to no lane (it was tried there, or is too long for them) goes to the cheapest other server at once;
//! - a **short** one goes where it costs least, a lane being charged with the risk that a long prefill comes and stalls it.
//!
//! Without long requests the risk is zero, and this is least work.

use super::cost::{Cost, Costs, cheapest};
use super::fleet::Fleet;
use super::lane_choice::choose;
use super::lane_count::LaneCount;
use super::policy::{Holding, Policy, Verdict};
use super::request::Request;

/// See the module.
#[derive(Debug)]
pub struct Lanes {
    count: LaneCount,
    lanes: Vec<usize>,
    /// Whether each server is one.
    is_lane: Vec<bool>,
    /// Their speeds together.
    speed: f64,
    /// How many were wanted, and what [`Fleet::changes`] was, when they were chosen.
    chosen_for: Option<(usize, u64)>,
}

impl Lanes {
    /// No lanes yet: they come with the first request. A pin says how many there always are.
    #[must_use]
    pub fn new(pin: Option<usize>) -> Self {
        let (count, lanes, is_lane) = (LaneCount::new(pin), Vec::new(), Vec::new());
        Self { count, lanes, is_lane, speed: 0.0, chosen_for: None }
    }

    fn is_lane(&self, server: usize) -> bool {
        self.is_lane.get(server).copied().unwrap_or(false)
    }

    /// The share of the time in which a stream on a lane is stalled: long prefill seconds per second and lane (of speed 1).
    fn risk(&self, fleet: &Fleet, now_s: f64) -> f64 {
        if self.lanes.is_empty() { 0.0 } else { fleet.learned.long_prefill_rate(now_s) / self.speed }
    }

    /// Among the servers on which the request is short, the cheapest.
    fn place_short(&self, fleet: &Fleet, request: &Request, costs: &Costs<'_>, now_s: f64) -> Option<Verdict> {
        if costs.is_long_everywhere() {
            return None;
        }
        let risk = self.risk(fleet, now_s);
        let priced = |server: usize| {
            let cost = costs.on(server);
            let risk_s = if self.is_lane(server) { risk * cost.decode_s } else { 0.0 };
            (!cost.is_long).then_some((server, cost.total_s() + risk_s))
        };
        let server = cheapest(fleet, fleet.candidates(request).filter_map(priced))?;
        Some(Verdict::Assign { server, reason: if self.is_lane(server) { "short_on_lane" } else { "short" } })
    }

    fn place_long(&self, fleet: &Fleet, request: &Request, costs: &Costs<'_>, holding: Holding) -> Verdict {
        let priced = |server: usize| (server, costs.on(server).total_s());
        let lanes = || self.lanes.iter().copied();
        // While long prompts are held most lanes have one, and this is asked at every event: so that comes first.
        let idle = lanes().filter(|lane| fleet.book.sums(*lane).waiting_long == 0);
        let free = idle.filter(|lane| costs.fits(*lane) && fleet.takes(*lane) && fleet.suits(*lane, request));
        if let Some(server) = cheapest(fleet, free.map(priced)) {
            return Verdict::Assign { server, reason: "lane" };
        }
        let mut suitable = lanes().filter(|lane| fleet.suits(*lane, request)).peekable();
        if holding == Holding::Allowed && suitable.peek().is_some() {
            return Verdict::Hold;
        }
        // Rather behind another long prompt than in front of many short ones.
        let found = cheapest(fleet, suitable.filter(|lane| fleet.takes(*lane)).map(priced));
        let found = found.map(|server| (server, "lane_overdue"));
        let beside = || cheapest(fleet, fleet.candidates(request).map(priced));
        let found = found.or_else(|| beside().map(|server| (server, "off_lane")));
        found.map_or(Verdict::Hold, |(server, reason)| Verdict::Assign { server, reason })
    }
}

impl Policy for Lanes {
    fn name(&self) -> &'static str {
        "lanes"
    }

    fn adapt(&mut self, fleet: &Fleet, held_since_s: Option<f64>, now_s: f64) {
        self.count.update(fleet.up_count(), fleet.learned.long_share(), held_since_s, now_s);
        let wanted = (self.count.count(), fleet.changes());
        if self.chosen_for == Some(wanted) {
            return;
        }
        self.chosen_for = Some(wanted);
        self.lanes = choose(fleet, self.count.count(), self.count.is_pinned());
        self.is_lane = vec![false; fleet.server_count()];
        self.lanes.iter().for_each(|lane| self.is_lane[*lane] = true);
        self.speed = self.lanes.iter().map(|lane| fleet.slowness(*lane).recip()).sum();
    }

    fn place(&mut self, fleet: &Fleet, request: &Request, holding: Holding, now_s: f64) -> Verdict {
        let costs = Costs::new(fleet, request, now_s);
        let short = self.place_short(fleet, request, &costs, now_s);
        short.unwrap_or_else(|| self.place_long(fleet, request, &costs, holding))
    }

    fn next_change_s(&self, held_since_s: f64) -> Option<f64> {
        self.count.next_addition_s(held_since_s)
    }

    /// The risk that a long prefill comes and stalls a short request's stream.
    fn surcharge_s(&self, fleet: &Fleet, server: usize, cost: &Cost, now_s: f64) -> f64 {
        if self.is_lane(server) && !cost.is_long { self.risk(fleet, now_s) * cost.decode_s } else { 0.0 }
    }

    fn lanes(&self) -> &[usize] {
        &self.lanes
    }

    fn group(&self, server: usize) -> &'static str {
        if self.is_lane(server) { "long" } else { "short" }
    }
}
