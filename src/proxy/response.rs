//! The response: what goes back to the client.

use std::net::IpAddr;

use http::header::{CONNECTION, CONTENT_LENGTH, LOCATION, TRANSFER_ENCODING};
use http::{HeaderName, StatusCode, Version, header};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use pingora::{Error, Result};

use super::context::RequestContext;
use super::guard;
use super::request::REQUEST_ID;
use super::retry::{BAD_RESPONSE, RETRYABLE_STATUS, has_attempts_left};
use crate::access::TrustedProxies;
use crate::config::DecisionHeaders;

/// Names the group that serves in place of the one that the prompt is for.
const FAILOVER: HeaderName = HeaderName::from_static("x-tidegate-failover");

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

/// Prepares the header for the client.
pub(super) fn prepare(session: &Session, response: &mut ResponseHeader, ctx: &RequestContext) -> Result<()> {
    strip_hop_by_hop(response);
    if session.req_header().version == Version::HTTP_10 {
        // Such a client knows no chunks: the body ends with the connection.
        response.remove_header(&TRANSFER_ENCODING);
    }
    if let Some(request_id) = &ctx.request_id
        && !response.headers.contains_key(REQUEST_ID)
    {
        response.insert_header(REQUEST_ID, request_id)?;
    }
    if let Some(group) = &ctx.failover {
        response.insert_header(FAILOVER, group)?;
    }
    show_decision(session, response, ctx)?;
    guard::share(session.req_header(), response, ctx)?;
    rewrite_location(session, response, ctx)
}

/// Says where the request went and why, to those who may know.
fn show_decision(session: &Session, response: &mut ResponseHeader, ctx: &RequestContext) -> Result<()> {
    let is_shown = match ctx.config().decision_headers {
        DecisionHeaders::None => false,
        DecisionHeaders::Trusted => {
            is_trusted(guard::ip(session.client_addr()), &ctx.in_force.access.rules().trusted_proxies)
        }
        DecisionHeaders::All => true,
    };
    let (true, Some(server), Some(demand)) = (is_shown, &ctx.server, &ctx.demand) else { return Ok(()) };
    let group = |group: Option<usize>| Some(ctx.config().groups.get(group?)?.name.as_str());
    response.insert_header("x-tidegate-server", server.name())?;
    response.insert_header("x-tidegate-attempts", ctx.attempts.to_string())?;
    response.insert_header("x-tidegate-prompt-tokens", demand.prompt_tokens().to_string())?;
    response.insert_header("x-tidegate-waited-ms", ctx.waited.as_millis().to_string())?;
    let words = [
        ("x-tidegate-group", group(ctx.group)),
        ("x-tidegate-standard-group", group(ctx.standard_group)),
        ("x-tidegate-reason", ctx.reason),
    ];
    for (name, value) in words {
        if let Some(value) = value {
            response.insert_header(name, value)?;
        }
    }
    Ok(())
}

/// Whether a client is on this machine, or a proxy that is trusted.
fn is_trusted(client: Option<IpAddr>, proxies: &TrustedProxies) -> bool {
    client.is_some_and(|client| client.to_canonical().is_loopback() || proxies.contain(client))
}

/// A redirect to the server's own address would lead clients past the gateway, to a host they may not reach.
fn rewrite_location(session: &Session, response: &mut ResponseHeader, ctx: &RequestContext) -> Result<()> {
    let Some(location) = response.headers.get(LOCATION).and_then(|location| location.to_str().ok()) else {
        return Ok(());
    };
    let Some(server) = &ctx.server else {
        return Ok(());
    };
    let Some(host) = session.req_header().headers.get(header::HOST).and_then(|host| host.to_str().ok()) else {
        return Ok(());
    };
    let own = server.host_header().to_str().unwrap_or_default();
    if let Some(rest) = location.split_once("://").and_then(|(_, rest)| rest.strip_prefix(own))
        && (rest.is_empty() || rest.starts_with('/'))
    {
        let client_has_tls = session.as_downstream().digest().is_some_and(|digest| digest.ssl_digest.is_some());
        let scheme = match location.split_once("://") {
            _ if client_has_tls => "https",
            Some((scheme, _)) if !server.has_tls() => scheme,
            _ => "http",
        };
        let rewritten = format!("{scheme}://{host}{rest}");
        response.insert_header(LOCATION, rewritten)?;
    }
    Ok(())
}

fn is_retryable(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT)
}

/// Whether the response says in two ways where it ends, or in one that is not known: whatever we took for its end,
/// someone else may not.
fn is_framed_badly(response: &ResponseHeader) -> bool {
    let lengths = response.headers.get_all(CONTENT_LENGTH).iter().count();
    let mut encodings = response.headers.get_all(TRANSFER_ENCODING).iter();
    match encodings.next() {
        None => lengths > 1,
        Some(encoding) => {
            lengths > 0 || encodings.next().is_some() || !encoding.as_bytes().eq_ignore_ascii_case(b"chunked")
        }
    }
}

/// Takes out what concerns the server's connection and not the client's (RFC 9110, section 7.6.1). Framing headers
/// stay: Pingora writes the body as they say.
pub(super) fn strip_hop_by_hop(response: &mut ResponseHeader) {
    let nominated: Vec<HeaderName> = response
        .headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| *name != TRANSFER_ENCODING && *name != CONTENT_LENGTH)
        .collect();
    for name in nominated {
        response.remove_header(&name);
    }
    response.remove_header(&CONNECTION);
    response.remove_header("keep-alive");
    response.remove_header("proxy-connection");
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
            (&[("content-length", "5"), ("transfer-encoding", "chunked")], true),
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
