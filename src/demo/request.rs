//! From the body of a request to what the engine has to do, or to the refusal that vLLM would send.

use serde_json::{Map, Value};

use super::DemoSettings;
use super::refusal::Refusal;

/// Bytes of text that count as one token.
const BYTES_PER_TOKEN: usize = 4;

/// Output budget of a text completion that names none, as in vLLM. A chat without one runs until the context is full.
const DEFAULT_COMPLETION_TOKENS: u64 = 16;

/// The two ways to generate text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

/// A request that can be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Generation {
    pub(super) endpoint: Endpoint,
    pub(super) prompt_tokens: u64,
    /// Most tokens that the answer may have. At least 1, and prompt and answer fit into the context together unless
    /// the prompt alone fills it.
    pub(super) max_tokens: u64,
    /// Whether the answer goes on until `max_tokens`, whatever there is to say.
    pub(super) ignore_eos: bool,
    pub(super) stream: bool,
    /// Whether a stream ends with an event that tells the token counts.
    pub(super) include_usage: bool,
}

impl Generation {
    /// Reads a request body.
    ///
    /// As lenient as vLLM: the model may be missing, numbers may be strings, a byte order mark is skipped, the last of
    /// two equal keys counts, unknown keys are ignored. Unlike vLLM it serves one prompt and one answer a request.
    ///
    /// # Errors
    /// The refusal to send.
    pub(super) fn parse(endpoint: Endpoint, body: &[u8], settings: &DemoSettings) -> Result<Self, Refusal> {
        let request = object(body)?;
        let prompt_tokens = match endpoint {
            Endpoint::Chat => chat_tokens(&request)?,
            Endpoint::Completions => prompt_tokens(request.get("prompt"))?,
        };
        if let Some(Value::String(model)) = request.get("model")
            && *model != settings.model_name
        {
            return Err(Refusal::model(model, &settings.model_name));
        }
        if integer(&request, "n")?.is_some_and(|n| n != 1) {
            return Err(Refusal::bad_request("n", "The demo server gives one answer a request."));
        }
        let max_tokens = max_tokens(endpoint, &request, settings.max_model_len)?;
        let Some(room) = settings.max_model_len.checked_sub(prompt_tokens) else {
            return Err(Refusal::prompt_too_long(settings.max_model_len));
        };
        let default = if endpoint == Endpoint::Chat { room } else { DEFAULT_COMPLETION_TOKENS };
        let stream_options = request.get("stream_options");
        Ok(Self {
            endpoint,
            prompt_tokens,
            max_tokens: max_tokens.unwrap_or(default).min(room).max(1),
            ignore_eos: is_true(request.get("ignore_eos")),
            stream: is_true(request.get("stream")),
            include_usage: is_true(stream_options.and_then(|options| options.get("include_usage"))),
        })
    }
}

fn object(body: &[u8]) -> Result<Map<String, Value>, Refusal> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    if body.is_empty() {
        let detail = "{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}";
        return Err(Refusal::invalid("body", detail));
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(request)) => Ok(request),
        Ok(other) => {
            let detail = format!(
                "{{'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid dictionary or \
                 object to extract fields from', 'input': '{}'}}",
                kind_of(&other)
            );
            Err(Refusal::invalid("body", &detail))
        }
        Err(error) => {
            let location = format!("body.{}", offset(body, &error));
            let detail = format!(
                "{{'type': 'json_invalid', 'loc': '{location}', 'msg': 'JSON decode error', 'input': '<dict of 0 \
                 items>', 'ctx': {{'error': '{error}'}}}}"
            );
            Err(Refusal::invalid(&location, &detail))
        }
    }
}

/// Where in the body the error is, in bytes.
fn offset(body: &[u8], error: &serde_json::Error) -> usize {
    let lines_before = error.line().saturating_sub(1);
    let before: usize = body.split_inclusive(|byte| *byte == b'\n').take(lines_before).map(<[u8]>::len).sum();
    (before + error.column()).min(body.len())
}

