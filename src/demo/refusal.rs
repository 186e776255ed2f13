//! Refusals, worded as vLLM words them.

use http::StatusCode;

use super::reply::quoted;

/// A request that is not served: the status and the JSON body that say so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) body: String,
}

impl Refusal {
    /// What vLLM's handlers say of a value that they cannot serve.
    pub(super) fn bad_request(param: &str, message: &str) -> Self {
        Self::error(StatusCode::BAD_REQUEST, "BadRequestError", param, message)
    }

    /// As [`bad_request`](Self::bad_request), with the parameter repeated in the message, as vLLM does for most.
    pub(super) fn bad_value(param: &str, value: impl std::fmt::Display, message: &str) -> Self {
        Self::bad_request(param, &format!("{message} (parameter={param}, value={value})"))
    }

    /// What vLLM's validation says of a body that does not fit its schema; `detail` is one validation error.
    pub(super) fn invalid(location: &str, detail: &str) -> Self {
        let message = format!("1 validation error:\n  {detail}");
        Self::error(StatusCode::BAD_REQUEST, "Bad Request", location, &message)
    }

    /// The body is not declared as JSON.
    pub(super) fn media_type() -> Self {
        let body = r#"{"error":{"message":"1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed","type":"Bad Request","param":null,"code":400}}"#;
        Self { status: StatusCode::BAD_REQUEST, body: body.to_owned() }
    }

    /// A model that is not served.
    pub(super) fn model(asked: &str, served: &str) -> Self {
        let message = format!("The model `{asked}` does not exist. Valid aliases: {served}.");
        Self::error(StatusCode::NOT_FOUND, "NotFoundError", "model", &message)
    }

    /// A prompt that does not fit. vLLM stops counting one token beyond what fits, and says so.
    pub(super) fn prompt_too_long(max_model_len: u64) -> Self {
        let counted = max_model_len.saturating_add(1);
        let message = format!(
            "This model's maximum context length is {max_model_len} tokens. However, your prompt contains at least \
             {counted} input tokens, which exceeds this limit even without any output tokens. Please reduce the \
             length of the input prompt."
        );
        Self::bad_value("input_tokens", counted, &message)
    }

    /// A path that does not exist.
    pub(super) fn not_found() -> Self {
        Self { status: StatusCode::NOT_FOUND, body: r#"{"detail":"Not Found"}"#.to_owned() }
    }

    /// A path that exists for another method.
    pub(super) fn method_not_allowed() -> Self {
        Self { status: StatusCode::METHOD_NOT_ALLOWED, body: r#"{"detail":"Method Not Allowed"}"#.to_owned() }
    }

    /// A body that is larger than a demo server reads. vLLM itself has no such limit.
    pub(super) fn body_too_large(limit: usize) -> Self {
        let message = format!("The demo server reads bodies of up to {limit} bytes.");
        Self::error(StatusCode::PAYLOAD_TOO_LARGE, "BadRequestError", "body", &message)
    }

    fn error(status: StatusCode, kind: &str, param: &str, message: &str) -> Self {
        let (message, param, code) = (quoted(message), quoted(param), status.as_u16());
        let body = format!(r#"{{"error":{{"message":{message},"type":"{kind}","param":{param},"code":{code}}}}}"#);
        Self { status, body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The expected bodies are those that a vLLM 0.32.0 with a model `tiny` of 4,096 tokens sent.

    #[test]
    fn a_wrong_model_is_refused_in_the_words_of_vllm() {
        let refusal = Refusal::model("nope", "tiny");
        assert_eq!(refusal.status, StatusCode::NOT_FOUND);
        assert_eq!(
            refusal.body,
            r#"{"error":{"message":"The model `nope` does not exist. Valid aliases: tiny.","type":"NotFoundError","param":"model","code":404}}"#
        );
    }

    #[test]
    fn a_prompt_that_is_too_long_is_refused_in_the_words_of_vllm() {
        let refusal = Refusal::prompt_too_long(4_096);
        assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
        assert_eq!(
            refusal.body,
            r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=4097)","type":"BadRequestError","param":"input_tokens","code":400}}"#
        );
    }

    #[test]
    fn a_name_with_quotes_and_control_characters_stays_valid_json() {
        let refusal = Refusal::model("a\"b\\c\n\u{1}", "tiny");
        let body: serde_json::Value = serde_json::from_str(&refusal.body).unwrap();
        let message = body["error"]["message"].as_str().unwrap();
        assert_eq!(message, "The model `a\"b\\c\n\u{1}` does not exist. Valid aliases: tiny.");
    }
}
