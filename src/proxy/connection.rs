//! A client's connection: plain or TLS, HTTP/1.1 or HTTP/2, how long a request header may take, and how long an idle
//! connection is kept.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;
use pingora::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::date::get_cached_date;
use pingora::protocols::http::v2::server::H2Options;
use pingora::protocols::{ALPN, Stream};
use pingora::server::ShutdownWatch;
use pingora::services::listening::Service;
use tokio::time::{Instant, timeout, timeout_at};

use super::Proxy;
use super::client::{Client, Origin};
use super::http2_preface::{self, HTTP2_PREFACE};
use super::reject::Reject;
use super::request::new_request_id;
use super::timer::Timer;
use crate::config::TlsListen;
use crate::http1::{Changes, Head, Inbound, ResponseHead};
use crate::tls::Listener;

/// The limit's key.
const REQUEST_HEADER: &str = "request_header";

/// Serves client connections with the proxy.
///
/// Which protocol a client speaks is found out here: over TLS both agree on it (ALPN), without by its first bytes.
pub struct ClientConnections {
    tls: Option<Tls>,
    proxy: Arc<Proxy>,
}

impl std::fmt::Debug for ClientConnections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientConnections").finish_non_exhaustive()
    }
}

impl ClientConnections {
    /// Connections without TLS; the proxy handles their requests.
    #[must_use]
    pub fn new(proxy: Proxy) -> Self {
        Self { tls: None, proxy: Arc::new(proxy) }
    }

    /// With a TLS listener beside plain ones on the addresses `plain`.
    #[must_use]
    pub fn with_tls(mut self, tls: &TlsListen, plain: &[SocketAddr]) -> Self {
        self.tls = Some(Tls { listener: Arc::clone(&tls.listener), plain: plain.to_vec() });
        self
    }

    /// A service whose connections are these.
    #[must_use]
    pub fn service(self) -> Service<Self> {
        Service::new("clients".to_owned(), self)
    }

    /// Makes the TLS handshake where there is one, and finds out what the client speaks.
    async fn greet(&self, stream: Stream) -> Option<Greeted> {
        let stream = match &self.tls {
            Some(tls) if tls.is_for(&stream) => tls.accept(stream).await?,
            _ => stream,
        };
        let alpn = stream.selected_alpn_proto();
        let mut inbound = Inbound::new(stream);
        let is_http2 = match alpn {
            Some(ALPN::H2) => true,
            Some(_) => false,
            None => speaks_http2(&mut inbound).await?,
        };
        if !is_http2 {
            return Some(Greeted::Http1(inbound));
        }
        while inbound.input().len() < HTTP2_PREFACE.len() {
            if inbound.more().await.ok()? == 0 {
                return None;
            }
        }
        inbound.input().starts_with(HTTP2_PREFACE).then(|| Greeted::Http2(http2_preface::put_back(inbound)))
    }

    /// Serves the requests of one connection, one after the other.
    async fn http1(&self, mut inbound: Inbound, accepted: Instant) {
        let (mut origin, mut timer) = (Origin::of(inbound.stream()), Timer::default());
        let mut last_call_over = pin!(self.proxy.drain.last_call_over());
        let mut accepted = Some(accepted);
        loop {
            let head = tokio::select! {
                biased;
                head = self.next_request(&mut inbound, &mut timer, accepted.take()) => head,
                () = &mut last_call_over => None,
            };
            let Some(head) = head else { break };
            let mut client = Client::http1(head, &mut inbound, &mut origin, &mut timer);
            if !self.proxy.serve(&mut client).await {
                break;
            }
        }
        inbound.shutdown().await;
    }

    /// The header of the next request; `None` when there is none, and the connection is to be closed. The limits bound the
    /// header as a whole, so that a client cannot hold a connection by sending a byte now and then.
    async fn next_request(&self, inbound: &mut Inbound, timer: &mut Timer, accepted: Option<Instant>) -> Option<Head> {
        // Between requests a connection may be silent; that is no fault.
        if accepted.is_none() && !inbound.has_begun() {
            inbound.shrink();
            let at = Instant::now() + self.proxy.live.get().config.timeouts.client_keepalive;
            let has_begun = poll_fn(|cx| match inbound.poll_more(cx) {
                Poll::Ready(more) => Poll::Ready(more.is_ok_and(|read_bytes| read_bytes > 0)),
                Poll::Pending => timer.poll(cx, at).map(|()| false),
            });
            if !has_begun.await {
                return None;
            }
        }
        // Most come whole: their limits are nobody's business.
        let head = {
            let mut head = pin!(inbound.head());
            match poll_fn(|cx| Poll::Ready(head.as_mut().poll(cx))).await {
                Poll::Ready(head) => Some(head),
                Poll::Pending => {
                    let begun = accepted.unwrap_or_else(Instant::now);
                    let at = begun + self.proxy.live.get().config.timeouts.request_header;
                    poll_fn(|cx| match head.as_mut().poll(cx) {
                        Poll::Ready(head) => Poll::Ready(Some(head)),
                        Poll::Pending => timer.poll(cx, at).map(|()| None),
                    })
                    .await
                }
            }
        };
        match head {
            Some(Ok(head)) => head,
            Some(Err(malformed)) => {
                log::debug!("refused a request: {malformed}");
                self.refuse(inbound).await;
                None
            }
            None => {
                self.proxy.live.metrics().timed_out(REQUEST_HEADER);
                None
            }
        }
    }

