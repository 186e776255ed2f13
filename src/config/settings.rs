//! The sections without choices: limits, timeouts, retry, headers; and their defaults.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::HeaderName;

use super::problem::Located;
use super::section::{Section, or_none};
use super::{QueueLimits, Retry, ServerLimits, Timeouts, value};

/// The default of [`super::Config::max_body_bytes`].
pub const DEFAULT_MAX_BODY_BYTES: usize = 64 << 20;

impl Default for Timeouts {
    fn default() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        Self {
            connect: Duration::from_secs(5),
            request_header: Duration::from_secs(30),
            request_body_idle: minutes(1),
            request_body: minutes(10),
            first_byte: Some(minutes(15)),
            response_idle: Some(minutes(10)),
            client_write: Some(minutes(5)),
            total: None,
            client_keepalive: minutes(1),
            server_keepalive: Duration::from_secs(4),
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_attempts: 3, base_delay: Duration::from_millis(50), max_delay: Duration::from_secs(2) }
    }
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { max_requests: 1_000, max_bytes: 1 << 30, max_wait: Some(Duration::from_secs(30)) }
    }
}

/// Headers that let a client steer vLLM past the balancer.
pub(super) fn default_strip() -> Vec<HeaderName> {
    ["x-data-parallel-rank", "x-vllm-priority"].map(HeaderName::from_static).into()
}

pub(super) fn max_body_bytes(section: &mut Section<'_>) -> usize {
    let mut bytes = DEFAULT_MAX_BODY_BYTES;
    section.set("max_body_size", &mut bytes, value::size);
    bytes
}

pub(super) fn timeouts(section: &mut Section<'_>) -> Timeouts {
    let mut timeouts = Timeouts::default();
    section.set("connect", &mut timeouts.connect, value::duration);
    section.set("request_header", &mut timeouts.request_header, value::duration);
    section.set("request_body_idle", &mut timeouts.request_body_idle, value::duration);
    section.set("request_body", &mut timeouts.request_body, value::duration);
    section.set_or_none("first_byte", &mut timeouts.first_byte, value::duration);
    section.set_or_none("response_idle", &mut timeouts.response_idle, value::duration);
    section.set_or_none("client_write", &mut timeouts.client_write, value::duration);
    section.set_or_none("total", &mut timeouts.total, value::duration);
    section.set("client_keepalive", &mut timeouts.client_keepalive, value::duration);
    section.set("server_keepalive", &mut timeouts.server_keepalive, value::duration);
    timeouts
}

pub(super) fn retry(section: &mut Section<'_>) -> Retry {
    let mut retry = Retry::default();
    section.set("max_attempts", &mut retry.max_attempts, value::count(value::ATTEMPTS));
    let base = section.value("base_delay", value::delay);
    let max = section.value("max_delay", value::delay);
    let max_spot = max.as_ref().map(|max| max.spot.clone());
    retry.base_delay = base.as_ref().map_or(retry.base_delay, |base| base.value);
    retry.max_delay = max.map_or(retry.max_delay, |max| max.value);
    if retry.base_delay > retry.max_delay
        && let Some(spot) = base.map(|base| base.spot).or(max_spot)
    {
        let [base, max] = [retry.base_delay, retry.max_delay].map(humantime::format_duration);
        section.error(&spot, format!("base_delay ({base}) is above max_delay ({max}), expected at most max_delay"));
    }
    retry
}

/// The queue, and the limits of servers that have none of their own.
pub(super) fn queue(section: &mut Section<'_>) -> (QueueLimits, ServerLimits) {
    let mut queue = QueueLimits::default();
    section.set("max_requests", &mut queue.max_requests, value::count(1..=1_000_000));
    section.set("max_size", &mut queue.max_bytes, value::size);
    section.set_or_none("max_wait", &mut queue.max_wait, value::duration);
    let mut servers = ServerLimits::default();
    section.set_or_none("server_max_in_flight", &mut servers.max_in_flight, value::whole(IN_FLIGHT));
    section.set_or_none("server_max_active_tokens", &mut servers.max_active_tokens, value::whole(value::TOKENS));
    (queue, servers)
}

/// Requests that one server may run at once.
const IN_FLIGHT: RangeInclusive<u64> = 1..=1_000_000;

/// What a server says of its own limits; `None` is what all servers have.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OwnLimits {
    max_in_flight: Option<Option<u64>>,
    max_active_tokens: Option<Option<u64>>,
}

impl OwnLimits {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let given = |value: Option<Located<Option<u64>>>| value.map(|given| given.value);
        Self {
            max_in_flight: given(section.value("max_in_flight", or_none(value::whole(IN_FLIGHT)))),
            max_active_tokens: given(section.value("max_active_tokens", or_none(value::whole(value::TOKENS)))),
        }
    }

    pub(super) fn or(self, all: ServerLimits) -> ServerLimits {
        ServerLimits {
            max_in_flight: self.max_in_flight.unwrap_or(all.max_in_flight),
            max_active_tokens: self.max_active_tokens.unwrap_or(all.max_active_tokens),
        }
    }
}

