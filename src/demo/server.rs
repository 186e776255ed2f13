//! The HTTP side: paths, whole answers, streams, and clients that leave.

use std::future::Future;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode};
use log::debug;
use pingora::apps::{HttpPersistentSettings, HttpServerApp, ReusedHttpStream};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::date::get_cached_date;
use pingora::server::ShutdownWatch;
use pingora::{Error, ErrorType, Result};

use super::DemoSettings;
use super::answer::Answer;
use super::engine::Engine;
use super::refusal::Refusal;
use super::reply::{self, DONE, Reply, Usage};
use super::request::{Endpoint, Generation};

/// Largest request body that is read. Tidegate's own default limit, so that the demo refuses nothing before it.
const MAX_BODY_BYTES: usize = 64 << 20;

/// How long an idle connection is kept, as vLLM does.
const KEEPALIVE_SECONDS: u64 = 5;

const JSON: &str = "application/json";

const METRICS: &str = "text/plain; version=1.0.0; charset=utf-8";

/// A demo server as a Pingora application. Made by [`service`](super::service).
#[derive(Debug)]
pub struct DemoServer {
    name: String,
    /// Tells the servers apart in `system_fingerprint`.
    fingerprint: String,
    started: u64,
    settings: DemoSettings,
    engine: Engine,
}

/// What is to be done with a request.
enum Route {
    Empty,
    Json(String),
    /// Of the server's metrics.
    Metrics(String),
    Generate(Endpoint),
    Refuse(Refusal),
    /// Refused for its method; `allow` is the one that would do.
    Allow(&'static str),
}

#[async_trait]
impl HttpServerApp for DemoServer {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        // A pipelined request waits for its turn, as with vLLM, instead of being taken for a client that misbehaves.
        session.set_pipelining_enabled(true);
        match session.read_request().await {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => {
                debug!("demo server {}: no request could be read: {error}", self.name);
                session.respond_error(400).await.ok();
                return None;
            }
        }
        let keepalive = (!*shutdown.borrow()).then_some(KEEPALIVE_SECONDS);
        session.set_keepalive(keepalive);
        if let Err(error) = self.serve(&mut session).await {
            debug!("demo server {}: {}: {error}", self.name, session.request_summary());
            return None;
        }
        let settings = HttpPersistentSettings::for_session(&session);
        let stream = session.finish().await.ok()??;
        Some(ReusedHttpStream::from_reusable_stream(stream, settings))
    }
}

impl DemoServer {
    pub(super) fn new(name: &str, settings: DemoSettings) -> Self {
        let engine = Engine::new(settings.prefill_tokens_per_second, settings.token_interval);
        let fingerprint = format!("tidegate-demo-{name}");
        Self { name: name.to_owned(), fingerprint, started: unix_seconds(), settings, engine }
    }

    /// Answers one request. After an error the connection is of no use any more.
    async fn serve(&self, session: &mut ServerSession) -> Result<()> {
        let head = session.req_header();
        match self.route(&head.method, head.uri.path()) {
            Route::Empty => respond(session, StatusCode::OK, None, "").await,
            Route::Json(body) => respond(session, StatusCode::OK, None, &body).await,
            Route::Metrics(page) => respond_as(METRICS, session, StatusCode::OK, None, &page).await,
            Route::Refuse(refusal) => respond(session, refusal.status, None, &refusal.body).await,
            Route::Allow(method) => {
                let refusal = Refusal::method_not_allowed();
                respond(session, refusal.status, Some(method), &refusal.body).await
            }
            Route::Generate(endpoint) => match self.read(session, endpoint).await? {
                Ok(generation) => self.generate(session, &generation).await,
                Err(refusal) => respond(session, refusal.status, None, &refusal.body).await,
            },
        }
    }

