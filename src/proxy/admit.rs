//! From the request header to a measured request: local answers, the body, the measure.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode, header};
use pingora::http::RequestHeader;
use pingora::protocols::http::v1::server::HttpSession as ServerSessionV1;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};
use tokio::time::{Instant, timeout, timeout_at};

use super::context::RequestContext;
use super::follow::Followed;
use super::reject::{Reject, json_response};
use super::silence::Silence;
use super::{Proxy, connection, downstream, framing, guard, models, request};
use crate::config::Config;
use crate::prompt::Endpoint;

/// After an early refusal the rest of the body is read and thrown away for this long, so that the answer is not lost
/// in a connection reset.
const LINGER: Duration = Duration::from_secs(2);

impl Proxy {
    /// Answers what Tidegate answers itself, reads and measures the body of everything else. True: it is answered.
    pub(super) async fn admit(&self, session: &mut Session, ctx: &mut RequestContext) -> Result<bool> {
        ctx.request_id = Some(request::request_id(session.req_header()));
        ctx.endpoint = Endpoint::of(&session.req_header().method, session.req_header().uri.path());
        self.begin_trace(session.req_header(), ctx);
        session.set_write_timeout(ctx.config().timeouts.client_write);
        if self.drain.is_leaving() {
            session.set_keepalive(None);
        }

        let followed = connection::followed();
        if let Some(followed) = &followed {
            followed.next_request();
        }
        let raw = session.as_http1().map(ServerSessionV1::get_headers_raw_bytes).unwrap_or_default();
        if let Some(reject) = framing::fault(session.req_header(), &raw) {
            return self.refuse_body(session, ctx, reject).await;
        }
        // Upgrades are not taken up: Java clients offer h2c with every request, and Pingora 0.9.1 cuts a WebSocket short
        // when the server is quick to accept it.
        session.req_header_mut().remove_header(&header::UPGRADE);

        if self.guard(session, ctx).await? {
            return Ok(true);
        }
        if let Some(length) = content_length(session.req_header())
            && length > ctx.config().max_body_bytes as u64
        {
            let reject = too_large(ctx.config());
            return self.refuse_body(session, ctx, reject).await;
        }
        if request::expects_continue(session.req_header()) {
            session.write_continue_response().await.map_err(Error::into_down)?;
        }
        let read = read_body(session, ctx.config()).await;
        if followed.as_ref().is_some_and(Followed::has_fault) {
            return self.refuse_body(session, ctx, Reject::BadBody).await;
        }
        let body = match read? {
            // Where Pingora sees the end of a body, and strict reading does not, it is in doubt.
            Ok(_) if followed.is_some_and(|followed| !followed.is_over()) => {
                return self.refuse_body(session, ctx, Reject::BadBody).await;
            }
            Ok(body) => body,
            Err(reject) => return self.refuse_body(session, ctx, reject).await,
        };
        ctx.request_bytes = body.len() as u64;

        if is_health_check(session.req_header()) {
            let (status, text) = if self.drain.is_ready() {
                (StatusCode::OK, "ok")
            } else {
                (StatusCode::SERVICE_UNAVAILABLE, "stopping")
            };
            let json = serde_json::json!({ "status": text, "server_instances": ctx.in_force.servers().count() });
            self.answer(session, ctx, status, &json).await?;
            return Ok(true);
        }
        if ctx.endpoint == Endpoint::Models && ctx.in_force.servers().count() > 1 {
            return models::answer(self, session, ctx).await;
        }
        if ctx.endpoint.is_generation() {
            let demand = self.weigh(session.req_header(), &body, ctx).await?;
            if let Err(reject) = self.charge(ctx, &demand) {
                self.reject(session, ctx, reject).await?;
                return Ok(true);
            }
            // Turning text into tokens is no work for an engine, and is done beside it.
            let is_work = demand.work.is_none() || ctx.endpoint != Endpoint::Tokenize;
            ctx.demand = Some(demand).filter(|_| is_work);
        }
        let limits = &ctx.config().timeouts;
        let total_at = limits.total.map(|total| ctx.started + total);
        let silence = Silence::new(limits.first_byte, limits.response_idle, total_at, ctx.at_work.clone());
        let silence = match &ctx.config().health.passive {
            Some(checks) => silence.suspecting(Arc::clone(&ctx.watch), checks),
            None => silence,
        };
        let (watch, drain) = (Arc::clone(&ctx.watch), Arc::clone(&self.drain));
        ctx.slot = Some(downstream::wrap(session, body, silence, watch, drain));
        Ok(false)
    }

    /// Answers with an error while the body is not read to its end, and closes the connection.
    pub(super) async fn refuse_body(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        reject: Reject,
    ) -> Result<bool> {
        session.set_keepalive(None);
        self.reject(session, ctx, reject).await?;
        if !session.downstream_session.is_http2() && !matches!(reject, Reject::BadBody | Reject::BadFraming) {
            // Our side first, so that the client sees the end of the answer; then take what it still sends.
            session.downstream_session.shutdown().await;
            let drain = async { while let Ok(Some(_)) = session.downstream_session.read_request_body().await {} };
            drop(timeout(LINGER, drain).await);
        }
        Ok(true)
    }

