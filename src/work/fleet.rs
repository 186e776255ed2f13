//! What a policy decides on: the servers, what runs on them, and what was learned of the traffic.

use super::book::{Book, Entry};
use super::learned::Learned;
use super::prefix::PrefixCache;
use super::profile::Profile;
use super::request::Request;

/// The servers in configured order, the long end last, and everything that is known of them.
#[derive(Debug)]
pub struct Fleet {
    /// What each engine can do.
    pub profile: Profile,
    /// What runs.
    pub book: Book,
    /// What the traffic is like.
    pub learned: Learned,
    servers: Vec<Server>,
    up: usize,
    /// How often a server has come or gone.
    changes: u64,
    dispatches: u64,
}

#[derive(Debug)]
struct Server {
    is_up: bool,
    prefixes: PrefixCache,
    /// Tells which of equals was chosen longest ago.
    last_dispatch: u64,
}

/// The prefill of one request on one server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prefill {
    /// Predicted seconds.
    pub seconds: f64,
    /// Tokens to compute.
    pub new_tokens: u64,
}

impl Fleet {
    /// So many idle servers, all up. `long_from_tokens` pins what counts as long.
    #[must_use]
    pub fn new(servers: usize, profile: Profile, long_from_tokens: Option<u64>) -> Self {
        let server = || Server { is_up: true, prefixes: PrefixCache::new(profile.kv_tokens), last_dispatch: 0 };
        Self {
            profile,
            book: Book::new(servers),
            learned: Learned::new(long_from_tokens),
            servers: (0..servers).map(|_| server()).collect(),
            up: servers,
            changes: 0,
            dispatches: 0,
        }
    }

    /// All servers there are.
    #[must_use]
    pub fn server_count(&self) -> usize {
        self.servers.len()
    }

    /// Servers that take requests.
    #[must_use]
    pub fn up_count(&self) -> usize {
        self.up
    }

    /// Whether a server takes requests.
    #[must_use]
    pub fn is_up(&self, server: usize) -> bool {
        self.servers[server].is_up
    }

    /// The servers that take requests, in order.
    pub fn up(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.servers.iter().enumerate().filter(|(_, server)| server.is_up).map(|(index, _)| index)
    }

    /// A number that is another one whenever a server has come or gone.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// When a server was chosen last, as a number that grows from choice to choice.
    #[must_use]
    pub fn last_dispatch(&self, server: usize) -> u64 {
        self.servers[server].last_dispatch
    }

    /// The prefill of a request on a server, after the blocks that the server is believed to hold still.
    #[must_use]
    pub fn prefill(&self, server: usize, request: &Request) -> Prefill {
        let cached = if request.prefix.is_empty() { 0 } else { self.servers[server].prefixes.cached_tokens(request) };
        self.prefill_after(cached, request)
    }

    /// The least prefill of a request on any server that is up; from scratch when none is.
    #[must_use]
    pub fn least_prefill(&self, request: &Request) -> Prefill {
        let cached = |server: usize| self.servers[server].prefixes.cached_tokens(request);
        let most = if request.prefix.is_empty() { None } else { self.up().map(cached).max() };
        self.prefill_after(most.unwrap_or(0), request)
    }

    fn prefill_after(&self, cached: u64, request: &Request) -> Prefill {
        let new_tokens = request.prompt_tokens - cached.min(request.prompt_tokens);
        Prefill { seconds: self.profile.prefill_s(new_tokens, cached), new_tokens }
    }

    /// Whether a prefill counts as long.
    #[must_use]
    pub fn is_long(&self, prefill: Prefill) -> bool {
        self.learned.is_long(prefill.seconds, prefill.new_tokens)
    }

    /// Enters a request on a server.
    pub(super) fn dispatch(&mut self, request: &Request, server: usize, now_s: f64) {
        let prefill = self.prefill(server, request);
        let entry =
            Entry { prefill_s: prefill.seconds, prompt_tokens: request.prompt_tokens, is_long: self.is_long(prefill) };
        self.book.dispatch(request.id, server, entry, now_s);
        self.dispatches += 1;
        self.servers[server].last_dispatch = self.dispatches;
        self.servers[server].prefixes.touch(&request.prefix);
    }

    /// Says whether a server takes requests from now on. What runs on it stays in the book until it ends.
    pub(super) fn set_up(&mut self, server: usize, is_up: bool) {
        let before = std::mem::replace(&mut self.servers[server].is_up, is_up);
        self.changes += 1;
        if before && !is_up {
            self.up -= 1;
            self.servers[server].prefixes.clear();
        } else if !before && is_up {
            self.up += 1;
        }
    }
}
