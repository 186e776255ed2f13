//! The request header: what goes on to the server.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{HeaderName, HeaderValue, Method, Version};
use pingora::Result;
use pingora::http::RequestHeader;

use super::client::Client;
use super::context::RequestContext;
use super::{guard, hop_by_hop, traced};
use crate::http1::{Asked, Changes, fields};
use crate::upstream::Server;

/// Identifies a request in the logs of client, gateway and server. vLLM puts it into the `id` of its answer.
pub(super) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A longer id of a client's is replaced: vLLM repeats it in every event of a stream.
const LONGEST_REQUEST_ID: usize = 128;

/// The request as it goes to a server, with this body.
///
/// # Errors
/// When the client's header cannot be passed on.
pub(super) fn prepare(client: &mut Client<'_>, ctx: &RequestContext, server: &Server, body: Bytes) -> Result<Asked> {
    let (request, raw, origin) = client.request_and_origin();
    let told = guard::told(request, origin, ctx);
    let named = hop_by_hop::named(&request.headers)?;
    let mut changes = hop_by_hop::without(&named);
    guard::tell(&told, &mut changes, ctx);
    let length = body.len() as u64;
    if !says_length(request, length) || named.contains(&CONTENT_LENGTH) {
        if length > 0 || carries_body(&request.method) {
            changes.set("content-length", length.to_string().into_bytes());
        } else {
            changes.remove("content-length");
        }
    }
    address_to(server, &mut changes, ctx);
    let target = origin_form(request);
    Ok(match raw {
        [] => {
            let fields = request.headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
            Asked::new(&request.method, target, fields, &changes, body)
        }
        raw => Asked::new(&request.method, target, fields(raw), &changes, body),
    })
}

/// Addresses a request to a server: host, credentials, request id; and takes out what is not for servers.
fn address_to<'a>(server: &'a Server, changes: &mut Changes<'a>, ctx: &'a RequestContext) {
    changes.set("host", server.host_header().as_bytes());
    if let Some(request_id) = &ctx.request_id {
        changes.set(REQUEST_ID.as_str(), request_id.as_bytes());
    }
    for name in &ctx.config().strip_request_headers {
        changes.remove(name.as_str());
    }
    traced::tell(changes, ctx);
    if let Some(key) = server.authorization().or(ctx.config().upstream_authorization.as_ref()) {
        changes.set("authorization", key.as_bytes());
        changes.remove("x-api-key");
    }
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
fn origin_form(request: &RequestHeader) -> &[u8] {
    let target = request.raw_path();
    if target.starts_with(b"/") || target == b"*" {
        return target;
    }
    request.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).as_bytes()
}

/// The client's id when it is one that can be passed on, else a new one.
pub(super) fn request_id(header: &RequestHeader) -> HeaderValue {
    match header.headers.get(&REQUEST_ID) {
        Some(id) if is_good_request_id(id.as_bytes()) => id.clone(),
        _ => new_request_id(),
    }
}

/// An id for a request that has none.
pub(super) fn new_request_id() -> HeaderValue {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let random: u128 = rand::random();
    let id: [u8; 32] = std::array::from_fn(|place| DIGITS[(random >> (4 * place)) as usize & 0xf]);
    HeaderValue::from_bytes(&id).expect("hexadecimal digits are legal in a header")
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
            let header = RequestHeader::build(Method::OPTIONS, target, None).unwrap();
            assert_eq!(origin_form(&header), path);
        }
    }
}
