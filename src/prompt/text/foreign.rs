//! Counts characters beyond ASCII of the scripts that most texts are written in, a whole window at once.
//!
//! On the planes of a window, as [`planes`](super::planes) has them: which bytes begin a character of which scripts, behind
//! which of these stands the right second byte, behind which of these a third one. A window in which anything else is
//! found is left to be read character by character.

#![expect(clippy::needless_range_loop, reason = "the loops go over the words of many planes at once")]

use super::planes::{COLUMNS, EMPTY, Kinds, Plane, WINDOW_BYTES, any, behind, bits, joined, population};
use super::script::Script;

/// What was found in a window.
pub(super) struct Found {
    /// Characters of two bytes by script.
    short: [(Script, u64); SHORT.len()],
    /// Characters of three bytes by script.
    long: [(Script, u64); LONG.len()],
    /// Pictographs, which have four.
    emoji: u64,
    /// Words of scripts that have words.
    pub(super) words: u64,
    /// Last bytes of Latin letters.
    pub(super) latin: Plane,
}

impl Found {
    /// Characters by script, of some in several parts.
    pub(super) fn characters(&self) -> impl Iterator<Item = (Script, u64)> + '_ {
        self.short.iter().chain(&self.long).copied().chain([(Script::Emoji, self.emoji)])
    }
}

/// What stands before a window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Before {
    /// Whether it is a letter of ASCII.
    pub(super) is_letter: bool,
    /// Its script, when it is beyond ASCII.
    pub(super) script: Option<Script>,
}

/// Scripts with characters of two bytes. All but the last have words.
const SHORT: [Script; 5] = [Script::LatinExtended, Script::Cyrillic, Script::Greek, Script::Arabic, Script::Symbol];
const LATIN: usize = 0;

/// Scripts with characters of three bytes. The first two have words.
const LONG: [Script; 7] = [
    Script::Hangul,
    Script::Indic,
    Script::SoutheastAsian,
    Script::Symbol,
    Script::Han,
    Script::EastAsianPunctuation,
    Script::Kana,
];

/// First bytes of three or four that have to be told apart; see [`long_firsts`].
const LONG_FIRSTS: usize = 10;

/// Counts the characters beyond ASCII of a window that begins with a whole character; `None` when not all of them are of
/// the scripts that are known here. `ascii` has those of ASCII. One that begins at the end of the window and does not end
/// there is not counted.
pub(super) fn count(window: &[u8; WINDOW_BYTES], ascii: &Kinds, before: Before) -> Option<Found> {
    let mut bytes = Bytes::of(window);
    // Many texts have only one of these.
    let short = if any(&bytes.of_two) { Short::of(&mut bytes) } else { Short::default() };
    let long = if any(&bytes.of_more) { Long::of(&mut bytes) } else { Long::default() };
    if any(&joined(&bytes.unknown, &bytes.later, |unknown, later| unknown | later)) {
        return None;
    }
    Some(Found {
        short: std::array::from_fn(|script| (SHORT[script], population(&short.lasts[script]))),
        long: std::array::from_fn(|script| (LONG[script], population(&long.lasts[script]))),
        emoji: population(&long.emoji),
        words: short.words(ascii, before) + long.words(before),
        latin: short.lasts[LATIN],
    })
}

/// The bytes of a window.
struct Bytes {
    /// Their bits, the lowest first.
    bits: [Plane; 8],
    /// First bytes of characters of two.
    of_two: Plane,
    /// First bytes of characters of more than two.
    of_more: Plane,
    /// Bytes of characters behind the first one of which it is not known yet what they belong to.
    later: Plane,
    /// Bytes that are of no character that is known here, or that stand before such a byte.
    unknown: Plane,
}

