//! A connection to a server: a request goes out, its answer comes in.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Method, StatusCode};
use pingora::http::ResponseHeader;
use pingora::protocols::Stream;
use pingora::{Error, ErrorType, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::body::Body;
use super::changes::{self, Changes};
use super::output::SHORT_BYTES;
use super::trailers::Trailers;
use super::{head, scratch};

/// A request that is being asked.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    method: Method,
    /// With a short body behind it.
    header: Vec<u8>,
    /// A long one.
    body: Bytes,
    /// Bytes of both that have been written.
    written: usize,
    is_flushed: bool,
}

impl Asked {
    /// A request of this method with this line, these fields and their changes; they say how long the body is.
    pub(crate) fn new<'f>(
        method: &Method,
        target: &[u8],
        fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
        changes: &Changes<'_>,
        body: Bytes,
    ) -> Self {
        let mut header = changes::write_request(method, target, fields, changes, body.len().min(SHORT_BYTES));
        // For the kernel one piece is cheaper than two.
        let is_short = body.len() <= SHORT_BYTES;
        if is_short {
            header.extend_from_slice(&body);
        }
        let (method, body) = (method.clone(), if is_short { Bytes::new() } else { body });
        Self { method, header, body, written: 0, is_flushed: false }
    }
}

#[cfg(test)]
impl Asked {
    /// The header as it is written.
    pub(crate) fn header(&self) -> &[u8] {
        &self.header
    }
}

/// A part of an answer.
#[derive(Debug)]
pub(crate) enum Part<'a> {
    /// A header; the answer ends with it, or does not. One that only announces another (1xx) does not.
    Header(ResponseHead, bool),
    /// Data of the body, if any; the answer ends with it, or does not.
    Data(&'a [u8], Option<End>),
}

/// The header of an answer.
#[derive(Debug)]
pub(crate) struct ResponseHead {
    pub(crate) header: Box<ResponseHeader>,
    /// As it came; empty when it has to be written from its fields.
    pub(crate) raw: Bytes,
}

impl ResponseHead {
    /// The header as it is written, with these changes, this date, if any, and this as its last line.
    pub(crate) fn wire(&self, changes: &Changes<'_>, date: Option<&HeaderValue>, last: &[u8]) -> Vec<u8> {
        changes::write_response(self, changes, date, last)
    }
}

impl From<ResponseHeader> for ResponseHead {
    fn from(header: ResponseHeader) -> Self {
        Self { header: Box::new(header), raw: Bytes::new() }
    }
}

/// The end of an answer.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) trailers: Option<Trailers>,
}

/// The connection, with one request on it.
#[derive(Debug)]
pub(crate) struct Outbound {
    stream: Stream,
    asked: Asked,
    /// Of the answer: a header that has not come to its end.
    partial: Vec<u8>,
    /// The body of the answer, once its header has come.
    body: Option<Body>,
    /// Whether the server keeps the connection.
    is_kept: bool,
    is_over: bool,
}

impl Outbound {
    /// Asks on this connection.
    pub(crate) fn new(stream: Stream, asked: Asked) -> Self {
        Self { stream, asked, partial: Vec::new(), body: None, is_kept: true, is_over: false }
    }

