//! A server: its address, how connections to it are made, and how it stands.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use pingora::protocols::TcpKeepalive;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};
use tokio::time::Instant;

use super::kept::Kept;
use super::tls_failure::{self, LastFailure};
use crate::balance::{Admission, Load};
use crate::config;
use crate::engines::EngineReport;
use crate::health::{Cause, Phase, Record};

/// A name's addresses are looked up again after this long.
const LOOK_UP_EVERY: Duration = Duration::from_secs(30);

/// Connections to servers are probed when idle for this long, so that a host that vanished is noticed under a silent
/// stream.
const TCP_KEEPALIVE: TcpKeepalive = TcpKeepalive {
    idle: Duration::from_secs(30),
    interval: Duration::from_secs(10),
    count: 6,
    #[cfg(target_os = "linux")]
    user_timeout: Duration::ZERO,
};

/// One configured server.
#[derive(Debug)]
pub struct Server {
    number: usize,
    config: config::Server,
    host_header: HeaderValue,
    /// The address when the host is an IP literal.
    literal: Option<SocketAddr>,
    /// Shared, as are the four below, with what this server was before its configuration changed.
    resolved: Arc<Mutex<Resolved>>,
    standing: Arc<Mutex<Standing>>,
    /// What is known of its health.
    health: Arc<Mutex<Record>>,
    /// What is known of its engine.
    engine: Arc<Mutex<EngineReport>>,
    tls_failure: Arc<Mutex<LastFailure>>,
    /// Connections to it under this configuration.
    kept: Kept,
}

/// Why a server may be given requests, or not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// Whether an operator wants it empty, by hand (`POST /drain`).
    pub is_drained_by_hand: bool,
    /// Whether the configuration wants it empty (`drain: true`).
    pub is_drained_by_configuration: bool,
    /// What health checks and its answers say.
    pub verdict: Verdict,
}

/// What is known of a server's health.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verdict {
    /// It serves.
    #[default]
    Healthy,
    /// It has just come (back) and gets few requests until it has proved itself.
    Probation {
        /// Most requests that may run on it at once.
        max_in_flight: u64,
    },
    /// It gets none.
    Out,
}

impl Standing {
    /// How a server stands that has just been configured.
    #[must_use]
    pub fn of(config: &config::Server) -> Self {
        Self { is_drained_by_configuration: config.is_drained, ..Self::default() }
    }

    /// Whether it is to get nothing new, and what runs on it may end in peace.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.is_drained_by_hand || self.is_drained_by_configuration
    }

    /// Whether it may be given anything.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.is_draining() && self.verdict != Verdict::Out
    }
}

/// What a name last resolved to; the address to use next stands first.
#[derive(Debug, Default)]
struct Resolved {
    addresses: Vec<SocketAddr>,
    at: Option<Instant>,
}

