//! What the metrics page must say, computed from what has happened: what clients sent and got, and what servers saw.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::series;

/// The results that an attempt may have.
const RESULTS: [&str; 7] =
    ["answered", "connect_failed", "broken", "refused_5xx", "too_long", "timed_out", "client_gone"];

/// The upper bounds of the sizes of bodies.
const BODY_BOUNDS: [u32; 10] =
    [256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216, 67_108_864];

/// The longest prompt of the first group, in tokens.
pub(super) const SHORT_UP_TO: u32 = 32_768;

/// A request of a test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Asked {
    pub(super) endpoint: &'static str,
    pub(super) path: &'static str,
    /// Bytes of its body.
    pub(super) bytes: u32,
    /// What servers are to do with it; with `@` and a name, what that one is to do.
    pub(super) what: &'static str,
}

impl Asked {
    pub(super) fn is_generation(&self) -> bool {
        self.endpoint == "chat"
    }

    fn prompt_tokens(&self) -> u32 {
        self.bytes.div_ceil(4)
    }

    fn load_tokens(&self) -> f64 {
        if self.is_generation() { f64::from(self.bytes) / 4.0 } else { 0.0 }
    }

    fn group(&self) -> &'static str {
        if self.load_tokens() <= f64::from(SHORT_UP_TO) { "short" } else { "long" }
    }

    /// By the group that the length is for.
    fn length(&self) -> &'static str {
        self.group()
    }

    fn size(&self) -> &'static str {
        match self.prompt_tokens() {
            0..1_000 => "under_1k",
            1_000..10_000 => "1k_to_10k",
            10_000..100_000 => "10k_to_100k",
            _ => "over_100k",
        }
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ending {
    pub(super) outcome: &'static str,
    /// The status that the client got.
    pub(super) status: Option<u16>,
    /// Bytes of the answer's body that the client got.
    pub(super) sent: usize,
    /// The last server that had it.
    pub(super) on: Option<&'static str>,
    /// Whether a header of that server's answer came.
    pub(super) has_header: bool,
    /// Whether a byte of its body came, or the end of one without any.
    pub(super) has_first_byte: bool,
    /// Tokens of a stream.
    pub(super) tokens: usize,
    /// Whether the server told how many tokens the prompt has.
    pub(super) has_usage: bool,
}

impl Ending {
    /// A whole answer with usage.
    pub(super) fn complete(on: &'static str, status: u16, sent: usize) -> Self {
        let is_good = status == 200;
        Self {
            outcome: "complete",
            status: Some(status),
            sent,
            on: Some(on),
            has_header: true,
            has_first_byte: true,
            tokens: 0,
            has_usage: is_good,
        }
    }

    /// A whole stream of so many tokens.
    pub(super) fn stream(on: &'static str, sent: usize, tokens: usize) -> Self {
        Self { tokens, has_usage: false, ..Self::complete(on, 200, sent) }
    }

    /// Nothing came from a server.
    pub(super) fn without_answer(outcome: &'static str, status: Option<u16>, sent: usize) -> Self {
        let on = None;
        Self { outcome, status, sent, on, has_header: false, has_first_byte: false, tokens: 0, has_usage: false }
    }
}

#[derive(Debug, Clone, Copy)]
struct Running {
    asked: Asked,
    server: &'static str,
    waits_for_first_token: bool,
}

/// The state of a Tidegate and all that it must have counted.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// The groups with the names of their servers, in order.
    groups: Vec<(&'static str, Vec<&'static str>)>,
    /// Everything that adds up, by series; of histograms the number of observations.
    counts: BTreeMap<String, f64>,
    bodies: Vec<u32>,
    running: Vec<Running>,
    waiting: Vec<Asked>,
    /// Those whose whole body has come.
    whole: Vec<Asked>,
    pub(super) draining: BTreeSet<&'static str>,
    /// By server, also of those that have just left.
    pub(super) health: BTreeMap<&'static str, &'static str>,
    pub(super) generation: u32,
    pub(super) is_refused: bool,
    /// Group, server and length of what has waited for a first token.
    waited_on: BTreeSet<(&'static str, &'static str, &'static str)>,
}

