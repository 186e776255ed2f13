use proptest::prelude::*;

use super::*;

fn counts(text: &str) -> Vec<(Feature, u64)> {
    const ALL: [Feature; 17] = [
        Feature::WordsAfterBlank,
        Feature::WordsAfterPunctuation,
        Feature::WordsAfterOther,
        Feature::Letters,
        Feature::CaseTurns,
        Feature::Capitals,
        Feature::Digits,
        Feature::Numbers,
        Feature::NumbersAfterBlank,
        Feature::Punctuation,
        Feature::PunctuationAfterBlank,
        Feature::MorePunctuation,
        Feature::MoreBlanks,
        Feature::Indents,
        Feature::LinesAfterPunctuation,
        Feature::Lines,
        Feature::MoreLines,
    ];
    let counts = TextCounts::of(text);
    ALL.into_iter().map(|feature| (feature, counts.get(feature))).filter(|(_, count)| *count > 0).collect()
}

#[test]
fn words_letters_digits_and_signs_are_told_apart() {
    use Feature::*;
    assert_eq!(counts("two words"), [(WordsAfterBlank, 2), (Letters, 8)]);
    assert_eq!(counts("camelCase HTTP"), [(WordsAfterBlank, 2), (Letters, 13), (CaseTurns, 1), (Capitals, 3)]);
    assert_eq!(
        counts("7 42,x9"),
        [(WordsAfterPunctuation, 1), (Letters, 1), (Digits, 4), (Numbers, 2), (NumbersAfterBlank, 1), (Punctuation, 1),]
    );
    assert_eq!(
        counts("(a) ->"),
        [(WordsAfterPunctuation, 1), (Letters, 1), (Punctuation, 2), (PunctuationAfterBlank, 1), (MorePunctuation, 1),]
    );
    assert_eq!(
        counts("a;\n\n\tb\n   "),
        [
            (WordsAfterBlank, 2),
            (Letters, 2),
            (Punctuation, 1),
            (MoreBlanks, 2),
            (Indents, 2),
            (LinesAfterPunctuation, 1),
            (Lines, 1),
            (MoreLines, 1),
        ]
    );
}

#[test]
fn scripts_are_counted_by_characters_and_words_where_blanks_part_them() {
    let counts = TextCounts::of("Прилив и отлив: 潮水每天涨落两次。 Ça alors, naïveté! 🌊");
    for (feature, count) in [
        (Feature::Cyrillic, 12),
        (Feature::Han, 8),
        (Feature::EastAsianPunctuation, 1),
        (Feature::LatinExtended, 3),
        (Feature::Emoji, 1),
        (Feature::ForeignWords, 4),
        (Feature::WordsAfterBlank, 2),
        (Feature::Other, 0),
    ] {
        assert_eq!(counts.get(feature), count, "{feature:?}");
    }
}

#[test]
fn what_is_no_utf8_counts_bytewise() {
    let mut counter = Counter::new();
    for piece in [&b"a\xff\xc0"[..], b"\xe4\xbd", b"b\xf0\x9f", b"\x8c"] {
        counter.count(piece);
    }
    let counts = counter.counts();
    assert_eq!((counts.get(Feature::Letters), counts.get(Feature::Other)), (2, 5));
}

#[test]
fn a_text_several_times_has_several_times_the_counts() {
    let mut sum = TextCounts::default();
    sum.add(&TextCounts::of("one 潮水"), 3);
    assert_eq!((sum.get(Feature::Letters), sum.get(Feature::Han)), (9, 6));
    assert!(!sum.is_empty() && TextCounts::default().is_empty());
}

fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[ -~]{0,12}",
        "[a-z]{1,9} ",
        "\\PC{0,6}",
        prop::sample::select(vec!["\n", "  ", "潮水", "прилив ", "🌊", "é", "\u{0}"]).prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn pieces_are_counted_like_the_whole(text in any_text(), cuts in prop::collection::vec(0_usize..80, 0..6)) {
        let bytes = text.as_bytes();
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let mut counter = Counter::new();
        for pair in cuts.windows(2) {
            counter.count(&bytes[pair[0]..pair[1]]);
        }
        prop_assert_eq!(counter.counts(), TextCounts::of(&text));
    }

    #[test]
    fn each_character_counts_once(text in any_text()) {
        let counts = TextCounts::of(&text);
        let of = |kind: fn(&char) -> bool| text.chars().filter(kind).count() as u64;
        prop_assert_eq!(counts.get(Feature::Letters), of(char::is_ascii_alphabetic));
        prop_assert_eq!(counts.get(Feature::Digits), of(char::is_ascii_digit));
        let signs = [Feature::Punctuation, Feature::PunctuationAfterBlank, Feature::MorePunctuation];
        prop_assert_eq!(signs.map(|sign| counts.get(sign)).iter().sum::<u64>(), of(char::is_ascii_punctuation));
        let beyond = Feature::LatinExtended as usize..=Feature::Other as usize;
        prop_assert_eq!(counts.as_array()[beyond].iter().sum::<u64>(), of(|c| !c.is_ascii()));
    }

    #[test]
    fn any_bytes_are_counted(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 0..6)) {
        let mut counter = Counter::new();
        for piece in &pieces {
            counter.count(piece);
        }
        let letters = pieces.iter().flatten().filter(|byte| byte.is_ascii_alphabetic()).count();
        prop_assert_eq!(counter.counts().get(Feature::Letters), letters as u64);
    }

    #[test]
    fn text_is_counted_as_character_by_character(text in text_of_scripts(), cuts in prop::collection::vec(0.0..1.0, 0..4)) {
        let expected = slow::counts(&text);
        let mut counter = Counter::new();
        counter.count(&text);
        prop_assert_eq!(counter.counts(), expected, "{}", String::from_utf8_lossy(&text));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a share")]
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut: f64| (cut * text.len() as f64) as usize).collect();
        cuts.sort_unstable();
        let mut pieces = Counter::new();
        let mut rest = &text[..];
        for cut in cuts {
            let (piece, later) = rest.split_at(cut - (text.len() - rest.len()));
            pieces.count(piece);
            rest = later;
        }
        pieces.count(rest);
        prop_assert_eq!(pieces.counts(), expected, "in pieces");
    }
}

/// Texts of a few scripts, long enough to be counted by windows, some with what is no UTF-8.
fn text_of_scripts() -> impl Strategy<Value = Vec<u8>> {
    const PIECES: [&[u8]; 45] = [
        b"a",
        b"word ",
        b"Upper",
        b"  ",
        b"\t",
        b"\n",
        b"\r\n",
        b"12",
        b"3.5",
        b"...",
        b"(",
        b"\0",
        b"\x7f",
        b"@[`{~",
        "é".as_bytes(),
        "Éàñ".as_bytes(),
        "潮水".as_bytes(),
        "。".as_bytes(),
        "，".as_bytes(),
        "ｶﾀ".as_bytes(),
        "ひらカ".as_bytes(),
        "한글".as_bytes(),
        "ㄱ".as_bytes(),
        "прилив".as_bytes(),
        "Αα".as_bytes(),
        "שלום".as_bytes(),
        "سلام".as_bytes(),
        "हिन्दी".as_bytes(),
        "ไทย".as_bytes(),
        "—“”".as_bytes(),
        "🌊".as_bytes(),
        "𠀀".as_bytes(),
        "\u{fe0f}".as_bytes(),
        "°".as_bytes(),
        "\u{80}".as_bytes(),
        "\u{4dc0}\u{3400}\u{d7b0}".as_bytes(),
        b"\xff",
        b"\xc0",
        b"\xe4",
        b"\xe4\xbd",
        b"\xf0\x9f",
        b"\x80",
        b"\xed\xa0\x80",
        b"\xef\xbd",
        b"\xd0",
    ];
    let kinds = prop::collection::vec(prop::sample::select(PIECES.to_vec()), 1..6);
    (kinds, prop::collection::vec(any::<prop::sample::Index>(), 0..700))
        .prop_map(|(kinds, places)| places.iter().flat_map(|place| kinds[place.index(kinds.len())]).copied().collect())
}

#[test]
fn every_character_is_counted_by_windows_as_by_itself() {
    // One character fills windows, between letters and between others of its kind: the first and last of all blocks.
    for code_point in 0x80..0x3_2000_u32 {
        let block = if code_point < 0x3200 || (0xfa00..0x1_0000).contains(&code_point) { 16 } else { 64 };
        if (1..block - 1).contains(&(code_point % block)) {
            continue;
        }
        let Some(character) = char::from_u32(code_point) else { continue };
        let text = format!("{character}a{character} {character}{character}.").repeat(30);
        assert_eq!(TextCounts::of(&text), slow::counts(text.as_bytes()), "U+{code_point:04X}");
    }
}
