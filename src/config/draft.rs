//! What was typed, readable value by value, before the values are judged together.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use log::LevelFilter;

use super::access_log::AccessLog;
use super::address::{self, Endpoint};
use super::discover::DiscoverDraft;
use super::health::{self, Health};
use super::pingora::PingoraDraft;
use super::policy::{Kind, PolicyDraft};
use super::problem::{Located, Problems, Spot};
use super::section::{Item, Parsed, Section, or_none};
use super::settings::{DecisionHeaders, OwnLimits};
use super::tls::{TlsDraft, UpstreamTlsDraft};
use super::tracing::Tracing;
use super::traits::OwnTraits;
use super::yaml::Node;
use super::{
    AdminAccess, Engines, Environment, QueueLimits, Retry, ServerLimits, Shutdown, Timeouts, access, discover, secret,
    settings, value,
};
use crate::access::Rules;
use crate::balance::Ties;

/// A configuration that is not yet checked as a whole. Filled from a file, from flags, or from both.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) listen: Vec<Located<Endpoint>>,
    pub(super) tls: TlsDraft,
    pub(super) admin: Option<Located<Endpoint>>,
    pub(super) admin_access: AdminAccess,
    pub(super) watch: bool,
    pub(super) groups: Vec<GroupDraft>,
    pub(super) policy: PolicyDraft,
    pub(super) max_body_bytes: usize,
    pub(super) timeouts: Timeouts,
    pub(super) retry: Retry,
    pub(super) health: Health,
    pub(super) engines: Option<Engines>,
    pub(super) log_level: LevelFilter,
    pub(super) access_log: Option<AccessLog>,
    pub(super) tracing: Option<Tracing>,
    pub(super) queue: QueueLimits,
    /// For servers without limits of their own.
    pub(super) server_limits: ServerLimits,
    pub(super) strip: Vec<HeaderName>,
    pub(super) decision_headers: DecisionHeaders,
    pub(super) upstream_authorization: Option<HeaderValue>,
    pub(super) access: Rules,
    pub(super) shutdown: Shutdown,
    pub(super) upstream_tls: UpstreamTlsDraft,
    pub(super) pingora: PingoraDraft,
}

#[derive(Debug)]
pub(super) struct GroupDraft {
    pub(super) spot: Spot,
    /// `None` when it was refused.
    pub(super) name: Option<Located<String>>,
    pub(super) bound: Bound,
    pub(super) servers: Vec<Located<ServerDraft>>,
    pub(super) discover: Option<DiscoverDraft>,
    /// For its servers without traits of their own.
    pub(super) traits: OwnTraits,
}

/// The upper bound of a group's prompt lengths, in tokens.
#[derive(Debug, Clone)]
pub(super) enum Bound {
    Absent,
    Refused,
    Given(Located<u64>),
}

#[derive(Debug)]
pub(super) struct ServerDraft {
    pub(super) endpoint: Endpoint,
    /// Whether it is reached over TLS.
    pub(super) https: bool,
    pub(super) name: Option<String>,
    pub(super) authorization: Option<HeaderValue>,
    pub(super) is_drained: bool,
    pub(super) limits: OwnLimits,
    pub(super) traits: OwnTraits,
    pub(super) tls: UpstreamTlsDraft,
}

impl ServerDraft {
    /// A server of which only the address is known.
    pub(super) fn at(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            https: false,
            name: None,
            authorization: None,
            is_drained: false,
            limits: OwnLimits::default(),
            traits: OwnTraits::default(),
            tls: UpstreamTlsDraft::default(),
        }
    }
}

impl Draft {
    /// The defaults, without groups.
    pub(super) fn new(policy: PolicyDraft) -> Self {
        let localhost = Endpoint { host: "localhost".to_owned(), port: 8000 };
        Self {
            listen: vec![Located::new(localhost, Spot::named("listen"))],
            tls: TlsDraft::default(),
            admin: None,
            admin_access: AdminAccess::default(),
            watch: false,
            groups: Vec::new(),
            policy,
            max_body_bytes: settings::DEFAULT_MAX_BODY_BYTES,
            timeouts: Timeouts::default(),
            retry: Retry::default(),
            health: Health::default(),
            engines: Some(Engines::default()),
            log_level: LevelFilter::Info,
            access_log: None,
            tracing: None,
            queue: QueueLimits::default(),
            server_limits: ServerLimits::default(),
            strip: settings::default_strip(),
            decision_headers: DecisionHeaders::None,
            upstream_authorization: None,
            access: Rules::default(),
            shutdown: Shutdown::default(),
            upstream_tls: UpstreamTlsDraft::default(),
            pingora: PingoraDraft::default(),
        }
    }

