//! K: how many servers are lanes for long prefills.
//!
//! The number follows the long requests' share of the work, with hysteresis, and is corrected by what happens: a request
//! that is held for long asks for one more. So a wrong cost model, or long requests that come in a burst, cannot starve
//! them.

/// The share must leave the present number's range by so many servers.
const HYSTERESIS_SERVERS: f64 = 0.15;

/// A request that was held for so long asks for one more lane.
const PATIENCE_S: f64 = 10.0;

/// No two lanes are added on request within this time.
const PAUSE_S: f64 = 5.0;

/// A lane that was added on request is taken back when nothing was held for so long.
const CALM_S: f64 = 60.0;

/// The number of lanes, in force until the next [`update`](Self::update).
#[derive(Debug)]
pub struct LaneCount {
    pin: Option<usize>,
    by_share: usize,
    on_request: usize,
    last_added_s: Option<f64>,
    /// When something was held last, or a lane was taken back.
    last_held_s: f64,
    may_add: bool,
    count: usize,
}

impl LaneCount {
    /// Nothing known of the traffic yet. With a pin the number is always that, as far as there are servers.
    #[must_use]
    pub fn new(pin: Option<usize>) -> Self {
        Self { pin, by_share: 1, on_request: 0, last_added_s: None, last_held_s: 0.0, may_add: false, count: 0 }
    }

    /// The number in force.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether the number is pinned.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pin.is_some()
    }

    /// Adapts the number to the servers that are up, the long share of the work, and what has been held since when.
    pub fn update(&mut self, servers: usize, long_share: f64, held_since_s: Option<f64>, now_s: f64) {
        // One server has to do everything, so it is no lane.
        let most = servers.saturating_sub(1);
        if let Some(pin) = self.pin {
            self.count = pin.min(most);
            return;
        }
        self.follow_share(servers, long_share);
        self.by_share = self.by_share.clamp(1, most.max(1));
        self.on_request = self.on_request.min(most.saturating_sub(self.by_share));
        self.may_add = self.by_share + self.on_request < most;
        self.follow_requests(held_since_s, now_s);
        self.count = (self.by_share + self.on_request).min(most);
    }

    fn follow_share(&mut self, servers: usize, long_share: f64) {
        let wanted = super::profile::as_f64(servers as u64) * long_share;
        let present = super::profile::as_f64(self.by_share as u64);
        if wanted > present + HYSTERESIS_SERVERS || wanted < present - 1.0 - HYSTERESIS_SERVERS {
            self.by_share = ceil(wanted);
        }
    }

    /// When a lane is added because something is held since then; `None` when none can be.
    #[must_use]
    pub fn next_addition_s(&self, held_since_s: f64) -> Option<f64> {
        let patience_ends_s = held_since_s + PATIENCE_S;
        let at_s = self.last_added_s.map_or(patience_ends_s, |added_s| patience_ends_s.max(added_s + PAUSE_S));
        (self.pin.is_none() && self.may_add).then_some(at_s)
    }

    fn follow_requests(&mut self, held_since_s: Option<f64>, now_s: f64) {
        let Some(held_since_s) = held_since_s else {
            if self.on_request > 0 && now_s - self.last_held_s >= CALM_S {
                self.on_request -= 1;
                self.last_held_s = now_s;
            }
            return;
        };
        self.last_held_s = now_s;
        if self.next_addition_s(held_since_s).is_some_and(|at_s| now_s >= at_s) {
            self.on_request += 1;
            self.last_added_s = Some(now_s);
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of the servers, at least 0")]
fn ceil(servers: f64) -> usize {
    servers.max(0.0).ceil() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(lanes: &mut LaneCount, servers: usize, shares: &[f64]) -> Vec<usize> {
        let count = |share: &f64| {
            lanes.update(servers, *share, None, 0.0);
            lanes.count()
        };
        shares.iter().map(count).collect()
    }

    #[test]
    fn the_number_follows_the_share_of_the_work_within_its_bounds() {
        let mut lanes = LaneCount::new(None);
        assert_eq!(counts(&mut lanes, 8, &[0.0, 0.3, 0.87, 1.0, 0.0]), [1, 3, 7, 7, 1]);
    }

    #[test]
    fn a_small_change_around_a_whole_number_changes_nothing() {
        let mut lanes = LaneCount::new(None);
        assert_eq!(counts(&mut lanes, 10, &[0.2, 0.21, 0.216, 0.2, 0.19, 0.186, 0.184]), [2, 2, 3, 3, 3, 3, 2]);
    }

    #[test]
    fn one_server_and_none_have_no_lane() {
        let mut lanes = LaneCount::new(None);
        assert_eq!([0, 1, 2].map(|servers| counts(&mut lanes, servers, &[1.0])[0]), [0, 0, 1]);
    }

    #[test]
    fn a_pin_is_kept_as_far_as_there_are_servers() {
        let mut lanes = LaneCount::new(Some(2));
        assert_eq!([8, 3, 2, 1].map(|servers| counts(&mut lanes, servers, &[1.0])[0]), [2, 2, 1, 0]);
    }

    #[test]
    fn long_holding_adds_a_lane_and_calm_takes_it_back() {
        let mut lanes = LaneCount::new(None);
        let mut after = |held_since_s: Option<f64>, now_s: f64| {
            lanes.update(4, 0.2, held_since_s, now_s);
            lanes.count()
        };
        assert_eq!([after(Some(0.0), 9.9), after(Some(0.0), 10.0)], [1, 2]);
        assert_eq!([after(Some(0.0), 14.9), after(Some(0.0), 15.0), after(Some(0.0), 99.0)], [2, 3, 3]);
        assert_eq!([after(None, 158.0), after(None, 159.0), after(None, 218.0), after(None, 219.0)], [3, 2, 2, 1]);
    }
}
