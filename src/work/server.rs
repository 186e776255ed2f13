//! One server as the policies see it: what it can do, and whether it may be given requests.

use super::prefix::PrefixCache;
use super::profile::Profile;
use super::request::Request;

/// What tells a server from the others.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ServerTraits {
    /// Most tokens of a request, prompt and answer together (vLLM's `max_model_len`); `None` when it is not known.
    pub max_model_len: Option<u64>,
    /// Tokens that its KV cache holds; `None` is what the profile says.
    pub kv_tokens: Option<u64>,
}

/// What a server may be given while it is up. Decided outside (limits, a trial after a failure); policies only obey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Whether it takes new requests for the moment. A closed server keeps what runs on it, and stays a lane.
    pub is_open: bool,
    /// Most requests that may run on it at once; `None` is no limit.
    pub max_active: Option<u64>,
}

impl Default for Admission {
    /// Open, without a limit.
    fn default() -> Self {
        Self { is_open: true, max_active: None }
    }
}

/// One server of a list: see [`Dispatcher::reshape`](super::Dispatcher::reshape).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServerSpec {
    /// Its place in the list before; `None` for a server that was not there.
    pub origin: Option<usize>,
    /// Whether it takes requests: healthy and not drained.
    pub is_up: bool,
    /// What it may be given while it is up.
    pub admission: Admission,
    /// What it can do.
    pub traits: ServerTraits,
}

impl Default for ServerSpec {
    /// A new server, up and open.
    fn default() -> Self {
        Self { origin: None, is_up: true, admission: Admission::default(), traits: ServerTraits::default() }
    }
}

/// Why a request cannot go to a server now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// The server is not up.
    Down,
    /// The request is larger than the server's `max_model_len`.
    TooLong,
    /// The request was tried there.
    Excluded,
    /// The server takes nothing more for the moment.
    Closed,
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) is_up: bool,
    pub(super) admission: Admission,
    pub(super) traits: ServerTraits,
    /// Tokens that its KV cache holds.
    pub(super) kv_tokens: u64,
    pub(super) prefixes: PrefixCache,
    /// Tells which of equals was chosen longest ago.
    pub(super) last_dispatch: u64,
}

impl Server {
    pub(super) fn new(spec: &ServerSpec, profile: &Profile) -> Self {
        let kv_tokens = spec.traits.kv_tokens.unwrap_or(profile.kv_tokens);
        Self {
            is_up: spec.is_up,
            admission: spec.admission,
            traits: spec.traits,
            kv_tokens,
            prefixes: PrefixCache::new(kv_tokens),
            last_dispatch: 0,
        }
    }

    /// Becomes what the list says; what is known of it stays.
    pub(super) fn become_as(&mut self, spec: &ServerSpec, profile: &Profile) {
        self.set_up(spec.is_up);
        (self.admission, self.traits) = (spec.admission, spec.traits);
        self.adopt(profile);
    }

    /// Takes from a profile what its traits leave open.
    pub(super) fn adopt(&mut self, profile: &Profile) {
        self.kv_tokens = self.traits.kv_tokens.unwrap_or(profile.kv_tokens);
        self.prefixes.resize(self.kv_tokens);
    }

    pub(super) fn set_up(&mut self, is_up: bool) {
        if self.is_up && !is_up {
            // The engine may come back anew.
            self.prefixes.clear();
        }
        self.is_up = is_up;
    }

    /// Whether a request of this size has room in its context.
    pub(super) fn can_hold(&self, request: &Request) -> bool {
        match (request.needed_tokens, self.traits.max_model_len) {
            (Some(needed), Some(most)) => needed <= most,
            _ => true,
        }
    }
}
