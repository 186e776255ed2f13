//! Which of the servers' endpoints a request is for.

use std::borrow::Cow;

use http::Method;

/// An endpoint class: decides whether a request takes part in the load accounting, and is a metric label.
///
/// Paths are compared as vLLM does it: exactly, after percent-decoding. A trailing slash or a doubled one is another
/// path (vLLM answers 307 or 404), and so is another case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `POST /v1/chat/completions` and its `/batch`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/responses`. Reading or cancelling a response is [`Other`](Self::Other).
    Responses,
    /// `POST /v1/messages`, Anthropic's chat.
    Messages,
    /// `POST /v1/embeddings`, and Cohere's `/v2/embed`.
    Embeddings,
    /// `POST /pooling`.
    Pooling,
    /// `POST /score`, `/v1/score` and `/generative_scoring`.
    Score,
    /// `POST /rerank`, `/v1/rerank` and `/v2/rerank`.
    Rerank,
    /// `POST /classify`.
    Classify,
    /// `POST /v1/audio/transcriptions` and `/v1/audio/translations`.
    Audio,
    /// `POST /tokenize`, `/detokenize` and everything else that only turns text into tokens or back: counting the
    /// tokens of a message, rendering a prompt.
    Tokenize,
    /// `POST /invocations`, SageMaker's name for whatever the model does.
    Invocations,
    /// `POST /inference/v1/generate`, tokens in and tokens out.
    Generate,
    /// `POST /v1/systemone` and `/v1/decisions`, vLLM's structured decisions.
    Decisions,
    /// `GET /v1/models`, which Tidegate answers for all servers together. Not counted as load.
    Models,
    /// Everything that is proxied but not counted as load.
    Other,
}

impl Endpoint {
    /// Classifies a request by method and path (without the query).
    #[must_use]
    pub fn of(method: &Method, path: &str) -> Self {
        match *method {
            Method::POST => Self::of_post(&percent_decoded(path)),
            Method::GET if *percent_decoded(path) == *b"/v1/models" => Self::Models,
            _ => Self::Other,
        }
    }

    fn of_post(path: &[u8]) -> Self {
        match path {
            b"/v1/chat/completions" | b"/v1/chat/completions/batch" => Self::Chat,
            b"/v1/completions" => Self::Completions,
            b"/v1/responses" => Self::Responses,
            b"/v1/messages" => Self::Messages,
            b"/v1/embeddings" | b"/v2/embed" => Self::Embeddings,
            b"/pooling" => Self::Pooling,
            b"/score" | b"/v1/score" | b"/generative_scoring" => Self::Score,
            b"/rerank" | b"/v1/rerank" | b"/v2/rerank" => Self::Rerank,
            b"/classify" => Self::Classify,
            b"/v1/audio/transcriptions" | b"/v1/audio/translations" => Self::Audio,
            b"/tokenize"
            | b"/detokenize"
            | b"/v1/messages/count_tokens"
            | b"/v1/completions/render"
            | b"/v1/chat/completions/render" => Self::Tokenize,
            b"/invocations" => Self::Invocations,
            b"/inference/v1/generate" => Self::Generate,
            b"/v1/systemone" | b"/v1/decisions" => Self::Decisions,
            _ => Self::Other,
        }
    }

    /// Whether requests of this class take part in the load accounting.
    #[must_use]
    pub fn is_generation(self) -> bool {
        !matches!(self, Self::Models | Self::Other)
    }

    /// The name of the class in metrics and logs. One of a fixed set, whatever clients send.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
            Self::Pooling => "pooling",
            Self::Score => "score",
            Self::Rerank => "rerank",
            Self::Classify => "classify",
            Self::Audio => "audio",
            Self::Tokenize => "tokenize",
            Self::Invocations => "invocations",
            Self::Generate => "generate",
            Self::Decisions => "decisions",
            Self::Models => "models",
            Self::Other => "other",
        }
    }
}

