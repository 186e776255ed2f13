//! What the fields of a body mean, for all endpoints together: no name has two meanings at the same place.

use super::sink::Medium;

/// What a value is to be read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    /// Not part of the prompt.
    Skipped,
    /// A text, a token id, a message, a part of one, or a list of these.
    Prompt,
    /// The same, once for each of the documents.
    Query,
    /// The same; each entry is a document.
    Documents,
    /// JSON that is written into the prompt.
    Json,
    /// The same: the tools that a model may call.
    Tools,
    /// Text, or JSON when it is no text: the arguments of a tool call.
    Arguments,
    /// Who speaks: a message begins.
    Role,
    /// A medium by address or as base64.
    Medium(Medium),
    /// A tensor of embedded tokens, as base64.
    Embeddings,
    /// An object whose fields are [those of sampling](sampling).
    Sampling,
    Model,
    CacheSalt,
    Stream,
    MaxTokens,
    MaxCompletionTokens,
    MaxOutputTokens,
    MinTokens,
    IgnoreEos,
    Choices,
    BestOf,
    TruncatePromptTokens,
}

/// What a field at the top of a body is.
pub(super) fn top_level(name: &[u8]) -> Field {
    match name {
        b"messages" | b"prompt" | b"input" | b"inputs" | b"texts" | b"system" | b"instructions" | b"token_ids"
        | b"tokens" | b"prompt_token_ids" | b"text" | b"text_2" | b"data_2" => Field::Prompt,
        b"query" | b"queries" | b"text_1" | b"data_1" => Field::Query,
        b"documents" | b"items" => Field::Documents,
        b"tools" | b"functions" => Field::Tools,
        b"state" | b"questions" => Field::Json,
        b"images" => Field::Medium(Medium::Image),
        b"prompt_embeds" => Field::Embeddings,
        b"sampling_params" => Field::Sampling,
        b"model" => Field::Model,
        b"cache_salt" => Field::CacheSalt,
        b"stream" => Field::Stream,
        b"truncate_prompt_tokens" => Field::TruncatePromptTokens,
        _ => sampling(name),
    }
}

/// What a field is that says how much to generate.
pub(super) fn sampling(name: &[u8]) -> Field {
    match name {
        b"max_tokens" => Field::MaxTokens,
        b"max_completion_tokens" => Field::MaxCompletionTokens,
        b"max_output_tokens" => Field::MaxOutputTokens,
        b"min_tokens" => Field::MinTokens,
        b"ignore_eos" => Field::IgnoreEos,
        b"n" => Field::Choices,
        b"best_of" => Field::BestOf,
        _ => Field::Skipped,
    }
}

/// What a field of a message, a part of one, an item or a document is.
pub(super) fn within_prompt(name: &[u8]) -> Field {
    match name {
        b"content" | b"text" | b"input_text" | b"name" | b"reasoning" | b"reasoning_content" | b"thinking"
        | b"refusal" | b"summary" | b"output" | b"title" | b"tool_calls" | b"function" | b"function_call"
        | b"messages" | b"prompt" | b"prompt_token_ids" => Field::Prompt,
        b"arguments" | b"input" => Field::Arguments,
        b"role" => Field::Role,
        b"image_url" | b"image" | b"input_image" | b"image_pil" | b"image_embeds" | b"source" => {
            Field::Medium(Medium::Image)
        }
        b"input_audio" | b"audio_url" | b"audio" | b"audio_embeds" => Field::Medium(Medium::Audio),
        b"video_url" | b"video" | b"input_video" => Field::Medium(Medium::Video),
        _ => Field::Skipped,
    }
}
