//! Who may do what on the admin listener.
//!
//! | | without a token | with `admin.token` | and with `admin.protect_reads` |
//! |---|---|---|---|
//! | reading | everybody | everybody | the token, but for `/healthz`, `/readyz` and the live page |
//! | changing | everybody, if the listener is on loopback | the token | the token |
//!
//! The live page is open because a browser cannot send a token when it asks for a page. Nothing is in it: what it shows
//! comes from `/events`, for which it sends the token that is typed into it.

use std::net::{IpAddr, SocketAddr};

use http::header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde::Serialize;
use subtle::ConstantTimeEq;

use super::error;
use crate::config::AdminAccess;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// To see whether the process lives, or is ready.
    Health,
    /// To have the live page, which shows nothing by itself.
    Page,
    /// To see anything else.
    Read,
    /// To have a request explained, which changes nothing.
    Ask,
    /// To change something.
    Change,
}

/// The answer to a request that may not be granted; `None` when it may.
pub(super) fn refusal(
    access: &AdminAccess,
    listener: Option<SocketAddr>,
    wish: Wish,
    headers: &HeaderMap,
) -> Option<Response<Vec<u8>>> {
    match &access.token {
        Some(token) => {
            let is_asked_for = wish == Wish::Change || (matches!(wish, Wish::Read | Wish::Ask) && access.protect_reads);
            (is_asked_for && !has_token(headers, token)).then(unauthorized)
        }
        None if wish != Wish::Change => None,
        None if !listener.is_some_and(|listener| listener.ip().is_loopback()) => {
            let message = "without admin.token nothing can be changed over an admin listener that is not on loopback";
            Some(error(StatusCode::FORBIDDEN, "token_required", message))
        }
        // Any page in a browser on this machine could send it.
        None if headers.contains_key(ORIGIN) && !is_own_page(headers) => {
            let message = "without admin.token nothing can be changed from another page in a browser";
            Some(error(StatusCode::FORBIDDEN, "token_required", message))
        }
        None => None,
    }
}

/// What has to be true for a request to change something, for the live page to know whether to offer it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Changes {
    /// Nothing.
    Open,
    /// The token is sent.
    Token,
    /// It cannot be.
    Closed,
}

/// For a page that was asked for under the host name that these headers have.
pub(super) fn changes(access: &AdminAccess, listener: Option<SocketAddr>, headers: &HeaderMap) -> Changes {
    let is_loopback = listener.is_some_and(|listener| listener.ip().is_loopback());
    match access.token {
        Some(_) => Changes::Token,
        None if is_loopback && loopback_host(headers).is_some() => Changes::Open,
        None => Changes::Closed,
    }
}

/// Whether a request comes from the page that this listener serves. Browsers set `Origin`, no page can. The name must be
/// one that always means this machine: for any other a page elsewhere could have its name server say that it is here.
fn is_own_page(headers: &HeaderMap) -> bool {
    let origin = headers.get(ORIGIN).and_then(|origin| origin.as_bytes().strip_prefix(b"http://"));
    origin.is_some() && origin == loopback_host(headers).map(str::as_bytes)
}

/// The host and port that a request is for, if that is this machine by its name.
fn loopback_host(headers: &HeaderMap) -> Option<&str> {
    let authority = headers.get(HOST)?.to_str().ok()?;
    let host = authority.parse::<Authority>().ok()?;
    let host = host.host().trim_start_matches('[').trim_end_matches(']');
    let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    // No browser sends a user's name here.
    (is_loopback && !authority.contains('@')).then_some(authority)
}

fn has_token(headers: &HeaderMap, token: &HeaderValue) -> bool {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    match (given.next(), given.next()) {
        // Takes as long for every wrong token of the same length; the length is no secret.
        (Some(given), None) => bool::from(given.as_bytes().ct_eq(token.as_bytes())),
        _ => false,
    }
}

