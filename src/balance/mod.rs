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
//! # Servers that take nothing, or nothing more
//!
//! Each server has an [`Admission`]: open or closed, with limits. Health checks, draining and limits work through it and
//! through nothing else. The group that the policy has chosen decides: while a live server is left in it the request
//! stays there, and when all of those are full the answer is [`Unavailable::NoneFree`] (wait). When the group has no live
//! server, the nearest one that has serves ([`Placement::Failover`]). A group without a live server attracts nothing.
//!
//! # Retries
//!
//! A request that failed on a server comes back with that server in [`Tried`]. It stays in its group while another
//! server is left there, then goes to the nearest other group, and only when every server was tried starts over in its
//! own group.
//!
//! # Changes
//!
//! [`Balancer::reconfigure`] puts new groups, policy and ties in place in one step. Servers are known by number; what is
//! counted on a number stays, whatever group it moves to, and also when it is in none any more.
//!
//! # Ownership
//!
//! ```text
//! Balancer (one, shared)
//!   Mutex<State>
//!     topology, policy, ties: replaced whole by reconfigure
//!     Ledger: loads per server and group                <- booked by acquire, given back by Drop of Lease
//!             admissions: set by health, draining, limits
//! Lease (one per running request) -> Arc<Balancer>
//! ```
//!
//! Everything here is pure: no I/O, no clock, no Pingora types.

mod admission;
mod bucket;
mod lease;
mod load;
mod pick;
mod policy;
mod topology;

#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

pub use admission::Admission;
pub use bucket::{Bucket, BucketChoice, BucketError, Buckets, Candidate, Neighbours, RedirectTuning};
pub use lease::{Lease, Placement};
use load::Ledger;
pub use load::{Load, Usage};
pub use pick::{Ties, Tried};
pub use policy::Policy;
pub use topology::{Topology, TopologyError};

use crate::prompt::Demand;

/// Chooses servers and counts what runs on them.
pub struct Balancer {
    state: Mutex<State>,
    /// Called when a server may have become able to take a request.
    capacity_came: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct State {
    topology: Arc<Topology>,
    policy: Arc<Policy>,
    ties: Ties,
    ledger: Ledger,
}

/// One consistent reading of all counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Per server, by number.
    pub servers: Vec<Usage>,
    /// Per group, in order.
    pub groups: Vec<Usage>,
    /// Per server, by number: what it may be given.
    pub admissions: Vec<Admission>,
}

/// Why a request has no server now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// No server takes requests.
    #[error("no server is live")]
    NoneLive,
    /// The servers that would take it are full.
    #[error("no server is free")]
    NoneFree,
}

/// Why policy and groups do not go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{buckets} buckets need as many groups, there are {groups}")]
pub struct GroupMismatch {
    /// Buckets of the policy.
    pub buckets: usize,
    /// Groups of the topology.
    pub groups: usize,
}

impl std::fmt::Debug for Balancer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Balancer").field("snapshot", &self.snapshot()).finish_non_exhaustive()
    }
}

impl Balancer {
    /// A balancer with nothing running and all servers open.
    ///
    /// # Errors
    /// When the policy has another number of buckets than there are groups.
    pub fn new(topology: Topology, policy: Policy, ties: Ties) -> Result<Self, GroupMismatch> {
        check_groups(&topology, &policy)?;
        let ledger = Ledger::new(&topology);
        let state = State { topology: Arc::new(topology), policy: Arc::new(policy), ties, ledger };
        Ok(Self { state: Mutex::new(state), capacity_came: OnceLock::new() })
    }