impl Bytes {
    fn of(window: &[u8; WINDOW_BYTES]) -> Self {
        let mut bytes = Self { bits: [EMPTY; 8], of_two: EMPTY, of_more: EMPTY, later: EMPTY, unknown: EMPTY };
        for column in 0..COLUMNS {
            let bits = bits(window, column);
            for bit in 0..8 {
                bytes.bits[bit][column] = bits[bit];
            }
            bytes.of_two[column] = bits[7] & bits[6] & !bits[5];
            bytes.of_more[column] = bits[7] & bits[6] & bits[5];
            bytes.later[column] = bits[7] & !bits[6];
        }
        bytes
    }

    /// The bits of a column.
    #[inline(always)]
    fn column(&self, column: usize) -> [u64; 8] {
        std::array::from_fn(|bit| self.bits[bit][column])
    }

    /// Notes what stands behind bytes that something has to stand behind.
    #[inline(always)]
    fn explain(&mut self, column: usize, expected: u64, found: u64) {
        self.unknown[column] |= expected & !found;
        self.later[column] &= !found;
    }
}

/// Any of these bits.
#[inline(always)]
fn union(words: &[u64]) -> u64 {
    words.iter().fold(0, |all, word| all | word)
}

/// First and last bytes of characters of two, by script as in [`SHORT`].
#[derive(Default)]
struct Short {
    firsts: [Plane; SHORT.len()],
    lasts: [Plane; SHORT.len()],
}

impl Short {
    fn of(bytes: &mut Bytes) -> Self {
        let mut short = Self::default();
        for column in 0..COLUMNS {
            let firsts = short_firsts(bytes.of_two[column], &bytes.column(column));
            for (plane, first) in short.firsts.iter_mut().zip(firsts) {
                plane[column] = first;
            }
            bytes.unknown[column] |= bytes.of_two[column] & !union(&firsts);
        }
        let behind = short.firsts.each_ref().map(|plane| behind(plane, false));
        for column in 0..COLUMNS {
            let mut found = [0; SHORT.len()];
            for (script, plane) in short.lasts.iter_mut().enumerate() {
                // Symbols only in the upper half of what may follow.
                let right = if script == SHORT.len() - 1 { bytes.bits[5][column] } else { u64::MAX };
                found[script] = behind[script][column] & bytes.later[column] & right;
                plane[column] = found[script];
            }
            let expected: [u64; SHORT.len()] = std::array::from_fn(|script| behind[script][column]);
            bytes.explain(column, union(&expected), union(&found));
        }
        short
    }

    /// Counts words, each with the last byte of its first character: the first one may be in the window before.
    fn words(&self, ascii: &Kinds, before: Before) -> u64 {
        let with_words = SHORT.len() - 1;
        let mut words = 0;
        for (place, last) in self.lasts.iter().enumerate().take(with_words).filter(|(_, last)| any(last)) {
            let is_before = before.script == Some(SHORT[place]);
            let begins = if place == LATIN {
                let letters = joined(&ascii.lower, &ascii.upper, |lower, upper| lower | upper);
                let within = joined(last, &letters, |last, letter| last | letter);
                seconds_of_words(&self.firsts[place], &within, is_before || before.is_letter)
            } else {
                seconds_of_words(&self.firsts[place], last, is_before)
            };
            words += population(&joined(last, &begins, |last, begin| last & begin));
        }
        words
    }
}

/// First and last bytes of characters of three, by script as in [`LONG`], and last bytes of pictographs.
#[derive(Default)]
struct Long {
    /// First bytes of scripts that have words.
    firsts: [Plane; 2],
    lasts: [Plane; LONG.len()],
    emoji: Plane,
}

