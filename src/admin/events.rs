//! `/events`: what happens, as it happens, for the live page and for `tidegate top`.
//!
//! A stream of server-sent events:
//!
//! | event | data | when |
//! |---|---|---|
//! | `hello` | what the page may do | first |
//! | `status` | the JSON of `/status`, on one line | then, and twice a second |
//!
//! It costs what it shows only while somebody watches, and on the thread of the admin listener. A watcher that does not
//! take what it is sent holds one piece of it, and is let go after a while.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Response, Version};
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use super::access::{self, Wish};
use super::status;
use crate::drain::Drain;
use crate::reload::Reloader;

const EVENT_STREAM: &str = "text/event-stream";

/// How often the status is sent.
const STATUS_EVERY: Duration = Duration::from_millis(500);

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
        let (mut header, _) = header().into_parts();
        header.headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        // To a client of HTTP/1.0 the end of the connection is the end.
        if session.req_header().version >= Version::HTTP_11 {
            header.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        session.set_write_timeout(Some(PATIENCE));
        session.write_response_header(Box::new(header.into())).await?;
        let mut ticks = interval(STATUS_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut piece = self.hello();
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
            };
        }
        session.write_response_body(Bytes::new(), true).await
    }

    fn may_watch(&self) -> bool {
        let config = &self.reloader.live().get().config;
        access::refusal(&config.admin_access, config.admin, Wish::Read, &self.headers).is_none()
    }

    fn hello(&self) -> Bytes {
        let config = &self.reloader.live().get().config;
        let changes = access::changes(&config.admin_access, config.admin, &self.headers);
        event("hello", json!({ "changes": changes }).to_string().as_bytes())
    }

    fn status(&self) -> Bytes {
        event("status", &status::line(&self.reloader, self.drain.is_ready()))
    }
}

/// An event whose data is one line.
fn event(name: &str, line: &[u8]) -> Bytes {
    let mut event = BytesMut::with_capacity(name.len() + line.len() + 16);
    for part in [b"event: ", name.as_bytes(), b"\ndata: ", line, b"\n\n"] {
        event.put_slice(part);
    }
    event.freeze()
}
