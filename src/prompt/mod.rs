//! From the bytes of a request to what the policy needs to know of it.
//!
//! Pure: no I/O, no clock, no Pingora types. Measuring never fails: a body that is no JSON is still proxied (the
//! server's own 400 is the right answer) and is measured by its size.
//!
//! There are two measures. [`measure`] counts as the Python example does, for the reference policies: bytes.
//! [`content`] finds what an engine gets to see, [`TokenEstimator`] says how many tokens that is and learns from
//! [`usage`], for the policies that route by work.

mod content;
mod demand;
mod endpoint;
mod estimate;
mod exact;
mod measure;
mod text;
mod usage;
mod work;

pub use content::{
    Content, MAX_MODEL_BYTES, MAX_PREFIX_BLOCKS, PREFIX_BLOCK_BYTES, content, measured_content, session_blocks,
};
pub use demand::{Budget, DEFAULT_MAX_TOKENS, Demand, MAX_BUDGET_TOKENS, Work};
pub use endpoint::Endpoint;
pub use estimate::{Estimate, Learned, LengthError, MAX_MODELS, MediaCosts, PromptClass, TokenEstimator};
pub use exact::{ExactCounter, MAX_IN_PLACE_BYTES, TokenizerError};
pub use measure::measure;
pub use text::{FEATURES, Feature, TextCounts};
pub use usage::{Usage, usage};
