//! What the configuration says, in the form in which `/status` shows it.
//!
//! Keys stay out: only whether there is one is said.

use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::allowed::AccessStatus;
use crate::balance::{Bucket, ByWork, Neighbours, Policy, RedirectTuning, Ties, WorkKind};
use crate::config::{AccessLog, Config, Engines, Health, QueueLimits, Retry, Shutdown, Timeouts, TlsListen, Tracing};
use crate::tls::Listener;

#[derive(Debug, Serialize)]
pub(super) struct PolicyStatus {
    name: &'static str,
    tuning: Option<TuningStatus>,
    pub(super) buckets: Vec<BucketStatus>,
    /// Null unless the policy is one by work.
    by_work: Option<ByWorkStatus>,
}

/// How requests are routed by work, as configured. Null is learned; what was learned stands in `work`.
#[derive(Debug, Serialize)]
struct ByWorkStatus {
    lanes: Option<usize>,
    long_from_tokens: Option<u64>,
    max_hold_seconds: f64,
    engine_profile: &'static str,
    max_num_batched_tokens: u64,
    kv_cache_tokens: u64,
    image_tokens: u64,
    audio_tokens: u64,
    video_tokens: u64,
    prefix_memory_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct TuningStatus {
    sensitivity: f64,
    affinity_strength: f64,
    threshold: f64,
    neighbours: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct BucketStatus {
    pub(super) from_tokens: u64,
    pub(super) to_tokens: u64,
}

/// The configuration in force, apart from groups and policy, which stand beside it.
#[derive(Debug, Serialize)]
pub(super) struct ConfigStatus {
    listen: Vec<String>,
    tls: Option<TlsStatus>,
    admin: Option<String>,
    /// Whether a token is asked for where something is changed.
    admin_token_set: bool,
    /// Whether it is asked for everywhere.
    admin_protect_reads: bool,
    /// Whether the file is watched.
    watch: bool,
    /// The models whose prompts are counted exactly; null is all others.
    tokenizers: Vec<Option<String>>,
    /// Null: clients do not name conversations.
    session_header: Option<String>,
    max_body_bytes: usize,
    timeouts_seconds: TimeoutsStatus,
    retry: RetryStatus,
    health: HealthStatus,
    /// Null: they are not asked.
    engines: Option<EnginesStatus>,
    log_level: String,
    /// Null: there is none.
    access_log: Option<AccessLogStatus>,
    /// Null: nothing is exported.
    tracing: Option<TracingStatus>,
    queue: QueueStatus,
    strip_request_headers: Vec<String>,
    decision_headers: &'static str,
    access: AccessStatus,
    /// Whether there is a key for all servers.
    upstream_authorization_set: bool,
    threads: usize,
    shutdown: ShutdownStatus,
}

/// The TLS listener.
#[derive(Debug, Serialize)]
pub(super) struct TlsStatus {
    listen: Vec<String>,
    certificate: String,
    min_version: String,
    /// Of the certificate that is in force when the status is asked for.
    #[serde(rename = "valid_until", serialize_with = "valid_until")]
    listener: Arc<Listener>,
}

fn valid_until<S: Serializer>(listener: &Arc<Listener>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&listener.valid_until())
}

/// In seconds; null is no limit.
#[derive(Debug, Serialize)]
pub(super) struct TimeoutsStatus {
    connect: f64,
    request_header: f64,
    request_body_idle: f64,
    request_body: f64,
    first_byte: Option<f64>,
    response_idle: Option<f64>,
    client_write: Option<f64>,
    total: Option<f64>,
    client_keepalive: f64,
    server_keepalive: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct EnginesStatus {
    interval_seconds: f64,
    timeout_seconds: f64,
}

/// Where spans go. The values of header fields may be keys: only their names are shown.
#[derive(Debug, Serialize)]
struct TracingStatus {
    url: String,
    service_name: String,
    sample: f64,
    headers: Vec<String>,
    timeout_seconds: f64,
}

#[derive(Debug, PartialEq, Serialize)]
struct AccessLogStatus {
    format: &'static str,
    /// Null: the standard output.
    path: Option<String>,
    sample: f64,
    slower_than_seconds: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct QueueStatus {
    max_requests: usize,
    max_bytes: usize,
    /// Null: requests do not wait.
    max_wait_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct RetryStatus {
    max_attempts: usize,
    base_delay_seconds: f64,
    max_delay_seconds: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct ShutdownStatus {
    delay_seconds: f64,
    grace_seconds: f64,
}

/// The name of a rule for ties, as in the configuration.
pub(super) fn ties_name(ties: Ties) -> &'static str {
    match ties {
        Ties::First => "first",
        Ties::LeastRecentlyUsed => "least_recently_used",
    }
}

impl PolicyStatus {
    pub(super) fn of(policy: &Policy) -> Self {
        let (tuning, ranges) = match policy {
            Policy::ReferencePlain | Policy::ByWork(_) => (None, &[][..]),
            Policy::ReferenceBucket(buckets) => (Some(TuningStatus::of(buckets.tuning())), buckets.ranges()),
        };
        let by_work = if let Policy::ByWork(by_work) = policy { Some(ByWorkStatus::of(by_work)) } else { None };
        let bucket = |range: &Bucket| BucketStatus { from_tokens: range.from, to_tokens: range.to };
        Self { name: policy.name(), tuning, buckets: ranges.iter().map(bucket).collect(), by_work }
    }
}

impl ByWorkStatus {
    fn of(by_work: &ByWork) -> Self {
        let ByWork { kind, profile, long_from_tokens, hold, media, prefix_bytes } = by_work;
        Self {
            lanes: if let WorkKind::Lanes { count } = kind { *count } else { None },
            long_from_tokens: *long_from_tokens,
            max_hold_seconds: hold.max_wait_s,
            engine_profile: profile.name,
            max_num_batched_tokens: profile.budget_tokens,
            kv_cache_tokens: profile.kv_tokens,
            image_tokens: media.image_tokens,
            audio_tokens: media.audio_tokens,
            video_tokens: media.video_tokens,
            prefix_memory_bytes: *prefix_bytes,
        }
    }
}

impl TuningStatus {
    fn of(tuning: &RedirectTuning) -> Self {
        Self {
            sensitivity: tuning.sensitivity,
            affinity_strength: tuning.affinity_strength,
            threshold: tuning.threshold,
            neighbours: match tuning.neighbours {
                Neighbours::Adjacent => "adjacent",
                Neighbours::All => "all",
            },
        }
    }
}

impl ConfigStatus {
    pub(super) fn of(config: &Config) -> Self {
        // Every field is named, so that a new one cannot be forgotten here.
        let Config {
            listen,
            tls,
            admin,
            admin_access,
            watch,
            groups: _,
            policy: _,
            shadow: _,
            tokenizers,
            session_header,
            ties: _,
            max_body_bytes,
            timeouts,
            retry,
            health,
            engines,
            log_level,
            access_log,
            tracing,
            queue,
            strip_request_headers,
            decision_headers,
            upstream_authorization,
            access,
            shutdown,
            pingora,
        } = config;
        Self {
            listen: listen.iter().map(ToString::to_string).collect(),
            tls: tls.as_ref().map(TlsStatus::of),
            admin: admin.map(|address| address.to_string()),
            admin_token_set: admin_access.token.is_some(),
            admin_protect_reads: admin_access.protect_reads,
            watch: *watch,
            tokenizers: tokenizers.iter().map(|tokenizer| tokenizer.model.clone()).collect(),
            session_header: session_header.as_ref().map(ToString::to_string),
            max_body_bytes: *max_body_bytes,
            timeouts_seconds: TimeoutsStatus::of(timeouts),
            retry: RetryStatus::of(retry),
            health: HealthStatus::of(health),
            engines: engines.as_ref().map(EnginesStatus::of),
            log_level: log_level.as_str().to_lowercase(),
            access_log: access_log.as_ref().map(AccessLogStatus::of),
            tracing: tracing.as_ref().map(TracingStatus::of),
            queue: QueueStatus::of(queue),
            decision_headers: decision_headers.label(),
            strip_request_headers: strip_request_headers.iter().map(ToString::to_string).collect(),
            access: AccessStatus::of(access),
            upstream_authorization_set: upstream_authorization.is_some(),
            threads: pingora.threads,
            shutdown: ShutdownStatus::of(shutdown),
        }
    }
}

impl TlsStatus {
    fn of(tls: &TlsListen) -> Self {
        let files = tls.listener.files();
        Self {
            listen: tls.listen.iter().map(ToString::to_string).collect(),
            certificate: files.certificate.display().to_string(),
            min_version: files.min_version.to_string(),
            listener: Arc::clone(&tls.listener),
        }
    }
}

/// Durations in seconds; null is off or no limit.
#[derive(Debug, Serialize)]
pub(super) struct HealthStatus {
    active: Option<ActiveStatus>,
    passive: Option<PassiveStatus>,
    probation_max_in_flight: u64,
    probation_successes: u32,
}

/// The values of header fields may be keys: only their names are shown.
#[derive(Debug, Serialize)]
struct ActiveStatus {
    method: String,
    path: String,
    status: String,
    interval_seconds: f64,
    timeout_seconds: f64,
    failures: u32,
    successes: u32,
    headers: Vec<String>,
}

#[derive(Debug, Serialize)]
struct PassiveStatus {
    failures: u32,
    base_ejection_seconds: f64,
    max_ejection_seconds: f64,
    max_ejected_share: f64,
    first_byte_limit_seconds: Option<f64>,
    dead_stream_limit_seconds: Option<f64>,
}

impl HealthStatus {
    fn of(health: &Health) -> Self {
        let active = health.active.as_ref().map(|checks| ActiveStatus {
            method: checks.method.to_string(),
            path: checks.path.clone(),
            status: checks.expected.to_string(),
            interval_seconds: checks.interval.as_secs_f64(),
            timeout_seconds: checks.timeout.as_secs_f64(),
            failures: checks.failures,
            successes: checks.successes,
            headers: checks.headers.iter().map(|(name, _)| name.to_string()).collect(),
        });
        let passive = health.passive.as_ref().map(|checks| PassiveStatus {
            failures: checks.failures,
            base_ejection_seconds: checks.base_ejection.as_secs_f64(),
            max_ejection_seconds: checks.max_ejection.as_secs_f64(),
            max_ejected_share: checks.max_ejected_share,
            first_byte_limit_seconds: checks.first_byte_limit.map(|limit| limit.as_secs_f64()),
            dead_stream_limit_seconds: checks.dead_stream_limit.map(|limit| limit.as_secs_f64()),
        });
        Self {
            active,
            passive,
            probation_max_in_flight: health.probation.max_in_flight,
            probation_successes: health.probation.successes,
        }
    }
}

impl TimeoutsStatus {
    fn of(timeouts: &Timeouts) -> Self {
        let Timeouts {
            connect,
            request_header,
            request_body_idle,
            request_body,
            first_byte,
            response_idle,
            client_write,
            total,
            client_keepalive,
            server_keepalive,
        } = timeouts;
        let optional = |limit: &Option<Duration>| limit.as_ref().map(Duration::as_secs_f64);
        Self {
            connect: connect.as_secs_f64(),
            request_header: request_header.as_secs_f64(),
            request_body_idle: request_body_idle.as_secs_f64(),
            request_body: request_body.as_secs_f64(),
            first_byte: optional(first_byte),
            response_idle: optional(response_idle),
            client_write: optional(client_write),
            total: optional(total),
            client_keepalive: client_keepalive.as_secs_f64(),
            server_keepalive: server_keepalive.as_secs_f64(),
        }
    }
}

impl EnginesStatus {
    fn of(engines: &Engines) -> Self {
        let Engines { interval, timeout } = engines;
        Self { interval_seconds: interval.as_secs_f64(), timeout_seconds: timeout.as_secs_f64() }
    }
}

impl AccessLogStatus {
    fn of(access_log: &AccessLog) -> Self {
        let AccessLog { format, path, sample, slower_than } = access_log;
        let path = path.as_ref().map(|path| path.display().to_string());
        Self { format: format.label(), path, sample: *sample, slower_than_seconds: slower_than.as_secs_f64() }
    }
}

impl TracingStatus {
    fn of(tracing: &Tracing) -> Self {
        let Tracing { url, service_name, sample, headers, timeout } = tracing;
        Self {
            url: url.clone(),
            service_name: service_name.clone(),
            sample: *sample,
            headers: headers.iter().map(|(name, _)| name.to_string()).collect(),
            timeout_seconds: timeout.as_secs_f64(),
        }
    }
}

impl QueueStatus {
    fn of(queue: &QueueLimits) -> Self {
        let QueueLimits { max_requests, max_bytes, max_wait } = queue;
        Self {
            max_requests: *max_requests,
            max_bytes: *max_bytes,
            max_wait_seconds: max_wait.as_ref().map(Duration::as_secs_f64),
        }
    }
}

impl RetryStatus {
    fn of(retry: &Retry) -> Self {
        let Retry { max_attempts, base_delay, max_delay } = retry;
        Self {
            max_attempts: *max_attempts,
            base_delay_seconds: base_delay.as_secs_f64(),
            max_delay_seconds: max_delay.as_secs_f64(),
        }
    }
}

impl ShutdownStatus {
    fn of(shutdown: &Shutdown) -> Self {
        let Shutdown { delay, grace } = shutdown;
        Self { delay_seconds: delay.as_secs_f64(), grace_seconds: grace.as_secs_f64() }
    }
}
