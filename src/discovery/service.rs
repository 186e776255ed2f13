//! The background service that looks at each source on its interval.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use pingora::lb::discovery::ServiceDiscovery;
use pingora::server::ShutdownWatch;
use pingora::services::background::{BackgroundService, GenBackgroundService, background_service};
use tokio::time::{Instant, sleep_until};

use super::{asked, look, take_over};
use crate::config::Source;
use crate::upstream::Live;

/// A source that a new configuration brings is noticed after this time at the latest. Its servers are known by then:
/// the configuration came into force with them.
const NOTICE_WITHIN: Duration = Duration::from_secs(1);

/// Looks at all sources of the configuration in force.
pub struct Discovery {
    live: Arc<Live>,
}

impl std::fmt::Debug for Discovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Discovery").finish_non_exhaustive()
    }
}

/// The service to be added to a Pingora server.
#[must_use]
pub fn service(live: Arc<Live>) -> GenBackgroundService<Discovery> {
    background_service("discovery", Discovery { live })
}

/// What is known of a source.
struct Watched {
    asked: Box<dyn ServiceDiscovery + Send + Sync>,
    last_look: Option<Instant>,
    /// Why the last look failed: the same again is not logged again.
    fault: Option<String>,
}

impl Watched {
    fn new(asked: Box<dyn ServiceDiscovery + Send + Sync>) -> Self {
        Self { asked, last_look: None, fault: None }
    }

    async fn look(&mut self, source: &Source) -> Option<Vec<SocketAddr>> {
        let found = look(&*self.asked).await;
        self.last_look = Some(Instant::now());
        self.note(source, found)
    }

    /// Logs a failure when it begins and when it is over.
    fn note(&mut self, source: &Source, found: Result<Vec<SocketAddr>, String>) -> Option<Vec<SocketAddr>> {
        match found {
            Ok(addresses) => {
                if self.fault.take().is_some() {
                    log::info!("{source}: found again");
                }
                Some(addresses)
            }
            Err(fault) => {
                if self.fault.is_none() {
                    log::warn!("{source}: {fault}; the servers stay as they are");
                }
                self.fault = Some(fault);
                None
            }
        }
    }
}

#[async_trait]
impl BackgroundService for Discovery {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut watched: HashMap<Source, Watched> = HashMap::new();
        loop {
            let next = tokio::select! {
                _ = shutdown.changed() => return,
                next = self.round(&mut watched) => next,
            };
            tokio::select! {
                _ = shutdown.changed() => return,
                () = sleep_until(next) => {}
            }
        }
    }
}

impl Discovery {
    /// Looks at the sources whose time has come; returns when the next one's comes.
    async fn round(&self, watched: &mut HashMap<Source, Watched>) -> Instant {
        let in_force = self.live.get();
        let intervals: HashMap<&Source, Duration> =
            in_force.config.sources().map(|discover| (&discover.source, discover.interval)).collect();
        for (source, _) in watched.extract_if(|source, _| !intervals.contains_key(source)) {
            self.live.metrics().discovery_ended(source.to_string());
        }
        for source in intervals.keys() {
            if !watched.contains_key(source) {
                watched.insert((*source).clone(), Watched::new(asked(source)));
            }
        }
        let due = |source: &Source, watched: &Watched| {
            watched.last_look.zip(intervals.get(source)).map(|(last_look, interval)| last_look + *interval)
        };
        let now = Instant::now();
        let looks = watched.iter_mut().filter(|(source, watched)| due(source, watched).is_none_or(|due| due <= now));
        join_all(looks.map(async |(source, watched)| {
            if let Some(addresses) = watched.look(source).await {
                take_over(&self.live, source, &addresses);
            }
            self.live.metrics().discovery_failed(source.to_string(), watched.fault.is_some());
        }))
        .await;
        let notice = Instant::now() + NOTICE_WITHIN;
        watched.iter().filter_map(|(source, watched)| due(source, watched)).fold(notice, Instant::min)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;

    use parking_lot::Mutex;

    use super::super::dns::{Dns, Resolve};
    use super::*;

    /// Gives its answers one after the other.
    struct Script(Mutex<VecDeque<io::Result<Vec<SocketAddr>>>>);

    #[async_trait]
    impl Resolve for Script {
        async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
            assert_eq!((host, port), ("vllm.svc", 8000));
            self.0.lock().pop_front().expect("it is asked as often as it has answers")
        }
    }

    fn addresses(last: &[u8]) -> Vec<SocketAddr> {
        last.iter().map(|last| SocketAddr::from(([10, 0, 0, *last], 8000))).collect()
    }

    #[tokio::test]
    async fn only_an_answer_with_addresses_replaces_what_was_found() {
        let down = || Err(io::Error::other("no such name"));
        let answers = [Ok(addresses(&[2, 1, 2])), down(), Ok(Vec::new()), Ok(addresses(&[3])), down()];
        let source = Source::Dns { host: "vllm.svc".to_owned(), port: 8000 };
        let mut watched = Watched::new(Box::new(Dns::new(Script(Mutex::new(answers.into())), "vllm.svc", 8000)));
        assert_eq!(watched.look(&source).await, Some(addresses(&[1, 2])), "sorted, each once");
        assert_eq!(watched.look(&source).await, None);
        assert_eq!(watched.fault.as_deref(), Some("the name cannot be resolved (no such name)"));
        assert_eq!(watched.look(&source).await, None);
        assert_eq!(watched.fault.as_deref(), Some("the name has no address"));
        assert_eq!(watched.look(&source).await, Some(addresses(&[3])));
        assert_eq!(watched.fault, None);
        assert_eq!(watched.look(&source).await, None);
    }
}
