//! Features of text that tell about how many tokens it is, without a tokenizer.
//!
//! The tokenizers of today's models first cut text into words, numbers, runs of punctuation and white space, and then
//! each of these into pieces of their vocabulary. How many pieces there are follows from how many words, letters,
//! digits and so on there are: closely enough for a weighted sum ([`Ratios`]) to be a good estimate.

mod counter;
mod foreign;
mod planes;
mod script;
#[cfg(test)]
mod slow;

pub(super) use counter::Counter;

/// Kinds of characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// What breaks words: the end of a text, control characters.
    Break,
    /// Small letters, and Latin letters beyond ASCII.
    Lower,
    Upper,
    Digit,
    Blank,
    Newline,
    Punctuation,
    /// A character beyond ASCII that is no Latin letter.
    Foreign,
}

/// What is counted in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Feature {
    /// Words in Latin letters at the beginning of a text or behind a blank.
    WordsAfterBlank,
    /// Words in Latin letters behind punctuation.
    WordsAfterPunctuation,
    /// Words in Latin letters behind anything else.
    WordsAfterOther,
    /// Letters of ASCII.
    Letters,
    /// Capitals behind small letters.
    CaseTurns,
    /// Capitals behind capitals.
    Capitals,
    /// Digits.
    Digits,
    /// Runs of digits that do not stand behind a blank.
    Numbers,
    /// Runs of digits behind a blank.
    NumbersAfterBlank,
    /// Runs of punctuation that do not stand behind a blank.
    Punctuation,
    /// Runs of punctuation behind a blank.
    PunctuationAfterBlank,
    /// Punctuation behind punctuation.
    MorePunctuation,
    /// Blanks and tabs behind blanks.
    MoreBlanks,
    /// Lines that begin with blanks.
    Indents,
    /// Blanks at the end of a line.
    TrailingBlanks,
    /// Line breaks behind punctuation.
    LinesAfterPunctuation,
    /// Line breaks behind anything else that is no line break.
    Lines,
    /// Line breaks behind line breaks.
    MoreLines,
    /// Words in other than ASCII letters, where blanks tell words apart.
    ForeignWords,
    /// Latin letters beyond ASCII.
    LatinExtended,
    /// Cyrillic letters.
    Cyrillic,
    /// Greek letters.
    Greek,
    /// Hebrew letters.
    Hebrew,
    /// Arabic letters.
    Arabic,
    /// Chinese characters.
    Han,
    /// Hiragana and katakana.
    Kana,
    /// Korean syllables.
    Hangul,
    /// Letters and signs of the scripts of India and Tibet.
    Indic,
    /// Letters and signs of Thai, Lao, Khmer and Burmese.
    SoutheastAsian,
    /// Full-width punctuation.
    EastAsianPunctuation,
    /// Typographic and mathematical signs.
    Symbols,
    /// Pictographs.
    Emoji,
    /// Characters of other scripts, and bytes that are no UTF-8.
    Other,
}

/// How many features there are.
pub const FEATURES: usize = Feature::Other as usize + 1;

/// How often each [`Feature`] occurs in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextCounts([u64; FEATURES]);

impl Default for TextCounts {
    fn default() -> Self {
        Self([0; FEATURES])
    }
}

impl TextCounts {
    /// Counts a whole text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let mut counter = Counter::new();
        counter.count(text.as_bytes());
        counter.counts()
    }

    /// How often a feature occurs.
    #[must_use]
    pub fn get(&self, feature: Feature) -> u64 {
        self.0[feature as usize]
    }

    /// All counts, in the order of [`Feature`].
    #[must_use]
    pub fn as_array(&self) -> &[u64; FEATURES] {
        &self.0
    }

    /// Whether there was no text.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }

    fn set(&mut self, feature: Feature, count: u64) {
        self.0[feature as usize] = count;
    }

    /// Adds another text so many times.
    pub(super) fn add(&mut self, other: &Self, times: u64) {
        for (sum, count) in self.0.iter_mut().zip(&other.0) {
            *sum = sum.saturating_add(count.saturating_mul(times));
        }
    }
}

#[cfg(test)]
mod tests;
