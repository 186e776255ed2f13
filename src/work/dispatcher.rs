//! The dispatcher: events in, assignments out. It keeps the book, holds what cannot go anywhere now, and asks again.

mod change;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::book::MOST_TOKENS;
use super::explain::{Explained, explain};
use super::fleet::{Fleet, Reach};
use super::hold::{Held, Hold, HoldLimits, Seconds, WaitsFor};
use super::outcome::{Decision, Outcome, Rejection, decide};
use super::policy::{Holding, Policy};
use super::profile::{Profile, as_f64};
use super::request::{Request, RequestId};
use super::server::ServerSpec;

/// The same number was given to two live requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request with this id is active or held already")]
pub struct Repeated;

/// What a dispatcher goes by, besides its policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// What each engine can do.
    pub profile: Profile,
    /// Bounds on what is held.
    pub hold: HoldLimits,
    /// Pins what counts as long, in tokens to compute.
    pub long_from_tokens: Option<u64>,
}

/// Runs a policy.
///
/// Every method takes the time in seconds since any epoch; a time before that of the event before counts as that. What follows
/// from an event is in [`outcomes`](Self::outcomes), which also names requests that came earlier and were held.
#[derive(Debug)]
pub struct Dispatcher {
    fleet: Fleet,
    policy: Box<dyn Policy>,
    hold: Hold,
    limits: HoldLimits,
    /// When answers that are not streamed are believed to have had their first token.
    unseen: BinaryHeap<Reverse<(Seconds, RequestId)>>,
    outcomes: Vec<Outcome>,
    /// Whether a server may take what waits for one.
    has_opened: bool,
    now_s: f64,
}

impl Dispatcher {
    /// A dispatcher for so many idle servers, all alike. `long_from_tokens` pins what counts as long.
    #[must_use]
    pub fn new(
        servers: usize,
        profile: Profile,
        policy: Box<dyn Policy>,
        hold: HoldLimits,
        long_from_tokens: Option<u64>,
    ) -> Self {
        let settings = Settings { profile, hold, long_from_tokens };
        Self::of_servers(&vec![ServerSpec::default(); servers], settings, policy)
    }

    /// A dispatcher for these servers, nothing running. Where they come from means nothing here.
    #[must_use]
    pub fn of_servers(servers: &[ServerSpec], settings: Settings, policy: Box<dyn Policy>) -> Self {
        let Settings { profile, hold: limits, long_from_tokens } = settings;
        let fleet = Fleet::new(servers, profile, long_from_tokens);
        let (hold, unseen, outcomes) = (Hold::default(), BinaryHeap::new(), Vec::new());
        let now_s = f64::NEG_INFINITY;
        let mut dispatcher = Self { fleet, policy, hold, limits, unseen, outcomes, has_opened: false, now_s };
        dispatcher.policy.adapt(&dispatcher.fleet, None, 0.0);
        dispatcher
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// The servers and what is known of them.
    #[must_use]
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// What is held.
    #[must_use]
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// How many requests are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.hold.len()
    }

    /// Whether this request is held.
    #[must_use]
    pub fn is_held(&self, id: RequestId) -> bool {
        self.hold.contains(id)
    }

