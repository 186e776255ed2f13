//! What Tidegate counts, and how Prometheus reads it.
//!
//! There are two kinds of numbers:
//! - **events** are counted here when they happen ([`Metrics::request_finished`] and its neighbours);
//! - **state** (load, requests in flight, memory) is not kept here: each scrape reads it where it lives, so that it
//!   cannot drift from the truth.
//!
//! Label values come from the closed lists in `labels` and from the configuration. Nothing that a client sends becomes
//! a label, so the number of series does not grow with traffic.
//!
//! Where to look: names and help texts in `families` (events), `usage` and `process` (state); label values in `labels`;
//! text formats in `exposition`.

mod engines;
mod exposition;
mod families;
mod health;
mod labels;
mod latency;
mod process;
mod queue;
mod remembered;
#[cfg(test)]
mod tests;
mod usage;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

pub use engines::EngineMetrics;
pub use exposition::Format;
use families::SecondsByGroup;
pub use health::HealthMetrics;
use labels::{
    AttemptLabels, CertificateLabels, ClassLabels, KeyLabels, KeyReasonLabels, LimitLabels, ReasonLabels,
    RedirectLabels, RequestLabels, ServerLabels, ShadowLabels, SourceLabels, status_class,
};
pub use labels::{AttemptResult, FinishedRequest, Outcome, QueueExit, RetryReason};
pub use latency::{AnswerTimes, LatencyMetrics, Prefilling};
use process::Process;
use queue::QueueMetrics;
pub use queue::Waiting;
use remembered::Remembered;
pub use usage::Roster;
use usage::Usage;

use crate::access_log::Counts;
use crate::balance::{Balancer, Length};
use crate::traces;

/// All counters of one Tidegate. Cheap to update: no allocation, at most one uncontended lock per series.
#[derive(Debug)]
pub struct Metrics {
    series: ArcSwap<Series>,
    start_time: SystemTime,
    started: Instant,
    registry: Registry,
    requests: Remembered<RequestLabels, Counter>,
    /// The sums of `requests` over the other labels, for [`totals`](Self::totals): a family cannot be listed.
    requests_by_outcome: [Counter; Outcome::ALL.len()],
    rejections: Family<ReasonLabels, Counter>,
    timeouts: Family<LimitLabels, Counter>,
    decisions: Remembered<ReasonLabels, Counter>,
    shadow_choices: Family<ShadowLabels, Counter>,
    estimate_error: Remembered<ClassLabels, Histogram>,
    /// By API key.
    key_requests: Family<KeyLabels, Counter>,
    key_prompt_tokens: Family<KeyLabels, Counter>,
    key_rejections: Family<KeyReasonLabels, Counter>,
    attempts: Family<AttemptLabels, Counter>,
    retries: [Counter; RetryReason::ALL.len()],
    redirects: Family<RedirectLabels, Counter>,
    redirects_in_all: Counter,
    health: HealthMetrics,
    engines: EngineMetrics,
    latency: LatencyMetrics,
    draining: Family<ServerLabels, Gauge>,
    config_generation: Gauge,
    config_refused: Gauge,
    discovery_failed: Family<SourceLabels, Gauge>,
    /// Empty without a TLS listener.
    certificate_valid_until: Family<CertificateLabels, Gauge>,
    tls_files_refused: Gauge,
    queue: QueueMetrics,
    access_log: Counts,
    spans: traces::Counts,
    request_bytes: Counter,
    response_bytes: Counter,
    request_body_bytes: Histogram,
    time_to_first_byte: SecondsByGroup,
    request_duration: SecondsByGroup,
}

/// The series of the groups and servers that there are now, found once and not at each request.
#[derive(Debug, Default)]
struct Series {
    roster: Roster,
    /// By server number and result.
    attempts: Vec<Option<[Counter; AttemptResult::ALL.len()]>>,
    /// By server number; a series is there from the first request on.
    waiting: Vec<[OnceLock<(Gauge, Gauge)>; Length::ALL.len()]>,
    /// By group of origin and destination. What is on the diagonal is never counted.
    redirects: Vec<Vec<Counter>>,
    /// By server number.
    draining: Vec<Option<Gauge>>,
    /// By group.
    time_to_first_byte: Vec<Histogram>,
    /// By group.
    request_duration: Vec<Histogram>,
}

