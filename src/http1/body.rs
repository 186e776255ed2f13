//! Where a body ends.

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Method, StatusCode};
use pingora::http::{RequestHeader, ResponseHeader};

use super::chunks::{Chunks, Found};
use super::trailers::Trailers;

/// A body that is being read.
#[derive(Debug, Default)]
pub(crate) enum Body {
    /// There is none, or it has come to its end.
    #[default]
    Done,
    /// So many bytes are to come.
    Length(u64),
    /// It comes in chunks.
    Chunks(Chunks),
    /// It ends with the connection.
    UntilClose,
}

/// What bytes that have come mean.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Data of the body: so many bytes stand in front, in place of what was there.
    pub(crate) data_bytes: usize,
    /// How many of the bytes belong to the body, data and framing.
    pub(crate) used_bytes: usize,
    /// The body has come to its end.
    pub(crate) is_end: bool,
    /// What came next is no body as it must be.
    pub(crate) is_faulty: bool,
    /// Fields behind the body, now that its end has come.
    pub(crate) trailers: Option<Trailers>,
}

impl Body {
    /// The body behind a request header of which [`framing`](crate::proxy) has found no fault.
    pub(super) fn of_request(header: &RequestHeader) -> Self {
        if header.headers.contains_key(TRANSFER_ENCODING) {
            return Self::Chunks(Chunks::new());
        }
        match length(&header.headers) {
            None | Some(0) => Self::Done,
            Some(length) => Self::Length(length),
        }
    }

    /// The body behind the header of an answer to a request of this method.
    pub(super) fn of_response(header: &ResponseHeader, method: &Method) -> Self {
        if method == Method::HEAD || matches!(header.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
            return Self::Done;
        }
        if let Some(encoding) = header.headers.get_all(TRANSFER_ENCODING).iter().next_back() {
            return if ends_in_chunks(encoding.as_bytes()) {
                Self::Chunks(Chunks::keeping_trailers())
            } else {
                Self::UntilClose
            };
        }
        match length(&header.headers) {
            None => Self::UntilClose,
            Some(0) => Self::Done,
            Some(length) => Self::Length(length),
        }
    }

    /// Whether it has come to its end.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// Reads on.
    pub(crate) fn decode(&mut self, bytes: &mut [u8]) -> Piece {
        let piece =
            |data_bytes, used_bytes| Piece { data_bytes, used_bytes, is_end: false, is_faulty: false, trailers: None };
        match self {
            Self::Done => Piece { is_end: true, ..piece(0, 0) },
            Self::UntilClose => piece(bytes.len(), bytes.len()),
            Self::Length(left) => {
                let here = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= here as u64;
                let is_end = *left == 0;
                if is_end {
                    *self = Self::Done;
                }
                Piece { is_end, ..piece(here, here) }
            }
            Self::Chunks(chunks) => match chunks.decode(bytes) {
                (data, Found::More) => piece(data, bytes.len()),
                (data, Found::Fault(at)) => Piece { is_faulty: true, ..piece(data, at) },
                (data, Found::End(used)) => match chunks.trailers().map_or(Ok(None), Trailers::parse) {
                    Ok(trailers) => {
                        *self = Self::Done;
                        Piece { is_end: true, trailers, ..piece(data, used) }
                    }
                    Err(_) => Piece { is_faulty: true, ..piece(data, used) },
                },
            },
        }
    }
}

/// The length that a header gives: one number, or the same several times.
fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

/// Whether the last of the encodings is `chunked`.
fn ends_in_chunks(encodings: &[u8]) -> bool {
    let last = encodings.rsplit(|byte| *byte == b',').next().unwrap_or_default();
    last.trim_ascii().eq_ignore_ascii_case(b"chunked")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read of bytes that come in pieces of this size: the data, how much belongs to the body, and the last piece.
    fn read(mut body: Body, bytes: &[u8], size: usize) -> (Vec<u8>, usize, Piece) {
        let (mut data, mut used_bytes, mut last) = (Vec::new(), 0, body.decode(&mut []));
        for piece in bytes.chunks(size) {
            let mut piece = piece.to_vec();
            last = body.decode(&mut piece);
            data.extend_from_slice(&piece[..last.data_bytes]);
            used_bytes += last.used_bytes;
            if last.is_end || last.is_faulty {
                break;
            }
        }
        assert_eq!(body.is_done(), last.is_end);
        (data, used_bytes, last)
    }

    fn of_response(status: u16, fields: &[(&'static str, &'static str)], method: &Method) -> Body {
        let mut header = ResponseHeader::build(status, None).unwrap();
        for (name, value) in fields {
            header.append_header(*name, *value).unwrap();
        }
        Body::of_response(&header, method)
    }

    #[test]
    fn a_body_ends_where_its_header_says() {
        let chunked = b"3\r\nabc\r\n2;x\r\nde\r\n0\r\nX-Sum: 7\r\n\r\nrest";
        for size in 1..chunked.len() {
            let (data, used_bytes, last) = read(Body::Chunks(Chunks::keeping_trailers()), chunked, size);
            assert_eq!((&data[..], used_bytes), (&b"abcde"[..], chunked.len() - 4), "{size}");
            assert_eq!(last.trailers.unwrap().lines(), b"X-Sum: 7\r\n");
            let (data, used_bytes, last) = read(Body::Length(5), b"abcderest", size);
            assert_eq!((&data[..], used_bytes, last.is_end), (&b"abcde"[..], 5, true), "{size}");
            let (data, _, last) = read(Body::UntilClose, b"abcderest", size);
            assert_eq!((&data[..], last.is_end), (&b"abcderest"[..], false), "{size}");
        }
    }

    #[test]
    fn a_fault_comes_behind_what_is_good() {
        let (data, used_bytes, last) = read(Body::Chunks(Chunks::new()), b"3\r\nabc\r\nx", 64);
        assert_eq!((&data[..], used_bytes, last.is_faulty), (&b"abc"[..], 8, true));
        let (data, _, last) = read(Body::Chunks(Chunks::keeping_trailers()), b"1\r\na\r\n0\r\nx y: z\r\n\r\n", 64);
        assert_eq!((&data[..], last.is_faulty, last.is_end), (&b"a"[..], true, false));
    }

    #[test]
    fn an_answer_has_a_body_unless_its_status_or_its_request_says_otherwise() {
        let length = &[("content-length", "5")][..];
        assert!(matches!(of_response(200, length, &Method::GET), Body::Length(5)));
        assert!(matches!(of_response(200, &[], &Method::GET), Body::UntilClose));
        assert!(matches!(of_response(200, &[("transfer-encoding", "gzip, chunked")], &Method::GET), Body::Chunks(_)));
        assert!(matches!(of_response(200, &[("transfer-encoding", "gzip")], &Method::GET), Body::UntilClose));
        for (status, fields, method) in [
            (200, length, Method::HEAD),
            (204, length, Method::GET),
            (304, length, Method::GET),
            (200, &[("content-length", "0")], Method::GET),
            (204, &[("transfer-encoding", "chunked")], Method::GET),
        ] {
            assert!(of_response(status, fields, &method).is_done(), "{status} {fields:?} {method}");
        }
    }
}
