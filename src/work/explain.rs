//! Why a request goes where it goes: what each server would have cost.

use super::cost::{Cost, Costs};
use super::fleet::Fleet;
use super::policy::Policy;
use super::request::Request;
use super::server::Obstacle;

/// One server in the eyes of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Explained {
    /// The server.
    pub server: usize,
    /// What it costs.
    pub cost: Cost,
    /// What the policy adds: with lanes, the risk that the next long prefill stalls a short request, in seconds.
    pub surcharge_s: f64,
    /// Whether the server is a lane.
    pub is_lane: bool,
    /// Why the request cannot go there, if it cannot.
    pub obstacle: Option<Obstacle>,
}

impl Explained {
    /// All of the cost.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        self.cost.total_s() + self.surcharge_s
    }
}

/// The costs of a request on all servers, in their order.
pub(super) fn explain(fleet: &Fleet, policy: &dyn Policy, request: &Request, now_s: f64) -> Vec<Explained> {
    let costs = Costs::new(fleet, request, now_s);
    let explained = |server: usize| {
        let cost = costs.on(server);
        Explained {
            server,
            cost,
            surcharge_s: policy.surcharge_s(fleet, server, &cost, now_s),
            is_lane: policy.lanes().contains(&server),
            obstacle: fleet.obstacle(server, request),
        }
    };
    (0..fleet.server_count()).map(explained).collect()
}
