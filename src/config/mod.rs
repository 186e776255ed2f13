//! The configuration in force: checked values in domain types.
//!
//! What the user typed is read by the modules below, and only a [`Config`] that can be run leaves them:
//!
//! ```text
//! text --yaml--> tree with lines --section, value--> Draft (single values are right) --check--> Config
//!                                  flags ------------^ (over the file, or alone)
//! ```
//!
//! All problems are collected on the way ([`Refusal`]), each with its place and what would be accepted.

mod access;
mod access_log;
mod address;
mod check;
mod difference;
mod discover;
mod draft;
mod engines;
mod file;
mod flags;
mod health;
mod nearest;
mod pingora;
mod policy;
mod problem;
mod secret;
mod section;
mod settings;
mod shutdown;
mod summary;
mod tls;
mod tokenizers;
mod tracing;
mod traits;
pub(crate) mod value;
mod yaml;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::pingora::server::configuration::ServerConf;
use http::{HeaderName, HeaderValue};
use log::LevelFilter;

use crate::access::Rules;
use crate::balance::{Policy, Ties};
use crate::prompt::ExactCounter;
use crate::tls::Watched;

pub use access_log::{AccessLog, LogFormat};
pub use difference::{Difference, difference};
pub use discover::{Discover, Source};
pub use engines::Engines;
pub use file::{known_keys, load};
pub use flags::{DEFAULT_GROUP_THRESHOLD, DEFAULT_MAX_REQUEST_TOKENS, Flags};
pub use health::{ActiveChecks, ExpectedStatus, Health, PassiveChecks, Probation};
pub use problem::{Problem, Refusal};
pub use settings::{DEFAULT_MAX_BODY_BYTES, DecisionHeaders};
pub use shutdown::Shutdown;
pub use summary::Summary;
pub use tls::{ServerTls, TlsListen};
pub use tokenizers::ModelTokenizer;
pub use tracing::Tracing;
pub use traits::{MaxModelLen, Traits};

/// Looks up an environment variable; `None` when it is not set.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A configuration that can be run, and what the operator should know about it.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Things that are probably not meant so.
    pub warnings: Vec<Problem>,
}

/// Everything that Tidegate runs with.
#[derive(Debug)]
pub struct Config {
    /// Where clients connect. Never empty.
    pub listen: Vec<SocketAddr>,
    /// Where clients connect over TLS; `None` is off.
    pub tls: Option<TlsListen>,
    /// Where the admin listener (metrics, status) is; `None` is off.
    pub admin: Option<SocketAddr>,
    /// Who may use the admin listener.
    pub admin_access: AdminAccess,
    /// Whether the configuration file is watched and put in force when it changes.
    pub watch: bool,
    /// The server groups, short prompts first. Never empty; each has servers or a source of them, and no server stands
    /// there twice.
    pub groups: Vec<Group>,
    /// How a request finds its group and server. Has one bucket per group.
    pub policy: Policy,
    /// Another policy, which decides beside and of which only the choices are counted.
    pub shadow: Option<Policy>,
    /// The tokenizers of models, for routing by work.
    pub tokenizers: Vec<ModelTokenizer>,
    /// The request header in which clients name the conversation that a request belongs to, for routing by work.
    pub session_header: Option<HeaderName>,
    /// How ties between equally loaded servers are broken.
    pub ties: Ties,
    /// Largest request body that is accepted, in bytes.
    pub max_body_bytes: usize,
    /// All time limits.
    pub timeouts: Timeouts,
    /// How often and how fast a failed request is tried elsewhere.
    pub retry: Retry,
    /// How servers are judged.
    pub health: Health,
    /// How the servers' engines are asked for themselves; `None`: they are not. See [`Self::asks_engines`].
    pub engines: Option<Engines>,
    /// How much is logged, unless the environment says it.
    pub log_level: LevelFilter,
    /// Which requests get a line in the access log, and where; `None`: none.
    pub access_log: Option<AccessLog>,
    /// Where spans of requests are exported to, and which; `None`: none are made.
    pub tracing: Option<Tracing>,
    /// How many requests may wait for a server, and for how long.
    pub queue: QueueLimits,
    /// Request headers that are not passed on to the servers.
    pub strip_request_headers: Vec<HeaderName>,
    /// Who gets to see where a request went, and why.
    pub decision_headers: DecisionHeaders,
    /// Replaces the client's `Authorization` towards every server that has no key of its own.
    pub upstream_authorization: Option<HeaderValue>,
    /// Who may do what on the port for clients.
    pub access: Rules,
    /// How the process ends.
    pub shutdown: Shutdown,
    /// Pingora's own settings.
    pub pingora: ServerConf,
}

