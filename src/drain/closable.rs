//! A listening service that closes when [`Drain`](super::Drain) says so, not when Pingora does.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::server::{ListenFds, RuntimeOpts, ShutdownWatch};
use pingora::services::Service;

/// The listening sockets of this process by their addresses; empty before the first service has started.
///
/// Pingora keeps one table for the process and shows it to services only.
#[derive(Clone, Default)]
pub struct Sockets(Arc<Mutex<Option<ListenFds>>>);

impl std::fmt::Debug for Sockets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sockets").finish_non_exhaustive()
    }
}

impl Sockets {
    pub(super) fn table(&self) -> Option<ListenFds> {
        self.0.lock().clone()
    }

    /// Whether there is a socket for each of the addresses.
    pub(super) fn have_all(&self, addresses: &[String]) -> bool {
        self.table().is_some_and(|table| {
            let table = table.lock();
            addresses.iter().all(|address| table.get(address).is_some())
        })
    }
}

/// A service that stops accepting when a watch of its own turns true.
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
        (*self.sockets.0.lock()).clone_from(&fds);
        self.service.start_service(fds, self.closed.clone(), listeners_per_fd).await;
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