/// Sums since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// Finished requests by outcome, in the order of [`Outcome::ALL`].
    pub requests: [u64; Outcome::ALL.len()],
    /// Further attempts.
    pub retries: u64,
    /// Requests that were sent to another group than their length is for.
    pub redirects: u64,
}

impl Metrics {
    /// Counts a request that has ended. Once per request, whatever happened to it.
    ///
    /// Size and times go into the histograms only for requests that were given to a server and count as load: a model
    /// list that is answered in a millisecond would hide what generation takes.
    #[expect(clippy::cast_precision_loss, reason = "a body is far smaller than 2^53 bytes")]
    pub fn request_finished(&self, request: &FinishedRequest) {
        let labels = RequestLabels {
            endpoint: request.endpoint.label(),
            outcome: request.outcome.label(),
            code: status_class(request.status),
        };
        self.requests.with(&labels, |requests| {
            requests.inc();
        });
        self.requests_by_outcome[request.outcome as usize].inc();
        self.request_bytes.inc_by(request.request_bytes);
        self.response_bytes.inc_by(request.response_bytes);
        let Some(group) = request.group.filter(|_| request.endpoint.is_generation()) else {
            return;
        };
        self.request_body_bytes.observe(request.request_bytes as f64);
        let series = self.series.load();
        if let Some(request_duration) = series.request_duration.get(group) {
            request_duration.observe(request.duration.as_secs_f64());
        }
        if let (Some(time), Some(seconds)) = (request.time_to_first_byte, series.time_to_first_byte.get(group)) {
            seconds.observe(time.as_secs_f64());
        }
    }

    /// Counts a request that was given to a server, by the policy's reason from a closed list: each becomes a series that
    /// stays.
    pub fn decided(&self, reason: &'static str) {
        self.decisions.with(&ReasonLabels { reason }, |decisions| {
            decisions.inc();
        });
    }

    /// Counts what the policy beside the one in force would have chosen: a group, or none, its reason and whether that is
    /// where the request went, both from closed lists.
    pub fn shadow_chose(
        &self,
        policy: &'static str,
        group: Option<usize>,
        reason: &'static str,
        agreement: &'static str,
    ) {
        let group = group.and_then(|group| self.series.load().roster.group(group)).unwrap_or_else(|| "none".into());
        self.shadow_choices.get_or_create(&ShadowLabels { policy, group, reason, agreement }).inc();
    }

    /// Notes by which share an estimated prompt length was off, by the class of endpoints.
    pub fn estimated(&self, class: &'static str, relative: f64) {
        self.estimate_error.with(&ClassLabels { class }, |errors| errors.observe(relative));
    }

