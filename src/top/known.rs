//! What is known of the instance, from its events. Pure: the time is an argument.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;

use super::feed::News;
use crate::access_log::{End, Record};

/// What the figures are about.
const WINDOW: Duration = Duration::from_secs(300);

/// What "now" is in a rate.
const LATELY: Duration = Duration::from_secs(10);

/// So much is kept within the window; when more happens, the window is shorter.
const MOST_KEPT: usize = 30_000;

const MOST_DECISIONS: usize = 200;

/// For how long an answer to a key stands.
const SAID_FOR: Duration = Duration::from_secs(6);

/// The status, as far as it is shown.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Status {
    pub(super) version: String,
    pub(super) uptime_seconds: f64,
    pub(super) ready: bool,
    pub(super) policy: Policy,
    pub(super) groups: Vec<Group>,
    pub(super) work: Option<Work>,
    pub(super) totals: Totals,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Policy {
    pub(super) name: String,
    pub(super) buckets: Vec<Bucket>,
    pub(super) by_work: Option<ByWork>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Bucket {
    pub(super) to_tokens: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct ByWork {
    pub(super) long_from_tokens: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) load_tokens: f64,
    pub(super) in_flight: u64,
    pub(super) waiting: u64,
    pub(super) servers: Vec<Server>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) load_tokens: f64,
    pub(super) in_flight: u64,
    pub(super) health: String,
    pub(super) health_reason: String,
    pub(super) health_for_seconds: f64,
    pub(super) ejections: u64,
    pub(super) draining: bool,
    pub(super) drained: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Work {
    pub(super) lanes: Vec<String>,
    pub(super) held: u64,
    pub(super) held_for_seconds: f64,
    long_from_prefill_seconds: f64,
    engines: Vec<Engine>,
}

#[derive(Debug, Clone, Deserialize)]
struct Engine {
    microseconds_per_token: f64,
    nanoseconds_per_token_pair: f64,
    floor_seconds: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Totals {
    pub(super) requests: Requests,
    pub(super) redirects: u64,
    pub(super) retries: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Requests {
    pub(super) complete: u64,
    pub(super) client_gone: u64,
    pub(super) upstream_broken: u64,
    pub(super) rejected: u64,
}

/// A request that was given a place, as the event says it.
#[derive(Debug, Deserialize)]
struct Placed {
    request_id: String,
    attempt: usize,
    tokens: Option<u64>,
    standard_group: String,
    group: String,
    server: String,
    reason: String,
    waited_s: f64,
}

/// Lengths that are a class of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Class {
    pub(super) name: String,
    /// The first length that is not in it; `None` in the last class.
    pub(super) below: Option<u64>,
}

/// How soon requests of a class had their first token.
#[derive(Debug, PartialEq)]
pub(super) struct Ttft {
    pub(super) class: Class,
    pub(super) answers: usize,
    pub(super) p50_s: Option<f64>,
    pub(super) p99_s: Option<f64>,
}

/// Where a request went, why, and what became of it.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) request_id: String,
    pub(super) when: SystemTime,
    pub(super) tokens: Option<u64>,
    /// The group that its length is for, and the one that it went to.
    pub(super) home: String,
    pub(super) group: String,
    pub(super) server: String,
    pub(super) reason: String,
    pub(super) waited_s: f64,
    pub(super) outcome: Option<Outcome>,
}

/// How a request has ended.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) text: String,
    pub(super) is_good: bool,
}

/// Something to be done with a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) server: String,
    pub(super) is_drain: bool,
}

impl Wish {
    pub(super) fn verb(&self) -> &'static str {
        if self.is_drain { "drain" } else { "undrain" }
    }
}

/// A request that is over.
#[derive(Debug)]
struct Answer {
    at: Instant,
    tokens: u64,
    ttft_s: f64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) address: String,
    pub(super) status: Option<Status>,
    /// Why there is no connection.
    pub(super) lost: Option<String>,
    pub(super) decisions: VecDeque<Decision>,
    pub(super) missed: u64,
    pub(super) asked: Option<Wish>,
    /// The server that is selected, by its place in the list of all.
    pub(super) selected: usize,
    answers: VecDeque<Answer>,
    arrivals: VecDeque<Instant>,
    since: Option<Instant>,
    said: Option<(String, Instant)>,
}

impl Known {
    pub(super) fn new(address: String) -> Self {
        Self {
            address,
            status: None,
            lost: None,
            decisions: VecDeque::new(),
            missed: 0,
            asked: None,
            selected: 0,
            answers: VecDeque::new(),
            arrivals: VecDeque::new(),
            since: None,
            said: None,
        }
    }

