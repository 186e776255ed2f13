//! The JSON of `/status`. Its shape is promised under `status_version`: keys may be added, and when one changes its
//! meaning or goes, the version rises.

use serde::Serialize;

use super::configured::{ConfigStatus, PolicyStatus, ties_name};
use super::engine::EngineStatus;
use super::work::{ShadowStatus, WorkStatus};
use crate::metrics::{Outcome, Totals};
use crate::reload::Reloader;
use crate::upstream::{Moment, Server, Verdict};

const STATUS_VERSION: u32 = 1;

#[derive(Serialize)]
struct Status<'a> {
    status_version: u32,
    version: &'static str,
    /// Since 1970.
    start_time_seconds: f64,
    uptime_seconds: f64,
    /// False once the process is told to stop.
    ready: bool,
    /// Counts the configurations that were put in force, from 1.
    config_generation: u64,
    config_applied_at: String,
    /// What had it read: `start`, `sighup`, `request` or `watch`.
    config_trigger: &'static str,
    /// The file; null without one.
    config_source: Option<String>,
    /// What the latest reload changed.
    config_changes: Vec<String>,
    /// What differs in the file that was applied and stays as it is until a restart.
    config_needs_restart: Vec<String>,
    /// The latest reload, when it was refused.
    config_refused: Option<RefusedStatus>,
    policy: PolicyStatus,
    ties: &'static str,
    groups: Vec<GroupStatus<'a>>,
    /// Servers that are in no group any more, while requests run on them.
    leaving: Vec<ServerStatus<'a>>,
    /// What the policy by work knows; null when the policy is another one.
    work: Option<WorkStatus<'a>>,
    /// What the policy beside the one in force would have done; null when there is none.
    shadow: Option<ShadowStatus>,
    totals: TotalsStatus,
    config: ConfigStatus,
}

#[derive(Serialize)]
struct GroupStatus<'a> {
    name: &'a str,
    /// The range of prompt lengths; null when the policy has none.
    from_tokens: Option<u64>,
    to_tokens: Option<u64>,
    load_tokens: f64,
    in_flight: u64,
    /// Where more servers are found; null when all stand in the file.
    discover: Option<String>,
    /// Requests whose length is for the group and that wait for a server.
    waiting: u64,
    servers: Vec<ServerStatus<'a>>,
}

#[derive(Serialize)]
struct ServerStatus<'a> {
    name: &'a str,
    authority: String,
    /// Whether it is reached over TLS.
    tls: bool,
    /// Whether the server has a key of its own.
    authorization_set: bool,
    load_tokens: f64,
    in_flight: u64,
    /// `healthy`, `probation` or `out`.
    health: &'static str,
    /// Why it is so, and for how long.
    health_reason: &'static str,
    health_for_seconds: f64,
    /// Bad health probes in a row.
    probes_failed: u32,
    /// How often it was taken out.
    ejections: u64,
    draining: bool,
    /// Whether it is being drained and nothing runs on it any more.
    drained: bool,
    /// What its engine has said of itself; null when it has said nothing.
    engine: Option<EngineStatus>,
}

#[derive(Serialize)]
struct RefusedStatus {
    at: String,
    trigger: &'static str,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct TotalsStatus {
    requests: RequestTotals,
    retries: u64,
    redirects: u64,
}

#[derive(Serialize)]
struct RequestTotals {
    complete: u64,
    client_gone: u64,
    upstream_broken: u64,
    rejected: u64,
}

/// The whole status at this moment, for people.
pub(super) fn json(reloader: &Reloader, is_ready: bool) -> Vec<u8> {
    let mut json = write(reloader, is_ready, |status| serde_json::to_vec_pretty(status));
    json.push(b'\n');
    json
}

/// The same on one line.
pub(super) fn line(reloader: &Reloader, is_ready: bool) -> Vec<u8> {
    write(reloader, is_ready, |status| serde_json::to_vec(status))
}