    /// Reads a whole file, given its root; reports what is wrong with single values and unknown keys.
    pub(super) fn read(root: Option<&Node>, file: Spot, problems: &Problems, environment: Environment<'_>) -> Self {
        Section::read(root, file, problems, |section| {
            let listen = section.one_or_more("listen", endpoint);
            let tls = section.section("tls", TlsDraft::read);
            let (admin, admin_access) = section.section("admin", |section| admin(section, environment));
            let watch = section.value("watch", value::switch).is_some_and(|watch| watch.value);
            let groups = section.filled_list("groups", "groups");
            let groups = groups.iter().map(|item| group(item, environment)).collect();
            let mut draft = Self::new(section.section("policy", PolicyDraft::read));
            draft.listen = listen.unwrap_or(draft.listen);
            draft.tls = tls;
            draft.admin = admin;
            draft.admin_access = admin_access;
            draft.watch = watch;
            draft.groups = groups;
            draft.max_body_bytes = section.section("limits", |section| {
                access::limits(section, &mut draft.access);
                settings::max_body_bytes(section)
            });
            draft.timeouts = section.section("timeouts", settings::timeouts);
            draft.retry = section.section("retry", settings::retry);
            draft.health = section.section("health", health::health);
            draft.engines = section.section("engines", Engines::read);
            draft.log_level = section.section("log", settings::log_level);
            draft.access_log = section.section("access_log", AccessLog::read);
            draft.tracing = section.section("tracing", Tracing::read);
            (draft.queue, draft.server_limits) = section.section("queue", settings::queue);
            (draft.strip, draft.decision_headers) = section.section("headers", settings::headers);
            (draft.upstream_authorization, draft.upstream_tls) = section.section("upstream", |section| {
                (secret::authorization(section, environment), section.section("tls", UpstreamTlsDraft::read))
            });
            access::read(section, &mut draft.access, environment);
            draft.shutdown = section.section("shutdown", Shutdown::read);
            draft.pingora = section.section("pingora", PingoraDraft::read);
            draft
        })
    }

    /// The draft of the flags alone: the example's settings, groups without servers.
    pub(super) fn of_flags(dynamic: bool) -> Self {
        let kind = if dynamic { Kind::ReferenceBucket } else { Kind::ReferencePlain };
        let kind = Located::new(kind, Spot::named("--enable-dynamic-bucket"));
        let mut draft = Self::new(PolicyDraft::new(kind, Ties::First));
        let names: &[&str] = if dynamic { &["short", "long"] } else { &["all"] };
        draft.groups = names.iter().map(|name| GroupDraft::named(name)).collect();
        draft.retry.base_delay = Duration::from_millis(1);
        draft.health = Health::of_flags();
        draft
    }
}

impl GroupDraft {
    fn named(name: &str) -> Self {
        let spot = Spot::named("--server-hosts");
        let name = Some(Located::new(name.to_owned(), spot.clone()));
        let traits = OwnTraits::default();
        Self { spot, name, bound: Bound::Absent, servers: Vec::new(), discover: None, traits }
    }
}

fn endpoint(node: &Node) -> Parsed<Endpoint> {
    address::endpoint(node.text().unwrap_or_default())
}

fn server_address(node: &Node) -> Parsed<(Endpoint, bool)> {
    address::server(node.text().unwrap_or_default())
}

fn admin(section: &mut Section<'_>, environment: Environment<'_>) -> (Option<Located<Endpoint>>, AdminAccess) {
    let default = Endpoint { host: "127.0.0.1".to_owned(), port: 9400 };
    let default = Located::new(Some(default), section.spot().child("listen"));
    let Located { value, spot } = section.value("listen", or_none(endpoint)).unwrap_or(default);
    let token = secret::bearer_token(section, ["token", "token_env"], environment);
    let protect_reads = section.value("protect_reads", value::switch).filter(|protect| protect.value);
    if let Some(protect) = protect_reads.as_ref().filter(|_| !section.has("token") && !section.has("token_env")) {
        section.error(&protect.spot, "true without a token, expected token or token_env beside it");
    }
    let access = AdminAccess { token, protect_reads: protect_reads.is_some() };
    (value.map(|endpoint| Located::new(endpoint, spot)), access)
}

fn group(item: &Item<'_>, environment: Environment<'_>) -> GroupDraft {
    item.section(|section| {
        let name = section.required("name", value::name);
        let bound = match (section.value("up_to_tokens", value::whole(value::TOKENS)), section.has("up_to_tokens")) {
            (Some(bound), _) => Bound::Given(bound),
            (None, true) => Bound::Refused,
            (None, false) => Bound::Absent,
        };
        let traits = OwnTraits::read(section);
        let discover = section.section("discover", discover::read);
        let servers = match &discover {
            Some(_) => section.list("servers", "servers").unwrap_or_default(),
            None => section.filled_list("servers", "servers"),
        };
        let servers = servers.iter().filter_map(|item| server(item, environment)).collect();
        GroupDraft { spot: section.spot().clone(), name, bound, servers, discover, traits }
    })
}

/// A server in its short form (the address) or its long form (a mapping).
fn server(item: &Item<'_>, environment: Environment<'_>) -> Option<Located<ServerDraft>> {
    if !item.is_mapping() {
        let Located { value: (endpoint, https), spot } = item.value(server_address)?;
        return Some(Located::new(ServerDraft { https, ..ServerDraft::at(endpoint) }, spot));
    }
    item.section(|section| {
        let address = section.required("address", server_address);
        let name = section.value("name", value::name).map(|name| name.value);
        let authorization = secret::authorization(section, environment);
        let is_drained = section.value("drain", value::switch).is_some_and(|drain| drain.value);
        let limits = OwnLimits::read(section);
        let traits = OwnTraits::read(section);
        let tls = section.section("tls", UpstreamTlsDraft::read);
        let Located { value: (endpoint, https), spot } = address?;
        Some(Located::new(ServerDraft { endpoint, https, name, authorization, is_drained, limits, traits, tls }, spot))
    })
}
