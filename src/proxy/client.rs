//! The client of one request: its header, and the way back to it, over HTTP/1 or HTTP/2.

use std::future::poll_fn;
use std::io::{self, IoSlice, Write as _};
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::{Method, StatusCode, Version};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::date::get_cached_date;
use pingora::protocols::http::v2::server::HttpSession as Http2Stream;
use pingora::protocols::{Digest, Stream};
use pingora::{Error, ErrorType, Result};
use tokio::time::{Instant, timeout};

use super::timer::Timer;
use crate::access::RememberedOrigin;
use crate::http1::{Changes, End, Head, Inbound, Read, ResponseHead, Trailers};

/// Where requests on a connection come from.
#[derive(Debug, Default)]
pub(super) struct Origin {
    /// The client's address, when there is one.
    pub(super) peer: Option<IpAddr>,
    /// The port that it has connected to.
    pub(super) port: Option<u16>,
    pub(super) has_tls: bool,
    /// What servers were told of it last.
    pub(super) told: RememberedOrigin,
}

impl Origin {
    /// Of the client at the other end.
    pub(super) fn of(stream: &Stream) -> Self {
        let socket = stream.get_socket_digest();
        let inet = |address: Option<&pingora::protocols::l4::socket::SocketAddr>| address?.as_inet().copied();
        Self {
            peer: socket.as_ref().and_then(|socket| Some(inet(socket.peer_addr())?.ip())),
            port: socket.as_ref().and_then(|socket| Some(inet(socket.local_addr())?.port())),
            has_tls: stream.get_ssl_digest().is_some(),
            told: RememberedOrigin::default(),
        }
    }

    /// Of the client of a stream of HTTP/2.
    pub(super) fn of_digest(digest: Option<&Digest>) -> Self {
        let socket = digest.and_then(|digest| digest.socket_digest.as_ref());
        let inet = |address: Option<&pingora::protocols::l4::socket::SocketAddr>| address?.as_inet().copied();
        Self {
            peer: socket.and_then(|socket| Some(inet(socket.peer_addr())?.ip())),
            port: socket.and_then(|socket| Some(inet(socket.local_addr())?.port())),
            has_tls: digest.is_some_and(|digest| digest.ssl_digest.is_some()),
            told: RememberedOrigin::default(),
        }
    }
}

/// The client.
pub(super) struct Client<'a> {
    request: Box<RequestHeader>,
    /// The header as it came; empty for HTTP/2, where it is no text.
    raw: Bytes,
    origin: &'a mut Origin,
    wire: Wire<'a>,
    /// The status of the final answer whose header has gone out.
    answered: Option<StatusCode>,
    /// Whether the connection serves another request behind this one.
    is_kept: bool,
    /// How long one write may take.
    write_limit: Option<Duration>,
    /// Until when it has to take what it was sent and has not taken.
    stalled_until: Option<Instant>,
    timer: &'a mut Timer,
}

enum Wire<'a> {
    Http1(&'a mut Inbound, Framing),
    Http2(Box<Http2Stream>, Vec<Frame>),
}

/// How an HTTP/1 client sees the end of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// By its length, or because there is none.
    Known,
    Chunks,
    /// By the end of the connection.
    UntilClose,
}

/// What an HTTP/2 client is still to be sent.
enum Frame {
    Header(Box<ResponseHeader>, bool),
    Data(Bytes, bool),
    Trailers(Trailers),
}

impl<'a> Client<'a> {
    /// The client of a request that has come over HTTP/1.
    pub(super) fn http1(head: Head, inbound: &'a mut Inbound, origin: &'a mut Origin, timer: &'a mut Timer) -> Self {
        let is_kept = wants_to_be_kept(&head.header);
        Self {
            request: head.header,
            raw: head.raw,
            origin,
            wire: Wire::Http1(inbound, Framing::Known),
            answered: None,
            is_kept,
            write_limit: None,
            stalled_until: None,
            timer,
        }
    }

    /// The client of a stream of HTTP/2.
    pub(super) fn http2(stream: Box<Http2Stream>, origin: &'a mut Origin, timer: &'a mut Timer) -> Self {
        Self {
            request: Box::new(stream.req_header().clone()),
            raw: Bytes::new(),
            origin,
            wire: Wire::Http2(stream, Vec::new()),
            answered: None,
            is_kept: false,
            write_limit: None,
            stalled_until: None,
            timer,
        }
    }

