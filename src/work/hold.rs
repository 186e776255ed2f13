//! The long requests that wait in the balancer for a lane, or any request while no server is up.
//!
//! Late binding: a held prompt costs nothing here and everything in the queue of an engine.

use std::collections::{BTreeSet, HashMap};

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

/// A request that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// The request.
    pub request: Request,
    /// When it came.
    pub since_s: f64,
    /// Its place: `pw - 0.3 x waited`, without what is the same for all.
    rank: Seconds,
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

/// What is held, in order.
#[derive(Debug, Default)]
pub struct Hold {
    held: HashMap<RequestId, Held>,
    by_rank: BTreeSet<(Seconds, RequestId)>,
    by_age: BTreeSet<(Seconds, RequestId)>,
    bytes: u64,
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

    /// Since when the oldest is held.
    #[must_use]
    pub fn oldest_since_s(&self) -> Option<f64> {
        self.by_age.first().map(|(since, _)| since.0)
    }

    /// The one that has been held for longest.
    #[must_use]
    pub fn oldest(&self) -> Option<&Held> {
        self.by_age.first().map(|(_, id)| &self.held[id])
    }

    /// The one that is next.
    #[must_use]
    pub fn first(&self) -> Option<&Held> {
        self.by_rank.first().map(|(_, id)| &self.held[id])
    }

    /// What is held under this number.
    pub(super) fn get(&self, id: RequestId) -> Option<&Held> {
        self.held.get(&id)
    }

    /// All that is held, the next one first.
    pub(super) fn in_order(&self) -> Vec<RequestId> {
        self.by_rank.iter().map(|(_, id)| *id).collect()
    }

    /// Holds a request with so much prefill.
    pub fn put(&mut self, request: Request, prefill_s: f64, now_s: f64) {
        // pw - 0.3 * (now - since) is ordered as pw + 0.3 * since: the order never changes while requests wait.
        let rank = Seconds(prefill_s + AGEING * now_s);
        let id = request.id;
        self.bytes += request.body_bytes;
        self.by_rank.insert((rank, id));
        self.by_age.insert((Seconds(now_s), id));
        let replaced = self.held.insert(id, Held { request, since_s: now_s, rank });
        assert!(replaced.is_none(), "a request is held once");
    }

    /// Takes a request out; `None` when it is not held.
    pub fn take(&mut self, id: RequestId) -> Option<Request> {
        let Held { request, since_s, rank } = self.held.remove(&id)?;
        self.by_rank.remove(&(rank, id));
        self.by_age.remove(&(Seconds(since_s), id));
        self.bytes -= request.body_bytes;
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(entries: &[(u64, f64, f64)]) -> Hold {
        let mut hold = Hold::default();
        for (id, prefill_s, now_s) in entries {
            hold.put(Request::of_tokens(*id, 1_000), *prefill_s, *now_s);
        }
        hold
    }

    fn drain(mut hold: Hold) -> Vec<u64> {
        let next = |hold: &mut Hold| hold.first().map(|held| held.request.id).and_then(|id| hold.take(id));
        std::iter::from_fn(|| next(&mut hold)).map(|request| request.id.0).collect()
    }

    #[test]
    fn the_shortest_prefill_is_next_but_waiting_counts() {
        assert_eq!(drain(held(&[(1, 20.0, 0.0), (2, 5.0, 0.0), (3, 5.0, 10.0), (4, 7.5, 0.0)])), [2, 4, 3, 1]);
        assert_eq!(drain(held(&[(1, 20.0, 0.0), (2, 5.0, 60.0)])), [1, 2]);
    }

    #[test]
    fn room_is_bounded_by_number_and_bytes_and_given_back() {
        let mut hold = held(&[(1, 1.0, 0.0)]);
        let limits = HoldLimits { max_requests: 2, max_bytes: 10_000, ..HoldLimits::default() };
        assert!(hold.has_room(6_000, &limits) && !hold.has_room(6_001, &limits));
        hold.put(Request::of_tokens(2, 1), 1.0, 0.0);
        assert!(!hold.has_room(0, &limits));
        assert!(hold.take(RequestId(1)).is_some() && hold.take(RequestId(1)).is_none());
        assert!(hold.has_room(9_996, &limits) && !hold.has_room(9_997, &limits));
    }

    #[test]
    fn the_oldest_is_known_whatever_the_order() {
        let mut hold = held(&[(1, 50.0, 3.0), (2, 1.0, 4.0)]);
        assert_eq!((hold.oldest_since_s(), hold.oldest().map(|held| held.request.id)), (Some(3.0), Some(RequestId(1))));
        hold.take(RequestId(1));
        assert_eq!(hold.oldest_since_s(), Some(4.0));
    }
}
