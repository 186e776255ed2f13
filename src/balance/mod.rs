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
//! # By work
//!
//! With [`Policy::ByWork`] groups are names only, and the [`Dispatcher`](crate::work::Dispatcher) decides. It may hold a
//! request ([`Placed::Held`]); what it decides of that later is [taken](Balancer::take_decided) by who keeps those that
//! wait. It hears of a request's first token and of what it has generated through [`Progress`], and of its end by the
//! drop of the lease, as the ledger does.
//!
//! # Ownership
//!
//! ```text
//! Balancer (one, shared)
//!   Mutex<State>
//!     topology, policy, ties: replaced whole by reconfigure
//!     Ledger: loads per server and group                <- booked by ask, given back by Drop of Lease
//!             admissions: set by health, draining, limits
//!     Dispatch: the book of work and what is held       <- only by work; the same, and Progress
//! Lease (one per running request) -> Arc<Balancer>
//! ```
//!
//! Everything here is pure: no I/O, no clock of its own, no Pingora types.

mod admission;
mod bucket;
mod dispatch;
mod explain;
mod lease;
mod load;
mod pick;
mod policy;
mod state;
mod topology;

#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

pub use admission::Admission;
pub use bucket::{Bucket, BucketChoice, BucketError, Buckets, Candidate, Neighbours, RedirectTuning};
use dispatch::Dispatch;
pub use dispatch::{Clock, LearnedEngine, WorkOnServer, WorkSnapshot};
pub use explain::{Crossing, ExplainedGroup, ExplainedServer, Explanation, WouldBe};
pub use lease::{Lease, Length, Placement, Progress};
use load::Ledger;
pub use load::{Load, Usage};
pub use pick::{Ties, Tried};
pub use policy::{ByWork, Policy, WorkKind};
use state::{Asked, Place, State, unavailable};
pub use topology::{Topology, TopologyError};

use crate::prompt::Demand;
use crate::work::{ById, EngineState, Observation, Rejection, RequestId, ServerTraits};

/// Chooses servers and counts what runs on them.
pub struct Balancer {
    state: Mutex<State>,
    /// Called when a server may have become able to take a request.
    capacity_came: OnceLock<Box<dyn Fn() + Send + Sync>>,
    clock: Clock,
}

/// What a request gets that asks for a place.
#[derive(Debug)]
pub enum Placed {
    /// A place, at once.
    Now(Lease),
    /// It is held for a better moment, under this number. [`Balancer::take_decided`] has the rest; whoever does not
    /// want to wait [leaves](Balancer::leave).
    Held(RequestId),
    /// None now.
    Not(Unavailable),
}

