//! Connections to servers: made by Pingora, kept for the next request.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use pingora::Result;
use pingora::connectors::{ConnectorOptions, TransportConnector};
use pingora::protocols::Stream;
use pingora::server::configuration::ServerConf;
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::config::Timeouts;
use crate::upstream::{Count, Live, Server};

/// How often it is looked whether kept connections are still good. One that is not costs nothing but its place.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Makes connections to servers, and keeps them.
pub(super) struct ServerConnections {
    transport: TransportConnector,
    live: Arc<Live>,
    /// Those that are kept.
    kept: Count,
    most_kept: usize,
    is_swept: AtomicBool,
}

impl ServerConnections {
    pub(super) fn new(conf: &ServerConf, live: Arc<Live>) -> Self {
        Self {
            transport: TransportConnector::new(Some(ConnectorOptions::from_server_conf(conf))),
            live,
            kept: Count::default(),
            most_kept: conf.upstream_keepalive_pool_size,
            is_swept: AtomicBool::new(false),
        }
    }

    /// A connection that was kept.
    pub(super) fn kept(&self, server: &Server, address: SocketAddr, timeouts: &Timeouts) -> Option<Stream> {
        server.kept().take(address, timeouts.server_keepalive)
    }

    /// A new connection, with TLS where the server has that. Cancel safe.
    ///
    /// # Errors
    /// When there is none in time.
    pub(super) async fn connect(&self, server: &Server, address: SocketAddr, timeouts: &Timeouts) -> Result<Stream> {
        let peer = Box::new(server.peer(address, timeouts));
        self.transport.new_stream(&*peer).await
    }

    /// Keeps a connection for the next request.
    pub(super) fn keep(&self, server: &Server, address: SocketAddr, stream: Stream) {
        if self.kept.get() >= self.most_kept {
            self.make_room();
        }
        server.kept().put(stream, address, &self.kept);
        if !self.is_swept.swap(true, Ordering::Relaxed) {
            tokio::spawn(sweep(Arc::downgrade(&self.live)));
        }
    }

    /// Closes the connection that has waited longest, whichever server's it is.
    fn make_room(&self) {
        let in_force = self.live.get();
        let oldest = in_force.servers().filter_map(|server| Some((server.kept().oldest()?, server)));
        if let Some((_, server)) = oldest.min_by_key(|(since, _)| *since) {
            server.kept().drop_oldest();
        }
    }
}

/// Closes kept connections that are no good any more.
async fn sweep(live: Weak<Live>) {
    loop {
        sleep(SWEEP_EVERY).await;
        let Some(live) = live.upgrade() else { return };
        let in_force = live.get();
        let keepalive = in_force.config.timeouts.server_keepalive;
        let swept = in_force.servers().map(|server| server.kept().sweep(keepalive));
        let swept: Vec<_> = swept.filter(|swept| !swept.is_empty()).collect();
        // Requests that come meanwhile are served in between.
        for closed in swept.into_iter().flatten() {
            drop(closed);
            yield_now().await;
        }
    }
}
