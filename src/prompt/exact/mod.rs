//! Counting tokens with a model's own tokenizer, which takes the cargo feature `exact-tokens`.

#[cfg(not(feature = "exact-tokens"))]
mod absent;
#[cfg(feature = "exact-tokens")]
mod counter;

#[cfg(not(feature = "exact-tokens"))]
pub use absent::{ExactCounter, TokenizerError};
#[cfg(feature = "exact-tokens")]
pub use counter::{ExactCounter, TokenizerError};

/// The largest body that is counted in about a millisecond, in bytes.
pub const MAX_IN_PLACE_BYTES: usize = 4 * 1024;
