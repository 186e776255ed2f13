//! Where the parts meet: builds Pingora's server and its services from a configuration.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use pingora::proxy::http_proxy;
use pingora::server::configuration::{Opt, ServerConf};
use pingora::services::listening::Service;

pub use pingora::server::Server;

use crate::admin::{self, Admin};
use crate::cli::Demo;
use crate::config::{self, Config, Flags, Refusal};
use crate::demo::{self, DemoSettings};
use crate::health::{self, Health};
use crate::proxy::{ClientConnections, Proxy};
use crate::upstream::{ApplyError, Live};

/// Why Tidegate does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be run.
    #[error(transparent)]
    Config(#[from] ApplyError),
    /// Pingora's settings cannot be used.
    #[error("pingora: {0}")]
    PingoraSettings(String),
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
pub fn build(config: Config, upgrade: bool) -> Result<Server, StartError> {
    let pingora_conf = copy_of(&config.pingora)?;
    let live = Arc::new(Live::new(config)?);
    let config = Arc::clone(&live.get().config);
    if !upgrade {
        check_addresses(config.listen.iter().chain(&config.admin))?;
    }

    let opt = Opt { upgrade, ..Opt::default() };
    let mut server = Server::new_with_opt_and_conf(opt, pingora_conf);
    let health = Arc::new(Health::new(Arc::clone(&live)));
    let proxy = http_proxy(&server.configuration, Proxy::new(Arc::clone(&live), Arc::clone(&health)));
    let mut clients = Service::new("clients".to_owned(), ClientConnections::new(proxy, &config.timeouts));
    for address in &config.listen {
        clients.add_tcp(&address.to_string());
        log::info!("listening on {address}");
    }
    server.add_service(clients);
    server.add_service(health::service(health));
    if let Some(address) = config.admin {
        server.add_service(admin::service(address, Admin::new(live)));
        log::info!("admin listener on {address}");
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

/// Pingora takes its settings for itself and they cannot be cloned; the status shows them, too.
fn copy_of(settings: &ServerConf) -> Result<ServerConf, StartError> {
    let copy = serde_json::to_value(settings).and_then(serde_json::from_value);
    copy.map_err(|error| StartError::PingoraSettings(error.to_string()))
}

/// Finds out whether the addresses are free, for a clear word at start: Pingora binds them later, and panics.
fn check_addresses<'a>(addresses: impl Iterator<Item = &'a SocketAddr>) -> Result<(), StartError> {
    for &address in addresses {
        TcpListener::bind(address).map_err(|source| StartError::Listen { address, source })?;
    }
    Ok(())
}
