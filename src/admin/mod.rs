//! The admin listener: the live page at `/`, its `/events`, `/metrics`, `/status`, `/healthz`, `/readyz`, and what changes
//! something: `/reload`, `/drain`, `/undrain`.
//!
//! A listener and a thread of its own: it answers while the proxy's threads are busy, and scraping takes no time from
//! them. It shows names and addresses of servers, so it belongs on loopback, in a closed network, or behind its token
//! (`access.rs` has the rules). Keys are never shown.

mod access;
mod allowed;
mod change;
mod configured;
mod engine;
mod events;
mod explain;
mod page;
mod status;
#[cfg(test)]
mod tests;
mod work;

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use pingora::apps::{HttpPersistentSettings, HttpServerApp, ReusedHttpStream};
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use pingora::services::listening::Service;
use serde_json::json;

use access::Wish;
use events::Watcher;

use crate::drain::Drain;
use crate::metrics::Format;
use crate::reload::Reloader;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

const INDEX: &str = concat!(
    "Tidegate ",
    env!("CARGO_PKG_VERSION"),
    "\n\n\
     /         in a browser: the live page\n\
     /events   what happens, as it happens (server-sent events)\n\
     /metrics  counters and gauges for Prometheus\n\
     /status   load, totals and the configuration in force, as JSON\n\
     /healthz  ok while the process lives\n\
     /readyz   ok until the process is told to stop, then 503\n\n\
     POST /explain               why a request of this body would go where it would go, or {\"prompt_tokens\": N}\n\
     POST /reload                put the configuration file in force\n\
     POST /drain?server=NAME     give a server nothing new\n\
     POST /undrain?server=NAME   give it requests again\n"
);

/// For how long a connection is kept for the next request, in seconds.
const KEEPALIVE_SECONDS: u64 = 60;

/// What is sent to a request.
enum Answer {
    /// A whole response.
    Whole(Response<Vec<u8>>),
    /// Events, until somebody leaves.
    Events(Watcher),
    /// Why a request would go where it would go, once its body is here.
    Explanation,
}

/// Answers the requests of the admin listener.
#[derive(Debug)]
pub struct Admin {
    reloader: Arc<Reloader>,
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
    pub fn new(reloader: Arc<Reloader>, drain: Arc<Drain>) -> Self {
        Self { reloader, drain }
    }

    async fn answer(&self, request: &RequestHeader) -> Answer {
        let (method, path) = (&request.method, request.uri.path());
        let wish = match path {
            "/healthz" | "/readyz" => Wish::Health,
            "/" if page::is_wanted(&request.headers) => Wish::Page,
            "/" | "/events" | "/metrics" | "/status" => Wish::Read,
            "/explain" => Wish::Ask,
            "/reload" | "/drain" | "/undrain" => Wish::Change,
            _ => {
                let message = "there is no such page, GET / lists what there is";
                return Answer::Whole(error(StatusCode::NOT_FOUND, "not_found", message));
            }
        };
        let live = self.reloader.live();
        let config = &live.get().config;
        if let Some(refusal) = access::refusal(&config.admin_access, config.admin, wish, &request.headers) {
            return Answer::Whole(refusal);
        }
        match wish {
            Wish::Change | Wish::Ask if method != Method::POST => {
                let message = match wish {
                    Wish::Ask => "this page explains a request, POST its body or {\"prompt_tokens\": N}",
                    _ => "this page changes something, use POST",
                };
                return Answer::Whole(method_not_allowed(message, HeaderValue::from_static("POST")));
            }
            Wish::Health | Wish::Page | Wish::Read if method != Method::GET && method != Method::HEAD => {
                let allowed = HeaderValue::from_static("GET, HEAD");
                return Answer::Whole(method_not_allowed("this page can only be read, use GET", allowed));
            }
            _ => {}
        }
        Answer::Whole(match path {
            "/healthz" => page(StatusCode::OK, TEXT, "ok\n"),
            "/readyz" if self.drain.is_ready() => page(StatusCode::OK, TEXT, "ok\n"),
            "/readyz" => page(StatusCode::SERVICE_UNAVAILABLE, TEXT, "stopping\n"),
            "/metrics" => {
                let accept = request.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
                let format = Format::negotiate(accept);
                let listener = config.tls.as_ref().map(|tls| &tls.listener);
                let certificate = listener.map(|listener| {
                    (listener.files().certificate.display().to_string(), listener.valid_until_seconds())
                });
                let refused = config.tls_files().iter().filter(|files| files.is_refused()).count();
                live.metrics().tls(certificate, refused);
                let metrics = live.metrics().render(live.balancer(), &live.queue().waiting(), format);
                page(StatusCode::OK, format.content_type(), metrics)
            }
            "/status" => page(StatusCode::OK, JSON, status::json(&self.reloader, self.drain.is_ready())),
            "/events" if method == Method::HEAD => events::header(),
            "/events" => return Answer::Events(self.watcher(request.headers.clone())),
            "/explain" => return Answer::Explanation,
            "/reload" => change::reload(&self.reloader).await,
            "/drain" => change::drain(live, request.uri.query(), true),
            "/undrain" => change::drain(live, request.uri.query(), false),
            _ if wish == Wish::Page => page::response(),
            _ => page(StatusCode::OK, TEXT, INDEX),
        })
    }

    fn watcher(&self, headers: HeaderMap) -> Watcher {
        Watcher::new(Arc::clone(&self.reloader), Arc::clone(&self.drain), headers)
    }
}

#[async_trait]
impl HttpServerApp for Admin {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        match session.read_request().await {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => {
                log::debug!("admin: no request: {error}");
                return None;
            }
        }
        session.set_keepalive((!*shutdown.borrow()).then_some(KEEPALIVE_SECONDS));
        let sent = match self.answer(session.req_header()).await {
            Answer::Whole(response) => send(&mut session, response).await,
            Answer::Explanation => {
                let response = explain::answer(self.reloader.live(), &mut session).await;
                send(&mut session, response).await
            }
            Answer::Events(watcher) => {
                session.set_keepalive(None);
                watcher.watch(&mut session, shutdown.clone()).await
            }
        };
        let settings = HttpPersistentSettings::for_session(&session);
        let finished = match sent {
            Ok(()) => session.finish().await,
            Err(error) => Err(error),
        };
        match finished {
            Ok(connection) => Some(ReusedHttpStream::from_reusable_stream(connection?, settings)),
            Err(error) => {
                log::debug!("admin: not answered: {error}");
                None
            }
        }
    }
}

/// Sends a whole response; to a HEAD, its header.
async fn send(session: &mut ServerSession, response: Response<Vec<u8>>) -> pingora::Result<()> {
    let (mut header, body) = response.into_parts();
    if !events::is_stream(&header.headers) {
        header.headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
    header.headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    session.write_response_header(Box::new(header.into())).await?;
    if session.req_header().method == Method::HEAD || body.is_empty() {
        return Ok(());
    }
    session.write_response_body(body.into(), true).await
}

fn method_not_allowed(message: &str, allowed: HeaderValue) -> Response<Vec<u8>> {
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
    response.headers_mut().insert(ALLOW, allowed);
    response
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
