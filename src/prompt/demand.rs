//! What a request asks of a server.

use std::sync::Arc;

/// The output budget counted when a request names none.
///
/// It is the default of `/v1/completions` in vLLM and of the Python example. For chat the true default is "until
/// the context is full", which nobody knows in advance; the reference policies count 16 there too.
pub const DEFAULT_MAX_TOKENS: Budget = Budget::from_tokens(16);

/// The largest output budget that is counted, in tokens: 2^32.
///
/// No model writes that much in one answer. The clamp keeps sums of loads exact and far from overflow whatever a
/// client writes into `max_tokens`.
pub const MAX_BUDGET_TOKENS: u64 = 1 << 32;

/// An output budget in thousandths of a token, so that fractional budgets (`"max_tokens": 10.5` is legal JSON) stay
/// exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Budget(u64);

impl Budget {
    /// The budget of so many whole tokens, at most [`MAX_BUDGET_TOKENS`].
    #[must_use]
    pub const fn from_tokens(tokens: u64) -> Self {
        let clamped = if tokens > MAX_BUDGET_TOKENS { MAX_BUDGET_TOKENS } else { tokens };
        Self(clamped * 1_000)
    }

    /// The budget of so many tokens, whole or not, rounded to the nearest thousandth.
    ///
    /// Never fails: below zero and NaN count as 0, above [`MAX_BUDGET_TOKENS`] (and infinity) as that.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "clamped to 0..=2^32 tokens before, which is exact; a float-to-integer cast takes NaN to 0"
    )]
    pub fn from_fractional_tokens(tokens: f64) -> Self {
        let clamped = tokens.clamp(0.0, MAX_BUDGET_TOKENS as f64);
        Self((clamped * 1_000.0).round() as u64)
    }

    /// The budget in thousandths of a token.
    #[must_use]
    pub const fn millitokens(self) -> u64 {
        self.0
    }
}

/// What the policy needs to know of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// Length of the request body as it came over the wire, in bytes. What the reference policies measure the prompt
    /// by: a quarter of it counts as tokens.
    pub body_bytes: u64,
    /// `max_tokens` of the body, or [`DEFAULT_MAX_TOKENS`].
    pub max_tokens: Budget,
    /// Whether the engine is told to run to `max_tokens` whatever it generates.
    pub ignore_eos: bool,
    /// What the policies by work need beside; `None` when nobody has looked for it.
    pub work: Option<Arc<Work>>,
}

/// What an engine has to do for a request, as far as its body tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// Tokens of the prompt, estimated.
    pub prompt_tokens: u64,
    /// Most tokens that may be generated; `None` when the body names no limit.
    pub output_limit_tokens: Option<u64>,
    /// Tokens that a server's context must have room for: the prompt with a margin for the estimate, and the output that
    /// was asked for. `None`: nobody knows.
    pub needed_tokens: Option<u64>,
    /// What of that is beyond doubt: when no server has room for it, the request can be refused.
    pub surely_needed_tokens: u64,
    /// Whether the answer is streamed, so that its first token is seen.
    pub is_streamed: bool,
    /// Hashes of the prompt's blocks of [`BLOCK_TOKENS`](crate::work::BLOCK_TOKENS) tokens, each standing for its block
    /// and all before it.
    pub prefix: Vec<u64>,
    /// The same for the conversation that the client names; see [`session_blocks`](super::session_blocks).
    pub session: Vec<u64>,
}

impl Demand {
    /// A request of so many bytes with nothing else known of it.
    #[must_use]
    pub const fn of_bytes(body_bytes: u64) -> Self {
        Self { body_bytes, max_tokens: DEFAULT_MAX_TOKENS, ignore_eos: false, work: None }
    }

    /// The length of the prompt in tokens, estimated: by its text when that was looked at, else a quarter of the bytes.
    #[must_use]
    pub fn prompt_tokens(&self) -> u64 {
        self.work.as_ref().map_or(self.body_bytes.div_ceil(4), |work| work.prompt_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_kept_to_the_nearest_thousandth() {
        for (tokens, millitokens) in [(10.5, 10_500), (0.1, 100), (0.3, 300), (1.001, 1_001), (0.0006, 1), (0.0004, 0)]
        {
            assert_eq!(Budget::from_fractional_tokens(tokens).millitokens(), millitokens, "{tokens}");
        }
    }

    #[test]
    fn whole_and_fractional_constructors_agree_up_to_the_clamp() {
        for tokens in [0_u32, 1, 16, 131_072, u32::MAX] {
            assert_eq!(Budget::from_fractional_tokens(f64::from(tokens)), Budget::from_tokens(tokens.into()));
        }
    }

    #[test]
    fn budgets_outside_the_range_are_clamped_to_its_ends() {
        let most = Budget::from_tokens(MAX_BUDGET_TOKENS);
        for tokens in [1e18, f64::MAX, f64::INFINITY] {
            assert_eq!(Budget::from_fractional_tokens(tokens), most, "{tokens}");
        }
        assert_eq!(Budget::from_tokens(u64::MAX), most);
        for tokens in [-0.0, -1.0, f64::NEG_INFINITY, f64::NAN] {
            assert_eq!(Budget::from_fractional_tokens(tokens), Budget::from_tokens(0), "{tokens}");
        }
    }
}
