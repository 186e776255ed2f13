//! A client's connection below HTTP, as Pingora gets it.
//!
//! - HTTP/2: its preface has been read and is put back in front. Pingora waits for it without a limit, and a TLS stream
//!   cannot be peeked at.
//! - HTTP/1: what is read is followed, and reading ends where a chunked body has a fault (see `follow`).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use pingora::protocols::tls::{SslDigest, TlsRef};
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, Stream, TimingDigest,
    UniqueID, UniqueIDType, raw_connect::ProxyDigest,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::connection::HTTP2_PREFACE;
use super::follow::{Followed, MayRead};

/// A stream, and what is done about what is read from it.
#[derive(Debug)]
pub(super) struct ClientStream {
    stream: Stream,
    /// What is still to be read again.
    preface: &'static [u8],
    /// Where the requests are followed.
    followed: Option<Followed>,
}

impl ClientStream {
    /// A stream of HTTP/1 whose requests are followed there.
    pub(super) fn http1(stream: Stream, followed: Followed) -> Self {
        Self { stream, preface: &[], followed: Some(followed) }
    }

    /// Waits for the preface of HTTP/2.
    ///
    /// # Errors
    /// When something else comes, or the end.
    pub(super) async fn http2(mut stream: Stream) -> io::Result<Self> {
        let mut found = [0; HTTP2_PREFACE.len()];
        stream.read_exact(&mut found).await?;
        if found != *HTTP2_PREFACE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no HTTP/2 preface"));
        }
        Ok(Self { stream, preface: HTTP2_PREFACE, followed: None })
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(followed) = &this.followed {
            return followed_read(followed, &mut this.stream, cx, buf);
        }
        if self.preface.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let (now, later) = self.preface.split_at(buf.remaining().min(self.preface.len()));
        buf.put_slice(now);
        self.preface = later;
        Poll::Ready(Ok(()))
    }
}

fn followed_read(
    followed: &Followed,
    stream: &mut Stream,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    match followed.may_read() {
        MayRead::Yes => {}
        // Nobody has to be woken: the request before is at work, and `presence` sees when its client leaves.
        MayRead::Later => return Poll::Pending,
        MayRead::Never => {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "a fault in a chunked body")));
        }
    }
    let filled = buf.filled().len();
    let read = Pin::new(stream).poll_read(cx, buf);
    followed.read(&buf.filled()[filled..]);
    read
}

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[async_trait]
impl Shutdown for ClientStream {
    async fn shutdown(&mut self) {
        Shutdown::shutdown(&mut *self.stream).await;
    }
}

impl UniqueID for ClientStream {
    fn id(&self) -> UniqueIDType {
        self.stream.id()
    }
}

impl Ssl for ClientStream {
    fn get_ssl(&self) -> Option<&TlsRef> {
        self.stream.get_ssl()
    }

    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.stream.get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.stream.selected_alpn_proto()
    }
}

impl GetTimingDigest for ClientStream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.stream.get_timing_digest()
    }

    fn get_read_pending_time(&self) -> Duration {
        self.stream.get_read_pending_time()
    }

    fn get_write_pending_time(&self) -> Duration {
        self.stream.get_write_pending_time()
    }
}

impl GetProxyDigest for ClientStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.stream.get_proxy_digest()
    }
}

impl GetSocketDigest for ClientStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.stream.get_socket_digest()
    }

    fn set_socket_digest(&mut self, socket_digest: SocketDigest) {
        self.stream.set_socket_digest(socket_digest);
    }
}

impl Peek for ClientStream {}
