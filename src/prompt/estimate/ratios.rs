//! How many tokens each feature of a text is worth.

use crate::prompt::text::{FEATURES, Feature, TextCounts};

/// Kinds of text whose tokens are learned apart, because vocabularies differ in how well they know them.
pub(super) const KINDS: usize = 4;

/// Tokens of a text by kind: Latin letters; digits, punctuation and white space; East Asian scripts; all others.
pub(super) type TokensByKind = [f64; KINDS];

/// Tokens of a text by kind, at the built-in ratios.
pub(super) fn tokens(text: &TextCounts) -> TokensByKind {
    let mut tokens = [0.0; KINDS];
    for (feature, (count, (kind, ratio))) in text.as_array().iter().zip(&RATIOS).enumerate() {
        debug_assert!(feature < FEATURES);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let count = *count as f64;
        tokens[*kind as usize] += count * ratio;
    }
    tokens
}

#[derive(Debug, Clone, Copy)]
#[repr(u8)]
enum Kind {
    Latin,
    Structure,
    EastAsian,
    Foreign,
}

/// Kind and tokens of each feature.
const RATIOS: [(Kind, f64); FEATURES] = {
    let mut ratios = [(Kind::Foreign, 0.0); FEATURES];
    let mut place = 0;
    while place < FITTED.len() {
        let (feature, kind, ratio) = FITTED[place];
        ratios[feature as usize] = (kind, ratio);
        place += 1;
    }
    ratios
};

const FITTED: [(Feature, Kind, f64); FEATURES] = [
    (Feature::WordsAfterBlank, Kind::Latin, 0.75),
    (Feature::WordsAfterPunctuation, Kind::Latin, 0.7),
    (Feature::WordsAfterOther, Kind::Latin, 0.7),
    (Feature::Letters, Kind::Latin, 0.09),
    (Feature::CaseTurns, Kind::Latin, 0.4),
    (Feature::Capitals, Kind::Latin, 0.2),
    (Feature::Digits, Kind::Structure, 0.6),
    (Feature::Numbers, Kind::Structure, 0.2),
    (Feature::NumbersAfterBlank, Kind::Structure, 1.0),
    (Feature::Punctuation, Kind::Structure, 0.8),
    (Feature::PunctuationAfterBlank, Kind::Structure, 0.8),
    (Feature::MorePunctuation, Kind::Structure, 0.3),
    (Feature::MoreBlanks, Kind::Structure, 0.05),
    (Feature::Indents, Kind::Structure, 0.5),
    (Feature::TrailingBlanks, Kind::Structure, 0.5),
    (Feature::LinesAfterPunctuation, Kind::Structure, 0.4),
    (Feature::Lines, Kind::Structure, 0.9),
    (Feature::MoreLines, Kind::Structure, 0.2),
    (Feature::ForeignWords, Kind::Foreign, 0.5),
    (Feature::LatinExtended, Kind::Foreign, 0.6),
    (Feature::Cyrillic, Kind::Foreign, 0.35),
    (Feature::Greek, Kind::Foreign, 0.5),
    (Feature::Hebrew, Kind::Foreign, 0.5),
    (Feature::Arabic, Kind::Foreign, 0.4),
    (Feature::Han, Kind::EastAsian, 0.7),
    (Feature::Kana, Kind::EastAsian, 0.6),
    (Feature::Hangul, Kind::EastAsian, 0.7),
    (Feature::Indic, Kind::Foreign, 0.5),
    (Feature::SoutheastAsian, Kind::Foreign, 0.5),
    (Feature::EastAsianPunctuation, Kind::EastAsian, 0.8),
    (Feature::Symbols, Kind::Foreign, 1.0),
    (Feature::Emoji, Kind::Foreign, 1.8),
    (Feature::Other, Kind::Foreign, 1.5),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_has_a_ratio_and_only_one() {
        for (place, (feature, _, ratio)) in FITTED.iter().enumerate() {
            assert_eq!(*feature as usize, place, "in the order of the features");
            assert!((0.0..=4.0).contains(ratio), "{feature:?}");
        }
    }
}
