//! Seconds learned while requests run: the coefficients of each class of engines, and how fast each server is beside the others
//! of its class.
//!
//! Only a first token on a server that had no prefill waiting, few streams, and was given little else in the meantime, tells
//! how long a prefill takes. At most one request per server is watched at a time, so that it costs nothing that grows.

mod coefficients;

use std::collections::VecDeque;

pub use coefficients::{Coefficients, FirstToken};

use super::book::Sums;
use super::profile::{Profile, as_f64};
use super::request::RequestId;

/// A server with more streams is not idle: what these take of a prefill is known only roughly.
const MOST_STREAMS: u64 = 8;

/// How much else may be dispatched to a server before the first token, as a share of the request's own prefill.
const MOST_DISTURBANCE: f64 = 0.1;

/// Shorter prefills say nothing of a server's speed: they are mostly network.
const LEAST_SPEED_TOKENS: u64 = 256;

/// First tokens that tell a server's speed: the last ones.
const SPEED_TIMES: usize = 31;

/// So many first tokens weigh as much as the belief that all servers of a class are alike.
const ALIKE_TIMES: f64 = 8.0;

/// How often the speeds of a class are compared, in first tokens.
const SPEED_BATCH: u64 = 8;

/// Servers of a class differ at most by this factor from their mean.
const SPEED_RANGE: std::ops::RangeInclusive<f64> = 0.25..=4.0;

/// What is learned of the seconds that servers take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Learning {
    /// b, d and the latency of each class of engines.
    pub coefficients: bool,
    /// How fast each server is beside the others of its class.
    pub speeds: bool,
}

impl Learning {
    /// What the product learns: how fast each server is beside others is left to its configured weight.
    pub const USUAL: Self = Self { coefficients: true, speeds: false };
}

/// A request whose first token will tell something.
#[derive(Debug, Clone, Copy)]
struct Watched {
    id: RequestId,
    dispatched_at_s: f64,
    new_tokens: u64,
    cached_tokens: u64,
    /// Its own predicted prefill.
    prefill_s: f64,
    /// What the streams that are there take of the time.
    streams_s: f64,
    /// Prefill that was dispatched after it.
    disturbance_s: f64,
}

#[derive(Debug)]
struct Server {
    class: usize,
    watched: Option<Watched>,
    /// Times as shares of what its class takes.
    shares: VecDeque<f64>,
    /// What the seconds of its class are multiplied with.
    factor: f64,
}

impl Server {
    fn new(class: usize) -> Self {
        Self { class, watched: None, shares: VecDeque::new(), factor: 1.0 }
    }

    /// The logarithm of its factor, drawn to that of all while little is known.
    fn log_factor(&self) -> f64 {
        let mut order: Vec<f64> = self.shares.iter().copied().collect();
        order.sort_by(f64::total_cmp);
        let Some(median) = order.get(order.len().saturating_sub(1) / 2) else { return 0.0 };
        let times = as_f64(order.len() as u64);
        median.clamp(*SPEED_RANGE.start(), *SPEED_RANGE.end()).ln() * times / (times + ALIKE_TIMES)
    }
}

/// What is dispatched, as far as it matters here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dispatched {
    pub(super) id: RequestId,
    pub(super) new_tokens: u64,
    pub(super) cached_tokens: u64,
    /// Predicted seconds on that server.
    pub(super) prefill_s: f64,
}

/// Learns the seconds of all servers.
#[derive(Debug)]
pub struct Calibration {
    learning: Learning,
    prior: Profile,
    classes: Vec<Coefficients>,
    servers: Vec<Server>,
    times: u64,
}

impl Calibration {
    /// Nothing learned yet, of servers of these classes.
    #[must_use]
    pub fn new(prior: Profile, classes: &[usize]) -> Self {
        let (learning, servers) = (Learning::default(), Vec::new());
        let mut calibration = Self { learning, prior, classes: Vec::new(), servers, times: 0 };
        calibration.reshape(classes.iter().map(|class| (None, *class)));
        calibration
    }

    /// What is learned.
    #[must_use]
    pub fn learning(&self) -> Learning {
        self.learning
    }

    /// The classes of engines, by number: what is known of each.
    #[must_use]
    pub fn classes(&self) -> &[Coefficients] {
        &self.classes
    }

    /// The profile that everything began with.
    #[must_use]
    pub fn prior(&self) -> &Profile {
        &self.prior
    }

    /// What the seconds of its class are multiplied with for a server. 1 while speeds are not learned.
    #[must_use]
    pub fn factor(&self, server: usize) -> f64 {
        self.servers[server].factor
    }

    /// From now on this is learned. What is not learned any more is forgotten.
    pub(super) fn learn(&mut self, learning: Learning) {
        if !learning.coefficients && self.learning.coefficients {
            self.classes.iter_mut().for_each(|class| *class = Coefficients::new(self.prior));
        }
        if !learning.speeds && self.learning.speeds {
            self.servers.iter_mut().for_each(|server| *server = Server::new(server.class));
        }
        self.learning = learning;
    }

