//! An HTTP/2 connection whose preface has been read and is put back in front.
//!
//! Pingora waits for the preface without a limit, and a TLS stream cannot be peeked at.

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

/// A stream, and what of the preface is still to be read again.
#[derive(Debug)]
pub(super) struct Prefaced {
    stream: Stream,
    preface: &'static [u8],
}

impl Prefaced {
    /// Waits for the preface.
    ///
    /// # Errors
    /// When something else comes, or the end.
    pub(super) async fn read(mut stream: Stream) -> io::Result<Self> {
        let mut found = [0; HTTP2_PREFACE.len()];
        stream.read_exact(&mut found).await?;
        if found != *HTTP2_PREFACE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no HTTP/2 preface"));
        }
        Ok(Self { stream, preface: HTTP2_PREFACE })
    }
}

impl AsyncRead for Prefaced {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.preface.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let (now, later) = self.preface.split_at(buf.remaining().min(self.preface.len()));
        buf.put_slice(now);
        self.preface = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Prefaced {
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
impl Shutdown for Prefaced {
    async fn shutdown(&mut self) {
        Shutdown::shutdown(&mut *self.stream).await;
    }
}

impl UniqueID for Prefaced {
    fn id(&self) -> UniqueIDType {
        self.stream.id()
    }
}

impl Ssl for Prefaced {
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

impl GetTimingDigest for Prefaced {
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

impl GetProxyDigest for Prefaced {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.stream.get_proxy_digest()
    }
}

impl GetSocketDigest for Prefaced {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.stream.get_socket_digest()
    }

    fn set_socket_digest(&mut self, socket_digest: SocketDigest) {
        self.stream.set_socket_digest(socket_digest);
    }
}

impl Peek for Prefaced {}