    /// The header of its request.
    pub(super) fn request(&self) -> &RequestHeader {
        &self.request
    }

    /// The header as it came; empty for HTTP/2.
    pub(super) fn raw(&self) -> &[u8] {
        &self.raw
    }

    pub(super) fn origin(&self) -> &Origin {
        self.origin
    }

    /// The header of its request, the same as it came, and where it comes from.
    pub(super) fn request_and_origin(&mut self) -> (&RequestHeader, &[u8], &mut Origin) {
        (&self.request, &self.raw, self.origin)
    }

    /// Its request is not asked again, and its answer is on the way: of the header only the first line is still of interest.
    ///
    /// # Errors
    /// Never: the line has been read before.
    pub(super) fn forget_fields(&mut self) -> Result<()> {
        let mut line = RequestHeader::build_no_case(self.request.method.clone(), self.request.raw_path(), None)?;
        line.set_version(self.request.version);
        *self.request = line;
        self.raw = Bytes::new();
        if let Wire::Http1(inbound, _) = &mut self.wire {
            inbound.shrink();
        }
        Ok(())
    }

    pub(super) fn is_http2(&self) -> bool {
        matches!(self.wire, Wire::Http2(..))
    }

    /// The timer of its connection. Between writes nobody else uses it.
    pub(super) fn timer(&mut self) -> &mut Timer {
        self.timer
    }

    /// How long one write to it may take.
    pub(super) fn limit_writes(&mut self, limit: Option<Duration>) {
        self.write_limit = limit;
        if let Wire::Http2(stream, _) = &mut self.wire {
            stream.set_write_timeout(limit);
        }
    }

    /// The connection ends with the answer to this request.
    pub(super) fn close_after(&mut self) {
        self.is_kept = false;
    }

    /// Whether the connection serves another request behind this one.
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// The status of the final answer whose header has gone out.
    pub(super) fn answered(&self) -> Option<StatusCode> {
        self.answered
    }

    /// Whether its request has no body.
    pub(super) fn has_no_body(&self) -> bool {
        match &self.wire {
            Wire::Http1(inbound, _) => inbound.is_body_done(),
            Wire::Http2(stream, _) => stream.is_body_empty(),
        }
    }

    /// Reads on in the request's body. Cancel safe.
    ///
    /// # Errors
    /// When the client has left.
    pub(super) async fn read_body(&mut self, body: &mut BytesMut) -> Result<Read> {
        match &mut self.wire {
            Wire::Http1(inbound, _) => inbound.body(body).await.map_err(|error| gone("reading a body", error)),
            Wire::Http2(stream, _) => {
                if stream.is_body_done() {
                    return Ok(Read::End);
                }
                let Some(piece) = stream.read_body_bytes().await.map_err(Error::into_down)? else {
                    return Ok(Read::End);
                };
                body.extend_from_slice(&piece);
                Ok(Read::More)
            }
        }
    }

    /// Takes what it still sends, for a while, after our side was closed: so that it sees the answer to what it has sent
    /// so far, and not a broken connection.
    pub(super) async fn linger(&mut self, limit: Duration) {
        if let Wire::Http1(inbound, _) = &mut self.wire {
            inbound.shutdown().await;
            drop(timeout(limit, inbound.drain()).await);
        }
    }

    /// Resolves when it has left. Cancel safe.
    pub(super) async fn gone(&mut self) {
        poll_fn(|cx| self.poll_gone(cx)).await;
    }

