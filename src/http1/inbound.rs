//! A client's connection: requests come in, one after the other, and answers go out.

use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pingora::http::RequestHeader;
use pingora::protocols::{SocketDigest, Stream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::body::Body;
use super::output::Output;
use super::{head, scratch};

/// So many bytes of later requests are kept, at least; with more, the connection is read again when their turn has come.
const MAX_AHEAD_BYTES: usize = 64 << 10;

/// A body of which more than this is to come is read to where it stays, without a stay in between.
const LONG_BODY_BYTES: u64 = 16 << 10;

/// How often the kernel is asked whether a client is there whose connection is not read any more.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// TCP states in which the client has closed its side, as Linux numbers them: `CLOSE`, `CLOSE_WAIT`, `LAST_ACK`.
const LEFT: [u8; 3] = [7, 8, 9];

/// What came is no HTTP.
#[derive(Debug)]
pub(crate) struct Malformed(String);

impl Malformed {
    pub(super) fn because(reason: impl Display) -> Self {
        Self(reason.to_string())
    }
}

impl Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "malformed HTTP: {}", self.0)
    }
}

/// The header of a request.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) header: Box<RequestHeader>,
    /// As it came.
    pub(crate) raw: Bytes,
}

/// What reading a body has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    /// There is more to come.
    More,
    /// This was all.
    End,
    /// It is not framed as it must be.
    Fault,
}

/// The connection.
#[derive(Debug)]
pub(crate) struct Inbound {
    stream: Stream,
    /// What has been read and belongs to nothing yet: the present request's body, later requests.
    input: BytesMut,
    /// How much of it has been searched for the end of a header.
    searched_bytes: usize,
    /// The body of the present request.
    body: Body,
    output: Output,
    /// The client has closed its side.
    has_ended: bool,
    looks: Option<Pin<Box<Sleep>>>,
}

