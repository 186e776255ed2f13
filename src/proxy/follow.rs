//! Follows the requests on an HTTP/1 connection as they arrive, to see what Pingora reads over in chunked bodies.
//!
//! A client may send requests ahead, so the bytes that Pingora has read may belong to later requests than the one it
//! is at. Both are counted.

use std::mem::MaybeUninit;
use std::sync::Arc;

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use parking_lot::Mutex;

use super::chunks::{Chunks, Found};

/// Pingora reads no more header fields than this.
pub(super) const MAX_FIELDS: usize = 256;

/// The requests of one connection; shared by the stream that they come from and the proxy.
#[derive(Debug, Clone, Default)]
pub(super) struct Followed(Arc<Mutex<Follower>>);

impl Followed {
    /// Bytes have come from the client.
    pub(super) fn read(&self, bytes: &[u8]) {
        self.0.lock().read(bytes);
    }

    /// Pingora has read the header of the next request.
    pub(super) fn next_request(&self) {
        self.0.lock().current += 1;
    }

    /// Whether the body of the present request has a fault, as far as it has come.
    pub(super) fn has_fault(&self) -> bool {
        let follower = self.0.lock();
        follower.fault.is_some_and(|request| request <= follower.current)
    }

    /// Whether the present request has come to its end here, too, now that Pingora has found its end.
    pub(super) fn is_over(&self) -> bool {
        let follower = self.0.lock();
        follower.ended >= follower.current
    }

    /// Whether more than the present request has been read.
    pub(super) fn is_ahead(&self) -> bool {
        let follower = self.0.lock();
        let is_lost = matches!(follower.at, At::Lost);
        is_lost || follower.ended > follower.current || (follower.ended == follower.current && follower.has_begun)
    }

    /// What is to be done about the next read.
    pub(super) fn may_read(&self) -> MayRead {
        let follower = self.0.lock();
        match follower.fault {
            None => MayRead::Yes,
            Some(request) if request <= follower.current => MayRead::Never,
            Some(_) => MayRead::Later,
        }
    }
}

/// Whether more is read from a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MayRead {
    /// All is well.
    Yes,
    /// A request that is still to be served has a fault, and nothing behind that can be trusted.
    Later,
    /// The present request has a fault.
    Never,
}

#[derive(Debug, Default)]
struct Follower {
    at: At,
    /// Requests that Pingora has read the headers of.
    current: u64,
    /// Requests whose end has come.
    ended: u64,
    /// Whether anything has come behind the last end, be it only a line end.
    has_begun: bool,
    /// The number, from 1, of the request whose body has a fault.
    fault: Option<u64>,
}

#[derive(Debug)]
enum At {
    /// Within a header, of which this has come.
    Header(Vec<u8>),
    /// Within a body, with so many bytes to come.
    Length(u64),
    Chunks(Chunks),
    /// Behind what is no HTTP/1, or has a fault. Pingora reads no further either.
    Lost,
}

impl Default for At {
    fn default() -> Self {
        Self::Header(Vec::new())
    }
}

impl Follower {
    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let used = match &mut self.at {
                At::Header(header) => {
                    let (length, is_whole) = take_header(header, bytes);
                    if is_whole {
                        self.at = body_behind(header);
                    }
                    length
                }
                At::Length(left) => {
                    let length = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                    *left -= length as u64;
                    length
                }
                At::Chunks(chunks) => match chunks.read(bytes) {
                    Found::More => bytes.len(),
                    Found::End(length) => {
                        self.at = At::Length(0);
                        length
                    }
                    Found::Fault(_) => {
                        self.fault = Some(self.ended + 1);
                        self.at = At::Lost;
                        return;
                    }
                },
                At::Lost => return,
            };
            bytes = &bytes[used..];
            self.has_begun = true;
            if matches!(self.at, At::Length(0)) {
                self.ended += 1;
                self.has_begun = false;
                self.at = At::default();
            }
        }
    }
}

/// Adds bytes to a header up to its end; how many, and whether the end is there.
pub(super) fn take_header(header: &mut Vec<u8>, bytes: &[u8]) -> (usize, bool) {
    // Line ends in front of a message are skipped, as Pingora does.
    let skipped = if header.is_empty() { bytes.iter().take_while(|byte| b"\r\n".contains(byte)).count() } else { 0 };
    let bytes_of_header = &bytes[skipped..];
    for line_end in memchr::memchr_iter(b'\n', bytes_of_header) {
        let (before, here) = (&**header, &bytes_of_header[..line_end]);
        // The last two bytes in front of this line end; of a header that came in pieces they may be among what came before.
        let back = |distance: usize| match here.len().checked_sub(distance) {
            Some(place) => Some(here[place]),
            None => before.len().checked_sub(distance - here.len()).map(|place| before[place]),
        };
        if back(1) == Some(b'\n') || (back(1) == Some(b'\r') && back(2) == Some(b'\n')) {
            header.extend_from_slice(&bytes_of_header[..=line_end]);
            return (skipped + line_end + 1, true);
        }
    }
    header.extend_from_slice(bytes_of_header);
    (bytes.len(), false)
}