    /// See [`Self::gone`].
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.wire {
            Wire::Http1(inbound, _) => inbound.poll_gone(cx),
            Wire::Http2(stream, _) => {
                // Whether it has reset the stream or ended the connection.
                let _reason = ready!(Pin::new(&mut stream.idle()).poll(cx));
                Poll::Ready(())
            }
        }
    }

    /// Tells it to go on with the body that it has announced.
    ///
    /// # Errors
    /// When it has left.
    pub(super) async fn go_on(&mut self) -> Result<()> {
        if let Wire::Http1(inbound, _) = &mut self.wire {
            poll_fn(|cx| Poll::Ready(inbound.put(cx, &mut [IoSlice::new(b"HTTP/1.1 100 Continue\r\n\r\n")])))
                .await
                .map_err(|error| gone("telling it to go on", error))?;
        }
        self.written().await
    }

    /// Answers at once, with a header that says how long the body is.
    ///
    /// # Errors
    /// When it has left.
    pub(super) async fn answer(&mut self, head: ResponseHead, body: &[u8]) -> Result<()> {
        let mut head = Some(head);
        poll_fn(|cx| {
            let Some(head) = head.take() else { return Poll::Ready(Ok(())) };
            let end = Some(End { trailers: None });
            Poll::Ready(self.begin(cx, head, Changes::dropping(&[]), &[body], end))
        })
        .await?;
        self.written().await
    }

    /// Passes on a header that only announces another (1xx), to those who know such.
    ///
    /// # Errors
    /// When the client has left.
    pub(super) fn announce(&mut self, cx: &mut Context<'_>, head: &ResponseHead, changes: &Changes<'_>) -> Result<()> {
        match &mut self.wire {
            Wire::Http1(inbound, _) if self.request.version == Version::HTTP_11 => {
                let wire = head.wire(changes, None, b"");
                inbound.put(cx, &mut [IoSlice::new(&wire)]).map_err(|error| gone("writing an answer", error))
            }
            Wire::Http1(..) | Wire::Http2(..) => Ok(()),
        }
    }

    /// The answer begins with this header and these pieces of its body, and may end with them.
    ///
    /// # Errors
    /// When the client has left.
    pub(super) fn begin(
        &mut self,
        cx: &mut Context<'_>,
        mut head: ResponseHead,
        mut changes: Changes<'_>,
        pieces: &[&[u8]],
        end: Option<End>,
    ) -> Result<()> {
        let (status, headers) = (head.header.status, &head.header.headers);
        self.answered = Some(status);
        let has_body = has_body(status, &self.request.method);
        match &mut self.wire {
            Wire::Http1(inbound, framing) => {
                let has_chunks = headers.contains_key(TRANSFER_ENCODING);
                let says_where_it_ends = has_chunks || headers.contains_key(CONTENT_LENGTH);
                let knows_chunks = self.request.version != Version::HTTP_10;
                *framing = match has_body {
                    true if knows_chunks && (has_chunks || !says_where_it_ends) => Framing::Chunks,
                    true if has_chunks || !says_where_it_ends => Framing::UntilClose,
                    true | false => Framing::Known,
                };
                if *framing == Framing::Chunks && !has_chunks {
                    // So that the connection need not end with it.
                    changes.set("transfer-encoding", &b"chunked"[..]);
                }
                // What is left of a body would be taken for a request.
                self.is_kept &= *framing != Framing::UntilClose && inbound.is_body_done();
                let connection =
                    if self.is_kept { &b"Connection: keep-alive\r\n"[..] } else { b"Connection: close\r\n" };
                let date = (!headers.contains_key(DATE)).then(get_cached_date);
                let wire = head.wire(&changes, date.as_ref(), connection);
                let pieces = if has_body { pieces } else { &[] };
                write(inbound, cx, *framing, &wire, pieces, end.as_ref())
            }
            Wire::Http2(_, frames) => {
                changes.apply(&mut head.header);
                let is_empty = pieces.iter().all(|piece| piece.is_empty()) || !has_body;
                let is_whole = is_empty && end.as_ref().is_some_and(|end| end.trailers.is_none());
                frames.push(Frame::Header(head.header, is_whole));
                if !is_whole {
                    queue(frames, pieces, end);
                }
                Ok(())
            }
        }
    }

    /// The answer goes on with this piece of its body, and may end with it.
    ///
    /// # Errors
    /// When the client has left.
    pub(super) fn go_on_with(&mut self, cx: &mut Context<'_>, piece: &[u8], end: Option<End>) -> Result<()> {
        match &mut self.wire {
            Wire::Http1(inbound, framing) => write(inbound, cx, *framing, &[], &[piece], end.as_ref()),
            Wire::Http2(_, frames) => {
                queue(frames, &[piece], end);
                Ok(())
            }
        }
    }

    /// Whether it has taken everything, as far as can be told without waiting.
    pub(super) fn is_written(&self) -> bool {
        match &self.wire {
            Wire::Http1(inbound, _) => inbound.is_written(),
            Wire::Http2(_, frames) => frames.is_empty(),
        }
    }

    /// Whether [`Self::written`] has to be called for that.
    pub(super) fn has_frames(&self) -> bool {
        matches!(&self.wire, Wire::Http2(_, frames) if !frames.is_empty())
    }

    /// Writes on, until it has taken everything.
    ///
    /// # Errors
    /// When it has left, or takes too long.
    pub(super) async fn written(&mut self) -> Result<()> {
        match &mut self.wire {
            Wire::Http1(..) => poll_fn(|cx| self.poll_written(cx)).await,
            Wire::Http2(stream, frames) => {
                for frame in std::mem::take(frames) {
                    match frame {
                        Frame::Header(header, is_end) => stream.write_response_header(header, is_end),
                        Frame::Data(data, is_end) => stream.write_body(data, is_end).await,
                        Frame::Trailers(trailers) => stream.write_trailers(trailers.into_map()),
                    }
                    .map_err(Error::into_down)?;
                }
                Ok(())
            }
        }
    }

    /// See [`Self::written`]; of HTTP/1.
    pub(super) fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let Wire::Http1(inbound, _) = &mut self.wire else { return Poll::Ready(Ok(())) };
        if let Poll::Ready(written) = inbound.poll_written(cx) {
            self.stalled_until = None;
            return Poll::Ready(written.map_err(|error| gone("writing an answer", error)));
        }
        let Some(limit) = self.write_limit else { return Poll::Pending };
        let until = *self.stalled_until.get_or_insert_with(|| Instant::now() + limit);
        ready!(self.timer.poll(cx, until));
        Poll::Ready(Err(Error::explain(ErrorType::WriteTimedout, format!("one write took {limit:?}")).into_down()))
    }
}

