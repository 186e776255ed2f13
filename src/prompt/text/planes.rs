//! Counts pairs of kinds of ASCII characters, 512 bytes at a time.
//!
//! The bytes of a window become planes: a word of the first plane has the lowest bits of 64 bytes, one of the second plane
//! the next bits of them, and so on. Of what kind 64 characters are is then a few operations on words, and so is behind
//! what kind each of them stands. All loops go over words that have nothing to do with each other, so that the compiler
//! makes vectors of them, as wide as the processor has them that is compiled for.

use super::{Feature, Kind, TextCounts};

/// A window has so many rows of [`ROW_BYTES`].
const ROWS: usize = 8;

/// A row has so many columns of eight bytes.
pub(super) const COLUMNS: usize = 8;

const ROW_BYTES: usize = COLUMNS * 8;

/// How many bytes are counted at once.
pub(super) const WINDOW_BYTES: usize = ROWS * ROW_BYTES;

/// A bit for each byte of a window: bit `8 * b + r` of word `c` for byte `b` of column `c` of row `r`.
pub(super) type Plane = [u64; COLUMNS];

pub(super) const EMPTY: Plane = [0; COLUMNS];

/// The place of a byte of a window in a plane: the word, and its bit.
pub(super) fn place(byte: usize) -> (usize, u64) {
    let (row, column) = (byte / ROW_BYTES, byte % ROW_BYTES / 8);
    (column, 1 << (byte % 8 * 8 + row))
}

/// The planes of the kinds of a window's characters.
pub(super) struct Kinds {
    pub(super) lower: Plane,
    pub(super) upper: Plane,
    digit: Plane,
    blank: Plane,
    newline: Plane,
    punctuation: Plane,
    /// Blanks, and what breaks words.
    gap: Plane,
    /// Bytes beyond ASCII.
    pub(super) beyond: Plane,
}

impl Kinds {
    /// Finds out of what kind the characters of a window are.
    pub(super) fn of(window: &[u8; WINDOW_BYTES]) -> Self {
        let mut kinds = Self {
            lower: EMPTY,
            upper: EMPTY,
            digit: EMPTY,
            blank: EMPTY,
            newline: EMPTY,
            punctuation: EMPTY,
            gap: EMPTY,
            beyond: EMPTY,
        };
        for column in 0..COLUMNS {
            let [bit_0, bit_1, bit_2, bit_3, bit_4, bit_5, bit_6, bit_7] = bits(window, column);
            let ascii = !bit_7;
            let above_7 = bit_3 | bit_4;
            // 0x40 to 0x7f: letters, but for 0, 27 and above in the five lowest bits.
            let is_high = ascii & bit_6;
            let letter = is_high & (above_7 | bit_0 | bit_1 | bit_2) & !(bit_3 & bit_4 & (bit_0 & bit_1 | bit_2));
            let delete = is_high & bit_5 & bit_4 & bit_3 & bit_2 & bit_1 & bit_0;
            // 0x20 to 0x3f: a blank first, digits in the upper half.
            let is_middle = ascii & bit_5 & !bit_6;
            let digit = is_middle & bit_4 & !(bit_3 & (bit_2 | bit_1));
            let space = is_middle & !(above_7 | bit_0 | bit_1 | bit_2);
            // 0x08 to 0x0f: tab is 9, line feed 10, carriage return 13.
            let is_low = ascii & !(bit_6 | bit_5);
            let is_eighth = is_low & bit_3 & !bit_4;
            let tab = is_eighth & !bit_2 & !bit_1 & bit_0;
            let newline = is_eighth & (!bit_2 & bit_1 & !bit_0 | bit_2 & !bit_1 & bit_0);
            kinds.lower[column] = letter & bit_5;
            kinds.upper[column] = letter & !bit_5;
            kinds.digit[column] = digit;
            kinds.blank[column] = space | tab;
            kinds.newline[column] = newline;
            kinds.punctuation[column] = is_high & !letter & !delete | is_middle & !digit & !space;
            kinds.gap[column] = is_low & !newline | space | delete;
            kinds.beyond[column] = bit_7;
        }
        kinds
    }
}

/// Counts of features of ASCII characters.
#[derive(Debug, Clone)]
pub(super) struct Pairs {
    words_after_gap: Sum,
    words_after_punctuation: Sum,
    /// Those behind a gap or punctuation among them.
    words: Sum,
    letters: Sum,
    case_turns: Sum,
    capitals: Sum,
    punctuation: Sum,
    punctuation_after_blank: Sum,
    more_punctuation: Sum,
    more_blanks: Sum,
    digits: Sum,
    /// Those behind a blank among them.
    numbers: Sum,
    numbers_after_blank: Sum,
    indents: Sum,
    trailing_blanks: Sum,
    lines_after_punctuation: Sum,
    lines: Sum,
    more_lines: Sum,
}

