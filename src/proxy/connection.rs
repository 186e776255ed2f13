//! A client's connection: HTTP/1.1 or HTTP/2, how long a request header may take, and how long an idle connection is
//! kept.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::H2Options;
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::Proxy;
use crate::upstream::Live;

/// What an HTTP/2 client sends first (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The reuse budget of a connection that has not served a request yet. Pingora counts it down, so it also tells a new
/// connection from a kept one.
const NEW_CONNECTION: u32 = u32::MAX;

tokio::task_local! {
    /// When this connection was accepted.
    static ACCEPTED: Instant;
    /// Whether the header of the request that this connection waits for has been read.
    static HEADER_HAS_COME: Cell<bool>;
}

/// Pingora has read a request header on this task's connection.
pub(super) fn header_has_come() {
    // HTTP/2 streams and tests have no such cell: their headers come whole.
    let _ignored = HEADER_HAS_COME.try_with(|has_come| has_come.set(true));
}

/// Serves client connections with the proxy.
///
/// Which protocol a client speaks is found out here: Pingora would wait for 24 bytes before it decides, without a
/// limit, and short requests have fewer.
pub struct ClientConnections {
    proxy: Arc<HttpProxy<Proxy>>,
    live: Arc<Live>,
}

impl std::fmt::Debug for ClientConnections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientConnections").finish_non_exhaustive()
    }
}

impl ClientConnections {
    /// Connections whose requests the proxy handles.
    #[must_use]
    pub fn new(proxy: HttpProxy<Proxy>, live: Arc<Live>) -> Self {
        Self { proxy: Arc::new(proxy), live }
    }
}

#[async_trait]
impl ServerApp for ClientConnections {
    async fn process_new(self: &Arc<Self>, mut stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let accepted = Instant::now();
        let request_header = self.live.get().config.timeouts.request_header;
        let is_http2 = timeout_at(accepted + request_header, speaks_http2(&mut stream)).await.ok()?.ok()?;
        let requests = Arc::new(Requests::new(self, is_http2));
        ACCEPTED.scope(accepted, requests.process_new(stream, shutdown)).await
    }

    async fn cleanup(&self) {
        self.proxy.http_cleanup().await;
    }
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
struct Requests {
    proxy: Arc<HttpProxy<Proxy>>,
    options: HttpServerOptions,
    /// Asked at each request: a connection may outlive many configurations.
    live: Arc<Live>,
}

impl Requests {
    fn new(connections: &ClientConnections, h2c: bool) -> Self {
        let live = Arc::clone(&connections.live);
        let mut options = HttpServerOptions::default();
        options.h2c = h2c;
        options.keepalive_request_limit = Some(NEW_CONNECTION);
        options.h2_idle_timeout = Some(live.get().config.timeouts.client_keepalive);
        Self { proxy: Arc::clone(&connections.proxy), options, live }
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
impl HttpServerApp for Requests {
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
                () = sleep_until(deadline) => {}
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
