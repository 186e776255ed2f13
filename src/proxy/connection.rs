//! A client's connection: plain or TLS, HTTP/1.1 or HTTP/2, how long a request header may take, and how long an idle
//! connection is kept.

use std::cell::Cell;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora::connectors::http::custom;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::H2Options;
use pingora::protocols::{ALPN, Stream};
use pingora::proxy::{HttpProxy, ProcessCustomSession, ProxyServiceBuilder};
use pingora::server::ShutdownWatch;
use pingora::server::configuration::ServerConf;
use pingora::services::listening::Service;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::amend::Amendments;
use super::follow::Followed;
use super::{Proxy, ServerConnector, client_stream};
use crate::access::RememberedOrigin;
use crate::config::TlsListen;
use crate::drain::Drain;
use crate::tls::Listener;
use crate::upstream::Live;

/// What an HTTP/2 client sends first (RFC 9113, section 3.4).
pub(super) const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The reuse budget of a connection that has not served a request yet. Pingora counts it down, so it also tells a new
/// connection from a kept one.
const NEW_CONNECTION: u32 = u32::MAX;

/// The limit's key.
const REQUEST_HEADER: &str = "request_header";

tokio::task_local! {
    /// When this connection was accepted.
    static ACCEPTED: Instant;
    /// Whether the header of the request that this connection waits for has been read.
    static HEADER_HAS_COME: Cell<bool>;
    /// What is read and written on this HTTP/1 connection.
    static WIRE: Wire;
}

/// What is known of an HTTP/1 connection below Pingora.
#[derive(Default)]
struct Wire {
    requests: Followed,
    answers: Amendments,
    /// What servers are told of where its requests come from.
    origin: Arc<Mutex<RememberedOrigin>>,
}

/// The requests on the HTTP/1 connection of this task.
pub(super) fn followed() -> Option<Followed> {
    // HTTP/2 streams, and tests, have none.
    WIRE.try_with(|wire| wire.requests.clone()).ok()
}

/// Where the answers on the HTTP/1 connection of this task are amended.
pub(super) fn amendments() -> Option<Amendments> {
    WIRE.try_with(|wire| wire.answers.clone()).ok()
}

/// What servers are told of where the requests on this task's connection come from.
pub(super) fn told_origin() -> Arc<Mutex<RememberedOrigin>> {
    WIRE.try_with(|wire| Arc::clone(&wire.origin)).unwrap_or_default()
}

/// Pingora has read a request header on this task's connection.
pub(super) fn header_has_come() {
    // HTTP/2 streams and tests have no such cell: their headers come whole.
    let _ignored = HEADER_HAS_COME.try_with(|has_come| has_come.set(true));
}

/// Serves client connections with the proxy.
///
/// Which protocol a client speaks is found out here: over TLS both agree on it (ALPN). Without, Pingora would wait for
/// 24 bytes before it decides, without a limit, and short requests have fewer.
pub struct ClientConnections {
    tls: Option<Tls>,
    live: Arc<Live>,
    drain: Arc<Drain>,
}

impl std::fmt::Debug for ClientConnections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientConnections").finish_non_exhaustive()
    }
}

impl ClientConnections {
    /// Connections without TLS.
    #[must_use]
    pub fn new(live: Arc<Live>, drain: Arc<Drain>) -> Self {
        Self { tls: None, live, drain }
    }

    /// With a TLS listener beside plain ones on the addresses `plain`.
    #[must_use]
    pub fn with_tls(mut self, tls: &TlsListen, plain: &[SocketAddr]) -> Self {
        self.tls = Some(Tls { listener: Arc::clone(&tls.listener), plain: plain.to_vec() });
        self
    }

    /// A service whose connections are these; the proxy handles their requests.
    #[must_use]
    pub fn service(self, conf: &Arc<ServerConf>, mut proxy: Proxy) -> Service<HttpProxy<Proxy, ServerConnector>> {
        proxy.follows_servers = true;
        // Pingora makes a proxy with a connector of our own only within a service of its own, and gives it to whoever
        // takes the connections off its hands: those with a protocol that it does not know. So it is to know none.
        let mut options = HttpServerOptions::default();
        options.force_custom = true;
        let connections = Arc::new(self);
        let serve: ProcessCustomSession<Proxy, ServerConnector> = Arc::new(move |proxy, stream, shutdown| {
            let (connections, shutdown) = (Arc::clone(&connections), shutdown.clone());
            Box::pin(async move { connections.serve(&proxy, stream, &shutdown).await })
        });
        let service = ProxyServiceBuilder::new(conf, proxy).name("clients").server_options(options);
        service.custom(ServerConnector::new(conf), serve).build()
    }