/// Writes what there is in one go.
fn write(
    inbound: &mut Inbound,
    cx: &mut Context<'_>,
    framing: Framing,
    header: &[u8],
    pieces: &[&[u8]],
    end: Option<&End>,
) -> Result<()> {
    let length: usize = pieces.iter().map(|piece| piece.len()).sum();
    let is_chunk = framing == Framing::Chunks && length > 0;
    let (mut size, mut size_bytes) = ([0; 20], 0);
    if is_chunk {
        let mut rest = &mut size[..];
        // Sixteen digits and the line's end are all that a length can need.
        let _fits = write!(rest, "{length:x}\r\n");
        size_bytes = 20 - rest.len();
    }
    let (mut parts, mut count) = ([IoSlice::new(&[]); 6], 0);
    let mut add = |part| {
        parts[count] = IoSlice::new(part);
        count += 1;
    };
    add(header);
    add(&size[..size_bytes]);
    for piece in pieces {
        add(piece);
    }
    let trailers;
    match end {
        Some(end) if framing == Framing::Chunks => match &end.trailers {
            None => add(if is_chunk { b"\r\n0\r\n\r\n" } else { b"0\r\n\r\n" }),
            Some(lines) => {
                let before: &[u8] = if is_chunk { b"\r\n0\r\n" } else { b"0\r\n" };
                trailers = [before, &lines.lines(), b"\r\n"].concat();
                add(&trailers);
            }
        },
        _ if is_chunk => add(b"\r\n"),
        _ => {}
    }
    inbound.put(cx, &mut parts[..count]).map_err(|error| gone("writing an answer", error))
}

fn queue(frames: &mut Vec<Frame>, pieces: &[&[u8]], end: Option<End>) {
    let data: Bytes = pieces.concat().into();
    let trailers = end.as_ref().is_some_and(|end| end.trailers.is_some());
    let is_last = end.is_some() && !trailers;
    if !data.is_empty() || is_last {
        frames.push(Frame::Data(data, is_last));
    }
    frames.extend(end.and_then(|end| end.trailers).map(Frame::Trailers));
}

/// Whether an answer of this status to a request of this method has a body.
fn has_body(status: StatusCode, method: &Method) -> bool {
    method != Method::HEAD && !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Whether the client goes on with its connection behind this request: as a rule with HTTP/1.1, when it says so with
/// HTTP/1.0 (RFC 9112, section 9.3).
fn wants_to_be_kept(header: &RequestHeader) -> bool {
    let mut words =
        header.headers.get_all(CONNECTION).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let mut says = |word: &str| words.any(|said| said.trim_ascii().eq_ignore_ascii_case(word.as_bytes()));
    if header.version == Version::HTTP_11 { !says("close") } else { says("keep-alive") }
}

fn gone(doing: &'static str, error: io::Error) -> Box<Error> {
    let etype = if doing.starts_with("reading") { ErrorType::ReadError } else { ErrorType::WriteError };
    Error::because(etype, doing, error).into_down()
}
