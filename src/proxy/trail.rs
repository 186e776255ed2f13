//! Follows the answers on a connection to a server as they arrive, for the trailers that Pingora reads over.
//!
//! Only bodies in chunks have trailers; anything else is not looked at. As little is kept as possible: a header until it
//! is whole, and what stands behind the last chunk.

use std::mem::MaybeUninit;
use std::sync::Arc;

use http::header::TRANSFER_ENCODING;
use parking_lot::Mutex;

use super::chunks::{Chunks, Found};
use super::follow::{MAX_FIELDS, take_header};
use super::trailers::Trailers;

/// The answers on one connection; shared by the stream that they come from and the request that is served from it.
#[derive(Debug, Clone, Default)]
pub(super) struct Trail(Arc<Mutex<Follower>>);

impl Trail {
    /// The next answer is to a request that has just been given this connection.
    pub(super) fn begin(&self, is_head: bool) {
        *self.0.lock() = Follower { at: At::Header(Vec::new()), is_head, trailers: None };
    }

    /// Bytes have come from the server.
    ///
    /// # Errors
    /// When they are no answer as it must be: how many of them may be one. Nothing behind those can be trusted.
    pub(super) fn read(&self, bytes: &[u8]) -> Result<(), usize> {
        self.0.lock().read(bytes)
    }

    /// The trailers of the present answer, now that its end has come. They are given once.
    pub(super) fn take(&self) -> Option<Trailers> {
        self.0.lock().trailers.take()
    }
}

#[derive(Debug, Default)]
struct Follower {
    at: At,
    /// Whether the answer is one to `HEAD`, which has no body.
    is_head: bool,
    trailers: Option<Trailers>,
}

#[derive(Debug, Default)]
enum At {
    /// Within a header, of which this has come.
    Header(Vec<u8>),
    Chunks(Chunks),
    /// Where there are no trailers: between answers, in a body of another kind, or in what is no HTTP/1.
    #[default]
    Elsewhere,
}

impl Follower {
    fn read(&mut self, bytes: &[u8]) -> Result<(), usize> {
        let mut position = 0;
        while position < bytes.len() {
            let rest = &bytes[position..];
            match &mut self.at {
                At::Header(header) => {
                    let (length, is_whole) = take_header(header, rest);
                    position += length;
                    if is_whole {
                        self.at = behind(header, self.is_head);
                    }
                }
                At::Chunks(chunks) => match chunks.read(rest) {
                    Found::More => return Ok(()),
                    Found::Fault(at) => return Err(position + at),
                    Found::End(length) => {
                        let section = chunks.trailers().unwrap_or_default();
                        // Pingora does not look at them; without its last byte the answer is none to it.
                        self.trailers = Trailers::parse(section).map_err(|_| position + length - 1)?;
                        self.at = At::Elsewhere;
                    }
                },
                At::Elsewhere => return Ok(()),
            }
        }
        Ok(())
    }
}

/// What follows a header. What is ambiguous there is not relayed (see `response`), whatever this makes of it.
fn behind(header: &[u8], is_head: bool) -> At {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut []);
    // As lenient as Pingora.
    let mut parser = httparse::ParserConfig::default();
    parser.allow_spaces_after_header_name_in_responses(true);
    parser.allow_obsolete_multiline_headers_in_responses(true);
    let parsed = parser.parse_response_with_uninit_headers(&mut response, header, &mut fields);
    if !parsed.is_ok_and(|status| status.is_complete()) {
        return At::Elsewhere;
    }
    match response.code {
        Some(101 | 204 | 304) | None => At::Elsewhere,
        Some(100..=199) => At::Header(Vec::new()),
        Some(_) if is_head => At::Elsewhere,
        Some(_) => {
            let mut encodings = response.headers.iter();
            let is_chunked = encodings
                .rfind(|field| field.name.eq_ignore_ascii_case(TRANSFER_ENCODING.as_str()))
                .is_some_and(|field| ends_in_chunks(field.value));
            if is_chunked { At::Chunks(Chunks::keeping_trailers()) } else { At::Elsewhere }
        }
    }
}

