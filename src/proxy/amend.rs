//! What goes to an HTTP/1 client, where a server's answer had more than Pingora writes.
//!
//! Pingora 0.9.1 puts the present time in the place of the server's `Date`, and knows no trailers. Both are amended in
//! what it writes: the session that relays an answer says what is due, and the client's stream, below Pingora, has it
//! written in the next piece that it fits. An answer without either is not looked at.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use http::HeaderValue;
use http::header::DATE;
use parking_lot::Mutex;
use pingora::protocols::Stream;
use tokio::io::AsyncWrite;

/// How a chunked body without trailers ends. Pingora writes it by itself.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// What the two know of each other: the session that relays answers to a connection, and the connection's stream.
#[derive(Debug, Clone, Default)]
pub(super) struct Amendments(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Looked at for each write; all of a connection's are one task's.
    is_due: AtomicBool,
    due: Mutex<Option<Amendment>>,
}

#[derive(Debug)]
enum Amendment {
    /// The header that is written next has these values of `Date`, in place of its own.
    Date(Vec<HeaderValue>),
    /// The body that ends next has these trailers, written as lines.
    Trailers(Vec<u8>),
}

impl Amendments {
    /// The header that is about to be written has these values of `Date`; none leaves it as it is.
    pub(super) fn date(&self, values: Vec<HeaderValue>) {
        if !values.is_empty() {
            self.set(Amendment::Date(values));
        }
    }

    /// The chunked body whose end is about to be written, and nothing else, has these trailers.
    pub(super) fn trailers(&self, lines: Vec<u8>) {
        self.set(Amendment::Trailers(lines));
    }

    /// What was to be written has been.
    pub(super) fn done(&self) {
        if self.0.is_due.swap(false, Ordering::Relaxed) {
            *self.0.due.lock() = None;
        }
    }

    fn set(&self, amendment: Amendment) {
        *self.0.due.lock() = Some(amendment);
        self.0.is_due.store(true, Ordering::Relaxed);
    }

    /// What is written in place of a piece; `None` when that is written as it is.
    fn amended(&self, piece: &[u8]) -> Option<Vec<u8>> {
        if !self.0.is_due.load(Ordering::Relaxed) {
            return None;
        }
        let mut due = self.0.due.lock();
        let amended = match &*due {
            Some(Amendment::Date(values)) if is_final_header(piece) => with_date(piece, values),
            Some(Amendment::Trailers(lines)) if piece == LAST_CHUNK => Some([b"0\r\n", &lines[..], b"\r\n"].concat()),
            _ => return None,
        };
        *due = None;
        self.0.is_due.store(false, Ordering::Relaxed);
        amended
    }
}

/// Whether a piece is the whole header of a final response, as Pingora writes it.
fn is_final_header(piece: &[u8]) -> bool {
    let version = b"HTTP/1.1 ".len();
    piece.starts_with(b"HTTP/1.")
        && piece.get(version).is_some_and(|digit| *digit != b'1')
        && piece.ends_with(b"\r\n\r\n")
}

/// The header with these values of `Date`; `None` when it has them already.
fn with_date(header: &[u8], values: &[HeaderValue]) -> Option<Vec<u8>> {
    let (start, end) = date_line(header)?;
    let (name, old) = header[start..end].split_at(DATE.as_str().len());
    let old = old.strip_prefix(b":")?.trim_ascii();
    if matches!(values, [value] if value.as_bytes() == old) {
        return None;
    }
    let mut amended = Vec::with_capacity(header.len() + values.len() * (end - start));
    amended.extend_from_slice(&header[..start]);
    for value in values {
        for part in [name, b": ", value.as_bytes(), b"\r\n"] {
            amended.extend_from_slice(part);
        }
    }
    amended.extend_from_slice(&header[end..]);
    Some(amended)
}

/// Where the line `Date` begins, and where the next one does.
fn date_line(header: &[u8]) -> Option<(usize, usize)> {
    let name = DATE.as_str().as_bytes();
    let mut start = 0;
    for line in header.split_inclusive(|byte| *byte == b'\n') {
        let is_date = line.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name));
        if is_date && line.get(name.len()) == Some(&b':') {
            return Some((start, start + line.len()));
        }
        start += line.len();
    }
    None
}

/// Writes with what is due.
#[derive(Debug)]
pub(super) struct Writer {
    amendments: Amendments,
    begun: Option<Begun>,
}

/// An amended piece that is being written.
#[derive(Debug)]
struct Begun {
    bytes: Vec<u8>,
    written: usize,
    /// The length of the piece that it stands for.
    stands_for: usize,
}

impl Writer {
    pub(super) fn new(amendments: Amendments) -> Self {
        Self { amendments, begun: None }
    }

