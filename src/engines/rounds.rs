//! The background service: a loop for each server that asks its engine.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::ShutdownWatch;
use pingora::services::background::{BackgroundService, GenBackgroundService, background_service};
use tokio::task::JoinHandle;

use super::turns::Turns;
use crate::upstream::{InForce, Live, Server};

/// How soon changes of membership, policy and health are seen.
const GLANCE: Duration = Duration::from_millis(500);

/// A service that asks the engines of all servers, while the policy has a use for it.
#[must_use]
pub fn service(live: Arc<Live>) -> GenBackgroundService<impl BackgroundService> {
    let mut service = background_service("engines", Rounds(live));
    service.threads = Some(1);
    service
}

struct Rounds(Arc<Live>);

/// A server of the loops: a number alone may be given to another server in time.
type Key = (usize, String);

#[async_trait]
impl BackgroundService for Rounds {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut loops: HashMap<Key, JoinHandle<()>> = HashMap::new();
        loop {
            loops.retain(|_, running| !running.is_finished());
            let in_force = self.0.get();
            for server in in_force.servers().filter(|_| in_force.config.asks_engines().is_some()) {
                let key = key(server);
                loops.entry(key.clone()).or_insert_with(|| tokio::spawn(watch(Arc::clone(&self.0), key)));
            }
            tokio::select! {
                _ = shutdown.changed() => break,
                () = tokio::time::sleep(GLANCE) => {}
            }
        }
        for running in loops.values() {
            running.abort();
        }
    }
}

fn key(server: &Server) -> Key {
    (server.number(), server.config().authority())
}

fn member(in_force: &InForce, (number, authority): &Key) -> Option<Arc<Server>> {
    in_force.member(*number, authority).map(Arc::clone)
}

/// Asks one server's engine until the server has left, or nobody wants to know any more.
async fn watch(live: Arc<Live>, key: Key) {
    let mut in_force = live.get();
    let Some(mut server) = member(&in_force, &key) else { return };
    let mut turns = Turns::new(Arc::clone(&live), &server, &in_force);
    while let Some(engines) = in_force.config.asks_engines() {
        let until_next = turns.take(&server, &in_force, engines).await;
        tokio::time::sleep(until_next.clamp(Duration::from_millis(1), GLANCE)).await;
        in_force = live.get();
        let Some(there) = member(&in_force, &key) else { break };
        server = there;
    }
    turns.end(&server);
}
