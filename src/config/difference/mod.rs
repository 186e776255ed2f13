//! What differs between two configurations, in words for people: in answers, in the status, in the log.

mod rules;

use std::collections::BTreeMap;
use std::fmt::Display;

use serde_json::Value;

use super::{
    AdminAccess, Config, Group, ModelTokenizer, QueueLimits, Retry, Server, ServerLimits, ServerTls, Shutdown,
    Timeouts, TlsListen, Tracing, Traits, summary,
};

/// What a new configuration changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Difference {
    /// What takes effect at once, one change each. No secret is in them.
    pub changes: Vec<String>,
    /// What stays as it is until the process is started anew.
    pub needs_restart: Vec<String>,
}

impl Difference {
    /// Whether the two configurations are the same.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.needs_restart.is_empty()
    }
}

/// From the configuration in force to a new one.
#[must_use]
pub fn difference(old: &Config, new: &Config) -> Difference {
    // Every field is named, so that a new one cannot be forgotten here.
    let Config {
        listen,
        tls,
        admin,
        admin_access,
        watch,
        groups,
        policy,
        shadow,
        tokenizers,
        session_header,
        ties,
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
    } = new;

    let mut fixed = Changes::default();
    fixed.value("listen", &summary::list(&old.listen), &summary::list(listen));
    fixed.tls(old.tls.as_ref(), tls.as_ref());
    let admin_listen = |admin: &Option<std::net::SocketAddr>| summary::list(admin.as_slice());
    fixed.value("admin.listen", &admin_listen(&old.admin), &admin_listen(admin));
    fixed.pingora(&old.pingora, pingora);

    let mut changes = Changes::default();
    changes.admin_access(&old.admin_access, admin_access);
    changes.value("watch", &old.watch, watch);
    changes.groups(&old.groups, groups);
    if old.policy != *policy || old.ties != *ties {
        let (old_policy, new_policy) = (summary::policy(old), summary::policy(new));
        changes.value("policy", &old_policy, &new_policy);
        let ranges = |config: &Config| {
            let range =
                |(index, group): (usize, &Group)| format!("{} {}", group.name, summary::range(&config.policy, index));
            config.groups.iter().enumerate().map(range).collect::<Vec<_>>().join("; ")
        };
        changes.value("ranges", &ranges(old), &ranges(new));
    }
    changes.value(
        "policy.shadow",
        &summary::shadow(old.shadow.as_ref(), old.ties),
        &summary::shadow(shadow.as_ref(), *ties),
    );
    let named = |tokenizers: &[ModelTokenizer]| summary::tokenizers(tokenizers);
    changes.value("policy.tokenizers", &named(&old.tokenizers), &named(tokenizers));
    let header = |name: &Option<http::HeaderName>| name.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
    changes.value("policy.session_header", &header(&old.session_header), &header(session_header));
    changes.value("limits.max_body_size", &old.max_body_bytes, max_body_bytes);
    changes.timeouts(&old.timeouts, timeouts);
    changes.retry(&old.retry, retry);
    changes.health(&old.health, health);
    changes.engines(old.engines.as_ref(), engines.as_ref());
    changes.value("log.level", &lower(old.log_level), &lower(*log_level));
    changes.value(
        "access_log",
        &summary::access_log(old.access_log.as_ref()),
        &summary::access_log(access_log.as_ref()),
    );
    changes.value("tracing", &summary::tracing(old.tracing.as_ref()), &summary::tracing(tracing.as_ref()));
    let headers = |tracing: &Option<Tracing>| tracing.as_ref().map(|tracing| tracing.headers.clone());
    let some = |tracing: &Option<Tracing>| headers(tracing).filter(|headers| !headers.is_empty());
    changes.secret("tracing.headers", &some(&old.tracing), &some(tracing));
    changes.queue(&old.queue, queue);
    let (old_strip, new_strip) = (&old.strip_request_headers, strip_request_headers);
    changes.value("headers.strip", &summary::list(old_strip), &summary::list(new_strip));
    changes.value("headers.decision", &old.decision_headers.label(), &decision_headers.label());
    changes.secret("upstream.api_key", &old.upstream_authorization, upstream_authorization);
    changes.access(&old.access, access);
    changes.shutdown(&old.shutdown, shutdown);
    Difference { changes: changes.0, needs_restart: fixed.0 }
}