    /// What has been decided since this was called last.
    pub fn outcomes(&mut self) -> std::vec::Drain<'_, Outcome> {
        self.outcomes.drain(..)
    }

    /// When [`tick`](Self::tick) has to be called at the latest if nothing else happens: a held request has waited for as long
    /// as it may, or for so long that it gets another lane, or a first token that nobody sees frees one. May be in the
    /// past: then now. `None` while nothing is held, when time alone changes nothing.
    #[must_use]
    pub fn next_wakeup_s(&self) -> Option<f64> {
        let overdue_s = self.hold.oldest()?.since_s + self.limits.max_wait_s;
        let unseen_s = self.unseen.peek().map(|Reverse((due, _))| due.0);
        let adapt_s = self.hold.turn_since_s().and_then(|since_s| self.policy.next_change_s(since_s));
        let patience_s = |held: &Held| self.policy.patience_ends_s(held.since_s, held.prefill_s);
        // Once it has ended, something has to happen besides.
        let patience_s = self.hold.next_turns().filter_map(patience_s).filter(|at_s| *at_s > self.now_s);
        // A cache that others had filled may count as free again.
        let stale_s = self.fleet.stale_at_s(self.now_s);
        Some(unseen_s.into_iter().chain(adapt_s).chain(patience_s).chain(stale_s).fold(overdue_s, f64::min))
    }

    /// What a request would cost on each server, and which of them it may go to. To explain a decision, ask right before
    /// [`arrive`](Self::arrive) at the same time.
    #[must_use]
    pub fn explain(&self, request: &Request, now_s: f64) -> Vec<Explained> {
        explain(&self.fleet, &*self.policy, request, self.now_s.max(now_s))
    }

    /// What would become of a request if it came now; `None`: it would be held. Nothing changes. Only for policies that
    /// keep no count of their own.
    #[must_use]
    pub fn would_become(&mut self, request: &Request, now_s: f64) -> Option<Outcome> {
        let id = request.id;
        let may_hold = self.hold.has_room(request.body_bytes, &self.limits);
        let holding = if may_hold { Holding::Allowed { waited_s: 0.0 } } else { Holding::Over };
        match decide(&self.fleet, &mut *self.policy, request, holding, self.now_s.max(now_s)) {
            Decision::Assign { server, reason } => Some(Outcome::Assigned { id, server, reason }),
            Decision::Wait(_) if may_hold => None,
            Decision::Wait(_) => Some(Outcome::Rejected { id, rejection: Rejection::HoldFull }),
            Decision::Reject(rejection) => Some(Outcome::Rejected { id, rejection }),
        }
    }

    /// A request has come.
    ///
    /// One that is tried again, after [`end`](Self::end) without success, comes with the servers that it must not go to, and as a
    /// retry; its number may be the same.
    ///
    /// # Errors
    /// When its number is in use; then nothing has changed.
    pub fn arrive(&mut self, mut request: Request, now_s: f64) -> Result<(), Repeated> {
        if self.fleet.book.active(request.id).is_some() || self.hold.contains(request.id) {
            return Err(Repeated);
        }
        self.pass(now_s);
        request.prompt_tokens = request.prompt_tokens.min(MOST_TOKENS);
        request.excluded.sort_unstable();
        request.excluded.dedup();
        if let Reach::TooLong { max_model_len } = self.fleet.reach(&request) {
            self.reject(request.id, Rejection::TooLong { max_model_len });
            return Ok(());
        }
        let prefill = self.fleet.least_prefill(&request);
        let is_long = self.fleet.is_long(prefill);
        if !request.is_retry {
            let output_tokens = request.expected_output(self.fleet.learned.mean_output_tokens());
            let decode_s = output_tokens * self.fleet.profile.stream_share_s(request.prompt_tokens);
            let (tokens, prefill_s) = (request.prompt_tokens, prefill.nominal_s);
            self.fleet.learned.arrived(tokens, prefill_s, decode_s, is_long, self.now_s);
        }
        // Whoever waits for a lane that this arrival brings (a larger share of long work) comes first.
        self.settle();
        let may_hold = self.hold.has_room(request.body_bytes, &self.limits);
        let holding = if may_hold { Holding::Allowed { waited_s: 0.0 } } else { Holding::Over };
        match decide(&self.fleet, &mut *self.policy, &request, holding, self.now_s) {
            Decision::Assign { server, reason } => self.assign(&request, server, reason),
            Decision::Wait(waits_for) if may_hold => {
                let (since_s, prefill_s, size_class) = (self.now_s, prefill.nominal_s, self.fleet.size_class(&request));
                self.hold.put(Held { request, since_s, prefill_s, is_long, waits_for, size_class });
            }
            Decision::Wait(_) => self.reject(request.id, Rejection::HoldFull),
            Decision::Reject(rejection) => self.reject(request.id, rejection),
        }
        Ok(())
    }

    /// A request's first token has been seen. Ignored when it is not active.
    pub fn first_token(&mut self, id: RequestId, now_s: f64) {
        self.pass(now_s);
        self.fleet.first_token(id, self.now_s);
        self.settle();
    }

    /// A request has generated so many tokens in all. Ignored when it is not active.
    pub fn tokens(&mut self, id: RequestId, generated: u64, now_s: f64) {
        self.pass(now_s);
        self.fleet.tokens(id, generated, self.now_s);
        self.settle();
    }

    /// A request is over: answered (`is_ok`), failed, or its client has gone, wherever it was. `generated`: what it has
    /// written in all, when that is known.
    pub fn end(&mut self, id: RequestId, is_ok: bool, generated: Option<u64>, now_s: f64) {
        self.pass(now_s);
        if self.hold.take(id).is_none() {
            self.strike_out(id, is_ok, generated);
        }
        self.settle();
    }

    /// Time has gone by.
    pub fn tick(&mut self, now_s: f64) {
        self.pass(now_s);
        self.settle();
    }

    fn strike_out(&mut self, id: RequestId, is_ok: bool, generated: Option<u64>) {
        let Some((active, has_opened)) = self.fleet.end(id, self.now_s) else { return };
        self.has_opened |= has_opened;
        self.policy.left(id);
        if !is_ok {
            return;
        }
        let sums = self.fleet.book.sums(active.server);
        // Of a server that has been removed nobody knows any more how fast it was.
        let is_there = active.server < self.fleet.server_count();
        let (profile, slowness) = match is_there {
            true => (self.fleet.profile_of(active.server), self.fleet.slowness(active.server)),
            false => (&self.fleet.profile, 1.0),
        };
        let step_s = profile.decode_step_s(sums.streams + 1, sums.context_tokens + active.prompt_tokens) * slowness;
        // Nobody may have counted; then the time that it took tells.
        let by_time = |first_s: f64| 1.0 + (self.now_s - first_s).max(0.0) / step_s;
        let counted = (active.generated_tokens > 1).then_some(active.generated_tokens);
        let counted = generated.or(counted).map(|tokens| as_f64(tokens.min(MOST_TOKENS)));
        if let Some(tokens) = counted.or_else(|| active.first_token_at_s.map(by_time)) {
            self.fleet.learned.wrote(tokens);
        }
    }

    /// Lets time go by: first tokens that nobody sees.
    fn pass(&mut self, now_s: f64) {
        self.now_s = self.now_s.max(now_s);
        self.fleet.learned.pass(self.now_s);
        while let Some(Reverse((Seconds(due_s), id))) = self.unseen.peek().copied()
            && due_s <= self.now_s
        {
            self.unseen.pop();
            self.fleet.book.first_token(id, due_s);
        }
    }

    /// Places what is held, as far as it can go, and what has waited for too long.
    fn settle(&mut self) {
        self.policy.adapt(&self.fleet, self.hold.turn_since_s(), self.now_s);
        if self.hold.is_empty() {
            self.has_opened = false;
            return;
        }
        self.hold.begin_round();
        // Long prompts first: they take one place on a lane at a time, and can go nowhere else.
        self.place_held(WaitsFor::Turn);
        if std::mem::take(&mut self.has_opened) {
            self.place_held(WaitsFor::Server);
        }
        while let Some(held) = self.hold.oldest().filter(|held| self.now_s >= held.since_s + self.limits.max_wait_s) {
            let id = held.request.id;
            match decide(&self.fleet, &mut *self.policy, &held.request, Holding::Over, self.now_s) {
                Decision::Assign { server, reason } => self.release(id, server, reason),
                Decision::Wait(_) => self.reject_held(id, Rejection::HeldTooLong),
                Decision::Reject(rejection) => self.reject_held(id, rejection),
            }
        }
    }

    /// Places held requests in order; of each line until one has to wait on.
    fn place_held(&mut self, waits_for: WaitsFor) {
        while let Some(held) = self.hold.next(waits_for) {
            let id = held.request.id;
            let holding = Holding::Allowed { waited_s: self.now_s - held.since_s };
            match decide(&self.fleet, &mut *self.policy, &held.request, holding, self.now_s) {
                Decision::Assign { server, reason } => self.release(id, server, reason),
                Decision::Wait(WaitsFor::Turn) if waits_for == WaitsFor::Server => {
                    self.hold.now_waits_for(id, WaitsFor::Turn);
                }
                Decision::Wait(_) => self.hold.block(id),
                Decision::Reject(rejection) => self.reject_held(id, rejection),
            }
        }
    }

    fn release(&mut self, id: RequestId, server: usize, reason: &'static str) {
        let held = self.hold.take(id).expect("only what is held is released");
        self.assign(&held.request, server, reason);
    }

    fn reject_held(&mut self, id: RequestId, rejection: Rejection) {
        self.hold.take(id);
        self.reject(id, rejection);
    }

    fn reject(&mut self, id: RequestId, rejection: Rejection) {
        self.outcomes.push(Outcome::Rejected { id, rejection });
    }

    fn assign(&mut self, request: &Request, server: usize, reason: &'static str) {
        if !request.is_streamed {
            let waiting_s = self.fleet.book.waiting_s(server, self.now_s);
            let prefill_s = self.fleet.prefill_s(server, self.fleet.prefill(server, request));
            // Without a margin: to believe it too early puts one more prompt into an engine's queue, to believe it too late
            // leaves lanes idle, which costs far more when they are few (measured; see docs/policy.md).
            let due_s = self.now_s + waiting_s + prefill_s;
            if self.unseen.len() > 64 + 2 * self.fleet.book.len() {
                let book = &self.fleet.book;
                self.unseen.retain(|Reverse((_, id))| book.active(*id).is_some());
            }
            self.unseen.push(Reverse((Seconds(due_s), request.id)));
        }
        self.fleet.dispatch(request, server, self.now_s);
        self.outcomes.push(Outcome::Assigned { id: request.id, server, reason });
    }
}
