//! From requests that are over to batches of spans for the collector, on a thread of its own.

mod client;
mod context;
mod spans;

use std::collections::HashMap;
use std::sync::Once;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use client::{Client, LastError};
use http::HeaderMap;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use parking_lot::Mutex;

use super::{Counts, Ended, StartError, Trace};
use crate::config::Tracing;

/// Requests that wait for the collector, at most: some ten megabytes. What comes beyond that is dropped, and counted.
const MOST_WAITING: usize = 4_096;

/// So many spans are sent at once, give or take those of one request.
const BATCH_SPANS: usize = 512;

/// A span waits for others of its batch for so long.
const BATCHED_FOR: Duration = Duration::from_secs(1);

/// A collector that stays away is told of again after this time.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Exports spans. When it is dropped its thread sends what it has, and ends.
#[derive(Debug)]
pub struct Exporter {
    settings: Tracing,
    counts: Counts,
    queue: SyncSender<Message>,
    /// Until it runs: with the first request that is over, because a daemon loses threads that were there before.
    worker: Mutex<Option<Worker>>,
    has_begun: Once,
}

#[derive(Debug)]
enum Message {
    Ended(Box<Ended>),
    /// All before it is to be sent, and this is to be dropped then.
    Flush(SyncSender<()>),
}

impl Exporter {
    pub(super) fn start(settings: &Tracing, counts: Counts) -> Result<Self, StartError> {
        let last_error = LastError::default();
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers: HashMap<String, String> =
            settings.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        let collector = SpanExporter::builder()
            .with_http()
            .with_http_client(Client::new(settings.timeout, &last_error))
            .with_endpoint(&settings.url)
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(settings.timeout)
            .with_headers(headers)
            .build();
        let mut collector = collector.map_err(|error| StartError(error.to_string()))?;
        // More attributes of the process come from OTEL_RESOURCE_ATTRIBUTES.
        let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_service_name(settings.service_name.clone()).with_attribute(version);
        collector.set_resource(&resource.build());
        let (queue, requests) = sync_channel(MOST_WAITING);
        let worker = Worker {
            collector,
            requests,
            last_error,
            counts: counts.clone(),
            batch: Vec::new(),
            told_at: None,
            failed_since: 0,
        };
        let (worker, has_begun) = (Mutex::new(Some(worker)), Once::new());
        Ok(Self { settings: settings.clone(), counts, queue, worker, has_begun })
    }

    pub(super) fn settings(&self) -> &Tracing {
        &self.settings
    }

    pub(super) fn begin(&self, headers: &HeaderMap) -> Trace {
        context::begin(headers, self.settings.sample)
    }

    pub(super) fn ended(&self, ended: Box<Ended>) {
        self.has_begun.call_once(|| self.run());
        if let Err(TrySendError::Full(message) | TrySendError::Disconnected(message)) =
            self.queue.try_send(Message::Ended(ended))
            && let Message::Ended(ended) = message
        {
            self.counts.dropped.inc_by(ended.spans() as u64);
        }
    }

    fn run(&self) {
        let Some(worker) = self.worker.lock().take() else { return };
        let thread = thread::Builder::new().name("traces".to_owned()).spawn(move || worker.run());
        if let Err(error) = thread {
            log::error!("no traces are exported: there can be no thread for them: {error}");
        }
    }

    /// Waits until everything before is sent, but not longer than this. Blocks: for the end of a process.
    pub(super) fn flush(&self, patience: Duration) {
        if !self.has_begun.is_completed() {
            return;
        }
        crate::flush::flush(&self.queue, Message::Flush, patience);
    }
}

/// The thread's side.
#[derive(Debug)]
struct Worker {
    collector: SpanExporter,
    requests: Receiver<Message>,
    last_error: LastError,
    counts: Counts,
    batch: Vec<SpanData>,
    told_at: Option<Instant>,
    failed_since: u64,
}

impl Worker {
    fn run(mut self) {
        let mut due = None;
        loop {
            let received = match due {
                None => self.requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => self.requests.recv_timeout(Instant::saturating_duration_since(&due, Instant::now())),
            };
            match received {
                Ok(Message::Ended(ended)) => {
                    self.batch.extend(spans::of(&ended));
                    due = due.or_else(|| Some(Instant::now() + BATCHED_FOR));
                    if self.batch.len() < BATCH_SPANS {
                        continue;
                    }
                    self.export();
                }
                Ok(Message::Flush(done)) => {
                    self.export();
                    drop(done);
                }
                Err(RecvTimeoutError::Timeout) => self.export(),
                Err(RecvTimeoutError::Disconnected) => return self.export(),
            }
            due = None;
        }
    }

    /// Sends the batch. The library tries again what may pass, within the time limit.
    fn export(&mut self) {
        let spans = self.batch.len() as u64;
        if spans == 0 {
            return;
        }
        let batch = std::mem::take(&mut self.batch);
        match futures_executor::block_on(self.collector.export(batch)) {
            Ok(()) => {
                self.counts.exported.inc_by(spans);
            }
            Err(error) => self.failed(spans, &error.to_string()),
        }
    }

    fn failed(&mut self, spans: u64, error: &str) {
        self.counts.failed.inc_by(spans);
        self.failed_since += spans;
        let cause = self.last_error.lock().take();
        if self.told_at.is_none_or(|at| at.elapsed() >= TOLD_AGAIN_AFTER) {
            let why = cause.as_deref().unwrap_or(error);
            log::error!("{} spans were not taken by the collector of traces: {why}", self.failed_since);
            self.told_at = Some(Instant::now());
            self.failed_since = 0;
        }
    }
}

#[cfg(test)]
mod tests;