fn lower(level: log::LevelFilter) -> String {
    level.as_str().to_lowercase()
}

#[derive(Default)]
struct Changes(Vec<String>);

impl Changes {
    fn value<T: PartialEq + Display>(&mut self, key: &str, old: &T, new: &T) {
        if old != new {
            self.0.push(format!("{key}: {old} -> {new}"));
        }
    }

    fn secret<T: PartialEq>(&mut self, key: &str, old: &Option<T>, new: &Option<T>) {
        let word = match (old, new) {
            _ if old == new => return,
            (None, _) => "set",
            (_, None) => "removed",
            _ => "replaced",
        };
        self.0.push(format!("{key}: {word}"));
    }

    /// What the certificate's files hold is no setting: that is looked at all the time.
    fn tls(&mut self, old: Option<&TlsListen>, new: Option<&TlsListen>) {
        let listen = |tls: Option<&TlsListen>| summary::list(tls.map_or(&[], |tls| &tls.listen));
        self.value("tls.listen", &listen(old), &listen(new));
        if let (Some(old), Some(new)) = (old, new) {
            let (old, new) = (old.listener.files(), new.listener.files());
            self.value(
                "tls.certificate",
                &old.certificate.display().to_string(),
                &new.certificate.display().to_string(),
            );
            self.value("tls.key", &old.key.display().to_string(), &new.key.display().to_string());
            self.value("tls.min_version", &old.min_version.to_string(), &new.min_version.to_string());
        }
    }

    fn admin_access(&mut self, old: &AdminAccess, new: &AdminAccess) {
        let AdminAccess { token, protect_reads } = new;
        self.secret("admin.token", &old.token, token);
        self.value("admin.protect_reads", &old.protect_reads, protect_reads);
    }

    fn groups(&mut self, old: &[Group], new: &[Group]) {
        let names = |groups: &[Group]| groups.iter().map(|group| group.name.clone()).collect::<Vec<_>>();
        self.value("groups", &names(old).join(", "), &names(new).join(", "));
        for group in new {
            let discover = |group: &Group| group.discover.as_ref().map(|discover| discover.source.to_string());
            let interval = |group: &Group| group.discover.as_ref().map(|discover| discover.interval);
            let old = old.iter().find(|old| old.name == group.name);
            let key = |name: &str| format!("group {} {name}", group.name);
            let or_none = |text: Option<String>| text.unwrap_or_else(|| "none".to_owned());
            self.value(&key("discover"), &or_none(old.and_then(discover)), &or_none(discover(group)));
            if let (Some(old), Some(new)) = (old.and_then(interval), interval(group)) {
                self.value(&key("discover.interval"), &summary::or_none(Some(old)), &summary::or_none(Some(new)));
            }
            let limits = |group: &Group| group.discover.as_ref().map(|discover| discover.limits);
            if let (Some(old), Some(new)) = (old.and_then(limits), limits(group)) {
                self.limits(&key("discovered servers'"), &old, &new);
            }
            let traits = |group: &Group| group.discover.as_ref().map(|discover| discover.traits);
            if let (Some(old), Some(new)) = (old.and_then(traits), traits(group)) {
                self.traits(&key("discovered servers'"), &old, &new);
            }
            let tls = |group: &Group| server_tls(group.discover.as_ref().and_then(|discover| discover.tls.as_ref()));
            self.value(&key("discovered servers' tls"), &old.map_or_else(|| server_tls(None), tls), &tls(group));
        }
        self.servers(&placed(old), &placed(new));
    }