fn unauthorized() -> Response<Vec<u8>> {
    let message = "send the admin token: Authorization: Bearer TOKEN";
    let mut response = error(StatusCode::UNAUTHORIZED, "unauthorized", message);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: &str = "127.0.0.1:9400";
    const OUTSIDE: &str = "0.0.0.0:9400";

    fn status(access: &AdminAccess, listener: &str, wish: Wish, headers: &[(&'static str, &'static str)]) -> u16 {
        let headers =
            headers.iter().map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)));
        let refusal = refusal(access, listener.parse().ok(), wish, &headers.collect());
        refusal.map_or(200, |response| response.status().as_u16())
    }

    #[test]
    fn without_a_token_everybody_reads_and_only_loopback_changes() {
        let open = AdminAccess::default();
        for listener in [LOOPBACK, OUTSIDE] {
            assert_eq!(status(&open, listener, Wish::Read, &[]), 200);
            assert_eq!(status(&open, listener, Wish::Health, &[]), 200);
        }
        assert_eq!(status(&open, LOOPBACK, Wish::Change, &[]), 200);
        assert_eq!(status(&open, "[::1]:9400", Wish::Change, &[]), 200);
        assert_eq!(status(&open, OUTSIDE, Wish::Change, &[]), 403);
        assert_eq!(status(&open, LOOPBACK, Wish::Change, &[("origin", "http://evil.example")]), 403);
    }

    #[test]
    fn the_own_page_is_known_by_a_name_that_always_means_this_machine() {
        let open = AdminAccess::default();
        for (host, origin, expected) in [
            ("localhost:9400", "http://localhost:9400", 200),
            ("127.0.0.1:9400", "http://127.0.0.1:9400", 200),
            ("[::1]:9400", "http://[::1]:9400", 200),
            ("localhost:9400", "http://localhost:8000", 403),
            ("localhost:9400", "http://127.0.0.1:9400", 403),
            ("localhost:9400", "https://localhost:9400", 403),
            ("localhost:9400", "null", 403),
            ("evil.example:9400", "http://evil.example:9400", 403),
            ("127.0.0.1.evil.example", "http://127.0.0.1.evil.example", 403),
            ("me@localhost", "http://me@localhost", 403),
        ] {
            let headers = [("host", host), ("origin", origin)];
            assert_eq!(status(&open, LOOPBACK, Wish::Change, &headers), expected, "{host} {origin}");
            assert_eq!(status(&open, OUTSIDE, Wish::Change, &headers), 403, "{host} {origin}");
        }
    }

    #[test]
    fn the_page_is_open_and_told_what_it_may_change() {
        let token = AdminAccess { token: Some(HeaderValue::from_static("Bearer right")), protect_reads: true };
        assert_eq!(status(&token, OUTSIDE, Wish::Page, &[]), 200);
        let host = |host: &'static str| HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))]);
        let may = |access: &AdminAccess, listener: &str, name| changes(access, listener.parse().ok(), &host(name));
        assert_eq!(may(&token, OUTSIDE, "lb.example"), Changes::Token);
        let open = AdminAccess::default();
        assert_eq!(may(&open, LOOPBACK, "localhost:9400"), Changes::Open);
        assert_eq!(may(&open, LOOPBACK, "lb.example"), Changes::Closed);
        assert_eq!(may(&open, OUTSIDE, "localhost:9400"), Changes::Closed);
    }

    #[test]
    fn with_a_token_changes_need_it_everywhere() {
        let access = AdminAccess { token: Some(HeaderValue::from_static("Bearer right")), protect_reads: false };
        for listener in [LOOPBACK, OUTSIDE] {
            assert_eq!(status(&access, listener, Wish::Read, &[]), 200);
            assert_eq!(status(&access, listener, Wish::Change, &[("authorization", "Bearer right")]), 200);
            for wrong in ["Bearer wrong", "Bearer righ", "Bearer right ", "right", ""] {
                assert_eq!(status(&access, listener, Wish::Change, &[("authorization", wrong)]), 401, "{wrong:?}");
            }
            assert_eq!(status(&access, listener, Wish::Change, &[]), 401);
        }
    }

    #[test]
    fn reads_can_be_protected_and_health_stays_open() {
        let access = AdminAccess { token: Some(HeaderValue::from_static("Bearer right")), protect_reads: true };
        assert_eq!(status(&access, LOOPBACK, Wish::Read, &[]), 401);
        assert_eq!(status(&access, LOOPBACK, Wish::Read, &[("authorization", "Bearer right")]), 200);
        assert_eq!(status(&access, LOOPBACK, Wish::Health, &[]), 200);
    }
}
