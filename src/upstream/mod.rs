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

mod server;
mod tls_failure;

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::time::Instant;

pub use server::{Server, Standing, Verdict};

use crate::access::Access;
use crate::balance::{Admission, Balancer, GroupMismatch, Topology, TopologyError};
use crate::config::Config;
use crate::metrics::{Metrics, Roster};
use crate::queue::Queue;

/// Why a configuration cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The servers cannot be grouped as configured.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Buckets and groups do not match.
    #[error(transparent)]
    GroupMismatch(#[from] GroupMismatch),
    /// A configured server cannot be addressed.
    #[error("{0}")]
    Server(#[from] Box<pingora::Error>),
}

/// A configuration and its servers, at one moment.
#[derive(Debug)]
pub struct InForce {
    /// The configuration.
    pub config: Arc<Config>,
    /// Counts the changes since the start, from 1.
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

    fn roster(&self) -> Roster {
        let names = self.config.groups.iter().map(|group| group.name.as_str());
        Roster::new(names.zip(self.groups().map(|group| group.map(|server| (server.number(), server.name())))))
    }
}

/// What is in force, and how it changes.
#[derive(Debug)]
pub struct Live {
    balancer: Arc<Balancer>,
    metrics: Arc<Metrics>,
    queue: Arc<Queue>,
    in_force: ArcSwap<InForce>,
    /// One change at a time.
    changing: Mutex<()>,
}

impl Live {
    /// Puts a first configuration in force.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn new(config: Config) -> Result<Self, ApplyError> {
        let mut number = 0;
        let mut servers = Vec::new();
        let mut groups = Vec::new();
        for group in &config.groups {
            groups.push((number..number + group.servers.len()).collect());
            for server in &group.servers {
                servers.push(Some(Arc::new(Server::new(number, server.clone())?)));
                number += 1;
            }
        }
        let access = Access::new(config.access.clone(), Instant::now());
        let in_force = InForce { config: Arc::new(config), generation: 1, access, groups, servers };
        let config = &in_force.config;
        let balancer = Arc::new(Balancer::new(in_force.topology()?, config.policy.clone(), config.ties)?);
        for server in in_force.servers() {
            balancer.set_admission(server.number(), server.admission());
        }
        let metrics = Arc::new(Metrics::new(&in_force.roster()));
        Ok(Self {
            queue: Queue::new(&balancer, &metrics),
            balancer,
            metrics,
            in_force: ArcSwap::from_pointee(in_force),
            changing: Mutex::new(()),
        })
    }

    /// What is in force now.
    #[must_use]
    pub fn get(&self) -> Arc<InForce> {
        self.in_force.load_full()
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

    /// Puts a configuration in force. Servers are recognised by their address: what runs on one that stays goes on and
    /// stays counted, whatever group it moves to; one that goes finishes what it has and gets nothing new.
    ///
    /// # Errors
    /// When it cannot be run. Then nothing has changed.
    pub fn apply(&self, config: Config) -> Result<Arc<InForce>, ApplyError> {
        let _one_at_a_time = self.changing.lock();
        let old = self.get();
        let joining = Verdict::Probation { max_in_flight: config.health.probation.max_in_flight };
        let joining = Standing { verdict: joining, ..Standing::default() };
        let mut servers = old.servers.clone();
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut reserved = Vec::new();
        for group in &config.groups {
            let mut numbers = Vec::new();
            for server in &group.servers {
                let known = old.servers().find(|known| known.config().authority() == server.authority());
                let server = match known {
                    Some(known) => Arc::new(known.reconfigured(server.clone())?),
                    None => {
                        let number = self.balancer.add_server(Admission::closed(), &reserved);
                        Arc::new(Server::joining(number, server.clone(), joining)?)
                    }
                };
                let number = server.number();
                reserved.push(number);
                numbers.push(number);
                servers.resize(servers.len().max(number + 1), None);
                servers[number] = Some(server);
            }
            groups.push(numbers);
        }
        let (policy, ties) = (config.policy.clone(), config.ties);
        let access = old.access.successor(config.access.clone(), Instant::now());
        let (config, generation) = (Arc::new(config), old.generation + 1);
        let new = Arc::new(InForce { config, generation, access, groups, servers });
        let topology = new.topology()?;
        // Names first, then the servers themselves, then the balancer: whoever is given a server finds it.
        self.metrics.follow(&new.roster());
        self.in_force.store(Arc::clone(&new));
        self.balancer.reconfigure(topology, policy, ties).inspect_err(|_| {
            self.metrics.follow(&old.roster());
            self.in_force.store(Arc::clone(&old));
        })?;
        for server in new.servers() {
            self.balancer.set_admission(server.number(), server.admission());
        }
        Ok(new)
    }

    /// Changes how a server stands, and tells the balancer.
    pub fn change_standing(&self, server: &Server, change: impl FnOnce(&mut Standing)) -> Standing {
        let standing = server.change_standing(change);
        self.balancer.set_admission(server.number(), server.admission());
        standing
    }
}

#[cfg(test)]
mod tests;
