//! What it costs to send a request to a server, in seconds: of the request itself, and of those that it hurts.

use super::evening::Evening;
use super::fleet::Fleet;
use super::observation::Foreign;
use super::profile::{Profile, as_f64};
use super::request::Request;

/// How much of the harm to other streams a long request is charged with.
const LONG_HARM_WEIGHT: f64 = 0.3;

/// The same for a short one, while there is long work about.
const SHORT_HARM_WEIGHT: f64 = 0.1;

/// From this share of long work on, short requests are charged with harm, and differences between servers are believed to
/// last: long prefills stall some servers and not others, and long requests go where there are few streams.
const LASTING_FROM_LONG_SHARE: f64 = 0.05;

/// The costs of one request, server by server.
#[derive(Debug)]
pub struct Costs<'a> {
    fleet: &'a Fleet,
    request: &'a Request,
    now_s: f64,
    /// m, for this request.
    output_tokens: f64,
    short_harm_weight: f64,
    /// Whether engines have reported how busy they are.
    is_observed: bool,
    /// Whether it is long; `None` when that depends on what a server has in its cache.
    is_long: Option<bool>,
    /// What is the same for all engines of class 0.
    first_class: OfClass<'a>,
    /// The same for the other classes.
    other_classes: Vec<OfClass<'a>>,
    /// What differences between the servers' decode steps are worth.
    evening: Evening,
}

/// What a request takes on any engine of a class, at speed 1.
#[derive(Debug, Clone, Copy)]
struct OfClass<'a> {
    profile: &'a Profile,
    /// The prefill where nothing is cached.
    prefill_s: f64,
    /// b + c * prompt tokens.
    stream_share_s: f64,
}

impl<'a> OfClass<'a> {
    fn new(profile: &'a Profile, request: &Request) -> Self {
        Self {
            profile,
            prefill_s: profile.prefill_s(request.prompt_tokens, 0),
            stream_share_s: profile.stream_share_s(request.prompt_tokens),
        }
    }
}

/// What one server costs, term by term, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// W(e): prefill that waits there.
    pub waiting_s: f64,
    /// P: the request's own prefill.
    pub prefill_s: f64,
    /// m * step(e): what generating the answer takes there, as far as differences between servers last.
    pub decode_s: f64,
    /// The wait for room in the KV cache.
    pub kv_wait_s: f64,
    /// Harm done to the streams that are there, weighed.
    pub harm_s: f64,
    /// Whether the request's prefill counts as long there.
    pub is_long: bool,
}

impl Cost {
    /// All of it.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        self.waiting_s + self.prefill_s + self.decode_s + self.kv_wait_s + self.harm_s
    }
}

impl<'a> Costs<'a> {
    /// The costs of a request now.
    #[must_use]
    pub fn new(fleet: &'a Fleet, request: &'a Request, now_s: f64) -> Self {
        let learned = &fleet.learned;
        let has_long_work = learned.long_share() >= LASTING_FROM_LONG_SHARE;
        let mut costs = Self {
            fleet,
            request,
            now_s,
            output_tokens: request.expected_output(learned.mean_output_tokens()),
            short_harm_weight: if has_long_work { SHORT_HARM_WEIGHT } else { 0.0 },
            is_observed: fleet.is_observed(now_s),
            is_long: (!request.may_be_cached()).then(|| fleet.is_long(fleet.least_prefill(request))),
            first_class: OfClass::new(fleet.class_profile(0), request),
            other_classes: fleet.class_profiles().skip(1).map(|profile| OfClass::new(profile, request)).collect(),
            evening: Evening::NONE,
        };
        if !has_long_work {
            costs.evening = costs.evening();
        }
        costs
    }

    /// Only what comes through here evens servers out, so only the book counts.
    fn evening(&self) -> Evening {
        let (mut servers, mut active, mut steps_s) = (0, 0, 0.0);
        for server in self.fleet.candidates(self.request) {
            servers += 1;
            active += self.fleet.book.sums(server).active();
            steps_s += self.step_s(server, self.of_class(server).profile, &Foreign::default());
        }
        if servers == 0 {
            return Evening::NONE;
        }
        let servers = as_f64(servers);
        Evening::of(as_f64(active) / servers, steps_s / servers)
    }

