//! Counts features of text that comes in pieces of UTF-8.

use super::script::{SCRIPTS, Script};
use super::{Feature, TextCounts};

/// Kinds of ASCII characters, as bits 0 to 2 of an index into the pairs.
const BREAK: u8 = 0;
const LOWER: u8 = 1;
const UPPER: u8 = 2;
const DIGIT: u8 = 3;
const BLANK: u8 = 4;
const NEWLINE: u8 = 5;
const PUNCTUATION: u8 = 6;
/// A character beyond ASCII that is no Latin letter.
const FOREIGN: u8 = 7;

const KINDS: usize = 8;

#[expect(clippy::cast_possible_truncation, reason = "the index of a byte is below 256")]
const KIND_OF: [u8; 256] = {
    let mut kinds = [PUNCTUATION; 256];
    let mut byte = 0;
    while byte < 256 {
        kinds[byte] = match byte as u8 {
            b'a'..=b'z' => LOWER,
            b'A'..=b'Z' => UPPER,
            b'0'..=b'9' => DIGIT,
            b' ' | b'\t' => BLANK,
            b'\n' | b'\r' => NEWLINE,
            0..=0x1f | 0x7f => BREAK,
            0x80.. => FOREIGN,
            _ => PUNCTUATION,
        };
        byte += 1;
    }
    kinds
};

/// Histograms that are used in turn, so that an increment seldom waits for the one before it.
const LANES: usize = 4;

/// Bytes with their high bit set, in eight bytes at once.
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Counts, for each pair of neighbouring characters, of what kinds they are; and characters beyond ASCII by script.
#[derive(Debug, Clone)]
pub(in crate::prompt) struct Counter {
    pairs: [[u64; KINDS * KINDS]; LANES],
    characters: [u64; SCRIPTS],
    words: u64,
    /// Kind of the last character.
    last: u8,
    last_script: Option<Script>,
    /// The first bytes of a character whose rest has not come yet.
    begun: [u8; 4],
    begun_bytes: usize,
}

impl Counter {
    pub(in crate::prompt) fn new() -> Self {
        Self {
            pairs: [[0; KINDS * KINDS]; LANES],
            characters: [0; SCRIPTS],
            words: 0,
            last: BREAK,
            last_script: None,
            begun: [0; 4],
            begun_bytes: 0,
        }
    }

    /// Counts the next piece. Pieces may break within a character; what is not UTF-8 counts as of no known script.
    pub(in crate::prompt) fn count(&mut self, mut text: &[u8]) {
        while self.begun_bytes > 0
            && let [next, rest @ ..] = text
        {
            self.begun[self.begun_bytes] = *next;
            let begun = self.begun;
            match decoded(&begun[..=self.begun_bytes]) {
                Decoded::Begun => self.begun_bytes += 1,
                Decoded::Character(code_point, width) => {
                    self.count_foreign(Script::of(code_point));
                    if width <= self.begun_bytes {
                        // No character after all: its first byte counts as none, and so do the others.
                        for _ in width..self.begun_bytes {
                            self.count_foreign(Script::Other);
                        }
                        self.begun_bytes = 0;
                        break;
                    }
                    self.begun_bytes = 0;
                }
            }
            text = rest;
        }
        while !text.is_empty() {
            text = self.count_ascii(text);
            text = self.count_beyond(text);
        }
    }

