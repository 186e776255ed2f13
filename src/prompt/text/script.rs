//! Which script a character beyond ASCII belongs to, as far as tokenizers tell scripts apart.

/// A kind of characters beyond ASCII that cost a tokenizer about the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Script {
    /// Latin letters with marks, and phonetic ones.
    LatinExtended,
    Cyrillic,
    Greek,
    Hebrew,
    /// Arabic and its relatives, written with the same letters.
    Arabic,
    /// Chinese characters, also those in Japanese and Korean text.
    Han,
    /// Hiragana and katakana.
    Kana,
    Hangul,
    /// The scripts of India and Tibet.
    Indic,
    /// Thai, Lao, Khmer, Burmese: written without blanks between words.
    SoutheastAsian,
    /// Full-width forms and the punctuation of Chinese, Japanese and Korean text.
    EastAsianPunctuation,
    /// Dashes, typographic quotes, currency signs, arrows, mathematics, boxes.
    Symbol,
    /// Pictographs beyond the basic plane.
    Emoji,
    /// Everything else, and what is not UTF-8.
    Other,
}

/// How many scripts there are.
pub(super) const SCRIPTS: usize = Script::Other as usize + 1;

/// Scripts of the characters of the basic plane, sixteen at a time.
#[expect(clippy::cast_possible_truncation, reason = "the basic plane has 65,536 places")]
static BASIC_PLANE: [Script; 0x1000] = {
    let mut scripts = [Script::Other; 0x1000];
    let mut place = 0;
    while place < scripts.len() {
        scripts[place] = Script::of_basic_plane((place << 4) as u32);
        place += 1;
    }
    scripts
};

impl Script {
    /// The script of a character that is not ASCII.
    pub(super) fn of(code_point: u32) -> Self {
        match code_point {
            0..0x1_0000 => BASIC_PLANE[(code_point >> 4) as usize],
            0x1_f000..=0x1_faff | 0xe_0000..=0xe_01ef => Self::Emoji,
            0x2_0000..=0x3_ffff => Self::Han,
            _ => Self::Other,
        }
    }

    /// The script of a character of the basic plane. The ranges are those of the blocks of Unicode, rounded to multiples
    /// of 16.
    const fn of_basic_plane(code_point: u32) -> Self {
        match code_point {
            0x00c0..=0x02af | 0x0300..=0x036f | 0x1d00..=0x1eff => Self::LatinExtended,
            0x0370..=0x03ff | 0x1f00..=0x1fff => Self::Greek,
            0x0400..=0x052f => Self::Cyrillic,
            0x0590..=0x05ff => Self::Hebrew,
            0x0600..=0x08ff | 0xfb50..=0xfdff | 0xfe70..=0xfeff => Self::Arabic,
            0x0900..=0x0dff | 0x0f00..=0x0fff => Self::Indic,
            0x0e00..=0x0eff | 0x1000..=0x109f | 0x1780..=0x17ff => Self::SoutheastAsian,
            0x1100..=0x11ff | 0x3130..=0x318f | 0xa960..=0xa97f | 0xac00..=0xd7ff => Self::Hangul,
            0x3000..=0x303f | 0xfe30..=0xfe4f | 0xff00..=0xff5f | 0xffe0..=0xffef => Self::EastAsianPunctuation,
            0x3040..=0x30ff | 0x31f0..=0x31ff | 0xff60..=0xff9f => Self::Kana,
            0x2e80..=0x2fdf | 0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff => Self::Han,
            0x00a0..=0x00bf | 0x02b0..=0x02ff | 0x2000..=0x2bff | 0xfe00..=0xfe0f => Self::Symbol,
            _ => Self::Other,
        }
    }

    /// Whether words of this script are told apart by blanks, so that where one begins is worth counting.
    pub(super) fn has_words(self) -> bool {
        matches!(
            self,
            Self::LatinExtended
                | Self::Cyrillic
                | Self::Greek
                | Self::Hebrew
                | Self::Arabic
                | Self::Hangul
                | Self::Indic
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_each_script_are_known() {
        for (characters, script) in [
            ("éñßøŁąấ", Script::LatinExtended),
            ("Жщёїѳ", Script::Cyrillic),
            ("αΩἀ", Script::Greek),
            ("שלום", Script::Hebrew),
            ("سلامپ", Script::Arabic),
            ("中文潮闸𠀀豈", Script::Han),
            ("ひらカタｶ", Script::Kana),
            ("한글ㄱ", Script::Hangul),
            ("हिதবা", Script::Indic),
            ("ไทยລາវမ", Script::SoutheastAsian),
            ("。，、「」！（）　", Script::EastAsianPunctuation),
            ("—…“”€→∑─✓°", Script::Symbol),
            ("😀🚀🌊", Script::Emoji),
            ("አᎠ", Script::Other),
        ] {
            for character in characters.chars() {
                assert_eq!(Script::of(character.into()), script, "{character}");
            }
        }
    }
}
