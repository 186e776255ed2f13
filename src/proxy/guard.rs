//! Where the rules of [`crate::access`] meet requests and responses.

use std::borrow::Cow;
use std::sync::Arc;

use http::{StatusCode, header};
use pingora::Result;
use pingora::http::{RequestHeader, ResponseHeader};
use tokio::time::Instant;

use super::Proxy;
use super::admit::write_response;
use super::client::{Client, Origin};
use super::context::RequestContext;
use super::reject::Reject;
use super::request::REQUEST_ID;
use crate::access::{self, Asked, CREDENTIAL_HEADERS, Cors, Hop, OriginFields, Refused};
use crate::http1::Changes;
use crate::prompt::Demand;

impl Proxy {
    /// Lets a request in by its header, or answers it. True: it is answered.
    pub(super) async fn guard(&self, client: &mut Client<'_>, ctx: &mut RequestContext) -> Result<bool> {
        let in_force = Arc::clone(&ctx.in_force);
        let rules = in_force.access.rules();
        let request = client.request();
        let (fields, uri_bytes) = (request.headers.len(), request.raw_path().len());
        if let Err(denial) = rules.header_limits.judge(header_bytes(client), fields, uri_bytes) {
            return Box::pin(self.refuse_body(client, ctx, Reject::Denied(denial))).await;
        }
        if let Some(cors) = &rules.cors
            && access::is_preflight(&request.method, &request.headers)
        {
            return Box::pin(self.answer_preflight(cors, client, ctx)).await;
        }
        let asked = Asked {
            method: &request.method,
            path: path(request),
            headers: &request.headers,
            peer: client.origin().peer,
        };
        match in_force.access.admit(&asked, Instant::now()) {
            Ok(admission) => {
                if let Some(name) = admission.key_name() {
                    self.metrics.key_admitted(name);
                }
                ctx.admission = Some(admission);
            }
            Err(refused) => return Box::pin(self.turn_away(client, ctx, refused)).await,
        }
        Ok(false)
    }

    /// Counts a measured prompt under the limits of its key.
    ///
    /// # Errors
    /// The answer, when they are used up.
    pub(super) fn charge(&self, ctx: &RequestContext, demand: &Demand) -> std::result::Result<(), Reject> {
        let Some(admission) = &ctx.admission else { return Ok(()) };
        let prompt_tokens = demand.prompt_tokens();
        let charged = ctx.in_force.access.charge(admission, prompt_tokens, Instant::now());
        charged.map_err(|refused| self.count(&refused))?;
        if let Some(name) = admission.key_name() {
            self.metrics.key_charged(name, prompt_tokens);
        }
        Ok(())
    }

    async fn answer_preflight(&self, cors: &Cors, client: &mut Client<'_>, ctx: &mut RequestContext) -> Result<bool> {
        let fields = match cors.preflight(&client.request().headers) {
            Ok(fields) => fields,
            Err(denial) => return self.turn_away(client, ctx, denial.into()).await,
        };
        let mut response = ResponseHeader::build(StatusCode::NO_CONTENT, Some(fields.len() + 2))?;
        for (name, value) in fields {
            response.insert_header(name, value)?;
        }
        response.insert_header(header::VARY, "Origin, Access-Control-Request-Headers")?;
        if let Some(request_id) = &ctx.request_id {
            response.insert_header(&REQUEST_ID, request_id)?;
        }
        write_response(client, ctx, response, &[]).await?;
        Ok(true)
    }

    /// Answers a request that may not go on. Its connection is kept unless a body is on its way.
    async fn turn_away(&self, client: &mut Client<'_>, ctx: &mut RequestContext, refused: Refused) -> Result<bool> {
        let reject = self.count(&refused);
        if client.has_no_body() {
            self.reject(client, ctx, reject).await?;
            return Ok(true);
        }
        self.refuse_body(client, ctx, reject).await
    }

    fn count(&self, refused: &Refused) -> Reject {
        if let Some(name) = &refused.key_name {
            self.metrics.key_rejected(name, refused.denial.reason());
        }
        Reject::Denied(refused.denial)
    }
}

/// What a server is told of where a request comes from.
pub(super) fn told<'a>(request: &RequestHeader, origin: &'a mut Origin, ctx: &RequestContext) -> Cow<'a, OriginFields> {
    let host = request.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let hop = Hop {
        peer: origin.peer,
        scheme: if origin.has_tls { "https" } else { "http" },
        host: host.or_else(|| request.uri.authority().map(http::uri::Authority::as_str)),
        port: origin.port,
    };
    let trusted = &ctx.in_force.access.rules().trusted_proxies;
    origin.told.fields(trusted, &hop, &request.headers)
}

/// Tells a server where the request comes from, and nothing that is only for Tidegate.
pub(super) fn tell<'a>(told: &'a OriginFields, changes: &mut Changes<'a>, ctx: &RequestContext) {
    if ctx.in_force.access.rules().keys.withholds_credentials() {
        for name in &CREDENTIAL_HEADERS {
            changes.remove(name.as_str());
        }
    }
    for (name, value) in told {
        match value {
            Some(value) => changes.set(name.as_str(), value.as_bytes()),
            None => changes.remove(name.as_str()),
        }
    }
}

/// Tells a browser what a page may do with an answer.
pub(super) fn share(asked: &RequestHeader, changes: &mut Changes<'_>, ctx: &RequestContext) {
    let Some(cors) = &ctx.in_force.access.rules().cors else { return };
    for name in Cors::own_fields() {
        changes.remove(name.as_str());
    }
    for (name, value) in cors.answer(&asked.headers) {
        changes.set(name.as_str().to_owned(), value.as_bytes().to_vec());
    }
    if cors.varies() {
        changes.add("vary", &b"Origin"[..]);
    }
}

/// The size of the header as it came; of HTTP/2, as it would have come in HTTP/1.
fn header_bytes(client: &Client<'_>) -> usize {
    const BETWEEN_AND_BEHIND: usize = b": \r\n".len();
    if !client.is_http2() {
        return client.raw().len();
    }
    let request = client.request();
    let field =
        |(name, value): (&http::HeaderName, &http::HeaderValue)| name.as_str().len() + value.len() + BETWEEN_AND_BEHIND;
    request.raw_path().len() + request.headers.iter().map(field).sum::<usize>()
}

/// The path as it goes to a server.
fn path(request: &RequestHeader) -> &[u8] {
    let raw = request.raw_path();
    let target = if raw.starts_with(b"/") { raw } else { request.uri.path().as_bytes() };
    target.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap_or_default()
}
