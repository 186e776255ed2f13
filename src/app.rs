//! Where the parts meet: builds Pingora's server and its services from a configuration.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use pingora::proxy::http_proxy;
use pingora::server::Server;
use pingora::server::configuration::Opt;
use pingora::services::listening::Service;


use crate::admin::{self, Admin};
use crate::balance::{Balancer, GroupMismatch, Topology, TopologyError};
use crate::config::Config;
use crate::metrics::Metrics;
use crate::proxy::{ClientConnections, Proxy};

/// Why Tidegate does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The servers cannot be grouped as configured.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Buckets and groups do not match.
    #[error(transparent)]
    GroupMismatch(#[from] GroupMismatch),
    /// A configured server cannot be addressed.
    #[error("{0}")]
    Server(#[from] Box<pingora::Error>),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
}

/// How the process is run, from the command line.
#[derive(Debug, Default, Clone, Copy)]
pub struct RunOptions {
    /// Take the listening sockets over from a running process.
    pub upgrade: bool,
    /// Go to the background.
    pub daemon: bool,
}

/// Builds everything; nothing listens before [`Server::run_forever`].
///
/// # Errors
/// When the configuration cannot be run on this machine.
pub fn build(config: Config, options: RunOptions) -> Result<Server, StartError> {
    let mut config = config;
    let pingora_conf = std::mem::take(&mut config.pingora);
    let config = Arc::new(config);
    let topology = Topology::from_sizes(config.groups.iter().map(|group| group.servers.len()))?;
    let balancer = Arc::new(Balancer::new(topology, config.policy.clone(), config.ties)?);
    let metrics = Arc::new(Metrics::new(&config.groups));
    if !options.upgrade {
        check_addresses(config.listen.iter().chain(&config.admin))?;
    }

    let opt = Opt { upgrade: options.upgrade, daemon: options.daemon, ..Opt::default() };
    let mut server = Server::new_with_opt_and_conf(opt, pingora_conf);
    let proxy = Proxy::new(Arc::clone(&config), Arc::clone(&balancer), Arc::clone(&metrics))?;
    let proxy = http_proxy(&server.configuration, proxy);
    let mut clients = Service::new("clients".to_owned(), ClientConnections::new(proxy, &config.timeouts));
    for address in &config.listen {
        clients.add_tcp(&address.to_string());
    }
    server.add_service(clients);
    if let Some(address) = config.admin {
        server.add_service(admin::service(address, Admin::new(&config, balancer, metrics)));
    }
    Ok(server)
}

/// Finds out whether the addresses are free, for a clear word at start: Pingora binds them later, and panics.
fn check_addresses<'a>(addresses: impl Iterator<Item = &'a SocketAddr>) -> Result<(), StartError> {
    for &address in addresses {
        TcpListener::bind(address).map_err(|source| StartError::Listen { address, source })?;
    }
    Ok(())
}