fn write(
    reloader: &Reloader,
    is_ready: bool,
    to_json: impl FnOnce(&Status<'_>) -> serde_json::Result<Vec<u8>>,
) -> Vec<u8> {
    let live = reloader.live();
    let (applied, refused) = (reloader.applied(), reloader.refused());
    let moment = live.at_one_moment();
    let in_force = &moment.in_force;
    let waiting = live.queue().waiting();
    let policy = PolicyStatus::of(&in_force.config.policy);
    let groups = in_force.config.groups.iter().zip(in_force.groups()).enumerate().map(|(number, (group, servers))| {
        let range = policy.buckets.get(number);
        let usage = moment.usage.groups.get(number).copied().unwrap_or_default();
        GroupStatus {
            name: &group.name,
            from_tokens: range.map(|range| range.from_tokens),
            to_tokens: range.map(|range| range.to_tokens),
            load_tokens: usage.load.tokens(),
            in_flight: usage.in_flight,
            discover: group.discover.as_ref().map(|discover| discover.source.to_string()),
            waiting: waiting.get(number).map_or(0, |waiting| waiting.requests),
            servers: servers.map(|server| ServerStatus::of(server, &moment)).collect(),
        }
    });
    let groups = groups.collect();
    let leaving = in_force.left().map(|server| ServerStatus::of(server, &moment));
    let status = Status {
        status_version: STATUS_VERSION,
        version: env!("CARGO_PKG_VERSION"),
        start_time_seconds: live.metrics().start_time().as_secs_f64(),
        uptime_seconds: live.metrics().uptime().as_secs_f64(),
        ready: is_ready,
        config_generation: in_force.generation,
        config_applied_at: humantime::format_rfc3339_seconds(applied.at).to_string(),
        config_trigger: applied.trigger.label(),
        config_source: reloader.file().map(|file| file.display().to_string()),
        config_changes: applied.difference.changes.clone(),
        config_needs_restart: applied.difference.needs_restart.clone(),
        config_refused: refused.map(|refused| RefusedStatus {
            at: humantime::format_rfc3339_seconds(refused.at).to_string(),
            trigger: refused.trigger.label(),
            problems: refused.problems.clone(),
        }),
        ties: ties_name(in_force.config.ties),
        groups,
        leaving: leaving.filter(|server| server.in_flight > 0).collect(),
        policy,
        work: WorkStatus::of(&moment),
        shadow: live.shadow().as_deref().map(ShadowStatus::of),
        totals: TotalsStatus::of(&live.metrics().totals()),
        config: ConfigStatus::of(&in_force.config),
    };
    to_json(&status).expect("all keys are strings and no value can fail")
}

impl<'a> ServerStatus<'a> {
    fn of(server: &'a Server, moment: &Moment) -> Self {
        let usage = moment.usage.servers.get(server.number()).copied().unwrap_or_default();
        let standing = moment.standing(server);
        let (reason, since, probes_failed, ejections) = {
            let record = server.health().lock();
            (record.cause().label(), record.since(), record.probes_failed(), record.times_out())
        };
        Self {
            name: server.name(),
            authority: server.config().authority(),
            tls: server.has_tls(),
            authorization_set: server.authorization().is_some(),
            load_tokens: usage.load.tokens(),
            in_flight: usage.in_flight,
            health: match standing.verdict {
                Verdict::Healthy => "healthy",
                Verdict::Probation { .. } => "probation",
                Verdict::Out => "out",
            },
            health_reason: reason,
            health_for_seconds: since.elapsed().as_secs_f64(),
            probes_failed,
            ejections,
            draining: standing.is_draining(),
            drained: standing.is_draining() && usage.in_flight == 0,
            engine: EngineStatus::of(&server.engine().lock()),
        }
    }
}

impl TotalsStatus {
    fn of(totals: &Totals) -> Self {
        let requests = |outcome: Outcome| totals.requests[outcome as usize];
        Self {
            requests: RequestTotals {
                complete: requests(Outcome::Complete),
                client_gone: requests(Outcome::ClientGone),
                upstream_broken: requests(Outcome::UpstreamBroken),
                rejected: requests(Outcome::Rejected),
            },
            retries: totals.retries,
            redirects: totals.redirects,
        }
    }
}
