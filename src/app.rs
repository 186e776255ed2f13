//! Where the parts meet: builds Pingora's server and its services from a configuration.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use pingora::listeners::{L4BufferSettings, ListenerConfig};
use pingora::server::configuration::Opt;
use pingora::server::{RunArgs, Server};
use pingora::services::background::background_service;

use crate::admin::{self, Admin};
use crate::balance::{ByWork, Policy};
use crate::cli::{Demo, DemoPolicy};
use crate::config::{self, Config, Flags, Refusal};
use crate::demo::load::{self, Load};
use crate::demo::{self, DemoSettings};
use crate::discovery;
use crate::drain::{Closable, Drain, Signals, Sockets};
use crate::engines;
use crate::health::{self, Health};
use crate::launcher::Launcher;
use crate::proxy::{ClientConnections, Proxy};
use crate::queue::Dispatcher;
use crate::reload::{self, Origin, Reloader};
use crate::tls::{self, Watch};
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

/// Everything that runs, ready to be started.
pub struct Program {
    server: Server,
    live: Arc<Live>,
    signals: Signals,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("signals", &self.signals).finish_non_exhaustive()
    }
}

impl Program {
    /// Runs until a signal ends the process.
    pub fn run(self) {
        self.server.run(RunArgs { shutdown_signal: Box::new(self.signals) });
        self.live.journal().flush();
        self.live.traces().flush();
    }
}

/// Builds everything; nothing listens before [`Program::run`]. With `upgrade` the listening sockets are taken
/// over from the running process. The origin is where the configuration is read again for a reload.
///
/// # Errors
/// When the configuration cannot be run on this machine.
pub fn build(config: Config, origin: Option<Origin>, upgrade: bool) -> Result<Program, StartError> {
    let mut pingora_conf = config::copy_of(&config.pingora).map_err(StartError::PingoraSettings)?;
    // One thread has nobody to take work from, and is quicker when it does not look.
    pingora_conf.work_stealing &= pingora_conf.threads > 1;
    pingora_conf.ca_file = tls::authorities_file(config.uses_system_authorities());
    let live = Arc::new(Live::new(config)?);
    let config = Arc::clone(&live.get().config);
    let tls_listen = config.tls.iter().flat_map(|tls| &tls.listen);
    let addresses = config.listen.iter().chain(tls_listen).chain(&config.admin);
    if !upgrade {
        check_addresses(addresses.clone())?;
    }

    let opt = Opt { upgrade, ..Opt::default() };
    let mut server = Server::new_with_opt_and_conf(opt, pingora_conf);
    let (drain, sockets) = (Arc::new(Drain::default()), Sockets::default());
    let signals = Signals {
        drain: Arc::clone(&drain),
        live: Arc::clone(&live),
        sockets: sockets.clone(),
        addresses: addresses.map(ToString::to_string).collect(),
        upgrade_sock: server.configuration.upgrade_sock.clone(),
        took_over: upgrade,
    };
    let health = Arc::new(Health::new(Arc::clone(&live)));
    let proxy = Proxy::new(&server.configuration, Arc::clone(&live), Arc::clone(&health), Arc::clone(&drain));
    let mut connections = ClientConnections::new(proxy);
    if let Some(tls) = &config.tls {
        connections = connections.with_tls(tls, &config.listen);
    }
    let mut clients = connections.service();
    for address in &config.listen {
        clients.add_listener(listener(address));
        log::info!("listening on {address}");
    }
    if let Some(tls) = &config.tls {
        for address in &tls.listen {
            clients.add_listener(listener(address));
            log::info!("listening on {address} with TLS");
        }
    }
    server.add_service(health::service(health));
    // A daemon is a fork of this process, and would share with it the pipe through which signals are received.
    if !server.configuration.daemon
        && let Err(error) = reload::survive_hangup()
    {
        log::warn!("SIGHUP cannot be received ({error}); reload with POST /reload");
    }
    server.add_service(engines::service(Arc::clone(&live)));
    discovery::look_before_start(&live);
    server.add_service(discovery::service(Arc::clone(&live)));
    let reloader = Arc::new(Reloader::new(Arc::clone(&live), origin));
    server.add_service(reload::service(Arc::clone(&reloader)));
    let mut dispatcher = background_service("queue", Dispatcher(Arc::clone(live.queue())));
    dispatcher.threads = Some(1);
    server.add_service(dispatcher);
    let mut listeners = vec![server.add_service(Closable::new(clients, drain.clients_closed(), &sockets))];
    if let Some(address) = config.admin {
        let service = admin::service(address, Admin::new(reloader, Arc::clone(&drain)));
        listeners.push(server.add_service(Closable::new(service, drain.admin_closed(), &sockets)));
        log::info!("admin listener on {address}");
    }
    // Also without any: a reload may bring some.
    let of_tls = Arc::clone(&live);
    let mut tls_files = background_service("tls files", Watch::new(move || of_tls.get().config.tls_files()));
    tls_files.threads = Some(1);
    server.add_service(tls_files);
    if server.configuration.daemon {
        // The process that waits for the daemon is told after the fork only, and only by this service.
        let bootstrap = server.bootstrap_as_a_service();
        if server.configuration.daemon_wait_for_ready {
            bootstrap.add_dependency(server.add_service(background_service("launcher", Launcher::of_this_process())));
        }
        listeners.iter().for_each(|listener| listener.add_dependency(&bootstrap));
    } else {
        server.bootstrap();
    }
    Ok(Program { server, live, signals })
}

