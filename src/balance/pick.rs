//! The second idea of the example: inside a group, the server with the least active load gets the request.

use super::Load;
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

/// The least loaded of some servers; `None` when there is none.
///
/// One pass over the cached loads: its cost grows with the number of servers (about a nanosecond each).
pub(super) fn least_loaded(ledger: &Ledger, servers: impl Iterator<Item = usize>, ties: Ties) -> Option<usize> {
    let mut best: Option<(usize, Load)> = None;
    for server in servers {
        let load = ledger.server(server).load;
        let wins = match best {
            None => true,
            Some((best, least)) if load == least => {
                ties == Ties::LeastRecentlyUsed && ledger.last_chosen(server) < ledger.last_chosen(best)
            }
            Some((_, least)) => load < least,
        };
        if wins {
            best = Some((server, load));
        }
    }
    best.map(|(server, _)| server)
}
