//! The sections `tls` (the listener) and `upstream.tls`, `groups[].servers[].tls` (connections to servers).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::address::{self, Endpoint};
use super::problem::{Located, Problems, Spot};
use super::section::{Parsed, Section, or_none};
use super::value;
use super::yaml::Node;
use crate::tls::{Listener, ListenerFiles, MinVersion, Part, Unusable, Upstream, UpstreamFiles, check_name};

/// Where clients connect over TLS, and the certificate that they see.
#[derive(Debug, Clone)]
pub struct TlsListen {
    /// The addresses. Never empty.
    pub listen: Vec<SocketAddr>,
    /// Makes the handshakes.
    pub listener: Arc<Listener>,
}

/// How a server is reached over TLS.
#[derive(Debug, Clone)]
pub struct ServerTls {
    /// The name that the server's certificate must have.
    pub name: String,
    /// Whom Tidegate trusts and who it is. Shared by servers with the same settings.
    pub upstream: Arc<Upstream>,
}

type Given<T> = Option<Located<Option<T>>>;

/// The section `tls`.
#[derive(Debug, Default)]
pub(super) struct TlsDraft {
    pub(super) listen: Vec<Located<Endpoint>>,
    spot: Option<Spot>,
    certificate: Given<PathBuf>,
    key: Given<PathBuf>,
    min_version: Option<Located<MinVersion>>,
}

impl TlsDraft {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let listen = section.one_or_more("listen", or_none(|node| address::endpoint(node.text().unwrap_or_default())));
        let listen = listen.unwrap_or_default().into_iter().filter_map(given).collect();
        Self {
            listen,
            spot: Some(section.spot().clone()),
            certificate: section.value("certificate", or_none(path)),
            key: section.value("key", or_none(path)),
            min_version: section.value("min_version", min_version),
        }
    }

    /// Loads the files; `None` when there is no TLS listener.
    pub(super) fn check(self, addresses: Vec<SocketAddr>, problems: &Problems) -> Option<TlsListen> {
        let spot = self.spot.unwrap_or_else(|| Spot::named("tls"));
        let [certificate, key] = [self.certificate, self.key].map(|file| file.and_then(given));
        if self.listen.is_empty() {
            for file in [&certificate, &key].into_iter().flatten() {
                problems.warn(&file.spot, "has no effect without tls.listen");
            }
            return None;
        }
        for (name, file) in [("certificate", &certificate), ("key", &key)] {
            if file.is_none() {
                problems.error(&spot.child(name), "missing beside tls.listen, expected a PEM file");
            }
        }
        let (certificate, key) = (certificate?, key?);
        let spots = HashMap::from([(Part::Certificate.key(), &certificate.spot), (Part::Key.key(), &key.spot)]);
        let min_version = self.min_version.map_or(MinVersion::Tls12, |version| version.value);
        let files = ListenerFiles { certificate: certificate.value.clone(), key: key.value.clone(), min_version };
        match Listener::load(files) {
            Ok(listener) => {
                if listener.is_expired() {
                    let text = format!("the certificate is valid only until {}", listener.valid_until());
                    problems.warn(&certificate.spot, text);
                }
                Some(TlsListen { listen: addresses, listener: Arc::new(listener) })
            }
            Err(Unusable { part, text }) => {
                problems.error(spots.get(part.key()).copied().unwrap_or(&spot), text);
                None
            }
        }
    }
}

/// The keys of one server, or of all.
#[derive(Debug, Clone, Default)]
pub(super) struct UpstreamTlsDraft {
    ca: Given<PathBuf>,
    server_name: Given<String>,
    certificate: Given<PathBuf>,
    key: Given<PathBuf>,
    insecure: Option<Located<bool>>,
}

