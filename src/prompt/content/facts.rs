//! What the fields of a body say beside the prompt.

use std::sync::Arc;

use super::field::Field;
use super::prefix;
use crate::prompt::measure::{SoundString, is_truthy, number};
use crate::prompt::{Budget, Endpoint};

/// The longest model name that is read, in bytes.
pub const MAX_MODEL_BYTES: usize = 256;

/// What `/v1/completions` and `/inference/v1/generate` generate when nothing is said.
const DEFAULT_COMPLETION_TOKENS: u64 = 16;

/// What the fields of a body say. Of a field that is there several times the last counts, as it does in Python.
#[derive(Debug, Default)]
pub(in crate::prompt) struct Facts {
    pub(super) model: Option<Arc<str>>,
    pub(super) is_streamed: bool,
    pub(super) ignore_eos: bool,
    pub(super) min_tokens: Option<u64>,
    pub(in crate::prompt) truncate_prompt_tokens: Option<u64>,
    /// Messages, and calls of tools within them.
    pub(in crate::prompt) messages: u64,
    /// Prompts in a list of them.
    pub(super) sequences: u64,
    pub(super) queries: u64,
    pub(super) documents: u64,
    /// Size of embedded tokens.
    pub(in crate::prompt) embeddings_bytes: u64,
    pub(in crate::prompt) has_tools: bool,
    /// Up to where the fields are that [`measure`](crate::prompt::measure) reads; 0 when there are none.
    pub(super) measured_until: usize,
    /// Long strings of prompts that a strict reader takes for strings, too.
    pub(super) sound_strings: Vec<SoundString>,
    cache_salt: u64,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    choices: Option<u64>,
    best_of: Option<u64>,
}

impl Facts {
    /// Notes a string, of which `raw` is what stands between the quotes.
    pub(super) fn set_text(&mut self, field: Field, raw: &[u8]) {
        match field {
            Field::Model => {
                let name = (raw.len() <= MAX_MODEL_BYTES).then(|| std::str::from_utf8(raw).ok()).flatten();
                self.model = name.map(|name| unescaped(name).into());
            }
            Field::CacheSalt => self.cache_salt = prefix::hash(raw),
            // pydantic takes these for true.
            Field::Stream => {
                let words: [&[u8]; 6] = [b"true", b"1", b"yes", b"on", b"t", b"y"];
                self.is_streamed = words.iter().any(|word| raw.eq_ignore_ascii_case(word));
            }
            Field::IgnoreEos => self.ignore_eos = !raw.is_empty(),
            _ => self.set_tokens(field, raw),
        }
    }

    /// Notes a number, `true`, `false`, `null` or what is written like one.
    pub(super) fn set_literal(&mut self, field: Field, literal: &[u8]) {
        let text = std::str::from_utf8(literal).unwrap_or("null");
        match field {
            Field::Model => self.model = None,
            Field::CacheSalt => self.cache_salt = 0,
            Field::Stream => self.is_streamed = is_truthy(text),
            Field::IgnoreEos => self.ignore_eos = is_truthy(text),
            _ => self.set_tokens(field, literal),
        }
    }

    fn set_tokens(&mut self, field: Field, literal: &[u8]) {
        let text = std::str::from_utf8(literal).unwrap_or_default();
        let value = number(text.trim()).map(|tokens| Budget::from_fractional_tokens(tokens).millitokens() / 1_000);
        match field {
            Field::MaxTokens => self.max_tokens = value,
            Field::MaxCompletionTokens => self.max_completion_tokens = value,
            Field::MaxOutputTokens => self.max_output_tokens = value,
            Field::MinTokens => self.min_tokens = value,
            // -1 is "as much as the model takes".
            Field::TruncatePromptTokens => self.truncate_prompt_tokens = value.filter(|tokens| *tokens > 0),
            Field::Choices => self.choices = value,
            Field::BestOf => self.best_of = value,
            _ => {}
        }
    }

    /// How many prompts there are.
    pub(in crate::prompt) fn prompts(&self) -> u64 {
        self.sequences.max(1)
    }

    /// How often the query of a request is part of a prompt: with each document, unless there are several queries,
    /// which go with one document each.
    pub(in crate::prompt) fn query_times(&self) -> u64 {
        if self.queries > 1 { 1 } else { self.documents.max(self.sequences).max(1) }
    }

    /// How many answers are generated for each prompt.
    pub(super) fn choices(&self) -> u64 {
        self.choices.unwrap_or(1).max(self.best_of.unwrap_or(1)).max(1)
    }

    /// The most tokens that one answer may have.
    pub(super) fn answer_limit(&self, endpoint: Endpoint) -> Option<u64> {
        match endpoint {
            Endpoint::Chat | Endpoint::Invocations => self.max_completion_tokens.or(self.max_tokens),
            Endpoint::Completions | Endpoint::Generate => self.max_tokens.or(Some(DEFAULT_COMPLETION_TOKENS)),
            Endpoint::Responses => self.max_output_tokens,
            Endpoint::Messages => self.max_tokens,
            Endpoint::Embeddings
            | Endpoint::Pooling
            | Endpoint::Score
            | Endpoint::Rerank
            | Endpoint::Classify
            | Endpoint::Tokenize => Some(0),
            Endpoint::Audio | Endpoint::Decisions | Endpoint::Models | Endpoint::Other => {
                self.max_completion_tokens.or(self.max_tokens)
            }
        }
    }

    /// What tells apart requests that share no cache though they begin alike.
    pub(super) fn world(&self) -> u64 {
        let model = self.model.as_deref().unwrap_or_default();
        prefix::mixed(prefix::hash(model.as_bytes()) ^ self.cache_salt, 0x9e37_79b9_7f4a_7c15)
    }
}

/// What a string says; as it stands when it is no JSON.
fn unescaped(raw: &str) -> String {
    if raw.contains('\\') {
        serde_json::from_str(&format!("\"{raw}\"")).unwrap_or_else(|_| raw.to_owned())
    } else {
        raw.to_owned()
    }
}
