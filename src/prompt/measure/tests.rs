//! What odd and ordinary bodies are measured as. The example's own answers are replayed in `tests/conformance`.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::MAX_BUDGET_TOKENS;
use super::*;

mod reference;

fn max_tokens(body: &str) -> Budget {
    measure(body.as_bytes()).max_tokens
}

fn ignores_eos(body: &str) -> bool {
    measure(body.as_bytes()).ignore_eos
}

#[test]
fn the_size_is_the_length_of_the_whole_body_whatever_it_holds() {
    for body in ["", "{", "{}", "[1]", "\u{feff}{}", "no json at all", "{\"prompt\":NaN}"] {
        assert_eq!(measure(body.as_bytes()).body_bytes, body.len() as u64, "{body}");
    }
}

#[test]
fn a_body_that_is_no_object_has_the_defaults() {
    for body in [&b""[..], b"[{\"max_tokens\":5}]", b"\"max_tokens\"", b"5", b"null", b"\xff\xfe", b"--boundary\r\n"] {
        assert_eq!(measure(body), Demand::of_bytes(body.len() as u64));
    }
}

#[test]
fn numbers_in_every_notation_are_budgets() {
    for (json, millitokens) in [
        ("0", 0),
        ("-0.0", 0),
        ("1e2", 100_000),
        ("1E+2", 100_000),
        ("10.5", 10_500),
        ("2500e-3", 2_500),
        ("1e-400", 0),
        ("4294967295.5", 4_294_967_295_500),
        ("true", 1_000),
        ("false", 0),
        (r#""12""#, 12_000),
        (r#"" 12 ""#, 12_000),
        (r#""12.5""#, 12_500),
    ] {
        assert_eq!(max_tokens(&format!(r#"{{"max_tokens":{json}}}"#)).millitokens(), millitokens, "{json}");
    }
}

#[test]
fn values_that_are_no_numbers_count_as_the_default() {
    for json in ["null", "[1]", "[]", "{}", r#"{"a":1}"#, r#""""#, r#""many""#, r#""inf""#, r#""NaN""#, r#""1 2""#] {
        assert_eq!(max_tokens(&format!(r#"{{"max_tokens":{json}}}"#)), DEFAULT_MAX_TOKENS, "{json}");
    }
}

#[test]
fn negative_budgets_count_as_none_and_huge_ones_as_the_most() {
    for json in ["-1", "-0.001", "-1e309", "-99999999999999999999999999", r#""-5""#] {
        assert_eq!(max_tokens(&format!(r#"{{"max_tokens":{json}}}"#)), Budget::from_tokens(0), "{json}");
    }
    for json in ["4294967297", "1e18", "1e309", r#""1e309""#, &"9".repeat(400), &format!("{}.5", "9".repeat(400))] {
        let most = Budget::from_tokens(MAX_BUDGET_TOKENS);
        assert_eq!(max_tokens(&format!(r#"{{"max_tokens":{json}}}"#)), most, "{json}");
    }
}

#[test]
fn of_duplicate_keys_the_last_counts() {
    assert_eq!(max_tokens(r#"{"max_tokens":1,"max_tokens":7}"#), Budget::from_tokens(7));
    assert_eq!(max_tokens(r#"{"max_tokens":1,"max_tokens":null}"#), DEFAULT_MAX_TOKENS);
    assert!(!ignores_eos(r#"{"ignore_eos":true,"ignore_eos":false}"#));
}

#[test]
fn keys_written_with_escapes_are_the_same_keys_and_others_are_not() {
    assert_eq!(max_tokens(r#"{"max\u005ftokens":7}"#), Budget::from_tokens(7));
    for key in ["Max_Tokens", "max_tokens ", "max_token", "max_completion_tokens", "n", "best_of", ""] {
        assert_eq!(max_tokens(&format!(r#"{{"{key}":7}}"#)), DEFAULT_MAX_TOKENS, "{key}");
    }
}

#[test]
fn only_the_top_level_counts() {
    let body = r#"{"extra":{"max_tokens":5,"ignore_eos":true},"list":[{"max_tokens":6}],"text":"\"max_tokens\":7"}"#;
    assert_eq!(measure(body.as_bytes()), Demand::of_bytes(body.len() as u64));
}

#[test]
fn ignore_eos_is_truthy_as_in_python() {
    for json in
        ["true", "1", "-1", "0.1", "1e309", r#""false""#, r#""no""#, r#""0""#, r#"" ""#, "[0]", "[ [] ]", r#"{"":0}"#]
    {
        assert!(ignores_eos(&format!(r#"{{"ignore_eos":{json}}}"#)), "{json}");
    }
    for json in ["false", "null", "0", "-0", "0.0", "0e5", "1e-400", r#""""#, "[]", "[ \n ]", "{}", "{\t}"] {
        assert!(!ignores_eos(&format!(r#"{{"ignore_eos":{json}}}"#)), "{json}");
    }
}

#[test]
fn white_space_and_a_byte_order_mark_change_only_the_size() {
    let body = "\u{feff} \r\n\t{ \"max_tokens\" : 9 ,\n\"ignore_eos\" : true } \n";
    assert_eq!(
        measure(body.as_bytes()),
        Demand { body_bytes: body.len() as u64, max_tokens: Budget::from_tokens(9), ignore_eos: true, work: None }
    );
}

#[test]
fn what_stands_before_a_nan_or_a_break_counts() {
    for end in ["NaN}", "-Infinity}", "\"unfinished", "", "\"\u{1}\"}", "01}"] {
        let body = format!(r#"{{"max_tokens":9,"ignore_eos":1,"temperature":{end}"#);
        let expected =
            Demand { body_bytes: body.len() as u64, max_tokens: Budget::from_tokens(9), ignore_eos: true, work: None };
        assert_eq!(measure(body.as_bytes()), expected, "{body}");
    }
    assert_eq!(max_tokens(r#"{"max_tokens":NaN}"#), DEFAULT_MAX_TOKENS);
    assert_eq!(max_tokens(r#"{"max_tokens":9"#), Budget::from_tokens(9));
}

#[test]
fn text_that_is_no_utf8_and_lone_surrogates_are_skipped_over() {
    let body = b"{\"prompt\":\"\xff\xfe \\ud800 \\uD83D\",\"max_tokens\":9}";
    assert_eq!(measure(body).max_tokens, Budget::from_tokens(9));
}

#[test]
fn a_hundred_thousand_levels_of_nesting_are_read() {
    const LEVELS: usize = 100_000;
    // A small stack, so that a recursive reader would overflow it.
    let reader = std::thread::Builder::new().stack_size(128 * 1024).spawn(|| {
        let lists = format!(r#"{{"prompt":{}{},"max_tokens":9}}"#, "[".repeat(LEVELS), "]".repeat(LEVELS));
        let objects = format!(r#"{{"a":{}1{},"max_tokens":9}}"#, r#"{"a":"#.repeat(LEVELS), "}".repeat(LEVELS));
        let in_the_field = format!(r#"{{"max_tokens":{}"#, "[".repeat(LEVELS));
        (max_tokens(&lists), max_tokens(&objects), max_tokens(&in_the_field))
    });
    let nine = Budget::from_tokens(9);
    assert_eq!(reader.unwrap().join().unwrap(), (nine, nine, DEFAULT_MAX_TOKENS));
}

/// Any JSON, with the keys that matter at every level.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e6..1e6).prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::hash_map("max_tokens|ignore_eos|.*", inner, 0..8).prop_map(Value::from_iter),
        ]
    })
}

/// What [`measure`] says, told from a tree.
fn measured_from_tree(body: &Value) -> (Budget, bool) {
    let budget = match &body["max_tokens"] {
        Value::Bool(flag) => Budget::from_tokens(u64::from(*flag)),
        Value::Number(number) => Budget::from_fractional_tokens(number.as_f64().unwrap()),
        _ => DEFAULT_MAX_TOKENS,
    };
    let is_truthy = match &body["ignore_eos"] {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    };
    (budget, is_truthy)
}

proptest! {
    #[test]
    fn reading_without_a_tree_finds_what_a_tree_holds(
        mut body in prop::collection::hash_map("[a-z\"\\\\é]*", any_json(), 0..6),
        max_tokens in prop::option::of(prop_oneof![
            any::<i64>().prop_map(Value::from),
            (-10.0..1e10).prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            Just(json!([7])),
        ]),
        ignore_eos in prop::option::of(any_json()),
        pretty in any::<bool>(),
    ) {
        body.extend(max_tokens.map(|value| ("max_tokens".to_owned(), value)));
        body.extend(ignore_eos.map(|value| ("ignore_eos".to_owned(), value)));
        let body = Value::from_iter(body);
        let text = if pretty { serde_json::to_string_pretty(&body) } else { serde_json::to_string(&body) }.unwrap();
        let demand = measure(text.as_bytes());
        prop_assert_eq!(demand.body_bytes, text.len() as u64);
        prop_assert_eq!((demand.max_tokens, demand.ignore_eos), measured_from_tree(&body), "{}", text);
    }

    #[test]
    fn any_bytes_are_measured(body in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(measure(&body).body_bytes, body.len() as u64);
    }

    #[test]
    fn any_cut_of_a_body_is_measured(cut in 0_usize..60) {
        let body = r#"{"prompt":"\u4f60 \"hi\"","max_tokens":100,"ignore_eos":[0]}"#;
        let text = &body.as_bytes()[..cut.min(body.len())];
        let demand = measure(text);
        // A number that is cut off is not yet a value with an end, but its digits so far are all there is.
        prop_assert!([1, 10, 16, 100].map(Budget::from_tokens).contains(&demand.max_tokens));
    }

    #[test]
    fn bodies_are_measured_as_by_a_strict_reader_of_json(body in odd_json()) {
        prop_assert_eq!(measure(&body), reference::measure(&body), "{}", String::from_utf8_lossy(&body));
    }

    #[test]
    fn any_change_to_a_body_is_measured_as_by_a_strict_reader_of_json(
        mut body in any_json().prop_map(|value| json!({"a": value, "max_tokens": 7, "b": [value]}).to_string().into_bytes()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        for (place, byte) in changes {
            let place = place.index(body.len());
            body[place] = byte;
        }
        prop_assert_eq!(measure(&body), reference::measure(&body), "{}", String::from_utf8_lossy(&body));
    }
}

/// What looks like JSON.
pub(in crate::prompt) fn odd_json() -> impl Strategy<Value = Vec<u8>> {
    const PIECES: [&str; 54] = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "\"messages\":",
        "\"content\":",
        "\"prompt\":",
        "\"max_tokens\":",
        "\"ignore_eos\":",
        "\"tools\":",
        "\"role\":\"user\",",
        "\"text\"",
        "\"query\":",
        "\"documents\":",
        "\"arguments\":",
        "\"image_url\":",
        "\"max\\u005ftokens\":",
        "12",
        "-0.5e3",
        "01",
        "1e",
        "-",
        "true",
        "false",
        "null",
        "nul",
        "NaN",
        " ",
        "\n",
        "\x0c",
        "\x01",
        "\\n",
        "\\u12",
        "\\u4f60",
        "\\ud83c\\udf0a",
        "\\ud83c",
        "\\x",
        "潮水",
        "word and word ",
        "\"plain\"",
        "\"a\\\"b\"",
        "99999999999999999999999999",
        "\"12\"",
        "[1,2,3]",
        "[1 , 2.5]",
        "{\"a\":[{}]}",
        "\"sampling_params\":{",
        "[[1],[2]]",
        "\u{feff}",
        "\"stream\":true",
    ];
    let piece = prop_oneof![
        30 => prop::sample::select(PIECES.to_vec()).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => prop::sample::select(PIECES.to_vec()).prop_map(|piece| piece.repeat(400).into_bytes()),
        1 => any::<u8>().prop_map(|byte| vec![byte]),
    ];
    let begin = prop::sample::select(vec!["{", "{", "{", ""]);
    (begin, prop::collection::vec(piece, 0..16))
        .prop_map(|(begin, pieces)| [begin.as_bytes(), &pieces.concat()].concat())
}
