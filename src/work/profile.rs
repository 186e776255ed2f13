//! What an engine can do: how long a prefill and a decode step take, and how much context it holds.

/// The coefficients of one engine (a server with all of its GPUs), in seconds and tokens.
///
/// The model of a step of vLLM's V1 engine: it computes all new tokens of the step (at most `budget_tokens`, prefill
/// chunks and one token per decoding stream), reads the context of every stream, and pays the quadratic part of attention
/// for prefill chunks:
///
/// ```text
/// step = o + max(a0, a1 + b * new tokens) + c * context tokens of the streams + d * (token pairs of the chunks)
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Profile {
    /// The name in the configuration and on the command line.
    pub name: &'static str,
    /// o: scheduling and other time of a step outside of the GPU.
    pub overhead_s: f64,
    /// a0: what no step is quicker than (reading the weights).
    pub floor_s: f64,
    /// a1: the constant part of a step that is bound by computing.
    pub base_s: f64,
    /// b: per new token.
    pub per_token_s: f64,
    /// c: per token of context that a decoding stream attends to.
    pub per_context_token_s: f64,
    /// d: per pair of a new token and a token before it.
    pub per_token_pair_s: f64,
    /// What a first token takes beyond the steps of its prefill, however long the prompt is: the network, reading the request.
    /// Learned; may be below zero when the first step is quicker than o + a0.
    pub latency_s: f64,
    /// B: most new tokens of a step (`max_num_batched_tokens`).
    pub budget_tokens: u64,
    /// Tokens that the KV cache holds.
    pub kv_tokens: u64,
}

/// Llama 3 8B in BF16 on one A100 80 GB. Derived from published measurements of vLLM (see `docs/policy.md`).
pub const LLAMA3_8B_A100: Profile = Profile {
    name: "llama3-8b-a100",
    overhead_s: 2.5e-3,
    floor_s: 10.4e-3,
    base_s: 8.2e-3,
    per_token_s: 66.1e-6,
    per_context_token_s: 0.086e-6,
    per_token_pair_s: 3.1e-9,
    latency_s: 0.0,
    budget_tokens: 8_192,
    kv_tokens: 420_000,
};

/// Llama 3 70B over eight A100 80 GB (tensor parallel). Same source.
pub const LLAMA3_70B_TP8: Profile = Profile {
    name: "llama3-70b-tp8",
    overhead_s: 3e-3,
    floor_s: 20e-3,
    base_s: 16e-3,
    per_token_s: 104e-6,
    per_context_token_s: 0.0273e-6,
    per_token_pair_s: 2.05e-9,
    latency_s: 0.0,
    budget_tokens: 8_192,
    kv_tokens: 1_330_000,
};

/// All named profiles, the default first.
pub const PROFILES: [Profile; 2] = [LLAMA3_8B_A100, LLAMA3_70B_TP8];

impl Profile {
    /// The profile of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        PROFILES.into_iter().find(|profile| profile.name == name)
    }

    /// The same engine, so many times as fast.
    #[must_use]
    pub fn at_speed(self, speed: f64) -> Self {
        Self {
            overhead_s: self.overhead_s / speed,
            floor_s: self.floor_s / speed,
            base_s: self.base_s / speed,
            per_token_s: self.per_token_s / speed,
            per_context_token_s: self.per_context_token_s / speed,
            per_token_pair_s: self.per_token_pair_s / speed,
            latency_s: self.latency_s / speed,
            ..self
        }
    }

    /// P(n, p): predicted seconds of prefilling `new` tokens after `cached` ones that the engine still has.
    ///
    /// ```text
    /// P = latency + chunks * o + max(a0, a1 * chunks + b * n) + d * n * (p + n / 2)        chunks = ceil(n / B)
    /// ```
    ///
    /// Not linear in the length: at 128k tokens a token costs several times as much as at 4k.
    #[must_use]
    pub fn prefill_s(&self, new: u64, cached: u64) -> f64 {
        // The last token of a prompt is always computed, whatever is cached.
        let new = new.max(1);
        let chunks = as_f64(new.div_ceil(self.budget_tokens));
        let (new, cached) = (as_f64(new), as_f64(cached));
        self.latency_s
            + chunks * self.overhead_s
            + self.floor_s.max(self.base_s * chunks + self.per_token_s * new)
            + self.per_token_pair_s * new * (cached + new / 2.0)
    }

    /// Predicted seconds of one decode step of `streams` streams that hold `context` tokens together.
    #[must_use]
    pub fn decode_step_s(&self, streams: u64, context: u64) -> f64 {
        self.mean_step_s(as_f64(streams), as_f64(context))
    }

    /// The same of numbers that are means.
    pub(super) fn mean_step_s(&self, streams: f64, context: f64) -> f64 {
        self.overhead_s
            + self.floor_s.max(self.base_s + self.per_token_s * streams)
            + self.per_context_token_s * context
    }

    /// What a stream over `context` tokens adds to every decode step beside it: b + c * context.
    #[must_use]
    pub fn stream_share_s(&self, context: u64) -> f64 {
        self.per_token_s + self.per_context_token_s * as_f64(context)
    }
}

/// Token counts are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of tokens and requests stay far below 2^53")]
pub(super) fn as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_found_by_name() {
        assert_eq!(Profile::named("llama3-70b-tp8"), Some(LLAMA3_70B_TP8));
        assert_eq!(Profile::named("gpt"), None);
    }

    #[test]
    fn a_short_prefill_is_never_below_the_floor() {
        let least = LLAMA3_8B_A100.overhead_s + LLAMA3_8B_A100.floor_s;
        assert!((LLAMA3_8B_A100.prefill_s(0, 0) - least).abs() < 1e-6);
        assert!((LLAMA3_8B_A100.prefill_s(1, 0) - least).abs() < 1e-6);
    }

    #[test]
    fn a_long_prompt_costs_more_than_its_length() {
        let per_token = |length: u64| LLAMA3_8B_A100.prefill_s(length, 0) / as_f64(length);
        let ratio = per_token(131_072) / per_token(4_096);
        assert!((3.0..4.5).contains(&ratio), "{ratio}");
        // By hand: 16 * 2.5 ms + 16 * 8.2 ms + 131072 * 66.1 us + 3.1 ns * 131072^2 / 2.
        assert!((LLAMA3_8B_A100.prefill_s(131_072, 0) - 35.464_2).abs() < 1e-3);
    }

    #[test]
    fn cached_tokens_cost_only_what_attends_to_them() {
        let (cold, warm) = (LLAMA3_8B_A100.prefill_s(65_536, 0), LLAMA3_8B_A100.prefill_s(512, 65_024));
        assert!(warm < cold / 20.0 && warm > LLAMA3_8B_A100.prefill_s(512, 0));
    }

    #[test]
    fn a_decode_step_grows_with_streams_and_context() {
        let step = |streams, context| LLAMA3_70B_TP8.decode_step_s(streams, context);
        assert!((step(1, 0) - 23e-3).abs() < 1e-9);
        assert!((step(100, 0) - 29.4e-3).abs() < 1e-9);
        assert!((step(1, 100_000) - 25.73e-3).abs() < 1e-9);
        assert!((LLAMA3_70B_TP8.stream_share_s(1_000) - 131.3e-6).abs() < 1e-12);
    }
}
