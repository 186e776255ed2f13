//! The header of a request goes to the server together with the beginning of its body.
//!
//! Pingora 0.9.1 sends the header by itself, and then the body. On its way through the kernel that is two packets for most
//! requests, and the sending of packets is the most expensive thing that a small request does. Where a body is to follow, the header
//! is kept here until that comes, and both leave in one write.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use pingora::protocols::Stream;
use tokio::io::AsyncWrite;

/// Says of the next request on a connection that a body follows its header.
#[derive(Debug, Clone, Default)]
pub(super) struct BodyFollows(Arc<AtomicBool>);

impl BodyFollows {
    /// What is written next is a whole header. Whether a body follows it.
    pub(super) fn set(&self, follows: bool) {
        self.0.store(follows, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

/// Writes requests to one connection.
#[derive(Debug)]
pub(super) struct RequestWriter {
    body_follows: BodyFollows,
    /// A header that waits for its body.
    header: Vec<u8>,
    /// Bytes of it that have been written: a slow server takes it in parts.
    written: usize,
}

impl RequestWriter {
    pub(super) fn new(body_follows: BodyFollows) -> Self {
        Self { body_follows, header: Vec::new(), written: 0 }
    }

    pub(super) fn poll_write(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        piece: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.body_follows.take() {
            self.header.extend_from_slice(piece);
            return Poll::Ready(Ok(piece.len()));
        }
        if self.header.is_empty() {
            return Pin::new(stream).poll_write(cx, piece);
        }
        self.poll_write_vectored(stream, cx, &[IoSlice::new(piece)])
    }

    pub(super) fn poll_write_vectored(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        while !self.header.is_empty() {
            let rest = &self.header[self.written..];
            let mut together = Vec::with_capacity(pieces.len() + 1);
            together.push(IoSlice::new(rest));
            together.extend_from_slice(pieces);
            let length = ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &together))?;
            if length == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            if length < rest.len() {
                self.written += length;
                continue;
            }
            let of_body = length - rest.len();
            self.header.clear();
            self.written = 0;
            if of_body > 0 {
                return Poll::Ready(Ok(of_body));
            }
        }
        Pin::new(stream).poll_write_vectored(cx, pieces)
    }

    /// A header that waits for its body stays.
    pub(super) fn poll_flush(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.header.is_empty() { Pin::new(stream).poll_flush(cx) } else { Poll::Ready(Ok(())) }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};

    use super::super::layer::{Layer, Layered};
    use super::*;

    #[derive(Debug)]
    struct Requests(RequestWriter);

    impl Layer for Requests {
        fn poll_read(
            &mut self,
            stream: &mut Stream,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            use tokio::io::AsyncRead;
            Pin::new(stream).poll_read(cx, buf)
        }

        fn poll_write(&mut self, stream: &mut Stream, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            self.0.poll_write(stream, cx, buf)
        }

        fn poll_write_vectored(
            &mut self,
            stream: &mut Stream,
            cx: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.0.poll_write_vectored(stream, cx, bufs)
        }

        fn poll_flush(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.poll_flush(stream, cx)
        }
    }

    fn connection(most_bytes: usize) -> (Layered<Requests>, BodyFollows, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(most_bytes);
        let body_follows = BodyFollows::default();
        let layer = Requests(RequestWriter::new(body_follows.clone()));
        (Layered::new(Box::new(ours) as Stream, layer), body_follows, theirs)
    }

    #[tokio::test]
    async fn a_header_waits_for_its_body_and_no_longer() {
        let (mut stream, body_follows, mut theirs) = connection(64);
        body_follows.set(true);
        stream.write_all(b"header").await.unwrap();
        stream.flush().await.unwrap();
        let mut read = [0; 64];
        let nothing = futures_util::FutureExt::now_or_never(theirs.read(&mut read));
        assert!(nothing.is_none(), "the header has gone ahead");
        stream.write_all(b"body").await.unwrap();
        assert_eq!(theirs.read(&mut read).await.unwrap(), 10);
        assert_eq!(&read[..10], b"headerbody");
        body_follows.set(false);
        stream.write_all(b"alone").await.unwrap();
        assert_eq!(theirs.read(&mut read).await.unwrap(), 5);
    }

    // A server that takes three bytes at a time.
    #[tokio::test]
    async fn a_slow_server_gets_every_byte_once() {
        let (mut stream, body_follows, mut theirs) = connection(3);
        let reading = tokio::spawn(async move {
            let mut read = String::new();
            theirs.read_to_string(&mut read).await.map(|_| read)
        });
        for (body, is_vectored) in [("body", false), ("", false), ("chunks of a body", true)] {
            body_follows.set(!body.is_empty());
            stream.write_all(b"a header;").await.unwrap();
            stream.flush().await.unwrap();
            if is_vectored {
                let mut chain = bytes::Buf::chain(&body.as_bytes()[..5], &body.as_bytes()[5..]);
                stream.write_all_buf(&mut chain).await.unwrap();
            } else {
                stream.write_all(body.as_bytes()).await.unwrap();
            }
            stream.flush().await.unwrap();
        }
        drop(stream);
        assert_eq!(reading.await.unwrap().unwrap(), "a header;bodya header;a header;chunks of a body");
    }
}
