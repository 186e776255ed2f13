//! Strings of JSON: where they end, and what they say.

use memchr::memchr2;

/// The longest that one escape becomes, in bytes.
const LONGEST: usize = 4;

/// Hands over what a string says, piece by piece, and returns what follows its closing quote; `None` when it has none.
///
/// `from` begins behind the opening quote. Half of a surrogate pair becomes U+FFFD, as do escapes that JSON does not
/// know. Control characters and what is not UTF-8 stay as they are.
pub(super) fn read<'a>(from: &'a [u8], escapes: Escapes, mut piece: impl FnMut(&[u8])) -> Option<&'a [u8]> {
    let mut rest = from;
    loop {
        let Some(end) = memchr2(b'"', b'\\', rest) else {
            piece(rest);
            return None;
        };
        if end > 0 {
            piece(&rest[..end]);
        }
        if rest[end] == b'"' {
            return Some(&rest[end + 1..]);
        }
        rest = escape(&rest[end + 1..], escapes, &mut piece);
    }
}

/// What becomes of escapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escapes {
    /// They become the characters that they stand for.
    Decoded,
    /// Only those of characters beyond ASCII do, as when JSON is written without escaping them.
    Kept,
}

/// What follows a string's closing quote; `None` when it has none.
pub(super) fn skip(from: &[u8]) -> Option<&[u8]> {
    let mut rest = from;
    loop {
        let end = memchr2(b'"', b'\\', rest)?;
        if rest[end] == b'"' {
            return Some(&rest[end + 1..]);
        }
        rest = rest.get(end + 2..)?;
    }
}

/// Hands over what an escape stands for, and returns what follows it. `from` begins behind the backslash.
fn escape<'a>(from: &'a [u8], escapes: Escapes, piece: &mut impl FnMut(&[u8])) -> &'a [u8] {
    let Some((kind, rest)) = from.split_first() else { return from };
    if *kind == b'u' {
        let (character, rest) = unicode(rest);
        if escapes == Escapes::Kept && character.is_ascii() {
            piece(&[b'\\', b'u']);
            piece(&from[1..from.len() - rest.len()]);
        } else {
            piece(character.encode_utf8(&mut [0; LONGEST]).as_bytes());
        }
        return rest;
    }
    if escapes == Escapes::Kept {
        piece(&[b'\\', *kind]);
        return rest;
    }
    match kind {
        b'"' | b'\\' | b'/' => piece(&[*kind]),
        b'b' => piece(b"\x08"),
        b'f' => piece(b"\x0c"),
        b'n' => piece(b"\n"),
        b'r' => piece(b"\r"),
        b't' => piece(b"\t"),
        _ => piece("\u{fffd}".as_bytes()),
    }
    rest
}

/// The character of one or two `\u` escapes, and what follows it. `from` begins behind the first `\u`.
fn unicode(from: &[u8]) -> (char, &[u8]) {
    let Some((first, rest)) = four_digits(from) else { return (char::REPLACEMENT_CHARACTER, from) };
    if let 0xd800..=0xdbff = first
        && let Some((second @ 0xdc00..=0xdfff, rest)) = rest.strip_prefix(b"\\u").and_then(four_digits)
    {
        let scalar = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        return (char::from_u32(scalar).unwrap_or(char::REPLACEMENT_CHARACTER), rest);
    }
    (char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER), rest)
}

fn four_digits(from: &[u8]) -> Option<(u32, &[u8])> {
    let (digits, rest) = from.split_first_chunk::<4>()?;
    let mut value = 0;
    for digit in digits {
        value = value << 4 | char::from(*digit).to_digit(16)?;
    }
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(from: &[u8]) -> (Vec<u8>, Option<&[u8]>) {
        let mut text = Vec::new();
        let rest = read(from, Escapes::Decoded, |piece| text.extend_from_slice(piece));
        (text, rest)
    }

    #[test]
    fn escapes_become_what_they_stand_for() {
        for (json, text) in [
            (r#"a\"b\\c\/d"#, "a\"b\\c/d"),
            (r"\b\f\n\r\t", "\u{8}\u{c}\n\r\t"),
            (r"\u4f60\u597D", "你好"),
            (r"\ud83c\udf0a!", "🌊!"),
            (r"\ud83c\ud83c\udf0a", "\u{fffd}🌊"),
            (r"\ud83cx", "\u{fffd}x"),
            (r"\udf0a", "\u{fffd}"),
            (r"\u12g4", "\u{fffd}12g4"),
            (r"\x", "\u{fffd}"),
        ] {
            let string = format!("{json}\" :");
            assert_eq!(decoded(string.as_bytes()), (text.as_bytes().to_vec(), Some(&b" :"[..])), "{json}");
        }
    }

    #[test]
    fn strings_that_break_off_have_no_end() {
        for json in ["", "a", "a\\", "\\u", "\\u12", "\\\""] {
            assert_eq!(decoded(json.as_bytes()).1, None, "{json}");
            assert_eq!(skip(json.as_bytes()), None, "{json}");
        }
    }

    #[test]
    fn kept_escapes_are_those_of_json_without_ascii_escapes() {
        let mut text = Vec::new();
        let rest = read(br#"\n\"\u4f60\u0041\ud83c\udf0a""#, Escapes::Kept, |piece| text.extend_from_slice(piece));
        assert_eq!((String::from_utf8(text).unwrap().as_str(), rest), (r#"\n\"你\u0041🌊"#, Some(&b""[..])));
    }

    proptest! {
        #[test]
        fn any_text_is_read_as_it_was_written(text in any::<String>(), is_ascii in any::<bool>()) {
            let mut json = serde_json::to_string(&text).unwrap();
            if is_ascii {
                let units = |c: char| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect();
                json = json.chars().map(|c| if c.is_ascii() { c.to_string() } else { units(c) }).collect();
            }
            let from = &json.as_bytes()[1..];
            prop_assert_eq!(decoded(from), (text.into_bytes(), Some(&b""[..])));
            prop_assert_eq!(skip(from), Some(&b""[..]));
        }

        #[test]
        fn reading_and_skipping_find_the_same_end(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            prop_assert_eq!(decoded(&bytes).1, skip(&bytes));
        }

        #[test]
        fn backslashes_and_quotes_anyhow(bytes in prop::collection::vec(prop::sample::select(br#"\"ud83c"#.to_vec()), 0..40)) {
            prop_assert_eq!(decoded(&bytes).1, skip(&bytes));
        }
    }
}
