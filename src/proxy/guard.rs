//! Where the rules of [`crate::access`] meet requests and responses.

use std::net::IpAddr;
use std::sync::Arc;

use http::{StatusCode, header};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::v1::server::HttpSession as ServerSessionV1;
use pingora::protocols::l4::socket::SocketAddr;
use pingora::proxy::Session;
use pingora::{Error, Result};
use tokio::time::Instant;

use super::admit::write_response;
use super::context::RequestContext;
use super::reject::Reject;
use super::request::REQUEST_ID;
use super::{Proxy, connection};
use crate::access::{self, Asked, CREDENTIAL_HEADERS, Cors, Hop, Refused};
use crate::prompt::Demand;

impl Proxy {
    /// Lets a request in by its header, or answers it. True: it is answered.
    pub(super) async fn guard(&self, session: &mut Session, ctx: &mut RequestContext) -> Result<bool> {
        let in_force = Arc::clone(&ctx.in_force);
        let rules = in_force.access.rules();
        let request = session.req_header();
        let (fields, uri_bytes) = (request.headers.len(), request.raw_path().len());
        if let Err(denial) = rules.header_limits.judge(header_bytes(session), fields, uri_bytes) {
            return self.refuse_body(session, ctx, Reject::Denied(denial)).await;
        }
        if let Some(cors) = &rules.cors
            && access::is_preflight(&request.method, &request.headers)
        {
            return self.answer_preflight(cors, session, ctx).await;
        }
        let asked = Asked {
            method: &request.method,
            path: path(request),
            headers: &request.headers,
            peer: ip(session.downstream_session.client_addr()),
        };
        match in_force.access.admit(&asked, Instant::now()) {
            Ok(admission) => {
                if let Some(name) = admission.key_name() {
                    self.metrics.key_admitted(name);
                }
                ctx.admission = Some(admission);
            }
            Err(refused) => return self.turn_away(session, ctx, refused).await,
        }
        if rules.keys.withholds_credentials() {
            for name in &CREDENTIAL_HEADERS {
                session.req_header_mut().remove_header(name);
            }
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

    async fn answer_preflight(&self, cors: &Cors, session: &mut Session, ctx: &mut RequestContext) -> Result<bool> {
        let fields = match cors.preflight(&session.req_header().headers) {
            Ok(fields) => fields,
            Err(denial) => return self.turn_away(session, ctx, denial.into()).await,
        };
        let mut response = ResponseHeader::build(StatusCode::NO_CONTENT, Some(fields.len() + 2))?;
        for (name, value) in fields {
            response.insert_header(name, value)?;
        }
        response.insert_header(header::VARY, "Origin, Access-Control-Request-Headers")?;
        if let Some(request_id) = &ctx.request_id {
            response.insert_header(REQUEST_ID, request_id)?;
        }
        write_response(session, ctx, response, bytes::Bytes::new()).await.map_err(Error::into_down)?;
        Ok(true)
    }

    /// Answers a request that may not go on. Its connection is kept unless a body is on its way.
    async fn turn_away(&self, session: &mut Session, ctx: &mut RequestContext, refused: Refused) -> Result<bool> {
        let reject = self.count(&refused);
        if session.downstream_session.is_body_empty() {
            self.reject(session, ctx, reject).await?;
            return Ok(true);
        }
        self.refuse_body(session, ctx, reject).await
    }

    fn count(&self, refused: &Refused) -> Reject {
        if let Some(name) = &refused.key_name {
            self.metrics.key_rejected(name, refused.denial.reason());
        }
        Reject::Denied(refused.denial)
    }
}

/// Tells a server where the request comes from.
pub(super) fn tell_origin(session: &Session, request: &mut RequestHeader, ctx: &RequestContext) -> Result<()> {
    let client = &session.downstream_session;
    let asked = session.req_header();
    let host = asked.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let hop = Hop {
        peer: ip(client.client_addr()),
        scheme: if client.digest().is_some_and(|digest| digest.ssl_digest.is_some()) { "https" } else { "http" },
        host: host.or_else(|| asked.uri.authority().map(http::uri::Authority::as_str)),
        port: client.server_addr().and_then(SocketAddr::as_inet).map(std::net::SocketAddr::port),
    };
    let trusted = &ctx.in_force.access.rules().trusted_proxies;
    let told = connection::told_origin();
    let mut told = told.lock();
    for (name, value) in &*told.fields(trusted, &hop, &request.headers) {
        match value {
            Some(value) => request.insert_header(name, value)?,
            None => drop(request.remove_header(name)),
        }
    }
    Ok(())
}

/// Tells a browser what a page may do with an answer.
pub(super) fn share(asked: &RequestHeader, response: &mut ResponseHeader, ctx: &RequestContext) -> Result<()> {
    let Some(cors) = &ctx.in_force.access.rules().cors else { return Ok(()) };
    for name in Cors::own_fields() {
        response.remove_header(name);
    }
    for (name, value) in cors.answer(&asked.headers) {
        response.insert_header(name, value)?;
    }
    if cors.varies() {
        response.append_header(header::VARY, "Origin")?;
    }
    Ok(())
}

/// The size of the header as it came; of HTTP/2, as it would have come in HTTP/1.
fn header_bytes(session: &Session) -> usize {
    const BETWEEN_AND_BEHIND: usize = b": \r\n".len();
    if let Some(http1) = session.as_http1() {
        return ServerSessionV1::get_headers_raw_bytes(http1).len();
    }
    let request = session.req_header();
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

pub(super) fn ip(address: Option<&SocketAddr>) -> Option<IpAddr> {
    address.and_then(SocketAddr::as_inet).map(std::net::SocketAddr::ip)
}