/// One consistent reading of all counters.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// Per server, by number.
    pub servers: Vec<Usage>,
    /// Per group, in order.
    pub groups: Vec<Usage>,
    /// Per server, by number: what it may be given.
    pub admissions: Vec<Admission>,
    /// What is known beside when the policy is one by work.
    pub work: Option<WorkSnapshot>,
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
    /// It would have to wait, and too many others do.
    #[error("too many requests wait")]
    TooManyWait,
    /// No server takes a request that long, now or later.
    #[error("no server takes more than {limit_tokens} tokens")]
    TooLong {
        /// What the request needs, with its answer.
        needed_tokens: u64,
        /// The longest context that some server takes.
        limit_tokens: u64,
    },
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
    /// A balancer with nothing running and all servers open. Its clock stands still; see [`Self::with_clock`].
    ///
    /// # Errors
    /// When the policy has another number of buckets than there are groups.
    pub fn new(topology: Topology, policy: Policy, ties: Ties) -> Result<Self, GroupMismatch> {
        Self::with_clock(topology, policy, ties, &[], Arc::new(|| 0.0))
    }

    /// A balancer with nothing running and all servers open, which is told the time. `traits` says by number how servers
    /// differ.
    ///
    /// # Errors
    /// When the policy has another number of buckets than there are groups.
    pub fn with_clock(
        topology: Topology,
        policy: Policy,
        ties: Ties,
        traits: &[ServerTraits],
        clock: Clock,
    ) -> Result<Self, GroupMismatch> {
        check_groups(&topology, &policy)?;
        let ledger = Ledger::new(&topology);
        let dispatch = match &policy {
            Policy::ByWork(by_work) => {
                let stands = |_| (Admission::default(), Usage::default());
                Some(Dispatch::new(by_work, &topology, traits, stands, Arc::clone(&clock)))
            }
            Policy::ReferencePlain | Policy::ReferenceBucket(_) => None,
        };
        let (topology, policy) = (Arc::new(topology), Arc::new(policy));
        let state = State { topology, policy, ties, ledger, dispatch, held: ById::default(), decided: Vec::new() };
        Ok(Self { state: Mutex::new(state), capacity_came: OnceLock::new(), clock })
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

    /// The group that a request's length is for. By work there is none: it is the first.
    #[must_use]
    pub fn standard_group(&self, demand: &Demand) -> usize {
        let state = self.state.lock();
        match &*state.policy {
            Policy::ReferencePlain | Policy::ByWork(_) => 0,
            Policy::ReferenceBucket(buckets) => buckets.standard(state.policy.load_of(demand).tokens()),
        }
    }

    /// Chooses a server for a request and counts it there, in one step.
    pub fn ask(self: &Arc<Self>, demand: &Demand, tried: &Tried) -> Placed {
        let placed = self.state.lock().place(demand, tried);
        match placed {
            Asked::Now(place) => Placed::Now(self.lease(place)),
            Asked::Held(request) => {
                // Others that were held may have got a place by this.
                self.tell_capacity();
                Placed::Held(request)
            }
            Asked::Not(why) => Placed::Not(why),
        }
    }

    /// Like [`ask`](Self::ask), for those who do not wait here.
    ///
    /// # Errors
    /// When no server can take it now.
    pub fn acquire(self: &Arc<Self>, demand: &Demand, tried: &Tried) -> Result<Lease, Unavailable> {
        match self.ask(demand, tried) {
            Placed::Now(lease) => Ok(lease),
            Placed::Held(request) => Err(self.leave(request).unwrap_or(Unavailable::NoneFree)),
            Placed::Not(why) => Err(why),
        }
    }

    /// A request does not want to be held any longer. What was decided of it and not taken is given back. Says what was
    /// in its way, if that is more than waiting for its turn.
    pub fn leave(self: &Arc<Self>, request: RequestId) -> Option<Unavailable> {
        let mut state = self.state.lock();
        let in_the_way = state.dispatch.as_ref().and_then(Dispatch::in_the_way);
        if state.held.remove(&request).is_some() {
            state.work(|dispatch| dispatch.end(request, false, None));
        }
        let decided = state.decided.iter().position(|(id, _)| *id == request);
        let place = decided.and_then(|position| state.decided.swap_remove(position).1.ok());
        drop(state);
        drop(place.map(|place| self.lease(place)));
        self.tell_capacity();
        in_the_way
    }

    /// What is in the way of requests that are held; `None`: they wait for their turn, and will get it.
    #[must_use]
    pub fn in_the_way(&self) -> Option<Unavailable> {
        self.state.lock().dispatch.as_ref().and_then(Dispatch::in_the_way)
    }

    /// Whether the policy holds requests itself.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.state.lock().dispatch.is_some()
    }

    /// What has been decided of requests that were held. They are counted already.
    #[must_use]
    pub fn take_decided(self: &Arc<Self>) -> Vec<(RequestId, Result<Lease, Unavailable>)> {
        let decided = std::mem::take(&mut self.state.lock().decided);
        let answer = |place: Result<Place, Rejection>| match place {
            Ok(place) => Ok(self.lease(place)),
            // Whoever was held was small enough for some server, until those were found to take less: it asks again.
            Err(Rejection::TooLong { .. }) => Err(Unavailable::NoneFree),
            Err(why) => Err(unavailable(why, &Demand::of_bytes(0))),
        };
        decided.into_iter().map(|(request, place)| (request, answer(place))).collect()
    }

    /// Lets time go by: what is held may have waited for long enough.
    pub fn tick(&self) {
        self.state.lock().work(Dispatch::tick);
        self.tell_capacity();
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
        let place = state.book(server, group, Placement::Standard, Load::ZERO, None);
        drop(state);
        Ok(self.lease(place))
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
    pub fn reconfigure(
        &self,
        topology: Topology,
        policy: Policy,
        ties: Ties,
        traits: &[ServerTraits],
    ) -> Result<(), GroupMismatch> {
        check_groups(&topology, &policy)?;
        {
            let mut state = self.state.lock();
            state.ledger.regroup(&topology);
            state.redispatch(&policy, &topology, traits, &self.clock);
            state.topology = Arc::new(topology);
            state.policy = Arc::new(policy);
            state.ties = ties;
            state.settle();
        }
        self.tell_capacity();
        Ok(())
    }

    /// Servers differ from each other in another way from now on, by number. What runs, and what is held, stays.
    pub fn set_traits(&self, traits: &[ServerTraits]) {
        {
            let mut state = self.state.lock();
            let State { topology, ledger, dispatch, .. } = &mut *state;
            let stands = |server: usize| (*ledger.admission(server), ledger.server(server));
            if let Some(dispatch) = dispatch {
                dispatch.reshape(topology, traits, stands);
            }
            state.settle();
        }
        self.tell_capacity();
    }

    /// A server's engine has reported how busy it is. What it has beyond what is counted here came from elsewhere; decisions
    /// heed it less and less for so many seconds. Gives the report with what was counted beside; `None` when the policy
    /// does not ask, or the server is in no group.
    pub fn observed(&self, server: usize, engine: EngineState, valid_for_s: f64) -> Option<Observation> {
        self.state.lock().dispatch.as_mut()?.observed(server, engine, valid_for_s)
    }

    /// Says what a server may be given from now on. What runs on it stays. Unknown numbers are ignored.
    pub fn set_admission(&self, server: usize, admission: Admission) {
        {
            let mut state = self.state.lock();
            state.ledger.admit(server, admission);
            state.tell_dispatch(server);
            state.settle();
        }
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
            work: state.dispatch.as_ref().map(Dispatch::snapshot),
        }
    }

    /// What would become of a request now, and why. Nothing changes.
    #[must_use]
    pub fn explain(&self, demand: &Demand, tried: &Tried) -> Explanation {
        self.state.lock().explain(demand, tried)
    }

    /// Something was seen of a running request.
    fn progress(&self, happen: impl FnOnce(&mut Dispatch)) {
        let has_decided = {
            let mut state = self.state.lock();
            state.work(happen);
            !state.decided.is_empty()
        };
        if has_decided {
            self.tell_capacity();
        }
    }

    fn lease(self: &Arc<Self>, place: Place) -> Lease {
        Lease { balancer: Arc::clone(self), place, is_answered: false, generated: None }
    }

    fn give_back(&self, lease: &Lease) {
        {
            let mut state = self.state.lock();
            let group = state.topology.group_of(lease.place.server);
            state.ledger.give_back(lease.place.server, group, lease.place.load);
            if let Some(request) = lease.place.request {
                state.work(|dispatch| dispatch.end(request, lease.is_answered, lease.generated));
            }
            state.tell_dispatch(lease.place.server);
            state.settle();
        }
        self.tell_capacity();
    }

    fn tell_capacity(&self) {
        if let Some(call) = self.capacity_came.get() {
            call();
        }
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
