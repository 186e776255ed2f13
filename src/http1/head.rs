//! A header, read from the wire and written to it.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::Version;
use pingora::http::{RequestHeader, ResponseHeader, header_value_from_raw};

use super::inbound::Malformed;

/// No header has more fields.
pub(super) const MAX_FIELDS: usize = 256;

/// No header is longer, in bytes.
pub(super) const MAX_BYTES: usize = (1 << 20) - 1;

/// The length of the header that the bytes begin with, up to its empty line, when that is there. Looks from `from` on, before
/// which there is no end. Line ends in front of a header belong to it.
pub(super) fn end(bytes: &[u8], from: usize) -> Option<usize> {
    let first = bytes.iter().position(|byte| !b"\r\n".contains(byte))?;
    // What ends the last line may have come before.
    let from = from.saturating_sub(3).max(first);
    memchr::memchr_iter(b'\n', &bytes[from..]).map(|at| from + at).find_map(|line_end| match &bytes[line_end + 1..] {
        [b'\n', ..] => Some(line_end + 2),
        [b'\r', b'\n', ..] => Some(line_end + 3),
        _ => None,
    })
}

/// Whether these may be the first bytes of a request header that is to go on.
pub(super) fn may_begin_request(bytes: &[u8]) -> bool {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    httparse::Request::new(&mut []).parse_with_uninit_headers(bytes, &mut fields).is_ok()
}

/// Reads a whole request header.
///
/// # Errors
/// When it is none.
pub(super) fn request(bytes: &Bytes) -> Result<Box<RequestHeader>, Malformed> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut parsed = httparse::Request::new(&mut []);
    let status = parsed.parse_with_uninit_headers(bytes, &mut fields).map_err(Malformed::because)?;
    let (true, Some(method), Some(target)) = (status.is_complete(), parsed.method, parsed.path) else {
        return Err(Malformed::because("it does not end where it should"));
    };
    // For looking up: what goes on is written from the bytes.
    let header = RequestHeader::build_no_case(method, target.as_bytes(), Some(parsed.headers.len()));
    let mut header = Box::new(header.map_err(Malformed::because)?);
    header.set_version(if parsed.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 });
    for field in &*parsed.headers {
        let (name, value) = (bytes.slice_ref(field.name.as_bytes()), bytes.slice_ref(field.value));
        header.append_header(name, header_value_from_raw(value)).map_err(Malformed::because)?;
    }
    Ok(header)
}

/// Whether these may be the first bytes of a response header that is to go on.
pub(super) fn may_begin_response(bytes: &[u8]) -> bool {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut []);
    lenient().parse_response_with_uninit_headers(&mut response, bytes, &mut fields).is_ok()
}

/// Servers may do what clients may not: blanks behind a field's name, and values over several lines.
fn lenient() -> httparse::ParserConfig {
    let mut parser = httparse::ParserConfig::default();
    parser.allow_spaces_after_header_name_in_responses(true);
    parser.allow_obsolete_multiline_headers_in_responses(true);
    parser
}

