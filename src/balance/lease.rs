//! The lease: a request's place on a server.

use std::sync::Arc;

use super::{Balancer, Load, Place};
use crate::work::RequestId;

/// A request's place on a server. While it lives the request's load is counted; dropping it gives the load back.
///
/// There is no other way to give load back, so it happens exactly once: at the end of the request, on any error, and
/// also when a panic unwinds.
#[must_use = "dropping the lease gives the load back at once"]
#[derive(Debug)]
pub struct Lease {
    pub(super) balancer: Arc<Balancer>,
    pub(super) place: Place,
    pub(super) is_answered: bool,
    pub(super) generated: Option<u64>,
}

/// Tells the policy how a running request gets on. Says nothing any more once its lease has dropped.
#[derive(Debug, Clone)]
pub struct Progress {
    balancer: Arc<Balancer>,
    request: RequestId,
}

/// How long the policy takes a prompt to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Length {
    /// The policy makes no difference.
    Any,
    /// Of the first bucket; by work, one that is not long.
    Short,
    /// Of another bucket; by work, one that others would have to wait for.
    Long,
}

impl Length {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Any, Self::Short, Self::Long];

    /// The name in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Short => "short",
            Self::Long => "long",
        }
    }
}

/// Why a request is in the group where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Its length is for this group.
    Standard,
    /// The policy moved it to a lighter neighbour.
    Redirected,
    /// The group that the policy chose has no live server (left).
    Failover,
}

impl Placement {
    /// The name in logs and in what drives policies from outside.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Redirected => "redirected",
            Self::Failover => "failover",
        }
    }
}

impl Lease {
    /// The number of the server.
    #[must_use]
    pub fn server(&self) -> usize {
        self.place.server
    }

    /// The group that the server belonged to when it was chosen.
    #[must_use]
    pub fn group(&self) -> usize {
        self.place.group
    }

    /// The group that the request's length is for.
    #[must_use]
    pub fn standard_group(&self) -> usize {
        self.place.standard_group
    }

    /// Why the request is in this group.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.place.placement
    }

    /// Why the policy has chosen the server, in a word or two of a closed list.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        self.place.reason
    }

    /// How long the policy takes the prompt to be.
    #[must_use]
    pub fn length(&self) -> Length {
        self.place.length
    }

    /// Tells the policy how the request gets on; `None` when the policy does not ask.
    #[must_use]
    pub fn progress(&self) -> Option<Progress> {
        self.place.request.map(|request| Progress { balancer: Arc::clone(&self.balancer), request })
    }

    /// The request was answered to its end, with so many tokens if that is known. The load is still given back by the
    /// drop.
    pub fn answered(&mut self, generated: Option<u64>) {
        (self.is_answered, self.generated) = (true, generated);
    }

    /// The load that is counted while the lease lives.
    #[must_use]
    pub fn load(&self) -> Load {
        self.place.load
    }
}

impl Progress {
    /// The first token of the answer has been seen.
    pub fn first_token(&self) {
        self.balancer.progress(|dispatch| dispatch.first_token(self.request));
    }

    /// So many tokens have been generated in all.
    pub fn generated(&self, tokens: u64) {
        self.balancer.progress(|dispatch| dispatch.generated(self.request, tokens));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.balancer.give_back(self);
    }
}
