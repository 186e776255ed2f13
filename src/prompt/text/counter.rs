//! Counts features of text that comes in pieces of UTF-8.

use super::foreign::{self, Before};
use super::planes::{self, COLUMNS, EMPTY, Kinds, Pairs, Plane, WINDOW_BYTES};
use super::script::{SCRIPTS, Script};
use super::{Feature, Kind, TextCounts};

#[expect(clippy::cast_possible_truncation, reason = "the index of a byte is below 256")]
const KIND_OF: [Kind; 256] = {
    let mut kinds = [Kind::Punctuation; 256];
    let mut byte = 0;
    while byte < 256 {
        kinds[byte] = match byte as u8 {
            b'a'..=b'z' => Kind::Lower,
            b'A'..=b'Z' => Kind::Upper,
            b'0'..=b'9' => Kind::Digit,
            b' ' | b'\t' => Kind::Blank,
            b'\n' | b'\r' => Kind::Newline,
            0..=0x1f | 0x7f => Kind::Break,
            0x80.. => Kind::Foreign,
            _ => Kind::Punctuation,
        };
        byte += 1;
    }
    kinds
};

/// Up to so many bytes beyond ASCII in a window, it is faster to read them one by one.
const FEW_BYTES: u64 = 96;

/// Counts, for each pair of neighbouring characters, of what kinds they are; and characters beyond ASCII by script.
#[derive(Debug, Clone)]
pub(in crate::prompt) struct Counter {
    windows: Windows,
    /// What is not counted yet, because it is too little.
    waiting: [u8; WINDOW_BYTES],
    waiting_bytes: usize,
}

/// What was counted.
#[derive(Debug, Clone)]
struct Windows {
    pairs: Pairs,
    characters: [u64; SCRIPTS],
    words: u64,
    /// Kind of the last character.
    last: Kind,
    last_script: Option<Script>,
}

impl Counter {
    pub(in crate::prompt) const fn new() -> Self {
        Self {
            windows: Windows {
                pairs: Pairs::new(),
                characters: [0; SCRIPTS],
                words: 0,
                last: Kind::Break,
                last_script: None,
            },
            waiting: [0; WINDOW_BYTES],
            waiting_bytes: 0,
        }
    }

    /// Counts the next piece. Pieces may break within a character; what is not UTF-8 counts as of no known script.
    pub(in crate::prompt) fn count(&mut self, mut text: &[u8]) {
        // The end of a text.
        if let [byte] = *text
            && self.waiting_bytes < WINDOW_BYTES - 1
        {
            self.waiting[self.waiting_bytes] = byte;
            self.waiting_bytes += 1;
            return;
        }
        while self.waiting_bytes > 0 {
            let room = &mut self.waiting[self.waiting_bytes..];
            let taken = room.len().min(text.len());
            room[..taken].copy_from_slice(&text[..taken]);
            self.waiting_bytes += taken;
            if self.waiting_bytes < WINDOW_BYTES {
                return;
            }
            let left = WINDOW_BYTES - self.windows.count(&self.waiting, WINDOW_BYTES);
            // The beginning of a character, which is counted with its rest.
            if left <= taken {
                text = &text[taken - left..];
                self.waiting_bytes = 0;
            } else {
                text = &text[taken..];
                self.waiting.copy_within(WINDOW_BYTES - left.., 0);
                self.waiting_bytes = left;
            }
        }
        while let Some(window) = text.first_chunk() {
            let counted = self.windows.count(window, WINDOW_BYTES);
            text = &text[counted..];
        }
        self.waiting[..text.len()].copy_from_slice(text);
        self.waiting_bytes = text.len();
    }

    /// The features of all that was counted so far.
    pub(in crate::prompt) fn counts(&mut self) -> TextCounts {
        let bytes = std::mem::take(&mut self.waiting_bytes);
        self.waiting[bytes..].fill(0);
        let left = bytes - self.windows.count(&self.waiting, bytes);
        self.waiting.copy_within(bytes - left..bytes, 0);
        self.waiting_bytes = left;
        let characters = |script: Script| self.windows.characters[script as usize];
        let mut counts = TextCounts::default();
        self.windows.pairs.note(&mut counts);
        for (feature, count) in [
            (Feature::ForeignWords, self.windows.words),
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
            (Feature::Other, characters(Script::Other) + u64::from(left > 0)),
        ] {
            counts.set(feature, count);
        }
        counts
    }
}