    /// Begins anew with another profile.
    pub(super) fn restart(&mut self, prior: Profile) {
        self.prior = prior;
        self.classes.iter_mut().for_each(|class| *class = Coefficients::new(prior));
        self.servers.iter_mut().for_each(|server| *server = Server::new(server.class));
    }

    /// Other servers from now on: for each its place before, and its class.
    pub(super) fn reshape(&mut self, servers: impl Iterator<Item = (Option<usize>, usize)>) {
        let mut old: Vec<Option<Server>> = std::mem::take(&mut self.servers).into_iter().map(Some).collect();
        for (origin, class) in servers {
            let kept = origin.and_then(|origin| old.get_mut(origin)?.take()).filter(|server| server.class == class);
            self.servers.push(kept.unwrap_or_else(|| Server::new(class)));
        }
        let classes = self.servers.iter().map(|server| server.class + 1).max().unwrap_or(1);
        self.classes.resize_with(classes, || Coefficients::new(self.prior));
    }

    /// A request goes to a server on which this runs. `slowness`: of the server.
    pub(super) fn dispatched(&mut self, server: usize, what: Dispatched, sums: &Sums, slowness: f64, now_s: f64) {
        if self.learning == Learning::default() {
            return;
        }
        let Dispatched { id, new_tokens, cached_tokens, prefill_s } = what;
        let server = &mut self.servers[server];
        if let Some(watched) = &mut server.watched {
            watched.disturbance_s += prefill_s;
        } else if sums.waiting == 0 && sums.streams <= MOST_STREAMS {
            let streams_s = streams_s(self.classes[server.class].profile(), sums, new_tokens) * slowness;
            let (dispatched_at_s, disturbance_s) = (now_s, 0.0);
            let watched =
                Watched { id, dispatched_at_s, new_tokens, cached_tokens, prefill_s, streams_s, disturbance_s };
            server.watched = Some(watched);
        }
    }

    /// A first token has been seen. `true` when something was learned.
    pub(super) fn first_token(&mut self, server: usize, id: RequestId, slowness: f64, now_s: f64) -> bool {
        let Some(watched) = self.take_watched(server, id) else { return false };
        let seconds = (now_s - watched.dispatched_at_s - watched.streams_s) / slowness;
        if watched.disturbance_s > MOST_DISTURBANCE * watched.prefill_s || seconds <= 0.0 {
            return false;
        }
        let Watched { new_tokens, cached_tokens, .. } = watched;
        self.times += 1;
        let class = &mut self.classes[self.servers[server].class];
        if self.learning.coefficients {
            class.add(FirstToken { new_tokens, cached_tokens, seconds });
        }
        if self.learning.speeds && new_tokens >= LEAST_SPEED_TOKENS {
            let share = seconds * self.servers[server].factor / class.profile().prefill_s(new_tokens, cached_tokens);
            self.add_share(server, share);
        }
        true
    }

    /// A request has ended, or its first token was not seen.
    pub(super) fn forget(&mut self, server: usize, id: RequestId) {
        self.take_watched(server, id);
    }

    fn take_watched(&mut self, server: usize, id: RequestId) -> Option<Watched> {
        self.servers.get_mut(server)?.watched.take_if(|watched| watched.id == id)
    }

    fn add_share(&mut self, server: usize, share: f64) {
        let class = self.servers[server].class;
        let shares = &mut self.servers[server].shares;
        if shares.len() == SPEED_TIMES {
            shares.pop_front();
        }
        shares.push_back(share);
        if !self.times.is_multiple_of(SPEED_BATCH) {
            return;
        }
        // Beside each other: what is common to all of a class is in its coefficients.
        let of_class = || self.servers.iter().filter(|server| server.class == class);
        let mean = of_class().map(Server::log_factor).sum::<f64>() / as_f64(of_class().count().max(1) as u64);
        for server in self.servers.iter_mut().filter(|server| server.class == class) {
            server.factor = (server.log_factor() - mean).exp();
        }
    }
}

/// What streams take of a prefill's time: the rest of the step that runs, and their share of each of its own steps.
fn streams_s(profile: &Profile, sums: &Sums, new_tokens: u64) -> f64 {
    if sums.streams == 0 {
        return 0.0;
    }
    let chunks = as_f64(new_tokens.max(1).div_ceil(profile.budget_tokens));
    let share_s =
        profile.per_token_s * as_f64(sums.streams) + profile.per_context_token_s * as_f64(sums.context_tokens);
    0.5 * profile.decode_step_s(sums.streams, sums.context_tokens) + chunks * share_s
}

#[cfg(test)]
mod tests;
