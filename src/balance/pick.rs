//! The second idea of the example: inside a group, the server with the least active load gets the request.

use super::Admission;
use super::load::Usage;

/// Which of equally loaded servers wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ties {
    /// The first in configured order, as the example does. Sequential traffic then uses one server only.
    First,
    /// The one that was chosen longest ago.
    LeastRecentlyUsed,
}

/// The servers that one request has already failed on. A handful at most.
#[derive(Debug, Default, Clone)]
pub struct Tried(Vec<usize>);

impl Tried {
    /// Remembers a server.
    pub fn insert(&mut self, server: usize) {
        if !self.contains(server) {
            self.0.push(server);
        }
    }

    /// Whether the server was tried.
    #[must_use]
    pub fn contains(&self, server: usize) -> bool {
        self.0.contains(&server)
    }

    /// The servers that were tried.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// Whether no server was tried.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Where a server stands among others: the one with the least rank is chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rank {
    /// In thousandths of a token; [`Rank::TAKES_NOTHING`] when it is closed or has as many requests as it may.
    load: u64,
    last_chosen: u64,
}

impl Rank {
    const TAKES_NOTHING: u64 = u64::MAX;

    pub(super) fn new(usage: Usage, admission: &Admission, last_chosen: u64) -> Self {
        let load = if admission.has_place(usage) { usage.load.millitokens() } else { Self::TAKES_NOTHING };
        Self { load, last_chosen }
    }
}

/// The least loaded of some servers that are eligible and have a place; `None` when there is none.
///
/// One pass over the ranks: its cost grows with the number of servers (see benches/choose.rs).
pub(super) fn least_loaded(
    ranks: &[Rank],
    servers: impl Iterator<Item = usize>,
    ties: Ties,
    is_eligible: impl Fn(usize) -> bool,
) -> Option<usize> {
    let mut best = None;
    let mut least = Rank { load: Rank::TAKES_NOTHING, last_chosen: 0 };
    servers.for_each(|server| {
        let rank = ranks[server];
        let is_longer_ago = ties == Ties::LeastRecentlyUsed && rank.last_chosen < least.last_chosen;
        let wins = rank.load < least.load || (rank.load == least.load && is_longer_ago);
        if wins && is_eligible(server) {
            best = Some(server);
            least = rank;
        }
    });
    best
}
