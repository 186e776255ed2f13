//! The book: what runs on each server, as sums that every event keeps exact.
//!
//! A request passes through two states. *Waiting* (from dispatch to its first token) it counts as prefill work;
//! *streaming* (from its first token to its end) as a decoding stream with its context. Prefill work is gone at the first
//! token: a server that merely decodes is not busy for a prompt.
//!
//! All sums are integers (nanoseconds, tokens), so what was added is exactly what is taken away, in any order, and an
//! idle server is at exactly zero. Nothing here walks over requests; each event costs a constant amount (amortised).

use std::collections::VecDeque;

use super::by_id::ById;
use super::profile::as_f64;
use super::request::RequestId;

/// A head of line is never believed to be more than this far along: while it has no first token it is not done.
const MOST_DONE_SHARE: f64 = 0.9;

/// More than any prefill takes; keeps sums far from overflow whatever a client asks for.
const MOST_PREFILL_S: f64 = 1e6;

/// More tokens than any prompt has; same reason.
pub(super) const MOST_TOKENS: u64 = 1 << 32;

/// What is entered for a request when it is dispatched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    /// Predicted prefill seconds.
    pub prefill_s: f64,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Whether it counts as long.
    pub is_long: bool,
}

/// What is known of an active request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Active {
    /// Where it runs. A server that has been removed has a number beyond those that there are (see [`Book::reshape`]).
    pub server: usize,
    /// Predicted prefill time in nanoseconds.
    pub prefill_ns: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Tokens that it has generated, as far as was seen.
    pub generated_tokens: u64,
    /// When its first token was seen.
    pub first_token_at_s: Option<f64>,
    /// Whether it counts as long.
    pub is_long: bool,
    /// Its place in the order of dispatch. Tells it from an earlier request of the same number.
    sequence: u64,
}

/// The sums of one server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Requests without a first token.
    pub waiting: u64,
    /// Long ones among them.
    pub waiting_long: u64,
    /// Their prefill time in nanoseconds.
    pub waiting_ns: u64,
    /// Tokens of their prompts.
    pub waiting_tokens: u64,
    /// D: requests with a first token.
    pub streams: u64,
    /// C: their prompts and what they have generated, in tokens.
    pub context_tokens: u64,
}

impl Sums {
    /// Requests that the server has.
    #[must_use]
    pub fn active(&self) -> u64 {
        self.waiting + self.streams
    }

    /// Tokens of KV cache that the server needs for what it has.
    #[must_use]
    pub fn kv_tokens(&self) -> u64 {
        self.waiting_tokens + self.context_tokens
    }
}

#[derive(Debug, Clone, Copy)]
struct Head {
    sequence: u64,
    prefill_ns: u64,
    since_s: f64,
}

#[derive(Debug, Default)]
struct Page {
    sums: Sums,
    head: Option<Head>,
    /// Dispatched requests in order; what has left is skipped when it comes to the front.
    line: VecDeque<(u64, RequestId)>,
}

/// All active requests, by server.
#[derive(Debug, Default)]
pub struct Book {
    pages: Vec<Page>,
    active: ById<Active>,
    next_sequence: u64,
}

impl Book {
    /// An empty book of so many servers.
    #[must_use]
    pub fn new(servers: usize) -> Self {
        Self { pages: (0..servers).map(|_| Page::default()).collect(), ..Self::default() }
    }

    /// The sums of a server.
    #[must_use]
    pub fn sums(&self, server: usize) -> &Sums {
        &self.pages[server].sums
    }

    /// W: prefill seconds that wait on a server, the head of line counted as far along as it can be by now.
    #[must_use]
    pub fn waiting_s(&self, server: usize, now_s: f64) -> f64 {
        let page = &self.pages[server];
        let Some(head) = page.head else { return 0.0 };
        let done_s = (now_s - head.since_s).clamp(0.0, MOST_DONE_SHARE * seconds(head.prefill_ns));
        seconds(page.sums.waiting_ns) - done_s
    }

    /// What is known of a request, while it is active.
    #[must_use]
    pub fn active(&self, id: RequestId) -> Option<&Active> {
        self.active.get(&id)
    }

