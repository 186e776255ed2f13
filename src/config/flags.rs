//! What the command line says: alone, as the example's flags, or over a file.

use std::collections::HashSet;
use std::time::Duration;

use super::address::{self, Endpoint};
use super::draft::{Bound, Draft, ServerDraft};
use super::policy::Kind;
use super::problem::{Located, Problems, Spot};
use super::{Environment, secret};
use crate::balance::Topology;

/// The default of `--server-group-threshold`, in tokens.
pub const DEFAULT_GROUP_THRESHOLD: u64 = 32_768;

/// The default of `--max-request-tokens`.
pub const DEFAULT_MAX_REQUEST_TOKENS: u64 = 131_072;

/// The flags, as far as they were given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// Host to listen on.
    pub host: Option<String>,
    /// Port to listen on.
    pub port: Option<u16>,
    /// Hosts of the servers.
    pub server_hosts: Option<Vec<String>>,
    /// Ports of the servers, one for each host.
    pub server_ports: Option<Vec<u16>>,
    /// Whether the dynamic-bucket policy is asked for.
    pub enable_dynamic_bucket: bool,
    /// First prompt length of the long group, in tokens.
    pub server_group_threshold: Option<u64>,
    /// Largest prompt that is planned for, in tokens.
    pub max_request_tokens: Option<u64>,
    /// Attempts in all. At least 1.
    pub max_retries: Option<usize>,
    /// Pause before the second attempt.
    pub retry_delay: Option<Duration>,
    /// Host of the admin listener.
    pub admin_host: Option<String>,
    /// Port of the admin listener.
    pub admin_port: Option<u16>,
    /// Whether to run in the background.
    pub daemon: bool,
    /// Whether to watch the configuration file.
    pub watch: bool,
}

impl Flags {
    /// The draft of the flags without a file: the example's defaults for what was not given.
    pub(super) fn draft(&self, problems: &Problems, environment: Environment<'_>) -> Draft {
        let dynamic = self.enable_dynamic_bucket;
        let mut draft = Draft::of_flags(dynamic);
        let threshold = self.server_group_threshold.unwrap_or(DEFAULT_GROUP_THRESHOLD);
        let max = self.max_request_tokens.unwrap_or(DEFAULT_MAX_REQUEST_TOKENS);
        // The plain mode does not use the two, but a threshold typed by hand is not to be nonsense.
        if threshold >= max && (dynamic || self.server_group_threshold.is_some()) {
            let text = format!("found {threshold}, expected less than --max-request-tokens ({max})");
            problems.error(&Spot::named("--server-group-threshold"), text);
            draft.groups.iter_mut().for_each(|group| group.bound = Bound::Refused);
        } else if dynamic {
            let bounds = [("--server-group-threshold", threshold), ("--max-request-tokens", max)];
            for (group, (flag, bound)) in draft.groups.iter_mut().zip(bounds) {
                group.bound = Bound::Given(Located::new(bound, Spot::named(flag)));
            }
        }
        draft.upstream_authorization = secret::authorization_of_example(environment, problems);
        self.apply_listeners(&mut draft, problems);
        self.apply_servers(&mut draft, problems);
        self.apply_rest(&mut draft);
        draft
    }

    /// Puts the flags that were given over the values of a file.
    pub(super) fn apply(&self, draft: &mut Draft, problems: &Problems) {
        if self.enable_dynamic_bucket {
            draft.policy.kind = Located::new(Kind::ReferenceBucket, Spot::named("--enable-dynamic-bucket"));
        }
        self.apply_bounds(draft, problems);
        self.apply_listeners(draft, problems);
        if self.server_hosts.is_some() || self.server_ports.is_some() {
            self.apply_servers(draft, problems);
        }
        self.apply_rest(draft);
    }

    fn apply_bounds(&self, draft: &mut Draft, problems: &Problems) {
        if let (Some(max), Some(last)) = (self.max_request_tokens, draft.groups.last_mut()) {
            last.bound = Bound::Given(Located::new(max, Spot::named("--max-request-tokens")));
        }
        if let Some(threshold) = self.server_group_threshold {
            let spot = Spot::named("--server-group-threshold");
            match draft.groups.as_mut_slice() {
                [short, _] => short.bound = Bound::Given(Located::new(threshold, spot)),
                groups => {
                    let text =
                        format!("separates two groups, and the file has {}; expected the file alone", groups.len());
                    problems.error(&spot, text);
                }
            }
        }
    }