impl UpstreamTlsDraft {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Self {
            ca: section.value("ca", or_none(path)),
            server_name: section.value("server_name", or_none(value::text)),
            certificate: section.value("certificate", or_none(path)),
            key: section.value("key", or_none(path)),
            insecure: section.value("insecure", value::switch),
        }
    }

    /// Warns of keys that have no effect, because nothing is reached over TLS.
    pub(super) fn warn_of_unused(&self, problems: &Problems) {
        let paths = [&self.ca, &self.certificate, &self.key].into_iter().flatten();
        let paths = paths.filter(|path| path.value.is_some()).map(|path| &path.spot);
        let name = self.server_name.iter().filter(|name| name.value.is_some()).map(|name| &name.spot);
        let insecure = self.insecure.iter().filter(|insecure| insecure.value).map(|insecure| &insecure.spot);
        for spot in paths.chain(name).chain(insecure) {
            problems.warn(spot, "has no effect on servers without https://");
        }
    }

    /// What a server is reached with: its own keys, and those for all where it has none.
    fn over(&self, all: &Self) -> Self {
        // The two belong together.
        let identity = if self.certificate.is_some() || self.key.is_some() { self } else { all };
        Self {
            ca: self.ca.clone().or_else(|| all.ca.clone()),
            server_name: self.server_name.clone().or_else(|| all.server_name.clone()),
            certificate: identity.certificate.clone(),
            key: identity.key.clone(),
            insecure: self.insecure.clone().or_else(|| all.insecure.clone()),
        }
    }
}

/// Loads the files of servers, each set of settings once.
#[derive(Debug)]
pub(super) struct Loading<'a> {
    /// The keys for all servers.
    all: &'a UpstreamTlsDraft,
    problems: &'a Problems,
    loaded: HashMap<UpstreamFiles, Option<Arc<Upstream>>>,
}

impl<'a> Loading<'a> {
    pub(super) fn new(all: &'a UpstreamTlsDraft, problems: &'a Problems) -> Self {
        Self { all, problems, loaded: HashMap::new() }
    }

    /// How servers that are configured at `spot` are reached; their host is known, or has to be named.
    pub(super) fn load(
        &mut self,
        https: bool,
        own: &UpstreamTlsDraft,
        host: Option<&str>,
        spot: &Spot,
    ) -> Option<ServerTls> {
        let problems = self.problems;
        if !https {
            own.warn_of_unused(problems);
            return None;
        }
        let UpstreamTlsDraft { ca, server_name, certificate, key, insecure } = own.over(self.all);
        let [ca, certificate, key] = [ca, certificate, key].map(|file| file.and_then(given));
        let server_name = server_name.and_then(given);
        let Some(name) = server_name.as_ref().map(|name| name.value.as_str()).or(host).map(str::to_owned) else {
            problems.error(spot, "found over https without tls.server_name, expected the name in the certificates");
            return None;
        };
        let mut spots = HashMap::new();
        for (part, file) in [(Part::Ca, &ca), (Part::Certificate, &certificate), (Part::Key, &key)] {
            spots.extend(file.as_ref().map(|file| (part.key(), file.spot.clone())));
        }
        spots.extend(server_name.map(|name| (Part::ServerName.key(), name.spot)));
        let report = |Unusable { part, text }| problems.error(spots.get(part.key()).unwrap_or(spot), text);

        check_name(&name).map_err(report).ok()?;
        let identity = match (certificate, key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate.value, key.value)),
            (Some(alone), None) | (None, Some(alone)) => {
                problems.error(&alone.spot, "given alone, expected certificate and key side by side");
                return None;
            }
        };
        let insecure = insecure.is_some_and(|insecure| insecure.value);
        let files = UpstreamFiles { ca: ca.map(|ca| ca.value), identity, insecure };
        // A set that is broken is reported for the first server that has it.
        let load = |files: UpstreamFiles| Upstream::load(files).map(Arc::new).map_err(report).ok();
        let upstream = self.loaded.entry(files.clone()).or_insert_with(|| load(files)).clone()?;
        Some(ServerTls { name, upstream })
    }
}

impl Part {
    const fn key(self) -> &'static str {
        match self {
            Self::Ca => "ca",
            Self::Certificate => "certificate",
            Self::Key => "key",
            Self::ServerName => "server_name",
        }
    }
}

fn given<T>(located: Located<Option<T>>) -> Option<Located<T>> {
    let Located { value, spot } = located;
    value.map(|value| Located::new(value, spot))
}

fn path(node: &Node) -> Parsed<PathBuf> {
    let path = value::text(node).map_err(|_| "the path of a PEM file".to_owned())?;
    // The file is read again later, when a daemon has changed its directory.
    std::path::absolute(path).map_err(|error| format!("the path of a PEM file ({error})"))
}

/// With or without quotes: YAML takes `1.2` for a number.
fn min_version(node: &Node) -> Parsed<MinVersion> {
    match node.text() {
        Some("1.2") => Ok(MinVersion::Tls12),
        Some("1.3") => Ok(MinVersion::Tls13),
        _ => Err("\"1.2\" or \"1.3\"".to_owned()),
    }
}