impl Server {
    /// # Errors
    /// When the host is no legal header value.
    pub fn new(number: usize, config: config::Server) -> Result<Self> {
        let host_header = HeaderValue::try_from(config.authority())
            .map_err(|error| Error::because(ErrorType::InternalError, "server host", error))?;
        let literal = config.host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, config.port));
        let standing = Arc::new(Mutex::new(Standing::of(&config)));
        let health = Arc::new(Mutex::new(Record::new(Phase::Healthy, Cause::Started, std::time::Instant::now())));
        Ok(Self {
            number,
            config,
            host_header,
            literal,
            resolved: Arc::default(),
            standing,
            health,
            engine: Arc::default(),
            tls_failure: Arc::default(),
            kept: Kept::default(),
        })
    }

    /// A server that has joined while others run: it gets few requests until it has proved itself.
    ///
    /// # Errors
    /// When the host is no legal header value.
    pub fn joining(number: usize, config: config::Server, verdict: Verdict) -> Result<Self> {
        let mut server = Self::new(number, config)?;
        server.change_standing(|standing| standing.verdict = verdict);
        server.health = Arc::new(Mutex::new(Record::new(Phase::Probation, Cause::Joined, std::time::Instant::now())));
        Ok(server)
    }

    /// Whether it is reached over TLS.
    pub fn has_tls(&self) -> bool {
        self.config.tls.is_some()
    }

    /// Logs that TLS towards the server failed, unless that was said lately.
    pub fn note_tls_failure(&self, error: &Error) {
        let Some(reason) = tls_failure::reason(error).filter(|_| self.has_tls()) else { return };
        if self.tls_failure.lock().is_news(&reason) {
            log::warn!("server {}: TLS failed: {reason}", self.name());
        }
    }

    /// The same server under a changed configuration: its number, standing and known addresses stay.
    ///
    /// # Errors
    /// When the host is no legal header value.
    pub fn reconfigured(&self, config: config::Server) -> Result<Self> {
        let mut server = Self::new(self.number, config)?;
        server.standing = Arc::clone(&self.standing);
        server.health = Arc::clone(&self.health);
        server.engine = Arc::clone(&self.engine);
        server.resolved = Arc::clone(&self.resolved);
        server.tls_failure = Arc::clone(&self.tls_failure);
        Ok(server)
    }

    /// What is known of its health; only [`Health`](crate::health::Health) changes it.
    #[must_use]
    pub fn health(&self) -> &Mutex<Record> {
        &self.health
    }

    /// What is known of its engine.
    #[must_use]
    pub fn engine(&self) -> &Mutex<EngineReport> {
        &self.engine
    }

    /// Its connections that wait for the next request.
    #[must_use]
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Its number in the balancer.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &config::Server {
        &self.config
    }

    /// How it stands now.
    #[must_use]
    pub fn standing(&self) -> Standing {
        *self.standing.lock()
    }

    /// Whether this is the same server, if perhaps under another configuration: not one that got its number later.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.standing, &other.standing)
    }

    /// What the balancer may give it: as it stands, and within its configured limits.
    #[must_use]
    pub fn admission(&self) -> Admission {
        let standing = self.standing();
        let limits = &self.config.limits;
        let proving = match standing.verdict {
            Verdict::Probation { max_in_flight } => Some(max_in_flight),
            Verdict::Healthy | Verdict::Out => None,
        };
        Admission {
            is_open: standing.is_live(),
            max_in_flight: limits.max_in_flight.into_iter().chain(proving).min(),
            max_load: limits.max_active_tokens.map(|tokens| Load::from_millitokens(tokens.saturating_mul(1_000))),
        }
    }

    /// Changes how it stands; only [`Live`](super::Live) does, which then tells the balancer.
    pub(super) fn change_standing(&self, change: impl FnOnce(&mut Standing)) -> Standing {
        let mut standing = self.standing.lock();
        change(&mut standing);
        *standing
    }

    /// Its name in metrics, status and logs.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// `host:port` as the server itself is called in `Host` headers and redirects.
    #[must_use]
    pub fn host_header(&self) -> &HeaderValue {
        &self.host_header
    }

    /// `Authorization` towards this server, when it has a key of its own.
    #[must_use]
    pub fn authorization(&self) -> Option<&HeaderValue> {
        self.config.authorization.as_ref()
    }

    /// The address to connect to now. Names are resolved at most every 30 seconds; while that fails the last
    /// good answer holds.
    ///
    /// # Errors
    /// When the name has never been resolved.
    pub async fn address(&self, limit: Duration) -> Result<SocketAddr> {
        if let Some(address) = self.literal {
            return Ok(address);
        }
        if let Some(address) = self.fresh_address() {
            return Ok(address);
        }
        let looked_up =
            tokio::time::timeout(limit, tokio::net::lookup_host((self.config.host.as_str(), self.config.port)));
        let found: Vec<SocketAddr> = match looked_up.await {
            Ok(Ok(addresses)) => addresses.collect(),
            Ok(Err(error)) => {
                log::warn!("looking up server {} failed: {error}", self.name());
                Vec::new()
            }
            Err(_) => {
                log::warn!("looking up server {} took longer than {limit:?}", self.name());
                Vec::new()
            }
        };
        let mut resolved = self.resolved.lock();
        resolved.at = Some(Instant::now());
        // The address in use stays in front while the name still has it.
        if !found.is_empty() {
            let in_use = resolved.addresses.first().copied();
            resolved.addresses = found;
            if let Some(position) = resolved.addresses.iter().position(|address| Some(*address) == in_use) {
                resolved.addresses.rotate_left(position);
            }
        }
        resolved.addresses.first().copied().ok_or_else(|| {
            Error::explain(ErrorType::ConnectError, format!("no address is known for {}", self.config.host)).into_up()
        })
    }

    fn fresh_address(&self) -> Option<SocketAddr> {
        let resolved = self.resolved.lock();
        let at = resolved.at?;
        (at.elapsed() < LOOK_UP_EVERY).then(|| resolved.addresses.first().copied()).flatten()
    }

    /// A connection to this address failed: a name's next address is used from now on.
    pub fn address_failed(&self, address: Option<&SocketAddr>) {
        let mut resolved = self.resolved.lock();
        if resolved.addresses.first() == address && !resolved.addresses.is_empty() {
            resolved.addresses.rotate_left(1);
        }
    }

    /// Where and how Pingora connects.
    #[must_use]
    pub fn peer(&self, address: SocketAddr, timeouts: &config::Timeouts) -> HttpPeer {
        let mut peer = HttpPeer::new(address, false, String::new());
        peer.options.connection_timeout = Some(timeouts.connect);
        peer.options.idle_timeout = Some(timeouts.server_keepalive);
        peer.options.tcp_keepalive = Some(TCP_KEEPALIVE);
        if let Some(tls) = &self.config.tls {
            // Without it TCP and TLS would have the time each.
            peer.options.total_connection_timeout = Some(timeouts.connect);
            tls.upstream.secure(&mut peer, &tls.name);
        }
        peer
    }
}