impl Pairs {
    pub(super) const fn new() -> Self {
        Self {
            words_after_gap: Sum::ZERO,
            words_after_punctuation: Sum::ZERO,
            words: Sum::ZERO,
            letters: Sum::ZERO,
            case_turns: Sum::ZERO,
            capitals: Sum::ZERO,
            punctuation: Sum::ZERO,
            punctuation_after_blank: Sum::ZERO,
            more_punctuation: Sum::ZERO,
            more_blanks: Sum::ZERO,
            digits: Sum::ZERO,
            numbers: Sum::ZERO,
            numbers_after_blank: Sum::ZERO,
            indents: Sum::ZERO,
            trailing_blanks: Sum::ZERO,
            lines_after_punctuation: Sum::ZERO,
            lines: Sum::ZERO,
            more_lines: Sum::ZERO,
        }
    }

    /// Counts a window. `latin` tells where Latin letters beyond ASCII end, `last` what stands before it.
    pub(super) fn count(&mut self, kinds: &Kinds, latin: &Plane, last: Kind) {
        let Kinds { lower, upper, digit, blank, newline, punctuation, gap, .. } = kinds;
        let letter = joined(lower, upper, |lower, upper| lower | upper);
        let behind_lower = behind(&joined(lower, latin, |lower, latin| lower | latin), last == Kind::Lower);
        let behind_upper = behind(upper, last == Kind::Upper);
        let behind_gap = behind(gap, last == Kind::Blank || last == Kind::Break);
        let behind_blank = behind(blank, last == Kind::Blank);
        let behind_punctuation = behind(punctuation, last == Kind::Punctuation);
        self.words_after_gap.add(|column| letter[column] & behind_gap[column]);
        self.words_after_punctuation.add(|column| letter[column] & behind_punctuation[column]);
        self.words.add(|column| letter[column] & !(behind_lower[column] | behind_upper[column]));
        self.letters.add(|column| letter[column]);
        self.case_turns.add(|column| upper[column] & behind_lower[column]);
        self.capitals.add(|column| upper[column] & behind_upper[column]);
        self.punctuation.add(|column| punctuation[column] & !(behind_blank[column] | behind_punctuation[column]));
        self.punctuation_after_blank.add(|column| punctuation[column] & behind_blank[column]);
        self.more_punctuation.add(|column| punctuation[column] & behind_punctuation[column]);
        self.more_blanks.add(|column| blank[column] & behind_blank[column]);
        if any(digit) {
            let behind_digit = behind(digit, last == Kind::Digit);
            self.digits.add(|column| digit[column]);
            self.numbers.add(|column| digit[column] & !behind_digit[column]);
            self.numbers_after_blank.add(|column| digit[column] & behind_blank[column]);
        }
        if any(newline) || last == Kind::Newline {
            let behind_newline = behind(newline, last == Kind::Newline);
            self.indents.add(|column| blank[column] & behind_newline[column]);
            self.trailing_blanks.add(|column| newline[column] & behind_blank[column]);
            self.lines_after_punctuation.add(|column| newline[column] & behind_punctuation[column]);
            self.lines.add(|column| newline[column] & !(behind_newline[column] | behind_punctuation[column]));
            self.more_lines.add(|column| newline[column] & behind_newline[column]);
        }
    }

    /// Notes the counts so far.
    pub(super) fn note(&self, counts: &mut TextCounts) {
        let (words, after_gap) = (self.words.total(), self.words_after_gap.total());
        let (after_punctuation, numbers) = (self.words_after_punctuation.total(), self.numbers.total());
        let numbers_after_blank = self.numbers_after_blank.total();
        for (feature, count) in [
            (Feature::WordsAfterBlank, after_gap),
            (Feature::WordsAfterPunctuation, after_punctuation),
            (Feature::WordsAfterOther, words - after_gap - after_punctuation),
            (Feature::Letters, self.letters.total()),
            (Feature::CaseTurns, self.case_turns.total()),
            (Feature::Capitals, self.capitals.total()),
            (Feature::Digits, self.digits.total()),
            (Feature::Numbers, numbers - numbers_after_blank),
            (Feature::NumbersAfterBlank, numbers_after_blank),
            (Feature::Punctuation, self.punctuation.total()),
            (Feature::PunctuationAfterBlank, self.punctuation_after_blank.total()),
            (Feature::MorePunctuation, self.more_punctuation.total()),
            (Feature::MoreBlanks, self.more_blanks.total()),
            (Feature::Indents, self.indents.total()),
            (Feature::TrailingBlanks, self.trailing_blanks.total()),
            (Feature::LinesAfterPunctuation, self.lines_after_punctuation.total()),
            (Feature::Lines, self.lines.total()),
            (Feature::MoreLines, self.more_lines.total()),
        ] {
            counts.set(feature, count);
        }
    }
}

