//! The client's session as Pingora sees it while a request is being proxied.
//!
//! Pingora 0.9.1 asks for a server before any byte of the body flows, and replays an already read body only from a
//! buffer of 64 KiB, beyond which the body is silently lost. It also passes a response header on the moment it
//! arrives. Tidegate needs the whole body before it chooses, again for every attempt, and must not let a header out
//! before the first body byte: vLLM sends `200` before a request is even scheduled, and after that nothing could be
//! tried elsewhere.
//!
//! So once the body is read, the real session is wrapped in a [`ClientSession`], which Pingora takes for a session
//! type of its own (`HttpSession::Custom`). It
//! - claims that the body is done and has it all in its retry buffer, which Pingora then sends in every attempt;
//! - holds the response header back until the first body byte or the end of the response;
//! - passes each piece of a body on when it comes, also of one whose length is known;
//! - passes trailers on, and the server's `Date`;
//! - ends the attempt when the server keeps silent for too long, which also works while the request is still being
//!   written.
//!
//! [`wrap`] puts it in place, [`unwrap`] takes it out again: in `fail_to_proxy` and in `logging`, which Pingora calls
//! before it decides about keeping the connection. The real session then comes back through a slot that the context
//! shares with the wrapper; the wrapper fills it when it is dropped, so no path can lose it. When a panic drops both,
//! the connection closes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use http::HeaderMap;
use parking_lot::Mutex;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::custom::CustomMessageWrite;
use pingora::protocols::http::custom::server::Session as CustomSession;
use pingora::protocols::http::{HttpTask, ServerSession};
use pingora::protocols::{Digest, l4::socket::SocketAddr};
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};
use tokio::time::Instant;

use super::answer::{Answer, Piece};
use super::connection;
use super::outlet::Outlet;
use super::presence::Presence;
use super::silence::Silence;
use super::watch::Watch;
use crate::drain::Drain;

/// Where the real session comes back to.
pub(super) type Slot = Arc<Mutex<Option<Box<ServerSession>>>>;

/// Puts the wrapper in place of the session whose body was read.
pub(super) fn wrap(session: &mut Session, body: Bytes, silence: Silence, watch: Arc<Watch>, drain: Arc<Drain>) -> Slot {
    let slot = Slot::default();
    let real = std::mem::replace(&mut session.downstream_session, placeholder());
    let presence = Presence::of(&real, connection::followed());
    let outlet = Outlet::new(&real, drain);
    let wrapper = ClientSession {
        real: Some(real),
        outlet,
        slot: Arc::clone(&slot),
        body,
        held: None,
        unclear: Vec::new(),
        answer: Answer::new(Arc::clone(&watch)),
        watch,
        presence,
        silence,
    };
    *session.downstream_session = ServerSession::new_custom(Box::new(wrapper));
    slot
}

/// Takes the wrapper out again, together with a header that was held back. Does nothing when there is none.
pub(super) fn unwrap(session: &mut Session, slot: &Slot) {
    if session.downstream_session.is_custom() {
        drop(std::mem::replace(&mut *session.downstream_session, ServerSession::new_custom(Box::new(()))));
        if let Some(real) = slot.lock().take() {
            session.downstream_session = real;
        }
    }
}

/// Stands in for a session that is elsewhere; nothing may be asked of it.
pub(super) fn placeholder() -> Box<ServerSession> {
    Box::new(ServerSession::new_custom(Box::new(())))
}

struct ClientSession {
    /// Taken by `drop` only.
    real: Option<Box<ServerSession>>,
    outlet: Outlet,
    slot: Slot,
    body: Bytes,
    /// A final response header that waits for the first byte of its body.
    held: Option<Box<ResponseHeader>>,
    /// Pieces behind it of which it is not yet known what they mean.
    unclear: Vec<HttpTask>,
    answer: Answer,
    watch: Arc<Watch>,
    presence: Presence,
    silence: Silence,
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        *self.slot.lock() = self.real.take();
    }
}

