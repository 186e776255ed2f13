//! The proxy: a request's way from its header to the last byte of its answer.
//!
//! ```text
//! connection     a client connection: header time limit, keep-alive, HTTP/1 or HTTP/2
//! client         the client of one request: its header, and the way back to it
//! framing        headers that can be read in two ways
//! guard          who may do what: keys, closed paths, limits, CORS
//! admit          local answers; the body is read
//! weigh          how long the prompt is, and what the answer may be
//! connect        an attempt: backoff, a place on a server (the lease), a connection
//! request        the header that goes to the server
//! relay          asking, and the answer on its way to the client, held until its first byte
//! response       judging the server's header, the header that goes to the client
//! answer         what the answer says of its server
//! retry          an attempt failed: another one?
//! finish         the last word to the client; the lease drops
//! report         what the journal is told: where it went, how it ended
//! silence        how long a server may keep silent
//! timer          one timer for all limits of a connection
//! traced         its place in a trace, and what servers are told of that
//! ```

mod admit;
mod answer;
mod client;
mod connect;
mod connection;
mod context;
mod events;
mod finish;
mod framing;
mod guard;
mod hop_by_hop;
mod http2_preface;
mod models;
mod reject;
mod relay;
mod report;
mod request;
mod response;
mod retry;
mod server_connections;
mod silence;
mod timer;
mod traced;
mod watch;
mod weigh;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use pingora::Result;
use pingora::server::configuration::ServerConf;
use tokio::sync::Semaphore;

pub use connection::ClientConnections;
pub use reject::ERROR_HEADER;

use self::client::Client;
use self::context::RequestContext;
use self::server_connections::ServerConnections;
use crate::drain::Drain;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::upstream::Live;

/// Takes requests, chooses a server for each, and relays both ways.
pub struct Proxy {
    live: Arc<Live>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    drain: Arc<Drain>,
    servers: ServerConnections,
    /// A long prompt is counted by a tokenizer.
    counting: Arc<Semaphore>,
    #[cfg(test)]
    panics_at_answers: bool,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("live", &self.live).finish_non_exhaustive()
    }
}

impl Proxy {
    /// A proxy for the servers that are in force, which are judged by what it meets; with Pingora's settings for
    /// connections to them.
    #[must_use]
    pub fn new(conf: &ServerConf, live: Arc<Live>, health: Arc<Health>, drain: Arc<Drain>) -> Self {
        let metrics = Arc::clone(live.metrics());
        let servers = ServerConnections::new(conf, Arc::clone(&live));
        Self {
            live,
            metrics,
            health,
            drain,
            servers,
            counting: Arc::new(Semaphore::new(1)),
            #[cfg(test)]
            panics_at_answers: false,
        }
    }

    /// Serves one request, to the last byte of its answer. True when its connection may serve another one.
    async fn serve(&self, client: &mut Client<'_>) -> bool {
        let mut ctx = RequestContext::new(self.live.get(), self.drain.request());
        let error = self.handle(client, &mut ctx).await.err();
        if let Some(error) = &error {
            // Here and elsewhere, what is rare is kept apart: it would make every stream larger.
            Box::pin(self.fail(client, error, &mut ctx)).await;
        }
        self.finish(client, error.as_deref(), &mut ctx);
        error.is_none() && client.is_kept()
    }

    async fn handle(&self, client: &mut Client<'_>, ctx: &mut RequestContext) -> Result<()> {
        if self.admit(client, ctx).await? {
            return Ok(());
        }
        loop {
            match self.attempt(client, ctx).await {
                // See `retry`.
                Err(error) if error.retry() => {
                    log::debug!("request {}: an attempt failed and is tried elsewhere: {error}", ctx.id());
                }
                outcome => return outcome,
            }
        }
    }
}