/// A sum of the bits of planes. It is kept for each of the bits of two words, so that bits seldom have to be counted.
#[derive(Debug, Clone)]
struct Sum {
    /// The lowest bits of the sums.
    ones: [u64; 2],
    /// The bits above those.
    twos: [u64; 2],
    /// How often four came together.
    fours: [u64; 2],
}

impl Sum {
    const ZERO: Self = Self { ones: [0; 2], twos: [0; 2], fours: [0; 2] };

    /// Adds a plane, of which `mask` tells the words.
    #[inline(always)]
    fn add(&mut self, mask: impl Fn(usize) -> u64) {
        for place in 0..2 {
            let (one, first) = added(self.ones[place], mask(place), mask(place + 2));
            let (one, second) = added(one, mask(place + 4), mask(place + 6));
            let (two, four) = added(self.twos[place], first, second);
            self.ones[place] = one;
            self.twos[place] = two;
            // Wrapping, so that no check for an overflow that never comes keeps these from being a vector.
            self.fours[place] = self.fours[place].wrapping_add(four.count_ones().into());
        }
    }

    fn total(&self) -> u64 {
        // Most features are not in a short text.
        if self.ones == [0; 2] && self.twos == [0; 2] {
            return 4 * (self.fours[0] + self.fours[1]);
        }
        let [one, other] = self.ones.map(|word| u64::from(word.count_ones()));
        let [two, another] = self.twos.map(|word| u64::from(word.count_ones()));
        (one + other) + 2 * (two + another) + 4 * (self.fours[0] + self.fours[1])
    }
}

/// Adds three bits at each place: the sum, and what is carried.
#[inline(always)]
fn added(one: u64, other: u64, third: u64) -> (u64, u64) {
    let either = one ^ other;
    (either ^ third, one & other | either & third)
}

/// The words of a column in the planes of the bits of a window, the lowest bit first.
#[inline(always)]
pub(super) fn bits(window: &[u8; WINDOW_BYTES], column: usize) -> [u64; 8] {
    let (words, _) = window.as_chunks::<8>();
    transposed(std::array::from_fn(|row| u64::from_le_bytes(words[row * COLUMNS + column])))
}

/// From eight words to the planes of their bits: byte `b` of the plane `p` has as bit `r` bit `p` of byte `b` of word `r`.
#[inline(always)]
fn transposed(mut words: [u64; 8]) -> [u64; 8] {
    #[inline(always)]
    fn exchange(words: &mut [u64; 8], low: usize, high: usize, shift: u32, mask: u64) {
        let differing = (words[low] >> shift ^ words[high]) & mask;
        words[high] ^= differing;
        words[low] ^= differing << shift;
    }
    for (low, high) in [(0, 4), (1, 5), (2, 6), (3, 7)] {
        exchange(&mut words, low, high, 4, 0x0f0f_0f0f_0f0f_0f0f);
    }
    for (low, high) in [(0, 2), (1, 3), (4, 6), (5, 7)] {
        exchange(&mut words, low, high, 2, 0x3333_3333_3333_3333);
    }
    for (low, high) in [(0, 1), (2, 3), (4, 5), (6, 7)] {
        exchange(&mut words, low, high, 1, 0x5555_5555_5555_5555);
    }
    words
}

/// For each byte whether the one before it has its bit set. `is_before` tells it of the one before the window.
#[inline(always)]
pub(super) fn behind(plane: &Plane, is_before: bool) -> Plane {
    // Before the first byte of a row stands the last one of the row before.
    let mut last = (plane[COLUMNS - 1] >> 56 << 1 | u64::from(is_before)) << 56;
    let mut behind = EMPTY;
    for column in 0..COLUMNS {
        behind[column] = plane[column] << 8 | last >> 56;
        last = plane[column];
    }
    behind
}

/// Joins two planes.
#[inline(always)]
pub(super) fn joined(one: &Plane, other: &Plane, join: impl Fn(u64, u64) -> u64) -> Plane {
    let mut joined = EMPTY;
    for column in 0..COLUMNS {
        joined[column] = join(one[column], other[column]);
    }
    joined
}

/// How many bits are set.
pub(super) fn population(plane: &Plane) -> u64 {
    // Most kinds of characters are in few texts.
    if any(plane) { plane.iter().map(|word| u64::from(word.count_ones())).sum() } else { 0 }
}

/// Whether any bit is set.
pub(super) fn any(plane: &Plane) -> bool {
    plane.iter().fold(0, |all, word| all | word) != 0
}