/// A listener whose connections are read where what comes is dealt with: Pingora would keep 64 KiB for each.
fn listener(address: &SocketAddr) -> ListenerConfig {
    ListenerConfig::tcp(address.to_string()).l4_buffer(L4BufferSettings::unbuffered())
}

/// Builds Tidegate in front of demo servers, all on loopback and in one process.
///
/// # Errors
/// When the ports are not free or do not make two groups.
pub fn build_demo(demo: &Demo) -> Result<Program, StartError> {
    let flags = Flags {
        port: Some(demo.port),
        admin_port: Some(demo.admin_port),
        server_hosts: Some(vec![Ipv4Addr::LOCALHOST.to_string(); demo.server_ports.len()]),
        server_ports: Some(demo.server_ports.clone()),
        enable_dynamic_bucket: true,
        ..Flags::default()
    };
    let mut config = config::load(None, &flags, &|_| None)?.config;
    let by_load = if demo.load { DemoPolicy::Lanes } else { DemoPolicy::ReferenceBucket };
    if demo.policy.unwrap_or(by_load) == DemoPolicy::Lanes {
        config.policy = Policy::ByWork(ByWork::default());
    }
    let servers: Vec<(String, SocketAddr)> = config
        .groups
        .iter()
        .flat_map(|group| group.servers.iter().map(|server| (group.name.clone(), server.port)))
        .map(|(group, port)| (format!("{group}-{port}"), (Ipv4Addr::LOCALHOST, port).into()))
        .collect();
    check_addresses(servers.iter().map(|(_, address)| address))?;
    let (balancer, settings) = (config.listen[0], DemoSettings::default());
    let mut program = build(config, None, false)?;
    let load = demo.load.then(|| Load::new(balancer, servers.len(), &settings));
    for (name, address) in servers {
        program.server.add_service(demo::service(&name, address, settings.clone()));
        log::info!("demo server {name} on {address}");
    }
    if let Some(load) = load {
        program.server.add_service(load::service(load, program.signals.drain.clients_closed()));
    }
    Ok(program)
}

/// Finds out whether the addresses are free, for a clear word at start: Pingora binds them later, and panics.
fn check_addresses<'a>(addresses: impl Iterator<Item = &'a SocketAddr>) -> Result<(), StartError> {
    for &address in addresses {
        TcpListener::bind(address).map_err(|source| StartError::Listen { address, source })?;
    }
    Ok(())
}
