//! What an engine has to do for a request, from what its body holds and how long the prompt is believed to be.

use super::{Content, Estimate, Work};

/// By how much an estimate is taken to be too low when a server is looked for that has room, in percent.
const ROOM_MARGIN_PERCENT: u64 = 10;

/// By how much an estimate has to be above what any server takes for the request to be refused, in percent: who refuses
/// has to be sure.
const REFUSAL_MARGIN_PERCENT: u64 = 30;

impl Work {
    /// The work of a request that belongs to no conversation with a name.
    #[must_use]
    pub fn new(content: Content, estimate: &Estimate) -> Self {
        let tokens = estimate.tokens();
        // Each prompt of a batch has a context of its own, and so has each answer. One token is always generated.
        let of_one = |tokens: u64| {
            let answer = content.answer_tokens_limit.unwrap_or(1);
            tokens.div_ceil(content.prompts.max(1)).saturating_add(answer)
        };
        let guessed = estimate.media_tokens().min(tokens);
        let estimated = tokens.saturating_sub(estimate.exact_tokens()).saturating_sub(guessed);
        let part = |percent: u64| estimated.saturating_mul(percent) / 100;
        Self {
            prompt_tokens: tokens,
            output_limit_tokens: content.output_tokens_limit,
            needed_tokens: Some(of_one(tokens.saturating_add(part(ROOM_MARGIN_PERCENT)))),
            surely_needed_tokens: of_one(tokens.saturating_sub(guessed).saturating_sub(part(REFUSAL_MARGIN_PERCENT))),
            is_streamed: content.is_streamed,
            prefix: content.prefix,
            session: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::{Endpoint, MediaCosts, TokenEstimator, content};

    fn needed(body: &serde_json::Value) -> (u64, u64, u64) {
        let content = content(Endpoint::Completions, body.to_string().as_bytes());
        let estimate = TokenEstimator::new(MediaCosts::default()).estimate(Endpoint::Completions, &content);
        let work = Work::new(content, &estimate);
        (work.prompt_tokens, work.needed_tokens.unwrap(), work.surely_needed_tokens)
    }

    #[test]
    fn what_is_counted_has_no_margin_and_what_is_estimated_has_one() {
        let ids: Vec<u32> = (0..100).collect();
        assert_eq!(needed(&serde_json::json!({ "prompt": ids, "max_tokens": 50 })), (100, 150, 150));
        let text = "the water stands high behind the gate and falls when it opens ".repeat(100);
        let (tokens, room, sure) = needed(&serde_json::json!({ "prompt": text, "max_tokens": 50 }));
        assert!(tokens > 800 && room > tokens + 50 && sure < tokens + 50, "{tokens}, {room}, {sure}");
    }

    #[test]
    fn each_prompt_of_a_batch_has_a_context_of_its_own() {
        let ids = vec![vec![1_u32; 60]; 5];
        assert_eq!(needed(&serde_json::json!({ "prompt": ids, "max_tokens": 50 })), (300, 110, 110));
    }
}
