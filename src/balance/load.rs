//! The unit of load, and the ledger: the only place where load is added and taken away.

use std::ops::Range;

/// An amount of work, in thousandths of a token.
///
/// An integer, so that what was added is exactly what is taken away: no residue is left when a server is idle,
/// whatever the order. Quarters (a body byte is a quarter of a token) and decimal budgets are exact. Sums cannot
/// overflow: one request counts at most 2^32 tokens plus its body, and four million of those fit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Load(u64);

impl Load {
    /// No work.
    pub const ZERO: Self = Self(0);

    /// So many thousandths of a token.
    #[must_use]
    pub const fn from_millitokens(millitokens: u64) -> Self {
        Self(millitokens)
    }

    /// The amount in thousandths of a token.
    #[must_use]
    pub const fn millitokens(self) -> u64 {
        self.0
    }

    /// The amount in tokens. Exact up to 2^53 thousandths.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "loads stay far below 2^53 thousandths of a token")]
    pub fn tokens(self) -> f64 {
        self.0 as f64 / 1_000.0
    }
}

/// What is running on each server and in each group right now.
///
/// Invariants (checked by the model test in `balance/tests.rs`):
/// - L1 the load of a server is the sum of the loads of its live leases, and so is its in-flight count;
/// - L2 the load of a group is the sum over its servers;
/// - L3 everything is exactly zero when no lease lives.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Load per server; contiguous, because choosing scans it.
    active: Vec<Load>,
    in_flight: Vec<u64>,
    /// Sequence number of the last choice of each server; 0 is never.
    last_chosen: Vec<u64>,
    /// Load per group.
    group_active: Vec<Load>,
    group_in_flight: Vec<u64>,
    choices: u64,
}

impl Ledger {
    pub(super) fn new(servers: usize, groups: usize) -> Self {
        Self {
            active: vec![Load::ZERO; servers],
            in_flight: vec![0; servers],
            last_chosen: vec![0; servers],
            group_active: vec![Load::ZERO; groups],
            group_in_flight: vec![0; groups],
            choices: 0,
        }
    }

    /// Counts a request on a server of a group.
    pub(super) fn book(&mut self, server: usize, group: usize, load: Load) {
        self.choices += 1;
        self.last_chosen[server] = self.choices;
        self.active[server].0 += load.0;
        self.in_flight[server] += 1;
        self.group_active[group].0 += load.0;
        self.group_in_flight[group] += 1;
    }

    /// Takes back exactly what [`book`](Self::book) added. Called by the drop of a lease and by nothing else.
    pub(super) fn give_back(&mut self, server: usize, group: usize, load: Load) {
        debug_assert!(self.active[server] >= load && self.in_flight[server] > 0, "more given back than was booked");
        self.active[server].0 -= load.0;
        self.in_flight[server] -= 1;
        self.group_active[group].0 -= load.0;
        self.group_in_flight[group] -= 1;
    }

    pub(super) fn active(&self, server: usize) -> Load {
        self.active[server]
    }

    pub(super) fn active_in(&self, servers: Range<usize>) -> &[Load] {
        &self.active[servers]
    }

    pub(super) fn last_chosen(&self, server: usize) -> u64 {
        self.last_chosen[server]
    }

    pub(super) fn in_flight(&self, server: usize) -> u64 {
        self.in_flight[server]
    }

    pub(super) fn group_active(&self, group: usize) -> Load {
        self.group_active[group]
    }

    pub(super) fn group_in_flight(&self, group: usize) -> u64 {
        self.group_in_flight[group]
    }
}