impl Inbound {
    pub(crate) fn new(stream: Stream) -> Self {
        Self {
            stream,
            input: BytesMut::new(),
            searched_bytes: 0,
            body: Body::Done,
            output: Output::default(),
            has_ended: false,
            looks: None,
        }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The stream, with what has been read of it in front; for what is no HTTP/1.
    pub(crate) fn into_parts(self) -> (Stream, BytesMut) {
        (self.stream, self.input)
    }

    /// Whether anything of the next request is there.
    pub(crate) fn has_begun(&self) -> bool {
        !self.input.is_empty()
    }

    /// What has come and belongs to nothing yet.
    pub(crate) fn input(&self) -> &[u8] {
        &self.input
    }

    /// Reads more; how many bytes, none at the end. Cancel safe.
    pub(crate) async fn more(&mut self) -> io::Result<usize> {
        poll_fn(|cx| self.poll_more(cx)).await
    }

    /// See [`Self::more`].
    pub(crate) fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        scratch::with(|scratch| {
            let mut read = ReadBuf::new(scratch);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read))?;
            self.input.extend_from_slice(read.filled());
            self.has_ended |= read.filled().is_empty();
            Poll::Ready(Ok(read.filled().len()))
        })
    }

    /// The header of the next request; `None` when the client leaves before. Cancel safe.
    ///
    /// # Errors
    /// When something else comes. What follows is not to be believed.
    pub(crate) async fn head(&mut self) -> Result<Option<Head>, Malformed> {
        let mut looked_into_bytes = 0;
        loop {
            if let Some(length) = head::end(&self.input, self.searched_bytes) {
                self.searched_bytes = 0;
                let raw = self.input.split_to(length).freeze();
                let header = head::request(&raw)?;
                self.body = Body::of_request(&header);
                return Ok(Some(Head { header, raw }));
            }
            self.searched_bytes = self.input.len();
            if self.input.len() > head::MAX_BYTES {
                return Err(Malformed::because("a header without an end"));
            }
            // Not for every byte of one that comes byte by byte.
            if self.input.len() >= 2 * looked_into_bytes && !self.input.is_empty() {
                looked_into_bytes = self.input.len();
                if !head::may_begin_request(&self.input) {
                    return Err(Malformed::because("no request header begins like this"));
                }
            }
            if self.has_ended || !self.more().await.is_ok_and(|read_bytes| read_bytes > 0) {
                return Ok(None);
            }
        }
    }

    /// Whether the body of the present request has been read to its end.
    pub(crate) fn is_body_done(&self) -> bool {
        self.body.is_done()
    }

    /// Reads on in the body of the present request. Cancel safe.
    ///
    /// # Errors
    /// When the client has left in the middle of it.
    pub(crate) async fn body(&mut self, body: &mut BytesMut) -> io::Result<Read> {
        poll_fn(|cx| self.poll_body(cx, body)).await
    }

    fn poll_body(&mut self, cx: &mut Context<'_>, body: &mut BytesMut) -> Poll<io::Result<Read>> {
        if self.body.is_done() {
            return Poll::Ready(Ok(Read::End));
        }
        if self.input.is_empty() {
            if let Body::Length(left) = &mut self.body
                && *left > LONG_BODY_BYTES
            {
                let most = usize::try_from(*left).unwrap_or(usize::MAX);
                body.reserve(most);
                let mut place = body.limit(most);
                let read_bytes = ready!(pin!(self.stream.read_buf(&mut place)).poll(cx))?;
                *left -= read_bytes as u64;
                if read_bytes == 0 {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                if *left == 0 {
                    self.body = Body::Done;
                }
                return Poll::Ready(Ok(if self.body.is_done() { Read::End } else { Read::More }));
            }
            if ready!(self.poll_more(cx))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        let piece = self.body.decode(&mut self.input);
        let mut data = self.input.split_to(piece.used_bytes);
        data.truncate(piece.data_bytes);
        if body.is_empty() {
            *body = data;
        } else {
            body.extend_from_slice(&data);
        }
        Poll::Ready(Ok(match piece {
            _ if piece.is_faulty => Read::Fault,
            _ if piece.is_end => Read::End,
            _ => Read::More,
        }))
    }

    /// Gives memory back that requests before have needed.
    pub(crate) fn shrink(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }

    /// Reads what still comes of the present request's body, and throws it away. However long it is said to be, no memory is
    /// taken for it.
    pub(crate) async fn drain(&mut self) {
        while !self.body.is_done() {
            if self.input.is_empty() && !self.more().await.is_ok_and(|read_bytes| read_bytes > 0) {
                return;
            }
            let piece = self.body.decode(&mut self.input);
            self.input.advance(piece.used_bytes);
            if piece.is_faulty {
                return;
            }
        }
    }

    /// Ready when the client has left. What it sends meanwhile is kept.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.input.len() < MAX_AHEAD_BYTES {
            if self.has_ended {
                return Poll::Ready(());
            }
            if ready!(self.poll_more(cx)).is_err() {
                self.has_ended = true;
            }
        }
        self.poll_lost(cx)
    }

    /// Asks the kernel, which knows of a client that has left also when nobody reads.
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(socket) = self.stream.get_socket_digest() else { return Poll::Pending };
        let timer = self.looks.get_or_insert_with(|| Box::pin(sleep(LOOK_EVERY)));
        while timer.as_mut().poll(cx).is_ready() {
            if has_left(&socket) {
                return Poll::Ready(());
            }
            timer.as_mut().reset(Instant::now() + LOOK_EVERY);
        }
        Poll::Pending
    }

    /// Writes to the client. What it does not take now is kept; see [`Self::poll_written`].
    ///
    /// # Errors
    /// When it has left.
    pub(crate) fn put(&mut self, cx: &mut Context<'_>, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.output.put(&mut self.stream, cx, parts)
    }

    /// Writes to the client, which takes it all.
    ///
    /// # Errors
    /// When it has left.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        poll_fn(|cx| Poll::Ready(self.put(cx, &mut [IoSlice::new(bytes)]))).await?;
        poll_fn(|cx| self.poll_written(cx)).await
    }

    /// Whether the client has taken everything that was written.
    pub(crate) fn is_written(&self) -> bool {
        self.output.is_done()
    }

    /// Writes on, until the client has taken everything.
    pub(crate) fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output.poll_done(&mut self.stream, cx)
    }

    /// Closes our side.
    pub(crate) async fn shutdown(&mut self) {
        if let Err(error) = self.stream.shutdown().await {
            log::debug!("a client's connection was not closed in order: {error}");
        }
    }
}