impl Long {
    fn of(bytes: &mut Bytes) -> Self {
        let mut firsts = [EMPTY; LONG_FIRSTS];
        for column in 0..COLUMNS {
            let found = long_firsts(bytes.of_more[column], &bytes.column(column));
            for (plane, first) in firsts.iter_mut().zip(found) {
                plane[column] = first;
            }
            bytes.unknown[column] |= bytes.of_more[column] & !union(&found);
        }
        let behind_firsts = firsts.each_ref().map(|plane| behind(plane, false));
        let mut seconds = [EMPTY; SECONDS];
        for column in 0..COLUMNS {
            let expected: [u64; LONG_FIRSTS] = std::array::from_fn(|first| behind_firsts[first][column]);
            let found = self::seconds(&bytes.column(column), &expected).map(|second| second & bytes.later[column]);
            for (plane, second) in seconds.iter_mut().zip(found) {
                plane[column] = second;
            }
            bytes.explain(column, union(&expected), union(&found));
        }
        let behind_seconds = seconds.each_ref().map(|plane| behind(plane, false));
        let (mut lasts, mut emoji_thirds) = ([EMPTY; LONG.len()], EMPTY);
        for column in 0..COLUMNS {
            let expected: [u64; SECONDS] = std::array::from_fn(|second| behind_seconds[second][column]);
            let [hangul, indic, southeast_asian, symbol, han, punctuation, kana, form, selector, emoji] = expected;
            let [_, _, bit_2, bit_3, bit_4, bit_5, ..] = bytes.column(column);
            let found = [
                hangul,
                indic,
                southeast_asian,
                // U+FE00 to U+FE0F.
                symbol | selector & !bit_5 & !bit_4,
                han,
                punctuation | form & !bit_5,
                kana | form & bit_5,
                // U+1F000 to U+1FAFF.
                emoji & (!bit_5 | !bit_4 & !(bit_3 & bit_2)),
            ]
            .map(|third| third & bytes.later[column]);
            for (plane, last) in lasts.iter_mut().zip(found) {
                plane[column] = last;
            }
            emoji_thirds[column] = found[LONG.len()];
            bytes.explain(column, union(&expected), union(&found));
        }
        let expected = behind(&emoji_thirds, false);
        let emoji = joined(&expected, &bytes.later, |expected, later| expected & later);
        for column in 0..COLUMNS {
            bytes.explain(column, expected[column], emoji[column]);
        }
        let [early_hangul, hangul, late_hangul, indic, ..] = firsts;
        let hangul =
            joined(&hangul, &joined(&early_hangul, &late_hangul, |one, other| one | other), |one, other| one | other);
        Self { firsts: [hangul, indic], lasts, emoji }
    }

    /// Counts words like [`Short::words`].
    fn words(&self, before: Before) -> u64 {
        let mut words = 0;
        for (place, firsts) in self.firsts.iter().enumerate() {
            let last = &self.lasts[place];
            if any(last) {
                let seconds = seconds_of_words(firsts, last, before.script == Some(LONG[place]));
                words += population(&joined(last, &behind(&seconds, false), |last, begin| last & begin));
            }
        }
        words
    }
}

/// Second bytes of characters that begin a word. `within` has the last bytes of what is within one.
fn seconds_of_words(firsts: &Plane, within: &Plane, is_before: bool) -> Plane {
    let begins = joined(firsts, &behind(within, is_before), |first, behind| first & !behind);
    behind(&begins, false)
}

/// First bytes of characters of two, by script as in [`SHORT`].
#[inline(always)]
fn short_firsts(of_two: u64, bits: &[u64; 8]) -> [u64; SHORT.len()] {
    let [bit_0, bit_1, bit_2, bit_3, bit_4, ..] = *bits;
    let first_four = !bit_3 & !bit_2;
    [
        // 0xc3 to 0xc9: U+00C0 to U+027F.
        of_two & !bit_4 & (first_four & bit_1 & bit_0 | !bit_3 & bit_2 | bit_3 & !bit_2 & !bit_1),
        // 0xd0 to 0xd3: U+0400 to U+04FF.
        of_two & bit_4 & first_four,
        // 0xce and 0xcf: U+0380 to U+03FF.
        of_two & !bit_4 & bit_3 & bit_2 & bit_1,
        // 0xd8 to 0xdf: U+0600 to U+07FF.
        of_two & bit_4 & bit_3,
        // 0xc2: U+00A0 to U+00BF in the upper half.
        of_two & !bit_4 & first_four & bit_1 & !bit_0,
    ]
}

