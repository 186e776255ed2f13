//! What is read of an engine's `/metrics`: a few samples of vLLM's, in Prometheus' text format. Pure.
//!
//! Each data-parallel rank of an engine has samples of its own, told apart by the label `engine`. They are summed; of
//! shares of KV caches, which are of one size, the mean is taken.

use super::tally::Counters;
use crate::work::EngineState;

/// Longer lines are no sample that is wanted, in bytes. vLLM's longest one has about a thousand.
const LONGEST_LINE: usize = 8 << 10;

/// An engine that reports more requests than this reports nonsense.
const MOST_REQUESTS: f64 = 1e6;

/// The samples that are wanted, in the order of [`Page::series`].
const SERIES: [&str; 5] = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
];

/// What an engine has reported.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct EngineMetrics {
    /// How busy it is.
    pub(super) state: EngineState,
    /// What it has counted since it began.
    pub(super) counters: Option<Counters>,
}

/// A page as it comes, in pieces cut anywhere. Keeps no more of it than a line.
#[derive(Debug, Default)]
pub(super) struct Page {
    line: Vec<u8>,
    is_line_too_long: bool,
    series: [Sum; SERIES.len()],
}

#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    total: f64,
    samples: f64,
}

impl Page {
    /// Reads the next piece.
    pub(super) fn push(&mut self, piece: &[u8]) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + part.len() > LONGEST_LINE {
                self.is_line_too_long = true;
            }
            if !self.is_line_too_long {
                self.line.extend_from_slice(part);
            }
            if part.ends_with(b"\n") {
                self.end_line();
            }
        }
    }

    /// What the page says; `None` when it does not have what an engine has, or nonsense.
    pub(super) fn finish(mut self) -> Option<EngineMetrics> {
        self.end_line();
        let [running, waiting, kv_usage, prompt_tokens, generation_tokens] = self.series;
        let requests = |sum: Sum| whole(sum.value().filter(|requests| *requests <= MOST_REQUESTS)?);
        let kv_usage = kv_usage.value().map(|total| total / kv_usage.samples).filter(|share| *share <= 1.0);
        let state = EngineState { running: requests(running)?, waiting: requests(waiting)?, kv_usage };
        let counters = |prompt_tokens: f64, generation_tokens: f64| {
            Some(Counters { prompt_tokens: whole(prompt_tokens)?, generation_tokens: whole(generation_tokens)? })
        };
        let counted = prompt_tokens.value().zip(generation_tokens.value());
        Some(EngineMetrics { state, counters: counted.and_then(|(prompt, generation)| counters(prompt, generation)) })
    }

    fn end_line(&mut self) {
        if !self.is_line_too_long
            && let Ok(line) = std::str::from_utf8(&self.line)
            && let Some((series, value)) = sample(line)
        {
            self.series[series].total += value;
            self.series[series].samples += 1.0;
        }
        self.line.clear();
        self.is_line_too_long = false;
    }
}

impl Sum {
    fn value(self) -> Option<f64> {
        (self.samples > 0.0 && self.total.is_finite()).then_some(self.total)
    }
}

/// Which of the series a line is a sample of, and its value.
fn sample(line: &str) -> Option<(usize, f64)> {
    let line = line.trim();
    let end = line.find(['{', ' ', '\t'])?;
    let series = SERIES.iter().position(|name| *name == &line[..end])?;
    // Behind the value there may be a time.
    let value: f64 = without_labels(line[end..].trim_start())?.split_ascii_whitespace().next()?.parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some((series, value))
}

/// What is behind the labels, whose values may have braces in them.
fn without_labels(text: &str) -> Option<&str> {
    let Some(labels) = text.strip_prefix('{') else { return Some(text) };
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in labels.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_quoted,
            b'"' => is_quoted = !is_quoted,
            b'}' if !is_quoted => return labels.get(at + 1..),
            _ => {}
        }
    }
    None
}

