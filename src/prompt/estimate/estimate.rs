//! How long a prompt is believed to be.

use std::ops::AddAssign;
use std::sync::Arc;

use super::ratios::TokensByKind;

/// Endpoints whose prompts are made alike, so that what is learned of one holds for the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PromptClass {
    /// Through a chat template.
    Chat,
    /// As they are.
    Plain,
    /// For models that do not generate.
    Pooling,
}

impl PromptClass {
    /// The class of an endpoint.
    #[must_use]
    pub fn of(endpoint: crate::prompt::Endpoint) -> Self {
        use crate::prompt::Endpoint;
        match endpoint {
            Endpoint::Chat | Endpoint::Responses | Endpoint::Messages | Endpoint::Invocations => Self::Chat,
            Endpoint::Embeddings | Endpoint::Pooling | Endpoint::Score | Endpoint::Rerank | Endpoint::Classify => {
                Self::Pooling
            }
            Endpoint::Completions
            | Endpoint::Audio
            | Endpoint::Tokenize
            | Endpoint::Generate
            | Endpoint::Decisions
            | Endpoint::Models
            | Endpoint::Other => Self::Plain,
        }
    }

    /// The name of the class in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Plain => "plain",
            Self::Pooling => "pooling",
        }
    }
}

/// How long a prompt is believed to be, and what is needed to learn from how long it was. Small: to be kept until the
/// answer has come.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    pub(super) model: Option<Arc<str>>,
    pub(super) class: PromptClass,
    /// Tokens of the text at the built-in ratios.
    pub(super) text: TokensByKind,
    /// Tokens that chat templates add at the built-in costs.
    pub(super) template_tokens: u64,
    /// Tokens that need no learning: ids.
    pub(super) exact_tokens: u64,
    /// Tokens of media and embedded tokens, of which nothing is known.
    pub(super) media_tokens: u64,
    pub(super) is_truncated: bool,
    pub(super) tokens: u64,
    /// What the model's own tokenizer has counted.
    pub(super) counted: Option<u64>,
    pub(super) prompts: u64,
}

impl Estimate {
    /// Tokens that the prompt is believed to have, all prompts of a batch together. Never 0.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.counted.unwrap_or(self.tokens)
    }

    /// The same prompt, of which the model's own tokenizer has counted so many tokens. What is learned of it later is
    /// learned of what was estimated.
    #[must_use]
    pub fn counted(self, tokens: u64) -> Self {
        Self { counted: Some(tokens.max(1)), ..self }
    }

    /// The class of the endpoint.
    #[must_use]
    pub fn class(&self) -> PromptClass {
        self.class
    }

    /// Those of them that are counted, not estimated: token ids.
    #[must_use]
    pub fn exact_tokens(&self) -> u64 {
        self.counted.map_or(self.exact_tokens, |counted| counted.saturating_sub(self.media_tokens))
    }

    /// Those of them that are a guess by the piece: images, sounds, films, embedded tokens.
    #[must_use]
    pub fn media_tokens(&self) -> u64 {
        self.media_tokens
    }

    /// The model that was named.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

/// Sums the estimates of several requests for one model, to learn from their total. The model and class are those of
/// the sum before.
impl AddAssign<&Self> for Estimate {
    fn add_assign(&mut self, other: &Self) {
        for (sum, tokens) in self.text.iter_mut().zip(other.text) {
            *sum += tokens;
        }
        self.template_tokens = self.template_tokens.saturating_add(other.template_tokens);
        self.exact_tokens = self.exact_tokens.saturating_add(other.exact_tokens);
        self.media_tokens = self.media_tokens.saturating_add(other.media_tokens);
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.prompts = self.prompts.saturating_add(other.prompts);
        self.is_truncated |= other.is_truncated;
    }
}
