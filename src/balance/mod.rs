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
mod topology;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

pub use admission::Admission;
pub use bucket::{Bucket, BucketChoice, BucketError, Buckets, Candidate, Neighbours, RedirectTuning};
pub use dispatch::{Clock, LearnedEngine, WorkOnServer, WorkSnapshot};
use dispatch::{Decision, Dispatch};
pub use explain::{Crossing, ExplainedGroup, ExplainedServer, Explanation, WouldBe};
pub use lease::{Lease, Length, Placement, Progress};
use load::Ledger;
pub use load::{Load, Usage};
pub use pick::{Ties, Tried};
pub use policy::{ByWork, Policy, WorkKind};
pub use topology::{Topology, TopologyError};

use crate::prompt::{Demand, Work};
use crate::work::{EngineState, Observation, Rejection, RequestId, ServerTraits};

/// Chooses servers and counts what runs on them.
pub struct Balancer {
    state: Mutex<State>,
    /// Called when a server may have become able to take a request.
    capacity_came: OnceLock<Box<dyn Fn() + Send + Sync>>,
    clock: Clock,
}

struct State {
    topology: Arc<Topology>,
    policy: Arc<Policy>,
    ties: Ties,
    ledger: Ledger,
    /// Only when the policy is one by work.
    dispatch: Option<Dispatch>,
    /// Requests that are held: what each weighs.
    held: HashMap<RequestId, Load>,
    /// What was decided of requests that were held, until it is taken.
    decided: Vec<(RequestId, Result<Place, Rejection>)>,
}

/// A place on a server that is counted already.
#[derive(Debug, Clone, Copy)]
struct Place {
    server: usize,
    group: usize,
    standard_group: usize,
    placement: Placement,
    reason: &'static str,
    load: Load,
    length: Length,
    /// What the dispatcher calls the request.
    request: Option<RequestId>,
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
        let state = State { topology, policy, ties, ledger, dispatch, held: HashMap::new(), decided: Vec::new() };
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

/// What [`State::place`] says.
enum Asked {
    Now(Place),
    Held(RequestId),
    Not(Unavailable),
}

impl State {
    /// Chooses a server and counts the request there.
    fn place(&mut self, demand: &Demand, tried: &Tried) -> Asked {
        let load = self.policy.load_of(demand);
        if let Policy::ByWork(_) = &*self.policy {
            return self.place_by_work(demand, load, tried);
        }
        match self.find_by_load(load, tried) {
            Ok((server, standard_group, placement)) => {
                Asked::Now(self.book(server, standard_group, placement, load, None))
            }
            Err(why) => Asked::Not(why),
        }
    }

    /// Chooses a server by a policy of the example: the server, the group that the length is for, and why it is where it is.
    fn find_by_load(&self, load: Load, tried: &Tried) -> Result<(usize, usize, Placement), Unavailable> {
        match &*self.policy {
            Policy::ReferenceBucket(buckets) => self.place_by_length(buckets, load, tried),
            Policy::ReferencePlain | Policy::ByWork(_) => self.least_loaded_of_all(load, tried).map(|server| {
                let group = self.topology.group_of(server).unwrap_or(0);
                (server, group, Placement::Standard)
            }),
        }
    }

