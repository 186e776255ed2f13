//! The usage that a response ends with.

use memchr::memmem;
use serde::Deserialize;

/// How many places of a tail are tried at most.
const MAX_TRIES: usize = 16;

/// Tokens that a server has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, those in the server's cache included.
    pub prompt_tokens: u64,
    /// Tokens that were generated.
    pub completion_tokens: Option<u64>,
    /// Tokens of the prompt that were in the server's cache, when it tells.
    pub cached_tokens: Option<u64>,
}

/// Finds the usage in the last bytes of a response: the last events of a stream, or the end of a JSON body. `None`
/// when there is none, or when it begins before the tail.
///
/// Knows the names of OpenAI's completions (`prompt_tokens`), of its responses and of Anthropic's messages
/// (`input_tokens`).
#[must_use]
pub fn usage(tail: &[u8]) -> Option<Usage> {
    // Within a text the quotes would be escaped, so that this is a name.
    let name = b"\"usage\"";
    memmem::rfind_iter(tail, name).take(MAX_TRIES).find_map(|at| {
        if at > 0 && tail[at - 1] == b'\\' {
            return None;
        }
        let value = tail[at + name.len()..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let mut values = serde_json::Deserializer::from_slice(value).into_iter::<Fields>();
        values.next()?.ok()?.usage()
    })
}

#[derive(Deserialize)]
struct Fields {
    #[serde(alias = "input_tokens")]
    prompt_tokens: Option<u64>,
    #[serde(alias = "output_tokens")]
    completion_tokens: Option<u64>,
    #[serde(alias = "input_tokens_details")]
    prompt_tokens_details: Option<Details>,
    /// Anthropic's, which does not count them in `input_tokens`.
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Fields {
    fn usage(self) -> Option<Usage> {
        let apart =
            self.cache_read_input_tokens.unwrap_or(0).saturating_add(self.cache_creation_input_tokens.unwrap_or(0));
        let cached = self.prompt_tokens_details.and_then(|details| details.cached_tokens);
        Some(Usage {
            prompt_tokens: self.prompt_tokens?.saturating_add(apart),
            completion_tokens: self.completion_tokens,
            cached_tokens: cached.or(self.cache_read_input_tokens),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counted(prompt_tokens: u64, completion_tokens: u64) -> Option<Usage> {
        Some(Usage { prompt_tokens, completion_tokens: Some(completion_tokens), cached_tokens: None })
    }

    /// The body of a recorded answer, with the framing of its chunks, as it came.
    macro_rules! recorded {
        ($name:literal) => {{
            let answer: &[u8] = include_bytes!(concat!("../../tests/data/vllm-wire/", $name));
            let head = memmem::find(answer, b"\r\n\r\n").expect("an answer has a head");
            ($name, &answer[head + 4..])
        }};
    }

    #[test]
    fn recorded_answers_end_with_their_usage() {
        for ((name, body), expected) in [
            (recorded!("chat-plain.resp"), counted(20, 12)),
            (recorded!("chat-stream-usage.resp"), counted(20, 12)),
            (recorded!("completions-stream-usage.resp"), counted(5, 12)),
            (recorded!("completions-stream-usage-continuous.resp"), counted(5, 12)),
            (recorded!("completions-prompt-list.resp"), counted(5, 24)),
            (
                recorded!("responses-plain.resp"),
                Some(Usage { prompt_tokens: 18, completion_tokens: Some(12), cached_tokens: Some(0) }),
            ),
            (
                recorded!("responses-stream.resp"),
                Some(Usage { prompt_tokens: 18, completion_tokens: Some(12), cached_tokens: Some(0) }),
            ),
            (recorded!("messages-plain.resp"), counted(18, 12)),
            (recorded!("messages-stream.resp"), counted(18, 12)),
            (
                recorded!("auth-prefix-cache-2.resp"),
                Some(Usage { prompt_tokens: 601, completion_tokens: Some(12), cached_tokens: Some(512) }),
            ),
            (recorded!("chat-stream.resp"), None),
            (recorded!("chat-n2-stream.resp"), None),
            (recorded!("tokenize.resp"), None),
        ] {
            assert_eq!(usage(body), expected, "{name}");
            assert_eq!(usage(&body[body.len().saturating_sub(2_048)..]), expected, "the end of {name}");
        }
    }

    #[test]
    fn the_last_whole_usage_counts() {
        for (tail, prompt_tokens) in [
            (r#"{"usage":{"prompt_tokens":1}} {"usage":null}"#, Some(1)),
            (r#"{"usage":{"prompt_tokens":1}} {"usage" : {"prompt_tokens":2,"x":[{}]}}"#, Some(2)),
            (r#"{"usage":{"prompt_tokens":1}} {"usage":{"prompt_tokens":2"#, Some(1)),
            (r#"{"usage":{"prompt_tokens":1}} {"usage":{"prompt_tokens":-2}}"#, Some(1)),
            (r#"{"usage":{"completion_tokens":1}}"#, None),
            (r#"{"text":"\"usage\":{\"prompt_tokens\":1}"}"#, None),
            (r#"age":{"prompt_tokens":1}}"#, None),
            (r#"{"usage":{"input_tokens":5,"cache_read_input_tokens":7,"cache_creation_input_tokens":1}}"#, Some(13)),
        ] {
            assert_eq!(usage(tail.as_bytes()).map(|usage| usage.prompt_tokens), prompt_tokens, "{tail}");
        }
    }

    proptest! {
        #[test]
        fn any_tail_is_searched(pieces in prop::collection::vec(prop_oneof![
            Just("\"usage\"".to_owned()), Just(":{".to_owned()), Just("\"prompt_tokens\":9".to_owned()),
            Just("}".to_owned()), "[ -~]{0,5}",
        ], 0..12)) {
            let tail = pieces.concat();
            let found = usage(tail.as_bytes());
            prop_assert!(found.is_none() || tail.contains("prompt_tokens"));
        }

        #[test]
        fn usage_is_found_behind_anything(before in ".{0,40}", prompt_tokens in any::<u64>()) {
            let tail = format!("{before}{}", serde_json::json!({"usage": {"prompt_tokens": prompt_tokens}}));
            prop_assert_eq!(usage(tail.as_bytes()).map(|usage| usage.prompt_tokens), Some(prompt_tokens));
        }
    }
}
