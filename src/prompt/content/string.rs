//! Strings of JSON: where they end, and what they say.

use memchr::memchr2;

/// Bytes that are looked at one by one before looking further ahead pays.
const NEAR: usize = 16;

/// The longest that one escape becomes, in bytes: one that is kept.
const LONGEST: usize = 6;

/// Pieces shorter than [`NEAR`] are handed over together, up to this many bytes.
const GATHERED: usize = 256;

/// Hands over what a string says, piece by piece, and returns what follows its closing quote; `None` when it has none.
///
/// `from` begins behind the opening quote. Half of a surrogate pair becomes U+FFFD, as do escapes that JSON does not
/// know. Control characters and what is not UTF-8 stay as they are.
pub(super) fn read(from: &[u8], escapes: Escapes, mut piece: impl FnMut(&[u8])) -> Option<&[u8]> {
    let mut rest = from;
    let mut gathered = [0; GATHERED];
    let mut length = 0;
    loop {
        if length > GATHERED - NEAR - LONGEST {
            piece(&gathered[..length]);
            length = 0;
        }
        let near = &rest[..NEAR.min(rest.len())];
        let room = &mut gathered[length..length + NEAR];
        let mut copied = 0;
        for (to, byte) in room.iter_mut().zip(near) {
            if *byte == b'"' || *byte == b'\\' {
                break;
            }
            *to = *byte;
            copied += 1;
        }
        length += copied;
        rest = &rest[copied..];
        if copied == NEAR {
            let end = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
            if end >= NEAR {
                piece(&gathered[..length]);
                length = 0;
                piece(&rest[..end]);
                rest = &rest[end..];
            } else {
                continue;
            }
        }
        match rest.split_first() {
            Some((b'"', after)) => {
                piece(&gathered[..length]);
                return Some(after);
            }
            Some((_, after)) => {
                let (decoded, after) = escape(after, escapes, &mut gathered[length..]);
                length += decoded;
                rest = after;
            }
            None => {
                piece(&gathered[..length]);
                return None;
            }
        }
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

/// Writes what an escape stands for; how many bytes that is, and what follows the escape. `from` begins behind the
/// backslash.
fn escape<'a>(from: &'a [u8], escapes: Escapes, to: &mut [u8]) -> (usize, &'a [u8]) {
    let Some((kind, rest)) = from.split_first() else { return (0, from) };
    if *kind == b'u' {
        let (character, after) = unicode(rest);
        if escapes == Escapes::Decoded || !character.is_ascii() {
            return (character.encode_utf8(to).len(), after);
        }
    }
    if escapes == Escapes::Kept {
        to[..2].copy_from_slice(&[b'\\', *kind]);
        return (2, rest);
    }
    to[0] = match kind {
        b'"' | b'\\' | b'/' => *kind,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        _ => return (char::REPLACEMENT_CHARACTER.encode_utf8(to).len(), rest),
    };
    (1, rest)
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
