//! The unit of load, and the ledger: the only place where load is added and taken away.

use super::pick::Rank;
use super::{Admission, Topology};

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
/// - L2 the load of a group is the sum over the servers that are in it now;
/// - L3 everything is exactly zero when no lease lives;
/// - L4 no change of groups, admission or health touches what is counted on a server.
#[derive(Debug)]
pub(super) struct Ledger {
    servers: Vec<Account>,
    /// What choosing scans, by server: kept in step with `servers`, small and side by side.
    ranks: Vec<Rank>,
    groups: Vec<Usage>,
    choices: u64,
    /// How many servers have a limit on their load, which a rank cannot tell.
    limited_in_load: usize,
}

/// What is counted for one server, and what it may be given.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    usage: Usage,
    admission: Admission,
    /// Sequence number of the last choice of this server; 0 is never.
    last_chosen: u64,
}

impl Account {
    fn rank(&self) -> Rank {
        Rank::new(self.usage, &self.admission, self.last_chosen)
    }
}

/// Load and running requests of one server or group at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Active load.
    pub load: Load,
    /// Requests running.
    pub in_flight: u64,
}

impl Usage {
    fn add(&mut self, load: Load) {
        self.load.0 += load.0;
        self.in_flight += 1;
    }

    fn take(&mut self, load: Load) {
        debug_assert!(self.load >= load && self.in_flight > 0, "more given back than was booked");
        self.load.0 -= load.0;
        self.in_flight -= 1;
    }
}

impl Ledger {
    pub(super) fn new(topology: &Topology) -> Self {
        let (servers, ranks, groups) = (Vec::new(), Vec::new(), Vec::new());
        let mut ledger = Self { servers, ranks, groups, choices: 0, limited_in_load: 0 };
        ledger.regroup(topology);
        ledger
    }

    /// Counts a request on a server.
    pub(super) fn book(&mut self, server: usize, group: Option<usize>, load: Load) {
        self.choices += 1;
        let choice = self.choices;
        self.change(server, |account| {
            account.last_chosen = choice;
            account.usage.add(load);
        });
        if let Some(group) = group {
            self.groups[group].add(load);
        }
    }

    /// Takes back exactly what [`book`](Self::book) added, from the group that the server is in by now. Called by the
    /// drop of a lease and by nothing else.
    pub(super) fn give_back(&mut self, server: usize, group: Option<usize>, load: Load) {
        self.change(server, |account| account.usage.take(load));
        if let Some(group) = group {
            self.groups[group].take(load);
        }
    }

    /// Says what a server may be given. Unknown numbers are ignored.
    pub(super) fn admit(&mut self, server: usize, admission: Admission) {
        if server < self.servers.len() {
            self.change(server, |account| account.admission = admission);
            self.limited_in_load = self.servers.iter().filter(|account| account.admission.max_load.is_some()).count();
        }
    }

    fn change(&mut self, server: usize, change: impl FnOnce(&mut Account)) {
        let account = &mut self.servers[server];
        change(account);
        self.ranks[server] = account.rank();
    }

    /// Makes room for the servers of a topology and adds its groups up anew.
    pub(super) fn regroup(&mut self, topology: &Topology) {
        let known = topology.servers().max().map_or(0, |server| server + 1).max(self.servers.len());
        self.resize(known);
        let sum = |servers: &Vec<usize>| {
            servers.iter().fold(Usage::default(), |sum, server| {
                let Usage { load, in_flight } = self.servers[*server].usage;
                Usage { load: Load(sum.load.0 + load.0), in_flight: sum.in_flight + in_flight }
            })
        };
        self.groups = topology.groups().iter().map(sum).collect();
    }

    fn resize(&mut self, known: usize) {
        self.servers.resize(known, Account::default());
        self.ranks.resize(known, Account::default().rank());
    }

    /// A number for a new server: one on which nothing runs and that no group has, else the next one.
    pub(super) fn free_number(&mut self, topology: &Topology, is_taken: impl Fn(usize) -> bool) -> usize {
        let is_free = |server: &usize| {
            self.servers[*server].usage == Usage::default()
                && topology.group_of(*server).is_none()
                && !is_taken(*server)
        };
        let free = (0..self.servers.len()).find(is_free).unwrap_or(self.servers.len());
        self.resize(self.servers.len().max(free + 1));
        self.change(free, |account| *account = Account::default());
        free
    }

    /// Whether there is anything to be said of a server of this number.
    pub(super) fn knows(&self, server: usize) -> bool {
        server < self.servers.len()
    }

    pub(super) fn server(&self, server: usize) -> Usage {
        self.servers[server].usage
    }

    pub(super) fn admission(&self, server: usize) -> &Admission {
        &self.servers[server].admission
    }

    /// Sequence number of the last choice of a server; 0 is never.
    pub(super) fn choice(&self, server: usize) -> u64 {
        self.servers[server].last_chosen
    }

    pub(super) fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// Whether some server's limit depends on how large a request is.
    pub(super) fn has_limits_on_load(&self) -> bool {
        self.limited_in_load > 0
    }

    pub(super) fn group(&self, group: usize) -> Usage {
        self.groups[group]
    }

    pub(super) fn servers(&self) -> impl Iterator<Item = Usage> {
        self.servers.iter().map(|account| account.usage)
    }

    pub(super) fn admissions(&self) -> impl Iterator<Item = Admission> {
        self.servers.iter().map(|account| account.admission)
    }

    pub(super) fn groups(&self) -> &[Usage] {
        &self.groups
    }
}
