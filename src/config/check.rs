//! From a draft to a configuration that can be run: the rules that span several values.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::address::{self, Endpoint};
use super::discover::{DiscoverDraft, Source};
use super::draft::{Bound, Draft, GroupDraft, ServerDraft};
use super::policy::{Kind, PolicyDraft};
use super::problem::{Located, Problems, Spot};
use super::tls::{Loading, UpstreamTlsDraft};
use super::{Config, Discover, Group, QueueLimits, Server, ServerLimits, Traits};
use crate::balance::{Bucket, Buckets, Policy, RedirectTuning};

impl Draft {
    /// Judges the values together; `None` when something, here or before, forbids to start.
    pub(super) fn check(self, problems: &Problems) -> Option<Config> {
        let policy = policy(&self.policy, &self.groups, &self.queue, problems);
        let shadow = shadow(&self.policy, &self.groups, &self.queue, problems);
        let listen = listeners(&self.listen, &[], problems);
        let tls_listen = listeners(&self.tls.listen, &listen, problems);
        let all_listen = [listen.as_slice(), &tls_listen].concat();
        let admin = self.admin.as_ref().and_then(|admin| admin_listener(admin, &all_listen, problems));
        refuse_repeated_group_names(&self.groups, problems);
        refuse_repeated_servers(&self.groups, problems);
        refuse_loops(&self.groups, &all_listen, admin, problems);
        let pingora = self.pingora.finish(problems);
        let tls = self.tls.check(tls_listen.into_iter().map(|listener| listener.value).collect(), problems);
        let groups = groups(self.groups, &self.upstream_tls, self.server_limits, problems);
        let config = Config {
            listen: listen.into_iter().map(|listener| listener.value).collect(),
            tls,
            admin,
            admin_access: self.admin_access,
            watch: self.watch,
            groups,
            policy: policy?,
            shadow,
            tokenizers: self.policy.tokenizers(problems),
            session_header: self.policy.session_header.and_then(|header| header.value),
            ties: self.policy.ties,
            max_body_bytes: self.max_body_bytes,
            timeouts: self.timeouts,
            retry: self.retry,
            health: self.health,
            engines: self.engines,
            log_level: self.log_level,
            access_log: self.access_log,
            tracing: self.tracing,
            queue: self.queue,
            strip_request_headers: self.strip,
            decision_headers: self.decision_headers,
            upstream_authorization: self.upstream_authorization,
            access: self.access,
            shutdown: self.shutdown,
            pingora,
        };
        problems.none().then_some(config)
    }
}

fn policy(draft: &PolicyDraft, groups: &[GroupDraft], queue: &QueueLimits, problems: &Problems) -> Option<Policy> {
    let kind = draft.kind.value;
    let needs_ranges = draft.kinds().any(|kind| kind == Kind::ReferenceBucket);
    let ranges = ranges(groups, needs_ranges, problems);
    draft.warn_of_unused_keys(problems);
    if kind == Kind::ReferencePlain && !needs_ranges {
        for bound in groups.iter().filter_map(|group| group.bound.given()) {
            problems.warn(&bound.spot, format!("has no effect with policy.kind {}", kind.name()));
        }
    }
    let tuning = draft.tuning(problems);
    of_kind(&draft.kind, draft, ranges, tuning, queue, problems)
}

/// The policy beside it.
fn shadow(draft: &PolicyDraft, groups: &[GroupDraft], queue: &QueueLimits, problems: &Problems) -> Option<Policy> {
    let kind = draft.shadow.as_ref()?;
    if kind.value == draft.kind.value {
        let text = format!("found {}, which is policy.kind itself, expected another one or none", kind.value.name());
        problems.error(&kind.spot, text);
        return None;
    }
    // What is wrong with these was reported for the policy.
    let unheard = Problems::default();
    let ranges = ranges(groups, true, &unheard);
    of_kind(kind, draft, ranges, draft.tuning(&unheard), queue, problems)
}