    /// Serves one connection. Returns it when it can be served again.
    pub async fn serve<C: custom::Connector>(
        &self,
        proxy: &Arc<HttpProxy<Proxy, C>>,
        stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let _open = self.drain.connection();
        let accepted = Instant::now();
        let request_header = self.live.get().config.timeouts.request_header;
        // Apart: its seven kilobytes, for a handshake, would otherwise be kept as long as the connection is.
        let greeted = timeout_at(accepted + request_header, Box::pin(self.greet(stream)));
        let (stream, is_http2) = tokio::select! {
            biased;
            greeted = greeted => match greeted {
                Ok(greeted) => greeted?,
                Err(_) => {
                    self.live.metrics().timed_out(REQUEST_HEADER);
                    return None;
                }
            },
            () = self.drain.last_call_over() => return None,
        };
        let requests = Arc::new(Requests::new(self, Arc::clone(proxy), is_http2));
        if is_http2 {
            return ACCEPTED.scope(accepted, requests.process_new(stream, shutdown)).await;
        }
        let wire = Wire::default();
        let stream = client_stream::http1(stream, wire.requests.clone(), wire.answers.clone());
        WIRE.scope(wire, ACCEPTED.scope(accepted, requests.process_new(stream, shutdown))).await
    }

    /// Makes the TLS handshake where there is one, and finds out whether the client speaks HTTP/2.
    async fn greet(&self, stream: Stream) -> Option<(Stream, bool)> {
        let mut stream = match &self.tls {
            Some(tls) if tls.is_for(&stream) => tls.accept(stream).await?,
            _ => stream,
        };
        match stream.selected_alpn_proto() {
            Some(ALPN::H2) => Some((client_stream::http2(stream).await.ok()?, true)),
            Some(_) => Some((stream, false)),
            None => {
                let is_http2 = speaks_http2(&mut stream).await.ok()?;
                Some((stream, is_http2))
            }
        }
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

/// Looks at the first bytes until they differ from HTTP/2's preface, or are all of it. They stay to be read.
async fn speaks_http2(stream: &mut Stream) -> std::io::Result<bool> {
    let mut seen = [0; HTTP2_PREFACE.len()];
    for length in 1..=seen.len() {
        let seen = &mut seen[..length];
        if !stream.try_peek(seen).await? || *seen != HTTP2_PREFACE[..length] {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The requests of one connection, one after the other. Pingora bounds only the pauses within a request header; this
/// bounds the header as a whole, so that a client cannot hold a connection by sending a byte now and then.
struct Requests<C: custom::Connector> {
    proxy: Arc<HttpProxy<Proxy, C>>,
    options: HttpServerOptions,
    /// Asked at each request: a connection may outlive many configurations.
    live: Arc<Live>,
    drain: Arc<Drain>,
}

impl<C: custom::Connector> Requests<C> {
    fn new(connections: &ClientConnections, proxy: Arc<HttpProxy<Proxy, C>>, h2c: bool) -> Self {
        let (live, drain) = (Arc::clone(&connections.live), Arc::clone(&connections.drain));
        let mut options = HttpServerOptions::default();
        options.h2c = h2c;
        options.keepalive_request_limit = Some(NEW_CONNECTION);
        options.h2_idle_timeout = Some(live.get().config.timeouts.client_keepalive);
        Self { proxy, options, live, drain }
    }

    /// When the next request's header must have come.
    fn header_deadline(&self, session: &ServerSession) -> Instant {
        let timeouts = &self.live.get().config.timeouts;
        let is_new = session.get_keepalive_reuses_remaining() == Some(NEW_CONNECTION);
        match ACCEPTED.try_with(|accepted| *accepted) {
            Ok(accepted) if is_new => accepted + timeouts.request_header,
            _ => Instant::now() + timeouts.client_keepalive + timeouts.request_header,
        }
    }
}

#[async_trait]
impl<C: custom::Connector> HttpServerApp for Requests<C> {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        if session.is_http2() {
            return self.proxy.process_new_http(session, shutdown).await;
        }
        session.set_pipelining_enabled(true);
        if session.get_keepalive().is_some() {
            let keepalive = self.live.get().config.timeouts.client_keepalive;
            session.set_keepalive(Some(keepalive.as_secs().max(1)));
        }
        let deadline = self.header_deadline(&session);
        let serve = async {
            let mut served = pin!(self.proxy.process_new_http(session, shutdown));
            tokio::select! {
                biased;
                reused = &mut served => return reused,
                () = sleep_until(deadline) => {
                    if !HEADER_HAS_COME.with(Cell::get) {
                        self.live.metrics().timed_out(REQUEST_HEADER);
                    }
                }
                () = self.drain.last_call_over() => {}
            }
            if HEADER_HAS_COME.with(Cell::get) { served.await } else { None }
        };
        HEADER_HAS_COME.scope(Cell::new(false), serve).await
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        Some(&self.options)
    }

    fn h2_options(&self) -> Option<H2Options> {
        self.proxy.h2_options()
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