    /// Writes on, until the server has been given the whole request.
    pub(crate) fn poll_asked(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Asked { header, body, written, is_flushed, .. } = &mut self.asked;
        let stream = Pin::new(&mut self.stream);
        let stream = stream.get_mut();
        while *written < header.len() + body.len() {
            let length = if *written >= header.len() {
                ready!(Pin::new(&mut *stream).poll_write(cx, &body[*written - header.len()..]))?
            } else if body.is_empty() {
                ready!(Pin::new(&mut *stream).poll_write(cx, &header[*written..]))?
            } else {
                let parts = [IoSlice::new(&header[*written..]), IoSlice::new(body)];
                ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &parts))?
            };
            if length == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *written += length;
        }
        if !*is_flushed {
            ready!(Pin::new(stream).poll_flush(cx))?;
            // Nobody asks again on this connection.
            (self.asked.is_flushed, self.asked.body) = (true, Bytes::new());
            (self.asked.header, self.asked.written) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }

    /// Whether the server has been given the whole request.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.is_flushed
    }

    /// Whether the answer has come to its end.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Reads on in the answer once, and gives what has come to `take`.
    ///
    /// # Errors
    /// When it breaks off, or is none. Whatever `take` finds.
    pub(crate) fn poll_answer<T>(&mut self, cx: &mut Context<'_>, mut take: T) -> Poll<Result<()>>
    where
        T: FnMut(&mut Context<'_>, Part<'_>) -> Result<()>,
    {
        scratch::with(|scratch| {
            let mut read = ReadBuf::new(scratch);
            if let Err(error) = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read)) {
                return Poll::Ready(Err(Error::because(ErrorType::ReadError, "reading an answer", error).into_up()));
            }
            let length = read.filled().len();
            Poll::Ready(if length == 0 {
                self.ended(cx, take)
            } else {
                self.came(cx, &mut scratch[..length], &mut take)
            })
        })
    }

    /// The server has closed its side.
    fn ended<T>(&mut self, cx: &mut Context<'_>, mut take: T) -> Result<()>
    where
        T: FnMut(&mut Context<'_>, Part<'_>) -> Result<()>,
    {
        if matches!(self.body, Some(Body::UntilClose)) {
            (self.is_over, self.is_kept) = (true, false);
            return take(cx, Part::Data(&[], Some(End { trailers: None })));
        }
        Err(Error::explain(ErrorType::ConnectionClosed, "in the middle of an answer, or before").into_up())
    }

    fn came<T>(&mut self, cx: &mut Context<'_>, mut bytes: &mut [u8], take: &mut T) -> Result<()>
    where
        T: FnMut(&mut Context<'_>, Part<'_>) -> Result<()>,
    {
        while self.body.is_none() {
            let Some((head, used_bytes)) = self.header(bytes)? else { return Ok(()) };
            bytes = &mut bytes[used_bytes..];
            let header = &head.header;
            let is_last = !header.status.is_informational() || header.status == StatusCode::SWITCHING_PROTOCOLS;
            if is_last {
                self.body = Some(Body::of_response(header, &self.asked.method));
                self.is_kept = is_kept(header);
            }
            let is_end = is_last && self.body.as_ref().is_some_and(Body::is_done);
            if is_end {
                self.over(bytes);
            }
            take(cx, Part::Header(head, is_end))?;
            if is_end {
                return Ok(());
            }
        }
        let Some(body) = &mut self.body else { return Ok(()) };
        if bytes.is_empty() {
            return Ok(());
        }
        let piece = body.decode(bytes);
        let end = piece.is_end.then_some(End { trailers: piece.trailers });
        if piece.is_end {
            self.over(&bytes[piece.used_bytes..]);
        }
        if piece.data_bytes > 0 || end.is_some() {
            take(cx, Part::Data(&bytes[..piece.data_bytes], end))?;
        }
        if piece.is_faulty {
            return Err(Error::explain(ErrorType::ReadError, "a fault in a chunked answer").into_up());
        }
        Ok(())
    }

    /// The answer has come to its end. Nothing may stand behind it.
    fn over(&mut self, behind: &[u8]) {
        self.is_over = true;
        self.is_kept &= behind.is_empty();
    }

    /// A header, when its end has come, and how many of the bytes belong to it.
    fn header(&mut self, bytes: &[u8]) -> Result<Option<(ResponseHead, usize)>> {
        let before = self.partial.len();
        let whole = if before == 0 {
            head::end(bytes, 0).map(|length| (Bytes::copy_from_slice(&bytes[..length]), length))
        } else {
            self.partial.extend_from_slice(bytes);
            head::end(&self.partial, before).map(|length| {
                let mut header = std::mem::take(&mut self.partial);
                header.truncate(length);
                (Bytes::from(header), length - before)
            })
        };
        let malformed = |reason: String| Error::explain(ErrorType::InvalidHTTPHeader, reason).into_up();
        if let Some((raw, used_bytes)) = whole {
            let header = head::response(&raw).map_err(|error| malformed(error.to_string()))?;
            let raw = if header.has_case() { Bytes::new() } else { raw };
            return Ok(Some((ResponseHead { header, raw }, used_bytes)));
        }
        if before == 0 {
            self.partial.extend_from_slice(bytes);
        }
        if self.partial.len() > head::MAX_BYTES || (before == 0 && !head::may_begin_response(&self.partial)) {
            return Err(malformed("no header of an answer begins like this".to_owned()));
        }
        Ok(None)
    }

    /// The connection, if another request may be asked on it: the server keeps it, the whole request has been written, and
    /// the answer has come to its end.
    pub(crate) fn into_kept(self) -> Option<Stream> {
        (self.is_kept && self.is_over && self.is_asked()).then_some(self.stream)
    }
}

/// Whether the server goes on with the connection.
fn is_kept(header: &ResponseHeader) -> bool {
    let mut words =
        header.headers.get_all(CONNECTION).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let says = |word: &[u8], what: &str| word.trim_ascii().eq_ignore_ascii_case(what.as_bytes());
    match header.version {
        http::Version::HTTP_11 => !words.any(|word| says(word, "close")),
        _ => words.any(|word| says(word, "keep-alive")),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    fn asked(method: &str, body: &'static str) -> Asked {
        let mut changes = Changes::dropping(&[]);
        changes.set("content-length", body.len().to_string().into_bytes());
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        Asked::new(&method, b"/x", std::iter::empty(), &changes, Bytes::from(body))
    }

    /// What an answer comes to that comes in pieces of this size, after which the server closes: its statuses, its body, whether
    /// it is whole, and whether the connection is kept.
    async fn answered(method: &str, answer: &str, size: usize) -> (Vec<u16>, String, bool, bool) {
        let (ours, mut theirs) = duplex(64);
        let asked = asked(method, "hello");
        let mut request = vec![0; asked.header.len() + asked.body.len()];
        let mut connection = Outbound::new(Box::new(ours), asked);
        let server = async move {
            theirs.read_exact(&mut request).await.unwrap();
            assert!(request.ends_with(b"\r\n\r\nhello"));
            for piece in answer.as_bytes().chunks(size) {
                theirs.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let (mut statuses, mut body) = (Vec::new(), Vec::new());
        let client = async {
            let mut outcome = Ok(());
            while outcome.is_ok() && !connection.is_over() {
                outcome = poll_fn(|cx| {
                    ready!(connection.poll_asked(cx)).unwrap();
                    connection.poll_answer(cx, |_, part| {
                        match part {
                            Part::Header(head, _) => statuses.push(head.header.status.as_u16()),
                            Part::Data(data, _) => body.extend_from_slice(data),
                        }
                        Ok(())
                    })
                })
                .await;
            }
            let is_whole = outcome.is_ok();
            (is_whole, connection.into_kept().is_some())
        };
        let ((is_whole, is_kept), ()) = tokio::join!(client, server);
        (statuses, String::from_utf8(body).unwrap(), is_whole, is_kept)
    }

    #[tokio::test]
    async fn answers_end_where_they_say_however_they_come() {
        const EARLY: &str = "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n";
        for (method, answer, status, body, is_whole, is_kept) in [
            ("POST", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", 200, "ok", true, true),
            ("POST", "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", 200, "ok", true, false),
            ("POST", "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", 200, "ok", true, false),
            ("POST", "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\ncontent-length: 0\r\n\r\n", 200, "", true, true),
            (
                "POST",
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
                200,
                "ok",
                true,
                true,
            ),
            ("POST", "HTTP/1.1 200 OK\r\n\r\nok", 200, "ok", true, false),
            ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", 200, "", true, true),
            ("POST", "HTTP/1.1 204 No Content\r\n\r\n", 204, "", true, true),
            ("POST", "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok", 200, "ok", false, false),
            ("POST", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\nx", 200, "ok", false, false),
        ] {
            for early in ["", EARLY] {
                let answer = format!("{early}{answer}");
                for size in [1, 2, 7, answer.len()] {
                    let statuses = if early.is_empty() { vec![status] } else { vec![103, status] };
                    let expected = (statuses, body.to_owned(), is_whole, is_kept);
                    assert_eq!(answered(method, &answer, size).await, expected, "{method} {answer:?} by {size}");
                }
            }
        }
    }

    #[tokio::test]
    async fn what_stands_behind_an_answer_spoils_the_connection() {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n";
        assert_eq!(answered("POST", answer, answer.len()).await, (vec![200], "ok".to_owned(), true, false));
        let answer = "HTTP/1.1 204 No Content\r\n\r\nx";
        assert_eq!(answered("POST", answer, answer.len()).await, (vec![204], String::new(), true, false));
    }

    #[tokio::test]
    async fn what_is_no_answer_is_an_error() {
        for answer in ["", "HTTP/1.1 200 OK\r\n", "SSH-2.0-OpenSSH_9.2\r\n", "HTTP/1.1 200 OK\r\nbad\r\n\r\n"] {
            let size = answer.len().max(1);
            assert_eq!(answered("POST", answer, size).await, (Vec::new(), String::new(), false, false), "{answer:?}");
        }
    }
}
