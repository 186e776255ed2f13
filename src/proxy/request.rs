//! The request header: what goes on to the server.

use http::header::{AUTHORIZATION, CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method, Version};
use pingora::Result;
use pingora::http::RequestHeader;
use pingora::proxy::Session;

use super::context::RequestContext;
use super::{guard, traced};
use crate::upstream::Server;

/// Identifies a request in the logs of client, gateway and server. vLLM puts it into the `id` of its answer.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Anthropic's way of sending a key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// A longer id of a client's is replaced: vLLM repeats it in every event of a stream.
const LONGEST_REQUEST_ID: usize = 128;

/// Prepares the header for the chosen server. Pingora has taken the hop-by-hop headers out already.
pub(super) fn prepare(session: &mut Session, request: &mut RequestHeader, ctx: &RequestContext) -> Result<()> {
    if let Some(server) = &ctx.server {
        guard::tell_origin(session, request, ctx)?;
        address_to(server, request, ctx)?;
    }
    // The body is here, whole: nobody needs to be asked whether to send it, and its length is known.
    request.remove_header(&EXPECT);
    request.remove_header(&TRANSFER_ENCODING);
    if (ctx.request_bytes > 0 || carries_body(&session.req_header().method)) && !says_length(request, ctx.request_bytes)
    {
        request.insert_header(CONTENT_LENGTH, ctx.request_bytes)?;
    }
    Ok(())
}

/// Addresses a request to a server: host, credentials, request id; and takes out what is not for servers.
pub(super) fn address_to(server: &Server, request: &mut RequestHeader, ctx: &RequestContext) -> Result<()> {
    request.insert_header(HOST, server.host_header())?;
    if let Some(request_id) = &ctx.request_id {
        request.insert_header(REQUEST_ID, request_id)?;
    }
    for name in &ctx.config().strip_request_headers {
        request.remove_header(name);
    }
    traced::tell(request, ctx)?;
    if let Some(key) = server.authorization().or(ctx.config().upstream_authorization.as_ref()) {
        request.insert_header(AUTHORIZATION, key)?;
        request.remove_header(&X_API_KEY);
    }
    to_origin_form(request)
}

/// Whether the client has said how long the body is, in one field and in the usual way.
fn says_length(request: &RequestHeader, bytes: u64) -> bool {
    let mut lengths = request.headers.get_all(CONTENT_LENGTH).iter();
    let said = lengths.next().and_then(|length| length.to_str().ok());
    lengths.next().is_none()
        && said.is_some_and(|length| length.parse() == Ok(bytes) && !length.starts_with(['+', '0']))
}

/// Methods whose requests always say how long their body is.
fn carries_body(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}

/// `GET http://gateway/v1/models` goes on as `GET /v1/models`: the authority was the gateway's.
fn to_origin_form(request: &mut RequestHeader) -> Result<()> {
    if request.raw_path().starts_with(b"/") || request.raw_path() == b"*" {
        return Ok(());
    }
    let path = request.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
    request.set_raw_path(path.as_bytes())
}

/// The client's id when it is one that can be passed on, else a new one.
pub(super) fn request_id(header: &RequestHeader) -> HeaderValue {
    match header.headers.get(REQUEST_ID) {
        Some(id) if is_good_request_id(id.as_bytes()) => id.clone(),
        _ => {
            let id = format!("{:032x}", rand::random::<u128>());
            HeaderValue::try_from(id).expect("hexadecimal digits are legal in a header")
        }
    }
}

fn is_good_request_id(id: &[u8]) -> bool {
    (1..=LONGEST_REQUEST_ID).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

/// Whether the client waits for `100 Continue` before it sends the body.
pub(super) fn expects_continue(header: &RequestHeader) -> bool {
    header.version >= Version::HTTP_11
        && header.headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_with(name: &'static str, value: &[u8]) -> RequestHeader {
        let mut header = RequestHeader::build(Method::GET, b"/", None).unwrap();
        header.insert_header(name, HeaderValue::from_bytes(value).unwrap()).unwrap();
        header
    }

    #[test]
    fn a_clients_request_id_is_kept() {
        assert_eq!(request_id(&header_with("x-request-id", b"abc-123")), "abc-123");
    }

    #[test]
    fn a_request_id_that_is_too_long_or_not_plain_is_replaced() {
        for id in [&b"x".repeat(129)[..], b"with blank", b"caf\xe9", b""] {
            let made = request_id(&header_with("x-request-id", id));
            assert_eq!(made.len(), 32, "{}", id.escape_ascii());
            assert_ne!(made.as_bytes(), id);
        }
    }

    #[test]
    fn made_request_ids_differ() {
        let header = RequestHeader::build(Method::GET, b"/", None).unwrap();
        assert_ne!(request_id(&header), request_id(&header));
    }

    #[test]
    fn a_length_is_kept_only_when_it_is_right_and_said_once_in_the_usual_way() {
        for (said, bytes, is_kept) in [
            (&["12"][..], 12, true),
            (&["12"], 13, false),
            (&["012"], 12, false),
            (&["+12"], 12, false),
            (&[" 12"], 12, false),
            (&["12", "12"], 12, false),
            (&["x"], 0, false),
            (&[], 12, false),
        ] {
            let mut header = RequestHeader::build(Method::POST, b"/", None).unwrap();
            for length in said {
                header.append_header(CONTENT_LENGTH, *length).unwrap();
            }
            assert_eq!(says_length(&header, bytes), is_kept, "{said:?} {bytes}");
        }
    }

    #[test]
    fn an_absolute_target_becomes_a_path() {
        for (target, path) in [
            (&b"http://gateway:8000/v1/models?x=1"[..], &b"/v1/models?x=1"[..]),
            (b"http://gateway", b"/"),
            (b"/v1/models", b"/v1/models"),
            (b"*", b"*"),
        ] {
            let mut header = RequestHeader::build(Method::OPTIONS, target, None).unwrap();
            to_origin_form(&mut header).unwrap();
            assert_eq!(header.raw_path(), path);
        }
    }
}
