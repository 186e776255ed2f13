//! The dispatcher: events in, assignments out. It keeps the book, holds what the policy holds, and asks again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::book::MOST_TOKENS;
use super::fleet::Fleet;
use super::hold::{Hold, HoldLimits, Seconds};
use super::policy::{Holding, Policy, Verdict};
use super::profile::{Profile, as_f64};
use super::request::{Request, RequestId};

/// What has become of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It goes to a server.
    Assigned {
        /// The request.
        id: RequestId,
        /// The server.
        server: usize,
        /// Why there.
        reason: &'static str,
    },
    /// No server is up, and it cannot wait (any longer).
    Rejected {
        /// The request.
        id: RequestId,
    },
}

/// The same number was given to two live requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request with this id is active or held already")]
pub struct Repeated;

/// Runs a policy.
///
/// Every method takes the time in seconds since any epoch; a time before that of the event before counts as that.
#[derive(Debug)]
pub struct Dispatcher {
    fleet: Fleet,
    policy: Box<dyn Policy>,
    hold: Hold,
    limits: HoldLimits,
    /// When answers that are not streamed are believed to have had their first token.
    unseen: BinaryHeap<Reverse<(Seconds, RequestId)>>,
    outcomes: Vec<Outcome>,
    now_s: f64,
}

impl Dispatcher {
    /// A dispatcher for so many idle servers. `long_from_tokens` pins what counts as long.
    #[must_use]
    pub fn new(
        servers: usize,
        profile: Profile,
        policy: Box<dyn Policy>,
        limits: HoldLimits,
        long_from_tokens: Option<u64>,
    ) -> Self {
        let fleet = Fleet::new(servers, profile, long_from_tokens);
        let (hold, unseen) = (Hold::default(), BinaryHeap::new());
        let mut dispatcher =
            Self { fleet, policy, hold, limits, unseen, outcomes: Vec::new(), now_s: f64::NEG_INFINITY };
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

    /// A request has come.
    ///
    /// # Errors
    /// When its number is in use; then nothing has changed.
    pub fn arrive(&mut self, mut request: Request, now_s: f64) -> Result<(), Repeated> {
        if self.fleet.book.active(request.id).is_some() || self.hold.contains(request.id) {
            return Err(Repeated);
        }
        self.pass(now_s);
        request.prompt_tokens = request.prompt_tokens.min(MOST_TOKENS);
        let prefill = self.fleet.least_prefill(&request);
        let output_tokens = request.expected_output(self.fleet.learned.mean_output_tokens());
        let decode_s = output_tokens * self.fleet.profile.stream_share_s(request.prompt_tokens);
        let is_long = self.fleet.is_long(prefill);
        self.fleet.learned.arrived(prefill.seconds, decode_s, is_long, self.now_s);
        // Whoever waits for a lane that this arrival brings (a larger share of long work) comes first.
        self.settle();
        let may_hold = self.hold.has_room(request.body_bytes, &self.limits);
        let holding = if may_hold { Holding::Allowed } else { Holding::Over };
        match self.policy.place(&self.fleet, &request, holding, self.now_s) {
            Verdict::Assign { server, reason } => self.assign(&request, server, reason),
            Verdict::Hold if may_hold => self.hold.put(request, prefill.seconds, self.now_s),
            Verdict::Hold => self.outcomes.push(Outcome::Rejected { id: request.id }),
        }
        Ok(())
    }

    /// A request's first token has been seen. Ignored when it is not active.
    pub fn first_token(&mut self, id: RequestId, now_s: f64) {
        self.pass(now_s);
        self.fleet.book.first_token(id, self.now_s);
        self.settle();
    }

    /// A request has generated so many tokens in all. Ignored when it is not active.
    pub fn tokens(&mut self, id: RequestId, generated: u64, now_s: f64) {
        self.pass(now_s);
        self.fleet.book.tokens(id, generated, self.now_s);
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

    /// A server takes requests from now on, or none.
    pub fn server(&mut self, server: usize, is_up: bool, now_s: f64) {
        self.pass(now_s);
        let were_up = self.fleet.up_count();
        self.fleet.set_up(server, is_up);
        self.policy.server_changed(server, is_up);
        self.settle();
        if were_up == 0 && is_up {
            self.place_all_held();
        }
    }

    /// Time has gone by.
    pub fn tick(&mut self, now_s: f64) {
        self.pass(now_s);
        self.settle();
    }

    fn strike_out(&mut self, id: RequestId, is_ok: bool, generated: Option<u64>) {
        let Some(active) = self.fleet.book.end(id, self.now_s) else { return };
        self.policy.left(id);
        if !is_ok {
            return;
        }
        let sums = self.fleet.book.sums(active.server);
        let step_s = self.fleet.profile.decode_step_s(sums.streams + 1, sums.context_tokens + active.prompt_tokens);
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

    /// Places held requests in order until one has to wait on, and those that have waited for too long.
    fn settle(&mut self) {
        self.policy.adapt(&self.fleet, self.hold.oldest_since_s(), self.now_s);
        while let Some(held) = self.hold.first() {
            match self.policy.place(&self.fleet, &held.request, Holding::Allowed, self.now_s) {
                Verdict::Assign { server, reason } => self.release(held.request.id, server, reason),
                Verdict::Hold => break,
            }
        }
        while let Some(held) = self.hold.oldest().filter(|held| self.now_s - held.since_s > self.limits.max_wait_s) {
            let id = held.request.id;
            match self.policy.place(&self.fleet, &held.request, Holding::Over, self.now_s) {
                Verdict::Assign { server, reason } => self.release(id, server, reason),
                Verdict::Hold => {
                    self.hold.take(id);
                    self.outcomes.push(Outcome::Rejected { id });
                }
            }
        }
    }

    /// After a time without any server, short requests may wait behind a long one that has to wait on.
    fn place_all_held(&mut self) {
        for id in self.hold.in_order() {
            let Some(held) = self.hold.get(id) else { continue };
            if let Verdict::Assign { server, reason } =
                self.policy.place(&self.fleet, &held.request, Holding::Allowed, self.now_s)
            {
                self.release(id, server, reason);
            }
        }
    }

    fn release(&mut self, id: RequestId, server: usize, reason: &'static str) {
        let request = self.hold.take(id).expect("only what is held is released");
        self.assign(&request, server, reason);
    }

    fn assign(&mut self, request: &Request, server: usize, reason: &'static str) {
        if !request.is_streamed {
            let waiting_s = self.fleet.book.waiting_s(server, self.now_s);
            let prefill_s = self.fleet.prefill(server, request).seconds;
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