    fn servers(&mut self, old: &BTreeMap<String, Placed<'_>>, new: &BTreeMap<String, Placed<'_>>) {
        for (authority, Placed { group, .. }) in old {
            if !new.contains_key(authority) {
                self.0.push(format!("server {authority}: removed from {group}"));
            }
        }
        for (authority, Placed { group, server, place }) in new {
            let Some(before) = old.get(authority) else {
                self.0.push(format!("server {authority}: added to {group}"));
                continue;
            };
            let Server { name, host: _, port: _, authorization, is_drained, limits, traits, tls } = server;
            let key = |key: &str| format!("server {authority} {key}");
            self.value(&key("group"), &before.group, group);
            if before.group == *group {
                self.value(&key("place"), &before.place, place);
            }
            self.value(&key("name"), &before.server.name, name);
            self.secret(&key("api_key"), &before.server.authorization, authorization);
            self.value(&key("drain"), &before.server.is_drained, is_drained);
            self.limits(&format!("server {authority}"), &before.server.limits, limits);
            self.traits(&format!("server {authority}"), &before.server.traits, traits);
            self.value(&key("tls"), &server_tls(before.server.tls.as_ref()), &server_tls(tls.as_ref()));
        }
    }

    fn limits(&mut self, whose: &str, old: &ServerLimits, new: &ServerLimits) {
        let ServerLimits { max_in_flight, max_active_tokens } = new;
        let shown = |limit: Option<u64>| limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
        self.value(&format!("{whose} max_in_flight"), &shown(old.max_in_flight), &shown(*max_in_flight));
        self.value(&format!("{whose} max_active_tokens"), &shown(old.max_active_tokens), &shown(*max_active_tokens));
    }

    fn traits(&mut self, whose: &str, old: &Traits, new: &Traits) {
        let shown = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
        for ((key, old), (_, new)) in summary::named_traits(old).into_iter().zip(summary::named_traits(new)) {
            self.value(&format!("{whose} {key}"), &shown(old), &shown(new));
        }
    }

    fn timeouts(&mut self, old: &Timeouts, new: &Timeouts) {
        for ((key, old), (_, new)) in summary::named_timeouts(old).into_iter().zip(summary::named_timeouts(new)) {
            self.value(&format!("timeouts.{key}"), &summary::or_none(old), &summary::or_none(new));
        }
    }

    fn retry(&mut self, old: &Retry, new: &Retry) {
        let Retry { max_attempts, base_delay, max_delay } = new;
        let shown = |delay| summary::or_none(Some(delay));
        self.value("retry.max_attempts", &old.max_attempts, max_attempts);
        self.value("retry.base_delay", &shown(old.base_delay), &shown(*base_delay));
        self.value("retry.max_delay", &shown(old.max_delay), &shown(*max_delay));
    }

    fn queue(&mut self, old: &QueueLimits, new: &QueueLimits) {
        let QueueLimits { max_requests, max_bytes, max_wait } = new;
        self.value("queue.max_requests", &old.max_requests, max_requests);
        self.value("queue.max_size", &old.max_bytes, max_bytes);
        self.value("queue.max_wait", &summary::or_none(old.max_wait), &summary::or_none(*max_wait));
    }

    fn shutdown(&mut self, old: &Shutdown, new: &Shutdown) {
        let Shutdown { delay, grace } = new;
        let shown = |limit| summary::or_none(Some(limit));
        self.value("shutdown.delay", &shown(old.delay), &shown(*delay));
        self.value("shutdown.grace", &shown(old.grace), &shown(*grace));
    }

