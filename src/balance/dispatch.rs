//! Routing by work inside the balancer: the [`Dispatcher`], in terms of server numbers.
//!
//! The dispatcher knows servers by their place in the configured order, the balancer by numbers that stay with them. It
//! also holds requests: what it decides of those later is kept here until the balancer takes it.

use std::sync::Arc;

use super::policy::{ByWork, WorkKind};
use super::{Admission, Topology, Tried, Unavailable, Usage};
use crate::prompt::{Demand, Work};
use crate::work::{
    self, Coefficients, Dispatcher, EngineState, Explained, Observation, Outcome, Rejection, Request, RequestId,
    ServerSpec, ServerTraits,
};

/// Tells the time, in seconds since any epoch.
pub type Clock = Arc<dyn Fn() -> f64 + Send + Sync>;

/// What was decided of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Decision {
    /// It goes to a server.
    Server {
        /// The server's number.
        server: usize,
        /// Why there.
        reason: &'static str,
    },
    /// It cannot be served.
    Not(Rejection),
}

/// What the policy by work knows at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkSnapshot {
    /// The numbers of the servers that are lanes.
    pub lanes: Vec<usize>,
    /// Requests that are held.
    pub held: usize,
    /// Bytes of their bodies.
    pub held_bytes: u64,
    /// For how long the oldest of them has waited, in seconds.
    pub held_for_s: f64,
    /// From which predicted prefill on a request is long, in seconds.
    pub long_from_s: f64,
    /// Tokens of an answer.
    pub mean_output_tokens: f64,
    /// Share of the work of the last minute that was in long requests.
    pub long_share: f64,
    /// By place in the configured order.
    pub servers: Vec<WorkOnServer>,
    /// What was learned of the engines of each group.
    pub engines: Vec<LearnedEngine>,
}

/// What was learned of the engines of one group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearnedEngine {
    /// b: prefill of one new token, in seconds.
    pub per_token_s: f64,
    /// d: prefill of one pair of a new token and one before it, in seconds.
    pub per_token_pair_s: f64,
    /// From dispatch to the first token of a prompt without length, in seconds.
    pub floor_s: f64,
    /// First tokens on idle servers that this rests on.
    pub first_tokens: u64,
}

/// What runs on one server, in the terms of the policies by work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkOnServer {
    /// The server's number.
    pub server: usize,
    /// W: predicted prefill that is not done, in seconds.
    pub prefill_s: f64,
    /// Requests without a first token.
    pub prefilling: u64,
    /// Long ones among them.
    pub prefilling_long: u64,
    /// Requests with a first token.
    pub streams: u64,
    /// Their prompts and answers.
    pub context_tokens: u64,
}

/// See the module.
pub(super) struct Dispatch {
    dispatcher: Dispatcher,
    kind: WorkKind,
    clock: Clock,
    /// Server numbers by place.
    numbers: Vec<usize>,
    /// Places by server number.
    places: Vec<Option<usize>>,
    requests: u64,
}

impl std::fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatch").field("dispatcher", &self.dispatcher).finish_non_exhaustive()
    }
}

impl Dispatch {
    /// Nothing runs yet. `stands` says by number what a server may be given and what runs on it.
    pub(super) fn new(
        policy: &ByWork,
        topology: &Topology,
        traits: &[ServerTraits],
        stands: impl Fn(usize) -> (Admission, Usage),
        clock: Clock,
    ) -> Self {
        let numbers: Vec<usize> = topology.servers().collect();
        let specs: Vec<ServerSpec> = numbers.iter().map(|number| spec(*number, None, traits, &stands)).collect();
        let dispatcher = policy.dispatcher(&specs);
        Self { dispatcher, kind: policy.kind, clock, places: places_of(&numbers), numbers, requests: 0 }
    }

    /// Puts another policy, other servers, or other traits of them in place. What runs stays in the book.
    pub(super) fn reconfigure(
        &mut self,
        policy: &ByWork,
        topology: &Topology,
        traits: &[ServerTraits],
        stands: impl Fn(usize) -> (Admission, Usage),
    ) {
        self.reshape(topology, traits, stands);
        let other = (self.kind != policy.kind).then(|| policy.policy());
        self.kind = policy.kind;
        self.dispatcher.reconfigure(policy.settings(), other, (self.clock)());
        self.dispatcher.set_prefix_memory(policy.prefix_bytes);
    }

