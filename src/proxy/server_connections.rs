//! Connections to servers, with a layer that follows what they answer, and has a hand in how requests are written.
//!
//! Pingora 0.9.1 lets nobody read along with a server's connection, but has a place for servers that speak a protocol of
//! one's own: there it asks a connector of ours, which may hand it a stream, and it goes on in HTTP/1.1. From there on
//! everything is as without: Pingora connects, agrees on TLS, keeps the connection and finds it again.

use std::any::Any;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use http::StatusCode;
use pingora::connectors::http::custom::{self, Connection};
use pingora::connectors::{ConnectorOptions, TransportConnector};
use pingora::http::ResponseHeader;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::tls::CustomALPN;
use pingora::protocols::{ALPN, Digest, Stream};
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::{HttpPeer, Peer};
use pingora::{Error, ErrorType, Result};
use tokio::io::{AsyncRead, ReadBuf};

use super::layer::{Layer, Layered};
use super::request_writer::{BodyFollows, RequestWriter};
use super::trail::Trail;

/// What makes Pingora ask [`ServerConnector`]. No server gets to see it.
static FOLLOWED: LazyLock<ALPN> = LazyLock::new(|| ALPN::Custom(CustomALPN::new(b"tidegate-followed".to_vec())));

/// Has a connection to this peer followed.
pub(super) fn follow(peer: &mut HttpPeer) {
    peer.options.alpn = FOLLOWED.clone();
}

/// What is known of a connection to a server below Pingora.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerWire {
    /// Where its answers are followed.
    pub(super) answers: Trail,
    /// Whether a body follows the header of the request that is written next.
    pub(super) body_follows: BodyFollows,
}

/// The connection with this digest.
pub(super) fn wire(digest: &Digest) -> Option<&ServerWire> {
    digest.proxy_digest.as_ref()?.user_data.as_ref()?.downcast_ref()
}

/// Makes connections to servers. Pingora keeps them.
pub struct ServerConnector {
    transport: TransportConnector,
}

impl std::fmt::Debug for ServerConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerConnector").finish_non_exhaustive()
    }
}

impl ServerConnector {
    pub(super) fn new(conf: &ServerConf) -> Self {
        Self { transport: TransportConnector::new(Some(ConnectorOptions::from_server_conf(conf))) }
    }
}

#[async_trait]
impl custom::Connector for ServerConnector {
    /// Sessions of a protocol of one's own: there are none.
    type Session = ();

    async fn get_http_session<P: Peer + Send + Sync + 'static>(&self, peer: &P) -> Result<(Connection<()>, bool)> {
        let Some(peer) = (peer as &(dyn Any + Send + Sync)).downcast_ref::<HttpPeer>() else {
            return Error::e_explain(ErrorType::InternalError, "servers are peers of HTTP");
        };
        let mut peer = peer.clone();
        peer.options.alpn = ALPN::H1;
        let stream = self.transport.new_stream(&peer).await?;
        Ok((Connection::Stream(followed(stream)?), false))
    }

    async fn reused_http_session<P: Peer + Send + Sync + 'static>(&self, _peer: &P) -> Option<()> {
        None
    }

    async fn release_http_session<P: Peer + Send + Sync + 'static>(
        &self,
        _session: (),
        _peer: &P,
        _idle_timeout: Option<Duration>,
    ) {
    }
}

fn followed(stream: Stream) -> Result<Stream> {
    let wire = ServerWire::default();
    // A place for what a proxy on the way to the server has answered; there is none.
    let answered = Box::new(ResponseHeader::build_no_case(StatusCode::OK, Some(0))?);
    let digest = Arc::new(ProxyDigest::new(answered, Some(Box::new(wire.clone()))));
    Ok(Box::new(Layered::new(
        stream,
        Follow { trail: wire.answers, writer: RequestWriter::new(wire.body_follows), digest, has_fault: false },
    )))
}

/// The layer.
#[derive(Debug)]
struct Follow {
    trail: Trail,
    writer: RequestWriter,
    digest: Arc<ProxyDigest>,
    has_fault: bool,
}

impl Layer for Follow {
    fn poll_read(&mut self, stream: &mut Stream, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.has_fault {
            return Poll::Ready(Err(fault()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(stream).poll_read(cx, buf))?;
        if let Err(good) = self.trail.read(&buf.filled()[before..]) {
            self.has_fault = true;
            buf.set_filled(before + good);
            if good == 0 {
                return Poll::Ready(Err(fault()));
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write(&mut self, stream: &mut Stream, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.writer.poll_write(stream, cx, buf)
    }

    fn poll_write_vectored(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writer.poll_write_vectored(stream, cx, bufs)
    }

    fn poll_flush(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.poll_flush(stream, cx)
    }

    fn digest(&self, _stream: &Stream) -> Option<Arc<ProxyDigest>> {
        Some(Arc::clone(&self.digest))
    }
}

fn fault() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a fault in a chunked answer")
}
