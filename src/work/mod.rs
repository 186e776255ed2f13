//! Routing by work: what a server has still to do, in seconds, and where one request more hurts least.
//!
//! # In words
//!
//! The proxy sees requests come, their first tokens, how much they have written, and their ends. From that the [`Book`]
//! keeps, per server, the prefill seconds that wait and the streams that decode. A [`Profile`] turns token counts into
//! seconds; [`Learned`] knows what is usual in this traffic. A [`Policy`] decides about one request at a time:
//!
//! - [`LeastWork`]: where it costs least;
//! - [`Lanes`]: the same for short requests; long ones go one at a time to the last servers in order, and wait in the
//!   balancer for their turn.
//!
//! `docs/policy.md` has the formulas and a worked example.
//!
//! # Ownership
//!
//! ```text
//! Dispatcher            events in, outcomes out
//!   Box<dyn Policy>     decides; Lanes has its LaneCount
//!   Hold                what waits here, in order
//!   Fleet               what policies read; the servers, with what each may be given
//!     Profile           tokens to seconds
//!     Calibration       learns its coefficients, if asked to
//!     Book              what runs, exact sums per server
//!     Learned           tau, m, share of long work, arrival rate
//!     PrefixCache       per server: blocks it is believed to hold
//! ```
//!
//! # Invariants
//!
//! - The sums of a server are those of its active requests, and exactly zero when it is idle.
//! - Nothing is held while a lane is free for the next in order, nor, where all servers but one are lanes, for longer than seven times
//!   its prefill while the last one has room and no long prefill, nor with one server up that takes requests; a server that is not up, is
//!   closed, was tried, or is too small gets nothing.
//! - Memory is bounded by the requests that are active or held, and by constants.
//! - A decision costs a few nanoseconds per server and nothing per active request.
//!
//! Everything here is pure: no I/O, no clock (the time is an argument), no Pingora types.

mod book;
mod by_id;
mod calibration;
mod cost;
mod dispatcher;
mod evening;
mod explain;
mod fleet;
mod hold;
mod lane_choice;
mod lane_count;
mod lanes;
mod learned;
mod least_work;
mod observation;
mod outcome;
mod policy;
mod prefix;
mod profile;
mod request;
mod server;
mod window;

#[cfg(test)]
mod tests;

pub use book::{Active, Book, Entry, Sums};
pub use by_id::{ById, IdHasher};
pub use calibration::{Calibration, Coefficients, FirstToken, Learning};
pub use cost::{Cost, Costs};
pub use dispatcher::{Dispatcher, Repeated, Settings};
pub use explain::Explained;
pub use fleet::{Fleet, Prefill, Reach};
pub use hold::{Held, Hold, HoldLimits, WaitsFor};
pub use lane_count::LaneCount;
pub use lanes::Lanes;
pub use learned::Learned;
pub use least_work::LeastWork;
pub use observation::{EngineState, Observation};
pub use outcome::{Outcome, Rejection};
pub use policy::{Holding, Policy, Verdict};
pub use prefix::{DEFAULT_PREFIX_BYTES, PrefixCache};
pub use profile::{LLAMA3_8B_A100, LLAMA3_70B_TP8, PROFILES, Profile};
pub use request::{BLOCK_TOKENS, Request, RequestId};
pub use server::{Admission, Obstacle, Prefers, ServerSpec, ServerTraits};
pub use window::{MedianWindow, MinuteSums, Work};
