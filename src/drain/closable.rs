//! A listening service that closes when [`Drain`](super::Drain) says so, not when Pingora does.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::server::{ListenFds, RuntimeOpts, ShutdownWatch};
use pingora::services::Service;
use tokio::sync::watch;

/// The listening sockets of this process by their addresses; none before the first service has started.
///
/// Pingora keeps one table for the process and shows it to services only.
#[derive(Clone)]
pub struct Sockets {
    table: Arc<Mutex<Option<ListenFds>>>,
    /// Whether services may listen.
    may_open: watch::Sender<bool>,
}

impl Default for Sockets {
    fn default() -> Self {
        Self { table: Arc::default(), may_open: watch::Sender::new(false) }
    }
}

impl std::fmt::Debug for Sockets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sockets").finish_non_exhaustive()
    }
}

impl Sockets {
    pub(super) fn table(&self) -> Option<ListenFds> {
        self.table.lock().clone()
    }

    /// Lets services listen: signals are heard from now on. A process that can be reached can be told to stop.
    pub(super) fn open(&self) {
        self.may_open.send_replace(true);
    }

    /// Whether there is a socket for each of the addresses.
    pub(super) fn have_all(&self, addresses: &[String]) -> bool {
        self.table().is_some_and(|table| {
            let table = table.lock();
            addresses.iter().all(|address| table.get(address).is_some())
        })
    }
}

/// A service that listens once signals are heard, and stops accepting when a watch of its own turns true.
pub struct Closable<S> {
    service: S,
    closed: ShutdownWatch,
    sockets: Sockets,
}

impl<S> std::fmt::Debug for Closable<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Closable").finish_non_exhaustive()
    }
}

impl<S> Closable<S> {
    /// Wraps a service. Its sockets become known to `sockets`.
    #[must_use]
    pub fn new(service: S, closed: ShutdownWatch, sockets: &Sockets) -> Self {
        Self { service, closed, sockets: sockets.clone() }
    }
}

#[async_trait]
impl<S: Service> Service for Closable<S> {
    async fn start_service(&mut self, fds: Option<ListenFds>, _pingoras: ShutdownWatch, listeners_per_fd: usize) {
        (*self.sockets.table.lock()).clone_from(&fds);
        // An error means that the sender is gone, and it is here.
        self.sockets.may_open.subscribe().wait_for(|may_open| *may_open).await.ok();
        let mut closing = self.closed.clone();
        let (close, closed) = watch::channel(false);
        tokio::select! {
            biased;
            _ = closing.wait_for(|closed| *closed) => {}
            () = self.service.start_service(fds, closed, listeners_per_fd) => {}
        }
        // The listeners are told only now, when nobody waits for them any more, and end by themselves. Connections that
        // are kept, and those just accepted, go on.
        close.send_replace(true);
    }

    fn name(&self) -> &str {
        self.service.name()
    }

    fn threads(&self) -> Option<usize> {
        self.service.threads()
    }

    fn runtime_opts_override(&self, global: &RuntimeOpts) -> Option<RuntimeOpts> {
        self.service.runtime_opts_override(global)
    }

    fn listen_addresses(&self) -> Option<Vec<String>> {
        self.service.listen_addresses()
    }
}
