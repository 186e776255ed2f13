//! Requests whose end two parties may see in different places are refused (request smuggling, RFC 9112 section 11.2).
//!
//! Many could be repaired, but no repaired request is worth the doubt. vLLM refuses them too.

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, Version};
use pingora::http::RequestHeader;
use pingora::protocols::http::authority::validate_request_authority;

use super::reject::Reject;

/// What is wrong with a header, given also as the bytes that came (empty for HTTP/2, where framing is not text).
pub(super) fn fault(header: &RequestHeader, raw: &[u8]) -> Option<Reject> {
    if !has_one_host(header) || validate_request_authority(header).is_err() {
        return Some(Reject::BadHost);
    }
    let is_ambiguous = has_lone_line_feed(raw)
        || (header.headers.contains_key(TRANSFER_ENCODING) && !is_plainly_chunked(header))
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

/// `Transfer-Encoding: chunked` and nothing else, also no length, and not in HTTP/1.0, which knows no chunks: the body is
/// then what is between the chunk sizes.
fn is_plainly_chunked(header: &RequestHeader) -> bool {
    let mut encodings = header.headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = encodings.next().is_some_and(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"chunked"));
    let is_alone = encodings.next().is_none() && !header.headers.contains_key(CONTENT_LENGTH);
    is_chunked && is_alone && header.version != Version::HTTP_10
}

/// No `Content-Length`, or one that is a number and nothing else (`5, 5` is not, nor one beyond 64 bits).
fn has_plain_length(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u64>().is_ok();
    let is_plain = lengths.next().is_none_or(|length| length.to_str().is_ok_and(is_number));
    is_plain && lengths.next().is_none()
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
            &[("Host", "a"), ("Content-Length", "99999999999999999999")],
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
