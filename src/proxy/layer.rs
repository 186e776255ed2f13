//! A layer between a connection and Pingora: it sees what is read and written, and may have a hand in it.

use std::fmt::Debug;
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
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is done about what passes.
pub(super) trait Layer: Debug + Send + Sync + Unpin + 'static {
    /// Reads from the connection.
    fn poll_read(&mut self, stream: &mut Stream, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>>;

    /// Writes to the connection what comes in one slice.
    fn poll_write(&mut self, stream: &mut Stream, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(stream).poll_write(cx, buf)
    }

    /// Writes to the connection what comes in several slices, as the chunks of a body do.
    fn poll_write_vectored(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(stream).poll_write_vectored(cx, bufs)
    }

    /// Sends off what has been written.
    fn poll_flush(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(stream).poll_flush(cx)
    }

    /// What is to be known of the connection by those who get to see its digest.
    fn digest(&self, stream: &Stream) -> Option<Arc<ProxyDigest>> {
        stream.get_proxy_digest()
    }
}

/// A connection with its layer.
#[derive(Debug)]
pub(super) struct Layered<L> {
    stream: Stream,
    layer: L,
}

impl<L> Layered<L> {
    pub(super) fn new(stream: Stream, layer: L) -> Self {
        Self { stream, layer }
    }
}

impl<L: Layer> AsyncRead for Layered<L> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.layer.poll_read(&mut this.stream, cx, buf)
    }
}

impl<L: Layer> AsyncWrite for Layered<L> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        this.layer.poll_write(&mut this.stream, cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.layer.poll_flush(&mut this.stream, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        this.layer.poll_write_vectored(&mut this.stream, cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[async_trait]
impl<L: Layer> Shutdown for Layered<L> {
    async fn shutdown(&mut self) {
        Shutdown::shutdown(&mut *self.stream).await;
    }
}

impl<L: Layer> UniqueID for Layered<L> {
    fn id(&self) -> UniqueIDType {
        self.stream.id()
    }
}

impl<L: Layer> Ssl for Layered<L> {
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

impl<L: Layer> GetTimingDigest for Layered<L> {
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

impl<L: Layer> GetProxyDigest for Layered<L> {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.layer.digest(&self.stream)
    }
}

impl<L: Layer> GetSocketDigest for Layered<L> {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.stream.get_socket_digest()
    }

    fn set_socket_digest(&mut self, socket_digest: SocketDigest) {
        self.stream.set_socket_digest(socket_digest);
    }
}

impl<L: Layer> Peek for Layered<L> {}
