//! Bucket-aware selection: which server gets a request. The heart of Tidegate.
//!
//! # The algorithm in words
//!
//! Servers stand in configured order and are cut into *groups*, one per *bucket* of prompt lengths, short prompts
//! first ([`Topology`]). A request is measured ([`Demand`]) and weighed ([`Policy::load_of`]). Then, in one step:
//!
//! 1. the **group**: the bucket that the length is for, or a lighter neighbour when the gap in load, damped by how far
//!    the length is from that neighbour's range, is worth it ([`Buckets::choose`]);
//! 2. the **server**: the one with the least active load in that group ([`Ties`] says which of equals);
//! 3. the load is **counted** on the server and its group, and the caller gets a [`Lease`].
//!
//! Choosing and counting happen under one short lock, so a burst of requests cannot all see the same idle server.
//!
//! # When is a request over?
//!
//! When its last byte has been relayed, or when anything has ended it before: not when the response header arrives. A
//! stream that is still being generated still loads its server. The proxy holds the [`Lease`] in the request's
//! context, and dropping it is the only way to give the load back.
//!
//! # Retries
//!
//! A request that failed on a server comes back with that server in [`Tried`]. It stays in its group while another
//! server is left there, then goes to the nearest other group, and only when every server was tried starts over in its
//! own group.
//!
//! # Ownership
//!
//! ```text
//! Balancer (one, shared)
//!   topology, policy, ties: immutable
//!   Mutex<Ledger>: loads per server and group          <- booked by acquire, given back by Drop of Lease
//! Lease (one per running request) -> Arc<Balancer>
//! ```
//!
//! Everything here is pure: no I/O, no clock, no Pingora types.

mod bucket;
mod lease;
mod load;
mod pick;
mod policy;
mod topology;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use parking_lot::Mutex;

pub use bucket::{Bucket, BucketChoice, BucketError, Buckets, Candidate, Neighbours, RedirectTuning};
pub use lease::Lease;
use load::Ledger;
pub use load::Load;
pub use pick::{Ties, Tried};
pub use policy::Policy;
pub use topology::{Topology, TopologyError};

use crate::prompt::Demand;

/// Chooses servers and counts what runs on them.
#[derive(Debug)]
pub struct Balancer {
    topology: Topology,
    policy: Policy,
    ties: Ties,
    ledger: Mutex<Ledger>,
}

/// Load and running requests of one server or group at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Active load.
    pub load: Load,
    /// Requests running.
    pub in_flight: u64,
}

/// One consistent reading of all counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Per server, in configured order.
    pub servers: Vec<Usage>,
    /// Per group, in order.
    pub groups: Vec<Usage>,
}

/// Why a balancer cannot be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{buckets} buckets need as many groups, there are {groups}")]
pub struct GroupMismatch {
    /// Buckets of the policy.
    pub buckets: usize,
    /// Groups of the topology.
    pub groups: usize,
}

impl Balancer {
    /// A balancer with nothing running.
    ///
    /// # Errors
    /// When the policy has another number of buckets than there are groups.
    pub fn new(topology: Topology, policy: Policy, ties: Ties) -> Result<Self, GroupMismatch> {
        let groups = topology.groups().len();
        if let Policy::ReferenceBucket(buckets) = &policy
            && buckets.count().get() != groups
        {
            return Err(GroupMismatch { buckets: buckets.count().get(), groups });
        }
        let ledger = Mutex::new(Ledger::new(topology.servers(), groups));
        Ok(Self { topology, policy, ties, ledger })
    }

    /// The groups of servers.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Chooses a server for a request and counts it there, in one step.
    pub fn acquire(self: &Arc<Self>, demand: &Demand, tried: &Tried) -> Lease {
        let load = self.policy.load_of(demand);
        let mut ledger = self.ledger.lock();
        match &self.policy {
            Policy::ReferencePlain => {
                let server = self.least_loaded_of_all(&ledger, tried, self.ties);
                let group = self.topology.group_of(server);
                self.book(&mut ledger, server, group, load)
            }
            Policy::ReferenceBucket(buckets) => {
                let choice = buckets.choose(load.tokens(), |group| ledger.group_active(group).tokens());
                let server = self.least_loaded_near(&ledger, choice.chosen, tried);
                self.book(&mut ledger, server, choice.standard, load)
            }
        }
    }

    /// Chooses the least loaded of all servers for a request that weighs nothing (a model list, a health probe by
    /// hand). It counts as in flight, but not as load. Ties rotate whatever the setting: this is no decision of the
    /// policy, and without weight all of a kind would go to one server.
    pub fn acquire_weightless(self: &Arc<Self>, tried: &Tried) -> Lease {
        let mut ledger = self.ledger.lock();
        let server = self.least_loaded_of_all(&ledger, tried, Ties::LeastRecentlyUsed);
        let group = self.topology.group_of(server);
        self.book(&mut ledger, server, group, Load::ZERO)
    }

    /// All counters at one moment.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let ledger = self.ledger.lock();
        let server = |server| Usage { load: ledger.active(server), in_flight: ledger.in_flight(server) };
        let group = |group| Usage { load: ledger.group_active(group), in_flight: ledger.group_in_flight(group) };
        Snapshot {
            servers: (0..self.topology.servers()).map(server).collect(),
            groups: (0..self.topology.groups().len()).map(group).collect(),
        }
    }

    fn book(self: &Arc<Self>, ledger: &mut Ledger, server: usize, standard_group: usize, load: Load) -> Lease {
        let group = self.topology.group_of(server);
        ledger.book(server, group, load);
        Lease { balancer: Arc::clone(self), server, group, standard_group, load }
    }

    fn give_back(&self, lease: &Lease) {
        self.ledger.lock().give_back(lease.server, lease.group, lease.load);
    }

    /// The least loaded untried server of the home group, else of the nearest group that has one, else the least
    /// loaded of the home group again.
    fn least_loaded_near(&self, ledger: &Ledger, home: usize, tried: &Tried) -> usize {
        let groups = self.topology.groups();
        self.topology
            .nearest_first(home)
            .find_map(|group| pick::least_loaded(ledger, groups[group].clone(), tried, self.ties))
            .or_else(|| pick::least_loaded(ledger, groups[home].clone(), &Tried::default(), self.ties))
            .expect("a topology has no empty group")
    }

    fn least_loaded_of_all(&self, ledger: &Ledger, tried: &Tried, ties: Ties) -> usize {
        let all = 0..self.topology.servers();
        pick::least_loaded(ledger, all.clone(), tried, ties)
            .or_else(|| pick::least_loaded(ledger, all, &Tried::default(), ties))
            .expect("a topology is not empty")
    }
}