fn has_left(socket: &Arc<SocketDigest>) -> bool {
    socket.tcp_info().is_some_and(|info| LEFT.contains(&info.tcpi_state))
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};
    use tokio::time::timeout;

    use super::*;

    fn connection() -> (Inbound, DuplexStream) {
        let (ours, theirs) = duplex(1 << 20);
        (Inbound::new(Box::new(ours)), theirs)
    }

    async fn whole_body(inbound: &mut Inbound) -> (BytesMut, Read) {
        let mut body = BytesMut::new();
        loop {
            match inbound.body(&mut body).await.unwrap() {
                Read::More => {}
                end => return (body, end),
            }
        }
    }

    #[tokio::test]
    async fn requests_come_one_after_the_other_however_they_are_cut() {
        let long = "x".repeat(100_000);
        let requests = [
            "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "\r\nPOST /2 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
            "POST /3 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x\r\nllo\r\n0\r\nx: y\r\n\r\n"
                .to_owned(),
            format!("POST /4 HTTP/1.1\r\nContent-Length: {}\r\n\r\n{long}", long.len()),
            "POST /5 HTTP/1.1\r\nContent-Length: 0\r\n\r\n".to_owned(),
        ];
        let bodies = ["", "hello", "hello", &long, ""];
        for size in [1, 3, 50, 1 << 20] {
            let (mut inbound, mut theirs) = connection();
            let sent = requests.concat();
            let client = async move {
                for piece in sent.as_bytes().chunks(size) {
                    theirs.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                }
            };
            let server = async {
                for (number, expected) in bodies.iter().enumerate() {
                    let head = inbound.head().await.unwrap().unwrap();
                    assert_eq!(head.header.raw_path(), format!("/{}", number + 1).as_bytes(), "by {size}");
                    let (body, end) = whole_body(&mut inbound).await;
                    assert!(body == expected.as_bytes() && end == Read::End, "{number} by {size}");
                    assert!(inbound.is_body_done());
                }
                assert!(inbound.head().await.unwrap().is_none());
            };
            tokio::join!(client, server);
        }
    }

    #[tokio::test]
    async fn a_fault_in_a_body_is_no_end() {
        let (mut inbound, mut theirs) = connection();
        theirs.write_all(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\nx").await.unwrap();
        inbound.head().await.unwrap().unwrap();
        assert_eq!(whole_body(&mut inbound).await, (BytesMut::from("he"), Read::Fault));
    }

    #[tokio::test]
    async fn a_client_that_leaves_in_a_body_is_an_error() {
        for length in [20, 100_000] {
            let (mut inbound, mut theirs) = connection();
            let request = format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\nhalf");
            theirs.write_all(request.as_bytes()).await.unwrap();
            drop(theirs);
            inbound.head().await.unwrap().unwrap();
            let mut body = BytesMut::new();
            assert_eq!(inbound.body(&mut body).await.unwrap(), Read::More);
            assert_eq!(inbound.body(&mut body).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "{length}");
        }
    }

    #[tokio::test]
    async fn what_is_thrown_away_takes_no_memory_however_long_it_is_said_to_be() {
        for length in [u64::MAX, 1 << 50] {
            let (mut inbound, mut theirs) = connection();
            theirs.write_all(format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n").as_bytes()).await.unwrap();
            inbound.head().await.unwrap().unwrap();
            theirs.write_all(&[b'x'; 100_000]).await.unwrap();
            drop(theirs);
            inbound.drain().await;
            assert!(!inbound.is_body_done() && inbound.input().is_empty());
        }
        let (mut inbound, mut theirs) = connection();
        theirs.write_all(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET /next").await.unwrap();
        inbound.head().await.unwrap().unwrap();
        inbound.drain().await;
        assert_eq!((inbound.is_body_done(), inbound.input()), (true, &b"GET /next"[..]));
    }

    #[tokio::test]
    async fn what_is_no_request_is_refused_before_its_end() {
        let (mut inbound, mut theirs) = connection();
        theirs.write_all(b"\x16\x03\x01\x02").await.unwrap();
        assert!(inbound.head().await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_sent_ahead_is_kept_and_a_client_that_leaves_is_noticed() {
        let (mut inbound, mut theirs) = connection();
        theirs.write_all(b"GET / HTTP/1.1\r\n\r\nGET /next HTTP/1.1\r\n").await.unwrap();
        inbound.head().await.unwrap().unwrap();
        theirs.write_all(b"\r\n").await.unwrap();
        let waits = timeout(Duration::from_secs(1), poll_fn(|cx| inbound.poll_gone(cx)));
        assert!(waits.await.is_err(), "it is still there");
        drop(theirs);
        poll_fn(|cx| inbound.poll_gone(cx)).await;
        assert_eq!(inbound.head().await.unwrap().unwrap().header.raw_path(), b"/next");
        assert!(inbound.head().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn what_a_slow_client_does_not_take_is_kept_for_it() {
        let (ours, mut theirs) = duplex(10);
        let mut inbound = Inbound::new(Box::new(ours));
        let sent: Vec<u8> = (0..100).collect();
        let (first, second) = sent.split_at(33);
        poll_fn(|cx| Poll::Ready(inbound.put(cx, &mut [IoSlice::new(first), IoSlice::new(second)]))).await.unwrap();
        assert!(!inbound.is_written());
        let mut taken = vec![0; sent.len()];
        let (written, read) = tokio::join!(poll_fn(|cx| inbound.poll_written(cx)), theirs.read_exact(&mut taken));
        assert!(written.is_ok() && read.is_ok() && inbound.is_written());
        assert_eq!(taken, sent);
    }
}
