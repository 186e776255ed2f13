//! The policy `least_work`: every request goes where it costs least. Nothing is held.

use super::cost::{Costs, cheapest};
use super::fleet::Fleet;
use super::policy::{Holding, Policy, Verdict};
use super::request::Request;

/// See the module.
#[derive(Debug, Default)]
pub struct LeastWork;

impl Policy for LeastWork {
    fn name(&self) -> &'static str {
        "least_work"
    }

    fn place(&mut self, fleet: &Fleet, request: &Request, _: Holding, now_s: f64) -> Verdict {
        let costs = Costs::new(fleet, request, now_s);
        match cheapest(fleet, fleet.candidates(request).map(|server| (server, costs.on(server).total_s()))) {
            Some(server) => Verdict::Assign { server, reason: "least_cost" },
            None => Verdict::Hold,
        }
    }

    fn group(&self, _: usize) -> &'static str {
        "all"
    }
}
