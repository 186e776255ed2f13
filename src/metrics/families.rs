//! The table of everything that is counted: names, help texts, labels, buckets.
//!
//! The names of counters lack their `_total` here: the encoder appends it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Instant, SystemTime};

use arc_swap::ArcSwap;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use super::labels::{
    AttemptLabels, GroupLabels, ReasonLabels, RedirectLabels, ResultLabels, ServerLabels, VersionLabels,
};
use super::queue::QueueMetrics;
use super::remembered::Remembered;
use super::usage::{Roster, ServerName};
use super::{AttemptResult, EngineMetrics, HealthMetrics, LatencyMetrics, Metrics, RetryReason, Series, since_1970};
use crate::access_log::Counts;
use crate::traces;

/// Upper bounds in seconds, from an error that is answered at once to a long prompt on a busy server.
pub(super) const SECONDS: [f64; 19] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
    900.0,
];

/// Upper bounds in bytes: powers of 4 from 256 B to 64 MiB.
const BODY_BYTES: [f64; 10] =
    [256.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0, 67_108_864.0];

/// Upper bounds of relative errors; below zero is too low.
const ERRORS: [f64; 13] = [-0.5, -0.25, -0.15, -0.1, -0.05, -0.02, 0.02, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0];

impl Metrics {
    /// Counters at zero for these groups and servers, which the other methods know by their numbers in the
    /// [`Balancer`](crate::balance::Balancer). Other numbers are not counted.
    #[must_use]
    pub fn new(roster: &Roster) -> Self {
        let start_time = SystemTime::now();
        let mut registry = Registry::default();

        let build: Family<VersionLabels, Gauge> =
            registered(&mut registry, "tidegate_build_info", "The version that runs, as a label", Family::default());
        build.get_or_create(&VersionLabels { version: env!("CARGO_PKG_VERSION") }).set(1);
        let start: Gauge<f64, AtomicU64> = registered(
            &mut registry,
            "tidegate_start_time_seconds",
            "When this process started, in seconds since 1970",
            Gauge::default(),
        );
        start.set(since_1970(start_time).as_secs_f64());

        let attempts: Family<AttemptLabels, Counter> = registered(
            &mut registry,
            "tidegate_attempts",
            "Attempts on servers by how they ended; a request has one attempt or, with retries, more",
            Family::default(),
        );
        let retries: Family<ReasonLabels, Counter> = registered(
            &mut registry,
            "tidegate_retries",
            "Further attempts, by what was wrong with the one before",
            Family::default(),
        );
        let redirects: Family<RedirectLabels, Counter> = registered(
            &mut registry,
            "tidegate_redirects",
            "Requests that were sent to another group than their length is for",
            Family::default(),
        );
        let health = HealthMetrics::registered(&mut registry);
        let engines = EngineMetrics::registered(&mut registry);
        let time_to_first_byte = registered(
            &mut registry,
            "tidegate_time_to_first_byte_seconds",
            "From the request header to the first byte of the response body, for requests that count as load",
            seconds_by_group(),
        );
        let request_duration = registered(
            &mut registry,
            "tidegate_request_duration_seconds",
            "From the request header to the end of the request, for requests that count as load",
            seconds_by_group(),
        );

        let access_log: Family<ResultLabels, Counter> = registered(
            &mut registry,
            "tidegate_access_log_lines",
            "Lines of the access log that were written, and those that were lost: its file could not be written to, or \
             not fast enough",
            Family::default(),
        );
        let spans: Family<ResultLabels, Counter> = registered(
            &mut registry,
            "tidegate_trace_spans",
            "Spans that the collector of traces has taken (exported), that it has not (failed), and that there was no \
             room for while others waited for it (dropped)",
            Family::default(),
        );

        let metrics = Self {
            requests: Remembered::of(registered(
                &mut registry,
                "tidegate_requests",
                "Finished requests by endpoint, outcome and class of the status sent",
                Family::default(),
            )),
            requests_by_outcome: Default::default(),
            rejections: registered(
                &mut registry,
                "tidegate_rejections",
                "Requests that Tidegate answered with an error of its own, by reason",
                Family::default(),
            ),
            timeouts: registered(
                &mut registry,
                "tidegate_timeouts",
                "Requests and attempts that a time limit ended, by the limit's key in the configuration",
                Family::default(),
            ),
            decisions: Remembered::of(registered(
                &mut registry,
                "tidegate_decisions",
                "Servers chosen, by why the policy chose them; a request has one choice or, with retries, more",
                Family::default(),
            )),
            shadow_choices: registered(
                &mut registry,
                "tidegate_shadow_choices",
                "What policy.shadow would have chosen: the group, its reason, and whether that is where the request went",
                Family::default(),
            ),
            estimate_error: Remembered::of(registered(
                &mut registry,
                "tidegate_prompt_estimate_error_ratio",
                "By which share of the tokens that the server counted the estimate of a prompt's length was off",
                Family::new_with_constructor((|| Histogram::new(ERRORS)) as fn() -> Histogram),
            )),
            key_requests: registered(
                &mut registry,
                "tidegate_key_requests",
                "Requests that were let in, by the name of their API key",
                Family::default(),
            ),
            key_prompt_tokens: registered(
                &mut registry,
                "tidegate_key_prompt_tokens",
                "Estimated prompt tokens of requests that were let in, by the name of their API key",
                Family::default(),
            ),
            key_rejections: registered(
                &mut registry,
                "tidegate_key_rejections",
                "Requests with a known API key that were not let in, by the key's name and the reason",
                Family::default(),
            ),
            attempts,
            retries: RetryReason::ALL
                .map(|reason| retries.get_or_create_owned(&ReasonLabels { reason: reason.label() })),
            redirects,
            redirects_in_all: Counter::default(),
            health,
            engines,
            latency: LatencyMetrics::registered(&mut registry),
            draining: registered(
                &mut registry,
                "tidegate_server_draining",
                "1 when the server gets nothing new because it is being drained, by hand or by configuration",
                Family::default(),
            ),
            config_generation: registered(
                &mut registry,
                "tidegate_config_generation",
                "Counts the configurations that were put in force since the start",
                Gauge::default(),
            ),
            config_refused: registered(
                &mut registry,
                "tidegate_config_refused",
                "1 while the latest reload was refused: what is in force is older than the file",
                Gauge::default(),
            ),
            discovery_failed: registered(
                &mut registry,
                "tidegate_discovery_failed",
                "1 while a source of servers gives no answer that can be used: the servers stay as they were",
                Family::default(),
            ),
            certificate_valid_until: registered(
                &mut registry,
                "tidegate_tls_certificate_valid_until_seconds",
                "When the certificate that clients are shown expires, in seconds since 1970",
                Family::default(),
            ),
            tls_files_refused: registered(
                &mut registry,
                "tidegate_tls_files_refused",
                "Sets of TLS files that have changed and cannot be used: what they held before is in force",
                Gauge::default(),
            ),
            queue: QueueMetrics::new(&mut registry),
            access_log: Counts {
                written: access_log.get_or_create_owned(&ResultLabels { result: "written" }),
                dropped: access_log.get_or_create_owned(&ResultLabels { result: "dropped" }),
            },
            spans: traces::Counts {
                exported: spans.get_or_create_owned(&ResultLabels { result: "exported" }),
                failed: spans.get_or_create_owned(&ResultLabels { result: "failed" }),
                dropped: spans.get_or_create_owned(&ResultLabels { result: "dropped" }),
            },
            request_bytes: registered(
                &mut registry,
                "tidegate_request_bytes",
                "Bytes of request bodies that came whole from clients",
                Counter::default(),
            ),
            response_bytes: registered(
                &mut registry,
                "tidegate_response_bytes",
                "Bytes of response bodies that went to clients",
                Counter::default(),
            ),
            request_body_bytes: registered(
                &mut registry,
                "tidegate_request_body_bytes",
                "Sizes of the bodies of requests that count as load",
                Histogram::new(BODY_BYTES),
            ),
            time_to_first_byte,
            request_duration,
            series: ArcSwap::from_pointee(Series::default()),
            start_time,
            started: Instant::now(),
            registry,
        };
        metrics.follow(roster);
        metrics
    }