/// What follows a header. What is ambiguous there is refused before the body matters (see `framing`).
fn body_behind(header: &[u8]) -> At {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut []);
    // Blanks and control characters in a target are let through by Pingora; what is of interest stands behind it.
    let Some(first_line) = header.iter().position(|byte| *byte == b'\n') else { return At::Lost };
    let whole = [b"GET / HTTP/1.1\r\n", &header[first_line + 1..]].concat();
    if !request.parse_with_uninit_headers(&whole, &mut fields).is_ok_and(|status| status.is_complete()) {
        return At::Lost;
    }
    let named = |name: &str| request.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
    if named(TRANSFER_ENCODING.as_str()).is_some() {
        return At::Chunks(Chunks::new());
    }
    match named(CONTENT_LENGTH.as_str()) {
        None => At::Length(0),
        Some(field) => {
            let length = std::str::from_utf8(field.value).ok().and_then(|value| value.trim().parse().ok());
            length.map_or(At::Lost, At::Length)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const SIZED: &str = "\r\nPOST /a b HTTP/1.1\r\nHost: a\r\ncontent-length:  5 \r\n\r\n\r\n\r\n\n";
    const CHUNKED: &str =
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\r\n\r\n0\r\nx: y\r\n\r\n";
    const FAULTY: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;\nab\r\n0\r\n\r\n";

    fn followed(text: &str) -> Followed {
        let followed = Followed::default();
        followed.read(text.as_bytes());
        followed
    }

    fn ended(followed: &Followed) -> u64 {
        followed.0.lock().ended
    }

    #[test]
    fn requests_are_counted_when_their_end_has_come() {
        for request in [PLAIN, SIZED, CHUNKED] {
            let followed = followed(request);
            followed.next_request();
            assert!(followed.is_over(), "{request:?}");
            followed.read(&request.as_bytes()[..request.len() - 1]);
            followed.next_request();
            assert!(!followed.is_over(), "{request:?}");
        }
    }

    #[test]
    fn what_comes_behind_a_request_is_ahead_of_it() {
        for behind in ["\r", "G", PLAIN, FAULTY] {
            for request in [PLAIN, SIZED, CHUNKED] {
                let followed = followed(request);
                followed.next_request();
                assert!(!followed.is_ahead(), "{request:?}");
                followed.read(behind.as_bytes());
                assert!(followed.is_ahead(), "{request:?} {behind:?}");
            }
        }
        let followed = followed(&CHUNKED[..CHUNKED.len() - 1]);
        followed.next_request();
        assert!(!followed.is_ahead(), "its own end is to come");
    }

    #[test]
    fn a_fault_is_the_fault_of_its_request_only() {
        let followed = followed(&[PLAIN, CHUNKED, FAULTY, PLAIN].concat());
        for _ in 0..2 {
            followed.next_request();
            assert_eq!((followed.has_fault(), followed.is_over(), followed.may_read()), (false, true, MayRead::Later));
        }
        followed.next_request();
        assert_eq!((followed.has_fault(), followed.is_over(), followed.may_read()), (true, false, MayRead::Never));
    }

    #[test]
    fn behind_what_is_no_request_nothing_ends() {
        for text in ["POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", "GET / HTTP/1.1\r\n: x\r\n\r\n"] {
            let followed = followed(&[text, PLAIN].concat());
            assert_eq!((ended(&followed), followed.may_read()), (0, MayRead::Yes), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(order in prop::collection::vec(0..3_usize, 1..8), sizes in prop::collection::vec(1..60_usize, 1..9)) {
            let text: String = order.iter().map(|which| [PLAIN, SIZED, CHUNKED][*which]).collect();
            let (followed, mut rest) = (Followed::default(), text.as_bytes());
            for size in sizes.iter().cycle() {
                let (piece, later) = rest.split_at((*size).min(rest.len()));
                followed.read(piece);
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(ended(&followed), order.len() as u64);
            prop_assert_eq!(followed.may_read(), MayRead::Yes);
        }
    }
}