    fn of_class(&self, server: usize) -> &OfClass<'a> {
        let engine_class = self.fleet.engine_class(server);
        if engine_class == 0 { &self.first_class } else { &self.other_classes[engine_class - 1] }
    }

    /// A decode step with this request, when it has its first token: then what waits there now has its first token, too.
    #[inline]
    fn step_s(&self, server: usize, profile: &Profile, foreign: &Foreign) -> f64 {
        let sums = self.fleet.book.sums(server);
        let streams = as_f64(sums.active() + 1) + foreign.streams + foreign.waiting;
        let context_tokens = as_f64(sums.kv_tokens() + self.request.prompt_tokens) + foreign.context_tokens;
        profile.mean_step_s(streams, context_tokens) * self.fleet.slowness(server)
    }

    /// Whether the request is known to be long on every server, without asking each.
    #[must_use]
    pub fn is_long_everywhere(&self) -> bool {
        self.is_long == Some(true)
    }

    /// The cost on a server:
    ///
    /// ```text
    /// cost(e) = W(e) + P + m * step(e) + KV wait + w * D(e) * (P + m * (b + c * prompt tokens))
    /// now(e)  = o + max(a0, a1 + b * (A + 1)) + c * (T + prompt tokens)
    /// step(e) = now(e)                                      while there is long work
    ///         = level + (now(e) - level) / (2 + mean A)     else; level = max(mean of now, now(e) if nothing were there)
    /// ```
    ///
    /// D: streams; A: these and what waits; T: the tokens that A holds. P, now, b and c are divided by the server's speed.
    #[must_use]
    pub fn on(&self, server: usize) -> Cost {
        let (fleet, sums, slowness) = (self.fleet, self.fleet.book.sums(server), self.fleet.slowness(server));
        let &OfClass { profile, prefill_s, stream_share_s } = self.of_class(server);
        let (prefill_s, is_long) = match self.is_long {
            Some(is_long) => (prefill_s * slowness, is_long),
            None => {
                let prefill = fleet.prefill(server, self.request);
                (fleet.prefill_s(server, prefill), fleet.is_long(prefill))
            }
        };
        let foreign = self.foreign(server);
        let streams = as_f64(sums.streams) + foreign.streams;
        let idle_step_s = profile.mean_step_s(1.0, as_f64(self.request.prompt_tokens)) * slowness;
        let step_s = self.evening.step_s(self.step_s(server, profile, &foreign), idle_step_s);
        let decode_s = self.output_tokens * step_s;
        let harm_weight = if is_long { LONG_HARM_WEIGHT } else { self.short_harm_weight };
        let stream_s = self.output_tokens * stream_share_s * slowness;
        let harm_s = harm_weight * streams * (prefill_s + stream_s);
        let foreign_s = foreign.waiting * fleet.learned.mean_prefill_s() * slowness;
        let waiting_s = fleet.book.waiting_s(server, self.now_s) + foreign_s;
        let kv_wait_s = self.kv_wait_s(server, &foreign, decode_s);
        Cost { waiting_s, prefill_s, decode_s, kv_wait_s, harm_s, is_long }
    }

    /// How long a request waits for room in the KV cache.
    ///
    /// What is there is given back about once per answer, so that overflow / use of it is free after that share of the time
    /// that an answer takes.
    fn kv_wait_s(&self, server: usize, foreign: &Foreign, decode_s: f64) -> f64 {
        let used = self.kv_used(server, foreign);
        let overflow = self.kv_overflow(server, used);
        if overflow <= 0.0 { 0.0 } else { decode_s * overflow / used }
    }

    /// Whether the request has room in a server's KV cache now, with its answer.
    #[must_use]
    #[inline]
    pub fn fits(&self, server: usize) -> bool {
        self.kv_overflow(server, self.kv_used(server, &self.foreign(server))) <= 0.0
    }

    /// Tokens that are too many for a server's KV cache, of which so many are in use, when the request goes there.
    fn kv_overflow(&self, server: usize, used: f64) -> f64 {
        // A server on which nothing runs takes everything that any server can.
        if used <= 0.0 {
            return 0.0;
        }
        used + as_f64(self.request.prompt_tokens) + self.output_tokens - as_f64(self.fleet.kv_tokens(server))
    }

    fn kv_used(&self, server: usize, foreign: &Foreign) -> f64 {
        as_f64(self.fleet.book.sums(server).kv_tokens()) + foreign.context_tokens
    }

    #[inline]
    fn foreign(&self, server: usize) -> Foreign {
        if self.is_observed { self.fleet.foreign(server, self.now_s) } else { Foreign::default() }
    }
}

/// The cheapest of some servers, by a cost that is given for each; of equals the one that was chosen longest ago.
pub(super) fn cheapest(fleet: &Fleet, costs: impl Iterator<Item = (usize, f64)>) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (server, cost) in costs {
        let wins = best.is_none_or(|(leader, least)| {
            cost < least
                || (cost.total_cmp(&least).is_eq() && fleet.last_dispatch(server) < fleet.last_dispatch(leader))
        });
        if wins {
            best = Some((server, cost));
        }
    }
    best.map(|(server, _)| server)
}
