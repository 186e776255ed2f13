//! What a policy decides on: the servers, what runs on them, and what was learned of the traffic.

mod change;

use super::book::Book;
use super::calibration::{Calibration, Coefficients};
use super::learned::Learned;
use super::observation::{Foreign, Observation};
use super::prefix::DEFAULT_PREFIX_BYTES;
use super::profile::Profile;
use super::request::Request;
use super::server::{Admission, Obstacle, Server, ServerSpec, ServerTraits};

/// The servers in configured order, the long end last, and everything that is known of them.
#[derive(Debug)]
pub struct Fleet {
    /// What an engine can do in the mean: by this prompts are long or short, whatever server they go to.
    pub profile: Profile,
    /// What runs.
    pub book: Book,
    /// What the traffic is like.
    pub learned: Learned,
    servers: Vec<Server>,
    /// Whether each server would take a request now: apart, because every decision reads all of them.
    takes: Vec<bool>,
    /// What each server can do, for the same reason.
    capacities: Vec<Capacity>,
    /// What every server has room for.
    least_model_len: u64,
    up: usize,
    /// How often a server has come or gone.
    changes: u64,
    dispatches: u64,
    calibration: Calibration,
    /// Until when some engine's report counts.
    observed_until_s: f64,
    /// Memory for what all servers are believed to hold of prompts.
    prefix_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Capacity {
    slowness: f64,
    kv_tokens: u64,
    engine_class: usize,
}

/// The prefill of one request on one server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prefill {
    /// Predicted seconds at speed 1. Whether a prompt is long depends on these: a slow server makes no prompt longer.
    pub nominal_s: f64,
    /// Tokens to compute.
    pub new_tokens: u64,
    /// Tokens before them that are believed to be in the server's cache.
    pub cached_tokens: u64,
}

/// What the servers can do for a request now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// At least one may be given it.
    Open,
    /// Those that it could go to take nothing for the moment.
    Closed,
    /// It was tried on all that are up and large enough.
    Excluded,
    /// None that is large enough is up.
    Down,
    /// None is large enough, up or not.
    TooLong {
        /// The largest `max_model_len` there is.
        max_model_len: u64,
    },
}

