//! The admin listener: `/metrics`, `/status`, `/healthz`, `/readyz`.
//!
//! A listener and a thread of its own: it answers while the proxy's threads are busy, and scraping takes no time from
//! them. It only reads, has no authentication and shows names and addresses of servers, so it belongs on loopback or
//! in a closed network. Keys are never shown.

mod access;
mod configured;
mod status;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Method, Response, StatusCode};
use pingora::apps::http_app::ServeHttp;
use pingora::protocols::http::ServerSession;
use pingora::services::listening::Service;
use serde_json::json;

use crate::drain::Drain;
use crate::metrics::Format;
use crate::upstream::Live;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

const INDEX: &str = concat!(
    "Tidegate ",
    env!("CARGO_PKG_VERSION"),
    "\n\n\
     /metrics  counters and gauges for Prometheus\n\
     /status   load, totals and the configuration in force, as JSON\n\
     /healthz  ok while the process lives\n\
     /readyz   ok until the process is told to stop, then 503\n"
);

/// Answers the requests of the admin listener.
#[derive(Debug)]
pub struct Admin {
    live: Arc<Live>,
    drain: Arc<Drain>,
}

/// The admin listener as a service to be added to a Pingora server.
#[must_use]
pub fn service(listen: SocketAddr, admin: Admin) -> Service<Admin> {
    let mut service = Service::new("admin".to_owned(), admin);
    service.add_tcp(&listen.to_string());
    service.threads = Some(1);
    service
}

impl Admin {
    /// Shows what is in force and how it goes.
    #[must_use]
    pub fn new(live: Arc<Live>, drain: Arc<Drain>) -> Self {
        Self { live, drain }
    }

    fn answer<'a>(&self, method: &Method, path: &str, accept: impl Iterator<Item = &'a str>) -> Response<Vec<u8>> {
        if !matches!(path, "/" | "/healthz" | "/readyz" | "/metrics" | "/status") {
            return error(StatusCode::NOT_FOUND, "not_found", "there is no such page, GET / lists what there is");
        }
        if method != Method::GET && method != Method::HEAD {
            let mut response =
                error(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this page can only be read, use GET");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match path {
            "/healthz" => page(StatusCode::OK, TEXT, "ok\n"),
            "/readyz" if self.drain.is_ready() => page(StatusCode::OK, TEXT, "ok\n"),
            "/readyz" => page(StatusCode::SERVICE_UNAVAILABLE, TEXT, "stopping\n"),
            "/metrics" => {
                let format = Format::negotiate(accept);
                page(
                    StatusCode::OK,
                    format.content_type(),
                    self.live.metrics().render(self.live.balancer(), &self.live.queue().waiting(), format),
                )
            }
            "/status" => page(StatusCode::OK, JSON, status::json(&self.live)),
            _ => page(StatusCode::OK, TEXT, INDEX),
        }
    }
}

#[async_trait]
impl ServeHttp for Admin {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let request = session.req_header();
        let accept = request.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut response = self.answer(&request.method, request.uri.path(), accept);
        let length = HeaderValue::from(response.body().len());
        response.headers_mut().insert(CONTENT_LENGTH, length);
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if request.method == Method::HEAD {
            response.body_mut().clear();
        }
        response
    }
}

fn page(status: StatusCode, content_type: &'static str, body: impl Into<Vec<u8>>) -> Response<Vec<u8>> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// An error in the form that the OpenAI API has, as everywhere in Tidegate.
fn error(status: StatusCode, code: &str, message: &str) -> Response<Vec<u8>> {
    let body = json!({ "error": { "message": message, "type": "invalid_request_error", "code": code } });
    page(status, JSON, body.to_string())
}
