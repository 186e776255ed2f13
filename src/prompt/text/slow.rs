//! Counts features of text character by character, by the book: what [`Counter`](super::Counter) is held against.

use super::counter::{Decoded, decoded};
use super::script::Script;
use super::{Feature, Kind, TextCounts};

pub(super) fn counts(mut text: &[u8]) -> TextCounts {
    let mut counts = TextCounts::default();
    let (mut last, mut last_script) = (Kind::Break, None);
    while let Some(byte) = text.first() {
        if byte.is_ascii() {
            let kind = kind_of(*byte);
            for feature in features(last, kind) {
                counts.set(*feature, counts.get(*feature) + 1);
            }
            (last, last_script) = (kind, None);
            text = &text[1..];
            continue;
        }
        let Decoded::Character(code_point, width) = decoded(text) else {
            counts.set(Feature::Other, counts.get(Feature::Other) + 1);
            break;
        };
        text = &text[width..];
        let script = Script::of(code_point);
        let is_latin = script == Script::LatinExtended;
        let is_within_word = last_script == Some(script) || (is_latin && [Kind::Lower, Kind::Upper].contains(&last));
        if script.has_words() && !is_within_word {
            counts.set(Feature::ForeignWords, counts.get(Feature::ForeignWords) + 1);
        }
        let feature = feature_of(script);
        counts.set(feature, counts.get(feature) + 1);
        last = if is_latin { Kind::Lower } else { Kind::Foreign };
        last_script = Some(script);
    }
    counts
}

fn kind_of(byte: u8) -> Kind {
    match byte {
        b'a'..=b'z' => Kind::Lower,
        b'A'..=b'Z' => Kind::Upper,
        b'0'..=b'9' => Kind::Digit,
        b' ' | b'\t' => Kind::Blank,
        b'\n' | b'\r' => Kind::Newline,
        0..=0x1f | 0x7f => Kind::Break,
        _ => Kind::Punctuation,
    }
}

/// What an ASCII character counts as behind another character.
fn features(last: Kind, kind: Kind) -> &'static [Feature] {
    use Feature::*;
    match (last, kind) {
        (Kind::Blank | Kind::Break, Kind::Lower | Kind::Upper) => &[Letters, WordsAfterBlank],
        (Kind::Punctuation, Kind::Lower | Kind::Upper) => &[Letters, WordsAfterPunctuation],
        (Kind::Digit | Kind::Newline | Kind::Foreign, Kind::Lower | Kind::Upper) => &[Letters, WordsAfterOther],
        (Kind::Lower, Kind::Upper) => &[Letters, CaseTurns],
        (Kind::Upper, Kind::Upper) => &[Letters, Capitals],
        (Kind::Lower | Kind::Upper, Kind::Lower) => &[Letters],
        (Kind::Digit, Kind::Digit) => &[Digits],
        (Kind::Blank, Kind::Digit) => &[Digits, NumbersAfterBlank],
        (_, Kind::Digit) => &[Digits, Numbers],
        (Kind::Blank, Kind::Punctuation) => &[PunctuationAfterBlank],
        (Kind::Punctuation, Kind::Punctuation) => &[MorePunctuation],
        (_, Kind::Punctuation) => &[Punctuation],
        (Kind::Blank, Kind::Blank) => &[MoreBlanks],
        (Kind::Newline, Kind::Blank) => &[Indents],
        (Kind::Blank, Kind::Newline) => &[Lines, TrailingBlanks],
        (Kind::Punctuation, Kind::Newline) => &[LinesAfterPunctuation],
        (Kind::Newline, Kind::Newline) => &[MoreLines],
        (_, Kind::Newline) => &[Lines],
        (_, Kind::Blank | Kind::Break | Kind::Foreign) => &[],
    }
}

fn feature_of(script: Script) -> Feature {
    match script {
        Script::LatinExtended => Feature::LatinExtended,
        Script::Cyrillic => Feature::Cyrillic,
        Script::Greek => Feature::Greek,
        Script::Hebrew => Feature::Hebrew,
        Script::Arabic => Feature::Arabic,
        Script::Han => Feature::Han,
        Script::Kana => Feature::Kana,
        Script::Hangul => Feature::Hangul,
        Script::Indic => Feature::Indic,
        Script::SoutheastAsian => Feature::SoutheastAsian,
        Script::EastAsianPunctuation => Feature::EastAsianPunctuation,
        Script::Symbol => Feature::Symbols,
        Script::Emoji => Feature::Emoji,
        Script::Other => Feature::Other,
    }
}