    /// The groups of servers.
    #[must_use]
    pub fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.state.lock().topology)
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.state.lock().policy)
    }

    /// The group that a request's length is for.
    #[must_use]
    pub fn standard_group(&self, demand: &Demand) -> usize {
        let state = self.state.lock();
        match &*state.policy {
            Policy::ReferencePlain => 0,
            Policy::ReferenceBucket(buckets) => buckets.standard(state.policy.load_of(demand).tokens()),
        }
    }

    /// Chooses a server for a request and counts it there, in one step.
    ///
    /// # Errors
    /// When no server can take it now.
    pub fn acquire(self: &Arc<Self>, demand: &Demand, tried: &Tried) -> Result<Lease, Unavailable> {
        let mut state = self.state.lock();
        let load = state.policy.load_of(demand);
        let (server, standard_group, placement) = match &*state.policy {
            Policy::ReferencePlain => {
                let server = state.least_loaded_of_all(load, tried)?;
                (server, state.topology.group_of(server).unwrap_or(0), Placement::Standard)
            }
            Policy::ReferenceBucket(buckets) => state.place(buckets, load, tried)?,
        };
        Ok(self.book(&mut state, server, standard_group, placement, load))
    }

    /// Chooses the least loaded live server for a request that weighs nothing (a model list, a health probe by hand).
    /// It counts as in flight, but not as load, and no limit applies to it. Ties rotate whatever the setting: this is no
    /// decision of the policy, and without weight all of a kind would go to one server.
    ///
    /// # Errors
    /// When no server is live.
    pub fn acquire_weightless(self: &Arc<Self>, tried: &Tried) -> Result<Lease, Unavailable> {
        let mut state = self.state.lock();
        let server = state.lightest_live(tried).ok_or(Unavailable::NoneLive)?;
        let group = state.topology.group_of(server).unwrap_or(0);
        Ok(self.book(&mut state, server, group, Placement::Standard, Load::ZERO))
    }

    /// A number for a server that is about to join. It takes nothing before a [`reconfigure`](Self::reconfigure) puts it
    /// into a group. Numbers in `reserved` are not given.
    pub fn add_server(&self, admission: Admission, reserved: &[usize]) -> usize {
        let mut state = self.state.lock();
        let state = &mut *state;
        let server = state.ledger.free_number(&state.topology, |server| reserved.contains(&server));
        state.ledger.admit(server, admission);
        server
    }

    /// Puts new groups, policy and ties in place. What runs, and what is counted for it, stays.
    ///
    /// # Errors
    /// When the policy has another number of buckets than there are groups; then nothing has changed.
    pub fn reconfigure(&self, topology: Topology, policy: Policy, ties: Ties) -> Result<(), GroupMismatch> {
        check_groups(&topology, &policy)?;
        {
            let mut state = self.state.lock();
            state.ledger.regroup(&topology);
            state.topology = Arc::new(topology);
            state.policy = Arc::new(policy);
            state.ties = ties;
        }
        self.tell_capacity();
        Ok(())
    }

    /// Says what a server may be given from now on. What runs on it stays. Unknown numbers are ignored.
    pub fn set_admission(&self, server: usize, admission: Admission) {
        self.state.lock().ledger.admit(server, admission);
        self.tell_capacity();
    }

    /// Has a function called whenever a server may have become able to take a request: a lease has dropped, an admission
    /// was widened, the groups have changed. It must be quick and must not call back. Only the first one counts.
    pub fn on_capacity(&self, call: impl Fn() + Send + Sync + 'static) {
        self.capacity_came.get_or_init(|| Box::new(call));
    }

    /// All counters at one moment.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        Snapshot {
            servers: state.ledger.servers().collect(),
            groups: state.ledger.groups().to_vec(),
            admissions: state.ledger.admissions().collect(),
        }
    }

    fn book(
        self: &Arc<Self>,
        state: &mut State,
        server: usize,
        standard_group: usize,
        placement: Placement,
        load: Load,
    ) -> Lease {
        let group = state.topology.group_of(server);
        state.ledger.book(server, group, load);
        let group = group.unwrap_or(standard_group);
        Lease { balancer: Arc::clone(self), server, group, standard_group, placement, load }
    }

    fn give_back(&self, lease: &Lease) {
        {
            let mut state = self.state.lock();
            let group = state.topology.group_of(lease.server);
            state.ledger.give_back(lease.server, group, lease.load);
        }
        self.tell_capacity();
    }

    fn tell_capacity(&self) {
        if let Some(call) = self.capacity_came.get() {
            call();
        }
    }
}