    /// Puts other servers, or other traits of them in place. What runs stays in the book.
    pub(super) fn reshape(
        &mut self,
        topology: &Topology,
        traits: &[ServerTraits],
        stands: impl Fn(usize) -> (Admission, Usage),
    ) {
        let numbers: Vec<usize> = topology.servers().collect();
        let spec = |number: &usize| spec(*number, self.place(*number), traits, &stands);
        let specs: Vec<ServerSpec> = numbers.iter().map(spec).collect();
        self.places = places_of(&numbers);
        self.numbers = numbers;
        self.dispatcher.reshape(&specs, (self.clock)());
    }

    /// An engine has reported how busy it is.
    pub(super) fn observed(&mut self, number: usize, engine: EngineState, valid_for_s: f64) -> Option<Observation> {
        let place = self.place(number)?;
        self.dispatcher.observed(place, engine, valid_for_s, (self.clock)());
        self.dispatcher.fleet().observation(place).copied()
    }

    /// What is known now.
    pub(super) fn snapshot(&self) -> WorkSnapshot {
        let (fleet, now_s) = (self.dispatcher.fleet(), (self.clock)());
        let on = |(place, server): (usize, &usize)| {
            let sums = fleet.book.sums(place);
            WorkOnServer {
                server: *server,
                prefill_s: fleet.book.waiting_s(place, now_s),
                prefilling: sums.waiting,
                prefilling_long: sums.waiting_long,
                streams: sums.streams,
                context_tokens: sums.context_tokens,
            }
        };
        let hold = self.dispatcher.hold();
        WorkSnapshot {
            lanes: self.dispatcher.policy().lanes().iter().map(|place| self.numbers[*place]).collect(),
            held: hold.len(),
            held_bytes: hold.body_bytes(),
            held_for_s: hold.oldest().map_or(0.0, |oldest| (now_s - oldest.since_s).max(0.0)),
            long_from_s: fleet.learned.long_from_s(),
            mean_output_tokens: fleet.learned.mean_output_tokens(),
            long_share: fleet.learned.long_share(),
            servers: self.numbers.iter().enumerate().map(on).collect(),
            engines: fleet.calibration().classes().iter().map(LearnedEngine::of).collect(),
        }
    }

    fn place(&self, number: usize) -> Option<usize> {
        self.places.get(number).copied().flatten()
    }

    /// A request comes. What is decided, at once or later, is among the [`decisions`](Self::decisions).
    pub(super) fn arrive(&mut self, demand: &Demand, tried: &Tried) -> RequestId {
        let id = RequestId(self.requests);
        self.requests += 1;
        let request = self.request(id, demand, tried);
        let now_s = (self.clock)();
        self.dispatcher.arrive(request, now_s).expect("every number is used once");
        id
    }

    /// What would become of a request now (`None`: it would be held), and what it would cost on each server, by number.
    pub(super) fn explain(&mut self, demand: &Demand, tried: &Tried) -> (Option<Decision>, Vec<(usize, Explained)>) {
        let (request, now_s) = (self.request(RequestId(self.requests), demand, tried), (self.clock)());
        let costs = self.dispatcher.explain(&request, now_s);
        let costs = costs.into_iter().map(|cost| (self.numbers[cost.server], cost)).collect();
        let outcome = self.dispatcher.would_become(&request, now_s);
        (outcome.map(|outcome| decision(&self.numbers, outcome).1), costs)
    }

    /// From which predicted prefill on a request is long, in seconds.
    pub(super) fn long_from_s(&self) -> f64 {
        self.dispatcher.fleet().learned.long_from_s()
    }

    /// Whether a request that runs is a long one.
    pub(super) fn is_long(&self, request: RequestId) -> bool {
        self.dispatcher.fleet().book.active(request).is_some_and(|active| active.is_long)
    }

    /// How many requests are held.
    pub(super) fn held(&self) -> usize {
        self.dispatcher.held()
    }

