//! The background service that reloads on SIGHUP and, when asked to, whenever the file changes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::ShutdownWatch;
use pingora::services::background::{BackgroundService, GenBackgroundService, background_service};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use super::{Reloader, Trigger};
use crate::settled::read_settled;

/// How often the file is read when it is watched.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Waits for signals and for changes of the file.
#[derive(Debug)]
pub struct ReloadService {
    reloader: Arc<Reloader>,
}

/// The service to be added to a Pingora server.
#[must_use]
pub fn service(reloader: Arc<Reloader>) -> GenBackgroundService<ReloadService> {
    background_service("reload", ReloadService { reloader })
}

/// Keeps SIGHUP from ending the process, also before the service runs. Until then it does nothing: the configuration has
/// just been read.
///
/// # Errors
/// When the system does not let us.
pub fn survive_hangup() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _inside = runtime.enter();
    // Once received, a signal has lost its usual effect for as long as the process lives.
    signal(SignalKind::hangup()).map(drop)
}

/// What the file held when it was last looked at. Only the content counts, wherever symbolic links lead to: the mount
/// of a Kubernetes ConfigMap changes by swapping one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Hash(u64),
    Unreadable,
}

impl Content {
    async fn of(file: &Path) -> Self {
        match tokio::fs::read(file).await {
            Ok(bytes) => Self::hash(&bytes),
            Err(_) => Self::Unreadable,
        }
    }

    async fn settled(file: &Path) -> Self {
        read_settled(file).await.map_or(Self::Unreadable, |bytes| Self::hash(&bytes))
    }

    fn hash(bytes: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Self::Hash(hasher.finish())
    }
}

#[async_trait]
impl BackgroundService for ReloadService {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut hangup = match signal(SignalKind::hangup()) {
            Ok(hangup) => hangup,
            Err(error) => {
                log::error!("SIGHUP cannot be received ({error}); reload with POST /reload");
                return;
            }
        };
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = None;
        loop {
            tokio::select! {
                _ = shutdown.changed() => return,
                () = received(&mut hangup) => {
                    last = self.content().await;
                    // Both outcomes are logged and stand in the status.
                    drop(self.reloader.reload(Trigger::Signal).await);
                }
                _ = look.tick() => self.look(&mut last).await,
            }
        }
    }
}

/// Waits for the next signal; for ever when none can come any more.
async fn received(signal: &mut Signal) {
    if signal.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

impl ReloadService {
    /// Reloads when the file is not what it was, once for each content, good or bad.
    async fn look(&self, last: &mut Option<Content>) {
        let Some(file) = self.reloader.file() else { return };
        if !self.reloader.live().get().config.watch {
            *last = None;
            return;
        }
        if last.is_some() && Some(Content::of(file).await) == *last {
            return;
        }
        let content = Content::settled(file).await;
        if last.replace(content) == Some(content) {
            return;
        }
        if let Err(refused) = self.reloader.reload(Trigger::Watch).await
            && refused.may_pass
        {
            *last = None;
        }
    }

    async fn content(&self) -> Option<Content> {
        match self.reloader.file() {
            Some(file) => Some(Content::of(file).await),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Origin;
    use super::*;
    use crate::config::{self, Flags};
    use crate::upstream::Live;

    const GROUP: &str = "watch: true\ngroups: [{name: a, up_to_tokens: 9, servers: [x:1]}]\n";

    struct Watching {
        _folder: tempfile::TempDir,
        origin: Origin,
        service: ReloadService,
        last: Option<Content>,
    }

    impl Watching {
        fn start() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let origin = Origin { file: folder.path().join("tidegate.yaml"), flags: Flags::default() };
            std::fs::write(&origin.file, GROUP).unwrap();
            let config = config::load(Some(&origin.file), &origin.flags, &|_| None).unwrap().config;
            let live = Arc::new(Live::new(config).unwrap());
            let service = ReloadService { reloader: Arc::new(Reloader::new(live, Some(origin.clone()))) };
            Self { _folder: folder, origin, service, last: None }
        }

        fn write(&self, text: &str) {
            std::fs::write(&self.origin.file, text).unwrap();
        }

        async fn look(&mut self) {
            self.service.look(&mut self.last).await;
        }

        fn generation(&self) -> u64 {
            self.service.reloader.live().get().generation
        }
    }

    #[tokio::test]
    async fn a_file_is_taken_once_for_each_content() {
        let mut watching = Watching::start();
        watching.look().await;
        assert_eq!(watching.generation(), 1, "it is what is in force");
        watching.write(&GROUP.replace("x:1", "y:1"));
        for _ in 0..3 {
            watching.look().await;
            assert_eq!(watching.generation(), 2);
        }
    }

    #[tokio::test]
    async fn a_bad_file_is_refused_once_and_forgotten_when_the_old_content_is_back() {
        let mut watching = Watching::start();
        watching.look().await;
        watching.write("groups: 1\n");
        watching.look().await;
        let refused = watching.service.reloader.refused().unwrap();
        watching.look().await;
        assert!(Arc::ptr_eq(&refused, &watching.service.reloader.refused().unwrap()), "it was not read again");
        watching.write(GROUP);
        watching.look().await;
        assert!(watching.service.reloader.refused().is_none());
        assert_eq!(watching.generation(), 1);
    }

    #[tokio::test]
    async fn a_source_that_has_no_answer_yet_is_tried_again() {
        let mut watching = Watching::start();
        watching.look().await;
        let servers = watching.origin.file.with_file_name("servers");
        let text = GROUP.replace("servers: [x:1]", &format!("discover: {{file: {}}}", servers.display()));
        watching.write(&text);
        watching.look().await;
        assert!(watching.service.reloader.refused().is_some_and(|refused| refused.may_pass));
        std::fs::write(&servers, "10.0.0.1:1\n").unwrap();
        watching.look().await;
        assert_eq!(watching.generation(), 2);
        assert_eq!(watching.service.reloader.live().get().servers().count(), 1);
    }

    #[tokio::test]
    async fn a_file_that_is_no_longer_watched_is_left_alone() {
        let mut watching = Watching::start();
        watching.look().await;
        watching.write(&GROUP.replace("true", "false"));
        watching.look().await;
        watching.write(&GROUP.replace("x:1", "y:1"));
        watching.look().await;
        assert_eq!(watching.generation(), 2);
    }
}
