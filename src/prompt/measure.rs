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
//! The body is read once, front to back, without a tree and without recursion: depth of nesting costs a byte a level.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{Budget, DEFAULT_MAX_TOKENS, Demand};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Measures a request body. Never fails; see the module for what odd bodies count as.
#[must_use]
pub fn measure(body: &[u8]) -> Demand {
    let mut demand = Demand::of_bytes(body.len() as u64);
    let json = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
    // An error says only that reading stopped there: what was read before stays.
    drop(serde_json::Deserializer::from_slice(json).deserialize_map(TopLevel { demand: &mut demand }));
    demand
}

/// Fills a demand from the top level of a body.
struct TopLevel<'a> {
    demand: &'a mut Demand,
}

impl<'de> Visitor<'de> for TopLevel<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Key>()? {
            match key {
                Key::MaxTokens => self.demand.max_tokens = budget(map.next_value::<&RawValue>()?.get()),
                Key::IgnoreEos => self.demand.ignore_eos = is_truthy(map.next_value::<&RawValue>()?.get()),
                Key::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// A key, compared where it stands in the body; nothing is copied unless it is written with escapes.
enum Key {
    MaxTokens,
    IgnoreEos,
    Other,
}

impl<'de> serde::Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;

        impl Visitor<'_> for KeyVisitor {
            type Value = Key;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a key")
            }

            fn visit_str<E>(self, key: &str) -> Result<Key, E> {
                Ok(match key {
                    "max_tokens" => Key::MaxTokens,
                    "ignore_eos" => Key::IgnoreEos,
                    _ => Key::Other,
                })
            }
        }

        deserializer.deserialize_str(KeyVisitor)
    }
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