const TAKEN_BY_DROP: &str = "only drop takes the session";

impl ClientSession {
    fn real(&self) -> &ServerSession {
        self.real.as_deref().expect(TAKEN_BY_DROP)
    }

    fn real_mut(&mut self) -> &mut ServerSession {
        self.real.as_deref_mut().expect(TAKEN_BY_DROP)
    }

    /// Sorts what came from the server into what goes to the client now.
    fn release(&mut self, tasks: Vec<HttpTask>) -> Released {
        let mut released = Released { outgoing: Vec::with_capacity(tasks.len() + 1), is_life: false, error: None };
        for task in tasks {
            match task {
                HttpTask::Header(header, false) if !header.status.is_informational() => {
                    self.outlet.begin(&header);
                    if self.answer.header(&header) {
                        self.silence.stream_opened();
                    }
                    self.unclear.clear();
                    self.held = Some(header);
                }
                HttpTask::Body(data, false) if data.as_ref().is_none_or(Bytes::is_empty) => {}
                HttpTask::Failed(error) => return Released { error: Some(error), ..released },
                HttpTask::Header(header, is_end) => {
                    if is_end {
                        self.answer.header(&header);
                        self.answer.begun();
                    }
                    released.is_life = true;
                    released.outgoing.push(HttpTask::Header(header, is_end));
                }
                _ => match self.meaning(&task) {
                    Ok(Piece::Unclear) => self.unclear.push(task),
                    Ok(piece) => {
                        released.is_life |= piece == Piece::Life;
                        released.outgoing.extend(self.held.take().map(|header| HttpTask::Header(header, false)));
                        released.outgoing.append(&mut self.unclear);
                        released.outgoing.push(task);
                    }
                    Err(error) => {
                        self.unclear.clear();
                        released.error = Some(error);
                        return released;
                    }
                },
            }
        }
        released
    }

    /// What a piece of the answer behind its header means.
    fn meaning(&mut self, task: &HttpTask) -> Result<Piece> {
        match task {
            HttpTask::Body(Some(data), is_end) if !data.is_empty() => {
                self.answer.piece(data, *is_end, self.held.is_some())
            }
            // The end, with or without trailers: also of an answer without a body.
            _ => {
                self.answer.begun();
                Ok(Piece::Life)
            }
        }
    }
}

/// What goes to the client now.
struct Released {
    outgoing: Vec<HttpTask>,
    /// Whether it shows that the server works.
    is_life: bool,
    /// What came behind it.
    error: Option<Box<Error>>,
}

#[async_trait]
impl CustomSession for ClientSession {
    fn req_header(&self) -> &RequestHeader {
        self.real().req_header()
    }

    fn req_header_mut(&mut self) -> &mut RequestHeader {
        self.real_mut().req_header_mut()
    }

    /// A new attempt begins: what an earlier one held back is void.
    fn enable_retry_buffering(&mut self) {
        self.held = None;
        self.unclear.clear();
        self.silence.begin_attempt();
    }

    fn retry_buffer_truncated(&self) -> bool {
        false
    }

    fn get_retry_buffer(&self) -> Option<Bytes> {
        (!self.body.is_empty()).then(|| self.body.clone())
    }

    fn is_body_done(&mut self) -> bool {
        true
    }

    fn is_body_empty(&mut self) -> bool {
        self.body.is_empty()
    }

    async fn read_body_bytes(&mut self) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// Waits for the client to leave, or for the server to have been silent for too long.
    async fn read_body_or_idle(&mut self, _no_body_expected: bool) -> Result<Option<Bytes>> {
        let real = self.real.as_deref_mut().expect(TAKEN_BY_DROP);
        tokio::select! {
            biased;
            gone = real.read_body_or_idle(true) => gone,
            () = self.presence.lost() => Error::err_down(ErrorType::ConnectionClosed),
            limit = self.silence.exceeded() => Error::err_up(limit),
        }
    }