impl Windows {
    /// Counts the first so many bytes of a window, of which the others are 0, but not a character of which more may
    /// come. Returns how many bytes were counted.
    fn count(&mut self, window: &[u8; WINDOW_BYTES], bytes: usize) -> usize {
        let text = &window[..bytes];
        let last = self.last;
        let kinds = Kinds::of(window);
        let mut latin = EMPTY;
        if !planes::any(&kinds.beyond) {
            if let Some(byte) = text.last() {
                self.last = KIND_OF[usize::from(*byte)];
                self.last_script = None;
            }
            self.pairs.count(&kinds, &latin, last);
            return bytes;
        }
        let before = Before { is_letter: last == Kind::Lower || last == Kind::Upper, script: self.last_script };
        let counted = if planes::population(&kinds.beyond) > FEW_BYTES
            && let Some(found) = foreign::count(window, &kinds, before)
            && let Some(counted) = self.end_window(text)
        {
            for (script, count) in found.characters() {
                self.characters[script as usize] += count;
            }
            self.words += found.words;
            latin = found.latin;
            counted
        } else {
            self.count_beyond(text, &mut latin)
        };
        // In a window without ASCII there is nothing more to be counted.
        if kinds.beyond != [u64::MAX; COLUMNS] {
            self.pairs.count(&kinds, &latin, last);
        }
        counted
    }

    /// Notes the last whole character of a text of whole characters. Returns how many bytes the text has without one that
    /// begins at its end; `None` when the text does not hold one whole character.
    fn end_window(&mut self, text: &[u8]) -> Option<usize> {
        // No character has more than four bytes.
        let mut end = text.len();
        for _ in 0..2 {
            let begin = text[..end].iter().rposition(|byte| !matches!(byte, 0x80..=0xbf))?;
            match text[begin] {
                byte if byte.is_ascii() => {
                    self.last = KIND_OF[usize::from(byte)];
                    self.last_script = None;
                    return Some(end);
                }
                _ => {
                    if let Decoded::Character(code_point, _) = decoded(&text[begin..end]) {
                        let script = Script::of(code_point);
                        self.last = kind_of(script);
                        self.last_script = Some(script);
                        return Some(end);
                    }
                    end = begin;
                }
            }
        }
        None
    }

    /// Counts all characters that are not ASCII, and marks Latin letters among them.
    fn count_beyond(&mut self, text: &[u8], latin: &mut Plane) -> usize {
        let mut at = 0;
        while at < text.len() {
            let ascii = ascii_bytes(&text[at..]);
            at += ascii;
            if ascii > 0 {
                self.last = KIND_OF[usize::from(text[at - 1])];
                self.last_script = None;
            }
            if at == text.len() {
                break;
            }
            match decoded(&text[at..]) {
                Decoded::Character(code_point, width) => {
                    let script = Script::of(code_point);
                    self.count_foreign(script);
                    if script == Script::LatinExtended {
                        for byte in at..at + width {
                            let (column, bit) = planes::place(byte);
                            latin[column] |= bit;
                        }
                    }
                    at += width;
                }
                Decoded::Begun => break,
            }
        }
        at
    }

    fn count_foreign(&mut self, script: Script) {
        let is_latin = script == Script::LatinExtended;
        let is_within_word =
            self.last_script == Some(script) || (is_latin && (self.last == Kind::Lower || self.last == Kind::Upper));
        self.words += u64::from(script.has_words() && !is_within_word);
        self.characters[script as usize] += 1;
        self.last = kind_of(script);
        self.last_script = Some(script);
    }
}

/// How many bytes of ASCII a text begins with.
fn ascii_bytes(text: &[u8]) -> usize {
    let (eights, _) = text.as_chunks::<8>();
    let ascii = eights.iter().take_while(|eight| eight.is_ascii()).count() * 8;
    ascii + text[ascii..].iter().take_while(|byte| byte.is_ascii()).count()
}

/// What a character beyond ASCII is like for the one behind it.
fn kind_of(script: Script) -> Kind {
    if script == Script::LatinExtended { Kind::Lower } else { Kind::Foreign }
}

/// The beginning of bytes that are not ASCII.
pub(super) enum Decoded {
    /// A code point, and how many bytes it takes. What is not UTF-8 is one byte of the replacement character.
    Character(u32, usize),
    /// A character may begin here, but not all of it is there.
    Begun,
}

pub(super) fn decoded(bytes: &[u8]) -> Decoded {
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
