//! One server as the policies see it: what it can do, and whether it may be given requests.

use super::observation::Observation;
use super::prefix::PrefixCache;
use super::profile::Profile;
use super::request::Request;

/// Speeds beyond are taken for these: nobody means them, and sums stay far from overflow.
const SPEEDS: std::ops::RangeInclusive<f64> = 0.01..=100.0;

/// Which prompts a server is meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefers {
    /// Long ones: lanes are taken from these first.
    Long,
    /// Short ones: no lane is taken from these while there are others.
    Short,
}

/// What tells a server from the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServerTraits {
    /// How fast it is; 1 is an engine of the profile. All seconds that are predicted for it are divided by this.
    pub speed: f64,
    /// Most tokens of a request, prompt and answer together (vLLM's `max_model_len`); `None` when it is not known.
    pub max_model_len: Option<u64>,
    /// Tokens that its KV cache holds; `None` is what the profile says.
    pub kv_tokens: Option<u64>,
    /// Which prompts it is meant for, if any in particular.
    pub prefers: Option<Prefers>,
    /// The number of its class: engines of one class are alike, and what is learned of one holds for all. From 0 on, without gaps.
    pub engine_class: u16,
}

impl Default for ServerTraits {
    /// An engine of the profile.
    fn default() -> Self {
        Self { speed: 1.0, max_model_len: None, kv_tokens: None, prefers: None, engine_class: 0 }
    }
}

impl ServerTraits {
    /// What seconds at speed 1 are multiplied with.
    pub(super) fn slowness(&self) -> f64 {
        if self.speed.is_nan() { 1.0 } else { self.speed.clamp(*SPEEDS.start(), *SPEEDS.end()).recip() }
    }
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

impl Obstacle {
    /// The name in explanations.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Down => "out",
            Self::TooLong => "too_long",
            Self::Excluded => "tried",
            Self::Closed => "full",
        }
    }
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) is_up: bool,
    pub(super) admission: Admission,
    pub(super) traits: ServerTraits,
    pub(super) prefixes: PrefixCache,
    /// What the engine has reported last.
    pub(super) observation: Option<Observation>,
    /// Tells which of equals was chosen longest ago.
    pub(super) last_dispatch: u64,
}

impl Server {
    pub(super) fn new(spec: &ServerSpec, profile: &Profile) -> Self {
        Self {
            is_up: spec.is_up,
            admission: spec.admission,
            traits: spec.traits,
            prefixes: PrefixCache::new(spec.traits.kv_tokens.unwrap_or(profile.kv_tokens)),
            observation: None,
            last_dispatch: 0,
        }
    }

    pub(super) fn engine_class(&self) -> usize {
        self.traits.engine_class.into()
    }

    /// Tokens that its KV cache holds.
    pub(super) fn kv_tokens(&self, profile: &Profile) -> u64 {
        self.traits.kv_tokens.unwrap_or(profile.kv_tokens)
    }

    /// Becomes what the list says; what is known of it stays.
    pub(super) fn become_as(&mut self, spec: &ServerSpec, profile: &Profile) {
        self.set_up(spec.is_up);
        (self.admission, self.traits) = (spec.admission, spec.traits);
        self.adopt(profile);
    }

    /// Takes from a profile what its traits leave open.
    pub(super) fn adopt(&mut self, profile: &Profile) {
        self.prefixes.resize(self.kv_tokens(profile));
    }

    pub(super) fn set_up(&mut self, is_up: bool) {
        if self.is_up && !is_up {
            // The engine may come back anew.
            self.prefixes.clear();
            self.observation = None;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_divided_by_the_speed_and_absurd_speeds_are_bounded() {
        let slowness = |speed| ServerTraits { speed, ..ServerTraits::default() }.slowness();
        let found = [1.0, 2.0, 0.5, 0.0, -3.0, f64::INFINITY, f64::NAN].map(slowness);
        assert_eq!(found, [1.0, 0.5, 2.0, 100.0, 100.0, 0.01, 1.0]);
    }
}