    async fn response_duplex_vec(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        let Released { outgoing, is_life, error } = self.release(tasks);
        let mut done = false;
        if !outgoing.is_empty() {
            let began = Instant::now();
            if is_life {
                self.silence.heard(began);
            }
            let ends = matches!(outgoing.last(), Some(HttpTask::Body(_, true) | HttpTask::Done));
            let trailers = if ends { self.watch.trailers() } else { None };
            let real = self.real.as_deref_mut().expect(TAKEN_BY_DROP);
            done = match trailers {
                None => self.outlet.pass_on(real, outgoing).await?,
                Some(trailers) => self.outlet.end_with(real, outgoing, trailers).await?,
            };
            // Time spent on a slow client is not the server's silence.
            self.silence.forgive(began.elapsed());
        }
        match error {
            Some(error) => Err(error),
            None => Ok(done),
        }
    }

    async fn finish(&mut self) -> Result<()> {
        if let Some(header) = self.held.take() {
            let real = self.real.as_deref_mut().expect(TAKEN_BY_DROP);
            self.outlet.header(real, header).await?;
        }
        self.real_mut().finish_body().await
    }

    async fn drain_request_body(&mut self) -> Result<()> {
        self.real_mut().drain_request_body().await
    }

    async fn write_response_header(&mut self, header: Box<ResponseHeader>, _end: bool) -> Result<()> {
        self.real_mut().write_response_header(header).await
    }

    async fn write_response_header_ref(&mut self, header: &ResponseHeader, _end: bool) -> Result<()> {
        self.real_mut().write_response_header_ref(header).await
    }

    async fn write_body(&mut self, data: Bytes, end: bool) -> Result<()> {
        self.real_mut().write_response_body(data, end).await
    }

    async fn write_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        self.real_mut().write_response_trailers(trailers).await
    }

    fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.real_mut().set_read_timeout(timeout);
    }

    fn get_read_timeout(&self) -> Option<Duration> {
        self.real().get_read_timeout()
    }

    fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.real_mut().set_write_timeout(timeout);
    }

    fn get_write_timeout(&self) -> Option<Duration> {
        self.real().get_write_timeout()
    }

    fn set_total_drain_timeout(&mut self, timeout: Option<Duration>) {
        self.real_mut().set_total_drain_timeout(timeout);
    }

    fn get_total_drain_timeout(&self) -> Option<Duration> {
        self.real().get_total_drain_timeout()
    }

    fn request_summary(&self) -> String {
        self.real().request_summary()
    }

    fn response_written(&self) -> Option<&ResponseHeader> {
        self.real().response_written()
    }

    async fn shutdown(&mut self, _code: u32, _reason: &str) {
        self.real_mut().shutdown().await;
    }

    fn body_bytes_sent(&self) -> usize {
        self.real().body_bytes_sent()
    }

    fn body_bytes_read(&self) -> usize {
        self.real().body_bytes_read()
    }

    fn digest(&self) -> Option<&Digest> {
        self.real().digest()
    }

    fn digest_mut(&mut self) -> Option<&mut Digest> {
        self.real_mut().digest_mut()
    }

    fn client_addr(&self) -> Option<&SocketAddr> {
        self.real().client_addr()
    }

    fn server_addr(&self) -> Option<&SocketAddr> {
        self.real().server_addr()
    }

    fn pseudo_raw_h1_request_header(&self) -> Bytes {
        self.real().to_h1_raw()
    }

    // Messages beside the HTTP exchange: there are none.

    async fn finish_custom(&mut self) -> Result<()> {
        Ok(())
    }

    fn take_custom_message_reader(
        &mut self,
    ) -> Option<Box<dyn Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>> {
        None
    }

    fn restore_custom_message_reader(
        &mut self,
        _reader: Box<dyn Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>,
    ) -> Result<()> {
        Ok(())
    }

    fn take_custom_message_writer(&mut self) -> Option<Box<dyn CustomMessageWrite>> {
        None
    }

    fn restore_custom_message_writer(&mut self, _writer: Box<dyn CustomMessageWrite>) -> Result<()> {
        Ok(())
    }
}