    /// Counts up to the first byte that is not ASCII.
    fn count_ascii<'a>(&mut self, text: &'a [u8]) -> &'a [u8] {
        let mut last = self.last;
        let (eights, _) = text.as_chunks::<8>();
        let mut counted = 0;
        for eight in eights {
            if u64::from_le_bytes(*eight) & HIGH_BITS != 0 {
                break;
            }
            for (place, byte) in eight.iter().enumerate() {
                let kind = KIND_OF[usize::from(*byte)];
                let pair = &mut self.pairs[place % LANES][usize::from(last << 3 | kind) % (KINDS * KINDS)];
                *pair = pair.wrapping_add(1);
                last = kind;
            }
            counted += 8;
        }
        for byte in &text[counted..] {
            if !byte.is_ascii() {
                break;
            }
            let kind = KIND_OF[usize::from(*byte)];
            self.pairs[0][usize::from(last << 3 | kind) % (KINDS * KINDS)] += 1;
            last = kind;
            counted += 1;
        }
        self.last = last;
        if counted > 0 {
            self.last_script = None;
        }
        &text[counted..]
    }

    /// Counts up to the first byte that is ASCII.
    fn count_beyond<'a>(&mut self, mut text: &'a [u8]) -> &'a [u8] {
        while let [first, ..] = text
            && !first.is_ascii()
        {
            match decoded(text) {
                Decoded::Character(code_point, width) => {
                    self.count_foreign(Script::of(code_point));
                    text = &text[width..];
                }
                Decoded::Begun => {
                    self.begun[..text.len()].copy_from_slice(text);
                    self.begun_bytes = text.len();
                    return &[];
                }
            }
        }
        text
    }

    fn count_foreign(&mut self, script: Script) {
        let is_latin = script == Script::LatinExtended;
        let is_within_word =
            self.last_script == Some(script) || (is_latin && (self.last == LOWER || self.last == UPPER));
        self.words += u64::from(script.has_words() && !is_within_word);
        self.characters[script as usize] += 1;
        self.last = if is_latin { LOWER } else { FOREIGN };
        self.last_script = Some(script);
    }

    /// The features of all that was counted so far.
    pub(in crate::prompt) fn counts(&self) -> TextCounts {
        let pairs = |firsts: &[u8], seconds: &[u8]| -> u64 {
            let lanes = self.pairs.iter();
            lanes.map(|lane| cells(firsts, seconds).map(|cell| lane[cell]).sum::<u64>()).sum()
        };
        let characters = |script: Script| self.characters[script as usize];
        const ANY: &[u8] = &[BREAK, LOWER, UPPER, DIGIT, BLANK, NEWLINE, PUNCTUATION, FOREIGN];
        const LETTER: &[u8] = &[LOWER, UPPER];

        let mut counts = TextCounts::default();
        for (feature, count) in [
            (Feature::WordsAfterBlank, pairs(&[BLANK, BREAK], LETTER)),
            (Feature::WordsAfterPunctuation, pairs(&[PUNCTUATION], LETTER)),
            (Feature::WordsAfterOther, pairs(&[DIGIT, NEWLINE, FOREIGN], LETTER)),
            (Feature::Letters, pairs(ANY, LETTER)),
            (Feature::CaseTurns, pairs(&[LOWER], &[UPPER])),
            (Feature::Capitals, pairs(&[UPPER], &[UPPER])),
            (Feature::Digits, pairs(ANY, &[DIGIT])),
            (Feature::Numbers, pairs(&[BREAK, LOWER, UPPER, NEWLINE, PUNCTUATION, FOREIGN], &[DIGIT])),
            (Feature::NumbersAfterBlank, pairs(&[BLANK], &[DIGIT])),
            (Feature::Punctuation, pairs(&[BREAK, LOWER, UPPER, DIGIT, NEWLINE, FOREIGN], &[PUNCTUATION])),
            (Feature::PunctuationAfterBlank, pairs(&[BLANK], &[PUNCTUATION])),
            (Feature::MorePunctuation, pairs(&[PUNCTUATION], &[PUNCTUATION])),
            (Feature::MoreBlanks, pairs(&[BLANK], &[BLANK])),
            (Feature::Indents, pairs(&[NEWLINE], &[BLANK])),
            (Feature::TrailingBlanks, pairs(&[BLANK], &[NEWLINE])),
            (Feature::LinesAfterPunctuation, pairs(&[PUNCTUATION], &[NEWLINE])),
            (Feature::Lines, pairs(&[BREAK, LOWER, UPPER, DIGIT, BLANK, FOREIGN], &[NEWLINE])),
            (Feature::MoreLines, pairs(&[NEWLINE], &[NEWLINE])),
            (Feature::ForeignWords, self.words),
            (Feature::LatinExtended, characters(Script::LatinExtended)),
            (Feature::Cyrillic, characters(Script::Cyrillic)),
            (Feature::Greek, characters(Script::Greek)),
            (Feature::Hebrew, characters(Script::Hebrew)),
            (Feature::Arabic, characters(Script::Arabic)),
            (Feature::Han, characters(Script::Han)),
            (Feature::Kana, characters(Script::Kana)),
            (Feature::Hangul, characters(Script::Hangul)),
            (Feature::Indic, characters(Script::Indic)),
            (Feature::SoutheastAsian, characters(Script::SoutheastAsian)),
            (Feature::EastAsianPunctuation, characters(Script::EastAsianPunctuation)),
            (Feature::Symbols, characters(Script::Symbol)),
            (Feature::Emoji, characters(Script::Emoji)),
            (Feature::Other, characters(Script::Other) + u64::from(self.begun_bytes > 0)),
        ] {
            counts.set(feature, count);
        }
        counts
    }
}

/// The cells of a histogram for pairs of these kinds.
fn cells<'a>(firsts: &'a [u8], seconds: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    firsts.iter().flat_map(move |first| seconds.iter().map(move |second| usize::from(first << 3 | second)))
}

/// The beginning of bytes that are not ASCII.
enum Decoded {
    /// A code point, and how many bytes it takes. What is not UTF-8 is one byte of the replacement character.
    Character(u32, usize),
    /// A character may begin here, but not all of it is there.
    Begun,
}

fn decoded(bytes: &[u8]) -> Decoded {
    const NONE: Decoded = Decoded::Character(0xfffd, 1);
    // Chinese, Japanese and Korean characters first, of which long texts have most.
    if let [first @ 0xe0..=0xef, second @ 0x80..=0xbf, third @ 0x80..=0xbf, ..] = bytes {
        let bits = |byte: u8, mask: u8| u32::from(byte & mask);
        return Decoded::Character(bits(*first, 0x0f) << 12 | bits(*second, 0x3f) << 6 | bits(*third, 0x3f), 3);
    }
    let (width, high_bits) = match bytes {
        [first @ 0xe0..=0xef, ..] => (3, first & 0x0f),
        [first @ 0xc2..=0xdf, ..] => (2, first & 0x1f),
        [first @ 0xf0..=0xf4, ..] => (4, first & 0x07),
        _ => return NONE,
    };
    let mut code_point = u32::from(high_bits);
    for place in 1..width {
        match bytes.get(place) {
            Some(next @ 0x80..=0xbf) => code_point = code_point << 6 | u32::from(next & 0x3f),
            Some(_) => return NONE,
            None => return Decoded::Begun,
        }
    }
    Decoded::Character(code_point, width)
}
