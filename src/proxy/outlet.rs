//! Passes a response on to the client, with what Pingora would leave out of it or keep back.

use std::sync::Arc;

use http::header::{CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use pingora::http::ResponseHeader;
use pingora::protocols::http::{HttpTask, ServerSession};
use pingora::{Error, ErrorType, Result};

use super::amend::Amendments;
use super::connection;
use super::trailers::Trailers;
use crate::drain::Drain;

/// The way to one client.
pub(super) struct Outlet {
    is_http1: bool,
    /// What Pingora writes to an HTTP/1 client is amended there.
    amendments: Option<Amendments>,
    drain: Arc<Drain>,
    /// Whether the response has a `Content-Length`.
    has_length: bool,
    /// Whether it goes to the client in chunks, if that speaks HTTP/1.
    is_chunked: bool,
}

/// Not an error: everything before it has been written.
const FLUSHED: ErrorType = ErrorType::Custom("Flushed");

impl Outlet {
    pub(super) fn new(real: &ServerSession, drain: Arc<Drain>) -> Self {
        let is_http1 = real.as_http1().is_some();
        let amendments = if is_http1 { connection::amendments() } else { None };
        Self { is_http1, amendments, drain, has_length: false, is_chunked: false }
    }

    /// A response begins whose body is passed on behind this header.
    pub(super) fn begin(&mut self, header: &ResponseHeader) {
        self.has_length = header.headers.contains_key(CONTENT_LENGTH);
        self.is_chunked = header.headers.contains_key(TRANSFER_ENCODING);
    }

    /// Passes a header on by itself.
    pub(super) async fn header(&self, real: &mut ServerSession, header: Box<ResponseHeader>) -> Result<()> {
        self.header_goes_out(real, &header);
        let written = real.write_response_header(header).await;
        self.amended();
        written
    }

    /// Passes tasks on to the client now; true when they end the response.
    pub(super) async fn pass_on(&self, real: &mut ServerSession, mut tasks: Vec<HttpTask>) -> Result<bool> {
        for task in &tasks {
            if let HttpTask::Header(header, _) = task {
                self.header_goes_out(real, header);
            }
        }
        // Pingora is in no hurry with a body of known length: in HTTP/1 it keeps each piece until its buffer is full or
        // the body is whole. It flushes before it hands out an error, so an error of ours goes behind the piece.
        let must_flush = self.is_http1 && self.has_length && !tasks.last().is_some_and(HttpTask::is_end);
        if must_flush {
            tasks.push(HttpTask::Failed(Error::new(FLUSHED)));
        }
        let passed_on = real.response_duplex_vec(tasks).await;
        self.amended();
        match passed_on {
            Err(error) if must_flush && *error.etype() == FLUSHED => Ok(false),
            passed_on => passed_on,
        }
    }

    /// Passes the last tasks of a response on, with its trailers behind the body.
    pub(super) async fn end_with(
        &self,
        real: &mut ServerSession,
        mut tasks: Vec<HttpTask>,
        trailers: Trailers,
    ) -> Result<bool> {
        // They are the end in place of the last task, which may have a piece of the body.
        if let Some(HttpTask::Body(Some(data), _)) = tasks.pop() {
            tasks.push(HttpTask::Body(Some(data), false));
        }
        if !self.is_http1 {
            tasks.push(HttpTask::Trailer(Some(Box::new(trailers.into_map()))));
            return self.pass_on(real, tasks).await;
        }
        if !tasks.is_empty() {
            self.pass_on(real, tasks).await?;
        }
        // By itself: what Pingora writes next is the end of the body and nothing else.
        if let Some(amendments) = self.amendments.as_ref().filter(|_| self.is_chunked) {
            amendments.trailers(trailers.lines());
        }
        let passed_on = real.response_duplex_vec(vec![HttpTask::Done]).await;
        self.amended();
        passed_on
    }

    /// A header is about to be written: if the process is on its way out, it says that the connection ends.
    fn header_goes_out(&self, real: &mut ServerSession, header: &ResponseHeader) {
        if self.drain.is_leaving() {
            real.set_keepalive(None);
        }
        if let Some(amendments) = self.amendments.as_ref().filter(|_| !header.status.is_informational()) {
            amendments.date(header.headers.get_all(DATE).iter().cloned().collect());
        }
    }

    /// What was to be amended has been written.
    fn amended(&self) {
        if let Some(amendments) = &self.amendments {
            amendments.done();
        }
    }
}
