//! What a policy decides on: the servers, what runs on them, and what was learned of the traffic.

use super::book::{Active, Book, Entry};
use super::learned::Learned;
use super::profile::Profile;
use super::request::{Request, RequestId};
use super::server::{Admission, Obstacle, Server, ServerSpec, ServerTraits};

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

/// The prefill of one request on one server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prefill {
    /// Predicted seconds.
    pub seconds: f64,
    /// Tokens to compute.
    pub new_tokens: u64,
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
        Self {
            profile,
            book: Book::new(servers.len()),
            learned: Learned::new(long_from_tokens),
            up: count_up(&servers),
            servers,
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
        self.servers[server].kv_tokens
    }

    /// What a server may be given while it is up.
    #[must_use]
    pub fn admission(&self, server: usize) -> Admission {
        self.servers[server].admission
    }

    /// Whether a server would take a request now: up, open and below its limit.
    #[must_use]
    pub fn takes(&self, server: usize) -> bool {
        self.servers[server].is_up && self.is_open(server)
    }

    fn is_open(&self, server: usize) -> bool {
        let Admission { is_open, max_active } = self.servers[server].admission;
        is_open && max_active.is_none_or(|most| self.book.sums(server).active() < most)
    }

    /// Whether a request may go to a server at all: it has room in its context, and was not tried there.
    #[must_use]
    pub fn suits(&self, server: usize, request: &Request) -> bool {
        !request.excluded.contains(&server) && self.servers[server].can_hold(request)
    }

    /// The servers that a request may go to now, in order: from these a policy chooses.
    pub fn candidates<'f>(&'f self, request: &'f Request) -> impl DoubleEndedIterator<Item = usize> + 'f {
        (0..self.servers.len()).filter(|server| self.takes(*server) && self.suits(*server, request))
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

    /// Strikes a request out; also says whether its server takes requests again because of that.
    pub(super) fn end(&mut self, id: RequestId, now_s: f64) -> Option<(Active, bool)> {
        let server = self.book.active(id)?.server;
        let took = server >= self.servers.len() || self.takes(server);
        let active = self.book.end(id, now_s)?;
        Some((active, !took && self.takes(server)))
    }

    /// Says whether a server takes requests from now on. What runs on it stays in the book until it ends.
    pub(super) fn set_up(&mut self, server: usize, is_up: bool) {
        self.servers[server].set_up(is_up);
        self.up = count_up(&self.servers);
        self.changes += 1;
    }

    pub(super) fn set_admission(&mut self, server: usize, admission: Admission) {
        self.servers[server].admission = admission;
    }

    /// Another profile from now on. What is in the book stays as it was predicted.
    pub(super) fn set_profile(&mut self, profile: Profile) {
        self.profile = profile;
        self.servers.iter_mut().for_each(|server| server.adopt(&profile));
    }

    /// Other servers from now on, each with its place before. No place may stand twice.
    pub(super) fn reshape(&mut self, specs: &[ServerSpec]) {
        let mut old: Vec<Option<Server>> = std::mem::take(&mut self.servers).into_iter().map(Some).collect();
        for spec in specs {
            let kept = spec.origin.and_then(|origin| old.get_mut(origin)?.take());
            self.servers.push(match kept {
                Some(mut server) => {
                    server.become_as(spec, &self.profile);
                    server
                }
                None => Server::new(spec, &self.profile),
            });
        }
        let origins: Vec<Option<usize>> = specs.iter().map(|spec| spec.origin).collect();
        self.book.reshape(&origins);
        self.up = count_up(&self.servers);
        self.changes += 1;
    }
}

fn count_up(servers: &[Server]) -> usize {
    servers.iter().filter(|server| server.is_up).count()
}
