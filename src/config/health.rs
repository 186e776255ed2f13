//! The section `health`: how servers are judged.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};

use super::section::{Parsed, Section};
use super::yaml::Node;
use super::{secret, value};

/// How servers are judged.
#[derive(Debug, Clone, PartialEq)]
pub struct Health {
    /// Questions of our own; `None` asks nothing.
    pub active: Option<ActiveChecks>,
    /// Conclusions from what requests meet; `None` draws none.
    pub passive: Option<PassiveChecks>,
    /// How a server comes (back).
    pub probation: Probation,
}

/// Questions of our own.
#[derive(Debug, Clone, PartialEq)]
pub struct ActiveChecks {
    /// Method of the question.
    pub method: Method,
    /// Path and query of the question.
    pub path: String,
    /// Which answer is good.
    pub expected: ExpectedStatus,
    /// From the end of one question to the next, give or take a tenth.
    pub interval: Duration,
    /// Longest wait for a connection, and for each piece of the answer.
    pub timeout: Duration,
    /// So many bad answers in a row take a server out.
    pub failures: u32,
    /// So many good answers in a row bring it back.
    pub successes: u32,
    /// Further header fields of the question. Sensitive: never shown.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// Which status is a good answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedStatus {
    /// This one.
    Is(u16),
    /// Any but those that say that the server is at fault (5xx).
    BelowFiveHundred,
}

/// Conclusions from what requests meet.
#[derive(Debug, Clone, PartialEq)]
pub struct PassiveChecks {
    /// So many faults in a row take a server out.
    pub failures: u32,
    /// For how long the first time; doubles from time to time.
    pub base_ejection: Duration,
    /// No ejection is longer.
    pub max_ejection: Duration,
    /// The largest share of a group that may be out because of faults, 0 to 1.
    pub max_ejected_share: f64,
    /// A stream that waits longer for its first token is a fault; the request goes on. `None` is no limit.
    pub first_byte_limit: Option<Duration>,
    /// A request on a server that refuses connections ends when nothing came for so long. `None`: it does not.
    pub dead_stream_limit: Option<Duration>,
}

/// How a server comes (back).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probation {
    /// Most requests that may run on it at once.
    pub max_in_flight: u64,
    /// After so many answers that began well it is a server like the others.
    pub successes: u32,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            active: Some(ActiveChecks::default()),
            passive: Some(PassiveChecks::default()),
            probation: Probation::default(),
        }
    }
}

impl Health {
    /// For servers of which only the address is known: any answer that is no 5xx will do.
    pub(super) fn of_flags() -> Self {
        let active = ActiveChecks { expected: ExpectedStatus::BelowFiveHundred, ..ActiveChecks::default() };
        Self { active: Some(active), ..Self::default() }
    }
}

impl Default for ActiveChecks {
    fn default() -> Self {
        Self {
            method: Method::GET,
            path: "/health".to_owned(),
            expected: ExpectedStatus::Is(200),
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            failures: 3,
            successes: 2,
            headers: Vec::new(),
        }
    }
}

impl Default for PassiveChecks {
    fn default() -> Self {
        Self {
            failures: 3,
            base_ejection: Duration::from_secs(5),
            max_ejection: Duration::from_secs(60),
            max_ejected_share: 0.5,
            first_byte_limit: Some(Duration::from_secs(120)),
            dead_stream_limit: Some(Duration::from_secs(10)),
        }
    }
}

impl Default for Probation {
    fn default() -> Self {
        Self { max_in_flight: 4, successes: 3 }
    }
}

impl ExpectedStatus {
    /// Whether this answer is good.
    #[must_use]
    pub fn is_met_by(self, status: u16) -> bool {
        match self {
            Self::Is(expected) => status == expected,
            Self::BelowFiveHundred => status < 500,
        }
    }
}

impl std::fmt::Display for ExpectedStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Is(status) => write!(f, "{status}"),
            Self::BelowFiveHundred => f.write_str("below_500"),
        }
    }
}

pub(super) fn health(section: &mut Section<'_>) -> Health {
    Health {
        active: section.section("active", active),
        passive: section.section("passive", passive),
        probation: section.section("probation", probation),
    }
}

fn active(section: &mut Section<'_>) -> Option<ActiveChecks> {
    let mut is_on = true;
    let mut checks = ActiveChecks::default();
    section.set("enabled", &mut is_on, value::switch);
    section.set("method", &mut checks.method, method);
    section.set("path", &mut checks.path, path);
    section.set("status", &mut checks.expected, status);
    section.set("interval", &mut checks.interval, value::duration);
    section.set("timeout", &mut checks.timeout, value::duration);
    section.set("failures", &mut checks.failures, times);
    section.set("successes", &mut checks.successes, times);
    // Read as secrets: such a field may be a key.
    let headers = section.secret("headers", secret::header_fields("x-probe: tidegate"));
    checks.headers = headers.map_or(checks.headers, |headers| headers.value);
    is_on.then_some(checks)
}

