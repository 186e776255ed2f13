//! Traces: spans of requests, for an OpenTelemetry collector. Takes the cargo feature `otel`, which is off by default.
//!
//! ```text
//! admit    begin: the client's traceparent, or a trace of its own; whether it is exported     (Exporter)
//! connect  an attempt begins: the server is told its span as the parent                       (Trace)
//! retry    an attempt is over
//! report   the request is over: its trace and its record --bounded queue--> a thread --OTLP--> collector
//! ```
//!
//! Spans are made on that thread, from the record that the access log has, too. A collector that is slow or away costs
//! spans, which are counted, and no request. Nothing of prompts, answers or keys is in them.

#[cfg(not(feature = "otel"))]
mod absent;
#[cfg(feature = "otel")]
mod exporter;
mod trace;

use std::sync::Arc;
use std::time::Duration;

#[cfg(not(feature = "otel"))]
pub use absent::Exporter;
use arc_swap::ArcSwapOption;
#[cfg(feature = "otel")]
pub use exporter::Exporter;
use http::HeaderMap;
use prometheus_client::metrics::counter::Counter;
pub use trace::{Attempt, Ended, TRACEPARENT, TRACESTATE, Trace};

use crate::config::Tracing;

/// At the end of the process spans have this long to reach the collector.
const FLUSHED_WITHIN: Duration = Duration::from_secs(2);

/// What has become of spans, since the start of the process.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// Spans that the collector has taken.
    pub exported: Counter,
    /// Spans that it has not taken.
    pub failed: Counter,
    /// Spans that there was no room for, while others waited for the collector.
    pub dropped: Counter,
}

/// Spans cannot be exported as configured.
#[derive(Debug, thiserror::Error)]
#[error("tracing: {0}")]
pub struct StartError(String);

/// The traces of one process: exported while the configuration in force says so.
#[derive(Debug)]
pub struct Traces {
    exporter: ArcSwapOption<Exporter>,
    counts: Counts,
}

impl Traces {
    /// Exports nothing yet.
    #[must_use]
    pub fn new(counts: Counts) -> Self {
        Self { exporter: ArcSwapOption::empty(), counts }
    }

    /// Makes ready what is to be [exported to](Self::export_to) later: what there is, when nothing has changed.
    ///
    /// # Errors
    /// When spans cannot be exported like this.
    pub fn open(&self, settings: Option<&Tracing>) -> Result<Option<Arc<Exporter>>, StartError> {
        let Some(settings) = settings else { return Ok(None) };
        match self.exporter.load_full().filter(|exporter| exporter.settings() == settings) {
            Some(present) => Ok(Some(present)),
            None => Exporter::start(settings, self.counts.clone()).map(|exporter| Some(Arc::new(exporter))),
        }
    }

    /// Exports there from now on, or nowhere. What waits for the collector before is still sent there.
    pub fn export_to(&self, exporter: Option<Arc<Exporter>>) {
        self.exporter.store(exporter);
    }

    /// A request has come with these header fields; `None` when nothing is exported.
    #[must_use]
    pub fn begin(&self, headers: &HeaderMap) -> Option<Box<Trace>> {
        self.exporter.load().as_ref().map(|exporter| Box::new(exporter.begin(headers)))
    }

    /// A request is over whose trace is exported. Never waits.
    pub fn ended(&self, ended: Box<Ended>) {
        if let Some(exporter) = &*self.exporter.load() {
            exporter.ended(ended);
        }
    }

    /// Waits until what is over is exported, at the end of the process, but not for long.
    pub fn flush(&self) {
        if let Some(exporter) = self.exporter.load_full() {
            exporter.flush(FLUSHED_WITHIN);
        }
    }
}
