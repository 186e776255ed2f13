//! Which servers can be trusted with requests.
//!
//! Two sources: questions of our own (`probe`, asked server by server in `rounds`, so that one that hangs holds up
//! nobody), and what requests meet (the proxy reports it as [`Signal`]s). What follows from them is decided in
//! [`Record`], which is pure. [`Health`] joins the two, knows the group (how many may be out, whether a limit on
//! probation makes sense), and tells [`Live`], the log and the metrics.
//!
//! Loads are never touched: a server that goes out and comes back keeps what is counted on it.

mod probe;
mod record;
mod rounds;

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

pub(crate) use probe::is_our_own;
pub use record::{Cause, Change, Fault, Phase, Record, Signal};
pub use rounds::service;

use crate::upstream::{InForce, Live, Server, Verdict};

/// Judges the servers that are in force.
#[derive(Debug)]
pub struct Health {
    live: Arc<Live>,
    /// Faults and changes are looked at one at a time: whether a group can spare a server depends on the others.
    judging: Mutex<()>,
}

impl Health {
    /// Judges these servers from now on.
    #[must_use]
    pub fn new(live: Arc<Live>) -> Self {
        let health = Self { live, judging: Mutex::new(()) };
        health.settle_all(&health.live.get());
        health
    }

    /// Takes note of something about a server. `detail` goes into the log when a change follows.
    pub fn note(&self, server: &Server, signal: Signal, detail: &str) {
        let in_force = self.live.get();
        let rules = &in_force.config.health;
        self.count(server, signal);
        if matches!(signal, Signal::Began | Signal::Answered) {
            // The way of every request: no word with the others unless something changes.
            let change = server.health().lock().note(signal, rules, false, Instant::now());
            if let Some(change) = change {
                let _one_at_a_time = self.judging.lock();
                self.announce(server, &change, detail, &in_force);
            }
            return;
        }
        let _one_at_a_time = self.judging.lock();
        let may_eject = may_eject(server, signal, &in_force);
        let change = server.health().lock().note(signal, rules, may_eject, Instant::now());
        match (change, signal, &rules.passive) {
            (Some(change), _, _) => self.announce(server, &change, detail, &in_force),
            (None, Signal::Fault(fault), Some(passive)) if !may_eject => {
                self.note_spared(server, fault, passive.failures);
            }
            _ => {}
        }
    }

    /// Counts that faults would have taken a server out, had its group not been short of servers.
    fn note_spared(&self, server: &Server, fault: Fault, failures: u32) {
        if !server.health().lock().has_enough(fault, failures) {
            return;
        }
        self.live.metrics().health().spared(server.name(), fault.label());
        log::debug!("server {} stays in service, its group cannot spare it: {}", server.name(), fault.label());
    }

    fn count(&self, server: &Server, signal: Signal) {
        let metrics = self.live.metrics().health();
        match signal {
            Signal::Fault(fault) => metrics.fault(server.name(), fault.label()),
            Signal::Saturated => metrics.fault(server.name(), Cause::Saturated.label()),
            Signal::Leaving => metrics.fault(server.name(), Cause::Leaving.label()),
            Signal::ProbePassed => metrics.probed(server.name(), "passed"),
            Signal::ProbeFailed { .. } => metrics.probed(server.name(), "failed"),
            Signal::Began | Signal::Answered | Signal::Tick => {}
        }
    }

    fn announce(&self, server: &Server, change: &Change, detail: &str, in_force: &InForce) {
        let [from, to] = [change.from, change.to].map(Phase::label);
        // Whole seconds are enough, except for what is shorter than one.
        let lasted = if change.lasted.as_secs() > 0 {
            format!("{} s", change.lasted.as_secs())
        } else {
            format!("{} ms", change.lasted.as_millis())
        };
        let cause = change.cause.label();
        let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
        let text = format!("server {} is {to}, was {from} for {lasted}: {cause}{detail}", server.name());
        if change.to == Phase::Out {
            log::warn!("{text}");
            self.live.metrics().health().ejected(server.name(), cause);
        } else {
            log::info!("{text}");
        }
        self.settle(server, in_force);
    }

    /// Puts the phases of a server's group in force.
    fn settle(&self, server: &Server, in_force: &InForce) {
        match group_of(server, in_force) {
            Some(group) => self.settle_group(&group),
            None => self.live.metrics().health().phase(server.name(), server.health().lock().phase().label()),
        }
    }

    /// Puts the phases of all servers in force.
    fn settle_all(&self, in_force: &InForce) {
        let _one_at_a_time = self.judging.lock();
        for group in in_force.groups() {
            self.settle_group(&group.map(Arc::clone).collect::<Vec<_>>());
        }
    }

    fn settle_group(&self, group: &[Arc<Server>]) {
        let max_in_flight = self.live.get().config.health.probation.max_in_flight;
        for server in group {
            let phase = server.health().lock().phase();
            // Without a healthy server beside it there is nobody else to take what a limit would keep away.
            let has_help = group.iter().any(|other| !Arc::ptr_eq(other, server) && is_healthy(other));
            let verdict = match phase {
                Phase::Healthy => Verdict::Healthy,
                Phase::Probation if has_help => Verdict::Probation { max_in_flight },
                Phase::Probation => Verdict::Probation { max_in_flight: u64::MAX },
                Phase::Out => Verdict::Out,
            };
            if server.standing().verdict != verdict {
                self.live.change_standing(server, |standing| standing.verdict = verdict);
            }
            self.live.metrics().health().phase(server.name(), phase.label());
        }
    }
}

fn is_healthy(server: &Server) -> bool {
    !server.standing().is_draining() && server.health().lock().phase() == Phase::Healthy
}

fn group_of(server: &Server, in_force: &InForce) -> Option<Vec<Arc<Server>>> {
    let mut groups = in_force.groups().map(|group| group.map(Arc::clone).collect::<Vec<_>>());
    groups.find(|group| group.iter().any(|member| member.number() == server.number()))
}

/// Whether the group can spare the server: not too many are out already, and, when it is only full, there is another
/// one to take its requests.
fn may_eject(server: &Server, signal: Signal, in_force: &InForce) -> bool {
    if !matches!(signal, Signal::Fault(_) | Signal::Saturated) {
        return false;
    }
    let (Some(group), Some(passive)) = (group_of(server, in_force), &in_force.config.health.passive) else {
        return false;
    };
    let others = || group.iter().filter(|other| other.number() != server.number());
    if signal == Signal::Saturated {
        return others().any(|other| is_healthy(other));
    }
    let out = others().filter(|other| other.health().lock().phase() == Phase::Out).count();
    is_within_share(out + 1, group.len(), passive.max_ejected_share)
}

#[expect(clippy::cast_precision_loss, reason = "a group has far fewer than 2^52 servers")]
fn is_within_share(out: usize, all: usize, share: f64) -> bool {
    out as f64 <= all as f64 * share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_spares_its_share_and_not_more() {
        let spared = |all, share| (1..=all).filter(|out| is_within_share(*out, all, share)).count();
        assert_eq!([1, 2, 3, 4, 10].map(|all| spared(all, 0.5)), [0, 1, 1, 2, 5]);
        assert_eq!((spared(3, 1.0), spared(3, 0.0)), (3, 0));
    }
}
