//! The policies: how much a request weighs, and among which servers it may choose.

use super::{Buckets, Load};
use crate::prompt::Demand;

/// How a request finds its group.
#[derive(Debug, Clone, PartialEq)]
pub enum Policy {
    /// The example's plain mode: no groups, a score of prompt bytes and output tokens, least active score wins.
    ReferencePlain,
    /// The example's dynamic-bucket mode: one group per bucket, a quarter token per byte. See [`Buckets`].
    ReferenceBucket(Buckets),
}

impl Policy {
    /// The name in the configuration, metrics and status.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::ReferencePlain => "reference_plain",
            Self::ReferenceBucket(_) => "reference_bucket",
        }
    }

    /// How much a request weighs while it runs.
    ///
    /// Plain mode: `bytes + 0.5 x max_tokens`, or `bytes + max_tokens` with `ignore_eos`. Bucket mode: `bytes / 4`
    /// (the example's estimate of prompt tokens); the output does not count.
    #[must_use]
    pub fn load_of(&self, demand: &Demand) -> Load {
        match self {
            Self::ReferencePlain => {
                let output = demand.max_tokens.millitokens();
                let output = if demand.ignore_eos { output } else { output / 2 };
                Load::from_millitokens(demand.body_bytes.saturating_mul(1_000).saturating_add(output))
            }
            Self::ReferenceBucket(_) => Load::from_millitokens(demand.body_bytes.saturating_mul(250)),
        }
    }
}