    /// Takes note of something. What cannot be read is of another version, and passed over.
    pub(super) fn take(&mut self, news: News, now: Instant) {
        match news {
            News::Lost(why) => self.lost = Some(why),
            News::Said(text) => self.said = Some((text, now)),
            News::Event(name, data) => {
                self.since.get_or_insert(now);
                match name.as_str() {
                    "status" => {
                        if let Ok(status) = serde_json::from_str(&data) {
                            self.status(status);
                        }
                    }
                    "recent" => {
                        for record in serde_json::from_str::<Vec<Record>>(&data).unwrap_or_default() {
                            self.ended(record, true, now);
                        }
                    }
                    "placed" => {
                        if let Ok(placed) = serde_json::from_str(&data) {
                            self.placed(placed, now);
                        }
                    }
                    "ended" => {
                        if let Ok(record) = serde_json::from_str(&data) {
                            self.ended(record, false, now);
                        }
                    }
                    "lagged" => {
                        let lagged: serde_json::Value = serde_json::from_str(&data).unwrap_or_default();
                        self.missed += lagged["missed"].as_u64().unwrap_or_default();
                    }
                    _ => {}
                }
            }
        }
        self.forget(now);
    }

    fn status(&mut self, status: Status) {
        self.lost = None;
        let servers = status.groups.iter().map(|group| group.servers.len()).sum::<usize>();
        self.selected = self.selected.min(servers.saturating_sub(1));
        self.status = Some(status);
    }

    fn placed(&mut self, placed: Placed, now: Instant) {
        if placed.attempt <= 1 {
            self.arrivals.push_back(now);
        }
        self.remember(Decision {
            request_id: placed.request_id,
            when: SystemTime::now(),
            tokens: placed.tokens,
            home: placed.standard_group,
            group: placed.group,
            server: placed.server,
            reason: placed.reason,
            waited_s: placed.waited_s,
            outcome: None,
        });
    }

    fn ended(&mut self, record: Record, is_past: bool, now: Instant) {
        let known = self.decisions.iter_mut().find(|decision| decision.request_id == record.request_id);
        // The latest requests come again when a lost connection stands again.
        if known.as_ref().is_some_and(|decision| decision.outcome.is_some()) {
            return;
        }
        if let (Some(tokens), Some(ttft_s)) = (record.estimated_tokens.or(record.prompt_tokens), record.ttft_s) {
            // Of another clock, which need not be this one's: what seems to lie ahead is now.
            let ended = record.time + Duration::try_from_secs_f64(record.duration_s).unwrap_or_default();
            let age = SystemTime::now().duration_since(ended).unwrap_or_default();
            let at = now.checked_sub(age).filter(|_| known.is_none()).unwrap_or(now);
            self.answers.push_back(Answer { at, tokens, ttft_s });
        }
        let outcome = Some(outcome(&record));
        if let Some(decision) = known {
            decision.outcome = outcome;
            return;
        }
        // Else its line was there and is gone already.
        let Some(server) = record.server.filter(|_| is_past) else { return };
        let home = record.redirected_from.or(record.group).unwrap_or_default();
        self.remember(Decision {
            request_id: record.request_id,
            when: record.time,
            tokens: record.estimated_tokens.or(record.prompt_tokens),
            group: self.group_of(&server).unwrap_or_else(|| home.clone()),
            home,
            server,
            reason: record.reason.unwrap_or_default(),
            waited_s: record.waited_s,
            outcome,
        });
    }

    fn remember(&mut self, decision: Decision) {
        self.decisions.push_front(decision);
        self.decisions.truncate(MOST_DECISIONS);
    }

    fn forget(&mut self, now: Instant) {
        let is_old = |at: Instant| now.saturating_duration_since(at) > WINDOW;
        while self.answers.len() > MOST_KEPT || self.answers.front().is_some_and(|answer| is_old(answer.at)) {
            self.answers.pop_front();
        }
        while self.arrivals.len() > MOST_KEPT || self.arrivals.front().is_some_and(|at| is_old(*at)) {
            self.arrivals.pop_front();
        }
    }

    fn group_of(&self, server: &str) -> Option<String> {
        let groups = &self.status.as_ref()?.groups;
        let group = groups.iter().find(|group| group.servers.iter().any(|each| each.name == server))?;
        Some(group.name.clone())
    }

    /// The classes of lengths: the ranges of the groups, else what the policy by work takes for long.
    pub(super) fn classes(&self) -> Vec<Class> {
        let all = || vec![Class { name: "all".to_owned(), below: None }];
        let Some(status) = &self.status else { return all() };
        if status.policy.buckets.len() > 1 {
            let last = status.policy.buckets.len() - 1;
            let class = |(number, (group, bucket)): (usize, (&Group, &Bucket))| Class {
                name: group.name.clone(),
                below: (number < last).then_some(bucket.to_tokens),
            };
            return status.groups.iter().zip(&status.policy.buckets).enumerate().map(class).collect();
        }
        let Some(work) = &status.work else { return all() };
        let configured = status.policy.by_work.as_ref().and_then(|by_work| by_work.long_from_tokens);
        match configured.or_else(|| work.long_from_tokens()) {
            Some(below) => vec![
                Class { name: "short".to_owned(), below: Some(below) },
                Class { name: "long".to_owned(), below: None },
            ],
            None => all(),
        }
    }

