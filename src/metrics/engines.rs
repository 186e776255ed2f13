//! What the servers' engines say of themselves, while it is fresh, and how far that is from what is counted here.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::work::EngineState;

type Amounts = Family<EngineLabels, Gauge<f64, AtomicU64>>;
type Requests = Family<EngineLabels, Gauge>;

/// Gauges and a counter of the engines. Updated when an engine was asked.
#[derive(Debug, Default)]
pub struct EngineMetrics {
    running: Requests,
    waiting: Requests,
    kv_usage: Amounts,
    drift: Amounts,
    scrapes: Family<ScrapeLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EngineLabels {
    server: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ScrapeLabels {
    server: Arc<str>,
    result: &'static str,
}

impl EngineMetrics {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "tidegate_engine_running_requests",
            "Requests that the server's engine works on, as it says, whoever sent them",
            metrics.running.clone(),
        );
        registry.register(
            "tidegate_engine_waiting_requests",
            "Requests that wait in the server's engine, as it says, whoever sent them",
            metrics.waiting.clone(),
        );
        registry.register(
            "tidegate_engine_kv_usage_ratio",
            "Share of the engine's KV cache that is in use, as it says",
            metrics.kv_usage.clone(),
        );
        registry.register(
            "tidegate_engine_drift_requests",
            "Requests in the engine beyond those that are counted on the server here: work from elsewhere, or a fault",
            metrics.drift.clone(),
        );
        registry.register(
            "tidegate_engine_scrapes",
            "How often the server's engine was asked how busy it is, by result",
            metrics.scrapes.clone(),
        );
        metrics
    }

    /// Shows what an engine has said, and how many requests it has beyond those that are counted here.
    pub fn observed(&self, server: &str, state: &EngineState, drift_requests: f64) {
        let labels = EngineLabels { server: server.into() };
        let count = |requests: u64| i64::try_from(requests).unwrap_or(i64::MAX);
        self.running.get_or_create(&labels).set(count(state.running));
        self.waiting.get_or_create(&labels).set(count(state.waiting));
        self.drift.get_or_create(&labels).set(drift_requests);
        match state.kv_usage {
            Some(share) => drop(self.kv_usage.get_or_create(&labels).set(share)),
            None => drop(self.kv_usage.remove(&labels)),
        }
    }

    /// Says that nothing fresh is known of an engine.
    pub fn gone(&self, server: &str) {
        let labels = EngineLabels { server: server.into() };
        self.running.remove(&labels);
        self.waiting.remove(&labels);
        self.kv_usage.remove(&labels);
        self.drift.remove(&labels);
    }

    /// Counts that an engine was asked, by the result, `ok` or `failed`.
    pub fn scraped(&self, server: &str, result: &'static str) {
        self.scrapes.get_or_create(&ScrapeLabels { server: server.into(), result }).inc();
    }
}