/// First bytes of characters of three or four. Of some what they begin is known with the second byte only.
#[inline(always)]
fn long_firsts(of_more: u64, bits: &[u64; 8]) -> [u64; LONG_FIRSTS] {
    let [bit_0, bit_1, bit_2, bit_3, bit_4, ..] = *bits;
    // Ranges of the four lowest bits.
    let [zero, two, three] = [!bit_1 & !bit_0, bit_1 & !bit_0, bit_1 & bit_0].map(|low| !bit_3 & !bit_2 & low);
    let (fourth, eighth, twelfth) = (!bit_3 & bit_2, bit_3 & !bit_2, bit_3 & bit_2);
    let of_three = of_more & !bit_4;
    let long = [
        // 0xea: Hangul from U+AC00 on.
        eighth & bit_1 & !bit_0,
        // 0xeb and 0xec: U+B000 to U+CFFF.
        eighth & bit_1 & bit_0 | twelfth & !bit_1 & !bit_0,
        // 0xed: Hangul up to U+D7FF.
        twelfth & !bit_1 & bit_0,
        // 0xe0: the scripts of India, U+0900 to U+0DFF and from U+0F00 on, and those of Southeast Asia between.
        zero,
        // 0xe2: symbols up to U+2BFF.
        two,
        // 0xe4: Chinese characters from U+4E00 on.
        fourth & !bit_1 & !bit_0,
        // 0xe5 to 0xe9: U+5000 to U+9FFF.
        fourth & (bit_1 | bit_0) | eighth & !bit_1,
        // 0xe3: punctuation and kana up to U+30FF.
        three,
        // 0xef: full-width and half-width forms from U+FF00 on, and what selects a variant, U+FE00 to U+FE0F.
        twelfth & bit_1 & bit_0,
    ];
    let [first, second, third, fourth, fifth, sixth, seventh, eighth, ninth] = long.map(|first| of_three & first);
    // 0xf0: pictographs.
    let of_four = of_more & bit_4 & zero;
    [first, second, third, fourth, fifth, sixth, seventh, eighth, ninth, of_four]
}

/// How many kinds of second bytes of three there are: those of [`LONG`], and that of forms which are punctuation in the
/// first half of what may follow and kana in the second, that of selectors, and that of pictographs.
const SECONDS: usize = LONG.len() + 3;

/// Second bytes of three or four. `behind` tells behind which of the first ones they stand.
#[inline(always)]
fn seconds(bits: &[u64; 8], behind: &[u64; LONG_FIRSTS]) -> [u64; SECONDS] {
    let [bit_0, bit_1, bit_2, bit_3, bit_4, bit_5, ..] = *bits;
    let [early_hangul, hangul, late_hangul, indic, symbol, early_han, han, kana, form, emoji] = *behind;
    let last_quarter = bit_5 & bit_4;
    let first_four = !bit_5 & !bit_4 & !bit_3 & !bit_2;
    let last_four = last_quarter & bit_3 & bit_2;
    let southeast_asian = last_quarter & bit_3 & !bit_2;
    [
        hangul | early_hangul & last_quarter | late_hangul & !bit_5,
        indic & bit_5 & (bit_4 | bit_3 | bit_2) & !southeast_asian,
        indic & southeast_asian,
        symbol & !last_quarter,
        han | early_han & last_quarter & bit_3,
        kana & first_four & !bit_1 & !bit_0 | form & last_four & !bit_1 & !bit_0,
        kana & first_four & (bit_1 | bit_0),
        form & last_four & !bit_1 & bit_0,
        form & last_quarter & bit_3 & !bit_2 & !bit_1 & !bit_0,
        emoji & !bit_5 & bit_4 & bit_3 & bit_2 & bit_1 & bit_0,
    ]
}