impl Config {
    /// Takes over from the configuration in force what cannot change while the process runs.
    ///
    /// # Errors
    /// When Pingora's settings cannot be copied.
    pub fn keep_fixed(&mut self, in_force: &Self) -> Result<(), String> {
        let pingora = copy_of(&in_force.pingora)?;
        self.listen.clone_from(&in_force.listen);
        self.tls.clone_from(&in_force.tls);
        self.admin = in_force.admin;
        self.pingora = pingora;
        Ok(())
    }

    /// How the servers' engines are asked for themselves: only a policy by work has a use for it.
    #[must_use]
    pub fn asks_engines(&self) -> Option<&Engines> {
        self.engines.as_ref().filter(|_| matches!(self.policy, Policy::ByWork(_)))
    }

    /// Counts the tokens of prompts for a model, if there is its tokenizer.
    #[must_use]
    pub fn counter(&self, model: Option<&str>) -> Option<&Arc<ExactCounter>> {
        let of = |name: Option<&str>| self.tokenizers.iter().find(|tokenizer| tokenizer.model.as_deref() == name);
        let own = model.and_then(|model| of(Some(model)));
        own.or_else(|| of(None)).map(|tokenizer| &tokenizer.counter)
    }

    /// Where servers are to be discovered, in the order of the groups.
    pub fn sources(&self) -> impl Iterator<Item = &Discover> {
        self.groups.iter().filter_map(|group| group.discover.as_ref())
    }
}

/// Pingora's settings cannot be cloned.
///
/// # Errors
/// When they cannot be copied either, with the reason.
pub fn copy_of(settings: &ServerConf) -> Result<ServerConf, String> {
    let copy = serde_json::to_value(settings).and_then(serde_json::from_value);
    copy.map_err(|error| error.to_string())
}

/// A group of servers for prompts of one length range.
#[derive(Debug, Clone)]
pub struct Group {
    /// Name in metrics, headers and logs. Unique.
    pub name: String,
    /// The servers in the order written. Empty only beside `discover`.
    pub servers: Vec<Server>,
    /// Where more servers are found.
    pub discover: Option<Discover>,
}

/// Who may use the admin listener.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdminAccess {
    /// The `Authorization` that is asked for, `Bearer` in front.
    pub token: Option<HeaderValue>,
    /// Whether it is asked for also where nothing is changed.
    pub protect_reads: bool,
}

/// One vLLM server.
#[derive(Debug, Clone)]
pub struct Server {
    /// Name in metrics, headers and logs. Unique; by default the authority.
    pub name: String,
    /// Host name or IP literal, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// `Authorization` towards this server, in place of the client's.
    pub authorization: Option<HeaderValue>,
    /// Whether it is to get nothing new.
    pub is_drained: bool,
    /// How much it is given at once.
    pub limits: ServerLimits,
    /// What tells it from other servers, for the policies by work.
    pub traits: Traits,
    /// How it is reached over TLS; `None` is plain HTTP.
    pub tls: Option<ServerTls>,
}

/// How much a server is given at once. What is beyond waits in Tidegate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerLimits {
    /// Most requests that run on it; `None` is no limit.
    pub max_in_flight: Option<u64>,
    /// Most tokens of load that are active on it; `None` is no limit. A larger request runs when nothing else does.
    pub max_active_tokens: Option<u64>,
}