/// A count; `None` beyond what is exact.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
fn whole(count: f64) -> Option<u64> {
    (0.0..=9_007_199_254_740_992.0).contains(&count).then_some(count.round() as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUSY: &str = include_str!("../../tests/data/vllm-wire/metrics-busy.txt");
    const IDLE: &str = include_str!("../../tests/data/vllm-wire/get-metrics.resp");

    fn read(page: &[u8], piece_bytes: usize) -> Option<EngineMetrics> {
        let mut read = Page::default();
        page.chunks(piece_bytes).for_each(|piece| read.push(piece));
        read.finish()
    }

    fn state(page: &str) -> Option<(u64, u64, Option<f64>)> {
        read(page.as_bytes(), 7).map(|EngineMetrics { state, .. }| (state.running, state.waiting, state.kv_usage))
    }

    #[test]
    fn pages_of_a_real_engine_are_read_however_they_are_cut() {
        let busy = EngineMetrics {
            state: EngineState { running: 16, waiting: 4, kv_usage: Some(0.062_745_098_039_215_69) },
            counters: Some(Counters { prompt_tokens: 860, generation_tokens: 6_104 }),
        };
        for piece_bytes in [1, 100, 1 << 20] {
            assert_eq!(read(BUSY.as_bytes(), piece_bytes), Some(busy), "{piece_bytes}");
        }
        let idle = read(IDLE.as_bytes(), 1 << 20).unwrap();
        assert_eq!(idle.state, EngineState { kv_usage: Some(0.0), ..EngineState::default() });
        assert_eq!(idle.counters, Some(Counters::default()));
    }

    #[test]
    fn the_ranks_of_an_engine_are_summed() {
        let page = "vllm:num_requests_running{engine=\"0\"} 3.0\nvllm:num_requests_running{engine=\"1\"} 2\n\
                    vllm:num_requests_waiting{engine=\"0\"} 1e1\nvllm:num_requests_waiting{engine=\"1\"} 0.0\n\
                    vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.25\n\
                    vllm:prompt_tokens_total 7\nvllm:prompt_tokens_total{a=\"b\"} 1 1795960727\n\
                    vllm:generation_tokens_total 2";
        let counters = Some(Counters { prompt_tokens: 8, generation_tokens: 2 });
        let state = EngineState { running: 5, waiting: 10, kv_usage: Some(0.375) };
        assert_eq!(read(page.as_bytes(), 50), Some(EngineMetrics { state, counters }));
    }

    #[test]
    fn labels_may_have_anything_in_quotes() {
        let page =
            "  vllm:num_requests_running{model=\"a } 9 \\\" {\",b=\"\\\\\"} 4\r\nvllm:num_requests_waiting \t 1\n";
        assert_eq!(state(page), Some((4, 1, None)));
    }

    #[test]
    fn what_is_no_sample_of_an_engine_is_passed_over() {
        let good = "vllm:num_requests_running 1\nvllm:num_requests_waiting 2\n";
        let long = format!("vllm:num_requests_running{{a=\"{}\"}} 5\n", "x".repeat(LONGEST_LINE));
        for other in [
            "vllm:num_requests_running_by_reason 5\n",
            "vllm:num_requests_running{a=\"} 5\n",
            "vllm:num_requests_running NaN\n",
            "vllm:num_requests_running -3\n",
            "vllm:num_requests_running +Inf\n",
            "vllm:num_requests_running\n",
            "# vllm:num_requests_running 5\n",
            &long,
        ] {
            assert_eq!(state(&format!("{other}{good}")), Some((1, 2, None)), "{other}");
            assert_eq!(state(&format!("{good}{other}")), Some((1, 2, None)), "{other}");
        }
        let after = read([b"\xff\xfe 1\n", good.as_bytes()].concat().as_slice(), 3);
        assert!(after.is_some(), "bytes that are no text");
    }

    #[test]
    fn a_page_without_an_engine_and_nonsense_say_nothing() {
        for page in [
            "",
            "<html>",
            "vllm:num_requests_running 1\n",
            "vllm:num_requests_waiting 1\n",
            "vllm:num_requests_running 1e300\nvllm:num_requests_waiting 0\n",
            "vllm:num_requests_running 1000001\nvllm:num_requests_waiting 0\n",
        ] {
            assert_eq!(read(page.as_bytes(), 9), None, "{page}");
        }
        let no_share = "vllm:num_requests_running 1\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 62.5\n";
        assert_eq!(state(no_share), Some((1, 2, None)));
        let no_counter = "vllm:num_requests_running 1\nvllm:num_requests_waiting 2\nvllm:prompt_tokens_total 1e30\n\
                          vllm:generation_tokens_total 1\n";
        assert_eq!(read(no_counter.as_bytes(), 9).unwrap().counters, None);
    }

    fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let sample = (0..SERIES.len(), "(\\{[a-z=\",}\\\\]{0,12})? ?[0-9.eE+-]{0,6}")
            .prop_map(|(series, rest)| format!("{}{rest}\n", SERIES[series]).into_bytes());
        let anything = proptest::collection::vec(any::<u8>(), 0..40);
        proptest::collection::vec(prop_oneof![sample, anything], 0..40)
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm_and_the_same_in_any_pieces(pieces in pieces(), piece_bytes in 1_usize..100) {
            let mut page = Page::default();
            for piece in &pieces {
                page.push(piece);
                prop_assert!(page.line.len() <= LONGEST_LINE);
            }
            let found = page.finish();
            prop_assert_eq!(read(&pieces.concat(), piece_bytes), found);
            if let Some(EngineMetrics { state, .. }) = found {
                prop_assert!(state.running <= 1_000_000 && state.waiting <= 1_000_000);
                prop_assert!(state.kv_usage.is_none_or(|share| (0.0..=1.0).contains(&share)));
            }
        }
    }
}