    fn request(&self, id: RequestId, demand: &Demand, tried: &Tried) -> Request {
        let measured;
        let work = match &demand.work {
            Some(work) => work,
            None => {
                measured = Work { prompt_tokens: demand.prompt_tokens(), is_streamed: true, ..Work::default() };
                &measured
            }
        };
        Request {
            id,
            prompt_tokens: work.prompt_tokens,
            body_bytes: demand.body_bytes,
            max_tokens: work.output_limit_tokens,
            ignore_eos: demand.ignore_eos,
            is_streamed: work.is_streamed,
            prefix: work.prefix.clone(),
            session: work.session.clone(),
            excluded: tried.iter().filter_map(|number| self.place(number)).collect(),
            is_retry: !tried.is_empty(),
            needed_tokens: work.needed_tokens,
        }
    }

    /// What has been decided since this was asked last.
    pub(super) fn decisions(&mut self) -> Vec<(RequestId, Decision)> {
        let numbers = &self.numbers;
        self.dispatcher.outcomes().map(|outcome| decision(numbers, outcome)).collect()
    }

    pub(super) fn first_token(&mut self, id: RequestId) {
        self.dispatcher.first_token(id, (self.clock)());
    }

    pub(super) fn generated(&mut self, id: RequestId, tokens: u64) {
        self.dispatcher.tokens(id, tokens, (self.clock)());
    }

    pub(super) fn end(&mut self, id: RequestId, is_ok: bool, generated: Option<u64>) {
        self.dispatcher.end(id, is_ok, generated, (self.clock)());
    }

    pub(super) fn tick(&mut self) {
        self.dispatcher.tick((self.clock)());
    }

    /// Passes on what a server may be given now.
    pub(super) fn admit(&mut self, number: usize, admission: &Admission, usage: Usage) {
        let Some(place) = self.place(number) else { return };
        let now_s = (self.clock)();
        if self.dispatcher.fleet().is_up(place) != admission.is_open {
            self.dispatcher.server(place, admission.is_open, now_s);
        }
        let admission = admission_of(admission, usage);
        if self.dispatcher.fleet().admission(place) != admission {
            self.dispatcher.set_admission(place, admission, now_s);
        }
    }

    /// What is in the way of requests that are held; `None`: they wait for their turn, and will get it.
    pub(super) fn in_the_way(&self) -> Option<Unavailable> {
        let fleet = self.dispatcher.fleet();
        match fleet.up_count() {
            0 => Some(Unavailable::NoneLive),
            _ if fleet.up().any(|place| fleet.takes(place)) => None,
            _ => Some(Unavailable::NoneFree),
        }
    }
}

/// An outcome in terms of server numbers.
fn decision(numbers: &[usize], outcome: Outcome) -> (RequestId, Decision) {
    match outcome {
        Outcome::Assigned { id, server, reason } => (id, Decision::Server { server: numbers[server], reason }),
        Outcome::Rejected { id, rejection } => (id, Decision::Not(rejection)),
    }
}

impl LearnedEngine {
    fn of(coefficients: &Coefficients) -> Self {
        let profile = coefficients.profile();
        Self {
            per_token_s: profile.per_token_s,
            per_token_pair_s: profile.per_token_pair_s,
            floor_s: profile.prefill_s(1, 0),
            first_tokens: coefficients.times(),
        }
    }
}

/// A server as the dispatcher is told of it.
fn spec(
    number: usize,
    origin: Option<usize>,
    traits: &[ServerTraits],
    stands: &impl Fn(usize) -> (Admission, Usage),
) -> ServerSpec {
    let (admission, usage) = stands(number);
    ServerSpec {
        origin,
        is_up: admission.is_open,
        admission: admission_of(&admission, usage),
        traits: traits.get(number).copied().unwrap_or_default(),
    }
}

/// A limit on load closes a server once it is reached: how large the next request is, is not asked.
fn admission_of(admission: &Admission, usage: Usage) -> work::Admission {
    let has_room = admission.max_load.is_none_or(|most| usage.in_flight == 0 || usage.load < most);
    work::Admission { is_open: has_room, max_active: admission.max_in_flight }
}

fn places_of(numbers: &[usize]) -> Vec<Option<usize>> {
    let mut places = vec![None; numbers.iter().max().map_or(0, |most| most + 1)];
    for (place, number) in numbers.iter().enumerate() {
        places[*number] = Some(place);
    }
    places
}
