//! A client's connection: how long a request header may take, and how long an idle connection is kept.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream};
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::H2Options;
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;

use super::Proxy;
use crate::config::Timeouts;

tokio::task_local! {
    /// Whether the header of the request that this connection waits for has been read.
    static HEADER_HAS_COME: Cell<bool>;
}

/// Pingora has read a request header on this task's connection.
pub(super) fn header_has_come() {
    // HTTP/2 streams and tests have no such cell: their headers come whole.
    let _ignored = HEADER_HAS_COME.try_with(|has_come| has_come.set(true));
}

/// Serves client connections with the proxy. Pingora bounds only the pauses within a request header; this bounds the
/// header as a whole, so that a client cannot hold a connection by sending a byte now and then.
pub struct ClientConnections {
    proxy: Arc<HttpProxy<Proxy>>,
    options: HttpServerOptions,
    request_header: Duration,
    keepalive: Duration,
}

impl std::fmt::Debug for ClientConnections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientConnections").finish_non_exhaustive()
    }
}

/// The reuse budget of a connection that has not served a request yet. Pingora counts it down, so it also tells a new
/// connection from a kept one.
const NEW_CONNECTION: u32 = u32::MAX;

impl ClientConnections {
    /// Connections whose requests the proxy handles.
    #[must_use]
    pub fn new(proxy: HttpProxy<Proxy>, timeouts: &Timeouts) -> Self {
        let mut options = HttpServerOptions::default();
        options.h2c = true;
        options.keepalive_request_limit = Some(NEW_CONNECTION);
        options.h2_idle_timeout = Some(timeouts.client_keepalive);
        Self {
            proxy: Arc::new(proxy),
            options,
            request_header: timeouts.request_header,
            keepalive: timeouts.client_keepalive,
        }
    }
}

#[async_trait]
impl HttpServerApp for ClientConnections {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        if session.is_http2() {
            return self.proxy.process_new_http(session, shutdown).await;
        }
        session.set_pipelining_enabled(true);
        let is_new = session.get_keepalive_reuses_remaining() == Some(NEW_CONNECTION);
        if session.get_keepalive().is_some() {
            session.set_keepalive(Some(self.keepalive.as_secs().max(1)));
        }
        let limit = if is_new { self.request_header } else { self.keepalive + self.request_header };

        HEADER_HAS_COME
            .scope(Cell::new(false), async {
                let mut served = pin!(self.proxy.process_new_http(session, shutdown));
                tokio::select! {
                    biased;
                    reused = &mut served => return reused,
                    () = tokio::time::sleep(limit) => {}
                }
                if HEADER_HAS_COME.with(Cell::get) { served.await } else { None }
            })
            .await
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        Some(&self.options)
    }

    fn h2_options(&self) -> Option<H2Options> {
        self.proxy.h2_options()
    }

    async fn http_cleanup(&self) {
        self.proxy.http_cleanup().await;
    }
}
