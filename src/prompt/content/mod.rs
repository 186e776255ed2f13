//! What a body asks of an engine, read in one pass over its bytes.
//!
//! Beside [`measure`](crate::prompt::measure), which counts as the Python example does: here only what an engine gets to
//! see counts, and as what it is.
//!
//! | in the body | counts as |
//! |---|---|
//! | `content` of messages, `prompt`, `input`, `system`, `instructions`, documents, queries, names, calls of tools and their results | text; escapes as the character that they stand for |
//! | `tools`, `functions`; arguments of tool calls that are objects | text as Python writes JSON, which is what chat templates do |
//! | lists of numbers in a prompt, lists of such lists | that many tokens |
//! | images, sounds, films, given as address or base64 | one each, whatever their size |
//! | `prompt_embeds` | their size |
//! | the query of a rerank or score request | once for each document |
//! | everything else (`response_format`, `metadata`, `stop`, ..) | nothing |
//!
//! A body that is no JSON object counts as text by its size; one that breaks off counts as far as it goes. The body of
//! an audio request is a form, and counts as one sound.

mod facts;
mod field;
mod prefix;
mod reader;
mod sink;
mod string;

use std::sync::Arc;

#[cfg(feature = "exact-tokens")]
pub(super) use facts::Facts;
#[cfg(not(feature = "exact-tokens"))]
use facts::Facts;
pub use facts::MAX_MODEL_BYTES;
pub use prefix::{MAX_PREFIX_BLOCKS, PREFIX_BLOCK_BYTES, session_blocks};
#[cfg(feature = "exact-tokens")]
pub(super) use reader::read;
#[cfg(feature = "exact-tokens")]
pub(super) use sink::Medium;
pub(super) use sink::Sink;
use sink::Tally;
pub(super) use string::skip_sound;

use super::measure::{measure, read_fields};
use super::text::TextCounts;
use super::{Demand, Endpoint, MAX_BUDGET_TOKENS};

/// What a body asks of an engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// The model that is named, unless its name has more than [`MAX_MODEL_BYTES`].
    pub model: Option<Arc<str>>,
    /// The text of all prompts.
    pub text: TextCounts,
    /// Tokens of prompts that are given as token ids.
    pub token_ids: u64,
    /// Size of prompts that are given as embedded tokens, in bytes.
    pub embeddings_bytes: u64,
    /// Images in the prompt.
    pub images: u32,
    /// Sounds in the prompt.
    pub audios: u32,
    /// Films in the prompt.
    pub videos: u32,
    /// Messages and calls of tools, each of which a chat template wraps into tokens of its own.
    pub messages: u64,
    /// Whether tools are described, for which chat templates add instructions.
    pub has_tools: bool,
    /// Prompts in the request: more than one for a batch.
    pub prompts: u64,
    /// What each prompt is cut to, in tokens, if it is longer.
    pub truncate_prompt_tokens: Option<u64>,
    /// Whether the answer is streamed.
    pub is_streamed: bool,
    /// The most tokens of all answers to this request together: the limit of one times `n` and the number of prompts.
    /// At most [`MAX_BUDGET_TOKENS`]; `None` when the request names no limit and the endpoint has no default.
    pub output_tokens_limit: Option<u64>,
    /// The most tokens of each answer; `None` as above.
    pub answer_tokens_limit: Option<u64>,
    /// The least tokens of each answer.
    pub min_tokens: u64,
    /// Whether each answer is exactly as long as it may be.
    pub ignore_eos: bool,
    /// Hashes of the whole blocks of [`PREFIX_BLOCK_BYTES`] of the prompt, in its order, at most
    /// [`MAX_PREFIX_BLOCKS`]. Each stands for its block and all before it, for the model and the `cache_salt`.
    pub prefix: Vec<u64>,
}

/// Reads a body. Never fails; see the module for what odd bodies count as.
#[must_use]
pub fn content(endpoint: Endpoint, body: &[u8]) -> Content {
    read_content(endpoint, body, &mut Facts::default())
}

/// [`measure`](crate::prompt::measure) and [`content`] of a body, for which it is walked over once.
#[must_use]
pub fn measured_content(endpoint: Endpoint, body: &[u8]) -> (Demand, Content) {
    if endpoint == Endpoint::Audio {
        return (measure(body), content(endpoint, body));
    }
    let mut facts = Facts::default();
    let content = read_content(endpoint, body, &mut facts);
    let mut demand = Demand::of_bytes(body.len() as u64);
    // The walk found all fields that a strict reader finds, who may stop before it. So only this is left to be told: how
    // far a strict reader gets. Most of what there is to be looked at are long strings, which the walk has seen.
    read_fields(&body[..facts.measured_until], &facts.sound_strings, &mut demand);
    (demand, content)
}

fn read_content(endpoint: Endpoint, body: &[u8], facts: &mut Facts) -> Content {
    if endpoint == Endpoint::Audio {
        return Content { audios: 1, prompts: 1, ..Content::default() };
    }
    let mut tally = Tally::new();
    if !reader::read_into(body, &mut tally, facts) {
        tally.text(body);
    }
    let prompts = facts.prompts();
    let answer_limit = facts.answer_limit(endpoint);
    let output_tokens = answer_limit.map(|limit| {
        let answers = prompts.saturating_mul(facts.choices());
        limit.saturating_mul(answers).min(MAX_BUDGET_TOKENS)
    });
    Content {
        text: tally.counts(facts.query_times()),
        token_ids: tally.token_ids,
        embeddings_bytes: facts.embeddings_bytes,
        images: tally.images,
        audios: tally.audios,
        videos: tally.videos,
        messages: facts.messages,
        has_tools: facts.has_tools,
        prompts,
        truncate_prompt_tokens: facts.truncate_prompt_tokens,
        is_streamed: facts.is_streamed,
        output_tokens_limit: output_tokens,
        answer_tokens_limit: answer_limit.map(|limit| limit.min(MAX_BUDGET_TOKENS)),
        min_tokens: facts.min_tokens.unwrap_or_default(),
        ignore_eos: facts.ignore_eos,
        prefix: tally.prefix(facts.world()),
        model: facts.model.take(),
    }
}

#[cfg(test)]
mod tests;