    fn explain(&mut self, demand: &Demand, tried: &Tried) -> Explanation {
        let load = self.policy.load_of(demand);
        let (verdict, costs) = match &mut self.dispatch {
            Some(dispatch) => self::verdict_by_work(dispatch, &self.topology, demand, tried),
            None => {
                (self.find_by_load(load, tried).map_or_else(WouldBe::Not, |found| self.would_be(found)), Vec::new())
            }
        };
        let cost_of = |server: usize| costs.iter().find(|(number, _)| *number == server).map(|(_, cost)| *cost);
        let server = |server: usize| {
            let (usage, admission, work) = (self.ledger.server(server), self.ledger.admission(server), cost_of(server));
            let obstacle = match work.and_then(|cost: crate::work::Explained| cost.obstacle) {
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

    fn place_by_work(&mut self, demand: &Demand, load: Load, tried: &Tried) -> Asked {
        let Some(dispatch) = &mut self.dispatch else { return Asked::Not(Unavailable::NoneLive) };
        let request = dispatch.arrive(demand, tried);
        self.held.insert(request, load);
        self.settle();
        if self.held.contains_key(&request) {
            return Asked::Held(request);
        }
        let own = self.decided.iter().rposition(|(id, _)| *id == request).expect("what is not held was decided");
        match self.decided.swap_remove(own).1 {
            Ok(place) => Asked::Now(place),
            // Every server was tried: start over, as long as attempts are left.
            Err(Rejection::Excluded) if !tried.is_empty() => self.place_by_work(demand, load, &Tried::default()),
            Err(Rejection::TooLong { max_model_len }) => match too_long(demand, max_model_len) {
                Some(smaller) => self.place_by_work(&smaller, load, tried),
                None => Asked::Not(unavailable(Rejection::TooLong { max_model_len }, demand)),
            },
            Err(why) => Asked::Not(unavailable(why, demand)),
        }
    }

    /// Lets something happen to the dispatcher, if there is one.
    fn work(&mut self, happen: impl FnOnce(&mut Dispatch)) {
        if let Some(dispatch) = &mut self.dispatch {
            happen(dispatch);
            self.settle();
        }
    }

    /// Counts what the dispatcher has decided. A place that is taken may close its server, and that may decide more.
    fn settle(&mut self) {
        while let Some(decisions) = self.dispatch.as_mut().map(Dispatch::decisions).filter(|some| !some.is_empty()) {
            for (request, decision) in decisions {
                let Some(load) = self.held.remove(&request) else { continue };
                let place = match decision {
                    Decision::Server { server, reason } => {
                        let group = self.topology.group_of(server).unwrap_or(0);
                        let is_long = self.dispatch.as_ref().is_some_and(|dispatch| dispatch.is_long(request));
                        let length = if is_long { Length::Long } else { Length::Short };
                        let place = self.book(server, group, Placement::Standard, load, Some(request));
                        Ok(Place { reason, length, ..place })
                    }
                    Decision::Not(why) => Err(why),
                };
                self.decided.push((request, place));
            }
        }
    }

    /// Counts a request on a server.
    fn book(
        &mut self,
        server: usize,
        standard_group: usize,
        placement: Placement,
        load: Load,
        request: Option<RequestId>,
    ) -> Place {
        let group = self.topology.group_of(server);
        self.ledger.book(server, group, load);
        self.tell_dispatch(server);
        let group = group.unwrap_or(standard_group);
        let length = match &*self.policy {
            Policy::ReferenceBucket(buckets) if buckets.count().get() > 1 => {
                if standard_group == 0 {
                    Length::Short
                } else {
                    Length::Long
                }
            }
            Policy::ReferenceBucket(_) | Policy::ReferencePlain | Policy::ByWork(_) => Length::Any,
        };
        Place { server, group, standard_group, placement, reason: placement.label(), load, length, request }
    }

    /// Tells the dispatcher whether a server takes more.
    fn tell_dispatch(&mut self, server: usize) {
        if let Some(dispatch) = &mut self.dispatch
            && self.ledger.knows(server)
        {
            dispatch.admit(server, self.ledger.admission(server), self.ledger.server(server));
        }
    }

    /// Prepares the dispatcher for another policy or other servers. Without one, who was held has to ask again.
    fn redispatch(&mut self, policy: &Policy, topology: &Topology, traits: &[ServerTraits], clock: &Clock) {
        let Policy::ByWork(by_work) = policy else {
            self.dispatch = None;
            self.decided.extend(self.held.drain().map(|(request, _)| (request, Err(Rejection::Excluded))));
            return;
        };
        let stands = |server: usize| (*self.ledger.admission(server), self.ledger.server(server));
        match &mut self.dispatch {
            Some(dispatch) => dispatch.reconfigure(by_work, topology, traits, stands),
            None => self.dispatch = Some(Dispatch::new(by_work, topology, traits, stands, Arc::clone(clock))),
        }
    }

    /// The bucket policy: the group by length and load, then the server in it or near it.
    fn place_by_length(
        &self,
        buckets: &Buckets,
        load: Load,
        tried: &Tried,
    ) -> Result<(usize, usize, Placement), Unavailable> {
        let choice = buckets.choose(load.tokens(), |group| self.drawing_load(group));
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
                Err(Unavailable::NoneLive) => {}
                Err(why) => return Err(why),
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

    /// The load of a group as the buckets see it: nobody is drawn to one that cannot serve, however empty it is.
    fn drawing_load(&self, group: usize) -> f64 {
        if self.is_live(group) { self.ledger.group(group).load.tokens() } else { f64::INFINITY }
    }

    fn is_live(&self, group: usize) -> bool {
        self.topology.groups()[group].iter().any(|server| self.is_open(*server))
    }
}

/// What the dispatcher would do with a request, and what it would cost on each server, by number.
fn verdict_by_work(
    dispatch: &mut Dispatch,
    topology: &Topology,
    demand: &Demand,
    tried: &Tried,
) -> (WouldBe, Vec<(usize, crate::work::Explained)>) {
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

/// A request that no server has room for, if the estimate is right: unless it is beyond doubt, the largest servers are
/// to say so.
fn too_long(demand: &Demand, max_model_len: u64) -> Option<Demand> {
    let work = demand.work.as_ref().filter(|work| work.surely_needed_tokens <= max_model_len)?;
    let work = Work { needed_tokens: Some(max_model_len), ..Work::clone(work) };
    Some(Demand { work: Some(Arc::new(work)), ..demand.clone() })
}

/// What a rejection means to a request.
fn unavailable(why: Rejection, demand: &Demand) -> Unavailable {
    match why {
        Rejection::NoServer => Unavailable::NoneLive,
        // Others may take it yet: it asks again.
        Rejection::Excluded | Rejection::HeldTooLong => Unavailable::NoneFree,
        Rejection::HoldFull => Unavailable::TooManyWait,
        Rejection::TooLong { max_model_len } => Unavailable::TooLong {
            needed_tokens: demand.work.as_ref().and_then(|work| work.needed_tokens).unwrap_or_default(),
            limit_tokens: max_model_len,
        },
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
