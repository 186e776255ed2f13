//! A client's connection below HTTP, as Pingora gets it.
//!
//! - HTTP/2: its preface has been read and is put back in front. Pingora waits for it without a limit, and a TLS stream
//!   cannot be peeked at.
//! - HTTP/1: what is read is followed, and reading ends where a chunked body has a fault (see `follow`). What is written
//!   is amended where the server's answer had more than Pingora writes (see `amend`).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use pingora::protocols::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use super::amend::{Amendments, Writer};
use super::connection::HTTP2_PREFACE;
use super::follow::{Followed, MayRead};
use super::layer::{Layer, Layered};

/// A stream of HTTP/1 whose requests are followed there, and whose answers are amended as said there.
pub(super) fn http1(stream: Stream, followed: Followed, amendments: Amendments) -> Stream {
    Box::new(Layered::new(stream, Http1 { followed, writer: Writer::new(amendments) }))
}

/// Waits for the preface of HTTP/2, which is read again by whoever gets the stream.
///
/// # Errors
/// When something else comes, or the end.
pub(super) async fn http2(mut stream: Stream) -> io::Result<Stream> {
    let mut found = [0; HTTP2_PREFACE.len()];
    stream.read_exact(&mut found).await?;
    if found != *HTTP2_PREFACE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no HTTP/2 preface"));
    }
    Ok(Box::new(Layered::new(stream, Http2 { preface: HTTP2_PREFACE })))
}

#[derive(Debug)]
struct Http2 {
    /// What is still to be read again.
    preface: &'static [u8],
}

impl Layer for Http2 {
    fn poll_read(&mut self, stream: &mut Stream, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.preface.is_empty() {
            return Pin::new(stream).poll_read(cx, buf);
        }
        let (now, later) = self.preface.split_at(buf.remaining().min(self.preface.len()));
        buf.put_slice(now);
        self.preface = later;
        Poll::Ready(Ok(()))
    }
}

#[derive(Debug)]
struct Http1 {
    followed: Followed,
    writer: Writer,
}

impl Layer for Http1 {
    fn poll_read(&mut self, stream: &mut Stream, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.followed.may_read() {
            MayRead::Yes => {}
            // Nobody has to be woken: the request before is at work, and `presence` sees when its client leaves.
            MayRead::Later => return Poll::Pending,
            MayRead::Never => {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "a fault in a chunked body")));
            }
        }
        let filled = buf.filled().len();
        let read = Pin::new(stream).poll_read(cx, buf);
        self.followed.read(&buf.filled()[filled..]);
        read
    }

    fn poll_write(&mut self, stream: &mut Stream, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.writer.poll_write(stream, cx, buf)
    }
}