/// Whether the last of the encodings is `chunked`.
fn ends_in_chunks(encodings: &[u8]) -> bool {
    let last = encodings.rsplit(|byte| *byte == b',').next().unwrap_or_default();
    last.trim_ascii().eq_ignore_ascii_case(b"chunked")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    const WHOLE: &str = "HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n\
                         5\r\n0\r\n\r\n\r\n0\r\nX-Sum: 7\r\nhost: a\r\n\r\n";

    fn begun(is_head: bool) -> Trail {
        let trail = Trail::default();
        trail.begin(is_head);
        trail
    }

    /// The trailers of a whole answer, as lines.
    fn taken(trail: &Trail) -> Option<String> {
        trail.take().map(|trailers| String::from_utf8(trailers.lines()).unwrap())
    }

    #[test]
    fn trailers_are_there_when_the_last_byte_is() {
        let (trail, last) = (begun(false), WHOLE.len() - 1);
        trail.read(&WHOLE.as_bytes()[..last]).unwrap();
        assert_eq!(taken(&trail), None);
        trail.read(&WHOLE.as_bytes()[last..]).unwrap();
        assert_eq!(taken(&trail).as_deref(), Some("X-Sum: 7\r\n"));
        assert_eq!(taken(&trail), None, "once");
    }

    #[test]
    fn the_next_answer_has_its_own() {
        let trail = begun(false);
        trail.read(WHOLE.as_bytes()).unwrap();
        trail.begin(false);
        trail.read(format!("{CHUNKED}0\r\n\r\n").as_bytes()).unwrap();
        assert_eq!(taken(&trail), None);
        trail.begin(false);
        trail.read(WHOLE.as_bytes()).unwrap();
        assert_eq!(taken(&trail).as_deref(), Some("X-Sum: 7\r\n"));
    }

    #[test]
    fn answers_without_chunks_have_none() {
        let chunks = "0\r\nx: y\r\n\r\n";
        for header in [
            "HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, gzip\r\n\r\n",
            "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        ] {
            let trail = begun(false);
            assert_eq!(trail.read(format!("{header}{chunks}").as_bytes()), Ok(()), "{header:?}");
            assert_eq!(taken(&trail), None, "{header:?}");
        }
        let trail = begun(true);
        assert_eq!(trail.read(format!("{CHUNKED}{chunks}").as_bytes()), Ok(()), "an answer to HEAD");
        assert_eq!(taken(&trail), None);
        assert_eq!(Trail::default().read(b"what comes between answers"), Ok(()));
    }

    #[test]
    fn a_fault_says_what_is_still_good() {
        for (body, good) in
            [("2\r\nabc", 5), ("\r\n\r\n", 0), ("0\r\nx\r\n\r\n", 7), ("0\r\nx : y\r\n\r\n", 11), ("0\r\nx: y\n", 7)]
        {
            let trail = begun(false);
            assert_eq!(trail.read(format!("{CHUNKED}{body}").as_bytes()), Err(CHUNKED.len() + good), "{body:?}");
            let trail = begun(false);
            trail.read(CHUNKED.as_bytes()).unwrap();
            assert_eq!(trail.read(body.as_bytes()), Err(good), "{body:?}");
            assert_eq!(taken(&trail), None, "{body:?}");
        }
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(sizes in prop::collection::vec(1..40_usize, 1..9)) {
            let (trail, mut rest) = (begun(false), WHOLE.as_bytes());
            for size in sizes.iter().cycle() {
                let (piece, later) = rest.split_at((*size).min(rest.len()));
                prop_assert_eq!(trail.read(piece), Ok(()));
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(taken(&trail), Some("X-Sum: 7\r\n".to_owned()));
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let trail = begun(false);
            trail.read(CHUNKED.as_bytes()).unwrap();
            let good = trail.read(&bytes).err().unwrap_or(bytes.len());
            prop_assert!(good <= bytes.len());
        }
    }
}
