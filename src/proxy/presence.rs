//! Whether the client is still there, when Pingora no longer looks.
//!
//! While a response is on its way Pingora watches the client's connection by reading from it. Once it has read a first
//! byte of the next request (a pipelining client, or a stray line end) it keeps that byte and reads no more, and a
//! client that leaves then is not noticed. The kernel still knows, so it is asked, now and then: only then, because
//! asking for each of thousands of streams costs more than relaying them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pingora::protocols::SocketDigest;
use pingora::protocols::http::ServerSession;
use tokio::time::{Instant, Sleep, sleep};

use super::follow::Followed;

/// How often the kernel is asked.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// TCP states in which the client has closed its side, as Linux numbers them: `CLOSE`, `CLOSE_WAIT`, `LAST_ACK`.
const LEFT: [u8; 3] = [7, 8, 9];

/// Watches over one client. Knows nothing of clients that came over HTTP/2, whose streams are watched by other means.
pub(super) struct Presence {
    socket: Option<Arc<SocketDigest>>,
    followed: Option<Followed>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Presence {
    /// Of the client whose requests are followed there.
    pub(super) fn of(session: &ServerSession, followed: Option<Followed>) -> Self {
        let socket = session.as_http1().and_then(|session| session.digest().socket_digest.clone());
        Self { socket, followed, timer: None }
    }

    /// Resolves when the client has left. Cancel safe. To be polled behind what reads from the client: only then it knows
    /// whether that has stopped.
    pub(super) async fn lost(&mut self) {
        std::future::poll_fn(|cx| self.poll_lost(cx)).await;
    }

    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(socket) = &self.socket else { return Poll::Pending };
        if self.followed.as_ref().is_some_and(|followed| !followed.is_ahead()) {
            return Poll::Pending;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(LOOK_EVERY)));
        while timer.as_mut().poll(cx).is_ready() {
            if socket.tcp_info().is_some_and(|info| LEFT.contains(&info.tcpi_state)) {
                return Poll::Ready(());
            }
            timer.as_mut().reset(Instant::now() + LOOK_EVERY);
        }
        Poll::Pending
    }
}