    /// Answers what is no request.
    async fn refuse(&self, inbound: &mut Inbound) {
        self.proxy.metrics.rejected(Reject::BadHeader.reason());
        let Ok((header, body)) = Reject::BadHeader.response(Some(&new_request_id())) else { return };
        let head = ResponseHead::from(header);
        let answer =
            [&head.wire(&Changes::dropping(&[]), Some(&get_cached_date()), b"Connection: close\r\n")[..], &body]
                .concat();
        let limit = self.proxy.live.get().config.timeouts.request_header;
        if timeout(limit, inbound.write(&answer)).await.is_err() {
            log::debug!("a client does not take the answer to what is no request");
        }
    }
}

enum Greeted {
    Http1(Inbound),
    /// With the preface in front.
    Http2(Stream),
}

#[async_trait]
impl ServerApp for ClientConnections {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        // As a task of its own: the one that Pingora has for a connection keeps nine kilobytes for a TLS handshake.
        let (connections, shutdown) = (Arc::clone(self), shutdown.clone());
        tokio::spawn(async move { connections.serve(stream, &shutdown).await });
        None
    }
}

impl ClientConnections {
    /// Serves one connection, to its end.
    pub async fn serve(&self, stream: Stream, shutdown: &ShutdownWatch) {
        let _open = self.proxy.drain.connection();
        let accepted = Instant::now();
        let request_header = self.proxy.live.get().config.timeouts.request_header;
        // Apart: its seven kilobytes, for a handshake, would otherwise be kept as long as the connection is.
        let greeted = timeout_at(accepted + request_header, Box::pin(self.greet(stream)));
        let greeted = tokio::select! {
            biased;
            greeted = greeted => match greeted {
                Ok(Some(greeted)) => greeted,
                Ok(None) => return,
                Err(_) => {
                    self.proxy.live.metrics().timed_out(REQUEST_HEADER);
                    return;
                }
            },
            () = self.proxy.drain.last_call_over() => return,
        };
        match greeted {
            Greeted::Http1(inbound) => self.http1(inbound, accepted).await,
            Greeted::Http2(stream) => {
                let streams = Arc::new(Http2Streams::new(Arc::clone(&self.proxy)));
                drop(streams.process_new(stream, shutdown).await);
            }
        }
    }
}

/// The requests on a connection of HTTP/2, which Pingora serves: each is a task of its own.
struct Http2Streams {
    proxy: Arc<Proxy>,
    options: HttpServerOptions,
}

impl Http2Streams {
    fn new(proxy: Arc<Proxy>) -> Self {
        let mut options = HttpServerOptions::default();
        options.h2c = true;
        options.h2_idle_timeout = Some(proxy.live.get().config.timeouts.client_keepalive);
        Self { proxy, options }
    }
}

#[async_trait]
impl HttpServerApp for Http2Streams {
    async fn process_new_http(
        self: &Arc<Self>,
        session: ServerSession,
        _shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        // Nothing else comes: the preface has been seen.
        let ServerSession::H2(stream) = session else { return None };
        let mut origin = Origin::of_digest(stream.digest());
        let mut timer = Timer::default();
        let mut client = Client::http2(Box::new(stream), &mut origin, &mut timer);
        self.proxy.serve(&mut client).await;
        None
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        Some(&self.options)
    }

    fn h2_options(&self) -> Option<H2Options> {
        None
    }
}

/// The TLS listener. It shares the service, and its threads, with the plain ones.
struct Tls {
    listener: Arc<Listener>,
    plain: Vec<SocketAddr>,
}

impl Tls {
    /// Whether this connection came in by another than a plain listener. So nothing is served in plain text by mistake.
    fn is_for(&self, stream: &Stream) -> bool {
        let digest = stream.get_socket_digest();
        let local = digest.as_ref().and_then(|digest| digest.local_addr()?.as_inet().copied());
        stream.get_ssl().is_none() && !local.is_some_and(|local| self.plain.iter().any(|plain| takes(*plain, local)))
    }

    async fn accept(&self, stream: Stream) -> Option<Stream> {
        let client = stream.get_socket_digest().and_then(|digest| digest.peer_addr().map(ToString::to_string));
        match self.listener.accept(stream).await {
            Ok(stream) => Some(stream),
            Err(error) => {
                log::debug!("no TLS with the client {}: {error}", client.unwrap_or_default());
                None
            }
        }
    }
}

/// Whether a connection to the local address was accepted by this listener.
fn takes(listener: SocketAddr, local: SocketAddr) -> bool {
    // Listeners on one port differ in their family or in an address.
    let same_family = listener.is_ipv4() == local.is_ipv4();
    listener.port() == local.port() && same_family && (listener.ip().is_unspecified() || listener.ip() == local.ip())
}

/// Reads until the first bytes differ from HTTP/2's preface, or are all of it; `None` when the client leaves before.
async fn speaks_http2(inbound: &mut Inbound) -> Option<bool> {
    loop {
        let seen = inbound.input().len().min(HTTP2_PREFACE.len());
        if inbound.input()[..seen] != HTTP2_PREFACE[..seen] {
            return Some(false);
        }
        if seen == HTTP2_PREFACE.len() {
            return Some(true);
        }
        if inbound.more().await.ok()? == 0 {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_belongs_to_the_listener_on_its_local_address() {
        let takes = |listener: &str, local: &str| takes(listener.parse().unwrap(), local.parse().unwrap());
        assert!(takes("127.0.0.1:80", "127.0.0.1:80") && takes("0.0.0.0:80", "10.0.0.1:80"));
        // An IPv4 client of an IPv6 wildcard.
        assert!(takes("[::]:80", "[::ffff:10.0.0.1]:80"));
        assert!(!takes("127.0.0.1:80", "127.0.0.2:80") && !takes("0.0.0.0:80", "127.0.0.1:81"));
        assert!(!takes("0.0.0.0:80", "[::1]:80") && !takes("[::]:80", "127.0.0.1:80"));
    }
}
