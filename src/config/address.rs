//! Hosts and ports as they are typed, and the addresses that a listener binds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

use super::section::Parsed;
use super::value::{PORTS, parse_whole};

/// A host and a port. The host is a name in lower case or an IP literal without brackets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Endpoint {
    pub(super) host: String,
    pub(super) port: u16,
}

const EXAMPLES: &str = "such as 10.0.0.5:8100, gpu-1:8100 or [fd00::5]:8100";

impl Endpoint {
    /// `host:port`, IPv6 literals in brackets.
    pub(super) fn authority(&self) -> String {
        authority(&self.host, self.port)
    }

    /// The host as an IP address; `localhost` is the IPv4 loopback address.
    pub(super) fn ip(&self) -> Option<IpAddr> {
        if self.host == "localhost" { Some(Ipv4Addr::LOCALHOST.into()) } else { self.host.parse().ok() }
    }
}

/// `host:port` as it stands in a `Host` header, IPv6 literals in brackets.
pub(super) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// `host:port` or `[v6]:port`.
pub(super) fn endpoint(text: &str) -> Parsed<Endpoint> {
    let split = match text.find("]:").filter(|_| text.starts_with('[')) {
        Some(end) => Some((&text[..=end], &text[end + 2..])),
        None => text.rsplit_once(':').filter(|_| !text.starts_with('[')),
    };
    let Some((name, port)) = split else { return Err(format!("host:port, {EXAMPLES}")) };
    if !text.starts_with('[') && name.contains(':') {
        return Err("an IPv6 address in brackets, such as [fd00::5]:8100".to_owned());
    }
    let port = self::port(port)?;
    Ok(Endpoint { host: host(name)?, port })
}

/// The address of a server, and whether it is reached over TLS: an endpoint, also as `http://host:port/`, or
/// `https://host:port/`.
pub(super) fn server(text: &str) -> Parsed<(Endpoint, bool)> {
    let (https, rest) = match text.split_once("://") {
        None => (false, text),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
        Some(_) => return Err(format!("host:port, http://host:port or https://host:port, {EXAMPLES}")),
    };
    let rest = if rest.len() < text.len() { rest.strip_suffix('/').unwrap_or(rest) } else { rest };
    if rest.contains(['/', '?', '#']) {
        return Err("an address without a path: servers are called with the client's path".to_owned());
    }
    if rest.contains('@') {
        return Err("an address without user and password: give the server an api_key".to_owned());
    }
    Ok((endpoint(rest)?, https))
}

fn port(text: &str) -> Parsed<u16> {
    let refused = || format!("a port from {} to {} after the last colon", PORTS.start(), PORTS.end());
    parse_whole(text, &PORTS).ok().and_then(|port| u16::try_from(port).ok()).ok_or_else(refused)
}

/// A name or IP literal; IPv6 with or without brackets.
pub(super) fn host(text: &str) -> Parsed<String> {
    let inner = text.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(text);
    if inner.contains(':') || inner.len() < text.len() {
        let address: Result<Ipv6Addr, _> = inner.parse();
        return address.map(|address| address.to_string()).map_err(|_| "an IPv6 address such as fd00::5".to_owned());
    }
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.') {
        let address: Result<Ipv4Addr, _> = text.parse();
        return address.map(|address| address.to_string()).map_err(|_| "an IPv4 address such as 10.0.0.5".to_owned());
    }
    let part = |part: &str| {
        (1..=63).contains(&part.len()) && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    let absolute = text.strip_suffix('.').unwrap_or(text);
    if absolute.len() <= 253 && absolute.split('.').all(part) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err("a host name or IP address, such as gpu-1, 10.0.0.5 or fd00::5".to_owned())
    }
}

/// The addresses that an endpoint to listen on stands for: an IP literal itself, a name all addresses it resolves to
/// that this machine has. Asks the system's resolver, which may block.
///
/// # Errors
/// What is wrong with the name, as a clause for the operator.
pub(super) fn listen_addresses(endpoint: &Endpoint) -> Result<Vec<SocketAddr>, String> {
    let Endpoint { host, port } = endpoint;
    if let Ok(ip) = host.parse() {
        return Ok(vec![SocketAddr::new(ip, *port)]);
    }
    let resolved: Vec<SocketAddr> = if host == "localhost" {
        // Known without a resolver, which a container may lack.
        let both: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        both.map(|ip| SocketAddr::new(ip, *port)).into()
    } else {
        let resolved = (host.as_str(), *port).to_socket_addrs();
        resolved
            .map_err(|error| format!("{host} cannot be resolved ({error}), expected an address of this machine"))?
            .collect()
    };
    let mut own = Vec::new();
    for address in resolved {
        // Binding a port of the system's choice asks whether the address is ours, not whether the port is free.
        if !own.contains(&address) && TcpListener::bind((address.ip(), 0)).is_ok() {
            own.push(address);
        }
    }
    if own.is_empty() {
        return Err(format!("{host} resolves to no address of this machine, expected one of its own"));
    }
    Ok(own)
}

