//! What servers are told about where a request comes from: `x-forwarded-*` and `forwarded` (RFC 7239).
//!
//! The rule: what an untrusted peer says is removed, and everything is set anew from the connection. What a trusted
//! peer says is kept, and the peer itself is appended to the lists.

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::TrustedProxies;
use super::client::X_FORWARDED_FOR;

const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// The connection on which a request came.
#[derive(Debug, Clone, Copy)]
pub struct Hop<'a> {
    /// The other end; `None` when it has no IP address.
    pub peer: Option<IpAddr>,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// The host that the client asked for.
    pub host: Option<&'a str>,
    /// The port that it reached.
    pub port: Option<u16>,
}

/// Header fields with their values; `None` removes what is there.
pub type Fields = Vec<(HeaderName, Option<HeaderValue>)>;

/// The fields of the request to a server, given those that the client sent: a value replaces all that is there, `None`
/// removes it.
#[must_use]
pub(super) fn fields(trusted: &TrustedProxies, hop: &Hop<'_>, sent: &HeaderMap) -> Fields {
    let is_trusted = is_trusted(trusted, hop);
    if is_trusted { of_hop(hop, is_trusted, sent) } else { of_hop(hop, is_trusted, &HeaderMap::new()) }
}

/// What to say of one connection. As long as its peer is not trusted, and asks for the same host, that stays the same.
#[derive(Debug, Default)]
pub struct Remembered(Option<Told>);

#[derive(Debug)]
struct Told {
    peer: Option<IpAddr>,
    scheme: &'static str,
    host: Option<String>,
    port: Option<u16>,
    fields: Fields,
}

impl Told {
    fn is_of(&self, hop: &Hop<'_>) -> bool {
        (self.peer, self.scheme, self.host.as_deref(), self.port) == (hop.peer, hop.scheme, hop.host, hop.port)
    }
}

