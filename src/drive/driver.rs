//! From names to numbers and back: the dispatcher knows requests by number, the protocol by the names that others give.

use std::collections::HashMap;
use std::sync::Arc;

use super::event::{Arrival, Event, What};
use super::reply::{Assigned, Rejected, Reply};
use crate::work::{Dispatcher, Outcome, Request, RequestId};

/// A policy with its virtual clock.
#[derive(Debug)]
pub struct Driver {
    dispatcher: Dispatcher,
    servers: usize,
    numbers: HashMap<Arc<str>, RequestId>,
    names: HashMap<RequestId, Arc<str>>,
    next_number: u64,
    lanes: Lanes,
}

/// The lanes as they were written last: with hundreds of servers writing them costs more than deciding.
#[derive(Debug, Default)]
struct Lanes {
    servers: Vec<usize>,
    text: String,
}

impl Lanes {
    fn update(&mut self, servers: &[usize]) {
        if self.text.is_empty() || self.servers != servers {
            self.servers = servers.to_vec();
            let numbers: Vec<String> = servers.iter().map(usize::to_string).collect();
            self.text = format!("[{}]", numbers.join(","));
        }
    }
}

impl Driver {
    /// Drives a dispatcher to which nothing has happened yet.
    #[must_use]
    pub fn new(dispatcher: Dispatcher) -> Self {
        let servers = dispatcher.fleet().server_count();
        let (numbers, names) = (HashMap::new(), HashMap::new());
        Self { dispatcher, servers, numbers, names, next_number: 0, lanes: Lanes::default() }
    }

    /// Lets an event happen.
    ///
    /// # Errors
    /// When it cannot have happened; then nothing has.
    pub fn apply(&mut self, event: Event<'_>) -> Result<Reply<'_>, String> {
        let Event { now_s, what } = event;
        match what {
            What::Arrive(arrival) => self.arrive(arrival, now_s)?,
            What::First { id } => self.dispatcher.first_token(self.active(&id)?, now_s),
            What::Tokens { id, generated } => self.dispatcher.tokens(self.active(&id)?, generated, now_s),
            What::End { id, is_ok, generated } => {
                let number = self.number(&id)?;
                self.forget(number);
                self.dispatcher.end(number, is_ok, generated, now_s);
            }
            What::Server { server, .. } if server >= self.servers => {
                return Err(format!("server is {server}, expected 0 to {}", self.servers.saturating_sub(1)));
            }
            What::Server { server, is_up } => self.dispatcher.server(server, is_up, now_s),
            What::Tick => self.dispatcher.tick(now_s),
        }
        Ok(self.reply())
    }

    fn arrive(&mut self, arrival: Arrival<'_>, now_s: f64) -> Result<(), String> {
        let Arrival { id, prompt_tokens, body_bytes, max_tokens, ignore_eos, is_streamed, prefix } = arrival;
        let mut is_retry = false;
        if let Some(earlier) = self.numbers.get(&*id).copied() {
            let active = self.dispatcher.fleet().book.active(earlier);
            if active.is_none_or(|active| self.dispatcher.fleet().is_up(active.server)) {
                return Err(format!("{id:?} is active or held already"));
            }
            // Its server has gone, and it is tried again.
            self.forget(earlier);
            self.dispatcher.end(earlier, false, None, now_s);
            is_retry = true;
        }
        let number = RequestId(self.next_number);
        self.next_number += 1;
        let name: Arc<str> = Arc::from(&*id);
        self.numbers.insert(Arc::clone(&name), number);
        self.names.insert(number, name);
        let request = Request {
            id: number,
            body_bytes,
            max_tokens,
            ignore_eos,
            is_streamed,
            prefix,
            is_retry,
            // Without a limit the answer is cut where the context ends, but its first token needs its place.
            needed_tokens: Some(prompt_tokens.saturating_add(max_tokens.unwrap_or(1))),
            ..Request::of_tokens(number.0, prompt_tokens)
        };
        self.dispatcher.arrive(request, now_s).map_err(|repeated| repeated.to_string())
    }

    fn number(&self, id: &str) -> Result<RequestId, String> {
        self.numbers.get(id).copied().ok_or_else(|| format!("{id:?} is neither active nor held"))
    }

    /// The number of a request that a server has.
    fn active(&self, id: &str) -> Result<RequestId, String> {
        let number = self.number(id)?;
        if self.dispatcher.is_held(number) { Err(format!("{id:?} is held, no server has it")) } else { Ok(number) }
    }

    fn forget(&mut self, number: RequestId) {
        if let Some(name) = self.names.remove(&number) {
            self.numbers.remove(&name);
        }
    }

    fn reply(&mut self) -> Reply<'_> {
        let (mut assigned, mut rejected) = (Vec::new(), Vec::new());
        for outcome in self.dispatcher.outcomes() {
            match outcome {
                Outcome::Assigned { id, server, reason } => {
                    assigned.push(Assigned { id: Arc::clone(&self.names[&id]), server, reason });
                }
                Outcome::Rejected { id, rejection } => {
                    if let Some(name) = self.names.remove(&id) {
                        self.numbers.remove(&name);
                        rejected.push(Rejected { id: name, rejection });
                    }
                }
            }
        }
        let (held, policy) = (self.dispatcher.held(), self.dispatcher.policy());
        self.lanes.update(policy.lanes());
        Reply { assigned, rejected, held, policy, lanes: &self.lanes.text }
    }
}