    fn pingora(
        &mut self,
        old: &pingora::server::configuration::ServerConf,
        new: &pingora::server::configuration::ServerConf,
    ) {
        let fields = |conf| match serde_json::to_value(conf) {
            Ok(Value::Object(fields)) => fields,
            _ => serde_json::Map::new(),
        };
        let old = fields(old);
        for (field, value) in fields(new) {
            let before = old.get(&field).unwrap_or(&Value::Null);
            if *before != value {
                let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                self.value(&format!("pingora.{}", pingora_key(&field)), &shown(before), &shown(&value));
            }
        }
    }
}

/// Our name of one of Pingora's settings.
fn pingora_key(field: &str) -> &str {
    match field {
        "upgrade_sock_connect_accept_max_retries" => "upgrade_sock_max_retries",
        field => field.strip_suffix("_seconds").unwrap_or(field),
    }
}

/// How a server is reached, without what the files hold.
fn server_tls(tls: Option<&ServerTls>) -> String {
    tls.map_or_else(|| "none".to_owned(), summary::server_tls)
}

struct Placed<'a> {
    group: &'a str,
    server: &'a Server,
    /// In the group, from 1.
    place: usize,
}

fn placed(groups: &[Group]) -> BTreeMap<String, Placed<'_>> {
    let mut placed = BTreeMap::new();
    for group in groups {
        for (index, server) in group.servers.iter().enumerate() {
            placed.insert(server.authority(), Placed { group: &group.name, server, place: index + 1 });
        }
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::super::of_text;
    use super::*;

    pub(super) const BASE: &str =
        "groups:\n- {name: a, up_to_tokens: 10, servers: [x:1, y:1]}\n- {name: b, up_to_tokens: 20, servers: [z:1]}\n";

    pub(super) fn changes(new: &str) -> Vec<String> {
        changes_between(BASE, new)
    }

    pub(super) fn changes_between(old: &str, new: &str) -> Vec<String> {
        let Difference { changes, needs_restart } = difference(&of_text(old), &of_text(new));
        assert_eq!(needs_restart, [""; 0]);
        changes
    }

    #[test]
    fn the_same_file_changes_nothing() {
        assert!(difference(&of_text(BASE), &of_text(BASE)).is_empty());
    }

    #[test]
    fn servers_that_come_go_and_move_are_named() {
        let new = "groups:\n- {name: a, up_to_tokens: 10, servers: [y:1]}\n\
                   - {name: b, up_to_tokens: 20, servers: [{address: 'w:1', drain: true}, {address: 'z:1', name: zed}]}\n";
        assert_eq!(
            changes(new),
            [
                "server x:1: removed from a",
                "server w:1: added to b",
                "server y:1 place: 2 -> 1",
                "server z:1 place: 1 -> 2",
                "server z:1 name: z:1 -> zed",
            ]
        );
        let moved = "groups:\n- {name: a, up_to_tokens: 10, servers: [x:1]}\n\
                     - {name: b, up_to_tokens: 20, servers: [z:1, {address: 'y:1', drain: true}]}\n";
        assert_eq!(changes(moved), ["server y:1 group: a -> b", "server y:1 drain: false -> true"]);
    }

    #[test]
    fn settings_are_named_by_their_keys_and_secrets_not_shown() {
        let new = format!(
            "{BASE}timeouts: {{total: 1h}}\nretry: {{max_attempts: 4}}\nwatch: true\nupstream: {{api_key: sk-secret}}\n\
             admin: {{token: sk-secret}}\nheaders: {{strip: []}}\nlimits: {{max_body_size: 1KiB}}\n\
             queue: {{max_wait: none, server_max_in_flight: 4}}\nshutdown: {{grace: 10m}}\n"
        );
        assert_eq!(
            changes(&new),
            [
                "admin.token: set",
                "watch: false -> true",
                "server x:1 max_in_flight: none -> 4",
                "server y:1 max_in_flight: none -> 4",
                "server z:1 max_in_flight: none -> 4",
                "limits.max_body_size: 67108864 -> 1024",
                "timeouts.total: none -> 1h",
                "retry.max_attempts: 3 -> 4",
                "queue.max_wait: 30s -> none",
                "headers.strip: x-data-parallel-rank, x-vllm-priority -> none",
                "upstream.api_key: set",
                "shutdown.grace: 25s -> 10m",
            ]
        );
    }

    #[cfg(feature = "otel")]
    #[test]
    fn header_fields_for_the_collector_are_not_shown() {
        let tracing = |more: &str| format!("{BASE}tracing: {{endpoint: 'http://c:4318'{more}}}\n");
        let [new, headers] = changes(&tracing(", headers: ['x-key: sk-1']")).try_into().unwrap();
        let shown = "to http://c:4318/v1/traces as tidegate, a share of 1, headers x-key, timeout 10s";
        assert_eq!((new, headers.as_str()), (format!("tracing: none -> {shown}"), "tracing.headers: set"));
        let keys = ["sk-1", "sk-2"].map(|key| tracing(&format!(", headers: ['x-key: {key}']")));
        assert_eq!(changes_between(&keys[0], &keys[1]), ["tracing.headers: replaced"]);
    }

    #[test]
    fn ranges_policy_and_sources_are_shown_before_and_after() {
        let buckets = format!("{BASE}policy: {{kind: reference_bucket}}\n");
        let wider = buckets.replace("up_to_tokens: 10", "up_to_tokens: 15");
        let [policy] = difference(&of_text(&buckets), &of_text(&wider)).changes.try_into().unwrap();
        assert!(policy.starts_with("ranges: a prompts from 0 to below 10 tokens; b"), "{policy}");
        let [policy, ranges] = changes(&buckets).try_into().unwrap();
        assert!(
            policy.starts_with("policy: lanes, lanes auto, max_hold 2m, long_from_tokens auto, engine"),
            "{policy}"
        );
        assert!(ranges.starts_with("ranges: a all prompts; b all prompts -> a prompts from 0"), "{ranges}");
        let pinned =
            format!("{BASE}policy: {{kind: least_work, long_from_tokens: 9, engine: {{kv_cache_tokens: 7}}}}\n");
        let expected = " -> least_work, long_from_tokens 9, engine llama3-8b-a100, max_num_batched_tokens 8192, \
                        kv_cache_tokens 7, media_tokens image 1369, audio 750, video 4784, prefix_memory 64.0 MiB";
        assert!(changes(&pinned)[0].ends_with(expected), "{:?}", changes(&pinned));
        let traits = BASE.replace("name: b,", "name: b, max_model_len: 9,");
        assert_eq!(changes(&traits), ["server z:1 max_model_len: auto -> 9"]);
        let source = BASE.replace("name: b,", "name: b, discover: {dns: 'n:1'},");
        assert_eq!(changes(&source), ["group b discover: none -> dns n:1"]);
        let limited = format!("{source}queue: {{server_max_in_flight: 4}}\n");
        let Difference { changes, .. } = difference(&of_text(&source), &of_text(&limited));
        assert!(changes.contains(&"group b discovered servers' max_in_flight: none -> 4".to_owned()), "{changes:?}");
    }

    #[test]
    fn what_is_settled_at_start_needs_a_restart() {
        let new = format!(
            "{BASE}listen: 127.0.0.1:7000\nadmin: {{listen: none}}\npingora: {{listener_tasks_per_fd: 9, upgrade_sock: /u}}\n"
        );
        let old = format!("{BASE}listen: 127.0.0.1:8000\n");
        let Difference { changes, needs_restart } = difference(&of_text(&old), &of_text(&new));
        assert_eq!(changes, [""; 0]);
        assert_eq!(
            needs_restart,
            [
                "listen: 127.0.0.1:8000 -> 127.0.0.1:7000",
                "admin.listen: 127.0.0.1:9400 -> none",
                "pingora.upgrade_sock: /tmp/tidegate_upgrade.sock -> /u",
                "pingora.listener_tasks_per_fd: 1 -> 9",
            ]
        );
    }
}