    /// Counts for these groups and servers from now on. Series of others stay on the page, and stand still.
    pub fn follow(&self, roster: &Roster) {
        let attempts = |name: &ServerName| {
            AttemptResult::ALL.map(|result| {
                let labels = AttemptLabels { server: Arc::clone(&name.server), result: result.label() };
                self.attempts.get_or_create_owned(&labels)
            })
        };
        let redirects = |(from, from_name): (usize, &Arc<str>)| {
            let counter = |(to, to_name): (usize, &Arc<str>)| {
                if from == to {
                    return Counter::default();
                }
                let labels = RedirectLabels { from: Arc::clone(from_name), to: Arc::clone(to_name) };
                self.redirects.get_or_create_owned(&labels)
            };
            roster.groups.iter().enumerate().map(counter).collect()
        };
        let draining = |name: &ServerName| {
            let labels = ServerLabels { group: Arc::clone(&name.group), server: Arc::clone(&name.server) };
            self.draining.get_or_create_owned(&labels)
        };
        // A server that has left, or stands in another group, is not drained there any more.
        self.draining.clear();
        self.series.store(Arc::new(Series {
            draining: roster.servers.iter().map(|name| name.as_ref().map(draining)).collect(),
            waiting: roster.servers.iter().map(|_| Default::default()).collect(),
            attempts: roster.servers.iter().map(|name| name.as_ref().map(attempts)).collect(),
            redirects: roster.groups.iter().enumerate().map(redirects).collect(),
            time_to_first_byte: for_each_group(roster, &self.time_to_first_byte),
            request_duration: for_each_group(roster, &self.request_duration),
            roster: roster.clone(),
        }));
    }
}

pub(super) type SecondsByGroup = Family<GroupLabels, Histogram, fn() -> Histogram>;

pub(super) fn seconds_by_group() -> SecondsByGroup {
    Family::new_with_constructor(|| Histogram::new(SECONDS))
}

fn for_each_group(roster: &Roster, family: &SecondsByGroup) -> Vec<Histogram> {
    roster.groups.iter().map(|group| family.get_or_create_owned(&GroupLabels { group: Arc::clone(group) })).collect()
}

pub(super) fn registered<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}
