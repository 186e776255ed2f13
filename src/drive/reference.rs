//! The two policies of the example under the same driver: the live balancer's own rules and count, asked as a
//! [`work::Policy`](crate::work::Policy).

use std::collections::HashMap;
use std::sync::Arc;

use crate::balance::{Admission, Balancer, GroupMismatch, Lease, Placement, Ties, Topology, Tried};
use crate::prompt::{Budget, DEFAULT_MAX_TOKENS, Demand};
use crate::work::{Fleet, Holding, Policy, Request, RequestId, Verdict};

/// More than any body has: the balancer counts on bodies that a listener has accepted.
const MOST_BYTES: u64 = 1 << 40;

/// The groups of servers, with what decides among them.
#[derive(Debug, Clone)]
pub struct Groups {
    /// Names, short prompts first.
    pub names: Vec<String>,
    /// Servers of each, numbered from 0 over all groups.
    pub sizes: Vec<usize>,
    /// How a request finds its group and server.
    pub policy: crate::balance::Policy,
    /// Which of equals gets it.
    pub ties: Ties,
}

/// A policy of the example.
#[derive(Debug)]
pub struct Reference {
    name: &'static str,
    balancer: Arc<Balancer>,
    group_names: Vec<String>,
    group_of: Vec<usize>,
    /// The places of active requests: dropping one gives its load back.
    leases: HashMap<RequestId, Lease>,
}

impl Reference {
    /// The policy over idle servers.
    ///
    /// # Errors
    /// When there are not as many groups as the policy has buckets.
    pub fn new(groups: Groups) -> Result<Self, GroupMismatch> {
        let Groups { names, sizes, policy, ties } = groups;
        let mut next = 0;
        let numbered = sizes.iter().map(|size| {
            next += size;
            (next - size..next).collect()
        });
        let topology = Topology::new(numbered.collect()).expect("servers are numbered one after the other");
        let name = policy.name();
        let group_of = topology.servers().filter_map(|server| topology.group_of(server)).collect();
        let balancer = Arc::new(Balancer::new(topology, policy, ties)?);
        Ok(Self { name, balancer, group_names: names, group_of, leases: HashMap::new() })
    }
}

impl Policy for Reference {
    fn name(&self) -> &'static str {
        self.name
    }

    fn place(&mut self, fleet: &Fleet, request: &Request, _: Holding, _: f64) -> Verdict {
        let demand = Demand {
            body_bytes: request.body_bytes.min(MOST_BYTES),
            max_tokens: request.max_tokens.map_or(DEFAULT_MAX_TOKENS, Budget::from_tokens),
            ignore_eos: request.ignore_eos,
            work: None,
        };
        let mut tried = Tried::default();
        let is_closed = |server: &usize| !fleet.takes(*server) || !fleet.suits(*server, request);
        fleet.up().filter(is_closed).for_each(|server| tried.insert(server));
        let Ok(lease) = self.balancer.acquire(&demand, &tried) else { return Verdict::Hold };
        let reason = match lease.placement() {
            Placement::Standard => "standard",
            Placement::Redirected => "redirected",
            Placement::Failover => "failover",
        };
        let server = lease.server();
        self.leases.insert(request.id, lease);
        Verdict::Assign { server, reason }
    }

    fn left(&mut self, id: RequestId) {
        self.leases.remove(&id);
    }

    fn server_changed(&mut self, server: usize, is_up: bool) {
        self.balancer.set_admission(server, if is_up { Admission::default() } else { Admission::closed() });
    }

    fn group(&self, server: usize) -> &str {
        &self.group_names[self.group_of[server]]
    }
}
