//! Reads TLS files again while Tidegate runs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;

use super::files::Unusable;

/// How often the files are read again.
const EVERY: Duration = Duration::from_secs(5);

/// Something that was made from files.
pub trait Watched: Send + Sync {
    /// Reads the files again, which may block. When they have changed and are good, they are in force from then on.
    fn refresh(&self) -> Refresh;

    /// Whether the files were last found to be such that they cannot be used.
    fn is_refused(&self) -> bool;

    /// What it is, for the log.
    fn describe(&self) -> String;
}

/// What reading files again came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refresh {
    /// They are as they were, good or broken.
    Unchanged,
    /// They have changed and are in force.
    Renewed,
    /// They have changed and cannot be used; what was in force stays so.
    Refused(Unusable),
}

/// Reads files again, every few seconds. Symbolic links are followed anew each time, so that files may be swapped as
/// Kubernetes does it.
pub struct Watch {
    watched: Box<dyn Fn() -> Vec<Arc<dyn Watched>> + Send + Sync>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    /// Watches what the function names, which is asked each time.
    pub fn new(watched: impl Fn() -> Vec<Arc<dyn Watched>> + Send + Sync + 'static) -> Self {
        Self { watched: Box::new(watched) }
    }
}

#[async_trait]
impl BackgroundService for Watch {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = shutdown.changed() => return,
                _ = ticks.tick() => {}
            }
            let watched = (self.watched)();
            let look = tokio::task::spawn_blocking(move || watched.iter().for_each(|watched| look(&**watched)));
            if let Err(error) = look.await {
                log::error!("reading TLS files again failed: {error}");
            }
        }
    }
}

fn look(watched: &dyn Watched) {
    match watched.refresh() {
        Refresh::Unchanged => {}
        Refresh::Renewed => log::info!("tls files are renewed, {}", watched.describe()),
        Refresh::Refused(unusable) => {
            log::warn!("tls files have changed but are not used, {}: {unusable}", watched.describe());
        }
    }
}
