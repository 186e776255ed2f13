//! Strings of JSON: where they end, and what they say.

use memchr::memchr2;

/// Bytes of a run without escapes that are looked at word by word before looking further ahead pays.
const NEAR: usize = 4 * WORD;

/// So many bytes are looked at at once.
const WORD: usize = 8;

/// The longest that one escape becomes, in bytes: one that is kept.
const LONGEST: usize = 6;

/// Pieces up to this length are handed over together, longer ones where they are. In bytes.
const SHORT: usize = 256;

/// Where short pieces are gathered.
pub(super) type Gathered = [u8; 1_024];
pub(super) const NOTHING_GATHERED: Gathered = [0; size_of::<Gathered>()];

/// Up to where there is room for the bytes that are looked at word by word, a short piece, and an escape.
const ROOM: usize = size_of::<Gathered>() - NEAR - SHORT - LONGEST;

/// A string that has an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End<'a> {
    /// What follows the closing quote.
    pub(super) rest: &'a [u8],
    /// Whether strict readers of JSON take it for a string.
    pub(super) is_sound: bool,
}

/// Hands over what a string says, piece by piece, and returns its end; `None` when it has none.
///
/// `from` begins behind the opening quote. Half of a surrogate pair becomes U+FFFD, as do escapes that JSON does not
/// know. Control characters and what is not UTF-8 stay as they are.
pub(super) fn read<'a>(
    from: &'a [u8],
    escapes: Escapes,
    gathered: &mut Gathered,
    mut piece: impl FnMut(&[u8]),
) -> Option<End<'a>> {
    let mut rest = from;
    let mut length = 0;
    let mut is_sound = true;
    loop {
        if length > ROOM {
            piece(&gathered[..length]);
            length = 0;
        }
        let mut copied = 0;
        let end = loop {
            if copied == NEAR {
                break None;
            }
            let (end, word) = first_special(&rest[copied..]);
            gathered[length + copied..length + copied + WORD].copy_from_slice(&word);
            match end {
                None => copied += WORD,
                Some(end) => break Some(copied + end),
            }
        };
        // What was copied behind the end is written over.
        let run = end.unwrap_or(copied);
        is_sound &= !has_control(&gathered[length..length + run]);
        length += run;
        rest = &rest[run..];
        if end.is_none() {
            let end = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
            is_sound &= !has_control(&rest[..end]);
            if end <= SHORT {
                gathered[length..length + end].copy_from_slice(&rest[..end]);
                length += end;
            } else {
                piece(&gathered[..length]);
                length = 0;
                piece(&rest[..end]);
            }
            rest = &rest[end..];
        }
        // Escapes often come together.
        while let Some((b'\\', after)) = rest.split_first()
            && length <= ROOM + NEAR
        {
            let escape = escape(after, escapes, &mut gathered[length..]);
            length += escape.bytes;
            is_sound &= escape.is_sound;
            rest = escape.rest;
        }
        match rest.split_first() {
            Some((b'"', after)) => {
                piece(&gathered[..length]);
                return Some(End { rest: after, is_sound });
            }
            Some(_) => {}
            None => {
                piece(&gathered[..length]);
                return None;
            }
        }
    }
}

/// The first eight bytes of a text. A shorter text is filled up with zeros.
#[inline(always)]
fn first_word(text: &[u8]) -> [u8; WORD] {
    text.first_chunk().copied().unwrap_or_else(|| {
        let mut word = [0; WORD];
        word[..text.len()].copy_from_slice(text);
        word
    })
}

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Marks the bytes of eight that are below a limit of at most 0x80. The lowest mark is right, those above it may be wrong.
#[inline(always)]
fn below(bytes: u64, limit: u8) -> u64 {
    bytes.wrapping_sub(LOW_BITS * u64::from(limit)) & !bytes & HIGH_BITS
}

/// Marks quotes and backslashes like [`below`].
#[inline(always)]
fn quotes_and_backslashes(bytes: u64) -> u64 {
    below(bytes ^ (LOW_BITS * u64::from(b'"')), 1) | below(bytes ^ (LOW_BITS * u64::from(b'\\')), 1)
}

/// The first eight bytes of a text, and the place of the first quote or backslash among them. A shorter text has its end
/// there, too.
#[inline(always)]
fn first_special(text: &[u8]) -> (Option<usize>, [u8; WORD]) {
    let word = first_word(text);
    let first = (quotes_and_backslashes(u64::from_le_bytes(word)).trailing_zeros() / 8) as usize;
    let end = first.min(text.len());
    ((end < WORD).then_some(end), word)
}