    /// Answers with an error of Tidegate's own.
    pub(super) async fn reject(&self, session: &mut Session, ctx: &mut RequestContext, reject: Reject) -> Result<()> {
        let (mut header, body) = reject.response(ctx.request_id.as_ref())?;
        guard::share(session.req_header(), &mut header, ctx)?;
        ctx.reject = Some(reject);
        write_response(session, ctx, header, body).await
    }

    /// Answers with JSON of Tidegate's own.
    pub(super) async fn answer(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        status: StatusCode,
        json: &serde_json::Value,
    ) -> Result<()> {
        let (mut header, body) = json_response(status, json, ctx.request_id.as_ref())?;
        guard::share(session.req_header(), &mut header, ctx)?;
        write_response(session, ctx, header, body).await
    }
}

/// Reads the whole body into memory, once. The inner error is a refusal, the outer one a client that has gone.
async fn read_body(session: &mut Session, config: &Config) -> Result<Result<Bytes, Reject>> {
    let limits = &config.timeouts;
    let deadline = Instant::now() + limits.request_body;
    let expected_bytes = content_length(session.req_header()).and_then(|length| usize::try_from(length).ok());
    let mut body = Body::new(expected_bytes, config.max_body_bytes);
    // Pingora's own limit on pauses would end the connection without an answer.
    session.downstream_session.set_read_timeout(None);
    while !session.is_body_done() {
        let read = timeout(limits.request_body_idle, session.downstream_session.read_request_body());
        let piece = match timeout_at(deadline, read).await {
            Ok(Ok(piece)) => piece.map_err(Error::into_down),
            Ok(Err(_)) => return Ok(Err(Reject::BodyTimeout { limit: "request_body_idle" })),
            Err(_) => return Ok(Err(Reject::BodyTimeout { limit: "request_body" })),
        };
        match piece {
            Ok(Some(piece)) => {
                if !body.push(piece) {
                    return Ok(Err(too_large(config)));
                }
            }
            Ok(None) => break,
            Err(error) if is_client_gone(&error) => return Err(error),
            Err(error) => {
                log::debug!("refused a request body: {error}");
                return Ok(Err(Reject::BadBody));
            }
        }
    }
    Ok(Ok(body.finish()))
}

fn too_large(config: &Config) -> Reject {
    Reject::BodyTooLarge { limit_bytes: config.max_body_bytes }
}

/// Writes a whole response of Tidegate's own to the client; without its body for HEAD.
pub(super) async fn write_response(
    session: &mut Session,
    ctx: &mut RequestContext,
    header: pingora::http::ResponseHeader,
    body: Bytes,
) -> Result<()> {
    let body = if session.req_header().method == Method::HEAD { Bytes::new() } else { body };
    // Nothing of a server's has gone out, whatever came.
    (ctx.status, ctx.response_bytes) = (Some(header.status.as_u16()), body.len() as u64);
    session.downstream_session.write_response_header(Box::new(header)).await.map_err(Error::into_down)?;
    session.downstream_session.write_response_body(body, true).await.map_err(Error::into_down)
}

/// A body in the making. A body that arrives in one piece is never copied; a longer one is copied once, into memory of
/// the announced size.
struct Body {
    first: Option<Bytes>,
    rest: BytesMut,
    expected_bytes: Option<usize>,
    limit_bytes: usize,
}

impl Body {
    fn new(expected_bytes: Option<usize>, limit_bytes: usize) -> Self {
        Self { first: None, rest: BytesMut::new(), expected_bytes, limit_bytes }
    }

    /// Adds a piece; false when the body is now larger than the limit.
    #[must_use]
    fn push(&mut self, piece: Bytes) -> bool {
        let length = self.first.as_ref().map_or(0, Bytes::len) + self.rest.len() + piece.len();
        if length > self.limit_bytes {
            return false;
        }
        if self.first.is_none() && self.rest.is_empty() {
            self.first = Some(piece);
            return true;
        }
        if let Some(first) = self.first.take() {
            self.rest.reserve(self.expected_bytes.unwrap_or(length).max(length));
            self.rest.extend_from_slice(&first);
        }
        self.rest.extend_from_slice(&piece);
        true
    }

    fn finish(self) -> Bytes {
        self.first.unwrap_or_else(|| self.rest.freeze())
    }
}

fn content_length(header: &RequestHeader) -> Option<u64> {
    header.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

fn is_health_check(header: &RequestHeader) -> bool {
    header.uri.path() == "/healthcheck" && matches!(header.method, Method::GET | Method::HEAD)
}

fn is_client_gone(error: &Error) -> bool {
    matches!(error.etype(), ErrorType::ConnectionClosed | ErrorType::ReadError | ErrorType::H2Error)
}
