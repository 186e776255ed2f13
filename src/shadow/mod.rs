//! What another policy would do with the same requests: it decides beside the one in force, and only its choices are
//! counted.
//!
//! The shadow is a [`Balancer`] of its own over the same servers. It hears of each request when the other one is asked
//! (of retries nothing: they follow from where the request went), of its first token, of what it generates, and of its
//! end, and keeps its own count of what would run where. What it cannot know is how long the request would have taken
//! there: first tokens and ends are those that really came.
//!
//! ```text
//! proxy -- arrives, placed, first token, end --> Shadow --> Balancer (the other policy)
//!                                                   |
//!                                                   +--> Choice: where both know their server, they are compared
//! ```

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::balance::{
    Admission, Balancer, Clock, GroupMismatch, Lease, Placed, Policy, Progress, Ties, Topology, Tried,
};
use crate::prompt::Demand;
use crate::work::{RequestId, ServerTraits};

/// A policy that decides beside the one in force.
pub struct Shadow {
    policy: &'static str,
    balancer: Arc<Balancer>,
    state: Mutex<State>,
    tell: Box<dyn Fn(Choice) + Send + Sync>,
}

#[derive(Default)]
struct State {
    next: u64,
    requests: HashMap<u64, Request>,
    /// Whose place the shadow is going to tell.
    held: HashMap<RequestId, u64>,
    counts: Counts,
}

/// A request in both worlds.
struct Request {
    here: Here,
    /// The server, and its group, that it really went to.
    really: Option<(usize, usize)>,
    is_told: bool,
}

/// Where the shadow has a request.
enum Here {
    Held(RequestId),
    On(Lease),
    Nowhere,
}

/// What the shadow would have done with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The shadow's policy.
    pub policy: &'static str,
    /// The group that it would have gone to; `None` when it would have gone nowhere.
    pub group: Option<usize>,
    /// Why, in the shadow's words.
    pub reason: &'static str,
    /// Beside where it really went.
    pub agreement: Agreement,
}

/// How a choice of the shadow compares with where the request really went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Agreement {
    /// The same server.
    SameServer,
    /// Another server of the same group.
    SameGroup,
    /// A server of another group.
    OtherGroup,
    /// None, by the request's end: it would still be held, or was refused.
    None,
}

/// What the shadow has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that went to the same server.
    pub same_server: u64,
    /// Requests that would have gone to another server of their group.
    pub same_group: u64,
    /// Requests that would have gone to another group.
    pub other_group: u64,
    /// Requests that would have got no server by the time when they ended.
    pub none: u64,
}

/// A request that a shadow follows. What is not said before it is dropped is an end without an answer.
#[derive(Debug)]
pub struct Followed {
    shadow: Arc<Shadow>,
    number: u64,
}

impl Agreement {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::SameServer, Self::SameGroup, Self::OtherGroup, Self::None];

    /// The name in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::SameServer => "same_server",
            Self::SameGroup => "same_group",
            Self::OtherGroup => "other_group",
            Self::None => "none",
        }
    }
}

impl Counts {
    fn add(&mut self, agreement: Agreement) {
        let count = match agreement {
            Agreement::SameServer => &mut self.same_server,
            Agreement::SameGroup => &mut self.same_group,
            Agreement::OtherGroup => &mut self.other_group,
            Agreement::None => &mut self.none,
        };
        *count += 1;
    }
}

