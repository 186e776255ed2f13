//! The response: what goes back to the client.

use std::net::IpAddr;

use http::header::{CONNECTION, CONTENT_LENGTH, LOCATION, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use pingora::http::ResponseHeader;
use pingora::{Error, Result};

use super::client::Client;
use super::context::RequestContext;
use super::guard;
use super::request::REQUEST_ID;
use super::retry::{BAD_RESPONSE, RETRYABLE_STATUS, has_attempts_left};
use crate::access::TrustedProxies;
use crate::config::DecisionHeaders;
use crate::http1::Changes;

/// Names the group that serves in place of the one that the prompt is for.
const FAILOVER: &str = "x-tidegate-failover";

/// The server's header is here, and nothing of it has gone out: the last moment to try elsewhere.
pub(super) fn judge(response: &ResponseHeader, ctx: &mut RequestContext) -> Result<()> {
    // Nobody asked to switch protocols.
    if response.status == StatusCode::SWITCHING_PROTOCOLS || is_framed_badly(response) {
        return Error::err_up(BAD_RESPONSE);
    }
    if is_retryable(response.status) && has_attempts_left(ctx) {
        ctx.refused_status = Some(response.status.as_u16());
        return Error::err_up(RETRYABLE_STATUS);
    }
    if !response.status.is_informational() {
        ctx.status = Some(response.status.as_u16());
    }
    Ok(())
}

/// What becomes of the header on its way to the client.
pub(super) fn prepare<'a>(client: &Client<'_>, response: &ResponseHeader, ctx: &'a RequestContext) -> Changes<'a> {
    let mut changes = Changes::dropping(&OF_CONNECTIONS);
    for name in named_by_connection(&response.headers) {
        changes.remove(name);
    }
    let has_chunks = response.headers.contains_key(TRANSFER_ENCODING);
    if has_chunks {
        // It counts for nothing beside chunks (RFC 9112, section 6.3), and is not to mislead anybody else.
        changes.remove("content-length");
    }
    if has_chunks && client.request().version == Version::HTTP_10 {
        // Such a client knows no chunks: the body ends with the connection.
        changes.remove("transfer-encoding");
    }
    if let Some(request_id) = &ctx.request_id
        && !response.headers.contains_key(&REQUEST_ID)
    {
        changes.set(REQUEST_ID.as_str(), request_id.as_bytes());
    }
    if let Some(group) = &ctx.failover {
        changes.set(FAILOVER, group.as_bytes());
    }
    show_decision(client, &mut changes, ctx);
    guard::share(client.request(), &mut changes, ctx);
    if let Some(location) = own_location(client, response, ctx) {
        changes.set("location", location.into_bytes());
    }
    changes
}

/// Says where the request went and why, to those who may know.
fn show_decision<'a>(client: &Client<'_>, changes: &mut Changes<'a>, ctx: &'a RequestContext) {
    let is_shown = match ctx.config().decision_headers {
        DecisionHeaders::None => false,
        DecisionHeaders::Trusted => is_trusted(client.origin().peer, &ctx.in_force.access.rules().trusted_proxies),
        DecisionHeaders::All => true,
    };
    let (true, Some(server), Some(demand)) = (is_shown, &ctx.server, &ctx.demand) else { return };
    let group = |group: Option<usize>| Some(ctx.config().groups.get(group?)?.name.as_str());
    changes.set("x-tidegate-server", server.name().as_bytes());
    changes.set("x-tidegate-attempts", ctx.attempts.to_string().into_bytes());
    changes.set("x-tidegate-prompt-tokens", demand.prompt_tokens().to_string().into_bytes());
    changes.set("x-tidegate-waited-ms", ctx.waited.as_millis().to_string().into_bytes());
    let words = [
        ("x-tidegate-group", group(ctx.group)),
        ("x-tidegate-standard-group", group(ctx.standard_group)),
        ("x-tidegate-reason", ctx.reason),
    ];
    for (name, value) in words {
        if let Some(value) = value {
            changes.set(name, value.as_bytes());
        }
    }
}

/// Whether a client is on this machine, or a proxy that is trusted.
fn is_trusted(client: Option<IpAddr>, proxies: &TrustedProxies) -> bool {
    client.is_some_and(|client| client.to_canonical().is_loopback() || proxies.contain(client))
}

