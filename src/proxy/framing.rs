//! Requests whose end two parties may see in different places are refused (request smuggling, RFC 9112 section 11.2).
//!
//! Pingora refuses most of them; it would repair these, and no repaired request is worth the doubt. vLLM refuses them
//! too.

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, Version};
use pingora::http::RequestHeader;

use super::reject::Reject;

/// What is wrong with a header, given also as the bytes that came (empty for HTTP/2, where framing is not text).
pub(super) fn fault(header: &RequestHeader, raw: &[u8]) -> Option<Reject> {
    if !has_one_host(header) {
        return Some(Reject::BadHost);
    }
    let is_ambiguous = has_lone_line_feed(raw)
        || (header.headers.contains_key(TRANSFER_ENCODING)
            && (!is_plainly_chunked(&header.headers) || names_content_length(raw)))
        || !has_plain_length(&header.headers);
    is_ambiguous.then_some(Reject::BadFraming)
}

/// Whether there is exactly one `Host`, as HTTP/1.1 demands (RFC 9112, section 3.2). Other versions do not need it.
fn has_one_host(header: &RequestHeader) -> bool {
    let hosts = header.headers.get_all(HOST).iter().count();
    hosts == 1 || (hosts == 0 && header.version != Version::HTTP_11)
}

/// A line that ends without a carriage return: some parsers end it there, some do not.
fn has_lone_line_feed(raw: &[u8]) -> bool {
    raw.iter().enumerate().any(|(at, byte)| *byte == b'\n' && (at == 0 || raw[at - 1] != b'\r'))
}

/// `Transfer-Encoding: chunked` and nothing else: the body is then what is between the chunk sizes.
fn is_plainly_chunked(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = encodings.next().is_some_and(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"chunked"));
    is_chunked && encodings.next().is_none()
}

/// No `Content-Length`, or one that is a number and nothing else (`5, 5` is not).
fn has_plain_length(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let is_plain =
        lengths.next().is_none_or(|length| !length.is_empty() && length.as_bytes().iter().all(u8::is_ascii_digit));
    is_plain && lengths.next().is_none()
}

/// Whether the client sent a `Content-Length`: beside a `Transfer-Encoding` Pingora has taken it out of the header.
fn names_content_length(raw: &[u8]) -> bool {
    let name = CONTENT_LENGTH.as_str().as_bytes();
    raw.split(|byte| *byte == b'\n')
        .any(|line| line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault_of(version: Version, lines: &[(&'static str, &str)]) -> Option<Reject> {
        let mut header = RequestHeader::build("POST", b"/", None).unwrap();
        header.set_version(version);
        let mut raw = String::from("POST / HTTP/1.1\r\n");
        for (name, value) in lines {
            header.append_header(*name, *value).unwrap();
            raw += &format!("{name}: {value}\r\n");
        }
        // As Pingora does.
        if header.headers.contains_key(TRANSFER_ENCODING) {
            header.remove_header(&CONTENT_LENGTH);
        }
        fault(&header, format!("{raw}\r\n").as_bytes())
    }

    #[test]
    fn plain_requests_pass() {
        for lines in [
            &[("Host", "a")][..],
            &[("Host", "a"), ("Content-Length", "5")],
            &[("Host", "a"), ("Transfer-Encoding", "Chunked"), ("x-content-length", "5")],
        ] {
            assert_eq!(fault_of(Version::HTTP_11, lines), None, "{lines:?}");
        }
        assert_eq!(fault_of(Version::HTTP_10, &[]), None);
        assert_eq!(fault_of(Version::HTTP_2, &[]), None);
    }

    #[test]
    fn a_body_framed_in_two_ways_is_refused() {
        for lines in [
            &[("Host", "a"), ("content-LENGTH", "5"), ("Transfer-Encoding", "chunked")][..],
            &[("Host", "a"), ("Transfer-Encoding", "chunked"), ("Content-Length", "0")],
            &[("Host", "a"), ("Transfer-Encoding", "gzip, chunked")],
            &[("Host", "a"), ("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "chunked")],
            &[("Host", "a"), ("Content-Length", "5"), ("Content-Length", "5")],
            &[("Host", "a"), ("Content-Length", "5, 5")],
            &[("Host", "a"), ("Content-Length", "")],
        ] {
            assert_eq!(fault_of(Version::HTTP_11, lines), Some(Reject::BadFraming), "{lines:?}");
        }
    }

    #[test]
    fn a_line_without_a_carriage_return_is_refused() {
        let mut header = RequestHeader::build("GET", b"/", None).unwrap();
        header.insert_header("host", "a").unwrap();
        assert_eq!(fault(&header, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"), None);
        for raw in [&b"GET / HTTP/1.1\nHost: a\r\n\r\n"[..], b"GET / HTTP/1.1\r\nHost: a\r\n\n", b"\nGET / HTTP/1.1"] {
            assert_eq!(fault(&header, raw), Some(Reject::BadFraming), "{}", raw.escape_ascii());
        }
    }

    #[test]
    fn http_1_1_needs_exactly_one_host() {
        assert_eq!(fault_of(Version::HTTP_11, &[]), Some(Reject::BadHost));
        assert_eq!(fault_of(Version::HTTP_11, &[("Host", "a"), ("Host", "a")]), Some(Reject::BadHost));
    }
}
