//! The servers as they are now, and the configuration they come from.
//!
//! [`Live`] is the one place that changes either. Everybody else takes an [`InForce`], a complete and immutable picture,
//! once per request, and stays with it: membership and settings never come from two different moments.
//!
//! ```text
//! Live (one, shared)
//!   ArcSwap<InForce>      -> read once per request
//!     Arc<Config>
//!     Arc<Server> by number: address, standing (health, draining)
//!     Access: who may do what; its counters are carried over
//!   Balancer, Metrics     <- told about every change
//! ```

mod kept;
mod membership;
mod server;
mod tls_failure;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use tokio::time::Instant;

pub use kept::{Count, Kept};
pub use membership::Found;
use membership::Known;
pub use server::{Server, Standing, Verdict};

use crate::access::Access;
use crate::balance::{Admission, Balancer, Clock, GroupMismatch, Snapshot, Topology, TopologyError};
use crate::config::{Config, Source};
use crate::journal::{Journal, OpenError};
use crate::metrics::{Metrics, Roster};
use crate::prompt::TokenEstimator;
use crate::queue::Queue;
use crate::shadow::{Choice, Shadow};
use crate::traces::{self, Traces};
use crate::work::{EngineState, Observation, ServerTraits};

/// Why a configuration cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The servers cannot be grouped as configured.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Buckets and groups do not match.
    #[error(transparent)]
    GroupMismatch(#[from] GroupMismatch),
    /// The access log cannot be written to.
    #[error(transparent)]
    AccessLog(#[from] OpenError),
    /// Spans cannot be exported.
    #[error(transparent)]
    Tracing(#[from] traces::StartError),
    /// A configured server cannot be addressed.
    #[error("{0}")]
    Server(#[from] Box<pingora::Error>),
}

/// A configuration and its servers, at one moment.
#[derive(Debug)]
pub struct InForce {
    /// The configuration.
    pub config: Arc<Config>,
    /// Counts the configurations that were put in force, from 1. Servers that discovery finds do not count.
    pub generation: u64,
    /// Who may do what, and what runs and is used up under that.
    pub access: Access,
    /// Server numbers, group by group, in configured order.
    groups: Vec<Vec<usize>>,
    /// By number. Servers that have left stay until their number is given to another.
    servers: Vec<Option<Arc<Server>>>,
}

impl InForce {
    /// A server by its number in the balancer.
    #[must_use]
    pub fn server(&self, number: usize) -> Option<&Arc<Server>> {
        self.servers.get(number)?.as_ref()
    }

    /// The server of a number while it is in a group, and while the number is that of this address: it may be given to another
    /// server in time. Each server is asked for several times a second, so that what this takes must not grow with their number
    /// by more than a look at numbers.
    #[must_use]
    pub fn member(&self, number: usize, authority: &str) -> Option<&Arc<Server>> {
        let is_in_a_group = self.groups.iter().any(|group| group.contains(&number));
        self.server(number).filter(|server| is_in_a_group && server.config().authority() == authority)
    }

    /// The servers of each group, in configured order.
    pub fn groups(&self) -> impl Iterator<Item = impl Iterator<Item = &Arc<Server>>> {
        self.groups.iter().map(|group| group.iter().filter_map(|number| self.server(*number)))
    }

    /// All servers that are in a group.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.groups().flatten()
    }

    fn topology(&self) -> Result<Topology, TopologyError> {
        Topology::new(self.groups.clone())
    }

    /// What tells a server from others: as configured, or as it says itself where that is left to it.
    #[must_use]
    pub fn traits_of(&self, server: &Server) -> ServerTraits {
        let reported = self.config.asks_engines().and_then(|_| server.engine().lock().max_model_len);
        server.config().traits.resolved(reported)
    }

    /// What tells servers from each other, by number.
    fn traits(&self) -> Vec<ServerTraits> {
        let traits = |server: &Option<Arc<Server>>| server.as_ref().map(|server| self.traits_of(server));
        let mut all: Vec<ServerTraits> = self.servers.iter().map(|server| traits(server).unwrap_or_default()).collect();
        // The servers of a group are taken to be alike: what is learned of one holds for all.
        for (group, numbers) in self.groups.iter().enumerate() {
            for number in numbers {
                all[*number].engine_class = u16::try_from(group).unwrap_or(u16::MAX);
            }
        }
        all
    }

    fn roster(&self) -> Roster {
        let names = self.config.groups.iter().map(|group| group.name.as_str());
        Roster::new(names.zip(self.groups().map(|group| group.map(|server| (server.number(), server.name())))))
    }
}

/// Everything about the servers, at one moment.
#[derive(Debug)]
pub struct Moment {
    /// What is in force.
    pub in_force: Arc<InForce>,
    /// What runs.
    pub usage: Snapshot,
    /// By number.
    standings: Vec<Option<Standing>>,
}

impl Moment {
    /// How a server stands that is in force, or has left.
    #[must_use]
    pub fn standing(&self, server: &Server) -> Standing {
        self.standings.get(server.number()).copied().flatten().unwrap_or_default()
    }
}

/// What is in force, and how it changes.
pub struct Live {
    balancer: Arc<Balancer>,
    metrics: Arc<Metrics>,
    queue: Arc<Queue>,
    shadow: ArcSwapOption<Shadow>,
    journal: Journal,
    traces: Traces,
    /// Knows how long prompts are, and learns.
    estimator: Mutex<TokenEstimator>,
    in_force: ArcSwap<InForce>,
    clock: Clock,
    /// One change at a time, and what discovery has found.
    changing: Mutex<Found>,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (in_force, balancer) = (self.get(), &self.balancer);
        f.debug_struct("Live").field("in_force", &in_force).field("balancer", balancer).finish_non_exhaustive()
    }
}

impl Live {
    /// Puts a first configuration in force.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn new(config: Config) -> Result<Self, ApplyError> {
        let mut servers: Vec<Option<Arc<Server>>> = Vec::new();
        let mut groups = Vec::new();
        for members in membership::members(&config, &Found::new()) {
            let mut numbers = Vec::new();
            for server in members {
                numbers.push(servers.len());
                servers.push(Some(Arc::new(Server::new(servers.len(), server)?)));
            }
            groups.push(numbers);
        }
        let access = Access::new(config.access.clone(), Instant::now());
        let in_force = InForce { config: Arc::new(config), generation: 1, access, groups, servers };
        let config = &in_force.config;
        let (topology, traits) = (in_force.topology()?, in_force.traits());
        let clock = clock();
        let balancer = Balancer::with_clock(topology, config.policy.clone(), config.ties, &traits, Arc::clone(&clock));
        let balancer = Arc::new(balancer?);
        let metrics = Arc::new(Metrics::new(&in_force.roster()));
        let shadow = shadow(&in_force, &clock, &metrics, None)?;
        let estimator = Mutex::new(TokenEstimator::new(in_force.config.policy.media()));
        metrics.config_generation(1);
        let journal = Journal::new(config.admin.is_some(), metrics.access_log().clone());
        journal.configure(config.access_log.as_ref())?;
        let traces = Traces::new(metrics.spans().clone());
        traces.export_to(traces.open(config.tracing.as_ref())?);
        let live = Self {
            queue: Queue::new(&balancer, &metrics),
            shadow: ArcSwapOption::new(shadow),
            clock,
            estimator,
            journal,
            traces,
            balancer,
            metrics,
            in_force: ArcSwap::from_pointee(in_force),
            changing: Mutex::default(),
        };
        for server in live.get().servers() {
            live.stand(server, |_| {});
        }
        Ok(live)
    }

    /// What is in force now.
    #[must_use]
    pub fn get(&self) -> Arc<InForce> {
        self.in_force.load_full()
    }

    /// What is in force, how its servers stand and what runs on them, between two changes. So groups have what their
    /// servers have, and nothing more comes to a server that is drained.
    #[must_use]
    pub fn at_one_moment(&self) -> Moment {
        let _between_changes = self.changing.lock();
        let in_force = self.get();
        let standing = |server: &Option<Arc<Server>>| server.as_ref().map(|server| server.standing());
        let standings = in_force.servers.iter().map(standing).collect();
        Moment { in_force, standings, usage: self.balancer.snapshot() }
    }

    /// Chooses servers and counts what runs.
    #[must_use]
    pub fn balancer(&self) -> &Arc<Balancer> {
        &self.balancer
    }

    /// Counts what happens.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Where requests wait when no server can take them.
    #[must_use]
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// The policy beside the one in force, if there is one.
    #[must_use]
    pub fn shadow(&self) -> Option<Arc<Shadow>> {
        self.shadow.load_full()
    }

    /// Sees what happens to requests.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Exports spans of requests.
    #[must_use]
    pub fn traces(&self) -> &Traces {
        &self.traces
    }

    /// Estimates how long prompts are, for the policies by work.
    #[must_use]
    pub fn estimator(&self) -> &Mutex<TokenEstimator> {
        &self.estimator
    }

    /// Puts a configuration in force. Servers are recognised by their address: what runs on one that stays goes on and
    /// stays counted, whatever group it moves to; one that goes finishes what it has and gets nothing new.
    ///
    /// # Errors
    /// When it cannot be run. Then nothing has changed.
    pub fn apply(&self, config: Config) -> Result<Arc<InForce>, ApplyError> {
        self.apply_with(config, Found::new())
    }

    /// Like [`apply`](Self::apply), with what was found at sources that are new.
    ///
    /// # Errors
    /// When it cannot be run. Then nothing has changed.
    pub fn apply_with(&self, config: Config, new_found: Found) -> Result<Arc<InForce>, ApplyError> {
        let mut changing = self.changing.lock();
        let mut found = changing.clone();
        found.extend(new_found);
        found.retain(|source, _| config.sources().any(|discover| discover.source == *source));
        let generation = self.get().generation + 1;
        let access_log = self.journal.open(config.access_log.as_ref())?;
        let exporter = self.traces.open(config.tracing.as_ref())?;
        let in_force = self.put(Arc::new(config), generation, &found)?;
        self.traces.export_to(exporter);
        self.journal.write_to(access_log);
        self.metrics.config_generation(generation);
        *changing = found;
        Ok(in_force)
    }

    /// Takes over what discovery has found at a source, in place of what it had found there before. True when that
    /// changes something. The configuration and its generation stay.
    ///
    /// # Errors
    /// When it cannot be run. Then nothing has changed.
    pub fn replace_discovered(&self, source: &Source, mut addresses: Vec<SocketAddr>) -> Result<bool, ApplyError> {
        addresses.sort_unstable();
        addresses.dedup();
        let mut changing = self.changing.lock();
        let in_force = self.get();
        let is_wanted = in_force.config.sources().any(|discover| discover.source == *source);
        if !is_wanted || changing.get(source) == Some(&addresses) {
            return Ok(false);
        }
        let mut found = changing.clone();
        found.insert(source.clone(), addresses);
        self.put(Arc::clone(&in_force.config), in_force.generation, &found)?;
        *changing = found;
        Ok(true)
    }

    /// What discovery has found so far.
    #[must_use]
    pub fn discovered(&self) -> Found {
        self.changing.lock().clone()
    }

    /// Makes a picture of a configuration and of what was found, and puts it in force. The caller holds `changing`.
    fn put(&self, config: Arc<Config>, generation: u64, found: &Found) -> Result<Arc<InForce>, ApplyError> {
        let old = self.get();
        let members = membership::members(&config, found);
        let joining = Verdict::Probation { max_in_flight: config.health.probation.max_in_flight };
        let mut servers = old.servers.clone();
        let mut groups: Vec<Vec<usize>> = Vec::new();
        // The numbers of servers that stay or come back are not for new ones.
        let known = old.known();
        let stay = members.iter().flatten().filter_map(|server| known.get(&server.authority()));
        let mut reserved: Vec<usize> = stay.map(|known| known.number()).collect();
        for members in members {
            let mut numbers = Vec::new();
            for config in members {
                let server = match known.get(&config.authority()).copied() {
                    Some(Known::Here(known)) => known.reconfigured(config)?,
                    Some(Known::Left(number)) => {
                        self.balancer.set_admission(number, Admission::closed());
                        Server::joining(number, config, joining)?
                    }
                    None => {
                        let number = self.balancer.add_server(Admission::closed(), &reserved);
                        Server::joining(number, config, joining)?
                    }
                };
                let number = server.number();
                reserved.push(number);
                numbers.push(number);
                servers.resize(servers.len().max(number + 1), None);
                servers[number] = Some(Arc::new(server));
            }
            groups.push(numbers);
        }
        let (policy, ties) = (config.policy.clone(), config.ties);
        let access = old.access.successor(config.access.clone(), Instant::now());
        let new = Arc::new(InForce { config, generation, access, groups, servers });
        let topology = new.topology()?;
        // Names first, then the servers themselves, then the balancer: whoever is given a server finds it.
        self.metrics.follow(&new.roster());
        self.in_force.store(Arc::clone(&new));
        let reconfigured = self.balancer.reconfigure(topology, policy, ties, &new.traits()).inspect_err(|_| {
            self.metrics.follow(&old.roster());
            self.in_force.store(Arc::clone(&old));
        });
        if reconfigured.is_ok() {
            let shadow = shadow(&new, &self.clock, &self.metrics, self.shadow.load_full());
            self.shadow.store(shadow.unwrap_or_else(|error| {
                // Checked with the configuration: it is the same number of groups.
                log::error!("the policy beside the one in force does not fit: {error}");
                None
            }));
        }
        for server in self.get().servers() {
            self.stand(server, |standing| {
                standing.is_drained_by_configuration = server.config().is_drained;
            });
        }
        reconfigured?;
        self.estimator.lock().set_media(new.config.policy.media());
        Ok(new)
    }

    /// Changes how a server stands, and tells the balancer. Also what has changed its configuration since is told; one
    /// that has left is not known to the balancer any more.
    pub fn change_standing(&self, server: &Server, change: impl FnOnce(&mut Standing)) -> Standing {
        let _one_at_a_time = self.changing.lock();
        self.stand(server, change)
    }

    /// A server has said how long a request may be that it takes, or that it does not know. The balancer goes by it where
    /// the configuration leaves it to the server, and the configuration and its generation stay. True when that changes
    /// something.
    pub fn reported_max_model_len(&self, server: &Server, max_model_len: Option<u64>) -> bool {
        let _one_at_a_time = self.changing.lock();
        let in_force = self.get();
        if !in_force.server(server.number()).is_some_and(|current| current.is(server)) {
            return false;
        }
        let before = in_force.traits();
        server.engine().lock().max_model_len = max_model_len;
        let traits = in_force.traits();
        let has_changed = traits != before;
        if has_changed {
            self.balancer.set_traits(&traits);
            if let Some(shadow) = self.shadow() {
                shadow.set_traits(&traits);
            }
        }
        has_changed
    }

    /// A server's engine has said how busy it is, which counts less and less for so long. Gives what was counted on it here
    /// at that moment beside; `None` when it has left, or the policy does not ask.
    pub fn observed(&self, server: &Server, engine: EngineState, valid_for: Duration) -> Option<Observation> {
        let _between_changes = self.changing.lock();
        let in_force = self.get();
        in_force.server(server.number()).filter(|current| current.is(server))?;
        self.balancer.observed(server.number(), engine, valid_for.as_secs_f64())
    }

    fn stand(&self, server: &Server, change: impl FnOnce(&mut Standing)) -> Standing {
        let standing = server.change_standing(change);
        // The number may be another server's by now, or this an older picture with other limits.
        if let Some(current) = self.get().server(server.number()).filter(|current| current.is(server)) {
            self.balancer.set_admission(server.number(), current.admission());
            if let Some(shadow) = self.shadow() {
                shadow.set_admission(server.number(), current.admission());
            }
            self.metrics.server_draining(server.number(), standing.is_draining());
        }
        standing
    }
}

/// The policy beside the one in force, as configured: the one that there was, when it is of the same kind.
fn shadow(
    in_force: &InForce,
    clock: &Clock,
    metrics: &Arc<Metrics>,
    old: Option<Arc<Shadow>>,
) -> Result<Option<Arc<Shadow>>, ApplyError> {
    let Some(policy) = in_force.config.shadow.clone() else { return Ok(None) };
    let (topology, ties, traits) = (in_force.topology()?, in_force.config.ties, in_force.traits());
    if let Some(old) = old.filter(|old| old.policy() == policy.name()) {
        old.reconfigure(topology, policy, ties, &traits)?;
        return Ok(Some(old));
    }
    let metrics = Arc::clone(metrics);
    let tell = move |Choice { policy, group, reason, agreement }: Choice| {
        metrics.shadow_chose(policy, group, reason, agreement.label());
    };
    Ok(Some(Shadow::new(topology, policy, ties, &traits, Arc::clone(clock), tell)?))
}

/// Seconds since the start, for a balancer that has no clock of its own.
fn clock() -> Clock {
    let start = Instant::now();
    Arc::new(move || start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests;
