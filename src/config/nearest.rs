//! The known word that a misspelt one was probably meant to be.

/// The known key that was probably meant.
pub(super) fn nearest(key: &str, known: &[&'static str]) -> Option<&'static str> {
    const MAX_EDITS: usize = 3;
    // Longer than every known key and its typing errors.
    if key.len() > 60 {
        return None;
    }
    let edits_of = |&known: &&'static str| (edits(&key.to_lowercase(), known), known);
    let (edits, near) = known.iter().map(edits_of).min()?;
    (edits <= MAX_EDITS.min(near.len() / 2)).then_some(near)
}

/// The number of letters to insert, remove or replace to get from one word to the other.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_key_finds_its_neighbour_and_a_strange_one_none() {
        let known = ["threshold", "ties", "up_to_tokens"];
        let cases = [("Threshold", Some("threshold")), ("up_to_token", Some("up_to_tokens")), ("tie", Some("ties"))];
        for (key, near) in cases {
            assert_eq!(nearest(key, &known), near, "{key}");
        }
        for key in ["", "x", "servers", &"threshold".repeat(10)] {
            assert_eq!(nearest(key, &known), None, "{key}");
        }
        assert_eq!(nearest("a", &[]), None);
    }

    #[test]
    fn edits_count_insertions_removals_and_replacements() {
        let cases = [("a", "a", 0), ("ab", "a", 1), ("a", "ab", 1), ("kitten", "sitting", 3), ("", "abc", 3)];
        for (from, to, count) in cases {
            assert_eq!(edits(from, to), count, "{from} {to}");
        }
    }
}
