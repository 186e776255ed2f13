//! The `discover` section of a group: where servers that come and go are found.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::problem::Located;
use super::section::{Parsed, Section, or_none};
use super::tls::UpstreamTlsDraft;
use super::yaml::Node;
use super::{ServerLimits, ServerTls, Traits, address, value};

/// How often a source is asked unless the file says otherwise.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);

/// Nothing is asked more often.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Where the servers of a group are found, and how often it is looked at.
#[derive(Debug, Clone)]
pub struct Discover {
    /// Where.
    pub source: Source,
    /// From the end of one look to the next.
    pub interval: Duration,
    /// How much each of its servers is given at once.
    pub limits: ServerLimits,
    /// What tells its servers from others.
    pub traits: Traits,
    /// How its servers are reached over TLS; `None` is plain HTTP.
    pub tls: Option<ServerTls>,
}

/// The section, with what can only be judged when `upstream.tls` is known.
#[derive(Debug)]
pub(super) struct DiscoverDraft {
    pub(super) source: Located<Source>,
    pub(super) interval: Duration,
    pub(super) https: bool,
    pub(super) tls: UpstreamTlsDraft,
}

/// Where servers are found.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// All addresses of a name.
    Dns {
        /// The name.
        host: String,
        /// The port at each address.
        port: u16,
    },
    /// The lines of a file, `address:port` each.
    File(PathBuf),
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns { host, port } => write!(out, "dns {host}:{port}"),
            Self::File(path) => write!(out, "file {}", path.display()),
        }
    }
}

pub(super) fn read(section: &mut Section<'_>) -> Option<DiscoverDraft> {
    let dns = section.value("dns", or_none(name));
    let file = section.value("file", or_none(value::text));
    let mut interval = DEFAULT_INTERVAL;
    section.set("interval", &mut interval, self::interval);
    let https = section.value("https", value::switch).is_some_and(|https| https.value);
    let tls = section.section("tls", UpstreamTlsDraft::read);
    let dns = dns.and_then(|dns| Some(Located::new(dns.value?, dns.spot)));
    let source = match file.and_then(|file| Some((file.value?, file.spot))) {
        None => dns?,
        Some((_, spot)) if dns.is_some() => {
            section.error(&spot, "given beside dns, expected one of the two");
            return None;
        }
        Some((path, spot)) => Located::new(Source::File(path.into()), spot),
    };
    Some(DiscoverDraft { source, interval, https, tls })
}

fn name(node: &Node) -> Parsed<Source> {
    let expected = "name:port, such as vllm-short.default.svc:8000";
    match address::endpoint(node.text().unwrap_or_default()) {
        Ok(endpoint) if endpoint.host.parse::<std::net::IpAddr>().is_ok() => {
            Err(format!("{expected}; an address belongs into servers"))
        }
        Ok(endpoint) => Ok(Source::Dns { host: endpoint.host, port: endpoint.port }),
        Err(_) => Err(expected.to_owned()),
    }
}

fn interval(node: &Node) -> Parsed<Duration> {
    let expected = || "a duration from 100ms to 7days, such as 10s".to_owned();
    value::duration(node).ok().filter(|interval| *interval >= MIN_INTERVAL).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::super::problem::{Problems, Spot};
    use super::super::yaml::parse;
    use super::*;

    fn read(yaml: &str) -> Result<Option<DiscoverDraft>, String> {
        let root = parse(yaml).unwrap();
        let problems = Problems::default();
        let value = Section::read(root.as_ref(), Spot::file("f"), &problems, super::read);
        problems.finish(Some(value)).map(|(value, _)| value).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn a_source_is_a_name_or_a_file() {
        let dns = read("dns: vllm.svc:8000\ninterval: 3s\n").unwrap().unwrap();
        assert_eq!((dns.source.value.to_string().as_str(), dns.interval.as_secs()), ("dns vllm.svc:8000", 3));
        let file = read("file: /etc/servers\n").unwrap().unwrap();
        assert_eq!((file.source.value, file.interval), (Source::File("/etc/servers".into()), DEFAULT_INTERVAL));
    }

    #[test]
    fn without_a_source_nothing_is_discovered() {
        for yaml in ["", "interval: 1s\n", "dns: none\nfile: none\n"] {
            assert!(read(yaml).unwrap().is_none(), "{yaml}");
        }
    }

    #[test]
    fn what_cannot_be_discovered_is_refused() {
        let error = read("dns: a:1\nfile: b\n").unwrap_err();
        assert_eq!(error, "error: f:2: file: given beside dns, expected one of the two");
        for (yaml, expected) in [
            ("dns: vllm\n", "expected name:port"),
            ("dns: 10.0.0.1:80\n", "an address belongs into servers"),
            ("interval: 1ms\n", "expected a duration from 100ms"),
        ] {
            let error = read(yaml).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
