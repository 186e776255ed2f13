//! Stopping without losing a request: what runs, who may still connect, and how the process comes to its end.
//!
//! ```text
//! SIGTERM   not ready -> delay -> no new connections -> last call -> nothing runs, or the grace is over -> exit 0
//! SIGQUIT   sockets handed to a successor -> both accept -> no new connections -> ... as above
//! SIGINT, or a second signal: the end, at once
//! ```
//!
//! Pingora 0.9.1 stops its services and then sleeps a fixed time, busy or idle and deaf to signals. So it is told of
//! the end only when that has come ([`Signals`]), and until then its services stop when [`Drain`] says so
//! ([`Closable`]).

mod announce;
mod closable;
mod hand_over;
mod signals;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use pingora::server::ShutdownWatch;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

pub(crate) use announce::SERVES;
pub use closable::{Closable, Sockets};
pub use signals::Signals;

/// After the last connection was accepted: how long a client may take to begin a request on an idle connection, new or
/// kept. Without it a request that is on its way right then would be lost.
const LAST_CALL: Duration = Duration::from_secs(1);

/// How long a connection that was just accepted may take to be counted.
const SETTLE: Duration = Duration::from_millis(100);

/// How often the counts are looked at while the process comes to its end.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Where a connection without a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// It is kept for the next request.
    Serving,
    /// It is kept, but its next response is the last one.
    Leaving,
    /// It is closed.
    Closing,
}

/// What runs in this process, and how far the process is on its way out. Shared by all that serve clients.
#[derive(Debug)]
pub struct Drain {
    phase: watch::Sender<Phase>,
    not_ready: AtomicBool,
    clients_closed: watch::Sender<bool>,
    admin_closed: watch::Sender<bool>,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

/// Something that runs, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            phase: watch::Sender::new(Phase::Serving),
            not_ready: AtomicBool::new(false),
            clients_closed: watch::Sender::new(false),
            admin_closed: watch::Sender::new(false),
            connections: Arc::default(),
            requests: Arc::default(),
        }
    }
}

impl Drain {
    /// Whether new requests should come here: false once the process is told to stop. A process that hands over to a
    /// successor stays ready, since the same address goes on serving.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.not_ready.load(Ordering::Relaxed)
    }

    /// Whether responses should ask clients to close their connections.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        *self.phase.borrow() >= Phase::Leaving
    }

    /// Counts a connection of a client.
    pub fn connection(&self) -> Running {
        running(&self.connections)
    }

    /// Counts a request, from its header to its end.
    pub fn request(&self) -> Running {
        running(&self.requests)
    }

    /// Resolves when connections without a request are to be closed. Cancel safe.
    pub async fn last_call_over(&self) {
        // An error means that the sender is gone, and it is here.
        self.phase.subscribe().wait_for(|phase| *phase == Phase::Closing).await.ok();
    }

    /// Turns true when no more clients are to be accepted.
    #[must_use]
    pub fn clients_closed(&self) -> ShutdownWatch {
        self.clients_closed.subscribe()
    }

    /// Turns true when the admin listener is to close: a successor has it. Before the end of a process without one it
    /// stays open, so that the end can be watched.
    #[must_use]
    pub fn admin_closed(&self) -> ShutdownWatch {
        self.admin_closed.subscribe()
    }

    fn connections_open(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    fn requests_running(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    fn stop_being_ready(&self) {
        self.not_ready.store(true, Ordering::Relaxed);
    }

    fn leave(&self) {
        self.phase.send_replace(Phase::Leaving);
    }

    fn close_admin(&self) {
        self.admin_closed.send_replace(true);
    }

    /// Accepts no more clients, and waits until nothing runs any more, for `grace` at the longest. Returns how many
    /// requests still run then.
    async fn finish(&self, grace: Duration) -> usize {
        let end = Instant::now() + grace;
        self.clients_closed.send_replace(true);
        timeout_at(end, async {
            sleep(SETTLE).await;
            wait_within(LAST_CALL, || self.connections_open() == 0).await;
            self.phase.send_replace(Phase::Closing);
            wait(|| self.requests_running() == 0).await;
            // What is written still has to leave the process; a peer that is dead to HTTP/2's goodbye is not waited for.
            wait_within(LAST_CALL, || self.connections_open() == 0).await;
        })
        .await
        .ok();
        self.requests_running()
    }
}

fn running(count: &Arc<AtomicUsize>) -> Running {
    count.fetch_add(1, Ordering::Relaxed);
    Running(Arc::clone(count))
}

async fn wait(condition: impl Fn() -> bool) {
    while !condition() {
        sleep(LOOK_EVERY).await;
    }
}

async fn wait_within(limit: Duration, condition: impl Fn() -> bool) {
    tokio::time::timeout(limit, wait(condition)).await.ok();
}
