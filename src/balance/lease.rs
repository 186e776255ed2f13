//! The lease: a request's place on a server.

use std::sync::Arc;

use super::{Balancer, Load};

/// A request's place on a server. While it lives the request's load is counted; dropping it gives the load back.
///
/// There is no other way to give load back, so it happens exactly once: at the end of the request, on any error, and
/// also when a panic unwinds.
#[must_use = "dropping the lease gives the load back at once"]
#[derive(Debug)]
pub struct Lease {
    pub(super) balancer: Arc<Balancer>,
    pub(super) server: usize,
    pub(super) group: usize,
    pub(super) standard_group: usize,
    pub(super) placement: Placement,
    pub(super) load: Load,
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

impl Lease {
    /// The number of the server.
    #[must_use]
    pub fn server(&self) -> usize {
        self.server
    }

    /// The group that the server belonged to when it was chosen.
    #[must_use]
    pub fn group(&self) -> usize {
        self.group
    }

    /// The group that the request's length is for.
    #[must_use]
    pub fn standard_group(&self) -> usize {
        self.standard_group
    }

    /// Why the request is in this group.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The load that is counted while the lease lives.
    #[must_use]
    pub fn load(&self) -> Load {
        self.load
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.balancer.give_back(self);
    }
}
