//! What is known of one server, and what follows from it. Pure: the time is passed in.
//!
//! ```text
//!            faults in a row, bad probes, leaving
//!   healthy ------------------------------------> out
//!      ^ answers that began well     one fault     | the time is up, good probes
//!      +---------------- probation <---------------+
//!                           ^ has just joined
//! ```

use std::time::{Duration, Instant};

use crate::config::Health as Rules;

/// A server that says that it is full is left alone for so long; it is not at fault, and the pause does not grow.
pub(super) const SATURATED_PAUSE: Duration = Duration::from_secs(1);

/// What a request met that is the server's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No connection came about.
    Connect,
    /// The connection broke before the first byte of the answer's body.
    Reset,
    /// 500, 502 or 504.
    Status,
    /// The first token did not come in time.
    FirstByte,
    /// The answer broke, reported an error or fell silent in the middle.
    Stream,
}

impl Fault {
    /// The name in metrics, status and logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Reset => "reset",
            Self::Status => "status",
            Self::FirstByte => "first_byte",
            Self::Stream => "stream",
        }
    }
}

/// What has come to be known of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The body of a good answer has begun; comments do not count.
    Began,
    /// A good answer has ended as it should.
    Answered,
    /// A request met a fault.
    Fault(Fault),
    /// It says that it is full (429, 503).
    Saturated,
    /// It says that it is shutting down.
    Leaving,
    /// A probe was answered as it should be.
    ProbePassed,
    /// A probe was not.
    ProbeFailed {
        /// Whether no connection came about.
        is_refused: bool,
    },
    /// Time has passed.
    Tick,
}

/// How much a server is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It serves.
    Healthy,
    /// It gets few requests until it has proved itself.
    Probation,
    /// It gets none.
    Out,
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 3] = [Self::Healthy, Self::Probation, Self::Out];

    /// The name in metrics, status and logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Probation => "probation",
            Self::Out => "out",
        }
    }
}

/// Why a server is in its phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It was there from the start and is given credit.
    Started,
    /// It has joined while Tidegate ran.
    Joined,
    /// Its answers began well.
    Proved,
    /// Probes: bad ones took it out, good ones brought it back.
    Probes,
    /// Requests met faults, of which this was the last.
    Faults(Fault),
    /// It said that it was full.
    Saturated,
    /// It said that it was shutting down.
    Leaving,
    /// It was out for its time.
    TimeServed,
}

impl Cause {
    /// The name in metrics, status and logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Joined => "joined",
            Self::Proved => "proved",
            Self::Probes => "probes",
            Self::Faults(fault) => fault.label(),
            Self::Saturated => "saturated",
            Self::Leaving => "leaving",
            Self::TimeServed => "time_served",
        }
    }
}

/// A server has gone from one phase to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Where it was.
    pub from: Phase,
    /// For how long.
    pub lasted: Duration,
    /// Where it is.
    pub to: Phase,
    /// Why.
    pub cause: Cause,
}

/// What is known of one server.
#[derive(Debug)]
pub struct Record {
    phase: Phase,
    cause: Cause,
    since: Instant,
    /// When an ejection ends.
    until: Option<Instant>,
    /// Probes say that it is down.
    is_down: bool,
    /// In a row: bad probes, good probes.
    probes_failed: u32,
    probes_passed: u32,
    /// In a row: faults between good answers, streams that waited too long with none begun between, "I am full".
    faults: u32,
    overdue: u32,
    saturated: u32,
    /// In a row: connections that did not come about, of probes too.
    refused: u32,
    /// Answers that began well in probation.
    proofs: u32,
    /// Ejections since it was last healthy for long.
    ejections: u32,
    /// How often it was taken out in all.
    times_out: u64,
}

impl Record {
    /// A server in its first phase.
    #[must_use]
    pub fn new(phase: Phase, cause: Cause, now: Instant) -> Self {
        Self {
            phase,
            cause,
            since: now,
            until: None,
            is_down: false,
            probes_failed: 0,
            probes_passed: 0,
            faults: 0,
            overdue: 0,
            saturated: 0,
            refused: 0,
            proofs: 0,
            ejections: 0,
            times_out: 0,
        }
    }

    /// The phase it is in.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Why it is in its phase.
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// When it came into its phase.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Bad probes in a row.
    #[must_use]
    pub fn probes_failed(&self) -> u32 {
        self.probes_failed
    }

    /// How often it was taken out in all, whatever for.
    #[must_use]
    pub fn times_out(&self) -> u64 {
        self.times_out
    }

    /// Whether nobody accepts connections there, as far as is known.
    #[must_use]
    pub fn is_refusing(&self) -> bool {
        self.phase == Phase::Out && self.refused > 0
    }

    /// Whether probes should hurry: faults say that it is out of order but may not take it out by themselves, or a
    /// server that was down has begun to answer.
    #[must_use]
    pub fn is_in_doubt(&self, rules: &Rules) -> bool {
        let limit = rules.passive.as_ref().map_or(u32::MAX, |passive| passive.failures);
        match self.phase {
            Phase::Out => self.is_down && self.probes_passed > 0,
            Phase::Healthy | Phase::Probation => self.faults >= limit,
        }
    }

