//! `/events`: what happens, as it happens, for the live page and for `tidegate top`.
//!
//! A stream of server-sent events:
//!
//! | event | data | when |
//! |---|---|---|
//! | `hello` | `changes`: whether servers can be drained from here: `open`, with the `token`, or `closed` | first |
//! | `status` | the JSON of `/status`, on one line | then, and twice a second |
//! | `recent` | a list of the latest requests that were over by then, as in `ended`; some may come again there | after the first status |
//! | `placed` | a request was given a place on a server ([`Placed`](crate::journal::Placed)) | at once |
//! | `ended` | a request is over ([`Record`](crate::access_log::Record)) | at once |
//! | `lagged` | `missed`: how many of these two were not sent, because this watcher was too slow | when that was so |
//!
//! It costs something only while somebody watches, and mostly on the thread of the admin listener; what it costs the
//! requests is bounded by the [journal](crate::journal). A watcher that does not take what it is sent holds one piece of
//! it and what the journal holds for all, and is let go after a while.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Response, Version};
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use serde::Serialize;
use serde_json::json;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::access::{self, Wish};
use super::status;
use crate::drain::Drain;
use crate::journal::Event;
use crate::reload::Reloader;

const EVENT_STREAM: &str = "text/event-stream";

/// How often the status is sent.
const STATUS_EVERY: Duration = Duration::from_millis(500);

/// What has happened is sent in pieces of about so many bytes, when it happens faster than it can be sent.
const PIECE_BYTES: usize = 64 * 1_024;

/// A watcher that takes nothing for so long has gone, or might as well have.
const PATIENCE: Duration = Duration::from_secs(30);

/// Somebody who watches.
pub(super) struct Watcher {
    reloader: Arc<Reloader>,
    drain: Arc<Drain>,
    /// Of the request: they are judged again and again, because rules change with the configuration.
    headers: HeaderMap,
}

/// The header of the stream, but for its framing.
pub(super) fn header() -> Response<Vec<u8>> {
    let mut response = Response::new(Vec::new());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    // Understood by nginx, in case there is one: nothing is to be collected on the way.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Whether a response has no end that is known beforehand.
pub(super) fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind == EVENT_STREAM)
}

impl Watcher {
    pub(super) fn new(reloader: Arc<Reloader>, drain: Arc<Drain>, headers: HeaderMap) -> Self {
        Self { reloader, drain, headers }
    }

    /// Sends events until the watcher leaves or may not watch any more, or until the listener closes.
    pub(super) async fn watch(self, session: &mut ServerSession, mut shutdown: ShutdownWatch) -> pingora::Result<()> {
        // Before anything else: who has the header misses nothing that happens from then on.
        let mut journal = self.reloader.live().journal().follow();
        let (mut header, _) = header().into_parts();
        header.headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        // To a client of HTTP/1.0 the end of the connection is the end.
        if session.req_header().version >= Version::HTTP_11 {
            header.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        session.set_write_timeout(Some(PATIENCE));
        session.write_response_header(Box::new(header.into())).await?;
        let mut piece = self.beginning();
        let mut ticks = interval_at(Instant::now() + STATUS_EVERY, STATUS_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Not in the arms below: a write that is given up half done would leave the stream unreadable.
            session.write_response_body(piece, false).await?;
            piece = tokio::select! {
                biased;
                // An error means that the service is gone.
                _ = shutdown.wait_for(|is_closed| *is_closed) => break,
                _ = ticks.tick() => {
                    if !self.may_watch() {
                        break;
                    }
                    self.status()
                }
                happened = journal.recv() => match happenings(happened, &mut journal) {
                    Some(piece) => piece,
                    None => break,
                },
            };
        }
        session.write_response_body(Bytes::new(), true).await
    }

    fn may_watch(&self) -> bool {
        let config = &self.reloader.live().get().config;
        access::refusal(&config.admin_access, config.admin, Wish::Read, &self.headers).is_none()
    }

    fn beginning(&self) -> Bytes {
        let live = self.reloader.live();
        let config = &live.get().config;
        let changes = access::changes(&config.admin_access, config.admin, &self.headers);
        let mut piece = BytesMut::new();
        put(&mut piece, "hello", &json!({ "changes": changes }));
        piece.extend_from_slice(&self.status());
        let recent = live.journal().recent();
        put(&mut piece, "recent", &recent.iter().map(Arc::as_ref).collect::<Vec<&Event>>());
        piece.freeze()
    }

    fn status(&self) -> Bytes {
        let mut piece = BytesMut::new();
        put_line(&mut piece, "status", &status::line(&self.reloader, self.drain.is_ready()));
        piece.freeze()
    }
}

/// What has happened, and what else has happened by now, in one piece; `None` when nothing will happen any more.
fn happenings(first: Result<Arc<Event>, RecvError>, journal: &mut Receiver<Arc<Event>>) -> Option<Bytes> {
    let mut piece = BytesMut::new();
    let mut next = first.map_err(|error| match error {
        RecvError::Closed => TryRecvError::Closed,
        RecvError::Lagged(missed) => TryRecvError::Lagged(missed),
    });
    loop {
        match next {
            Ok(event) => put(&mut piece, event.name(), event.as_ref()),
            Err(TryRecvError::Lagged(missed)) => put(&mut piece, "lagged", &json!({ "missed": missed })),
            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
        }
        if piece.len() >= PIECE_BYTES {
            break;
        }
        next = journal.try_recv();
    }
    (!piece.is_empty()).then(|| piece.freeze())
}

fn put(piece: &mut BytesMut, name: &str, data: &impl Serialize) {
    let line = serde_json::to_vec(data).expect("all keys are strings and no value can fail");
    put_line(piece, name, &line);
}

/// Adds an event whose data is one line.
fn put_line(piece: &mut BytesMut, name: &str, line: &[u8]) {
    for part in [b"event: ", name.as_bytes(), b"\ndata: ", line, b"\n\n"] {
        piece.extend_from_slice(part);
    }
}