impl std::fmt::Debug for Shadow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shadow").field("policy", &self.policy).field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Shadow {
    /// A shadow to which nothing has happened yet. `tell` hears of each choice once; it must not call back.
    ///
    /// # Errors
    /// When the policy has another number of buckets than there are groups.
    pub fn new(
        topology: Topology,
        policy: Policy,
        ties: Ties,
        traits: &[ServerTraits],
        clock: Clock,
        tell: impl Fn(Choice) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, GroupMismatch> {
        let name = policy.name();
        let balancer = Arc::new(Balancer::with_clock(topology, policy, ties, traits, clock)?);
        Ok(Arc::new(Self { policy: name, balancer, state: Mutex::default(), tell: Box::new(tell) }))
    }

    /// The policy's name.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        self.policy
    }

    /// What has been counted so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Requests that the shadow would hold now, although they run.
    #[must_use]
    pub fn held(&self) -> usize {
        self.state.lock().held.len()
    }

    /// Other servers, or another tuning, from now on.
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
        let mut state = self.state.lock();
        self.balancer.reconfigure(topology, policy, ties, traits)?;
        self.settle(&mut state);
        Ok(())
    }

    /// Servers differ from each other in another way from now on, by number.
    pub fn set_traits(&self, traits: &[ServerTraits]) {
        let mut state = self.state.lock();
        self.balancer.set_traits(traits);
        self.settle(&mut state);
    }

    /// Says what a server may be given from now on.
    pub fn set_admission(&self, server: usize, admission: Admission) {
        let mut state = self.state.lock();
        self.balancer.set_admission(server, admission);
        self.settle(&mut state);
    }

    /// A request has come.
    pub fn arrive(self: &Arc<Self>, demand: &Demand) -> Followed {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let here = match self.balancer.ask(demand, &Tried::default()) {
            Placed::Now(lease) => Here::On(lease),
            Placed::Held(request) => {
                state.held.insert(request, number);
                Here::Held(request)
            }
            Placed::Not(_) => Here::Nowhere,
        };
        state.requests.insert(number, Request { here, really: None, is_told: false });
        self.settle(&mut state);
        Followed { shadow: Arc::clone(self), number }
    }

    /// Takes what was decided of requests that were held.
    fn settle(&self, state: &mut State) {
        for (held, answer) in self.balancer.take_decided() {
            let Some(number) = state.held.remove(&held) else { continue };
            if let Some(request) = state.requests.get_mut(&number) {
                request.here = answer.map_or(Here::Nowhere, Here::On);
            }
            self.compare(state, number);
        }
    }

    /// Tells of a request where both worlds know their server.
    fn compare(&self, state: &mut State, number: u64) {
        let Some(request) = state.requests.get_mut(&number).filter(|request| !request.is_told) else { return };
        let (Here::On(lease), Some((server, group))) = (&request.here, request.really) else { return };
        let agreement = match lease {
            lease if lease.server() == server => Agreement::SameServer,
            lease if lease.group() == group => Agreement::SameGroup,
            _ => Agreement::OtherGroup,
        };
        let (group, reason) = (Some(lease.group()), lease.reason());
        request.is_told = true;
        state.counts.add(agreement);
        (self.tell)(Choice { policy: self.policy, group, reason, agreement });
    }

    /// Lets something happen to a request that is on a server of the shadow's.
    fn progress(&self, number: u64, happen: impl FnOnce(&Progress)) {
        let mut state = self.state.lock();
        let progress = match state.requests.get(&number).map(|request| &request.here) {
            Some(Here::On(lease)) => lease.progress(),
            _ => None,
        };
        if let Some(progress) = progress {
            happen(&progress);
            self.settle(&mut state);
        }
    }

    fn end(&self, number: u64, answered: Option<Option<u64>>) {
        let mut state = self.state.lock();
        let Some(request) = state.requests.remove(&number) else { return };
        let reason = match request.here {
            Here::On(mut lease) => {
                if let Some(generated) = answered {
                    lease.answered(generated);
                }
                None
            }
            Here::Held(held) => {
                state.held.remove(&held);
                self.balancer.leave(held);
                Some("held")
            }
            Here::Nowhere => Some("refused"),
        };
        // Of a request that really went nowhere there is nothing to compare.
        if let Some(reason) = reason.filter(|_| request.really.is_some()) {
            state.counts.add(Agreement::None);
            (self.tell)(Choice { policy: self.policy, group: None, reason, agreement: Agreement::None });
        }
        self.settle(&mut state);
    }
}

impl Followed {
    /// It really went to this server of this group.
    pub fn placed(&self, server: usize, group: usize) {
        let mut state = self.shadow.state.lock();
        if let Some(request) = state.requests.get_mut(&self.number) {
            request.really = Some((server, group));
        }
        self.shadow.compare(&mut state, self.number);
    }

    /// The first token of its answer has been seen.
    pub fn first_token(&self) {
        self.shadow.progress(self.number, Progress::first_token);
    }

    /// So many tokens have been generated in all.
    pub fn generated(&self, tokens: u64) {
        self.shadow.progress(self.number, |progress| progress.generated(tokens));
    }

    /// It was answered to its end, with so many tokens if that is known.
    pub fn answered(&self, generated: Option<u64>) {
        self.shadow.end(self.number, Some(generated));
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.shadow.end(self.number, None);
    }
}
