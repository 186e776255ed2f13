//! What a configuration will do, for people: the output of `tidegate check`.

use std::fmt::{self, Display};
use std::time::Duration;

use bytesize::ByteSize;

use super::access::AccessSummary;
use super::{
    AccessLog, Config, Group, Health, MaxModelLen, ModelTokenizer, QueueLimits, ServerTls, Timeouts, TlsListen,
    Tracing, Traits,
};
use crate::balance::{ByWork, Neighbours, Policy, Ties, WorkKind};
use crate::prompt::MediaCosts;
use crate::work::Prefers;

/// Shows a configuration in words. No key's text is in it.
#[derive(Debug)]
pub struct Summary<'a>(pub &'a Config);

impl Display for Summary<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(config) = self;
        writeln!(out, "listen: {}", list(&config.listen))?;
        writeln!(out, "tls: {}", config.tls.as_ref().map_or_else(|| "none".to_owned(), tls))?;
        writeln!(out, "admin: {}", config.admin.map_or_else(|| "none".to_owned(), |admin| admin.to_string()))?;
        writeln!(out, "admin access: {}", admin_access(config))?;
        writeln!(out, "watch: {}", if config.watch { "the file is watched" } else { "the file is not watched" })?;
        writeln!(out, "policy: {}", policy(config))?;
        writeln!(out, "shadow: {}", shadow(config.shadow.as_ref(), config.ties))?;
        writeln!(out, "tokenizers: {}", tokenizers(&config.tokenizers))?;
        let session = config.session_header.as_ref().map_or("none", |name| name.as_str());
        writeln!(out, "session header: {session}")?;
        for (index, group) in config.groups.iter().enumerate() {
            self::group(out, group, &range(&config.policy, index), config.asks_engines().is_some())?;
        }
        let (body, access) = (ByteSize::b(config.max_body_bytes as u64), AccessSummary(&config.access));
        writeln!(out, "limits: max_body_size {body}, {}", access.limits())?;
        writeln!(out, "timeouts: {}", timeouts(&config.timeouts))?;
        let retry = &config.retry;
        let [base, max] = [retry.base_delay, retry.max_delay].map(humantime::format_duration);
        writeln!(out, "retry: max_attempts {}, base_delay {base}, max_delay {max}", retry.max_attempts)?;
        health(out, &config.health)?;
        writeln!(out, "engines: {}", engines(config))?;
        writeln!(out, "log: level {}", config.log_level.as_str().to_lowercase())?;
        writeln!(out, "access log: {}", access_log(config.access_log.as_ref()))?;
        writeln!(out, "tracing: {}", tracing(config.tracing.as_ref()))?;
        writeln!(out, "queue: {}", queue(&config.queue))?;
        let decision = config.decision_headers.label();
        writeln!(out, "headers: strip {}, decision {decision}", list(&config.strip_request_headers))?;
        let key = if config.upstream_authorization.is_some() { "the configured key" } else { "the client's key" };
        writeln!(out, "upstream: {key} is sent to servers without a key of their own")?;
        write!(out, "{access}")?;
        let [delay, grace] = [config.shutdown.delay, config.shutdown.grace].map(humantime::format_duration);
        writeln!(out, "shutdown: delay {delay}, grace {grace}")?;
        pingora(out, config)
    }
}

fn admin_access(config: &Config) -> &'static str {
    match (&config.admin_access.token, config.admin_access.protect_reads) {
        (None, _) => "open",
        (Some(_), false) => "a token for what changes something",
        (Some(_), true) => "a token for everything but /healthz and /readyz",
    }
}

/// Whose tokens are counted exactly.
pub(super) fn tokenizers(tokenizers: &[ModelTokenizer]) -> String {
    let named = |tokenizer: &ModelTokenizer| {
        format!("{} {}", tokenizer.model.as_deref().unwrap_or("any"), tokenizer.file.display())
    };
    if tokenizers.is_empty() { "none".to_owned() } else { tokenizers.iter().map(named).collect::<Vec<_>>().join(", ") }
}

/// Which requests get a line in the access log, and where.
pub(super) fn access_log(settings: Option<&AccessLog>) -> String {
    let Some(AccessLog { format, path, sample, slower_than }) = settings else { return "none".to_owned() };
    let path = path.as_ref().map_or_else(|| "standard output".to_owned(), |path| path.display().to_string());
    let mut which = Vec::new();
    if !slower_than.is_zero() {
        which.push(format!("that took {}", humantime::format_duration(*slower_than)));
    }
    if *sample < 1.0 {
        which.push(format!("a share of {sample}"));
    }
    let which = if which.is_empty() { String::new() } else { format!("; of what went well {}", which.join(", ")) };
    format!("{} to {path}{which}", format.label())
}

/// Which traces are exported, and to where. Of header fields only the names.
pub(super) fn tracing(settings: Option<&Tracing>) -> String {
    let Some(Tracing { url, service_name, sample, headers, timeout }) = settings else { return "none".to_owned() };
    let names: Vec<_> = headers.iter().map(|(name, _)| name).collect();
    let (names, timeout) = (list(&names), humantime::format_duration(*timeout));
    format!("to {url} as {service_name}, a share of {sample}, headers {names}, timeout {timeout}")
}

