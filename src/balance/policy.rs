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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::RedirectTuning;
    use crate::prompt::Budget;

    fn demand(body_bytes: u64, max_tokens: f64, ignore_eos: bool) -> Demand {
        Demand { body_bytes, max_tokens: Budget::from_fractional_tokens(max_tokens), ignore_eos }
    }

    #[test]
    fn plain_mode_adds_bytes_and_half_the_budget_or_all_of_it() {
        let tokens = |demand| Policy::ReferencePlain.load_of(&demand).tokens();
        assert_eq!(tokens(Demand::of_bytes(100)), 108.0);
        assert_eq!(tokens(demand(100, 10.5, false)), 105.25);
        assert_eq!(tokens(demand(100, 10.5, true)), 110.5);
    }

    #[test]
    fn bucket_mode_counts_a_quarter_of_the_bytes_whatever_the_budget() {
        let buckets = Buckets::equal_width(10, 1, RedirectTuning::default()).unwrap();
        let tokens = |demand| Policy::ReferenceBucket(buckets.clone()).load_of(&demand).tokens();
        assert_eq!(tokens(demand(3, 1e9, true)), 0.75);
        assert_eq!(tokens(demand(131_072, 0.0, false)), 32_768.0);
    }

    #[test]
    fn no_size_overflows() {
        let most = demand(u64::MAX, f64::MAX, true);
        assert_eq!(Policy::ReferencePlain.load_of(&most).millitokens(), u64::MAX);
    }
}
