//! The second idea of the example: inside a group, the server with the least active load gets the request.

use std::ops::Range;

use super::load::Ledger;

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

    /// Whether no server was tried.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The least loaded server of a range, leaving out the tried ones; `None` when all were tried.
///
/// One pass over the cached loads: its cost grows with the number of servers in the group (about a nanosecond each).
pub(super) fn least_loaded(ledger: &Ledger, servers: Range<usize>, tried: &Tried, ties: Ties) -> Option<usize> {
    let first = servers.start;
    let mut best: Option<usize> = None;
    for (offset, load) in ledger.active_in(servers).iter().enumerate() {
        let server = first + offset;
        if !tried.is_empty() && tried.contains(server) {
            continue;
        }
        let wins = match best {
            None => true,
            Some(best) if *load == ledger.active(best) => {
                ties == Ties::LeastRecentlyUsed && ledger.last_chosen(server) < ledger.last_chosen(best)
            }
            Some(best) => *load < ledger.active(best),
        };
        if wins {
            best = Some(server);
        }
    }
    best
}
