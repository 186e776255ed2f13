//! How many tokens a prompt has, without a tokenizer: built-in ratios, and factors on them that are learned.

mod correction;
mod costs;
mod errors;
#[expect(clippy::module_inception, reason = "the thing itself")]
mod estimate;
mod estimator;
mod ratios;

pub use costs::MediaCosts;
#[cfg(feature = "exact-tokens")]
pub(super) use costs::{EMBEDDING_BYTES, template_tokens};
pub use errors::LengthError;
pub use estimate::{Estimate, PromptClass};
pub use estimator::{Learned, MAX_MODELS, TokenEstimator};

#[cfg(test)]
mod tests;
