//! Counting tokens with a model's own tokenizer.
//!
//! Behind the cargo feature `exact-tokens`, which is off by default: it adds some 25 crates and takes a model's
//! `tokenizer.json` into memory, several times its size. Estimates are mostly good enough, see the documentation.
//!
//! A tokenizer reads a few megabytes a second, a thousandth of what [`content`](crate::prompt::content) does. A text of more than
//! [`MAX_IN_PLACE_BYTES`](super::MAX_IN_PLACE_BYTES) should be counted on a thread that may block, or not at all.

use thiserror::Error;
use tokenizers::Tokenizer;

use crate::prompt::content::{Facts, Medium, Sink, read};
use crate::prompt::estimate::{EMBEDDING_BYTES, template_tokens};
use crate::prompt::{Endpoint, MediaCosts};

/// A tokenizer cannot be read, or cannot be used on a text.
#[derive(Debug, Error)]
#[error("{step}: {reason}")]
pub struct TokenizerError {
    step: &'static str,
    reason: tokenizers::Error,
}

/// Counts tokens with the tokenizer of a model.
#[derive(Debug)]
pub struct ExactCounter {
    tokenizer: Tokenizer,
    media: MediaCosts,
}

impl ExactCounter {
    /// Reads a model's `tokenizer.json`. Takes about a second.
    ///
    /// # Errors
    /// When it is none.
    pub fn from_json(tokenizer: &[u8], media: MediaCosts) -> Result<Self, TokenizerError> {
        let unreadable = |reason| TokenizerError { step: "this is no tokenizer.json", reason };
        let mut tokenizer = Tokenizer::from_bytes(tokenizer).map_err(unreadable)?;
        tokenizer.with_padding(None).with_truncation(None).map_err(unreadable)?;
        Ok(Self { tokenizer, media })
    }

    /// Tokens of a text, without those that begin and end one.
    ///
    /// # Errors
    /// When the tokenizer cannot encode the text.
    pub fn text_tokens(&self, text: &str) -> Result<u64, TokenizerError> {
        let encoded = self.tokenizer.encode_fast(text, false);
        let encoded =
            encoded.map_err(|reason| TokenizerError { step: "the tokenizer cannot encode a text", reason })?;
        Ok(encoded.len() as u64)
    }

    /// Tokens of the prompt of a request. Exact for text and token ids; what chat templates add and media are counted
    /// as in an [`Estimate`](crate::prompt::Estimate). Never 0.
    ///
    /// # Errors
    /// When the tokenizer cannot encode a text.
    pub fn prompt_tokens(&self, endpoint: Endpoint, body: &[u8]) -> Result<u64, TokenizerError> {
        if endpoint == Endpoint::Audio {
            return Ok(self.media.audio_tokens.max(1));
        }
        let mut sum =
            Sum { counter: self, text: Vec::new(), is_query: false, tokens: 0, query_tokens: 0, failed: None };
        let facts = read(body, &mut sum).unwrap_or_else(|| {
            sum.text(body);
            sum.end_text();
            Facts::default()
        });
        if let Some(error) = sum.failed {
            return Err(error);
        }
        let queries = sum.query_tokens.saturating_mul(facts.query_times());
        let template = template_tokens(facts.messages, facts.prompts(), facts.has_tools);
        let embedded = facts.embeddings_bytes.div_ceil(EMBEDDING_BYTES);
        let tokens = [queries, template, embedded].into_iter().fold(sum.tokens, u64::saturating_add);
        let most = facts.truncate_prompt_tokens.map_or(u64::MAX, |each| each.saturating_mul(facts.prompts()));
        Ok(tokens.min(most).max(1))
    }
}

/// Adds up what a body holds.
struct Sum<'a> {
    counter: &'a ExactCounter,
    text: Vec<u8>,
    is_query: bool,
    tokens: u64,
    query_tokens: u64,
    failed: Option<TokenizerError>,
}

impl Sink for Sum<'_> {
    fn text(&mut self, piece: &[u8]) {
        self.text.extend_from_slice(piece);
    }

    fn end_text(&mut self) {
        match self.counter.text_tokens(&String::from_utf8_lossy(&self.text)) {
            Ok(tokens) if self.is_query => self.query_tokens = self.query_tokens.saturating_add(tokens),
            Ok(tokens) => self.tokens = self.tokens.saturating_add(tokens),
            Err(error) => self.failed = Some(error),
        }
        self.text.clear();
    }

    fn role(&mut self, _role: &[u8]) {}

    fn token_id(&mut self, _id: u32) {
        self.tokens = self.tokens.saturating_add(1);
    }

    fn medium(&mut self, medium: Medium, _source: &[u8]) {
        let tokens = match medium {
            Medium::Image => self.counter.media.image_tokens,
            Medium::Audio => self.counter.media.audio_tokens,
            Medium::Video => self.counter.media.video_tokens,
        };
        self.tokens = self.tokens.saturating_add(tokens);
    }

    fn query(&mut self, is_query: bool) {
        self.is_query = is_query;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A tokenizer of whole words, which knows four.
    fn counter() -> ExactCounter {
        let tokenizer = json!({
            "version": "1.0", "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
            "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "tide": 1, "and": 2, "gate": 3}, "unk_token": "[UNK]"},
        });
        let media = MediaCosts { image_tokens: 100, audio_tokens: 10, video_tokens: 1_000 };
        ExactCounter::from_json(tokenizer.to_string().as_bytes(), media).expect("it is a tokenizer")
    }

    #[test]
    fn what_is_no_tokenizer_is_refused() {
        for bytes in [&b""[..], b"{}", b"[]", b"\xff"] {
            let error = ExactCounter::from_json(bytes, MediaCosts::default()).unwrap_err();
            assert!(error.to_string().starts_with("this is no tokenizer.json: "), "{error}");
        }
    }

    #[test]
    fn texts_ids_and_media_are_added_up() {
        let counter = counter();
        for (endpoint, body, tokens) in [
            (Endpoint::Completions, json!({"prompt": "tide and gate and unknown"}), 5),
            (Endpoint::Completions, json!({"prompt": ["tide", "gate and"]}), 3),
            (Endpoint::Completions, json!({"prompt": [[1, 2, 3], [4]]}), 4),
            (Endpoint::Completions, json!({"prompt": ""}), 1),
            (Endpoint::Rerank, json!({"query": "tide gate", "documents": ["gate", "tide and"]}), 7),
            (Endpoint::Embeddings, json!({"input": "tide and gate", "truncate_prompt_tokens": 2}), 2),
            (
                Endpoint::Chat,
                json!({"messages": [{"role": "user", "content": [
                    {"type": "text", "text": "tide"}, {"type": "image_url", "image_url": {"url": "data:,"}},
                ]}]}),
                1 + 100 + 5 + 4,
            ),
        ] {
            let counted = counter.prompt_tokens(endpoint, body.to_string().as_bytes()).expect("words can be counted");
            assert_eq!(counted, tokens, "{body}");
        }
        assert_eq!(counter.prompt_tokens(Endpoint::Audio, b"--boundary").unwrap(), 10);
        assert_eq!(counter.prompt_tokens(Endpoint::Chat, b"tide gate").unwrap(), 2);
    }
}
