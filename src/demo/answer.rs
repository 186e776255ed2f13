//! What a demo server says: who it is, how long the prompt was, how long it waited.

use super::engine::Prefill;
use super::reply::Finish;
use super::request::Generation;

/// An answer, token by token. A token is a word with the blank that follows it.
#[derive(Debug)]
pub(super) struct Answer {
    words: Vec<String>,
    length: u64,
    finish: Finish,
}

impl Answer {
    /// The answer of the server `name`. It fits into the 16 tokens that a text completion has by default.
    pub(super) fn new(name: &str, generation: &Generation, prefill: Prefill) -> Self {
        let sentence = format!(
            "{name} answers: prompt of {} tokens, {:.2} s in line, {:.2} s of prefill.",
            generation.prompt_tokens,
            prefill.queued.as_secs_f64(),
            prefill.took.as_secs_f64()
        );
        let words: Vec<String> = sentence.split_inclusive(' ').map(str::to_owned).collect();
        let said = words.len() as u64;
        let (length, finish) = if generation.ignore_eos || said > generation.max_tokens {
            (generation.max_tokens, Finish::Length)
        } else {
            (said, Finish::Stop)
        };
        Self { words, length, finish }
    }

    /// Number of tokens. At least 1.
    pub(super) fn len(&self) -> u64 {
        self.length
    }

    /// Why it ends.
    pub(super) fn finish(&self) -> Finish {
        self.finish
    }

    /// The tokens in order. When there is nothing left to say, it says "and so on".
    pub(super) fn tokens(&self) -> impl Iterator<Item = &str> {
        let said = self.words.iter().map(String::as_str);
        let length = usize::try_from(self.length).unwrap_or(usize::MAX);
        said.chain([" and", " so", " on"].into_iter().cycle()).take(length)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::demo::request::Endpoint;

    fn answer(max_tokens: u64, ignore_eos: bool) -> Answer {
        let (stream, include_usage) = (false, false);
        let generation = Generation {
            endpoint: Endpoint::Completions,
            prompt_tokens: 12,
            max_tokens,
            ignore_eos,
            stream,
            include_usage,
        };
        let prefill = Prefill { queued: Duration::from_millis(1_500), took: Duration::from_millis(10) };
        Answer::new("short-0", &generation, prefill)
    }

    const SENTENCE: &str = "short-0 answers: prompt of 12 tokens, 1.50 s in line, 0.01 s of prefill.";

    #[test]
    fn the_answer_fits_into_the_default_budget_of_a_completion() {
        let answer = answer(16, false);
        assert_eq!(answer.tokens().collect::<String>(), SENTENCE);
        assert_eq!((answer.len(), answer.finish()), (14, Finish::Stop));
    }

    #[test]
    fn a_smaller_budget_cuts_the_answer() {
        let answer = answer(3, false);
        assert_eq!(answer.tokens().collect::<String>(), "short-0 answers: prompt ");
        assert_eq!((answer.len(), answer.finish()), (3, Finish::Length));
    }

    #[test]
    fn ignoring_the_end_fills_the_budget() {
        let answer = answer(20, true);
        assert_eq!(answer.tokens().count(), 20);
        assert_eq!(answer.tokens().collect::<String>(), format!("{SENTENCE} and so on and so on"));
        assert_eq!((answer.len(), answer.finish()), (20, Finish::Length));
    }
}
