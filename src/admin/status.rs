//! The JSON of `/status`. Its shape is promised under `status_version`: keys may be added, and when one changes its
//! meaning or goes, the version rises.

use serde::Serialize;

use super::configured::{ConfigStatus, Configured, PolicyStatus};
use crate::balance::Balancer;
use crate::metrics::{Metrics, Outcome, Totals};

const STATUS_VERSION: u32 = 1;

#[derive(Serialize)]
struct Status<'a> {
    status_version: u32,
    version: &'static str,
    /// Since 1970.
    start_time_seconds: f64,
    uptime_seconds: f64,
    policy: &'a PolicyStatus,
    ties: &'static str,
    groups: Vec<GroupStatus<'a>>,
    totals: TotalsStatus,
    config: &'a ConfigStatus,
}

#[derive(Serialize)]
struct GroupStatus<'a> {
    name: &'a str,
    /// The range of prompt lengths; null when the policy has none.
    from_tokens: Option<u64>,
    to_tokens: Option<u64>,
    load_tokens: f64,
    in_flight: u64,
    servers: Vec<ServerStatus<'a>>,
}

#[derive(Serialize)]
struct ServerStatus<'a> {
    name: &'a str,
    authority: &'a str,
    /// Whether it is reached over TLS.
    tls: bool,
    /// Whether the server has a key of its own.
    authorization_set: bool,
    load_tokens: f64,
    in_flight: u64,
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

impl Configured {
    /// The whole status at this moment.
    pub(super) fn status_json(&self, balancer: &Balancer, metrics: &Metrics) -> Vec<u8> {
        let snapshot = balancer.snapshot();
        let mut servers = snapshot.servers.iter();
        let groups = self.groups.iter().zip(&snapshot.groups).enumerate().map(|(number, (group, usage))| {
            let range = self.policy.buckets.get(number);
            GroupStatus {
                name: &group.name,
                from_tokens: range.map(|range| range.from_tokens),
                to_tokens: range.map(|range| range.to_tokens),
                load_tokens: usage.load.tokens(),
                in_flight: usage.in_flight,
                servers: (group.servers.iter().zip(servers.by_ref()))
                    .map(|(server, usage)| ServerStatus {
                        name: &server.name,
                        authority: &server.authority,
                        tls: server.tls,
                        authorization_set: server.authorization_set,
                        load_tokens: usage.load.tokens(),
                        in_flight: usage.in_flight,
                    })
                    .collect(),
            }
        });
        let status = Status {
            status_version: STATUS_VERSION,
            version: env!("CARGO_PKG_VERSION"),
            start_time_seconds: metrics.start_time().as_secs_f64(),
            uptime_seconds: metrics.uptime().as_secs_f64(),
            policy: &self.policy,
            ties: self.ties,
            groups: groups.collect(),
            totals: TotalsStatus::of(&metrics.totals()),
            config: &self.config,
        };
        let mut json = serde_json::to_vec_pretty(&status).expect("all keys are strings and no value can fail");
        json.push(b'\n');
        json
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