    /// Counts an error of Tidegate's own, by a reason from a closed list: each becomes a series that stays.
    pub fn rejected(&self, reason: &'static str) {
        self.rejections.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// Counts a request or an attempt that a time limit ended, by the limit's key: each becomes a series that stays.
    pub fn timed_out(&self, limit: &'static str) {
        self.timeouts.get_or_create(&LimitLabels { limit }).inc();
    }

    /// Counts a request that was let in with an API key. The name is a configured one: each becomes a series that stays.
    pub fn key_admitted(&self, name: &Arc<str>) {
        self.key_requests.get_or_create(&KeyLabels { key: Arc::clone(name) }).inc();
    }

    /// Counts the estimated prompt tokens of a request that was let in with an API key.
    pub fn key_charged(&self, name: &Arc<str>, prompt_tokens: u64) {
        self.key_prompt_tokens.get_or_create(&KeyLabels { key: Arc::clone(name) }).inc_by(prompt_tokens);
    }

    /// Counts a request that was refused although its API key is a known one.
    pub fn key_rejected(&self, name: &Arc<str>, reason: &'static str) {
        self.key_rejections.get_or_create(&KeyReasonLabels { key: Arc::clone(name), reason }).inc();
    }

    /// Counts an attempt on a server that has ended.
    pub fn attempt_ended(&self, server: usize, result: AttemptResult) {
        if let Some(Some(attempts)) = self.series.load().attempts.get(server) {
            attempts[result as usize].inc();
        }
    }

    /// Counts that a request is tried once more.
    pub fn retried(&self, reason: RetryReason) {
        self.retries[reason as usize].inc();
    }

    /// Counts that a request goes to another group than its length is for. Nothing when both are the same.
    pub fn redirected(&self, from_group: usize, to_group: usize) {
        let series = self.series.load();
        let redirects = series.redirects.get(from_group).and_then(|redirects| redirects.get(to_group));
        if let Some(redirects) = redirects.filter(|_| from_group != to_group) {
            redirects.inc();
            self.redirects_in_all.inc();
        }
    }

    /// What is counted of the health of servers.
    #[must_use]
    pub fn health(&self) -> &HealthMetrics {
        &self.health
    }

    /// What has become of the lines of the access log.
    #[must_use]
    pub fn access_log(&self) -> &Counts {
        &self.access_log
    }

    /// What has become of the spans of traces.
    #[must_use]
    pub fn spans(&self) -> &traces::Counts {
        &self.spans
    }

    /// What the servers' engines say of themselves.
    #[must_use]
    pub fn engines(&self) -> &EngineMetrics {
        &self.engines
    }

    /// Says whether a server gets nothing new because somebody wants it empty.
    pub fn server_draining(&self, server: usize, is_draining: bool) {
        if let Some(Some(draining)) = self.series.load().draining.get(server) {
            draining.set(is_draining.into());
        }
    }

    /// Says which configuration is in force.
    pub fn config_generation(&self, generation: u64) {
        self.config_generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
    }

    /// Says whether the latest reload was refused.
    pub fn config_refused(&self, is_refused: bool) {
        self.config_refused.set(is_refused.into());
    }

    /// Says whether the latest look at a source of servers failed. Sources are those of the configuration.
    pub fn discovery_failed(&self, source: String, has_failed: bool) {
        self.discovery_failed.get_or_create(&SourceLabels { source }).set(has_failed.into());
    }

    /// Says that a source of servers is not looked at any more.
    pub fn discovery_ended(&self, source: String) {
        self.discovery_failed.remove(&SourceLabels { source });
    }

    /// Says how TLS stands: the file with the certificate that clients are shown and until when that is valid, in
    /// seconds since 1970, and how many sets of files cannot be used as they are now.
    pub fn tls(&self, certificate: Option<(String, i64)>, files_refused: usize) {
        if let Some((certificate, valid_until)) = certificate {
            self.certificate_valid_until.get_or_create(&CertificateLabels { certificate }).set(valid_until);
        }
        self.tls_files_refused.set(i64::try_from(files_refused).unwrap_or(i64::MAX));
    }

    /// Sums since the start.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            requests: Outcome::ALL.map(|outcome| self.requests_by_outcome[outcome as usize].get()),
            retries: self.retries.iter().map(Counter::get).sum(),
            redirects: self.redirects_in_all.get(),
        }
    }

    /// When this process started, in time since 1970.
    #[must_use]
    pub fn start_time(&self) -> Duration {
        since_1970(self.start_time)
    }

    /// For how long this process has run.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// The whole page for a scrape: the counters here and the state of the balancer, of the queue (by group) and of the
    /// process at this moment.
    #[must_use]
    pub fn render(&self, balancer: &Balancer, waiting: &[Waiting], format: Format) -> String {
        // A registry of its own for each scrape, so that scrapes at the same time cannot mix their readings.
        let mut state = Registry::default();
        let roster = self.series.load().roster.clone();
        state.register_collector(Box::new(Usage { roster, snapshot: balancer.snapshot(), waiting: waiting.to_vec() }));
        state.register_collector(Box::new(Process::read()));

        let mut page = String::new();
        encode_registry(&mut page, &self.registry)
            .and_then(|()| encode_registry(&mut page, &state))
            .and_then(|()| encode_eof(&mut page))
            .expect("a string takes all that is written to it");
        match format {
            Format::OpenMetrics => page,
            Format::Text => exposition::to_text(&page),
        }
    }
}

fn since_1970(time: SystemTime) -> Duration {
    // A clock before 1970 is a machine without a clock.
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}