impl State {
    /// The bucket policy: the group by length and load, then the server in it or near it.
    fn place(&self, buckets: &Buckets, load: Load, tried: &Tried) -> Result<(usize, usize, Placement), Unavailable> {
        let choice = buckets.choose(load.tokens(), |group| {
            // Nobody is drawn to a group that cannot serve, however empty it is.
            if self.is_live(group) { self.ledger.group(group).load.tokens() } else { f64::INFINITY }
        });
        let (server, group) = self.least_loaded_near(choice.chosen, load, tried)?;
        let placement = match group {
            _ if group == choice.standard => Placement::Standard,
            _ if group == choice.chosen => Placement::Redirected,
            _ => Placement::Failover,
        };
        Ok((server, choice.standard, placement))
    }

    /// The least loaded server of the nearest group that has a live one left, untried ones first.
    fn least_loaded_near(&self, home: usize, load: Load, tried: &Tried) -> Result<(usize, usize), Unavailable> {
        match self.nearest(home, load, tried) {
            Err(Unavailable::NoneLive) if !tried.is_empty() => self.nearest(home, load, &Tried::default()),
            found => found,
        }
    }

    fn nearest(&self, home: usize, load: Load, tried: &Tried) -> Result<(usize, usize), Unavailable> {
        for group in self.topology.nearest_first(home) {
            let servers = self.topology.groups()[group].iter().copied();
            match self.least_loaded(servers, load, tried) {
                Ok(server) => return Ok((server, group)),
                Err(Unavailable::NoneFree) => return Err(Unavailable::NoneFree),
                Err(Unavailable::NoneLive) => {}
            }
        }
        Err(Unavailable::NoneLive)
    }

    /// The plain policy: all servers are one group.
    fn least_loaded_of_all(&self, load: Load, tried: &Tried) -> Result<usize, Unavailable> {
        match self.least_loaded(self.topology.servers(), load, tried) {
            Err(Unavailable::NoneLive) if !tried.is_empty() => {
                self.least_loaded(self.topology.servers(), load, &Tried::default())
            }
            found => found,
        }
    }

    /// The least loaded of some servers that can take the load and was not tried.
    fn least_loaded(
        &self,
        servers: impl Iterator<Item = usize> + Clone,
        load: Load,
        tried: &Tried,
    ) -> Result<usize, Unavailable> {
        let (ledger, ties) = (&self.ledger, self.ties);
        // As a rule the ranks say it all; only then is the scan as quick as it can be.
        let found = if tried.is_empty() && !ledger.has_limits_on_load() {
            pick::least_loaded(ledger.ranks(), servers.clone(), ties, |_| true)
        } else {
            let admits = |server| ledger.admission(server).admits(ledger.server(server), load);
            pick::least_loaded(ledger.ranks(), servers.clone(), ties, |server| {
                !tried.contains(server) && admits(server)
            })
        };
        found.ok_or_else(|| {
            let is_anyone_live = servers.into_iter().any(|server| self.is_open(server) && !tried.contains(server));
            if is_anyone_live { Unavailable::NoneFree } else { Unavailable::NoneLive }
        })
    }

    /// The least loaded live server, whatever its limits; an untried one when there is one.
    fn lightest_live(&self, tried: &Tried) -> Option<usize> {
        let live = self.topology.servers().filter(|server| self.is_open(*server));
        let key =
            |server: &usize| (tried.contains(*server), self.ledger.server(*server).load, self.ledger.choice(*server));
        live.min_by_key(key)
    }

    fn is_open(&self, server: usize) -> bool {
        self.ledger.admission(server).is_open
    }

    fn is_live(&self, group: usize) -> bool {
        self.topology.groups()[group].iter().any(|server| self.is_open(*server))
    }
}

fn check_groups(topology: &Topology, policy: &Policy) -> Result<(), GroupMismatch> {
    let groups = topology.groups().len();
    match policy {
        Policy::ReferenceBucket(buckets) if buckets.count().get() != groups => {
            Err(GroupMismatch { buckets: buckets.count().get(), groups })
        }
        _ => Ok(()),
    }
}
