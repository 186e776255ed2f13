//! Reads the two fields of a request body that the policies use, leniently.
//!
//! The reading is Python's, because both the example and vLLM are Python: of duplicate keys the last counts, `1e2` is
//! a number like `100`, `true` is 1, and `ignore_eos` holds when its value is truthy (`"false"` and `[0]` are, `""`
//! and `[]` are not). Where Python would raise, Tidegate still measures, since a server's own answer to a bad body is
//! the right one:
//!
//! | `max_tokens` | counts as |
//! |---|---|
//! | absent, null, a list, an object, a string that is no number | 16, the default |
//! | `"12"` (vLLM takes it) | 12 |
//! | below zero | 0 |
//! | above 2^32, `1e309`, 400 digits | 2^32 |
//!
//! `max_completion_tokens`, `n` and `best_of` are ignored on purpose, as the example does.
//!
//! A body that is no JSON object is measured by its size, with defaults for the rest. One that breaks off, or holds
//! the literals `NaN` or `Infinity` (Python writes and reads them, vLLM refuses the request), counts with the fields
//! in front of that place; so does one with a byte order mark, which is skipped.
//!
//! The body is read once, front to back, without a tree and without recursion: depth of nesting costs a bit a level.

mod strict;

use strict::Strict;

use super::{Budget, DEFAULT_MAX_TOKENS, Demand};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Measures a request body. Never fails; see the module for what odd bodies count as.
#[must_use]
pub fn measure(body: &[u8]) -> Demand {
    let mut demand = Demand::of_bytes(body.len() as u64);
    read_fields(body, &[], &mut demand);
    demand
}

/// Where a string of a body stands that every reader takes for one: its first byte, and the one behind its closing quote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SoundString {
    pub(super) from: usize,
    pub(super) until: usize,
}

/// Reads the fields of a body or of its beginning. `known` are strings of it, in their order, that need not be looked at.
pub(super) fn read_fields(body: &[u8], known: &[SoundString], demand: &mut Demand) {
    // Where it cannot be read on reading stops, and what was read before stays.
    let _: Option<()> = Strict::new(body, known).read_object(|name, value| {
        match name {
            b"max_tokens" => demand.max_tokens = budget(value()?),
            b"ignore_eos" => demand.ignore_eos = is_truthy(value()?),
            _ => {}
        }
        Some(())
    });
}

/// The output budget that a JSON value stands for.
fn budget(json: &str) -> Budget {
    let number = match json {
        "true" => Some(1.0),
        "false" => Some(0.0),
        _ => number(json.trim_matches('"').trim()),
    };
    number.map_or(DEFAULT_MAX_TOKENS, Budget::from_fractional_tokens)
}

/// Reads a number of any length; one too large for a float is infinite. Not the names `inf` and `nan`, which Rust
/// would take.
pub(super) fn number(text: &str) -> Option<f64> {
    let is_numeric = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    if is_numeric { text.parse().ok() } else { None }
}

/// Whether Python would take a JSON value for true.
pub(super) fn is_truthy(json: &str) -> bool {
    match json {
        "null" | "false" | r#""""# => false,
        _ => match json.as_bytes() {
            // Of an empty list or object only white space is left between the brackets.
            [b'[' | b'{', inner @ .., _] => !inner.trim_ascii().is_empty(),
            _ => number(json) != Some(0.0),
        },
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use tests::odd_json;