fn of_kind(
    kind: &Located<Kind>,
    draft: &PolicyDraft,
    ranges: Option<Vec<Bucket>>,
    tuning: RedirectTuning,
    queue: &QueueLimits,
    problems: &Problems,
) -> Option<Policy> {
    match kind.value {
        Kind::Lanes | Kind::LeastWork => draft.by_work(kind.value, queue).map(Policy::ByWork),
        Kind::ReferencePlain => Some(Policy::ReferencePlain),
        Kind::ReferenceBucket => {
            // Whatever is wrong with the groups has been reported with its place.
            let buckets = Buckets::new(ranges?, tuning);
            buckets.map(Policy::ReferenceBucket).map_err(|error| problems.error(&kind.spot, error.to_string())).ok()
        }
    }
}

/// One range per group, each beginning where the one before ends.
fn ranges(groups: &[GroupDraft], needed: bool, problems: &Problems) -> Option<Vec<Bucket>> {
    let mut ranges = Vec::new();
    let mut previous: Option<&Located<u64>> = None;
    for group in groups {
        match &group.bound {
            Bound::Absent if needed => {
                let spot = group.spot.child("up_to_tokens");
                problems.error(&spot, "missing, expected the prompt length up to which this group is meant, in tokens");
            }
            Bound::Absent | Bound::Refused => {}
            Bound::Given(bound) => {
                if let Some(previous) = previous.filter(|previous| previous.value >= bound.value) {
                    let text =
                        format!("found {}, expected more than {} ({})", bound.value, previous.spot.key, previous.value);
                    problems.error(&bound.spot, text);
                }
                ranges.push(Bucket { from: previous.map_or(0, |previous| previous.value), to: bound.value });
                previous = Some(bound);
            }
        }
    }
    (!groups.is_empty() && ranges.len() == groups.len() && problems.none()).then_some(ranges)
}

/// The addresses of the endpoints, none of which may clash with another or with one that is taken.
fn listeners(
    endpoints: &[Located<Endpoint>],
    taken: &[Located<SocketAddr>],
    problems: &Problems,
) -> Vec<Located<SocketAddr>> {
    let mut listeners: Vec<Located<SocketAddr>> = Vec::new();
    for Located { value, spot } in endpoints {
        let addresses = address::listen_addresses(value).map_err(|text| problems.error(spot, text));
        for address in addresses.unwrap_or_default() {
            match taken.iter().chain(&listeners).find(|other| address::clash(address, other.value)) {
                Some(other) => {
                    let text = format!("found {address} beside {}, expected each address once", other.value);
                    problems.error(spot, text);
                }
                None => listeners.push(Located::new(address, spot.clone())),
            }
        }
    }
    listeners
}

fn admin_listener(
    admin: &Located<Endpoint>,
    listen: &[Located<SocketAddr>],
    problems: &Problems,
) -> Option<SocketAddr> {
    let addresses = address::listen_addresses(&admin.value).map_err(|text| problems.error(&admin.spot, text)).ok()?;
    let address = addresses.into_iter().next()?;
    if let Some(other) = listen.iter().find(|other| address::clash(address, other.value)) {
        let text = format!("found {address}, expected an address other than {} ({})", other.spot.key, other.value);
        problems.error(&admin.spot, text);
    }
    Some(address)
}

fn refuse_repeated_group_names(groups: &[GroupDraft], problems: &Problems) {
    let mut seen: HashMap<&str, &Spot> = HashMap::new();
    for name in groups.iter().filter_map(|group| group.name.as_ref()) {
        if let Some(first) = seen.insert(&name.value, &name.spot) {
            let text = format!("found {}, the name of {} too; expected a name of its own", name.value, first.key);
            problems.error(&name.spot, text);
        }
    }
}