/// Who gets to see where a request went, and why, in headers of the response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DecisionHeaders {
    /// Nobody.
    #[default]
    None,
    /// Clients on this machine, and those that are trusted proxies.
    Trusted,
    /// Everybody.
    All,
}

impl DecisionHeaders {
    /// The name in the configuration.
    #[must_use]
    pub fn label(self) -> &'static str {
        DECISION_HEADERS.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }
}

const DECISION_HEADERS: &[(&str, DecisionHeaders)] =
    &[("none", DecisionHeaders::None), ("trusted", DecisionHeaders::Trusted), ("all", DecisionHeaders::All)];

/// The `headers` section.
pub(super) fn headers(section: &mut Section<'_>) -> (Vec<HeaderName>, DecisionHeaders) {
    let mut decision = DecisionHeaders::None;
    section.set("decision", &mut decision, value::choice(DECISION_HEADERS));
    (strip(section), decision)
}

fn strip(section: &mut Section<'_>) -> Vec<HeaderName> {
    let Some(items) = section.list("strip", "header names") else { return default_strip() };
    items.iter().filter_map(|item| item.value(value::strippable_header)).map(|name| name.value).collect()
}

#[cfg(test)]
mod tests {
    use super::super::problem::{Problems, Spot};
    use super::super::yaml::parse;
    use super::*;

    fn read<T>(yaml: &str, read: impl FnOnce(&mut Section<'_>) -> T) -> Result<T, String> {
        let root = parse(yaml).unwrap();
        let problems = Problems::default();
        let value = Section::read(root.as_ref(), Spot::file("f"), &problems, read);
        problems.finish(Some(value)).map(|(value, _)| value).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn every_time_limit_has_its_own_key() {
        let yaml = "connect: 1s\nrequest_header: 2s\nrequest_body_idle: 3s\nrequest_body: 4s\nfirst_byte: 5s\n\
                    response_idle: 6s\nclient_write: 7s\ntotal: 8s\nclient_keepalive: 9s\nserver_keepalive: 10s\n";
        let Timeouts { connect, request_header, request_body_idle, request_body, .. } = read(yaml, timeouts).unwrap();
        assert_eq!(
            [connect, request_header, request_body_idle, request_body].map(|limit| limit.as_secs()),
            [1, 2, 3, 4]
        );
        let Timeouts { first_byte, response_idle, client_write, total, .. } = read(yaml, timeouts).unwrap();
        let optional = [first_byte, response_idle, client_write, total];
        assert_eq!(optional.map(|limit| limit.unwrap().as_secs()), [5, 6, 7, 8]);
        let Timeouts { client_keepalive, server_keepalive, .. } = read(yaml, timeouts).unwrap();
        assert_eq!((client_keepalive.as_secs(), server_keepalive.as_secs()), (9, 10));
    }

    #[test]
    fn some_time_limits_may_be_off_and_others_may_not() {
        let off = read("first_byte: none\nresponse_idle: none\nclient_write: none\n", timeouts).unwrap();
        assert_eq!((off.first_byte, off.response_idle, off.client_write), (None, None, None));
        let error = read("connect: none\n", timeouts).unwrap_err();
        assert!(error.starts_with("error: f:1: connect: found none, expected a duration"), "{error}");
    }

    #[test]
    fn the_first_pause_is_not_above_the_longest() {
        let error = read("max_delay: 10ms\n", retry).unwrap_err();
        let expected = "base_delay (50ms) is above max_delay (10ms), expected at most max_delay";
        assert_eq!(error, format!("error: f:1: max_delay: {expected}"));
        let error = read("max_delay: 2s\nbase_delay: 3s\n", retry).unwrap_err();
        assert!(error.starts_with("error: f:2: base_delay: base_delay (3s) is above"), "{error}");
    }

    #[test]
    fn a_server_has_the_limits_of_all_where_it_has_none_of_its_own() {
        let (_, all) = read("server_max_in_flight: 8\nserver_max_active_tokens: 100\n", queue).unwrap();
        let own = |yaml| read(yaml, OwnLimits::read).unwrap().or(all);
        assert_eq!(own("").max_in_flight, Some(8));
        assert_eq!(own("max_in_flight: 3\n"), ServerLimits { max_in_flight: Some(3), max_active_tokens: Some(100) });
        assert_eq!(own("max_active_tokens: none\n").max_active_tokens, None);
    }

    #[test]
    fn waiting_is_bounded_and_can_be_switched_off() {
        let (queue, _) = read("max_requests: 5\nmax_size: 1MiB\nmax_wait: none\n", queue).unwrap();
        assert_eq!(queue, QueueLimits { max_requests: 5, max_bytes: 1 << 20, max_wait: None });
    }

    #[test]
    fn stripping_may_be_replaced_and_switched_off() {
        assert_eq!(read("strip: [X-A]\n", strip).unwrap(), ["x-a"]);
        assert!(read("strip: []\n", strip).unwrap().is_empty());
        assert_eq!(read("", strip).unwrap().len(), 2);
        assert!(read("strip: x-a\n", strip).unwrap_err().contains("expected a list of header names"));
    }
}