fn engines(config: &Config) -> String {
    match config.asks_engines() {
        Some(engines) => {
            let [interval, timeout] = [engines.interval, engines.timeout].map(humantime::format_duration);
            format!("asked how busy they are every {interval}, timeout {timeout}")
        }
        None if config.engines.is_some() => format!("not asked, which policy {} does not need", config.policy.name()),
        None => "not asked".to_owned(),
    }
}

fn queue(queue: &QueueLimits) -> String {
    let max_size = ByteSize::b(queue.max_bytes as u64);
    match queue.max_wait.map(humantime::format_duration) {
        Some(max_wait) => format!("max_requests {}, max_size {max_size}, max_wait {max_wait}", queue.max_requests),
        None => "none: a request that no server can take is refused at once".to_owned(),
    }
}

pub(super) fn list<T: Display>(items: &[T]) -> String {
    let items: Vec<_> = items.iter().map(ToString::to_string).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

pub(super) fn policy(config: &Config) -> String {
    in_words(&config.policy, config.ties)
}

/// The policy beside it.
pub(super) fn shadow(policy: Option<&Policy>, ties: Ties) -> String {
    policy.map_or_else(|| "none".to_owned(), |policy| in_words(policy, ties))
}

fn in_words(policy: &Policy, ties: Ties) -> String {
    let ties = match ties {
        Ties::First => "first",
        Ties::LeastRecentlyUsed => "least_recently_used",
    };
    let name = policy.name();
    match policy {
        Policy::ReferencePlain => format!("{name}, ties {ties}"),
        Policy::ByWork(by_work) => self::by_work(name, by_work),
        Policy::ReferenceBucket(buckets) => {
            let tuning = buckets.tuning();
            let neighbours = match tuning.neighbours {
                Neighbours::Adjacent => "adjacent",
                Neighbours::All => "all",
            };
            format!(
                "{name}, sensitivity {}, affinity_strength {}, redirect_threshold {}, neighbours {neighbours}, ties {ties}",
                tuning.sensitivity, tuning.affinity_strength, tuning.threshold
            )
        }
    }
}

fn by_work(name: &str, by_work: &ByWork) -> String {
    let ByWork { kind, profile, long_from_tokens, hold, media, prefix_bytes } = by_work;
    let MediaCosts { image_tokens, audio_tokens, video_tokens } = media;
    let learned = |pin: Option<u64>| pin.map_or_else(|| "auto".to_owned(), |pin| pin.to_string());
    let lanes = match kind {
        WorkKind::Lanes { count } => {
            let max_hold = humantime::format_duration(Duration::from_secs_f64(hold.max_wait_s));
            format!(", lanes {}, max_hold {max_hold}", learned(count.map(|count| count as u64)))
        }
        WorkKind::LeastWork => String::new(),
    };
    format!(
        "{name}{lanes}, long_from_tokens {}, engine {}, max_num_batched_tokens {}, kv_cache_tokens {}, \
         media_tokens image {image_tokens}, audio {audio_tokens}, video {video_tokens}, prefix_memory {}",
        learned(*long_from_tokens),
        profile.name,
        profile.budget_tokens,
        profile.kv_tokens,
        ByteSize::b(*prefix_bytes)
    )
}

/// What tells a server from others, each with its key.
pub(super) fn named_traits(traits: &Traits) -> [(&'static str, Option<String>); 4] {
    let Traits { max_model_len, kv_tokens, speed, prefers } = traits;
    let most = match max_model_len {
        MaxModelLen::Auto => Some("auto".to_owned()),
        MaxModelLen::Unknown => None,
        MaxModelLen::Tokens(tokens) => Some(tokens.to_string()),
    };
    let shown = |tokens: &Option<u64>| tokens.map(|tokens| tokens.to_string());
    let weight = Some(*speed).filter(|speed| speed.total_cmp(&1.0).is_ne()).map(|speed| speed.to_string());
    let prefer = prefers.map(|prefers| match prefers {
        Prefers::Long => "long".to_owned(),
        Prefers::Short => "short".to_owned(),
    });
    [("max_model_len", most), ("kv_cache_tokens", shown(kv_tokens)), ("weight", weight), ("prefer", prefer)]
}

/// The prompts that a group is for.
pub(super) fn range(policy: &Policy, group: usize) -> String {
    let Policy::ReferenceBucket(buckets) = policy else { return "all prompts".to_owned() };
    let ranges = buckets.ranges();
    match ranges.get(group) {
        Some(range) if group + 1 == ranges.len() => {
            format!("prompts from {} tokens, planned up to {}", range.from, range.to)
        }
        Some(range) => format!("prompts from {} to below {} tokens", range.from, range.to),
        None => "no prompts".to_owned(),
    }
}

/// Without engines that are asked `max_model_len: auto` says nothing.
fn group(out: &mut fmt::Formatter<'_>, group: &Group, range: &str, asks_engines: bool) -> fmt::Result {
    writeln!(out, "group {}: {range}", group.name)?;
    for server in &group.servers {
        let authority = server.authority();
        let scheme = if server.tls.is_some() { "https://" } else { "" };
        write!(out, "  {scheme}{authority}")?;
        if server.name != authority {
            write!(out, ", name {}", server.name)?;
        }
        if let Some(most) = server.limits.max_in_flight {
            write!(out, ", max_in_flight {most}")?;
        }
        if let Some(most) = server.limits.max_active_tokens {
            write!(out, ", max_active_tokens {most}")?;
        }
        for (key, value) in named_traits(&server.traits) {
            if let Some(value) = value.filter(|value| asks_engines || value != "auto") {
                write!(out, ", {key} {value}")?;
            }
        }
        if let Some(tls) = &server.tls {
            write!(out, ", {}", server_tls(tls))?;
        }
        out.write_str(if server.authorization.is_some() { ", a key of its own" } else { "" })?;
        out.write_str(if server.is_drained { ", drained\n" } else { "\n" })?;
    }
    if let Some(discover) = &group.discover {
        write!(out, "  discovered: {}, every {}", discover.source, humantime::format_duration(discover.interval))?;
        if let Some(tls) = &discover.tls {
            write!(out, ", https://, {}", server_tls(tls))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn tls(tls: &TlsListen) -> String {
    let files = tls.listener.files();
    let until = tls.listener.valid_until();
    let (certificate, key) = (files.certificate.display(), files.key.display());
    let listen = list(&tls.listen);
    format!("{listen}, certificate {certificate} (valid until {until}), key {key}, min_version {}", files.min_version)
}

pub(super) fn server_tls(tls: &ServerTls) -> String {
    let files = tls.upstream.files();
    let trusted = match &files.ca {
        _ if files.insecure => "any certificate is taken (insecure)".to_owned(),
        Some(ca) => format!("ca {}", ca.display()),
        None => "ca of the system".to_owned(),
    };
    let identity = files.identity.as_ref().map_or_else(String::new, |(certificate, key)| {
        format!(", certificate {}, key {}", certificate.display(), key.display())
    });
    format!("server_name {}, {trusted}{identity}", tls.name)
}

fn timeouts(limits: &Timeouts) -> String {
    list(&named_timeouts(limits).map(|(name, limit)| format!("{name} {}", or_none(limit))))
}

/// Every time limit with its key.
pub(super) fn named_timeouts(limits: &Timeouts) -> [(&'static str, Option<Duration>); 10] {
    let Timeouts { connect, request_header, request_body_idle, request_body, first_byte, .. } = *limits;
    let Timeouts { response_idle, client_write, total, client_keepalive, server_keepalive, .. } = *limits;
    [
        ("connect", Some(connect)),
        ("request_header", Some(request_header)),
        ("request_body_idle", Some(request_body_idle)),
        ("request_body", Some(request_body)),
        ("first_byte", first_byte),
        ("response_idle", response_idle),
        ("client_write", client_write),
        ("total", total),
        ("client_keepalive", Some(client_keepalive)),
        ("server_keepalive", Some(server_keepalive)),
    ]
}

fn health(out: &mut fmt::Formatter<'_>, health: &Health) -> fmt::Result {
    match &health.active {
        None => writeln!(out, "health: no active checks")?,
        Some(checks) => {
            let [interval, timeout] = [checks.interval, checks.timeout].map(humantime::format_duration);
            let names: Vec<_> = checks.headers.iter().map(|(name, _)| name).collect();
            writeln!(
                out,
                "health: {} {} is to give {} every {interval}, timeout {timeout}, failures {}, successes {}, headers {}",
                checks.method,
                checks.path,
                checks.expected,
                checks.failures,
                checks.successes,
                list(&names)
            )?;
        }
    }
    match &health.passive {
        None => writeln!(out, "health: no passive checks")?,
        Some(checks) => {
            let [base, max] = [checks.base_ejection, checks.max_ejection].map(humantime::format_duration);
            let (first_byte, dead) = (or_none(checks.first_byte_limit), or_none(checks.dead_stream_limit));
            writeln!(
                out,
                "health: {} faults in a row eject for {base} to {max}, max_ejected_share {}, first_byte_limit \
                 {first_byte}, dead_stream_limit {dead}",
                checks.failures, checks.max_ejected_share
            )?;
        }
    }
    let probation = &health.probation;
    writeln!(out, "health: probation max_in_flight {}, successes {}", probation.max_in_flight, probation.successes)
}

pub(super) fn or_none(limit: Option<Duration>) -> String {
    limit.map_or_else(|| "none".to_owned(), |limit| humantime::format_duration(limit).to_string())
}

fn pingora(out: &mut fmt::Formatter<'_>, config: &Config) -> fmt::Result {
    let conf = &config.pingora;
    let stealing = if conf.work_stealing { "work stealing" } else { "no work stealing" };
    let daemon = if conf.daemon { "in the background" } else { "in the foreground" };
    let (threads, socket) = (conf.threads, &conf.upgrade_sock);
    writeln!(out, "pingora: {daemon}, {threads} threads, {stealing}, upgrade_sock {socket}")
}
