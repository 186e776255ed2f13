//! What becomes of a request.

use super::fleet::{Fleet, Reach};
use super::hold::WaitsFor;
use super::policy::{Holding, Policy, Verdict};
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
    /// It goes nowhere, and is forgotten.
    Rejected {
        /// The request.
        id: RequestId,
        /// Why.
        rejection: Rejection,
    },
}

/// Why a request goes nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// No server that is large enough is up, and it cannot wait (any longer) for one.
    NoServer,
    /// It was tried on every server that is up and large enough.
    Excluded,
    /// No server is large enough for it.
    TooLong {
        /// The largest `max_model_len` there is, in tokens.
        max_model_len: u64,
    },
    /// Nothing is free, and as much is held as may be.
    HoldFull,
    /// Nothing became free in the time for which it may be held.
    HeldTooLong,
}

/// What is to happen with a request now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Assign { server: usize, reason: &'static str },
    Wait(WaitsFor),
    Reject(Rejection),
}

/// Asks the policy, if there is a server that it may choose.
pub(super) fn decide(
    fleet: &Fleet,
    policy: &mut dyn Policy,
    request: &Request,
    holding: Holding,
    now_s: f64,
) -> Decision {
    match fleet.reach(request) {
        Reach::Open => match policy.place(fleet, request, holding, now_s) {
            Verdict::Assign { server, reason } => Decision::Assign { server, reason },
            Verdict::Hold => Decision::Wait(WaitsFor::Turn),
        },
        Reach::Closed => Decision::Wait(WaitsFor::Server),
        Reach::Down if holding == Holding::Over => Decision::Reject(Rejection::NoServer),
        Reach::Down => Decision::Wait(WaitsFor::Server),
        Reach::Excluded => Decision::Reject(Rejection::Excluded),
        Reach::TooLong { max_model_len } => Decision::Reject(Rejection::TooLong { max_model_len }),
    }
}
