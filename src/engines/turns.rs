//! When one server is asked what, and what becomes of its answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::metrics::{EngineMetrics, Page};
use super::models;
use super::question::{Asker, Failure};
use super::report::Observed;
use crate::config::{Config, Engines, MaxModelLen};
use crate::health::Phase;
use crate::upstream::{InForce, Live, Server};

/// From one question for the models to the next, give or take a tenth: a server may have been started anew.
const MODELS_EVERY: Duration = Duration::from_secs(60);

/// What is asked for.
#[derive(Debug, Clone, Copy)]
enum Wanted {
    Metrics,
    Models,
}

/// The questions to one server.
pub(super) struct Turns {
    live: Arc<Live>,
    asker: Asker,
    /// Of the configuration that the rest comes from.
    generation: u64,
    next_metrics: Instant,
    next_models: Instant,
    /// Since when the server has stood as it was last seen to stand.
    seen_since: Instant,
    /// Whether the last answer could not be used, by what was wanted.
    has_failed: [bool; 2],
    /// The name under which the metrics show what was observed.
    shown: Option<String>,
}

impl Turns {
    /// Asks for the models at once, and for the metrics at some time within the interval, so that a hundred servers are not
    /// asked in one instant.
    pub(super) fn new(live: Arc<Live>, server: &Server, in_force: &InForce) -> Self {
        let now = Instant::now();
        let interval = in_force.config.asks_engines().map_or(Duration::ZERO, |engines| engines.interval);
        Self {
            live,
            asker: Asker::new(server),
            generation: in_force.generation,
            next_metrics: now + interval.mul_f64(rand::random()),
            next_models: now,
            seen_since: now,
            has_failed: [false; 2],
            shown: None,
        }
    }

    /// Asks what is due. Gives how long it is until something is due again.
    pub(super) async fn take(&mut self, server: &Server, in_force: &InForce, engines: &Engines) -> Duration {
        if self.generation != in_force.generation {
            // Its files for TLS may be others, and so the interval.
            self.asker = Asker::new(server);
            self.generation = in_force.generation;
            self.next_metrics = self.next_metrics.min(Instant::now() + engines.interval);
        }
        let (phase, since) = {
            let record = server.health().lock();
            (record.phase(), record.since())
        };
        // When it comes back it may be another one; it may have been away for less than a glance.
        if since > self.seen_since {
            self.seen_since = since;
            self.next_models = Instant::now();
        }
        if phase == Phase::Out {
            self.next_metrics = self.next_metrics.max(Instant::now());
        } else {
            if is_asked_for_models(server) && Instant::now() >= self.next_models {
                let is_answered = self.ask_for_models(server, &in_force.config, engines).await;
                self.next_models = Instant::now() + pause(if is_answered { MODELS_EVERY } else { engines.interval });
            }
            if Instant::now() >= self.next_metrics {
                self.ask_for_metrics(server, &in_force.config, engines).await;
                self.next_metrics = Instant::now() + pause(engines.interval);
            }
        }
        self.show(server);
        let next =
            if is_asked_for_models(server) { self.next_metrics.min(self.next_models) } else { self.next_metrics };
        next.saturating_duration_since(Instant::now())
    }

    /// Nothing is asked any more.
    pub(super) fn end(mut self, server: &Server) {
        server.engine().lock().rest();
        self.show(server);
    }

    async fn ask_for_metrics(&mut self, server: &Server, config: &Config, engines: &Engines) {
        let mut page = Page::default();
        let asked = self.asker.get(server, "/metrics", config, engines.timeout, |piece| page.push(piece)).await;
        let metrics = asked.and_then(|()| page.finish().ok_or(Failure::NotMetrics));
        self.live.metrics().engines().scraped(server.name(), if metrics.is_ok() { "ok" } else { "failed" });
        if let Some(metrics) = self.heard(server, Wanted::Metrics, metrics) {
            self.observed(server, metrics, engines.valid_for());
        }
    }

    fn observed(&self, server: &Server, EngineMetrics { state, counters }: EngineMetrics, valid_for: Duration) {
        let Some(observation) = self.live.observed(server, state, valid_for) else { return };
        let drift_requests = observation.drift_requests();
        let lesson = {
            let mut report = server.engine().lock();
            report.observed = Some(Observed { state, drift_requests, at: Instant::now(), valid_for });
            match counters {
                Some(counters) => report.prompts.look(counters, drift_requests, observation.own_requests()),
                None => {
                    report.prompts.stop();
                    None
                }
            }
        };
        if let Some(lesson) = lesson {
            let error = self.live.estimator().lock().learn_total(&lesson.estimates, lesson.prompt_tokens);
            log::debug!("server {} has counted {} prompt tokens: {error:?}", server.name(), lesson.prompt_tokens);
        }
    }

    /// True when the answer could be used.
    async fn ask_for_models(&mut self, server: &Server, config: &Config, engines: &Engines) -> bool {
        let mut list = Vec::new();
        let take = |piece: &[u8]| list.extend_from_slice(piece);
        let asked = self.asker.get(server, "/v1/models", config, engines.timeout, take).await;
        let found = asked.and_then(|()| Ok(models::max_model_len(&list)?));
        let Some(max_model_len) = self.heard(server, Wanted::Models, found) else { return false };
        if self.live.reported_max_model_len(server, max_model_len) {
            let most =
                max_model_len.map_or_else(|| "of any length".to_owned(), |most| format!("of up to {most} tokens"));
            log::info!("server {} takes requests {most}, with their answers (max_model_len)", server.name());
        }
        true
    }

    /// Has a word in the log when answers cease to be of use, and when they are again.
    fn heard<T>(&mut self, server: &Server, wanted: Wanted, answer: Result<T, Failure>) -> Option<T> {
        let (what, had_failed) = match wanted {
            Wanted::Metrics => ("how busy it is", &mut self.has_failed[0]),
            Wanted::Models => ("which requests it takes", &mut self.has_failed[1]),
        };
        match &answer {
            Err(failure) if !*had_failed => log::info!("server {} does not say {what}: {failure}", server.name()),
            Err(failure) => log::debug!("server {} does not say {what}: {failure}", server.name()),
            Ok(_) if *had_failed => log::info!("server {} says {what} again", server.name()),
            Ok(_) => {}
        }
        *had_failed = answer.is_err();
        answer.ok()
    }

    /// Has the metrics show what was observed, while that counts.
    fn show(&mut self, server: &Server) {
        let observed = server.engine().lock().observed.filter(|observed| observed.is_fresh(Instant::now()));
        let name = observed.is_some().then(|| server.name());
        if let Some(old) = self.shown.take_if(|old| name != Some(old.as_str())) {
            self.live.metrics().engines().gone(&old);
        }
        if let Some(Observed { state, drift_requests, .. }) = observed {
            self.live.metrics().engines().observed(server.name(), &state, drift_requests);
            self.shown.get_or_insert_with(|| server.name().to_owned());
        }
    }
}

fn is_asked_for_models(server: &Server) -> bool {
    server.config().traits.max_model_len == MaxModelLen::Auto
}

/// Give or take a tenth.
fn pause(interval: Duration) -> Duration {
    interval.mul_f64(0.9 + 0.2 * rand::random::<f64>())
}
