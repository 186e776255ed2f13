//! A server whose answers a test switches while it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use super::behaviour::opened;
use super::{Backend, Conn, Gate, json_response, until};

/// A server whose health page and other answers are set apart: a status, [`SILENT`] or [`RESET`].
pub(crate) struct Switched {
    pub(crate) backend: Backend,
    pub(crate) health: Arc<AtomicU16>,
    pub(crate) answer: Arc<AtomicU16>,
}

/// Reads the request and never answers.
pub(crate) const SILENT: u16 = 0;
/// Resets the connection.
pub(crate) const RESET: u16 = 1;

impl Switched {
    pub(crate) async fn start() -> Self {
        Self::start_with(&opened()).await
    }

    /// A server that answers with 200 only when the gate lets it.
    pub(crate) async fn start_with(gate: &Gate) -> Self {
        let (health, answer) = (Arc::new(AtomicU16::new(200)), Arc::new(AtomicU16::new(200)));
        let (gate, its_health, its_answer) = (gate.clone(), Arc::clone(&health), Arc::clone(&answer));
        let backend = Backend::start(move |mut conn: Conn| {
            let (gate, health, answer) = (gate.clone(), Arc::clone(&its_health), Arc::clone(&its_answer));
            async move {
                while let Some(request) = conn.request().await {
                    let is_probe = request.head.line.starts_with("GET /health ");
                    let status = if is_probe { &health } else { &answer }.load(Ordering::SeqCst);
                    match status {
                        SILENT => return conn.closed().await,
                        RESET => return conn.reset(),
                        200 if !is_probe && conn.unless_closed(gate.pass()).await.is_none() => return,
                        _ => {}
                    }
                    if !conn.send(json_response(status, "{}")).await {
                        return;
                    }
                }
            }
        })
        .await;
        Self { backend, health, answer }
    }

    pub(crate) fn probes(&self) -> usize {
        self.backend.received().iter().filter(|request| request.head.line.starts_with("GET /health ")).count()
    }

    pub(crate) fn requests(&self) -> usize {
        self.backend.received().iter().filter(|request| request.head.line.starts_with("POST ")).count()
    }

    /// Waits for so many more probes.
    pub(crate) async fn more_probes(&self, count: usize) {
        let before = self.probes();
        until("probes come", async || self.probes() >= before + count).await;
    }
}
