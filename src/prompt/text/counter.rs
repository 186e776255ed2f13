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
            if next & 0xc0 != 0x80 {
                self.begun_bytes = 0;
                self.count_foreign(Script::Other);
                break;
            }
            self.begun[self.begun_bytes] = *next;
            self.begun_bytes += 1;
            text = rest;
            let begun = self.begun;
            if self.begun_bytes == width(begun[0]) {
                let (script, _) = decoded(&begun[..self.begun_bytes]);
                self.begun_bytes = 0;
                self.count_foreign(script);
            }
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
            let width = width(*first);
            if text.len() < width && text[1..].iter().all(|byte| byte & 0xc0 == 0x80) {
                self.begun[..text.len()].copy_from_slice(text);
                self.begun_bytes = text.len();
                return &[];
            }
            let (script, length) = decoded(&text[..width.min(text.len())]);
            self.count_foreign(script);
            text = &text[length..];
        }
        text
    }

    fn count_foreign(&mut self, script: Script) {
        let kind = if script == Script::LatinExtended { LOWER } else { FOREIGN };
        let is_within_word = match script {
            Script::LatinExtended => self.last == LOWER || self.last == UPPER,
            _ => self.last_script == Some(script),
        };
        if script.has_words() && !is_within_word {
            self.words += 1;
        }
        self.characters[script as usize] += 1;
        if kind == FOREIGN {
            self.pairs[0][usize::from(self.last << 3 | kind)] += 1;
        }
        self.last = kind;
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

/// How many bytes a character has that begins so; 1 for what begins none.
fn width(first: u8) -> usize {
    match first {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    }
}

/// The script of the first character, and how many bytes it takes.
fn decoded(bytes: &[u8]) -> (Script, usize) {
    // Almost all text is well-formed; what is not is skipped bytewise.
    match std::str::from_utf8(bytes).ok().and_then(|text| text.chars().next()) {
        Some(character) => (Script::of(character), character.len_utf8()),
        None => (Script::Other, 1),
    }
}
