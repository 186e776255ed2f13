//! The background service: a loop for each server that asks it and lets its time run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use pingora::server::ShutdownWatch;
use pingora::services::background::{BackgroundService, GenBackgroundService, background_service};
use tokio::task::JoinHandle;

use super::probe::{Failure, Probe};
use super::{Health, Phase, Signal};
use crate::config::Config;
use crate::upstream::{InForce, Server};

/// How soon changes of membership are seen, and how exactly the end of an ejection is met.
const GLANCE: Duration = Duration::from_millis(100);

/// From probe to probe while a server is in doubt, unless the interval is shorter.
const IN_DOUBT: Duration = Duration::from_secs(1);

/// A service that asks all servers and lets their ejections end.
#[must_use]
pub fn service(health: Arc<Health>) -> GenBackgroundService<impl BackgroundService> {
    let mut service = background_service("health", Rounds(health));
    service.threads = Some(1);
    service
}

struct Rounds(Arc<Health>);

/// A server of the loops: a number alone may be given to another server in time.
type Key = (usize, String);

#[async_trait]
impl BackgroundService for Rounds {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut loops: HashMap<Key, JoinHandle<()>> = HashMap::new();
        let mut settled = None;
        for glance in 0_u64.. {
            let in_force = self.0.live.get();
            // Whenever servers have come or gone, by a reload or by discovery. Also now and then: an operator may drain the
            // server that others on probation lean on.
            let is_settled = settled.as_ref().is_some_and(|settled| Arc::ptr_eq(settled, &in_force));
            if !is_settled || glance.is_multiple_of(10) {
                self.0.settle_all(&in_force);
                settled = Some(Arc::clone(&in_force));
            }
            loops.retain(|_, running| !running.is_finished());
            for server in in_force.servers() {
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

/// Watches one server until it has left.
async fn watch(health: Arc<Health>, key: Key) {
    let mut in_force = health.live.get();
    let mut probe = None;
    let mut next = Instant::now();
    let mut is_first = true;
    let mut name = String::new();
    while let Some(server) = member(&in_force, &key) {
        let rules = &in_force.config.health;
        if let Some(active) = &rules.active {
            if is_first {
                // Spread over the interval, so that a hundred servers are not asked in one instant.
                next = Instant::now() + active.interval.mul_f64(rand::random());
                is_first = false;
            }
            if probe.is_none() {
                let key = in_force.config.upstream_authorization.as_ref();
                probe = Probe::new(&server, key, active)
                    .inspect_err(|error| log::error!("server {} cannot be asked: {error}", server.name()))
                    .ok();
            }
            if let (true, Some(probe)) = (Instant::now() >= next, &mut probe) {
                ask(&health, &server, probe, &in_force.config).await;
                next = Instant::now() + pause(active.interval, rand::random());
            }
            // Faults may have come meanwhile.
            if server.health().lock().is_in_doubt(rules) {
                next = next.min(Instant::now() + pause(active.interval.min(IN_DOUBT), rand::random()));
            }
        }
        if server.health().lock().phase() == Phase::Out {
            health.note(&server, Signal::Tick, "");
        }
        let until_next = next.saturating_duration_since(Instant::now());
        let nap = if rules.active.is_some() { until_next.min(GLANCE) } else { GLANCE };
        tokio::time::sleep(nap.max(Duration::from_millis(1))).await;
        let now_in_force = health.live.get();
        if now_in_force.generation != in_force.generation {
            probe = None;
        }
        // Discovery changes who is there without a new generation.
        in_force = now_in_force;
        name = server.name().to_owned();
    }
    if in_force.servers().all(|other| other.name() != name) {
        health.live.metrics().health().gone(&name);
    }
}

async fn ask(health: &Health, server: &Server, probe: &mut Probe, config: &Config) {
    let Some(active) = &config.health.active else { return };
    let asked = match server.address(active.timeout).await {
        Ok(address) => probe.ask(server, address, &config.timeouts).await,
        Err(error) => Err(Failure::of(&error)),
    };
    match asked {
        Ok(()) => health.note(server, Signal::ProbePassed, ""),
        Err(failure) => {
            let Failure { is_refused, is_our_own, what } = failure;
            if is_our_own {
                log::warn!("server {} could not be asked: the probe {what}", server.name());
                return;
            }
            health.note(server, Signal::ProbeFailed { is_refused }, &what);
            let failed = server.health().lock().probes_failed();
            // Less and less often: the change itself was logged, and the counter tells the rest.
            if failed > active.failures && failed.is_power_of_two() {
                log::warn!("server {} has failed {failed} probes in a row: it {what}", server.name());
            } else {
                log::debug!("server {} failed a probe: it {what}", server.name());
            }
        }
    }
}

/// The pause before the next probe: give or take a tenth (`jitter`, 0 to 1).
fn pause(interval: Duration, jitter: f64) -> Duration {
    interval.mul_f64(0.9 + 0.2 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_differ_by_a_tenth_at_most() {
        let second = Duration::from_secs(1);
        assert_eq!([0.0, 0.5, 1.0].map(|jitter| pause(second, jitter).as_millis()), [900, 1000, 1100]);
    }
}