fn chat_tokens(request: &Map<String, Value>) -> Result<u64, Refusal> {
    match request.get("messages") {
        Some(Value::Array(messages)) if messages.is_empty() => {
            let body = r#"{"error":{"message":"Cannot apply chat template to an empty conversation. Provide at least one message.","type":"BadRequestError","param":null,"code":400}}"#;
            Err(Refusal { status: http::StatusCode::BAD_REQUEST, body: body.to_owned() })
        }
        Some(Value::Array(messages)) => {
            let bytes = messages.iter().map(|message| message.get("content").map_or(0, text_bytes)).sum();
            Ok(tokens_of(bytes))
        }
        None => {
            let detail = format!(
                "{{'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of {} items>'}}",
                request.len()
            );
            Err(Refusal::invalid("body.messages", &detail))
        }
        Some(other) => {
            let kind = kind_of(other);
            let detail = format!(
                "{{'type': 'list_type', 'loc': 'body.messages', 'msg': 'Input should be a valid list', 'input': \
                 '{kind}'}}"
            );
            Err(Refusal::invalid("body.messages", &detail))
        }
    }
}

/// A prompt is a text, a list of token ids, or a list of one of these.
fn prompt_tokens(prompt: Option<&Value>) -> Result<u64, Refusal> {
    match prompt {
        Some(Value::String(text)) if !text.is_empty() => Ok(tokens_of(text.len())),
        Some(Value::Array(ids)) if !ids.is_empty() && ids.iter().all(Value::is_u64) => Ok(ids.len() as u64),
        Some(Value::Array(prompts)) => match prompts.as_slice() {
            [inner @ Value::String(_)] => prompt_tokens(Some(inner)),
            [inner @ Value::Array(ids)] if ids.iter().all(Value::is_u64) => prompt_tokens(Some(inner)),
            [] => Err(no_prompt()),
            _ => Err(Refusal::bad_request("prompt", "The demo server takes one prompt a request.")),
        },
        _ => Err(no_prompt()),
    }
}

fn no_prompt() -> Refusal {
    let message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)";
    Refusal::bad_request("prompt", message)
}

fn max_tokens(endpoint: Endpoint, request: &Map<String, Value>, max_model_len: u64) -> Result<Option<u64>, Refusal> {
    let asked = match (endpoint, integer(request, "max_tokens")?) {
        (Endpoint::Chat, max_tokens) => integer(request, "max_completion_tokens")?.or(max_tokens),
        (Endpoint::Completions, max_tokens) => max_tokens,
    };
    let Some(asked) = asked else { return Ok(None) };
    match u64::try_from(asked) {
        Ok(tokens @ 1..) if tokens <= max_model_len => Ok(Some(tokens)),
        Ok(1..) => {
            let message = format!(
                "max_tokens={asked} cannot be greater than max_model_len={max_model_len}. Please request fewer output \
                 tokens."
            );
            Err(Refusal::bad_value("max_tokens", asked, &message))
        }
        _ => {
            let message = format!("max_tokens must be at least 1, got {asked}.");
            Err(Refusal::bad_value("max_tokens", asked, &message))
        }
    }
}

/// A whole number, also when written as a string; `None` when missing or null.
fn integer(request: &Map<String, Value>, key: &str) -> Result<Option<i64>, Refusal> {
    let number = match request.get(key) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Number(number)) => number.as_i64(),
        Some(Value::String(text)) => text.trim().parse().ok(),
        Some(_) => None,
    };
    number.map(Some).ok_or_else(|| {
        let location = format!("body.{key}");
        let detail = format!("{{'type': 'int_type', 'loc': '{location}', 'msg': 'Input should be a valid integer'}}");
        Refusal::invalid(&location, &detail)
    })
}

/// Length of the text of a message: a string, or the text parts of a list.
fn text_bytes(content: &Value) -> usize {
    match content {
        Value::String(text) => text.len(),
        Value::Array(parts) => parts.iter().filter_map(|part| part.get("text")?.as_str()).map(str::len).sum(),
        _ => 0,
    }
}

fn tokens_of(bytes: usize) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN) as u64
}

fn is_true(value: Option<&Value>) -> bool {
    matches!(value, Some(Value::Bool(true)))
}

/// How vLLM's validation names a value.
fn kind_of(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("<list of {} items>", items.len()),
        Value::Object(items) => format!("<dict of {} items>", items.len()),
        Value::Null => "None".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