/// Reads a whole response header.
///
/// # Errors
/// When it is none.
pub(super) fn response(bytes: &Bytes) -> Result<Box<ResponseHeader>, Malformed> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut []);
    let status = lenient().parse_response_with_uninit_headers(&mut parsed, bytes, &mut fields);
    let status = status.map_err(Malformed::because)?;
    let (true, Some(code)) = (status.is_complete(), parsed.code) else {
        return Err(Malformed::because("it does not end where it should"));
    };
    // For looking up: what goes on is written from the bytes, as a rule.
    let is_folded = parsed.headers.iter().any(|field| field.value.contains(&b'\n'));
    let header = if is_folded { ResponseHeader::build } else { ResponseHeader::build_no_case };
    let mut header = Box::new(header(code, Some(parsed.headers.len())).map_err(Malformed::because)?);
    header.set_version(if parsed.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 });
    header.set_reason_phrase(parsed.reason).map_err(Malformed::because)?;
    for field in &*parsed.headers {
        let (name, value) = (bytes.slice_ref(field.name.as_bytes()), bytes.slice_ref(field.value));
        header.append_header(name, header_value_from_raw(value)).map_err(Malformed::because)?;
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_header_ends_behind_its_empty_line() {
        for (bytes, length) in [
            ("GET / HTTP/1.1\r\n\r\nrest", Some(18)),
            ("\r\n\nGET / HTTP/1.1\r\na: b\r\n\r\n", Some(27)),
            ("GET / HTTP/1.1\n\nrest", Some(16)),
            ("GET / HTTP/1.1\r\n\nrest", Some(17)),
            ("GET / HTTP/1.1\n\r\nrest", Some(17)),
            ("GET / HTTP/1.1\r\na: b\r\n\r", None),
            ("GET / HTTP/1.1\r\na: b\r\n", None),
            ("\r\n\r\n", None),
            ("", None),
        ] {
            assert_eq!(end(bytes.as_bytes(), 0), length, "{bytes:?}");
        }
    }

    #[test]
    fn fields_are_read() {
        let text = "POST /a?b=\u{e9} HTTP/1.1\r\nHost: a\r\nX-oDD: \u{e9} 1 \r\nx-odd:2\r\nEmpty:\r\n\r\n";
        let header = request(&Bytes::from(text)).unwrap();
        assert_eq!((header.method.as_str(), header.raw_path()), ("POST", "/a?b=\u{e9}".as_bytes()));
        let values: Vec<_> = header.headers.get_all("x-odd").iter().map(|value| value.as_bytes()).collect();
        assert_eq!(values, ["\u{e9} 1".as_bytes(), b"2"]);
        let text = "HTTP/1.0 299 Very Fine\r\nX-oDD: 1\r\nset-cookie: a\r\nset-cookie: b\r\n\r\n";
        let header = response(&Bytes::from(text)).unwrap();
        assert_eq!(header.version, Version::HTTP_10);
        assert_eq!((header.get_reason_phrase(), &header.headers["x-odd"]), (Some("Very Fine"), &"1".parse().unwrap()));
        assert_eq!(header.headers.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn servers_may_do_what_clients_may_not() {
        let fields = "X-A : 1\r\nX-B: 2\r\n 3\r\n\r\n";
        let header = response(&Bytes::from(format!("HTTP/1.1 200 OK\r\n{fields}"))).unwrap();
        assert_eq!((&header.headers["x-a"], &header.headers["x-b"]), (&"1".parse().unwrap(), &"2 3".parse().unwrap()));
        assert!(request(&Bytes::from(format!("GET / HTTP/1.1\r\n{fields}"))).is_err());
    }

    #[test]
    fn what_is_no_header_is_malformed() {
        for text in [
            "GET  / HTTP/1.1\r\n\r\n",
            "GET /a b HTTP/1.1\r\n\r\n",
            "GET / HTTP/2.0\r\n\r\n",
            "GET /\r\n\r\n",
            "GET / HTTP/1.1\r\nbad field\r\n\r\n",
            "GET / HTTP/1.1\r\na: \0\r\n\r\n",
            "G\u{e9}T / HTTP/1.1\r\n\r\n",
            "\u{16}\u{3}\u{1}\n\n",
        ] {
            let bytes = Bytes::from(text);
            assert_eq!(end(&bytes, 0), Some(bytes.len()), "{text:?}");
            assert!(request(&bytes).is_err(), "{text:?}");
        }
        let many = |count: usize| Bytes::from(format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(count)));
        assert!(request(&many(MAX_FIELDS)).is_ok());
        assert!(request(&many(MAX_FIELDS + 1)).is_err());
    }

    #[test]
    fn what_cannot_become_a_header_is_seen_before_its_end() {
        assert!(may_begin_request(b"POST /v1/chat/completions HT") && may_begin_request(b"\r\nP"));
        assert!(!may_begin_request(b"\x16\x03\x01") && !may_begin_request(b"GET / HTTP/1.1\r\nbad field"));
        assert!(may_begin_response(b"HTTP/1.1 200 O") && !may_begin_response(b"SSH-2.0-OpenSSH_9.2\r\n"));
    }

    proptest! {
        #[test]
        fn where_it_was_cut_does_not_matter(text in "[\r\na:]{0,30}", cut in 0..30_usize) {
            let bytes = text.as_bytes();
            let first = &bytes[..cut.min(bytes.len())];
            let found = end(first, 0).or_else(|| end(bytes, first.len()));
            prop_assert_eq!(found, end(bytes, 0));
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..80), rest in "[ -~\r\n]{0,60}") {
            for bytes in [bytes.clone(), [b"GET / HTTP/1.1\r\n", &bytes[..]].concat(), rest.into_bytes()] {
                let whole = Bytes::from([&bytes[..], b"\r\n\r\n"].concat());
                let _any = (may_begin_request(&bytes), may_begin_response(&bytes), request(&whole), response(&whole));
            }
        }
    }
}
