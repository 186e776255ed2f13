//! From the bytes of a request to what the policy needs to know of it.
//!
//! Pure: no I/O, no clock, no Pingora types. Measuring never fails: a body that is no JSON is still proxied (the
//! server's own 400 is the right answer) and is measured by its size.

mod demand;
mod endpoint;
mod measure;

pub use demand::{Budget, DEFAULT_MAX_TOKENS, Demand, MAX_BUDGET_TOKENS, Work};
pub use endpoint::Endpoint;
pub use measure::measure;
