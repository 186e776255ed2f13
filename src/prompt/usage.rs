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
