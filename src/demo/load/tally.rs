//! What the clients of the load have seen.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use tokio::time::Instant;

use super::client::Failure;
use crate::simulate::{Distribution, LONG_FROM_TOKENS};

/// The figures are of the first tokens that came in this time.
const WINDOW: Duration = Duration::from_secs(60);

/// How requests have ended so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answers {
    /// Answered to the end.
    pub whole: u64,
    /// Of these and of those that are being answered: with a short prompt.
    pub short_begun: u64,
    /// With a long one (32k tokens and more).
    pub long_begun: u64,
    /// Refused, broken off, or without any answer.
    pub failed: u64,
    /// Not sent, because too many were on their way.
    pub left_out: u64,
}

#[derive(Debug, Default)]
pub(super) struct Tally {
    answers: Answers,
    last_failure: Option<String>,
    /// In the order in which they came.
    first_tokens: VecDeque<FirstToken>,
}

#[derive(Debug)]
struct FirstToken {
    at: Instant,
    after: Duration,
    is_long: bool,
}

impl Tally {
    /// A first token has come, so long after its request was sent.
    pub(super) fn first_token(&mut self, prompt_tokens: u64, at: Instant, after: Duration) {
        let is_long = prompt_tokens >= LONG_FROM_TOKENS;
        *(if is_long { &mut self.answers.long_begun } else { &mut self.answers.short_begun }) += 1;
        self.first_tokens.push_back(FirstToken { at, after, is_long });
        self.forget(at);
    }

    pub(super) fn answered(&mut self) {
        self.answers.whole += 1;
    }

    pub(super) fn failed(&mut self, failure: &Failure) {
        self.answers.failed += 1;
        self.last_failure = Some(failure.to_string());
    }

    pub(super) fn left_out(&mut self) {
        self.answers.left_out += 1;
    }

    pub(super) fn answers(&self) -> Answers {
        self.answers
    }

    /// The last minute in a line, and what has gone wrong since the beginning.
    pub(super) fn report(&mut self, now: Instant) -> String {
        self.forget(now);
        let of = |is_long: bool| {
            let times = self.first_tokens.iter().filter(|token| token.is_long == is_long);
            Distribution::of(times.map(|token| token.after.as_secs_f64()).collect())
        };
        let mut line = "first tokens of the last minute: ".to_owned();
        for (separator, prompts, times) in [("", "short", of(false)), ("; ", "long", of(true))] {
            let Distribution { count, p50, p99, .. } = times;
            write!(line, "{separator}{count} {prompts}").expect("a string takes all");
            if count > 0 {
                write!(line, ", p50 {p50:.2} s, p99 {p99:.2} s").expect("a string takes all");
            }
        }
        let Answers { failed, left_out, .. } = self.answers;
        if let Some(last) = &self.last_failure {
            write!(line, "; {failed} failed, the last one: {last}").expect("a string takes all");
        }
        if left_out > 0 {
            write!(line, "; {left_out} not sent, because too many wait").expect("a string takes all");
        }
        line
    }

    fn forget(&mut self, now: Instant) {
        let is_old = |token: &FirstToken| now.saturating_duration_since(token.at) > WINDOW;
        while self.first_tokens.front().is_some_and(is_old) {
            self.first_tokens.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_line_tells_the_last_minute_of_short_and_long_prompts() {
        let (began, mut tally) = (Instant::now(), Tally::default());
        tally.first_token(100, began, 9 * SECOND);
        let expected = "first tokens of the last minute: 1 short, p50 9.00 s, p99 9.00 s; 0 long";
        assert_eq!(tally.report(began), expected);
        for (number, prompt_tokens) in [(1, 100), (2, 32_767), (3, 200), (4, 32_768)] {
            tally.first_token(prompt_tokens, began + 30 * SECOND, number * SECOND);
        }
        tally.answered();
        let expected =
            "first tokens of the last minute: 3 short, p50 2.00 s, p99 3.00 s; 1 long, p50 4.00 s, p99 4.00 s";
        assert_eq!(tally.report(began + 61 * SECOND), expected);
        let (whole, short_begun, long_begun, failed, left_out) = (1, 4, 1, 0, 0);
        assert_eq!(tally.answers(), Answers { whole, short_begun, long_begun, failed, left_out });
    }

    #[test]
    fn what_goes_wrong_is_told_with_the_last_reason() {
        let mut tally = Tally::default();
        tally.failed(&Failure::BrokenOff);
        tally.failed(&Failure::Status("HTTP/1.1 503 Service Unavailable".into()));
        tally.left_out();
        assert_eq!(
            tally.report(Instant::now()),
            "first tokens of the last minute: 0 short; 0 long; 2 failed, the last one: answered \"HTTP/1.1 503 Service \
             Unavailable\" instead of a stream; 1 not sent, because too many wait"
        );
    }
}