    /// Writes to the stream. As with any writer, who is told to wait comes again with the same piece.
    pub(super) fn poll_write(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        piece: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.begun.is_none() {
            let Some(bytes) = self.amendments.amended(piece) else { return Pin::new(stream).poll_write(cx, piece) };
            self.begun = Some(Begun { bytes, written: 0, stands_for: piece.len() });
        }
        while let Some(begun) = &mut self.begun {
            match ready!(Pin::new(&mut *stream).poll_write(cx, &begun.bytes[begun.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                length => begun.written += length,
            }
            if begun.written == begun.bytes.len() {
                let stands_for = begun.stands_for;
                self.begun = None;
                return Poll::Ready(Ok(stands_for));
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::layer::{Layer, Layered};
    use super::*;

    const HEADER: &str = "HTTP/1.1 200 OK\r\nx-date: 1\r\nDate: now\r\ncontent-length: 0\r\n\r\n";

    fn values(values: &[&str]) -> Vec<HeaderValue> {
        values.iter().map(|value| HeaderValue::from_str(value).unwrap()).collect()
    }

    fn amended(amendments: &Amendments, piece: &str) -> Option<String> {
        amendments.amended(piece.as_bytes()).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn the_date_of_the_next_final_header_is_the_servers() {
        for (dates, lines) in
            [(&["then"][..], "Date: then\r\n"), (&["a", "a rather long one"], "Date: a\r\nDate: a rather long one\r\n")]
        {
            let amendments = Amendments::default();
            amendments.date(values(dates));
            for other in ["HTTP/1.1 100 Continue\r\n\r\n", "date: x", LAST_CHUNK_TEXT, "HTTP/1.1 200 OK\r\nDate: x"] {
                assert_eq!(amended(&amendments, other), None, "{other:?}");
            }
            assert_eq!(amended(&amendments, HEADER), Some(HEADER.replace("Date: now\r\n", lines)));
            assert_eq!(amended(&amendments, HEADER), None, "once");
        }
    }

    const LAST_CHUNK_TEXT: &str = "0\r\n\r\n";

    #[test]
    fn a_header_that_is_right_stays_as_it_is() {
        let amendments = Amendments::default();
        amendments.date(values(&["now"]));
        assert_eq!(amended(&amendments, HEADER), None);
        amendments.date(values(&["then"]));
        assert_eq!(amended(&amendments, "HTTP/1.1 200 OK\r\nx-date: 1\r\n\r\n"), None, "without a date");
        amendments.date(Vec::new());
        assert_eq!(amended(&amendments, HEADER), None);
    }

    #[test]
    fn trailers_come_into_the_last_chunk_and_nowhere_else() {
        let amendments = Amendments::default();
        amendments.trailers(b"x: y\r\n".to_vec());
        for other in [HEADER, "5\r\n0\r\n\r\n\r\n", "0\r\n"] {
            assert_eq!(amended(&amendments, other), None, "{other:?}");
        }
        assert_eq!(amended(&amendments, LAST_CHUNK_TEXT).as_deref(), Some("0\r\nx: y\r\n\r\n"));
        assert_eq!(amended(&amendments, LAST_CHUNK_TEXT), None, "once");
    }

    #[test]
    fn what_was_not_written_is_void() {
        let amendments = Amendments::default();
        amendments.trailers(b"x: y\r\n".to_vec());
        amendments.done();
        assert_eq!(amended(&amendments, LAST_CHUNK_TEXT), None);
    }

    #[derive(Debug)]
    struct Amending(Writer);

    impl Layer for Amending {
        fn poll_read(
            &mut self,
            stream: &mut Stream,
            cx: &mut Context<'_>,
            buf: &mut tokio::io::ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            use tokio::io::AsyncRead;
            Pin::new(stream).poll_read(cx, buf)
        }

        fn poll_write(&mut self, stream: &mut Stream, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            self.0.poll_write(stream, cx, buf)
        }
    }

    // A client that takes three bytes at a time.
    #[tokio::test]
    async fn a_slow_client_gets_every_byte_once() {
        let (ours, mut theirs) = tokio::io::duplex(3);
        let amendments = Amendments::default();
        let mut stream = Layered::new(Box::new(ours) as Stream, Amending(Writer::new(amendments.clone())));
        let reading = tokio::spawn(async move {
            let mut read = String::new();
            theirs.read_to_string(&mut read).await.map(|_| read)
        });
        amendments.date(values(&["then"]));
        stream.write_all(HEADER.as_bytes()).await.unwrap();
        stream.write_all(b"3\r\nabc\r\n").await.unwrap();
        amendments.trailers(b"x: y\r\n".to_vec());
        stream.write_all(LAST_CHUNK).await.unwrap();
        stream.write_all(HEADER.as_bytes()).await.unwrap();
        drop(stream);
        let expected = format!("{}3\r\nabc\r\n0\r\nx: y\r\n\r\n{HEADER}", HEADER.replace("now", "then"));
        assert_eq!(reading.await.unwrap().unwrap(), expected);
    }
}