/// Where a redirect leads: one to the server's own address would lead clients past the gateway, to a host they may not
/// reach. `None` when it leads elsewhere.
fn own_location(client: &Client<'_>, response: &ResponseHeader, ctx: &RequestContext) -> Option<String> {
    let location = response.headers.get(LOCATION)?.to_str().ok()?;
    let server = ctx.server.as_ref()?;
    let host = client.request().headers.get(header::HOST)?.to_str().ok()?;
    let own = server.host_header().to_str().ok()?;
    let (scheme, rest) = location.split_once("://")?;
    let rest = rest.strip_prefix(own).filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
    let scheme = match scheme {
        _ if client.origin().has_tls => "https",
        scheme if !server.has_tls() => scheme,
        _ => "http",
    };
    Some(format!("{scheme}://{host}{rest}"))
}

fn is_retryable(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT)
}

/// Whether the response says in two ways where it ends, or in one that is not known: whatever we took for its end,
/// someone else may not.
fn is_framed_badly(response: &ResponseHeader) -> bool {
    let mut lengths = response.headers.get_all(CONTENT_LENGTH).iter();
    let is_good_length = |length: &HeaderValue| {
        length.as_bytes().iter().all(u8::is_ascii_digit)
            && length.to_str().is_ok_and(|text| text.parse::<u64>().is_ok())
    };
    let has_good_length = match (lengths.next(), lengths.next()) {
        (None, _) => true,
        (Some(length), None) => is_good_length(length),
        (Some(_), Some(_)) => false,
    };
    let mut encodings = response.headers.get_all(TRANSFER_ENCODING).iter();
    match encodings.next() {
        None => !has_good_length,
        // A length beside chunks counts for nothing.
        Some(encoding) => encodings.next().is_some() || !encoding.as_bytes().eq_ignore_ascii_case(b"chunked"),
    }
}

/// Fields of a server's connection, not of the client's (RFC 9110, section 7.6.1).
const OF_CONNECTIONS: [&str; 3] = ["connection", "keep-alive", "proxy-connection"];

/// What else is said to be of the connection. Framing fields are not: the body is written as they say.
fn named_by_connection(headers: &HeaderMap) -> impl Iterator<Item = String> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok());
    names
        .filter(|name: &HeaderName| *name != TRANSFER_ENCODING && *name != CONTENT_LENGTH)
        .map(|name| name.as_str().to_owned())
}

/// Takes out of an answer what concerns the server's connection and not the client's.
pub(super) fn strip_hop_by_hop(response: &mut ResponseHeader) {
    let named: Vec<_> = named_by_connection(&response.headers).collect();
    for name in named.iter().map(String::as_str).chain(OF_CONNECTIONS) {
        response.remove_header(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outsiders_are_told_nothing() {
        let proxies = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
        let is_trusted = |client: &str| super::is_trusted(Some(client.parse().unwrap()), &proxies);
        for client in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "10.1.2.3"] {
            assert!(is_trusted(client), "{client}");
        }
        for client in ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"] {
            assert!(!is_trusted(client), "{client}");
        }
        assert!(!super::is_trusted(None, &proxies));
    }

    #[test]
    fn connection_headers_and_what_they_name_stay_behind() {
        let mut response = ResponseHeader::build(200, None).unwrap();
        for (name, value) in
            [("connection", "close, X-Private"), ("keep-alive", "timeout=5"), ("x-private", "1"), ("x-public", "2")]
        {
            response.insert_header(name, value).unwrap();
        }
        strip_hop_by_hop(&mut response);
        let left: Vec<_> = response.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["x-public"]);
    }

    #[test]
    fn a_body_that_ends_in_one_known_way_is_good() {
        for (headers, is_bad) in [
            (&[][..], false),
            (&[("content-length", "5")], false),
            (&[("transfer-encoding", "Chunked")], false),
            (&[("content-length", "5"), ("content-length", "5")], true),
            (&[("content-length", "x")], true),
            (&[("content-length", "-1")], true),
            (&[("content-length", "+1")], true),
            (&[("content-length", "")], true),
            (&[("content-length", "99999999999999999999")], true),
            (&[("content-length", "5"), ("transfer-encoding", "chunked")], false),
            (&[("transfer-encoding", "foo")], true),
            (&[("transfer-encoding", "gzip, chunked")], true),
            (&[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")], true),
        ] {
            let mut response = ResponseHeader::build(200, None).unwrap();
            for (name, value) in headers {
                response.append_header(*name, *value).unwrap();
            }
            assert_eq!(is_framed_badly(&response), is_bad, "{headers:?}");
        }
    }

    #[test]
    fn a_nomination_cannot_take_the_framing_away() {
        let mut response = ResponseHeader::build(200, None).unwrap();
        response.insert_header("connection", "content-length, transfer-encoding").unwrap();
        response.insert_header("content-length", "5").unwrap();
        strip_hop_by_hop(&mut response);
        assert_eq!(response.headers["content-length"], "5");
    }
}
