//! Which address a request comes from, and whom to believe about it.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Peers that are believed: proxies of one's own in front of Tidegate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// These networks.
    #[must_use]
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self(networks)
    }

    /// The networks as configured.
    #[must_use]
    pub fn networks(&self) -> &[IpNet] {
        &self.0
    }

    /// Whether an address is in one of the networks. An IPv4 address written as IPv6 is the IPv4 address.
    #[must_use]
    pub fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// The client's address: the peer's, or, as long as that is believed, what it says in `x-forwarded-for`.
    #[must_use]
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        for value in headers.get_all(X_FORWARDED_FOR).iter().rev() {
            let Ok(value) = value.to_str() else { return client };
            for entry in value.rsplit(',') {
                if !self.contain(client) {
                    return client;
                }
                let Some(address) = address(entry.trim()) else { return client };
                client = address.to_canonical();
            }
        }
        client
    }
}

/// An address with or without a port, IPv6 with or without brackets.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn trusted() -> TrustedProxies {
        TrustedProxies::new(["10.0.0.0/8", "fd00::/8", "192.0.2.1/32"].map(|net| net.parse().unwrap()).into())
    }

    fn client(peer: &str, forwarded: &[&'static str]) -> String {
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append(X_FORWARDED_FOR, HeaderValue::from_static(value));
        }
        trusted().client(peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn an_untrusted_peer_is_the_client_whatever_it_says() {
        assert_eq!(client("203.0.113.9", &["1.2.3.4"]), "203.0.113.9");
        assert_eq!(client("192.0.2.2", &["1.2.3.4"]), "192.0.2.2");
    }

    #[test]
    fn a_trusted_peer_is_believed_up_to_the_first_address_that_is_not() {
        assert_eq!(client("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(client("10.0.0.1", &["1.2.3.4"]), "1.2.3.4");
        assert_eq!(client("10.0.0.1", &["6.6.6.6, 1.2.3.4, 10.9.9.9"]), "1.2.3.4");
        assert_eq!(client("10.0.0.1", &["6.6.6.6", "1.2.3.4", "10.9.9.9"]), "1.2.3.4");
        assert_eq!(client("fd00::1", &["[2001:db8::1]:443"]), "2001:db8::1");
        assert_eq!(client("192.0.2.1", &["[2001:db8::1]"]), "2001:db8::1");
        assert_eq!(client("10.0.0.1", &["1.2.3.4:567"]), "1.2.3.4");
    }

    #[test]
    fn an_entry_that_is_no_address_ends_the_search() {
        assert_eq!(client("10.0.0.1", &["1.2.3.4, unknown"]), "10.0.0.1");
        assert_eq!(client("10.0.0.1", &["1.2.3.4, unknown, 10.0.0.2"]), "10.0.0.2");
        assert_eq!(client("10.0.0.1", &[""]), "10.0.0.1");
    }

    #[test]
    fn ipv4_in_ipv6_is_ipv4() {
        assert_eq!(client("::ffff:10.0.0.1", &["::ffff:1.2.3.4"]), "1.2.3.4");
        assert!(trusted().contain("::ffff:10.1.1.1".parse().unwrap()));
        assert!(!trusted().contain("::10.1.1.1".parse().unwrap()));
    }
}
