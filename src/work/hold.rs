//! The requests that wait in the balancer: long ones for their turn on a lane, any one while no server takes it.
//!
//! Late binding: a held prompt costs nothing here and everything in the queue of an engine.
//!
//! # Order
//!
//! Those that wait for their turn are ordered by `P - 0.3 * seconds waited`, those that wait for a server by age. Requests
//! that may go to the same servers stand in one line: when the first of a line has to wait on, so do all behind it, and
//! nobody behind it is asked about. Requests that may go elsewhere stand in another line, and do not wait for it.

use std::collections::{BTreeMap, BTreeSet};

use super::by_id::ById;
use super::request::{Request, RequestId};

/// How much of its waiting time a request gets ahead by.
const AGEING: f64 = 0.3;

/// Bounds on what is held.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HoldLimits {
    /// Most requests.
    pub max_requests: usize,
    /// Most bytes of their bodies.
    pub max_bytes: u64,
    /// For how long a request is held, in seconds.
    pub max_wait_s: f64,
}

impl Default for HoldLimits {
    /// A thousand requests, 1 GiB, two minutes.
    fn default() -> Self {
        Self { max_requests: 1_000, max_bytes: 1 << 30, max_wait_s: 120.0 }
    }
}

/// What a held request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitsFor {
    /// The policy keeps it back: a long prompt, until it is its turn on a lane.
    Turn,
    /// None of the servers that it may go to takes it now.
    Server,
}

/// A request that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// The request.
    pub request: Request,
    /// When it came.
    pub since_s: f64,
    /// Its predicted prefill seconds when it came.
    pub prefill_s: f64,
    /// Whether it counted as long when it came.
    pub is_long: bool,
    /// What it waits for.
    pub waits_for: WaitsFor,
    /// The least `max_model_len` that has room for it.
    pub(super) size_class: u64,
}

impl Held {
    /// Its place in its line, without what is the same for all.
    fn rank(&self) -> Seconds {
        match self.waits_for {
            // P - 0.3 * (now - since) is ordered as P + 0.3 * since: the order never changes while requests wait.
            WaitsFor::Turn => Seconds(self.prefill_s + AGEING * self.since_s),
            WaitsFor::Server => Seconds(self.since_s),
        }
    }

    fn line(&self) -> LineKey {
        LineKey {
            waits_for: self.waits_for,
            size_class: self.size_class,
            excluded: self.request.excluded.clone().into_boxed_slice(),
        }
    }
}

/// A time that can be put in order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Seconds(pub(super) f64);

impl Eq for Seconds {}

impl PartialOrd for Seconds {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Seconds {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Requests of one line may go to the same servers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct LineKey {
    waits_for: WaitsFor,
    size_class: u64,
    excluded: Box<[usize]>,
}

#[derive(Debug, Default)]
struct Line {
    order: BTreeSet<(Seconds, RequestId)>,
    /// The round in which its first has to wait on.
    blocked_in: Option<u64>,
}

/// What is held, in order.
#[derive(Debug, Default)]
pub struct Hold {
    held: ById<Held>,
    lines: BTreeMap<LineKey, Line>,
    by_age: BTreeSet<(Seconds, RequestId)>,
    turns_by_age: BTreeSet<(Seconds, RequestId)>,
    bytes: u64,
    round: u64,
}

impl Hold {
    /// How many are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Bytes of the bodies that are held.
    #[must_use]
    pub fn body_bytes(&self) -> u64 {
        self.bytes
    }

    /// All that is held, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Held> {
        self.by_age.iter().map(|(_, id)| &self.held[id])
    }

    /// Whether there is room for one more request.
    #[must_use]
    pub fn has_room(&self, body_bytes: u64, limits: &HoldLimits) -> bool {
        self.held.len() < limits.max_requests && self.bytes.saturating_add(body_bytes) <= limits.max_bytes
    }

    /// Whether this request is held.
    #[must_use]
    pub fn contains(&self, id: RequestId) -> bool {
        self.held.contains_key(&id)
    }

    /// What is held under this number.
    #[must_use]
    pub fn get(&self, id: RequestId) -> Option<&Held> {
        self.held.get(&id)
    }

    /// The one that has been held for longest.
    #[must_use]
    pub fn oldest(&self) -> Option<&Held> {
        self.by_age.first().map(|(_, id)| &self.held[id])
    }

    /// Since when the oldest of those that wait for their turn is held.
    #[must_use]
    pub fn turn_since_s(&self) -> Option<f64> {
        self.turns_by_age.first().map(|(since, _)| since.0)
    }

    /// The first of every line of those that wait for their turn.
    pub(super) fn next_turns(&self) -> impl Iterator<Item = &Held> {
        let lines = self.lines.iter().filter(|(key, _)| key.waits_for == WaitsFor::Turn);
        lines.filter_map(|(_, line)| line.order.first()).map(|(_, id)| &self.held[id])
    }

    /// Begins a round of asking: no line is known to be blocked.
    pub(super) fn begin_round(&mut self) {
        self.round += 1;
    }

    /// The next one that waits for this, of the lines that are not blocked in this round.
    pub(super) fn next(&self, waits_for: WaitsFor) -> Option<&Held> {
        let lines =
            self.lines.iter().filter(|(key, line)| key.waits_for == waits_for && line.blocked_in != Some(self.round));
        let firsts = lines.filter_map(|(_, line)| line.order.first());
        firsts.min().map(|(_, id)| &self.held[id])
    }

    /// Whoever stands in line with this one has to wait on in this round.
    pub(super) fn block(&mut self, id: RequestId) {
        let Some(key) = self.held.get(&id).map(Held::line) else { return };
        if let Some(line) = self.lines.get_mut(&key) {
            line.blocked_in = Some(self.round);
        }
    }

    /// Holds a request. It must not be held yet.
    pub(super) fn put(&mut self, held: Held) {
        let id = held.request.id;
        self.bytes += held.request.body_bytes;
        self.lines.entry(held.line()).or_default().order.insert((held.rank(), id));
        self.by_age.insert((Seconds(held.since_s), id));
        if held.waits_for == WaitsFor::Turn {
            self.turns_by_age.insert((Seconds(held.since_s), id));
        }
        let replaced = self.held.insert(id, held);
        assert!(replaced.is_none(), "a request is held once");
    }

    /// Takes a request out; `None` when it is not held.
    pub(super) fn take(&mut self, id: RequestId) -> Option<Held> {
        let held = self.held.remove(&id)?;
        let key = held.line();
        if let Some(line) = self.lines.get_mut(&key) {
            line.order.remove(&(held.rank(), id));
            if line.order.is_empty() {
                self.lines.remove(&key);
            }
        }
        self.by_age.remove(&(Seconds(held.since_s), id));
        self.turns_by_age.remove(&(Seconds(held.since_s), id));
        self.bytes -= held.request.body_bytes;
        Some(held)
    }

    /// From now on a held request waits for something else. Its age stays.
    pub(super) fn now_waits_for(&mut self, id: RequestId, waits_for: WaitsFor) {
        if let Some(held) = self.take(id) {
            self.put(Held { waits_for, ..held });
        }
    }

    /// Changes every held request, and puts all in their lines anew.
    pub(super) fn change_all(&mut self, mut change: impl FnMut(&mut Held)) {
        let all: Vec<Held> = self.held.values().cloned().collect();
        *self = Self { round: self.round, ..Self::default() };
        for mut held in all {
            change(&mut held);
            self.put(held);
        }
    }
}

#[cfg(test)]
mod tests;