impl Model {
    /// These groups are in force from now on.
    pub(super) fn follow(&mut self, groups: &[(&'static str, &[&'static str])]) {
        self.groups = groups.iter().map(|(group, servers)| (*group, servers.to_vec())).collect();
        self.generation += 1;
        for (group, servers) in groups {
            for server in *servers {
                for result in RESULTS {
                    self.add("tidegate_attempts_total", &[("server", server), ("result", result)], 0.0);
                }
            }
            for name in ["time_to_first_byte", "request_duration"] {
                self.add(&format!("tidegate_{name}_seconds_count"), &[("group", group)], 0.0);
            }
        }
        for (from, to) in [("short", "long"), ("long", "short")] {
            self.add("tidegate_redirects_total", &[("from", from), ("to", to)], 0.0);
        }
        for reason in ["connect", "reset", "status", "context_length"] {
            self.add("tidegate_retries_total", &[("reason", reason)], 0.0);
        }
        for result in ["written", "dropped"] {
            self.add("tidegate_access_log_lines_total", &[("result", result)], 0.0);
        }
        for result in ["exported", "failed", "dropped"] {
            self.add("tidegate_trace_spans_total", &[("result", result)], 0.0);
        }
        for name in ["request_bytes_total", "response_bytes_total", "panics_total", "time_to_header_seconds_count"] {
            self.add(&format!("tidegate_{name}"), &[], 0.0);
        }
    }

    fn group_of(&self, server: &str) -> &'static str {
        let group = self.groups.iter().find(|(_, servers)| servers.contains(&server));
        group.unwrap_or_else(|| panic!("{server} is in a group")).0
    }

    /// Whether a server of the group takes requests that is none of these.
    fn is_live_but(&self, group: &str, tried: &[&str]) -> bool {
        let takes = |server: &&str| {
            !self.draining.contains(*server) && self.health[*server] != "out" && !tried.contains(server)
        };
        self.groups.iter().any(|(name, servers)| *name == group && servers.iter().any(takes))
    }

    pub(super) fn add(&mut self, name: &str, labels: &[(&str, &str)], amount: f64) {
        *self.counts.entry(series(name, labels)).or_default() += amount;
    }

    pub(super) fn count(&mut self, name: &str, labels: &[(&str, &str)]) {
        self.add(name, labels, 1.0);
    }

    /// It was let in.
    pub(super) fn arrives(&mut self, asked: &Asked) {
        self.count("tidegate_key_requests_total", &[("key", "team")]);
        if asked.is_generation() {
            let tokens = f64::from(asked.prompt_tokens());
            self.add("tidegate_key_prompt_tokens_total", &[("key", "team")], tokens);
        }
    }

    pub(super) fn waits(&mut self, asked: Asked) {
        self.waiting.push(asked);
    }

    /// It waits no longer.
    pub(super) fn left_queue(&mut self, asked: &Asked, result: &str) {
        let place = self.waiting.iter().position(|other| other == asked).expect("it waited");
        self.waiting.remove(place);
        self.count("tidegate_queue_wait_seconds_count", &[("group", asked.group())]);
        self.count("tidegate_queue_exits_total", &[("group", asked.group()), ("result", result)]);
    }

    /// A server has it, after others in vain.
    pub(super) fn placed(&mut self, asked: Asked, server: &'static str, tried: &[&str]) {
        let (own, group) = if asked.is_generation() {
            (asked.group(), self.group_of(server))
        } else {
            (self.group_of(server), self.group_of(server))
        };
        let is_spent = !tried.is_empty() && !self.is_live_but(own, tried);
        let reason = match own == group {
            true => "standard",
            false if is_spent => "failover",
            false => "redirected",
        };
        self.count("tidegate_decisions_total", &[("reason", reason)]);
        if own != group && (is_spent || !self.is_live_but(own, &[])) {
            self.count("tidegate_failovers_total", &[("from", own), ("to", group)]);
        } else if own != group && tried.is_empty() {
            self.count("tidegate_redirects_total", &[("from", own), ("to", group)]);
        }
        if asked.is_generation() {
            self.waited_on.insert((group, server, asked.length()));
        }
        self.running.push(Running { asked, server, waits_for_first_token: asked.is_generation() });
    }

    fn running(&self, asked: &Asked, server: &str) -> usize {
        let place = self.running.iter().position(|running| running.asked == *asked && running.server == server);
        place.unwrap_or_else(|| panic!("{asked:?} runs on {server}"))
    }

    pub(super) fn first_token(&mut self, asked: &Asked, server: &str) {
        let place = self.running(asked, server);
        self.running[place].waits_for_first_token = false;
    }

    /// The server has it no longer.
    pub(super) fn attempt_ended(&mut self, asked: &Asked, server: &str, result: &str) {
        let place = self.running(asked, server);
        self.running.remove(place);
        self.count("tidegate_attempts_total", &[("server", server), ("result", result)]);
    }

    /// It is over, and so is its last attempt.
    pub(super) fn over(&mut self, asked: &Asked, ending: &Ending) {
        let code = ending.status.map_or_else(|| "none".to_owned(), |status| format!("{}xx", status / 100));
        let labels = [("endpoint", asked.endpoint), ("outcome", ending.outcome), ("code", &*code)];
        self.count("tidegate_requests_total", &labels);
        self.count("tidegate_access_log_lines_total", &[("result", "written")]);
        self.add("tidegate_response_bytes_total", &[], f64::from(u32::try_from(ending.sent).unwrap()));
        if let Some(place) = self.whole.iter().position(|other| other == asked) {
            self.whole.remove(place);
            self.add("tidegate_request_bytes_total", &[], asked.bytes.into());
        }
        let Some(server) = ending.on.filter(|_| asked.is_generation()) else { return };
        self.bodies.push(asked.bytes);
        let (group, length) = (self.group_of(server), asked.length());
        self.count("tidegate_request_duration_seconds_count", &[("group", group)]);
        if ending.has_first_byte {
            self.count("tidegate_time_to_first_byte_seconds_count", &[("group", group)]);
        }
        if ending.has_header {
            self.count("tidegate_time_to_header_seconds_count", &[]);
        }
        if ending.has_first_byte && ending.status == Some(200) {
            let labels = [("length", length), ("size", asked.size())];
            self.count("tidegate_time_to_first_token_seconds_count", &labels);
        }
        if ending.tokens > 1 {
            for name in ["time_per_output_token", "longest_token_gap"] {
                self.count(&format!("tidegate_{name}_seconds_count"), &[("length", length)]);
            }
        }
        if ending.has_usage {
            self.count("tidegate_prompt_estimate_error_ratio_count", &[("class", "chat")]);
        }
    }

    /// The whole body of a request has come. It counts when the request is over.
    pub(super) fn body_came(&mut self, asked: &Asked) {
        self.whole.push(*asked);
    }

    /// Tidegate answers a request itself, with an error.
    pub(super) fn rejected(&mut self, reason: &str) {
        self.count("tidegate_rejections_total", &[("reason", reason)]);
    }

    /// All samples whose value is known.
    pub(super) fn samples(&self) -> BTreeMap<String, f64> {
        let mut samples = self.counts.clone();
        let mut set = |name: &str, labels: &[(&str, &str)], value: f64| {
            assert_eq!(samples.insert(series(name, labels), value), None, "{name} {labels:?}");
        };
        set("tidegate_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
        set("tidegate_config_generation", &[], self.generation.into());
        set("tidegate_config_refused", &[], f64::from(u8::from(self.is_refused)));
        set("tidegate_tls_files_refused", &[], 0.0);
        for (server, health) in &self.health {
            for state in ["healthy", "probation", "out"] {
                let labels = [("server", *server), ("state", state)];
                set("tidegate_server_health", &labels, f64::from(u8::from(*health == state)));
            }
        }
        for (group, servers) in &self.groups {
            let of_group = |running: &&Running| servers.contains(&running.server);
            let (count, load) = sums(self.running.iter().filter(of_group));
            set("tidegate_group_in_flight_requests", &[("group", group)], count);
            set("tidegate_group_load_tokens", &[("group", group)], load);
            for server in servers {
                let labels = [("group", *group), ("server", *server)];
                let (count, load) = sums(self.running.iter().filter(|running| running.server == *server));
                set("tidegate_server_in_flight_requests", &labels, count);
                set("tidegate_server_load_tokens", &labels, load);
                set("tidegate_server_draining", &labels, f64::from(u8::from(self.draining.contains(server))));
            }
            let waiting = || self.waiting.iter().filter(|asked| asked.group() == *group);
            set("tidegate_queue_requests", &[("group", group)], waiting().map(|_| 1.0).sum());
            let bytes = waiting().map(|asked| f64::from(asked.bytes)).sum();
            set("tidegate_queue_bytes", &[("group", group)], bytes);
        }
        for (group, server, length) in &self.waited_on {
            let labels = [("group", *group), ("server", *server), ("length", *length)];
            let waits = |running: &&Running| {
                running.waits_for_first_token && running.server == *server && running.asked.length() == *length
            };
            let waiting = || self.running.iter().filter(waits).map(|running| running.asked.prompt_tokens());
            set("tidegate_server_waiting_requests", &labels, waiting().map(|_| 1.0).sum());
            set("tidegate_server_waiting_prompt_tokens", &labels, waiting().map(f64::from).sum());
        }
        let bodies = "tidegate_request_body_bytes";
        let up_to = |bound: u32| self.bodies.iter().filter(|bytes| **bytes <= bound).map(|_| 1.0).sum();
        for bound in BODY_BOUNDS {
            set(&format!("{bodies}_bucket"), &[("le", &format!("{bound}.0"))], up_to(bound));
        }
        set(&format!("{bodies}_bucket"), &[("le", "+Inf")], up_to(u32::MAX));
        set(&format!("{bodies}_count"), &[], up_to(u32::MAX));
        set(&format!("{bodies}_sum"), &[], self.bodies.iter().map(|bytes| f64::from(*bytes)).sum());
        samples
    }
}

/// The number of requests, and their load.
fn sums<'a>(running: impl Iterator<Item = &'a Running>) -> (f64, f64) {
    running.fold((0.0, 0.0), |(count, load), running| (count + 1.0, load + running.asked.load_tokens()))
}