    /// Whether faults are enough to take it out, if the group can spare it.
    #[must_use]
    pub fn has_enough(&self, fault: Fault, failures: u32) -> bool {
        let count = if fault == Fault::FirstByte { self.overdue } else { self.faults };
        self.phase != Phase::Out && (count >= failures || self.phase == Phase::Probation)
    }

    /// When an ejection ends.
    #[must_use]
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Takes note of something. `may_eject` says whether the group can spare the server.
    pub fn note(&mut self, signal: Signal, rules: &Rules, may_eject: bool, now: Instant) -> Option<Change> {
        match signal {
            Signal::Began => self.began(rules, now),
            Signal::Answered => {
                (self.faults, self.saturated) = (0, 0);
                None
            }
            Signal::Fault(fault) => self.fault(fault, rules, may_eject, now),
            Signal::Saturated => self.is_full(rules, may_eject, now),
            Signal::Leaving => {
                let quiet = rules.passive.as_ref()?.max_ejection;
                self.until = Some(now + quiet);
                self.go(Phase::Out, Cause::Leaving, now)
            }
            Signal::ProbePassed => self.probe_passed(rules, now),
            Signal::ProbeFailed { is_refused } => self.probe_failed(is_refused, rules, now),
            Signal::Tick => self.tick(rules, now),
        }
    }

    fn began(&mut self, rules: &Rules, now: Instant) -> Option<Change> {
        (self.overdue, self.refused) = (0, 0);
        if self.phase != Phase::Probation {
            return None;
        }
        self.proofs += 1;
        if self.proofs < rules.probation.successes { None } else { self.go(Phase::Healthy, Cause::Proved, now) }
    }

    fn fault(&mut self, fault: Fault, rules: &Rules, may_eject: bool, now: Instant) -> Option<Change> {
        let passive = rules.passive.as_ref()?;
        if fault == Fault::Connect {
            self.refused = self.refused.saturating_add(1);
        }
        let count = if fault == Fault::FirstByte { &mut self.overdue } else { &mut self.faults };
        *count = count.saturating_add(1);
        if !self.has_enough(fault, passive.failures) || !may_eject {
            return None;
        }
        // It begins anew after it was good for long.
        if self.phase == Phase::Healthy && now.duration_since(self.since) > passive.max_ejection {
            self.ejections = 0;
        }
        let time = passive.base_ejection.saturating_mul(1 << self.ejections.min(20)).min(passive.max_ejection);
        self.ejections = self.ejections.saturating_add(1);
        self.until = Some(now + time);
        self.go(Phase::Out, Cause::Faults(fault), now)
    }

    fn is_full(&mut self, rules: &Rules, may_eject: bool, now: Instant) -> Option<Change> {
        let passive = rules.passive.as_ref()?;
        self.saturated = self.saturated.saturating_add(1);
        let is_enough = self.saturated >= passive.failures || self.phase == Phase::Probation;
        if self.phase == Phase::Out || !is_enough || !may_eject {
            return None;
        }
        self.until = Some(now + SATURATED_PAUSE.min(passive.max_ejection));
        self.go(Phase::Out, Cause::Saturated, now)
    }

    fn probe_passed(&mut self, rules: &Rules, now: Instant) -> Option<Change> {
        let active = rules.active.as_ref()?;
        (self.probes_failed, self.refused) = (0, 0);
        self.probes_passed = self.probes_passed.saturating_add(1);
        if self.is_down && self.probes_passed >= active.successes {
            self.is_down = false;
            // It was seen down and is back: what was wrong before is over, whatever time was left.
            self.until = None;
            return self.go(Phase::Probation, Cause::Probes, now);
        }
        None
    }

    fn probe_failed(&mut self, is_refused: bool, rules: &Rules, now: Instant) -> Option<Change> {
        let active = rules.active.as_ref()?;
        self.probes_passed = 0;
        self.probes_failed = self.probes_failed.saturating_add(1);
        if is_refused {
            self.refused = self.refused.saturating_add(1);
        }
        if self.probes_failed < active.failures {
            return None;
        }
        self.is_down = true;
        if self.phase == Phase::Out { None } else { self.go(Phase::Out, Cause::Probes, now) }
    }

    fn tick(&mut self, rules: &Rules, now: Instant) -> Option<Change> {
        // Who is not asked any more cannot be down by probes.
        self.is_down &= rules.active.is_some();
        let is_over = self.until.is_none_or(|until| until <= now);
        if self.phase != Phase::Out || self.is_down || !is_over {
            return None;
        }
        self.go(Phase::Probation, Cause::TimeServed, now)
    }

    fn go(&mut self, to: Phase, cause: Cause, now: Instant) -> Option<Change> {
        let change = Change { from: self.phase, lasted: now.duration_since(self.since), to, cause };
        self.cause = cause;
        if to != Phase::Out {
            self.until = None;
        }
        if change.from == to {
            return None;
        }
        (self.phase, self.since) = (to, now);
        self.times_out += u64::from(to == Phase::Out);
        (self.proofs, self.faults, self.overdue, self.saturated) = (0, 0, 0, 0);
        Some(change)
    }
}

#[cfg(test)]
mod tests;
