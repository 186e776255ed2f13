//! What differs in the rules for clients, and in how servers are judged.

use std::fmt::Display;

use super::{Changes, summary};
use crate::access::{Allowed, Cors, HeaderLimits, KeyLimits, Keys, Rules};
use crate::config::Engines;
use crate::config::health::{ActiveChecks, Health, PassiveChecks, Probation};

const NONE: &str = "none";

fn or_none<T: Display>(value: Option<T>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

fn allowed<T: Display>(allowed: &Allowed<T>) -> String {
    match allowed {
        Allowed::Any => "any".to_owned(),
        Allowed::These(these) => summary::list(these),
    }
}

impl Changes {
    pub(super) fn access(&mut self, old: &Rules, new: &Rules) {
        let Rules { keys, closed, header_limits, max_concurrent_per_client, trusted_proxies, cors } = new;
        let HeaderLimits { header_bytes, fields, uri_bytes } = *header_limits;
        self.value("limits.max_header_size", &old.header_limits.header_bytes, &header_bytes);
        self.value("limits.max_headers", &old.header_limits.fields, &fields);
        self.value("limits.max_uri_size", &old.header_limits.uri_bytes, &uri_bytes);
        let per_client = [old.max_concurrent_per_client, *max_concurrent_per_client].map(or_none);
        self.value("limits.max_concurrent_per_client", &per_client[0], &per_client[1]);
        self.keys(&old.keys, keys);
        let closed = [&old.closed, closed].map(|closed| summary::list(&closed.iter().collect::<Vec<_>>()));
        self.value("access: closed paths", &closed[0], &closed[1]);
        let proxies = [&old.trusted_proxies, trusted_proxies].map(|proxies| summary::list(proxies.networks()));
        self.value("forwarded.trusted_proxies", &proxies[0], &proxies[1]);
        self.cors(old.cors.as_ref(), cors.as_ref());
    }

    fn keys(&mut self, old: &Keys, new: &Keys) {
        self.value("access.open_paths", &summary::list(old.open_paths()), &summary::list(new.open_paths()));
        let forwarded = [old, new].map(|keys| !keys.withholds_credentials());
        self.value("access: clients' credentials go to servers", &forwarded[0], &forwarded[1]);
        for key in old.iter().filter(|key| !new.iter().any(|new| new.name == key.name)) {
            self.0.push(format!("key {}: removed", key.name));
        }
        for key in new.iter() {
            let name = &key.name;
            let Some(before) = old.iter().find(|old| old.name == *name) else {
                self.0.push(format!("key {name}: added"));
                continue;
            };
            if before.digest != key.digest {
                self.0.push(format!("key {name}: replaced"));
            }
            let KeyLimits { requests_per_minute, tokens_per_minute, max_concurrent } = key.limits;
            let was = before.limits;
            let mut limit = |limit: &str, old: Option<u64>, new: Option<u64>| {
                self.value(&format!("key {name} {limit}"), &or_none(old), &or_none(new));
            };
            limit("requests_per_minute", was.requests_per_minute, requests_per_minute);
            limit("tokens_per_minute", was.tokens_per_minute, tokens_per_minute);
            let concurrent = [was.max_concurrent, max_concurrent].map(|limit| limit.map(|limit| limit as u64));
            limit("max_concurrent", concurrent[0], concurrent[1]);
        }
    }

    fn cors(&mut self, old: Option<&Cors>, new: Option<&Cors>) {
        let in_words = |cors: Option<&Cors>| {
            let Some(cors) = cors else { return "left to the servers".to_owned() };
            let Cors { origins, methods, headers, expose, allows_credentials, max_age } = cors;
            format!(
                "origins {}, methods {}, headers {}, expose {}, credentials {allows_credentials}, max_age {}",
                allowed(origins),
                summary::list(methods),
                allowed(headers),
                summary::list(expose),
                summary::or_none(Some(*max_age))
            )
        };
        self.value("cors", &in_words(old), &in_words(new));
    }

    pub(super) fn health(&mut self, old: &Health, new: &Health) {
        let Health { active, passive, probation } = new;
        let enabled = [old.active.is_some(), active.is_some()];
        self.value("health.active.enabled", &enabled[0], &enabled[1]);
        if let (Some(old), Some(new)) = (&old.active, active) {
            self.probes(old, new);
        }
        let enabled = [old.passive.is_some(), passive.is_some()];
        self.value("health.passive.enabled", &enabled[0], &enabled[1]);
        if let (Some(old), Some(new)) = (&old.passive, passive) {
            self.passive(old, new);
        }
        let Probation { max_in_flight, successes } = probation;
        self.value("health.probation.max_in_flight", &old.probation.max_in_flight, max_in_flight);
        self.value("health.probation.successes", &old.probation.successes, successes);
    }

    pub(super) fn engines(&mut self, old: Option<&Engines>, new: Option<&Engines>) {
        self.value("engines.enabled", &old.is_some(), &new.is_some());
        if let (Some(old), Some(Engines { interval, timeout })) = (old, new) {
            let shown = |limit| summary::or_none(Some(limit));
            self.value("engines.interval", &shown(old.interval), &shown(*interval));
            self.value("engines.timeout", &shown(old.timeout), &shown(*timeout));
        }
    }

    fn probes(&mut self, old: &ActiveChecks, new: &ActiveChecks) {
        let ActiveChecks { method, path, expected, interval, timeout, failures, successes, headers } = new;
        let shown = |limit| summary::or_none(Some(limit));
        self.value("health.active.method", &old.method, method);
        self.value("health.active.path", &old.path, path);
        self.value("health.active.expected_status", &old.expected, expected);
        self.value("health.active.interval", &shown(old.interval), &shown(*interval));
        self.value("health.active.timeout", &shown(old.timeout), &shown(*timeout));
        self.value("health.active.failures", &old.failures, failures);
        self.value("health.active.successes", &old.successes, successes);
        // Their values may be secret.
        let some = |headers: &Vec<_>| (!headers.is_empty()).then(|| headers.clone());
        self.secret("health.active.headers", &some(&old.headers), &some(headers));
    }

    fn passive(&mut self, old: &PassiveChecks, new: &PassiveChecks) {
        let PassiveChecks {
            failures,
            base_ejection,
            max_ejection,
            max_ejected_share,
            first_byte_limit,
            dead_stream_limit,
        } = new;
        self.value("health.passive.failures", &old.failures, failures);
        self.value("health.passive.max_ejected_share", &old.max_ejected_share, max_ejected_share);
        let mut duration = |key: &str, old, new| {
            self.value(&format!("health.passive.{key}"), &summary::or_none(old), &summary::or_none(new));
        };
        duration("base_ejection", Some(old.base_ejection), Some(*base_ejection));
        duration("max_ejection", Some(old.max_ejection), Some(*max_ejection));
        duration("first_byte_limit", old.first_byte_limit, *first_byte_limit);
        duration("dead_stream_limit", old.dead_stream_limit, *dead_stream_limit);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{BASE, changes, changes_between};

    const KEYS: &str = "access: {keys: [{name: a, key: sk-one-0123456789}, {name: b, key: sk-two-0123456789}]}\n";

    #[test]
    fn keys_are_named_and_never_shown() {
        let new = "access: {keys: [{name: a, key: sk-new-0123456789, max_concurrent: 2}, \
                   {name: c, key: sk-see-0123456789}], open_paths: [/ping]}\n";
        assert_eq!(
            changes_between(&format!("{BASE}{KEYS}"), &format!("{BASE}{new}")),
            [
                "access.open_paths: /health, /healthcheck, /ping -> /ping",
                "key b: removed",
                "key a: replaced",
                "key a max_concurrent: none -> 2",
                "key c: added",
            ]
        );
    }

    #[test]
    fn rules_for_clients_are_named() {
        let new = "limits: {max_headers: 64, max_concurrent_per_client: 4}\nforwarded: {trusted_proxies: [10.0.0.0/8]}\n\
                   cors: {allow_origins: [https://chat.example.org]}\naccess: {open_admin_paths: all}\n";
        let changes = changes(&format!("{BASE}{new}"));
        let keys: Vec<_> = changes.iter().map(|change| change.split(": ").next().unwrap()).collect();
        assert_eq!(
            keys,
            ["limits.max_headers", "limits.max_concurrent_per_client", "access", "forwarded.trusted_proxies", "cors"],
            "{changes:?}"
        );
    }

    #[test]
    fn how_servers_are_judged_is_named() {
        let engines = |section: &str| changes(&format!("{BASE}engines: {section}\n"));
        assert_eq!(
            engines("{interval: 3s, timeout: 1s}"),
            ["engines.interval: 10s -> 3s", "engines.timeout: 2s -> 1s"]
        );
        assert_eq!(engines("{enabled: false, interval: 3s}"), ["engines.enabled: true -> false"]);
        let new = "health: {active: {path: /ping, headers: ['x-key: sk-secret']}, passive: {enabled: false}, \
                   probation: {successes: 9}}\n";
        assert_eq!(
            changes(&format!("{BASE}{new}")),
            [
                "health.active.path: /health -> /ping",
                "health.active.headers: set",
                "health.passive.enabled: true -> false",
                "health.probation.successes: 3 -> 9",
            ]
        );
    }
}
