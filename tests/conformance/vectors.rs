//! Reading the recorded vectors.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// One line of a file.
#[derive(Debug)]
pub(crate) struct Line {
    /// Counted from 1.
    pub(crate) number: usize,
    pub(crate) value: Value,
}

/// The text of a file of `tests/data/golden`.
pub(crate) fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn lines(file: &str) -> Vec<Line> {
    let parse = |(index, line): (usize, &str)| Line { number: index + 1, value: serde_json::from_str(line).unwrap() };
    read(file).lines().enumerate().map(parse).collect()
}

/// A number, or one of the strings that stand for what JSON has no number for.
pub(crate) fn float(value: &Value) -> f64 {
    match value {
        Value::String(name) => match name.as_str() {
            "NaN" => f64::NAN,
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            _ => panic!("{name:?} is no number"),
        },
        _ => value.as_f64().unwrap_or_else(|| panic!("{value} is no number")),
    }
}

pub(crate) fn floats(value: &Value) -> Vec<f64> {
    items(value).iter().map(float).collect()
}

pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no string"))
}

pub(crate) fn index(value: &Value) -> usize {
    usize::try_from(unsigned(value)).unwrap()
}

pub(crate) fn unsigned(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Tokens in thousandths, to the nearest.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
pub(crate) fn thousandths(tokens: f64) -> u128 {
    assert!((0.0..1e20).contains(&tokens), "{tokens} tokens");
    (tokens * 1_000.0).round() as u128
}

/// The exception that a call of the example ended with.
pub(crate) fn raised(out: &Value) -> Option<&str> {
    out.get("raises").map(text)
}

/// Whether two scores are equal but for the last bit, which the C library's `pow` and `exp` may give differently.
pub(crate) fn within_one_ulp(left: f64, right: f64) -> bool {
    left == right || left.next_up() == right || left.next_down() == right
}

/// Says what differs, for a replay that stops at the first difference.
#[expect(clippy::needless_pass_by_value, reason = "both sides are mostly made for the comparison")]
pub(crate) fn compare<T: PartialEq + std::fmt::Debug>(what: &str, ours: T, theirs: T) -> Result<(), String> {
    if ours == theirs { Ok(()) } else { Err(format!("{what}: Tidegate {ours:?}, the example {theirs:?}")) }
}