fn refuse_repeated_servers(groups: &[GroupDraft], problems: &Problems) {
    let mut names: HashMap<String, &Spot> = HashMap::new();
    let mut addresses: HashMap<String, &Spot> = HashMap::new();
    let mut loopback: HashMap<u16, &Located<ServerDraft>> = HashMap::new();
    for server in groups.iter().flat_map(|group| &group.servers) {
        let Located { value: ServerDraft { endpoint, name, .. }, spot } = server;
        if let Some(first) = addresses.insert(endpoint.authority(), spot) {
            let text =
                format!("found {}, the address of {} too; expected each server once", endpoint.authority(), first.key);
            problems.error(spot, text);
        } else if let Some(first) = names.insert(name.clone().unwrap_or_else(|| endpoint.authority()), spot) {
            let name = name.clone().unwrap_or_else(|| endpoint.authority());
            let text = format!("its name {name} is the name of {} too, expected a name of its own", first.key);
            problems.error(spot, text);
        } else if endpoint.ip().is_some_and(|ip| ip.is_loopback())
            && let Some(first) = loopback.insert(endpoint.port, server)
        {
            let (own, other) = (endpoint.authority(), first.value.endpoint.authority());
            problems.warn(spot, format!("{own} and {other} ({}) are probably the same server", first.spot.key));
        }
    }
}

/// A server that is Tidegate itself would take every request back in, without end.
fn refuse_loops(groups: &[GroupDraft], listen: &[Located<SocketAddr>], admin: Option<SocketAddr>, problems: &Problems) {
    for Located { value: ServerDraft { endpoint, .. }, spot } in groups.iter().flat_map(|group| &group.servers) {
        let mut own = listen.iter().map(|listener| listener.value).chain(admin);
        if let Some(listener) = own.find(|&listener| address::reaches(endpoint, listener)) {
            let text = format!(
                "found {}, on which Tidegate itself listens ({listener}); expected a server",
                endpoint.authority()
            );
            problems.error(spot, text);
        }
    }
}

/// The groups without what was refused, which has been reported.
fn groups(
    drafts: Vec<GroupDraft>,
    upstream_tls: &UpstreamTlsDraft,
    limits: ServerLimits,
    problems: &Problems,
) -> Vec<Group> {
    let has_tls = |group: &GroupDraft| {
        let is_discovered = group.discover.as_ref().is_some_and(|discover| discover.https);
        is_discovered || group.servers.iter().any(|server| server.value.https)
    };
    if !drafts.iter().any(has_tls) {
        upstream_tls.warn_of_unused(problems);
    }
    let mut loading = Loading::new(upstream_tls, problems);
    let mut groups = Vec::new();
    for GroupDraft { name, servers, discover, traits, .. } in drafts {
        let traits = traits.or(Traits::default());
        let servers = servers.into_iter().map(|draft| server(draft, limits, traits, &mut loading)).collect();
        let discover = discover.map(|draft| discovered(draft, limits, traits, &mut loading));
        groups.extend(name.map(|name| Group { name: name.value, servers, discover }));
    }
    groups
}

fn server(draft: Located<ServerDraft>, limits: ServerLimits, traits: Traits, loading: &mut Loading<'_>) -> Server {
    let Located { value: draft, spot } = draft;
    let ServerDraft { endpoint, https, name, authorization, is_drained, limits: own, traits: own_traits, tls } = draft;
    Server {
        name: name.unwrap_or_else(|| endpoint.authority()),
        tls: loading.load(https, &tls, Some(&endpoint.host), &spot),
        host: endpoint.host,
        port: endpoint.port,
        authorization,
        is_drained,
        limits: own.or(limits),
        traits: own_traits.or(traits),
    }
}

fn discovered(draft: DiscoverDraft, limits: ServerLimits, traits: Traits, loading: &mut Loading<'_>) -> Discover {
    let DiscoverDraft { source: Located { value: source, spot }, interval, https, tls } = draft;
    let host = match &source {
        Source::Dns { host, .. } => Some(host.as_str()),
        // Each server has another address, and certificates are for names.
        Source::File(_) => None,
    };
    let tls = loading.load(https, &tls, host, &spot);
    Discover { source, interval, limits, traits, tls }
}

impl Bound {
    fn given(&self) -> Option<&Located<u64>> {
        match self {
            Self::Given(bound) => Some(bound),
            Self::Absent | Self::Refused => None,
        }
    }
}