impl Config {
    /// Everything that was made from TLS files. Servers with the same files share one.
    #[must_use]
    pub fn tls_files(&self) -> Vec<Arc<dyn Watched>> {
        let listener = self.tls.iter().map(|tls| Arc::clone(&tls.listener) as Arc<dyn Watched>);
        let mut upstreams: Vec<_> = self.upstreams().collect();
        upstreams.sort_by_key(|upstream| Arc::as_ptr(upstream));
        upstreams.dedup_by(|a, b| Arc::ptr_eq(a, b));
        listener.chain(upstreams.into_iter().map(|upstream| Arc::clone(upstream) as Arc<dyn Watched>)).collect()
    }

    /// Whether a server is trusted because an authority of the system says so.
    #[must_use]
    pub fn uses_system_authorities(&self) -> bool {
        self.upstreams().any(|upstream| upstream.files().uses_system_authorities())
    }

    /// What servers are reached with over TLS, the same one more than once.
    fn upstreams(&self) -> impl Iterator<Item = &Arc<crate::tls::Upstream>> {
        let tls = self.groups.iter().flat_map(|group| {
            let listed = group.servers.iter().filter_map(|server| server.tls.as_ref());
            listed.chain(group.discover.iter().filter_map(|discover| discover.tls.as_ref()))
        });
        tls.map(|tls| &tls.upstream)
    }
}

impl Server {
    /// A server of which only the address is known; its name is the address.
    #[must_use]
    pub fn at(address: SocketAddr, limits: ServerLimits, traits: Traits, tls: Option<ServerTls>) -> Self {
        let (host, port) = (address.ip().to_string(), address.port());
        let name = address::authority(&host, port);
        Self { name, host, port, authorization: None, is_drained: false, limits, traits, tls }
    }

    /// `host:port` as it stands in a `Host` header, IPv6 literals in brackets.
    #[must_use]
    pub fn authority(&self) -> String {
        address::authority(&self.host, self.port)
    }

    /// Whether it is trusted because an authority of the system says so.
    #[must_use]
    pub fn uses_system_authorities(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.upstream.files().uses_system_authorities())
    }
}

/// All time limits. `None` is no limit.
#[derive(Debug, Clone)]
pub struct Timeouts {
    /// Until a connection to a server stands, with TLS where it is used.
    pub connect: Duration,
    /// From the first byte of a request header (or from accepting the connection) to its last. Also for the TLS
    /// handshake.
    pub request_header: Duration,
    /// Longest pause between two pieces of a request body.
    pub request_body_idle: Duration,
    /// From the header's end to the end of the request body.
    pub request_body: Duration,
    /// From the end of the request towards the server to the first byte of the response body.
    pub first_byte: Option<Duration>,
    /// Longest pause between two pieces of a response body.
    pub response_idle: Option<Duration>,
    /// Longest time that one write to a slow client may take.
    pub client_write: Option<Duration>,
    /// From the request header to the last byte of the response.
    pub total: Option<Duration>,
    /// How long an idle client connection is kept.
    pub client_keepalive: Duration,
    /// How long an idle connection to a server is kept. Below vLLM's own 5 s, so that it is we who close it.
    pub server_keepalive: Duration,
}

/// Bounds of the queue, for each group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Most requests that wait.
    pub max_requests: usize,
    /// Most bytes of bodies that wait.
    pub max_bytes: usize,
    /// For how long a request waits; `None`: it does not.
    pub max_wait: Option<Duration>,
}

/// Retries: only before the first byte has gone to the client.
#[derive(Debug, Clone)]
pub struct Retry {
    /// Attempts in all, the first one included. At least 1.
    pub max_attempts: usize,
    /// Pause before the second attempt; doubles from attempt to attempt, with jitter.
    pub base_delay: Duration,
    /// No pause is longer than this.
    pub max_delay: Duration,
}

/// The configuration that a file with this text gives.
#[cfg(test)]
pub(crate) fn of_text(text: &str) -> Config {
    let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    std::fs::write(file.path(), text).expect("the file is writable");
    load(Some(file.path()), &Flags::default(), &|_| None).expect("the text is a configuration").config
}
