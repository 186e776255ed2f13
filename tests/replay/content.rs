//! Reading what a body asks of an engine: bounds that hold for any bytes.

use tidegate::prompt::{Content, Endpoint, MAX_BUDGET_TOKENS, MAX_PREFIX_BLOCKS, TokenEstimator, content, usage};

/// Reads a body for endpoints of each kind.
///
/// # Panics
/// When more is found in a body than there is room for.
pub(crate) fn check(body: &[u8]) {
    let bytes = body.len() as u64;
    for endpoint in [Endpoint::Chat, Endpoint::Completions, Endpoint::Rerank] {
        let found = content(endpoint, body);
        let Content { token_ids, images, audios, videos, messages, prompts, embeddings_bytes, .. } = found;
        for (count, what) in [
            (token_ids, "token ids"),
            (u64::from(images) + u64::from(audios) + u64::from(videos), "media"),
            (messages, "messages"),
            (prompts, "prompts"),
            (embeddings_bytes, "embeddings"),
        ] {
            assert!(count <= bytes + 1, "{count} {what} in {bytes} bytes");
        }
        // A query counts once for each document.
        assert!(found.text.as_array().iter().sum::<u64>() <= 4 * (bytes + 1).pow(2), "{:?}", found.text);
        assert!(found.prefix.len() <= MAX_PREFIX_BLOCKS);
        assert!(found.output_tokens_limit.is_none_or(|limit| limit <= MAX_BUDGET_TOKENS));
        assert_eq!(content(endpoint, body), found, "the same bytes are the same");

        let mut estimator = TokenEstimator::default();
        let estimate = estimator.estimate(endpoint, &found);
        let counted = usage(body).map_or(1, |usage| usage.prompt_tokens);
        assert!(estimator.learn(&estimate, counted).relative().is_finite());
        assert!(estimator.prompt_tokens(endpoint, &found) >= 1);
    }
}