/// Whether there are control characters, which JSON wants to be escaped.
fn has_control(text: &[u8]) -> bool {
    // To look at all of it is faster than to stop.
    text.iter().fold(u8::MAX, |least, byte| least.min(*byte)) < b' '
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
        let end = special(rest)?;
        if rest[end] == b'"' {
            return Some(&rest[end + 1..]);
        }
        rest = rest.get(end + 2..)?;
    }
}

/// The place of the first quote or backslash.
fn special(text: &[u8]) -> Option<usize> {
    // Most strings that are skipped are names.
    for place in [0, WORD] {
        if let (Some(end), _) = first_special(text.get(place..)?) {
            return (place + end < text.len()).then_some(place + end);
        }
    }
    memchr2(b'"', b'\\', &text[2 * WORD..]).map(|place| 2 * WORD + place)
}

/// The same for a string as JSON has them: `None`, too, when it has control characters or unknown escapes.
pub(in crate::prompt) fn skip_sound(from: &[u8]) -> Option<&[u8]> {
    let mut rest = from;
    let mut words = 0;
    loop {
        let word = u64::from_le_bytes(first_word(rest));
        // The zeros behind the end of a text are control characters as well.
        let special = quotes_and_backslashes(word) | below(word, b' ');
        let plain = (special.trailing_zeros() / 8) as usize;
        if plain == WORD {
            rest = &rest[WORD..];
            words += 1;
            if words == NEAR / WORD {
                rest = skip_plain(rest)?;
                words = 0;
            }
            continue;
        }
        words = 0;
        rest = rest.get(plain..)?;
        // Escapes often come together.
        loop {
            match rest {
                [b'"', after @ ..] => return Some(after),
                [b'\\', b'u', after @ ..] => rest = four_digits(after)?.1,
                [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', after @ ..] => rest = after,
                [b'\\', ..] => return None,
                _ => break,
            }
        }
        if *rest.first()? < b' ' {
            return None;
        }
    }
}

/// Skips text that is not special, as far as that takes no time.
fn skip_plain(text: &[u8]) -> Option<&[u8]> {
    /// Chunks that are looked at before looking further ahead pays.
    const CHUNKS: usize = 8;
    let (chunks, _) = text.as_chunks::<32>();
    let is_special = |found: bool, byte: &u8| found | (*byte < b' ') | (*byte == b'"') | (*byte == b'\\');
    let plain = chunks.iter().take(CHUNKS).take_while(|chunk| !chunk.iter().fold(false, is_special)).count();
    let rest = &text[plain * 32..];
    if plain < CHUNKS {
        return Some(rest);
    }
    let end = memchr2(b'"', b'\\', rest)?;
    (!has_control(&rest[..end])).then(|| &rest[end..])
}

/// An escape that was read.
struct Escape<'a> {
    /// How many bytes stand for it.
    bytes: usize,
    /// What follows.
    rest: &'a [u8],
    /// Whether JSON knows it.
    is_sound: bool,
}

/// Writes what an escape stands for. `from` begins behind the backslash.
#[inline(always)]
fn escape<'a>(from: &'a [u8], escapes: Escapes, to: &mut [u8]) -> Escape<'a> {
    let Some((kind, rest)) = from.split_first() else { return Escape { bytes: 0, rest: from, is_sound: false } };
    let mut is_sound = true;
    if *kind == b'u' {
        let character = unicode(rest);
        is_sound = character.is_some();
        let (character, after) = character.unwrap_or((char::REPLACEMENT_CHARACTER, rest));
        if escapes == Escapes::Decoded || !character.is_ascii() {
            return Escape { bytes: character.encode_utf8(to).len(), rest: after, is_sound };
        }
    }
    let letter = match kind {
        b'"' | b'\\' | b'/' | b'u' => *kind,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        _ => {
            is_sound = false;
            0
        }
    };
    if escapes == Escapes::Kept {
        to[..2].copy_from_slice(&[b'\\', *kind]);
        return Escape { bytes: 2, rest, is_sound };
    }
    if !is_sound {
        return Escape { bytes: char::REPLACEMENT_CHARACTER.encode_utf8(to).len(), rest, is_sound };
    }
    to[0] = letter;
    Escape { bytes: 1, rest, is_sound }
}

