//! Where the parts meet: builds Pingora's server and its services from a configuration.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use pingora::proxy::http_proxy;
use pingora::server::configuration::Opt;
use pingora::services::background::background_service;
use pingora::services::listening::Service;

pub use pingora::server::Server;

use crate::admin::{self, Admin};
use crate::balance::{Balancer, GroupMismatch, Topology, TopologyError};
use crate::cli::Demo;
use crate::config::{self, Config, Flags, Refusal};
use crate::demo::{self, DemoSettings};
use crate::metrics::Metrics;
use crate::proxy::{ClientConnections, Proxy};
use crate::tls::{self, Watch};

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
    /// The demo cannot be configured as asked.
    #[error("{0}")]
    Demo(#[from] Refusal),
}

/// Builds everything; nothing listens before [`Server::run_forever`]. With `upgrade` the listening sockets are taken
/// over from the running process.
///
/// # Errors
/// When the configuration cannot be run on this machine.
pub fn build(mut config: Config, upgrade: bool) -> Result<Server, StartError> {
    let mut pingora_conf = std::mem::take(&mut config.pingora);
    pingora_conf.ca_file = tls::authorities_file(config.uses_system_authorities());
    let config = Arc::new(config);
    let topology = Topology::from_sizes(config.groups.iter().map(|group| group.servers.len()))?;
    let balancer = Arc::new(Balancer::new(topology, config.policy.clone(), config.ties)?);
    let metrics = Arc::new(Metrics::new(&config.groups));
    if !upgrade {
        let tls_listen = config.tls.iter().flat_map(|tls| &tls.listen);
        check_addresses(config.listen.iter().chain(tls_listen).chain(&config.admin))?;
    }

    let opt = Opt { upgrade, ..Opt::default() };
    let mut server = Server::new_with_opt_and_conf(opt, pingora_conf);
    let proxy = Proxy::new(Arc::clone(&config), Arc::clone(&balancer), Arc::clone(&metrics))?;
    let proxy = http_proxy(&server.configuration, proxy);
    let mut connections = ClientConnections::new(proxy, &config.timeouts);
    if let Some(tls) = &config.tls {
        connections = connections.with_tls(tls, &config.listen);
    }
    let mut clients = Service::new("clients".to_owned(), connections);
    for address in &config.listen {
        clients.add_tcp(&address.to_string());
        log::info!("listening on {address}");
    }
    if let Some(tls) = &config.tls {
        for address in &tls.listen {
            clients.add_tcp(&address.to_string());
            log::info!("listening on {address} with TLS");
        }
    }
    server.add_service(clients);
    if let Some(address) = config.admin {
        let mut service = admin::service(address, Admin::new(&config, balancer, metrics));
        service.threads = Some(1);
        server.add_service(service);
        log::info!("admin listener on {address}");
    }
    if !config.tls_files().is_empty() {
        let mut service = background_service("tls files", Watch::new(move || config.tls_files()));
        service.threads = Some(1);
        server.add_service(service);
    }
    server.bootstrap();
    Ok(server)
}

/// Builds Tidegate in front of demo servers, all on loopback and in one process.
///
/// # Errors
/// When the ports are not free or do not make two groups.
pub fn build_demo(demo: &Demo) -> Result<Server, StartError> {
    let flags = Flags {
        port: Some(demo.port),
        admin_port: Some(demo.admin_port),
        server_hosts: Some(vec![Ipv4Addr::LOCALHOST.to_string(); demo.server_ports.len()]),
        server_ports: Some(demo.server_ports.clone()),
        enable_dynamic_bucket: true,
        ..Flags::default()
    };
    let config = config::load(None, &flags, &|_| None)?.config;
    let servers: Vec<(String, SocketAddr)> = config
        .groups
        .iter()
        .flat_map(|group| group.servers.iter().map(|server| (group.name.clone(), server.port)))
        .map(|(group, port)| (format!("{group}-{port}"), (Ipv4Addr::LOCALHOST, port).into()))
        .collect();
    check_addresses(servers.iter().map(|(_, address)| address))?;
    let mut server = build(config, false)?;
    for (name, address) in servers {
        server.add_service(demo::service(&name, address, DemoSettings::default()));
        log::info!("demo server {name} on {address}");
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
