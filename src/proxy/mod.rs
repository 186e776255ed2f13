//! The proxy: a request's way through Pingora's phases.
//!
//! ```text
//! connection  a client connection: header time limit, keep-alive, pipelining
//! follow      the requests on an HTTP/1 connection, to the letter where Pingora is lenient (chunks)
//! guard       who may do what: keys, closed paths, limits, CORS
//! admit       local answers; the body is read
//! weigh       how long the prompt is, and what the answer may be
//! connect     backoff, a place on a server (the lease), its address
//! loan        the client is watched while a connection to the server is being made
//! request_writer  header and body of a request in one write
//! trail       the answers on that connection, which Pingora reads trailers over in (trailers)
//! request     the header that goes to the server
//! response    judging the server's header, the header that goes to the client
//! outlet      the response on its way to the client: at once, with its trailers and its date (amend)
//! retry       an attempt failed: another one?
//! finish      the last word to the client; the lease drops
//! report      what the journal is told: where it went, how it ended
//! traced      its place in a trace, and what servers are told of that
//! ```

mod admit;
mod amend;
mod answer;
mod chunks;
mod client_stream;
mod connect;
mod connection;
mod context;
mod downstream;
mod events;
mod finish;
mod follow;
mod framing;
mod guard;
mod layer;
mod loan;
mod models;
mod outlet;
mod presence;
mod reject;
mod report;
mod request;
mod request_writer;
mod response;
mod retry;
mod server_connections;
mod silence;
mod traced;
mod trail;
mod trailers;
mod watch;
mod weigh;

#[cfg(test)]
mod tests;

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::protocols::Digest;
use pingora::proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, Result};
use tokio::sync::Semaphore;

pub use connection::ClientConnections;
pub use context::RequestContext;
pub use reject::ERROR_HEADER;
pub use server_connections::ServerConnector;

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
    /// Connections for requests that Tidegate makes itself.
    connector: models::Connector,
    /// A long prompt is counted by a tokenizer.
    counting: Arc<Semaphore>,
    /// Whether connections to servers are made by a [`ServerConnector`].
    follows_servers: bool,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("live", &self.live).finish_non_exhaustive()
    }
}

impl Proxy {
    /// A proxy for the servers that are in force, which are judged by what it meets.
    #[must_use]
    pub fn new(live: Arc<Live>, health: Arc<Health>, drain: Arc<Drain>) -> Self {
        let metrics = Arc::clone(live.metrics());
        let connector = models::connector(live.get().config.uses_system_authorities());
        let counting = Arc::new(Semaphore::new(1));
        Self { live, metrics, health, drain, connector, counting, follows_servers: false }
    }
}

#[async_trait]
impl ProxyHttp for Proxy {
    type CTX = RequestContext;

    fn new_ctx(&self) -> RequestContext {
        connection::header_has_come();
        let watch = watch::Watch::new(Arc::clone(&self.health));
        RequestContext { running: Some(self.drain.request()), ..RequestContext::new(self.live.get(), watch) }
    }

    /// None: nothing is compressed or otherwise changed on its way.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn request_filter(&self, session: &mut Session, ctx: &mut RequestContext) -> Result<bool> {
        self.admit(session, ctx).await
    }

    async fn upstream_peer(&self, session: &mut Session, ctx: &mut RequestContext) -> Result<Box<HttpPeer>> {
        self.choose_server(session, ctx).await
    }

    fn fail_to_connect(
        &self,
        session: &mut Session,
        peer: &HttpPeer,
        ctx: &mut RequestContext,
        error: Box<Error>,
    ) -> Box<Error> {
        self.connect_failed(session, peer, ctx, error)
    }

    async fn connected_to_upstream(
        &self,
        session: &mut Session,
        reused: bool,
        _peer: &HttpPeer,
        _fd: RawFd,
        digest: Option<&Digest>,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        Self::connected(session, ctx)?;
        self.metrics.latency().connected(reused);
        if let Some(wire) = digest.and_then(server_connections::wire) {
            wire.body_follows.set(ctx.request_bytes > 0);
            wire.answers.begin(session.req_header().method == Method::HEAD);
            ctx.watch.connected(wire.answers.clone());
        }
        Ok(())
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        request::prepare(session, request, ctx)
    }

    async fn upstream_response_filter(
        &self,
        _session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        response::judge(response, ctx)
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        response::prepare(session, response, ctx)
    }

    fn response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        _end_of_stream: bool,
        ctx: &mut RequestContext,
    ) -> Result<Option<Duration>> {
        if let Some(piece) = body.as_ref().filter(|piece| !piece.is_empty()) {
            ctx.response_bytes += piece.len() as u64;
        }
        Ok(None)
    }

    fn error_while_proxy(
        &self,
        peer: &HttpPeer,
        session: &mut Session,
        error: Box<Error>,
        ctx: &mut RequestContext,
        client_reused: bool,
    ) -> Box<Error> {
        self.exchange_failed(session, ctx, error.more_context(format!("server {peer}")), client_reused)
    }

    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, ctx: &mut RequestContext) -> FailToProxy {
        self.fail(session, error, ctx).await
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, ctx: &mut RequestContext) {
        self.finish(session, error, ctx);
    }

    /// Pingora would log each failed request as an error; failures are counted instead, and `finish` has a word.
    fn suppress_error_log(&self, _session: &Session, _ctx: &RequestContext, _error: &Error) -> bool {
        true
    }

    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        ctx: &RequestContext,
        error: &Error,
        _context: ProxyWarnLogContext,
    ) -> bool {
        log::debug!("request {}: an attempt failed and is tried elsewhere: {error}", ctx.id());
        true
    }
}