    /// The number of active requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.active.len()
    }

    /// Whether nothing runs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Enters a request that goes to a server. It must not be active yet.
    pub fn dispatch(&mut self, id: RequestId, server: usize, entry: Entry, now_s: f64) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let active = Active {
            server,
            prefill_ns: nanoseconds(entry.prefill_s),
            prompt_tokens: entry.prompt_tokens.min(MOST_TOKENS),
            generated_tokens: 0,
            first_token_at_s: None,
            is_long: entry.is_long,
            sequence,
        };
        let replaced = self.active.insert(id, active);
        assert!(replaced.is_none(), "a request is dispatched once");
        let page = &mut self.pages[server];
        page.sums.waiting += 1;
        page.sums.waiting_long += u64::from(active.is_long);
        page.sums.waiting_ns += active.prefill_ns;
        page.sums.waiting_tokens += active.prompt_tokens;
        page.line.push_back((sequence, id));
        if page.head.is_none() {
            page.head = Some(Head { sequence, prefill_ns: active.prefill_ns, since_s: now_s });
        }
    }

    /// Notes a request's first token; `false` when it is not active or had one.
    pub fn first_token(&mut self, id: RequestId, now_s: f64) -> bool {
        let Some(active) = self.active.get_mut(&id).filter(|active| active.first_token_at_s.is_none()) else {
            return false;
        };
        active.first_token_at_s = Some(now_s);
        active.generated_tokens = 1;
        let active = *active;
        self.stop_waiting(&active, now_s);
        let sums = &mut self.pages[active.server].sums;
        sums.streams += 1;
        sums.context_tokens += active.prompt_tokens + active.generated_tokens;
        true
    }

    /// Notes how many tokens a request has generated so far. Fewer than before is ignored; the first one is implied.
    pub fn tokens(&mut self, id: RequestId, generated: u64, now_s: f64) {
        self.first_token(id, now_s);
        if let Some(active) = self.active.get_mut(&id) {
            let generated = generated.clamp(active.generated_tokens, active.generated_tokens.max(MOST_TOKENS));
            self.pages[active.server].sums.context_tokens += generated - active.generated_tokens;
            active.generated_tokens = generated;
        }
    }

    /// Strikes a request out, however it ended; `None` when it was not active.
    pub fn end(&mut self, id: RequestId, now_s: f64) -> Option<Active> {
        let active = self.active.remove(&id)?;
        if active.first_token_at_s.is_some() {
            let sums = &mut self.pages[active.server].sums;
            sums.streams -= 1;
            sums.context_tokens -= active.prompt_tokens + active.generated_tokens;
        } else {
            self.stop_waiting(&active, now_s);
        }
        Some(active)
    }

    /// Orders the servers anew: `origins` has, for each from now on, its place before, or `None` for one that was not there. No
    /// place may stand twice.
    ///
    /// What runs on a server that is gone is kept behind the others until it ends, so that every end finds its entry. The only
    /// walk over requests there is; lists of servers change rarely.
    pub fn reshape(&mut self, origins: &[Option<usize>]) {
        let mut places: Vec<Option<usize>> = vec![None; self.pages.len()];
        let mut old: Vec<Option<Page>> = std::mem::take(&mut self.pages).into_iter().map(Some).collect();
        for (place, origin) in origins.iter().enumerate() {
            let kept = origin.and_then(|origin| Some((origin, old.get_mut(origin)?.take()?)));
            if let Some((origin, page)) = kept {
                places[origin] = Some(place);
                self.pages.push(page);
            } else {
                self.pages.push(Page::default());
            }
        }
        for (origin, page) in old.into_iter().enumerate() {
            if let Some(page) = page.filter(|page| page.sums.active() > 0) {
                places[origin] = Some(self.pages.len());
                self.pages.push(page);
            }
        }
        for active in self.active.values_mut() {
            active.server = places[active.server].expect("a page on which something runs is kept");
        }
    }

    fn stop_waiting(&mut self, left: &Active, now_s: f64) {
        let page = &mut self.pages[left.server];
        page.sums.waiting -= 1;
        page.sums.waiting_long -= u64::from(left.is_long);
        page.sums.waiting_ns -= left.prefill_ns;
        page.sums.waiting_tokens -= left.prompt_tokens;
        let (active, sums) = (&self.active, &page.sums);
        let waits = |&(sequence, id): &(u64, RequestId)| {
            active.get(&id).is_some_and(|one| one.sequence == sequence && one.first_token_at_s.is_none())
        };
        if page.head.is_some_and(|head| head.sequence == left.sequence) {
            while page.line.front().is_some_and(|entry| !waits(entry)) {
                page.line.pop_front();
            }
            page.head = page.line.front().map(|(sequence, id)| {
                let prefill_ns = active[id].prefill_ns;
                Head { sequence: *sequence, prefill_ns, since_s: now_s }
            });
        }
        // Behind a head that never moves, what has left would pile up.
        if as_f64(page.line.len() as u64) > 32.0 + 2.0 * as_f64(sums.waiting) {
            page.line.retain(waits);
        }
    }
}

/// Seconds of a number of nanoseconds.
pub(super) fn seconds(nanoseconds: u64) -> f64 {
    as_f64(nanoseconds) * 1e-9
}

/// Whole nanoseconds, from 0 to [`MOST_PREFILL_S`]. NaN is 0.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before; NaN goes to 0")]
pub(super) fn nanoseconds(seconds: f64) -> u64 {
    (seconds.clamp(0.0, MOST_PREFILL_S) * 1e9).round() as u64
}

#[cfg(test)]
mod tests;
