//! What the servers and the balancer did in a window of time: recorded to be drawn.

use super::engine::Activity;

/// A stretch of simulated time, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// Its begin.
    pub from_s: f64,
    /// Its end.
    pub to_s: f64,
}

/// Something that holds from one moment to the next change.
#[derive(Debug, Clone, PartialEq)]
pub struct Change<T> {
    /// Since when, in seconds; never before the window.
    pub at_s: f64,
    /// What.
    pub state: T,
}

/// What a server does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerState {
    /// What its steps compute.
    pub activity: Activity,
    /// Short requests on it that have not had their first token.
    pub short_waiting: usize,
}

/// What the balancer does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BalancerState {
    /// Requests that are held.
    pub held: usize,
    /// The servers that are lanes.
    pub lanes: Vec<usize>,
}

/// A recording. Each list begins with the state at the begin of the window.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// When.
    pub window: Window,
    /// For each server, in order of time.
    pub servers: Vec<Vec<Change<ServerState>>>,
    /// In order of time.
    pub balancer: Vec<Change<BalancerState>>,
}

impl Timeline {
    /// Nothing has happened: all servers are idle.
    pub(super) fn new(window: Window, servers: usize, lanes: Vec<usize>) -> Self {
        let at_s = window.from_s;
        let idle = ServerState { activity: Activity::Idle, short_waiting: 0 };
        Self {
            window,
            servers: vec![vec![Change { at_s, state: idle }]; servers],
            balancer: vec![Change { at_s, state: BalancerState { held: 0, lanes } }],
        }
    }

    pub(super) fn note_server(&mut self, now_s: f64, server: usize, activity: Activity, short_waiting: usize) {
        note(&mut self.servers[server], self.window, now_s, &ServerState { activity, short_waiting });
    }

    pub(super) fn note_balancer(&mut self, now_s: f64, held: usize, lanes: &[usize]) {
        let last = &self.balancer[self.balancer.len() - 1].state;
        if last.held != held || last.lanes != lanes {
            note(&mut self.balancer, self.window, now_s, &BalancerState { held, lanes: lanes.to_vec() });
        }
    }
}

fn note<T: Clone + PartialEq>(changes: &mut Vec<Change<T>>, window: Window, now_s: f64, state: &T) {
    let last = changes.len() - 1;
    if now_s >= window.to_s || changes[last].state == *state {
        return;
    }
    if now_s <= changes[last].at_s.max(window.from_s) {
        // Before the window, or at the same moment: only the last word counts.
        changes[last].state = state.clone();
    } else {
        changes.push(Change { at_s: now_s, state: state.clone() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_begins_with_what_was_and_has_the_changes_within() {
        let mut timeline = Timeline::new(Window { from_s: 10.0, to_s: 20.0 }, 1, vec![]);
        let mut note = |now_s, activity| timeline.note_server(now_s, 0, activity, 0);
        note(1.0, Activity::LongPrefill);
        note(9.0, Activity::Decoding);
        note(12.0, Activity::Decoding);
        note(13.0, Activity::ShortPrefill);
        note(13.0, Activity::LongPrefill);
        note(20.0, Activity::Idle);
        let changes: Vec<_> = timeline.servers[0].iter().map(|change| (change.at_s, change.state.activity)).collect();
        assert_eq!(changes, [(10.0, Activity::Decoding), (13.0, Activity::LongPrefill)]);
    }

    #[test]
    fn what_is_held_is_recorded_with_the_lanes() {
        let mut timeline = Timeline::new(Window { from_s: 0.0, to_s: 9.0 }, 1, vec![]);
        timeline.note_balancer(1.0, 2, &[0]);
        timeline.note_balancer(2.0, 2, &[0]);
        timeline.note_balancer(3.0, 0, &[0]);
        let held: Vec<_> = timeline.balancer.iter().map(|change| (change.at_s, change.state.held)).collect();
        assert_eq!(held, [(0.0, 0), (1.0, 2), (3.0, 0)]);
    }
}