    /// How soon first tokens came within the window.
    pub(super) fn ttft(&self) -> Vec<Ttft> {
        let mut times: Vec<(Class, Vec<f64>)> = self.classes().into_iter().map(|class| (class, Vec::new())).collect();
        for answer in &self.answers {
            let class = times.iter_mut().find(|(class, _)| class.below.is_none_or(|below| answer.tokens < below));
            if let Some((_, times)) = class {
                times.push(answer.ttft_s);
            }
        }
        let ttft = |(class, mut times): (Class, Vec<f64>)| {
            times.sort_by(f64::total_cmp);
            Ttft { class, answers: times.len(), p50_s: quantile(&times, 50), p99_s: quantile(&times, 99) }
        };
        times.into_iter().map(ttft).collect()
    }

    /// Requests a second, of late.
    pub(super) fn rate(&self, now: Instant) -> f64 {
        let Some(since) = self.since else { return 0.0 };
        let lately = self.arrivals.iter().rev().take_while(|at| now.saturating_duration_since(**at) <= LATELY).count();
        let span = now.saturating_duration_since(since).clamp(Duration::from_secs(1), LATELY);
        lately as f64 / span.as_secs_f64()
    }

    /// Requests that wait, in whatever queue.
    pub(super) fn waiting(&self) -> u64 {
        let Some(status) = &self.status else { return 0 };
        let queued = status.groups.iter().map(|group| group.waiting).sum::<u64>();
        queued.max(status.work.as_ref().map_or(0, |work| work.held))
    }

    /// What was said last, for a while.
    pub(super) fn said(&self, now: Instant) -> Option<&str> {
        let (text, at) = self.said.as_ref()?;
        (now.saturating_duration_since(*at) < SAID_FOR).then_some(text)
    }

    /// Selects the server so many places on.
    pub(super) fn select(&mut self, step: isize) {
        let count = self.servers().count();
        self.selected = self.selected.saturating_add_signed(step).min(count.saturating_sub(1));
    }

    /// Whether a question stands.
    pub(super) fn asks(&self) -> bool {
        self.asked.is_some()
    }

    /// Asks whether the selected server is to be drained or undrained.
    pub(super) fn ask(&mut self, is_drain: bool) {
        let server = self.servers().nth(self.selected).map(|server| server.name.clone());
        self.asked = server.map(|server| Wish { server, is_drain });
    }

    /// Yes.
    pub(super) fn confirmed(&mut self) -> Option<Wish> {
        self.asked.take()
    }

    /// No.
    pub(super) fn cancel(&mut self) {
        self.asked = None;
    }

    /// All servers, in the order of the groups.
    pub(super) fn servers(&self) -> impl Iterator<Item = &Server> {
        self.status.iter().flat_map(|status| &status.groups).flat_map(|group| &group.servers)
    }
}

impl Work {
    /// The length whose predicted prefill is where long begins: floor + b n + d n^2 / 2 = seconds, solved for n.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a length to show, never below zero")]
    fn long_from_tokens(&self) -> Option<u64> {
        let engine = self.engines.first()?;
        let (b, d) = (engine.microseconds_per_token / 1e6, engine.nanoseconds_per_token_pair / 1e9);
        let left = self.long_from_prefill_seconds - engine.floor_seconds;
        let tokens = if d > 0.0 { ((b * b + 2.0 * d * left).sqrt() - b) / d } else { left / b };
        (left > 0.0 && tokens.is_finite()).then_some(tokens as u64)
    }
}

/// The smallest of sorted times that so many of a hundred are not above.
fn quantile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

fn outcome(record: &Record) -> Outcome {
    let is_good = record.end == End::Complete && record.status.is_some_and(|status| status < 400);
    let text = match record.end {
        End::Complete if is_good => {
            let first = record.ttft_s.map(|ttft_s| format!("first token {}, ", seconds(ttft_s))).unwrap_or_default();
            format!("{first}{} in all", seconds(record.duration_s))
        }
        End::Complete => format!("status {}", record.status.unwrap_or_default()),
        End::ClientGone => "the client left".to_owned(),
        End::UpstreamBroken => "the server broke off".to_owned(),
        End::Rejected => format!("rejected: {}", record.rejected.as_deref().unwrap_or_default().replace('_', " ")),
    };
    Outcome { text, is_good: is_good || record.end == End::ClientGone }
}

/// 85 ms, 1.2 s, 12 s, 5 min, 3 h, 2 d
pub(super) fn seconds(value: f64) -> String {
    match value {
        _ if value < 0.9995 => format!("{:.0} ms", value * 1e3),
        _ if value < 9.95 => format!("{value:.1} s"),
        _ if value < 90.0 => format!("{value:.0} s"),
        _ if value < 5_400.0 => format!("{:.0} min", value / 60.0),
        _ if value < 172_800.0 => format!("{:.0} h", value / 3_600.0),
        _ => format!("{:.0} d", value / 86_400.0),
    }
}

/// 950, 3.4k, 33k, 1.2M
pub(super) fn short(value: f64) -> String {
    for (unit, letter) in [(1e9, 'G'), (1e6, 'M'), (1e3, 'k')] {
        if value >= unit * 0.9995 {
            let value = value / unit;
            return if value < 9.95 { format!("{value:.1}{letter}") } else { format!("{value:.0}{letter}") };
        }
    }
    format!("{value:.0}")
}