    fn route(&self, method: &Method, path: &str) -> Route {
        let (route, allow) = match path {
            "/health" => (Route::Empty, "GET"),
            "/ping" if method == Method::POST => return Route::Empty,
            "/ping" => (Route::Empty, "GET"),
            "/version" => {
                (Route::Json(concat!(r#"{"version":"demo-"#, env!("CARGO_PKG_VERSION"), r#""}"#).into()), "GET")
            }
            "/metrics" => {
                let waiting = self.engine.waiting();
                let running = self.engine.running().saturating_sub(waiting);
                (Route::Metrics(reply::metrics(&self.settings.model_name, running, waiting)), "GET")
            }
            "/load" => (Route::Json(format!(r#"{{"server_load":{}}}"#, self.engine.running())), "GET"),
            "/v1/models" => {
                let models = reply::models(&self.settings.model_name, self.settings.max_model_len, self.started);
                (Route::Json(models), "GET")
            }
            "/v1/chat/completions" => (Route::Generate(Endpoint::Chat), "POST"),
            "/v1/completions" => (Route::Generate(Endpoint::Completions), "POST"),
            _ => return Route::Refuse(Refusal::not_found()),
        };
        if method.as_str() == allow { route } else { Route::Allow(allow) }
    }

    /// Reads the body and what it asks for.
    async fn read(&self, session: &mut ServerSession, endpoint: Endpoint) -> Result<Result<Generation, Refusal>> {
        if session.get_header_bytes("expect").eq_ignore_ascii_case(b"100-continue") {
            session.write_continue_response().await?;
        }
        let mut body = BytesMut::new();
        while let Some(piece) = session.read_request_body().await? {
            if body.len() + piece.len() > MAX_BODY_BYTES {
                // The rest is not read, so the connection cannot be used again.
                session.set_keepalive(None);
                return Ok(Err(Refusal::body_too_large(MAX_BODY_BYTES)));
            }
            body.extend_from_slice(&piece);
        }
        let media_type =
            session.get_header_bytes("content-type").split(|byte| *byte == b';').next().unwrap_or_default();
        if !media_type.trim_ascii().eq_ignore_ascii_case(JSON.as_bytes()) {
            return Ok(Err(Refusal::media_type()));
        }
        Ok(Generation::parse(endpoint, &body, &self.settings))
    }

    async fn generate(&self, session: &mut ServerSession, generation: &Generation) -> Result<()> {
        let request_id = match session.get_header("x-request-id").and_then(|id| id.to_str().ok()) {
            Some(id) => id.to_owned(),
            None => format!("{:016x}", rand::random::<u64>()),
        };
        let model = &self.settings.model_name;
        let reply = Reply::new(generation.endpoint, &request_id, unix_seconds(), model, &self.fingerprint);
        let _running = self.engine.enter();
        if generation.stream {
            self.stream(session, generation, &reply).await
        } else {
            self.whole(session, generation, &reply).await
        }
    }

    /// Sends the header at once, as vLLM does, and each token as it is made.
    async fn stream(&self, session: &mut ServerSession, generation: &Generation, reply: &Reply) -> Result<()> {
        let mut header = header(StatusCode::OK)?;
        header.insert_header("content-type", "text/event-stream; charset=utf-8")?;
        header.insert_header("vary", "Origin")?;
        header.insert_header("transfer-encoding", "chunked")?;
        session.write_response_header(Box::new(header)).await?;

        let prefill = unless_gone(session, self.engine.prefill(generation.prompt_tokens)).await?;
        let answer = Answer::new(&self.name, generation, prefill);
        if let Some(event) = reply.opening_event() {
            send(session, event).await?;
        }
        let mut left = answer.len();
        for token in answer.tokens() {
            left -= 1;
            let finish = (left == 0).then(|| answer.finish());
            let closing = left == 0 && !generation.include_usage;
            send(session, reply.token_event(token, finish, closing)).await?;
            if left > 0 {
                unless_gone(session, self.engine.decode()).await?;
            }
        }
        if generation.include_usage {
            send(session, reply.usage_event(usage(generation, &answer))).await?;
        }
        session.write_response_body(Bytes::from_static(DONE.as_bytes()), true).await
    }

    /// Sends nothing until all tokens are made, as vLLM does.
    async fn whole(&self, session: &mut ServerSession, generation: &Generation, reply: &Reply) -> Result<()> {
        let prefill = unless_gone(session, self.engine.prefill(generation.prompt_tokens)).await?;
        let answer = Answer::new(&self.name, generation, prefill);
        for _ in 1..answer.len() {
            unless_gone(session, self.engine.decode()).await?;
        }
        let text: String = answer.tokens().collect();
        let body = reply.whole(text.trim_end(), answer.finish(), usage(generation, &answer));
        respond(session, StatusCode::OK, None, &body).await
    }
}

fn usage(generation: &Generation, answer: &Answer) -> Usage {
    Usage { prompt_tokens: generation.prompt_tokens, completion_tokens: answer.len() }
}

/// Does some work, but drops it as soon as the client closes its connection or half of it.
///
/// # Errors
/// When the client has gone.
async fn unless_gone<T>(session: &mut ServerSession, work: impl Future<Output = T> + Send) -> Result<T> {
    tokio::select! {
        done = work => Ok(done),
        idle = session.read_body_or_idle(true) => match idle {
            Err(gone) => Err(gone),
            Ok(_) => Error::e_explain(ErrorType::ConnectionClosed, "while the answer was made"),
        },
    }
}

async fn send(session: &mut ServerSession, event: String) -> Result<()> {
    // Pingora flushes after each chunk, so an event leaves at once.
    session.write_response_body(Bytes::from(event), false).await
}

async fn respond(
    session: &mut ServerSession,
    status: StatusCode,
    allow: Option<&'static str>,
    body: &str,
) -> Result<()> {
    respond_as(JSON, session, status, allow, body).await
}

async fn respond_as(
    content_type: &'static str,
    session: &mut ServerSession,
    status: StatusCode,
    allow: Option<&'static str>,
    body: &str,
) -> Result<()> {
    let mut header = header(status)?;
    if let Some(method) = allow {
        header.insert_header("allow", method)?;
    }
    header.insert_header("content-length", body.len())?;
    if !body.is_empty() {
        header.insert_header("content-type", content_type)?;
    }
    header.insert_header("vary", "Origin")?;
    session.write_response_header(Box::new(header)).await?;
    session.write_response_body(Bytes::copy_from_slice(body.as_bytes()), true).await
}

fn header(status: StatusCode) -> Result<ResponseHeader> {
    // Keeps the case of the names as written below: lower case, as vLLM sends them.
    let mut header = ResponseHeader::build(status, Some(8))?;
    header.insert_header("date", get_cached_date())?;
    header.insert_header("server", "tidegate-demo")?;
    Ok(header)
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}