/// The character of one or two `\u` escapes, and what follows it; `None` when it has no four digits. `from` begins behind
/// the first `\u`.
#[inline(always)]
fn unicode(from: &[u8]) -> Option<(char, &[u8])> {
    let (first, rest) = four_digits(from)?;
    if let 0xd800..=0xdbff = first
        && let Some((second @ 0xdc00..=0xdfff, rest)) = rest.strip_prefix(b"\\u").and_then(four_digits)
    {
        let scalar = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        return Some((char::from_u32(scalar).unwrap_or(char::REPLACEMENT_CHARACTER), rest));
    }
    Some((char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER), rest))
}

/// What is no digit in [`DIGITS`]: above any four digits.
const NO_DIGIT: u32 = 1 << 16;

/// What hexadecimal digits are worth.
static DIGITS: [u32; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut digit = 0;
    while digit < 16 {
        digits[b"0123456789abcdef"[digit as usize] as usize] = digit;
        digits[b"0123456789ABCDEF"[digit as usize] as usize] = digit;
        digit += 1;
    }
    digits
};

#[inline(always)]
fn four_digits(from: &[u8]) -> Option<(u32, &[u8])> {
    let (digits, rest) = from.split_first_chunk::<4>()?;
    let [first, second, third, fourth] = digits.map(|digit| DIGITS[usize::from(digit)]);
    let value = first << 12 | second << 8 | third << 4 | fourth;
    (value < NO_DIGIT).then_some((value, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(from: &[u8]) -> (Vec<u8>, Option<&[u8]>) {
        let mut text = Vec::new();
        let end = read(from, Escapes::Decoded, &mut NOTHING_GATHERED.clone(), |piece| text.extend_from_slice(piece));
        (text, end.map(|end| end.rest))
    }

    /// What a string says, told byte by byte.
    fn slowly_read(mut from: &[u8], escapes: Escapes) -> (Vec<u8>, Option<&[u8]>) {
        let mut text = Vec::new();
        while let [first, after @ ..] = from {
            match first {
                b'"' => return (text, Some(after)),
                b'\\' => {
                    let mut room = [0; LONGEST];
                    let escape = escape(after, escapes, &mut room);
                    text.extend_from_slice(&room[..escape.bytes]);
                    from = escape.rest;
                }
                _ => {
                    text.push(*first);
                    from = after;
                }
            }
        }
        (text, None)
    }

    /// Strings with runs of all lengths between escapes.
    fn any_string() -> impl Strategy<Value = Vec<u8>> {
        const PIECES: [&str; 16] = [
            "\"",
            "\\",
            "\\\"",
            "\\n",
            "\\u4f60",
            "\\ud83c\\udf0a",
            "\\ud83c",
            "\\u12",
            "\\x",
            "a",
            "ab",
            "1234567",
            "潮",
            "\n",
            "\0",
            "u",
        ];
        let piece = prop_oneof![
            20 => prop::sample::select(PIECES.to_vec()).prop_map(|piece| piece.as_bytes().to_vec()),
            4 => (0_usize..700).prop_map(|length| vec![b'x'; length]),
            1 => any::<u8>().prop_map(|byte| vec![byte]),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
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
        let end = read(br#"\n\"\u4f60\u0041\ud83c\udf0a""#, Escapes::Kept, &mut NOTHING_GATHERED.clone(), |piece| {
            text.extend_from_slice(piece)
        });
        let expected = Some(End { rest: &b""[..], is_sound: true });
        assert_eq!((String::from_utf8(text).unwrap().as_str(), end), (r#"\n\"你\u0041🌊"#, expected));
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
        fn strings_are_read_as_byte_by_byte(string in any_string(), is_kept in any::<bool>()) {
            let escapes = if is_kept { Escapes::Kept } else { Escapes::Decoded };
            let (mut text, mut gathered) = (Vec::new(), NOTHING_GATHERED);
            let end = read(&string, escapes, &mut gathered, |piece| text.extend_from_slice(piece));
            prop_assert_eq!((text, end.map(|end| end.rest)), slowly_read(&string, escapes));
            prop_assert_eq!(end.map(|end| end.rest), skip(&string));
            prop_assert_eq!(end.filter(|end| end.is_sound).map(|end| end.rest), skip_sound(&string));
        }

        #[test]
        fn strings_are_sound_that_are_json(string in any_string()) {
            let json = [b"\"", &string[..]].concat();
            let mut values = serde_json::Deserializer::from_slice(&json).into_iter::<serde::de::IgnoredAny>();
            let rest = values.next().is_some_and(|value| value.is_ok()).then(|| &json[values.byte_offset()..]);
            prop_assert_eq!(skip_sound(&string), rest);
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
