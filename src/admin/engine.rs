//! What the engine of a server has said of itself, as `/status` shows it.

use std::time::Instant;

use serde::Serialize;

use crate::engines::EngineReport;

#[derive(Debug, Serialize)]
pub(super) struct EngineStatus {
    /// Requests that it works on, and those that wait in it, whoever sent them; null when it has not said so.
    running: Option<u64>,
    waiting: Option<u64>,
    /// Share of its KV cache that is in use.
    kv_usage: Option<f64>,
    /// The most tokens of a request with its answer.
    max_model_len: Option<u64>,
    /// How long ago it said how busy it is.
    observed_seconds_ago: Option<f64>,
}

impl EngineStatus {
    pub(super) fn of(report: &EngineReport) -> Option<Self> {
        let EngineReport { observed, max_model_len, .. } = report;
        (observed.is_some() || max_model_len.is_some()).then(|| Self {
            running: observed.map(|observed| observed.state.running),
            waiting: observed.map(|observed| observed.state.waiting),
            kv_usage: observed.and_then(|observed| observed.state.kv_usage),
            max_model_len: *max_model_len,
            observed_seconds_ago: observed
                .map(|observed| Instant::now().saturating_duration_since(observed.at).as_secs_f64()),
        })
    }
}