/// Whether two listeners cannot exist beside each other.
pub(super) fn clash(a: SocketAddr, b: SocketAddr) -> bool {
    let same_family = a.is_ipv4() == b.is_ipv4();
    a.port() == b.port() && same_family && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
}

/// Whether connecting to the endpoint reaches a listener on this address. Names other than `localhost` are not
/// resolved and count as elsewhere.
pub(super) fn reaches(endpoint: &Endpoint, listener: SocketAddr) -> bool {
    let Some(ip) = endpoint.ip().filter(|_| endpoint.port == listener.port()) else { return false };
    ip == listener.ip() || (listener.ip().is_unspecified() && (ip.is_loopback() || ip.is_unspecified()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Endpoint {
        Endpoint { host: host.to_owned(), port }
    }

    #[test]
    fn names_ipv4_and_bracketed_ipv6_are_endpoints() {
        for (text, host, port) in [
            ("gpu-1:8100", "gpu-1", 8100),
            ("GPU_1.rack.local:1", "gpu_1.rack.local", 1),
            ("10.0.0.5:65535", "10.0.0.5", 65_535),
            ("[fd00:0::5]:8100", "fd00::5", 8100),
        ] {
            assert_eq!(endpoint(text), Ok(at(host, port)), "{text}");
        }
    }

    #[test]
    fn endpoints_without_a_usable_host_or_port_are_refused() {
        for text in [
            "",
            ":",
            "8000",
            "host",
            "host:",
            ":80",
            "host:0",
            "host:70000",
            "host:abc",
            "host:-1",
            "fd00::5:8100",
            "[fd00::5]",
            "[10.0.0.5]:80",
            "[x]:80",
            "10.0.0.256:80",
            "10.0.0:80",
            "a b:80",
            "ä:80",
            "a..b:80",
            "http://a:80",
        ] {
            assert!(endpoint(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_server_may_be_written_as_a_url_of_its_root() {
        for text in ["a:80", "http://a:80", "HTTP://a:80/"] {
            assert_eq!(server(text), Ok((at("a", 80), false)), "{text}");
        }
        for text in ["https://a:80", "HTTPS://a:80/"] {
            assert_eq!(server(text), Ok((at("a", 80), true)), "{text}");
        }
    }

    #[test]
    fn a_server_url_that_asks_for_more_is_refused_with_the_reason() {
        for (text, reason) in [
            ("https://a", "host:port"),
            ("http://a:80/v1", "without a path"),
            ("a:80/", "without a path"),
            ("http://u:p@a:80", "without user and password"),
            ("grpc://a:80", "http://host:port"),
            ("http://a", "host:port"),
        ] {
            let error = server(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_host_may_be_ipv6_with_or_without_brackets() {
        assert_eq!((host("::1"), host("[::1]")), (Ok("::1".into()), Ok("::1".into())));
        for text in ["[::1", "::1]", "[]", "::g", "-", "a:80", "fe80::1%eth0"] {
            // A single hyphen is an odd name, but the resolver's business.
            assert_eq!(host(text).is_ok(), text == "-", "{text}");
        }
    }

    #[test]
    fn localhost_is_the_loopback_addresses_that_this_machine_has() {
        let found = listen_addresses(&at("localhost", 8000)).unwrap();
        let has_ipv6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
        let mut expected: Vec<SocketAddr> = vec!["127.0.0.1:8000".parse().unwrap()];
        expected.extend(has_ipv6.then(|| "[::1]:8000".parse::<SocketAddr>().unwrap()));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_name_that_cannot_be_resolved_is_no_address_to_listen_on() {
        // A zero byte fails in every resolver, without asking the network.
        let error = listen_addresses(&at("no\0host", 80)).unwrap_err();
        assert!(error.starts_with("no\0host cannot be resolved ("), "{error}");
    }

    #[test]
    fn listeners_clash_on_the_same_address_and_with_the_wildcard() {
        let clash = |a: &str, b: &str| clash(a.parse().unwrap(), b.parse().unwrap());
        assert!(clash("127.0.0.1:1", "127.0.0.1:1"));
        assert!(clash("0.0.0.0:1", "127.0.0.1:1"));
        assert!(!clash("127.0.0.1:1", "127.0.0.1:2"));
        assert!(!clash("127.0.0.1:1", "127.0.0.2:1"));
        assert!(!clash("0.0.0.0:1", "[::]:1"));
    }

    #[test]
    fn a_server_on_the_listener_itself_is_noticed() {
        let reaches = |host: &str, listener: &str| reaches(&at(host, 8000), listener.parse().unwrap());
        assert!(reaches("127.0.0.1", "127.0.0.1:8000"));
        assert!(reaches("localhost", "0.0.0.0:8000"));
        assert!(reaches("::1", "[::]:8000"));
        assert!(!reaches("localhost", "127.0.0.1:8001"));
        assert!(!reaches("10.0.0.5", "0.0.0.0:8000"));
        assert!(!reaches("elsewhere", "0.0.0.0:8000"));
    }
}
