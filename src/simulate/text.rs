//! Texts for requests of which only the lengths are known, so that they can be sent.

use std::fmt::Write as _;

use super::traffic::Job;
use crate::work::BLOCK_TOKENS;

/// Prose of which nothing has to be escaped in JSON.
const PROSE: &str = "The gate opens when the water behind it stands high enough, and closes again. ";

/// Text of a block: 4 bytes for each token, as [`Job::new`] and the reference policies count.
const BLOCK_BYTES: u64 = BLOCK_TOKENS * 4;

impl Job {
    /// A prompt of `body_bytes` bytes, plain ASCII without quotes or line breaks.
    ///
    /// Jobs with the same blocks begin with the same text, of 4 bytes a token. One without blocks begins as no other with
    /// another `number` does, so that nothing of it is in a server's cache.
    #[must_use]
    pub fn text(&self, number: u64) -> String {
        let mut text = String::new();
        if self.prefix.is_empty() {
            extend(&mut text, self.body_bytes, format_args!("Number {number}. "));
        }
        for (end, block) in (1..).map(|count| count * BLOCK_BYTES).zip(&self.prefix) {
            extend(&mut text, end.min(self.body_bytes), format_args!("Block {block}. "));
        }
        // Where the body is longer than its blocks.
        extend(&mut text, self.body_bytes, format_args!(""));
        text
    }
}

/// Makes a text so many bytes long, by a few words and then prose.
fn extend(text: &mut String, length: u64, words: std::fmt::Arguments<'_>) {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    text.write_fmt(words).expect("a string takes all");
    while text.len() < length {
        *text += &PROSE[..PROSE.len().min(length - text.len())];
    }
    text.truncate(length);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_the_length_of_its_body_and_none_begins_like_another() {
        for tokens in [1, 3, 100, 40_000] {
            let job = Job::new(0.0, tokens, 1);
            assert_eq!(job.text(7).len() as u64, job.body_bytes);
            assert!(tokens < 10 || job.text(7).starts_with("Number 7. The gate"));
        }
        assert_eq!(Job { body_bytes: 0, ..Job::new(0.0, 1, 1) }.text(1), "");
    }

    #[test]
    fn what_has_the_same_blocks_begins_with_the_same_text() {
        let of = |prefix: &[u64], tokens| Job { prefix: prefix.to_vec(), ..Job::new(0.0, tokens, 1) };
        let (first, second) = (of(&[0, 7], 1_024).text(1), of(&[0, 8], 1_000).text(2));
        assert_eq!((first.len(), second.len()), (4_096, 4_000));
        assert_eq!(first[..2_048], second[..2_048]);
        assert_ne!(first[2_048..3_000], second[2_048..3_000]);
        // More tokens than blocks.
        assert!(of(&[0, 7], 2_000).text(3).starts_with(&first));
    }
}