/// The path with each `%XX` replaced by its byte; anything else behind a `%` stays as it is. Copies only when there is
/// a `%`.
fn percent_decoded(path: &str) -> Cow<'_, [u8]> {
    if !path.contains('%') {
        return Cow::Borrowed(path.as_bytes());
    }
    let mut rest = path.as_bytes();
    let mut decoded = Vec::with_capacity(rest.len());
    while let [first, tail @ ..] = rest {
        let escaped = match tail {
            [high, low, ..] if *first == b'%' => hex_digit(*high).zip(hex_digit(*low)),
            _ => None,
        };
        if let Some((high, low)) = escaped {
            decoded.push(high << 4 | low);
            rest = &tail[2..];
        } else {
            decoded.push(*first);
            rest = tail;
        }
    }
    Cow::Owned(decoded)
}

fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATION_PATHS: [(&str, &str); 26] = [
        ("/v1/chat/completions", "chat"),
        ("/v1/chat/completions/batch", "chat"),
        ("/v1/completions", "completions"),
        ("/v1/responses", "responses"),
        ("/v1/messages", "messages"),
        ("/v1/embeddings", "embeddings"),
        ("/v2/embed", "embeddings"),
        ("/pooling", "pooling"),
        ("/score", "score"),
        ("/v1/score", "score"),
        ("/generative_scoring", "score"),
        ("/rerank", "rerank"),
        ("/v1/rerank", "rerank"),
        ("/v2/rerank", "rerank"),
        ("/classify", "classify"),
        ("/v1/audio/transcriptions", "audio"),
        ("/v1/audio/translations", "audio"),
        ("/tokenize", "tokenize"),
        ("/detokenize", "tokenize"),
        ("/v1/messages/count_tokens", "tokenize"),
        ("/v1/completions/render", "tokenize"),
        ("/v1/chat/completions/render", "tokenize"),
        ("/invocations", "invocations"),
        ("/inference/v1/generate", "generate"),
        ("/v1/systemone", "decisions"),
        ("/v1/decisions", "decisions"),
    ];

    #[test]
    fn posts_to_endpoints_that_work_for_the_client_are_counted_as_load() {
        for (path, label) in GENERATION_PATHS {
            let endpoint = Endpoint::of(&Method::POST, path);
            assert_eq!((endpoint.label(), endpoint.is_generation()), (label, true), "{path}");
        }
    }

    #[test]
    fn another_method_on_a_generation_path_is_not_counted() {
        for (path, _) in GENERATION_PATHS {
            for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE] {
                assert_eq!(Endpoint::of(&method, path), Endpoint::Other, "{method} {path}");
            }
        }
    }

    #[test]
    fn a_path_that_is_not_exactly_an_endpoint_is_not_counted() {
        for path in [
            "",
            "/",
            "*",
            "/v1/chat/completions/",
            "//v1/chat/completions",
            "/V1/chat/completions",
            "/v1/chat/completions/batches",
            "/v1/responses/resp_1/cancel",
            "/v1/load_lora_adapter",
            "/scale_elastic_ep",
            "/ping",
            "/v1/chat/completion%",
            "/v1/chat/completion%7",
            "/v1/chat/completion%7g",
            "/v1/chat/completions%00",
        ] {
            assert_eq!(Endpoint::of(&Method::POST, path), Endpoint::Other, "{path}");
        }
    }

    #[test]
    fn percent_encoded_letters_match_as_they_do_in_vllm() {
        for path in ["/v1/chat/completion%73", "/v1%2Fchat%2fcompletions", "%2Fv1/%63hat/c%6Fmpletions"] {
            assert_eq!(Endpoint::of(&Method::POST, path), Endpoint::Chat, "{path}");
        }
        // Decoded once only, and two digits stay apart from what follows.
        assert_eq!(Endpoint::of(&Method::POST, "/v1/chat/completion%2573"), Endpoint::Other);
        assert_eq!(Endpoint::of(&Method::GET, "/v1/mod%65ls"), Endpoint::Models);
    }

    #[test]
    fn only_a_get_of_exactly_the_model_list_is_merged() {
        assert_eq!(Endpoint::of(&Method::GET, "/v1/models"), Endpoint::Models);
        assert!(!Endpoint::Models.is_generation());
        for (method, path) in [
            (Method::HEAD, "/v1/models"),
            (Method::POST, "/v1/models"),
            (Method::DELETE, "/v1/models"),
            (Method::GET, "/v1/models/"),
            (Method::GET, "/v1/models/tiny"),
            (Method::GET, "/models"),
        ] {
            assert_eq!(Endpoint::of(&method, path), Endpoint::Other, "{method} {path}");
        }
    }
}