    fn apply_listeners(&self, draft: &mut Draft, problems: &Problems) {
        if let (Some(host), Some(first)) = (&self.host, draft.listen.first()) {
            let spot = Spot::named("--host");
            match host_of(host, &spot, problems) {
                Some(host) => draft.listen = vec![Located::new(Endpoint { host, port: first.value.port }, spot)],
                None => draft.listen.clear(),
            }
        }
        if let Some(port) = self.port {
            for Located { value, spot } in &mut draft.listen {
                value.port = port;
                *spot = Spot::named("--port");
            }
            // Hosts that were listed with several ports would now stand there several times.
            let mut seen = HashSet::new();
            draft.listen.retain(|endpoint| seen.insert(endpoint.value.clone()));
        }
        self.apply_admin(draft, problems);
    }

    fn apply_admin(&self, draft: &mut Draft, problems: &Problems) {
        let mut endpoint = draft.admin.take();
        if let Some(port) = self.admin_port {
            let host = endpoint.map_or_else(|| "127.0.0.1".to_owned(), |endpoint| endpoint.value.host);
            endpoint = Some(Located::new(Endpoint { host, port }, Spot::named("--admin-port")));
        }
        if let Some(host) = &self.admin_host {
            let spot = Spot::named("--admin-host");
            match endpoint {
                None => problems.error(&spot, "given while the admin listener is off, expected --admin-port too"),
                Some(Located { value: Endpoint { port, .. }, .. }) => {
                    let host = host_of(host, &spot, problems);
                    endpoint = host.map(|host| Located::new(Endpoint { host, port }, spot));
                }
            }
        }
        draft.admin = endpoint;
    }

    /// Replaces all servers by those of the flags, cut evenly over the groups.
    fn apply_servers(&self, draft: &mut Draft, problems: &Problems) {
        let spot = Spot::named("--server-hosts");
        let hosts = self.server_hosts.clone().unwrap_or_else(|| vec!["localhost".to_owned()]);
        let ports = self.server_ports.clone().unwrap_or_else(|| vec![8001]);
        if hosts.len() != ports.len() {
            let text = format!(
                "found {} and {} in --server-ports, expected one port for each host",
                counted(hosts.len(), "host"),
                counted(ports.len(), "port"),
            );
            problems.error(&spot, text);
            return;
        }
        let groups = draft.groups.len();
        if groups == 0 {
            // The file has none, which is reported there.
            return;
        }
        let Ok(topology) = Topology::split_evenly(hosts.len(), groups) else {
            let text =
                format!("found {}, expected at least {groups}: one for each group", counted(hosts.len(), "server"));
            problems.error(&spot, text);
            return;
        };
        let servers: Vec<_> = hosts
            .iter()
            .zip(ports)
            .map(|(host, port)| host_of(host, &spot, problems).map(|host| Endpoint { host, port }))
            .collect();
        for (group, numbers) in draft.groups.iter_mut().zip(topology.groups()) {
            let endpoints = numbers.iter().filter_map(|number| servers[*number].clone());
            group.discover = None;
            group.servers = endpoints.map(|server| Located::new(ServerDraft::at(server), spot.clone())).collect();
        }
    }

    fn apply_rest(&self, draft: &mut Draft) {
        if let Some(attempts) = self.max_retries {
            draft.retry.max_attempts = attempts;
        }
        if let Some(delay) = self.retry_delay {
            draft.retry.base_delay = delay;
            draft.retry.max_delay = draft.retry.max_delay.max(delay);
        }
        draft.pingora.conf.daemon |= self.daemon;
        draft.watch |= self.watch;
    }
}

fn host_of(text: &str, spot: &Spot, problems: &Problems) -> Option<String> {
    let shown = super::yaml::shown(text, text.is_empty() || text.contains(char::is_control));
    address::host(text).map_err(|expected| problems.error(spot, format!("found {shown}, expected {expected}"))).ok()
}

fn counted(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