impl Fleet {
    /// Idle servers. `long_from_tokens` pins what counts as long.
    #[must_use]
    pub fn new(servers: &[ServerSpec], profile: Profile, long_from_tokens: Option<u64>) -> Self {
        let servers: Vec<Server> = servers.iter().map(|spec| Server::new(spec, &profile)).collect();
        let mut fleet = Self {
            profile,
            calibration: Calibration::new(profile, &servers.iter().map(Server::engine_class).collect::<Vec<_>>()),
            book: Book::new(servers.len()),
            learned: Learned::new(long_from_tokens),
            servers,
            takes: Vec::new(),
            capacities: Vec::new(),
            least_model_len: 0,
            up: 0,
            changes: 0,
            prefix_bytes: DEFAULT_PREFIX_BYTES,
            dispatches: 0,
            observed_until_s: f64::NEG_INFINITY,
        };
        fleet.count_anew();
        fleet
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

    /// Whether a server takes requests. One that has been removed does not.
    #[must_use]
    pub fn is_up(&self, server: usize) -> bool {
        self.servers.get(server).is_some_and(|server| server.is_up)
    }

    /// The servers that take requests, in order.
    pub fn up(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.servers.iter().enumerate().filter(|(_, server)| server.is_up).map(|(index, _)| index)
    }

    /// What a server can do.
    #[must_use]
    pub fn traits(&self, server: usize) -> &ServerTraits {
        &self.servers[server].traits
    }

    /// Tokens that a server's KV cache holds.
    #[must_use]
    pub fn kv_tokens(&self, server: usize) -> u64 {
        self.capacities[server].kv_tokens
    }

    /// What has been learned of the seconds that servers take.
    #[must_use]
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// The number of a server's class of engines.
    pub(super) fn engine_class(&self, server: usize) -> usize {
        self.capacities[server].engine_class
    }

    /// What an engine of each class can do, by its number.
    pub(super) fn class_profiles(&self) -> impl ExactSizeIterator<Item = &Profile> {
        self.calibration.classes().iter().map(Coefficients::profile)
    }

    /// What an engine of a class can do.
    pub(super) fn class_profile(&self, engine_class: usize) -> &Profile {
        self.calibration.classes()[engine_class].profile()
    }

    /// What a server can do at speed 1.
    #[must_use]
    pub fn profile_of(&self, server: usize) -> &Profile {
        self.class_profile(self.engine_class(server))
    }

    /// What seconds at speed 1 are multiplied with for a server: 1 / speed.
    #[must_use]
    pub fn slowness(&self, server: usize) -> f64 {
        self.capacities[server].slowness
    }

    /// What a server may be given while it is up.
    #[must_use]
    pub fn admission(&self, server: usize) -> Admission {
        self.servers[server].admission
    }

    /// Whether a server would take a request now: up, open and below its limit.
    #[must_use]
    pub fn takes(&self, server: usize) -> bool {
        self.takes[server]
    }

    fn is_open(&self, server: usize) -> bool {
        let Admission { is_open, max_active } = self.servers[server].admission;
        is_open && max_active.is_none_or(|most| self.book.sums(server).active() < most)
    }

    /// Whether a request may go to a server at all: it has room in its context, and was not tried there.
    #[must_use]
    #[inline]
    pub fn suits(&self, server: usize, request: &Request) -> bool {
        !request.excluded.contains(&server) && (self.all_hold(request) || self.servers[server].can_hold(request))
    }

    /// Whether every server has room for a request of this size.
    fn all_hold(&self, request: &Request) -> bool {
        request.needed_tokens.is_none_or(|needed| needed <= self.least_model_len)
    }

    /// The servers that a request may go to now, in order: from these a policy chooses.
    pub fn candidates<'f>(&'f self, request: &'f Request) -> impl DoubleEndedIterator<Item = usize> + 'f {
        let suits_all = request.excluded.is_empty() && self.all_hold(request);
        let taking = self.takes.iter().enumerate().filter(|(_, takes)| **takes).map(|(server, _)| server);
        taking.filter(move |server| suits_all || self.suits(*server, request))
    }

    /// What the servers can do for a request now.
    #[must_use]
    pub fn reach(&self, request: &Request) -> Reach {
        if self.candidates(request).next().is_some() {
            return Reach::Open;
        }
        let large_enough = || self.servers.iter().enumerate().filter(|(_, server)| server.can_hold(request));
        if large_enough().next().is_none()
            && let Some(max_model_len) = self.servers.iter().filter_map(|server| server.traits.max_model_len).max()
        {
            return Reach::TooLong { max_model_len };
        }
        let mut up = large_enough().filter(|(_, server)| server.is_up).peekable();
        if up.peek().is_none() {
            Reach::Down
        } else if up.all(|(index, _)| request.excluded.contains(&index)) {
            Reach::Excluded
        } else {
            Reach::Closed
        }
    }

    /// Why a request cannot go to a server now; `None` when it can.
    #[must_use]
    pub fn obstacle(&self, server: usize, request: &Request) -> Option<Obstacle> {
        let checks = [
            (!self.is_up(server), Obstacle::Down),
            (!self.servers[server].can_hold(request), Obstacle::TooLong),
            (request.excluded.contains(&server), Obstacle::Excluded),
            (!self.is_open(server), Obstacle::Closed),
        ];
        checks.into_iter().find(|(applies, _)| *applies).map(|(_, obstacle)| obstacle)
    }

    /// The least `max_model_len` that has room for a request: two requests with the same one go to the same servers.
    pub(super) fn size_class(&self, request: &Request) -> u64 {
        let enough = |server: &Server| server.traits.max_model_len.filter(|most| request.needed_tokens <= Some(*most));
        self.servers.iter().filter_map(enough).min().unwrap_or(u64::MAX)
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
        let cached = if request.may_be_cached() { self.servers[server].prefixes.cached_tokens(request) } else { 0 };
        self.prefill_after(cached, request)
    }

    /// The least prefill of a request on any server that is up; from scratch when none is.
    #[must_use]
    pub fn least_prefill(&self, request: &Request) -> Prefill {
        let cached = |server: usize| self.servers[server].prefixes.cached_tokens(request);
        let most = if request.may_be_cached() { self.up().map(cached).max() } else { None };
        self.prefill_after(most.unwrap_or(0), request)
    }

    fn prefill_after(&self, cached: u64, request: &Request) -> Prefill {
        let new_tokens = request.prompt_tokens - cached.min(request.prompt_tokens);
        Prefill { nominal_s: self.profile.prefill_s(new_tokens, cached), new_tokens, cached_tokens: cached }
    }

    /// Predicted seconds of a prefill on a server.
    #[must_use]
    pub fn prefill_s(&self, server: usize, prefill: Prefill) -> f64 {
        self.profile_of(server).prefill_s(prefill.new_tokens, prefill.cached_tokens) * self.slowness(server)
    }

    /// Whether a prefill counts as long.
    #[must_use]
    pub fn is_long(&self, prefill: Prefill) -> bool {
        self.learned.is_long(prefill.nominal_s, prefill.new_tokens)
    }

    /// What an engine has reported last, while its server is up.
    #[must_use]
    pub fn observation(&self, server: usize) -> Option<&Observation> {
        self.servers[server].observation.as_ref()
    }

    /// Whether any engine's report counts now.
    pub(super) fn is_observed(&self, now_s: f64) -> bool {
        now_s < self.observed_until_s
    }

    /// When the last report stops counting, if any counts now.
    pub(super) fn stale_at_s(&self, now_s: f64) -> Option<f64> {
        self.is_observed(now_s).then_some(self.observed_until_s)
    }

    /// Work on a server that did not come through here.
    pub(super) fn foreign(&self, server: usize, now_s: f64) -> Foreign {
        // A stream is half done in the mean.
        let mean_context_tokens = self.learned.mean_prompt_tokens() + self.learned.mean_output_tokens() / 2.0;
        let observation = self.servers[server].observation;
        let foreign = |seen: Observation| seen.foreign(self.kv_tokens(server), mean_context_tokens, now_s);
        observation.map(foreign).unwrap_or_default()
    }
}
