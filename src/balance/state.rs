//! Everything that is counted and decided under the lock: which server a request gets, and what is in the way.

use std::sync::Arc;

use super::dispatch::{Decision, Dispatch};
use super::load::Ledger;
use super::{Buckets, Clock, Length, Load, Placement, Policy, Ties, Topology, Tried, Unavailable, pick};
use crate::prompt::{Demand, Work};
use crate::work::{ById, Rejection, RequestId, ServerTraits};

pub(super) struct State {
    pub(super) topology: Arc<Topology>,
    pub(super) policy: Arc<Policy>,
    pub(super) ties: Ties,
    pub(super) ledger: Ledger,
    /// Only when the policy is one by work.
    pub(super) dispatch: Option<Dispatch>,
    /// Requests that are held: what each weighs.
    pub(super) held: ById<Load>,
    /// What was decided of requests that were held, until it is taken.
    pub(super) decided: Vec<(RequestId, Result<Place, Rejection>)>,
}

/// A place on a server that is counted already.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) server: usize,
    pub(super) group: usize,
    pub(super) standard_group: usize,
    pub(super) placement: Placement,
    pub(super) reason: &'static str,
    pub(super) load: Load,
    pub(super) length: Length,
    /// What the dispatcher calls the request.
    pub(super) request: Option<RequestId>,
}

/// What [`State::place`] says.
pub(super) enum Asked {
    Now(Place),
    Held(RequestId),
    Not(Unavailable),
}

impl State {
    /// Chooses a server and counts the request there.
    pub(super) fn place(&mut self, demand: &Demand, tried: &Tried) -> Asked {
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
    pub(super) fn find_by_load(&self, load: Load, tried: &Tried) -> Result<(usize, usize, Placement), Unavailable> {
        match &*self.policy {
            Policy::ReferenceBucket(buckets) => self.place_by_length(buckets, load, tried),
            Policy::ReferencePlain | Policy::ByWork(_) => self.least_loaded_of_all(load, tried).map(|server| {
                let group = self.topology.group_of(server).unwrap_or(0);
                (server, group, Placement::Standard)
            }),
        }
    }

    pub(super) fn place_by_work(&mut self, demand: &Demand, load: Load, tried: &Tried) -> Asked {
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
    pub(super) fn work(&mut self, happen: impl FnOnce(&mut Dispatch)) {
        if let Some(dispatch) = &mut self.dispatch {
            happen(dispatch);
            self.settle();
        }
    }

    /// Counts what the dispatcher has decided. A place that is taken may close its server, and that may decide more.
    pub(super) fn settle(&mut self) {
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
    pub(super) fn book(
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
    pub(super) fn tell_dispatch(&mut self, server: usize) {
        if let Some(dispatch) = &mut self.dispatch
            && self.ledger.knows(server)
        {
            dispatch.admit(server, self.ledger.admission(server), self.ledger.server(server));
        }
    }

    /// Prepares the dispatcher for another policy or other servers. Without one, who was held has to ask again.
    pub(super) fn redispatch(&mut self, policy: &Policy, topology: &Topology, traits: &[ServerTraits], clock: &Clock) {
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
    pub(super) fn lightest_live(&self, tried: &Tried) -> Option<usize> {
        let live = self.topology.servers().filter(|server| self.is_open(*server));
        let key =
            |server: &usize| (tried.contains(*server), self.ledger.server(*server).load, self.ledger.choice(*server));
        live.min_by_key(key)
    }

    fn is_open(&self, server: usize) -> bool {
        self.ledger.admission(server).is_open
    }

    /// The load of a group as the buckets see it: nobody is drawn to one that cannot serve, however empty it is.
    pub(super) fn drawing_load(&self, group: usize) -> f64 {
        if self.is_live(group) { self.ledger.group(group).load.tokens() } else { f64::INFINITY }
    }

    pub(super) fn is_live(&self, group: usize) -> bool {
        self.topology.groups()[group].iter().any(|server| self.is_open(*server))
    }
}

/// A request that no server has room for, if the estimate is right: unless it is beyond doubt, the largest servers are
/// to say so.
pub(super) fn too_long(demand: &Demand, max_model_len: u64) -> Option<Demand> {
    let work = demand.work.as_ref().filter(|work| work.surely_needed_tokens <= max_model_len)?;
    let work = Work { needed_tokens: Some(max_model_len), ..Work::clone(work) };
    Some(Demand { work: Some(Arc::new(work)), ..demand.clone() })
}

/// What a rejection means to a request.
pub(super) fn unavailable(why: Rejection, demand: &Demand) -> Unavailable {
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