fn passive(section: &mut Section<'_>) -> Option<PassiveChecks> {
    let mut is_on = true;
    let mut checks = PassiveChecks::default();
    section.set("enabled", &mut is_on, value::switch);
    section.set("failures", &mut checks.failures, times);
    let base = section.value("base_ejection", value::duration);
    let max = section.value("max_ejection", value::duration);
    let max_spot = max.as_ref().map(|max| max.spot.clone());
    checks.base_ejection = base.as_ref().map_or(checks.base_ejection, |base| base.value);
    checks.max_ejection = max.map_or(checks.max_ejection, |max| max.value);
    if checks.base_ejection > checks.max_ejection
        && let Some(spot) = base.map(|base| base.spot).or(max_spot)
    {
        let [base, max] = [checks.base_ejection, checks.max_ejection].map(humantime::format_duration);
        section.error(&spot, format!("base_ejection ({base}) is above max_ejection ({max}), expected at most that"));
    }
    section.set("max_ejected_share", &mut checks.max_ejected_share, share);
    section.set_or_none("first_byte_limit", &mut checks.first_byte_limit, value::duration);
    section.set_or_none("dead_stream_limit", &mut checks.dead_stream_limit, value::duration);
    is_on.then_some(checks)
}

fn probation(section: &mut Section<'_>) -> Probation {
    let mut probation = Probation::default();
    section.set("max_in_flight", &mut probation.max_in_flight, value::whole(1..=1_000_000));
    section.set("successes", &mut probation.successes, times);
    probation
}

fn times(node: &Node) -> Parsed<u32> {
    value::whole(1..=1_000)(node).and_then(|number| u32::try_from(number).map_err(|_| "a smaller number".to_owned()))
}

fn share(node: &Node) -> Parsed<f64> {
    value::not_negative(node).ok().filter(|share| *share <= 1.0).ok_or_else(|| "a number from 0 to 1".to_owned())
}

fn status(node: &Node) -> Parsed<ExpectedStatus> {
    let number = node.plain().and_then(|text| value::parse_whole(text, &(100..=599)).ok());
    match (number.and_then(|number| u16::try_from(number).ok()), node.plain()) {
        (Some(status), _) => Ok(ExpectedStatus::Is(status)),
        (None, Some("below_500")) => Ok(ExpectedStatus::BelowFiveHundred),
        _ => Err("a status from 100 to 599, or below_500".to_owned()),
    }
}

fn method(node: &Node) -> Parsed<Method> {
    value::choice(&[("GET", 0), ("HEAD", 1), ("POST", 2), ("OPTIONS", 3)])(node)
        .map(|number| [Method::GET, Method::HEAD, Method::POST, Method::OPTIONS][number].clone())
}

fn path(node: &Node) -> Parsed<String> {
    let path = node.text().filter(|text| text.starts_with('/') && text.parse::<http::uri::PathAndQuery>().is_ok());
    path.map(str::to_owned).ok_or_else(|| "a path that begins with /".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::problem::{Problems, Spot};
    use super::super::yaml::parse;
    use super::*;

    fn read(yaml: &str) -> Result<Health, String> {
        let root = parse(yaml).unwrap();
        let problems = Problems::default();
        let value = Section::read(root.as_ref(), Spot::file("f"), &problems, health);
        problems.finish(Some(value)).map(|(value, _)| value).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn nothing_written_is_the_defaults() {
        assert_eq!(read("").unwrap(), Health::default());
    }

    #[test]
    fn both_kinds_of_checks_can_be_switched_off() {
        let health = read("active: { enabled: false }\npassive: { enabled: false }\n").unwrap();
        assert_eq!((health.active, health.passive), (None, None));
    }

    #[test]
    fn every_key_has_its_place() {
        let yaml = "active: { method: HEAD, path: /v1/models, status: below_500, interval: 1s, timeout: 3s, failures: 4, \
                    successes: 5, headers: ['x-probe: yes'] }\nprobation: { max_in_flight: 7, successes: 8 }\n";
        let Health { active, probation, .. } = read(yaml).unwrap();
        let active = active.unwrap();
        assert_eq!((active.method, active.path.as_str()), (Method::HEAD, "/v1/models"));
        assert_eq!(active.expected, ExpectedStatus::BelowFiveHundred);
        assert_eq!((active.interval.as_secs(), active.timeout.as_secs()), (1, 3));
        assert_eq!((active.failures, active.successes), (4, 5));
        assert_eq!(active.headers[0].0, "x-probe");
        assert_eq!(probation, Probation { max_in_flight: 7, successes: 8 });
    }

    #[test]
    fn wrong_values_say_what_is_expected_and_show_no_header() {
        for (yaml, expected) in [
            ("active: { path: health }", "f:1: active.path: found health, expected a path that begins with /"),
            ("active: { status: 99 }", "expected a status from 100 to 599, or below_500"),
            ("passive: { max_ejected_share: 1.5 }", "expected a number from 0 to 1"),
            ("passive: { base_ejection: 2m }", "base_ejection (2m) is above max_ejection (1m)"),
            ("passive: { failures: 0 }", "expected a whole number from 1 to 1000"),
        ] {
            let error = read(yaml).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let error = read("active: { headers: ['hunter2'] }").unwrap_err();
        assert!(error.contains("expected a list of header fields") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn an_expected_status_is_one_or_all_that_are_no_fault_of_the_server() {
        assert!(ExpectedStatus::Is(200).is_met_by(200) && !ExpectedStatus::Is(200).is_met_by(204));
        assert!(ExpectedStatus::BelowFiveHundred.is_met_by(404) && !ExpectedStatus::BelowFiveHundred.is_met_by(503));
    }
}
