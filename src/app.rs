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
use crate::discovery;
use crate::proxy::{ClientConnections, Proxy};
use crate::reload::{self, Origin, Reloader};
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
/// over from the running process. The origin is where the configuration is read again for a reload.
///
/// # Errors
/// When the configuration cannot be run on this machine.
pub fn build(config: Config, origin: Option<Origin>, upgrade: bool) -> Result<Server, StartError> {
    let pingora_conf = config::copy_of(&config.pingora).map_err(StartError::PingoraSettings)?;
    // Each request's own configuration bounds its attempts, so that a reload can change the bound.
    let pingora_conf = ServerConf { max_retries: config::MAX_ATTEMPTS, ..pingora_conf };
    let live = Arc::new(Live::new(config)?);
    let config = Arc::clone(&live.get().config);
    if !upgrade {
        check_addresses(config.listen.iter().chain(&config.admin))?;
    }

    let opt = Opt { upgrade, ..Opt::default() };
    let mut server = Server::new_with_opt_and_conf(opt, pingora_conf);
    let proxy = http_proxy(&server.configuration, Proxy::new(Arc::clone(&live)));
    let mut clients = Service::new("clients".to_owned(), ClientConnections::new(proxy, Arc::clone(&live)));
    for address in &config.listen {
        clients.add_tcp(&address.to_string());
        log::info!("listening on {address}");
    }
    server.add_service(clients);
    if let Err(error) = reload::survive_hangup() {
        log::warn!("SIGHUP cannot be received ({error}); reload with POST /reload");
    }
    discovery::look_before_start(&live);
    server.add_service(discovery::service(Arc::clone(&live)));
    let reloader = Arc::new(Reloader::new(live, origin));
    server.add_service(reload::service(Arc::clone(&reloader)));
    if let Some(address) = config.admin {
        server.add_service(admin::service(address, Admin::new(reloader)));
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
    let mut server = build(config, None, false)?;
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
