//! From a body to the demand that is asked about.

use std::sync::Arc;

use http::Method;
use serde::Deserialize;

use crate::prompt::{self, Budget, DEFAULT_MAX_TOKENS, Demand, Endpoint, Work};
use crate::upstream::Live;

/// What is asked about.
#[derive(Debug)]
pub struct Asked {
    /// What the policy would be asked with.
    pub demand: Demand,
    /// The kind of endpoint that it was taken to be for.
    pub endpoint: Endpoint,
    /// Whether the prompt's length is estimated from a text.
    pub is_estimated: bool,
}

/// Why a body is no question.
#[derive(Debug, thiserror::Error)]
pub enum AskedError {
    /// It is no JSON object.
    #[error("expected a request's JSON body, or {{\"prompt_tokens\": N}}: {0}")]
    Json(#[from] serde_json::Error),
    /// It has neither a prompt nor its length.
    #[error("the body has no prompt: expected messages, prompt or input, or {{\"prompt_tokens\": N}}")]
    NoPrompt,
    /// Requests to this path are not measured.
    #[error("requests to {path} are not measured: they go to the least loaded server")]
    NotMeasured {
        /// The path.
        path: String,
    },
}

/// The fields by which a body is told from a length.
#[derive(Deserialize)]
struct Fields {
    prompt_tokens: Option<u64>,
    body_bytes: Option<u64>,
    max_tokens: Option<u64>,
    #[serde(default)]
    ignore_eos: bool,
    stream: Option<bool>,
    messages: Option<serde::de::IgnoredAny>,
    prompt: Option<serde::de::IgnoredAny>,
    input: Option<serde::de::IgnoredAny>,
}

impl Asked {
    /// Reads a request's body, or just `{"prompt_tokens": N}` with `max_tokens`, `ignore_eos`, `stream` and `body_bytes` (by
    /// default four for a token) if they matter. Without a path the body tells what it is for.
    ///
    /// # Errors
    /// When it is neither.
    pub fn read(live: &Live, path: Option<&str>, body: &[u8]) -> Result<Self, AskedError> {
        let fields: Fields = serde_json::from_slice(body)?;
        if let Some(tokens) = fields.prompt_tokens.filter(|_| !fields.has_prompt()) {
            return Ok(Self::of_length(tokens, &fields));
        }
        let endpoint = match path {
            Some(path) => {
                let endpoint = Endpoint::of(&Method::POST, path);
                let is_measured = endpoint.is_generation();
                is_measured.then_some(endpoint).ok_or_else(|| AskedError::NotMeasured { path: path.to_owned() })?
            }
            None if fields.messages.is_some() => Endpoint::Chat,
            None if fields.prompt.is_some() => Endpoint::Completions,
            None if fields.input.is_some() => Endpoint::Embeddings,
            None => return Err(AskedError::NoPrompt),
        };
        let (measured, content) = prompt::measured_content(endpoint, body);
        let estimate = live.estimator().lock().estimate(endpoint, &content);
        let work = Work::new(content, &estimate);
        let demand = Demand { work: Some(Arc::new(work)), ..measured };
        Ok(Self { demand, endpoint, is_estimated: true })
    }

    fn of_length(tokens: u64, fields: &Fields) -> Self {
        let answer_tokens = fields.max_tokens.unwrap_or(1);
        let work = Work {
            prompt_tokens: tokens,
            output_limit_tokens: fields.max_tokens,
            needed_tokens: Some(tokens.saturating_add(answer_tokens)),
            surely_needed_tokens: tokens.saturating_add(answer_tokens),
            is_streamed: fields.stream.unwrap_or(true),
            ..Work::default()
        };
        let demand = Demand {
            body_bytes: fields.body_bytes.unwrap_or_else(|| tokens.saturating_mul(4)),
            max_tokens: fields.max_tokens.map_or(DEFAULT_MAX_TOKENS, Budget::from_tokens),
            ignore_eos: fields.ignore_eos,
            work: Some(Arc::new(work)),
        };
        Self { demand, endpoint: Endpoint::Completions, is_estimated: false }
    }
}

impl Fields {
    fn has_prompt(&self) -> bool {
        self.messages.is_some() || self.prompt.is_some() || self.input.is_some()
    }
}
