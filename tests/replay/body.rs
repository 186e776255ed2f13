//! Measuring a request body: against a slow reading of the same bytes as a tree.

use serde_json::Value;
use tidegate::prompt::{Budget, DEFAULT_MAX_TOKENS, Demand, MAX_BUDGET_TOKENS, measure};

/// Measures a body and compares.
///
/// # Panics
/// When the measure is not what the tree says, or out of bounds.
pub(crate) fn check(body: &[u8]) {
    let measured = measure(body);
    assert_eq!(measured.body_bytes, body.len() as u64, "the size is that of the body");
    assert!(measured.max_tokens <= Budget::from_tokens(MAX_BUDGET_TOKENS), "{measured:?}");

    // A tree is refused in more cases: deep nesting, numbers beyond a float, text that is not UTF-8, a missing end.
    let Ok(tree) = serde_json::from_slice::<Value>(body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body)) else { return };
    let Value::Object(fields) = tree else {
        assert_eq!(measured, Demand::of_bytes(body.len() as u64), "what is no object has the defaults");
        return;
    };
    assert_eq!(measured.ignore_eos, fields.get("ignore_eos").is_some_and(is_truthy), "ignore_eos");
    let by_tree = fields.get("max_tokens").map_or(DEFAULT_MAX_TOKENS, budget);
    // A number in a text that is written with escapes is not read.
    let is_escaped = fields.get("max_tokens").is_some_and(Value::is_string) && body.contains(&b'\\');
    let is_default = is_escaped && measured.max_tokens == DEFAULT_MAX_TOKENS;
    assert!(measured.max_tokens == by_tree || is_default, "{:?} and not {by_tree:?}", measured.max_tokens);

    for tail in [&b" \r\n\t"[..], b"}", b",\"max_tokens\":7}", b"\xff"] {
        let longer = measure(&[body, tail].concat());
        let expected = Demand { body_bytes: (body.len() + tail.len()) as u64, ..measured.clone() };
        assert_eq!(longer, expected, "what follows the object changes only the size");
    }
}

fn budget(value: &Value) -> Budget {
    let tokens = match value {
        Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
        Value::Number(number) => number.as_f64(),
        Value::String(text) => number(text.trim()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    tokens.map_or(DEFAULT_MAX_TOKENS, Budget::from_fractional_tokens)
}

fn number(text: &str) -> Option<f64> {
    let number: f64 = text.parse().ok()?;
    // Rust reads names for what is no number, too.
    (!text.contains(|c: char| c.is_ascii_alphabetic() && !matches!(c, 'e' | 'E'))).then_some(number)
}

fn is_truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}
