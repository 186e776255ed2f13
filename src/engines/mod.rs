//! What the servers' engines say of themselves.
//!
//! Only while the policy is one by work, and unless it is switched off, each server that is in force is asked on connections
//! of its own, server by server, so that one that hangs holds up nobody:
//!
//! - `GET /metrics` every `engines.interval`: how many requests run and wait there, and how full its KV cache is. What is
//!   beyond our own count is work from elsewhere, and decisions are told of it. How far the two differ is a metric.
//! - `GET /v1/models` at start, when the server has come back, and every minute: the longest request that it takes.
//!
//! What is known of one server is its [`EngineReport`]. The servers' counts of prompt tokens teach the estimator, where
//! responses carry no usage ([`PromptTally`]). An answer that is late, wrong or missing changes nothing: neither health
//! nor loads are touched, and what was reported counts less and less until it counts nothing.
//!
//! ```text
//! rounds --> turns, of one server --> question: GET, bounded in time and bytes
//!                |                    metrics, models: bytes to numbers; pure
//!                +--> report (kept by each server) --> status
//!                +--> Live -> Balancer: work from elsewhere, max_model_len
//!                +--> tally <-- proxy: requests begin, have a first token --> TokenEstimator
//! ```

mod metrics;
mod models;
mod question;
mod report;
mod rounds;
mod tally;
mod turns;

pub use report::{EngineReport, Observed};
pub use rounds::service;
pub use tally::{Counters, Lesson, PromptTally, Tallied};
