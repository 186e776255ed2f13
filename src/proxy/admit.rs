//! From the request header to a measured request: local answers, the body, the measure.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::{Method, StatusCode, header};
use pingora::Result;
use pingora::http::{RequestHeader, ResponseHeader};
use tokio::time::{Instant, timeout, timeout_at};

use super::client::Client;
use super::context::RequestContext;
use super::reject::{Reject, json_response};
use super::{Proxy, framing, guard, models, request};
use crate::config::Config;
use crate::http1::{Changes, Read};
use crate::prompt::Endpoint;

/// After an early refusal the rest of the body is read and thrown away for this long, so that the answer is not lost
/// in a connection reset.
const LINGER: Duration = Duration::from_secs(2);

impl Proxy {
    /// Answers what Tidegate answers itself, reads and measures the body of everything else. True: it is answered.
    pub(super) async fn admit(&self, client: &mut Client<'_>, ctx: &mut RequestContext) -> Result<bool> {
        ctx.request_id = Some(request::request_id(client.request()));
        ctx.endpoint = Endpoint::of(&client.request().method, client.request().uri.path());
        self.begin_trace(client.request(), ctx);
        client.limit_writes(ctx.config().timeouts.client_write);
        if self.drain.is_leaving() {
            client.close_after();
        }

        if let Some(reject) = framing::fault(client.request(), client.raw()) {
            return Box::pin(self.refuse_body(client, ctx, reject)).await;
        }
        if client.request().method == Method::CONNECT {
            return Box::pin(self.refuse_body(client, ctx, Reject::Tunnel)).await;
        }
        if self.guard(client, ctx).await? {
            return Ok(true);
        }
        if let Some(length) = content_length(client.request())
            && length > ctx.config().max_body_bytes as u64
        {
            let reject = too_large(ctx.config());
            return Box::pin(self.refuse_body(client, ctx, reject)).await;
        }
        if request::expects_continue(client.request()) {
            client.go_on().await?;
        }
        let body = match read_body(client, ctx.config()).await? {
            Ok(body) => body,
            Err(reject) => return Box::pin(self.refuse_body(client, ctx, reject)).await,
        };
        ctx.request_bytes = body.len() as u64;

        if is_health_check(client.request()) {
            let (status, text) = if self.drain.is_ready() {
                (StatusCode::OK, "ok")
            } else {
                (StatusCode::SERVICE_UNAVAILABLE, "stopping")
            };
            let json = serde_json::json!({ "status": text, "server_instances": ctx.in_force.servers().count() });
            Box::pin(self.answer(client, ctx, status, &json)).await?;
            return Ok(true);
        }
        if ctx.endpoint == Endpoint::Models && ctx.in_force.servers().count() > 1 {
            Box::pin(models::answer(self, client, ctx)).await?;
            return Ok(true);
        }
        if ctx.endpoint.is_generation() {
            let demand = self.weigh(client.request(), &body, ctx).await?;
            if let Err(reject) = self.charge(ctx, &demand) {
                Box::pin(self.reject(client, ctx, reject)).await?;
                return Ok(true);
            }
            // Turning text into tokens is no work for an engine, and is done beside it.
            let is_work = demand.work.is_none() || ctx.endpoint != Endpoint::Tokenize;
            ctx.demand = Some(demand).filter(|_| is_work);
        }
        ctx.body = body;
        Ok(false)
    }

    /// Answers with an error while the body is not read to its end, and closes the connection.
    pub(super) async fn refuse_body(
        &self,
        client: &mut Client<'_>,
        ctx: &mut RequestContext,
        reject: Reject,
    ) -> Result<bool> {
        client.close_after();
        self.reject(client, ctx, reject).await?;
        if !matches!(reject, Reject::BadBody | Reject::BadFraming) {
            client.linger(LINGER).await;
        }
        Ok(true)
    }

    /// Answers with an error of Tidegate's own.
    pub(super) async fn reject(&self, client: &mut Client<'_>, ctx: &mut RequestContext, reject: Reject) -> Result<()> {
        let (mut header, body) = reject.response(ctx.request_id.as_ref())?;
        share(client, &mut header, ctx);
        ctx.reject = Some(reject);
        write_response(client, ctx, header, &body).await
    }

    /// Answers with JSON of Tidegate's own.
    pub(super) async fn answer(
        &self,
        client: &mut Client<'_>,
        ctx: &mut RequestContext,
        status: StatusCode,
        json: &serde_json::Value,
    ) -> Result<()> {
        let (mut header, body) = json_response(status, json, ctx.request_id.as_ref())?;
        share(client, &mut header, ctx);
        write_response(client, ctx, header, &body).await
    }
}

/// Reads the whole body into memory, once. The inner error is a refusal, the outer one a client that has gone.
async fn read_body(client: &mut Client<'_>, config: &Config) -> Result<Result<Bytes, Reject>> {
    let limits = &config.timeouts;
    let (mut body, mut deadline) = (BytesMut::new(), None);
    loop {
        // What has come needs no clock.
        let read = match client.read_body(&mut body).now_or_never() {
            Some(read) => read?,
            None => {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + limits.request_body);
                let read = timeout(limits.request_body_idle, client.read_body(&mut body));
                match timeout_at(deadline, read).await {
                    Ok(Ok(read)) => read?,
                    Ok(Err(_)) => return Ok(Err(Reject::BodyTimeout { limit: "request_body_idle" })),
                    Err(_) => return Ok(Err(Reject::BodyTimeout { limit: "request_body" })),
                }
            }
        };
        if body.len() > config.max_body_bytes {
            return Ok(Err(too_large(config)));
        }
        match read {
            Read::More => {}
            Read::End => return Ok(Ok(body.freeze())),
            Read::Fault => return Ok(Err(Reject::BadBody)),
        }
    }
}

fn too_large(config: &Config) -> Reject {
    Reject::BodyTooLarge { limit_bytes: config.max_body_bytes }
}

/// Writes a whole response of Tidegate's own to the client; without its body for HEAD.
pub(super) async fn write_response(
    client: &mut Client<'_>,
    ctx: &mut RequestContext,
    header: ResponseHeader,
    body: &[u8],
) -> Result<()> {
    let body = if client.request().method == Method::HEAD { &[] } else { body };
    // Nothing of a server's has gone out, whatever came.
    (ctx.status, ctx.response_bytes) = (Some(header.status.as_u16()), body.len() as u64);
    client.answer(header.into(), body).await
}

/// Tells a browser what a page may do with an answer of Tidegate's own.
pub(super) fn share(client: &Client<'_>, header: &mut ResponseHeader, ctx: &RequestContext) {
    let mut changes = Changes::dropping(&[]);
    guard::share(client.request(), &mut changes, ctx);
    changes.apply(header);
}

fn content_length(header: &RequestHeader) -> Option<u64> {
    header.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

fn is_health_check(header: &RequestHeader) -> bool {
    header.uri.path() == "/healthcheck" && matches!(header.method, Method::GET | Method::HEAD)
}