impl Remembered {
    /// The fields of the request to a server, as they would be made anew.
    pub fn fields(&mut self, trusted: &TrustedProxies, hop: &Hop<'_>, sent: &HeaderMap) -> Cow<'_, Fields> {
        if is_trusted(trusted, hop) {
            return Cow::Owned(fields(trusted, hop, sent));
        }
        if !self.0.as_ref().is_some_and(|told| told.is_of(hop)) {
            let Hop { peer, scheme, host, port } = *hop;
            let fields = fields(trusted, hop, sent);
            self.0 = Some(Told { peer, scheme, host: host.map(str::to_owned), port, fields });
        }
        Cow::Borrowed(&self.0.as_ref().expect("it has just been put there").fields)
    }
}

fn is_trusted(trusted: &TrustedProxies, hop: &Hop<'_>) -> bool {
    hop.peer.is_some_and(|peer| trusted.contain(peer.to_canonical()))
}

fn of_hop(hop: &Hop<'_>, is_trusted: bool, sent: &HeaderMap) -> Fields {
    let peer = hop.peer.map(|peer| peer.to_canonical());
    let kept_or = |name: HeaderName, own: Option<String>| {
        let value = sent.get(&name).cloned().or_else(|| own.and_then(|own| HeaderValue::try_from(own).ok()));
        (name, value)
    };
    // A proxy that does not write `forwarded` would seem to be the client there.
    let forwarded = if is_trusted && !sent.contains_key(FORWARDED) {
        None
    } else {
        joined(sent, &FORWARDED, Some(element(peer, hop)))
    };
    vec![
        (X_FORWARDED_FOR, joined(sent, &X_FORWARDED_FOR, peer.map(|peer| peer.to_string()))),
        kept_or(X_FORWARDED_PROTO, Some(hop.scheme.to_owned())),
        kept_or(X_FORWARDED_HOST, hop.host.map(str::to_owned)),
        kept_or(X_FORWARDED_PORT, hop.port.map(|port| port.to_string())),
        kept_or(X_REAL_IP, None),
        (FORWARDED, forwarded),
    ]
}

/// All values of a list field and one more, in one field.
fn joined(sent: &HeaderMap, name: &HeaderName, own: Option<String>) -> Option<HeaderValue> {
    let mut list: Vec<&[u8]> = sent.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    let own = own.unwrap_or_default();
    if !own.is_empty() {
        list.push(own.as_bytes());
    }
    let joined = list.join(&b", "[..]);
    if joined.is_empty() { None } else { HeaderValue::from_bytes(&joined).ok() }
}

/// One hop in the form of RFC 7239, section 4.
fn element(peer: Option<IpAddr>, hop: &Hop<'_>) -> String {
    let from = match peer {
        Some(IpAddr::V4(address)) => format!("for={address}"),
        Some(IpAddr::V6(address)) => format!("for=\"[{address}]\""),
        None => "for=unknown".to_owned(),
    };
    // A host with these would end the quotation.
    let host = hop.host.filter(|host| !host.contains(['"', '\\']));
    let host = host.map(|host| format!(";host=\"{host}\"")).unwrap_or_default();
    format!("{from}{host};proto={}", hop.scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(peer: &str, sent: &[(&'static str, &'static str)]) -> Vec<(String, String)> {
        let trusted = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
        let hop = Hop { peer: peer.parse().ok(), scheme: "http", host: Some("gateway.test:8000"), port: Some(8000) };
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let fields = fields(&trusted, &hop, &headers).into_iter();
        fields.filter_map(|(name, value)| Some((name.to_string(), value?.to_str().unwrap().to_owned()))).collect()
    }

    fn owned(fields: &[(&str, &str)]) -> Vec<(String, String)> {
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    const LIES: [(&str, &str); 6] = [
        ("x-forwarded-for", "6.6.6.6"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "evil.test"),
        ("x-forwarded-port", "1"),
        ("forwarded", "for=6.6.6.6"),
        ("x-real-ip", "6.6.6.6"),
    ];

    #[test]
    fn what_is_remembered_is_what_would_be_said_anew() {
        let trusted = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
        let mut remembered = Remembered::default();
        let mut sent = HeaderMap::new();
        for (peer, host, lie) in [
            ("203.0.113.9", Some("a.test"), "6.6.6.6"),
            ("203.0.113.9", Some("a.test"), "7.7.7.7"),
            ("203.0.113.9", Some("b.test"), "7.7.7.7"),
            ("203.0.113.9", None, "7.7.7.7"),
            ("203.0.113.9", Some(""), "7.7.7.7"),
            ("203.0.113.8", Some("b.test"), "7.7.7.7"),
            ("10.0.0.1", Some("b.test"), "6.6.6.6"),
            ("10.0.0.1", Some("b.test"), "7.7.7.7"),
            ("203.0.113.8", Some("b.test"), "7.7.7.7"),
        ] {
            sent.insert(X_FORWARDED_FOR, HeaderValue::from_static(lie));
            let hop = Hop { peer: peer.parse().ok(), scheme: "http", host, port: Some(8000) };
            for _ in 0..2 {
                assert_eq!(*remembered.fields(&trusted, &hop, &sent), fields(&trusted, &hop, &sent), "{peer} {host:?}");
            }
        }
        let hop = Hop { peer: "203.0.113.8".parse().ok(), scheme: "http", host: Some("b.test"), port: Some(1) };
        let nobody = TrustedProxies::default();
        assert_eq!(*remembered.fields(&nobody, &hop, &sent), fields(&nobody, &hop, &sent), "another port");
    }

    #[test]
    fn what_an_untrusted_peer_says_is_replaced() {
        let expected = owned(&[
            ("x-forwarded-for", "203.0.113.9"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "gateway.test:8000"),
            ("x-forwarded-port", "8000"),
            ("forwarded", "for=203.0.113.9;host=\"gateway.test:8000\";proto=http"),
        ]);
        assert_eq!(told("203.0.113.9", &LIES), expected);
        assert_eq!(told("::ffff:203.0.113.9", &[]), expected);
    }

    #[test]
    fn what_a_trusted_peer_says_is_kept_and_it_is_appended() {
        let mut sent = LIES.to_vec();
        sent.insert(1, ("x-forwarded-for", "10.7.7.7"));
        assert_eq!(
            told("::ffff:10.1.1.1", &sent),
            owned(&[
                ("x-forwarded-for", "6.6.6.6, 10.7.7.7, 10.1.1.1"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "evil.test"),
                ("x-forwarded-port", "1"),
                ("x-real-ip", "6.6.6.6"),
                ("forwarded", "for=6.6.6.6, for=10.1.1.1;host=\"gateway.test:8000\";proto=http"),
            ])
        );
    }

    #[test]
    fn what_a_trusted_peer_leaves_out_is_set_except_forwarded() {
        let told = told("10.1.1.1", &[("x-forwarded-for", "1.2.3.4")]);
        assert_eq!(told[0], ("x-forwarded-for".to_owned(), "1.2.3.4, 10.1.1.1".to_owned()));
        let names: Vec<_> = told.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port"]);
    }

    #[test]
    fn ipv6_and_unknown_peers_are_written_as_the_standard_says() {
        assert_eq!(told("2001:db8::1", &[])[4].1, "for=\"[2001:db8::1]\";host=\"gateway.test:8000\";proto=http");
        let unknown = told("no address", &LIES);
        assert_eq!(unknown[0].0, "x-forwarded-proto", "without an address there is no x-forwarded-for");
        assert_eq!(unknown[3].1, "for=unknown;host=\"gateway.test:8000\";proto=http");
    }

    #[test]
    fn a_host_cannot_break_out_of_its_quotation() {
        let hop = Hop { peer: None, scheme: "http", host: Some("a\";for=6.6.6.6;x=\""), port: None };
        assert_eq!(element(None, &hop), "for=unknown;proto=http");
    }
}
