//! One request on one connection to a server: asked there, and the answer relayed while it comes.
//!
//! The header of an answer is held back until the first byte of its body: vLLM sends `200` before a request is even
//! scheduled, and once the header has gone out nothing can be tried elsewhere.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::StatusCode;
use pingora::{Error, ErrorType, Result};
use tokio::time::Instant;

use super::answer::{Answer, Piece};
use super::client::Client;
use super::context::RequestContext;
use super::response;
use super::silence::Silence;
use super::watch::Written;
use crate::drain::Drain;
use crate::health::Health;
use crate::http1::{End, Outbound, Part, ResponseHead};

/// What is known of an answer while it is relayed.
pub(super) struct Relay {
    answer: Answer,
    silence: Silence,
    drain: Arc<Drain>,
    /// A final header that waits for the first byte of its body.
    held: Option<ResponseHead>,
    /// Pieces behind it of which it is not yet known what they mean.
    unclear: Vec<u8>,
    /// Why the request could not be written to its end; its answer may be there nevertheless.
    not_asked: Option<io::Error>,
    /// Since when the client has not taken what was written.
    slow_since: Option<Instant>,
}

enum Step {
    /// Something waits for the client, and has to be written before more is read.
    Write,
    /// The answer has come to its end, and the client has taken it.
    Over,
}

impl Relay {
    pub(super) fn new(silence: Silence, health: &Arc<Health>, drain: &Arc<Drain>) -> Self {
        Self {
            answer: Answer::new(Arc::clone(health)),
            silence,
            drain: Arc::clone(drain),
            held: None,
            unclear: Vec::new(),
            not_asked: None,
            slow_since: None,
        }
    }

    /// Asks the server, and relays what it answers.
    ///
    /// # Errors
    /// When either side leaves, when the answer cannot be relayed, is better sought elsewhere, or takes too long.
    pub(super) async fn run(
        &mut self,
        client: &mut Client<'_>,
        server: &mut Outbound,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        loop {
            match poll_fn(|cx| self.poll(cx, client, server, ctx)).await? {
                Step::Over => return Ok(()),
                Step::Write => {
                    let began = Instant::now();
                    client.written().await?;
                    self.silence.forgive(began.elapsed());
                }
            }
        }
    }

    /// What the answer has brought, as far as it is counted.
    pub(super) fn written(&mut self) -> Option<Written> {
        self.answer.written()
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client<'_>,
        server: &mut Outbound,
        ctx: &mut RequestContext,
    ) -> Poll<Result<Step>> {
        loop {
            if client.has_frames() {
                return Poll::Ready(Ok(Step::Write));
            }
            // Who does not read holds its server back.
            if !client.is_written() {
                let slow_since = *self.slow_since.get_or_insert_with(Instant::now);
                match client.poll_written(cx) {
                    Poll::Ready(written) => written?,
                    Poll::Pending => return client.poll_gone(cx).map(|()| Err(has_left())),
                }
                // That was not the server's silence.
                self.silence.forgive(slow_since.elapsed());
                self.slow_since = None;
            }
            if server.is_over() {
                return Poll::Ready(Ok(Step::Over));
            }
            if !server.is_asked()
                && self.not_asked.is_none()
                && let Poll::Ready(Err(error)) = server.poll_asked(cx)
            {
                self.not_asked = Some(error);
            }
            match server.poll_answer(cx, |cx, part| self.relay(cx, client, ctx, part)) {
                Poll::Ready(Ok(())) => continue,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(self.reason(error))),
                Poll::Pending => {}
            }
            if client.poll_gone(cx).is_ready() {
                return Poll::Ready(Err(has_left()));
            }
            return self
                .silence
                .poll_exceeded(cx, client.timer(), &mut ctx.watch, &self.answer.health)
                .map(Error::err_up);
        }
    }

    /// Why an exchange has failed: a server that takes no request gives no answer either.
    fn reason(&mut self, error: Box<Error>) -> Box<Error> {
        let is_of_connection = matches!(error.etype(), ErrorType::ReadError | ErrorType::ConnectionClosed);
        match self.not_asked.take() {
            Some(cause) if is_of_connection => {
                Error::because(ErrorType::WriteError, "writing a request", cause).into_up()
            }
            _ => error,
        }
    }

    fn relay(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client<'_>,
        ctx: &mut RequestContext,
        part: Part<'_>,
    ) -> Result<()> {
        match part {
            Part::Header(head, is_end) => self.header(cx, client, ctx, head, is_end),
            Part::Data(data, end) => self.data(cx, client, ctx, data, end),
        }
    }

    fn header(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client<'_>,
        ctx: &mut RequestContext,
        head: ResponseHead,
        is_end: bool,
    ) -> Result<()> {
        let header = &head.header;
        response::judge(header, ctx)?;
        if header.status == StatusCode::CONTINUE {
            // The client has been told that before.
            return Ok(());
        }
        if header.status.is_informational() {
            self.silence.heard(Instant::now());
            return client.announce(cx, &head, &response::prepare(client, header, ctx));
        }
        if self.answer.header(&mut ctx.watch, header) {
            self.silence.stream_opened();
        }
        if is_end {
            let now = Instant::now();
            self.answer.begun(&mut ctx.watch, now);
            self.silence.heard(now);
            return self.begin(cx, client, ctx, head, &[], Some(End { trailers: None }));
        }
        self.held = Some(head);
        Ok(())
    }

    fn begin(
        &self,
        cx: &mut Context<'_>,
        client: &mut Client<'_>,
        ctx: &RequestContext,
        head: ResponseHead,
        pieces: &[&[u8]],
        end: Option<End>,
    ) -> Result<()> {
        if self.drain.is_leaving() {
            client.close_after();
        }
        let changes = response::prepare(client, &head.header, ctx);
        client.begin(cx, head, changes, pieces, end)
    }

    fn data(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client<'_>,
        ctx: &mut RequestContext,
        data: &[u8],
        end: Option<End>,
    ) -> Result<()> {
        let now = Instant::now();
        ctx.response_bytes += data.len() as u64;
        let piece = if data.is_empty() {
            // The end, also of an answer without a body.
            self.answer.begun(&mut ctx.watch, now);
            Piece::Life
        } else {
            self.answer.piece(&mut ctx.watch, data, end.is_some(), self.held.is_some(), now)?
        };
        match piece {
            Piece::Unclear => {
                self.unclear.extend_from_slice(data);
                return Ok(());
            }
            Piece::Life => self.silence.heard(now),
            Piece::Comment => {}
        }
        match self.held.take() {
            Some(head) => {
                let unclear = std::mem::take(&mut self.unclear);
                let is_stream = end.is_none();
                self.begin(cx, client, ctx, head, &[&unclear, data], end)?;
                // It is not tried elsewhere any more: what a long stream does not need goes.
                if is_stream {
                    ctx.body = Bytes::new();
                    client.forget_fields()?;
                }
                Ok(())
            }
            None => client.go_on_with(cx, data, end),
        }
    }
}

pub(super) fn has_left() -> Box<Error> {
    Error::explain(ErrorType::ConnectionClosed, "the client has left").into_down()
}
