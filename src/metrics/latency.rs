//! How long requests wait for their tokens, by how long their prompts are; and who waits behind whom.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::Metrics;
use super::families::{SECONDS, registered};
use super::remembered::Remembered;
use crate::balance::Length;

/// Upper bounds in seconds of what lies between two tokens: from a small model alone to a stream that is stalled.
const GAPS: [f64; 14] = [0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// What is counted of the tokens of answers, and of what waits for its first one.
#[derive(Debug)]
pub struct LatencyMetrics {
    first_token: Remembered<LengthLabels, Histogram>,
    header: Histogram,
    per_token: Remembered<ClassLabels, Histogram>,
    longest_gap: Remembered<ClassLabels, Histogram>,
    waiting_requests: Family<WaitingLabels, Gauge>,
    waiting_tokens: Family<WaitingLabels, Gauge>,
    /// New ones, and reused ones.
    connections: [Counter; 2],
}

/// The times of one answer, as far as there were any.
#[derive(Debug, Clone, Copy, Default)]
pub struct AnswerTimes {
    /// From the request's header to the header of the answer.
    pub header: Option<Duration>,
    /// From the request's header to the first token.
    pub first_token: Option<Duration>,
    /// From one token to the next, in the mean.
    pub per_token: Option<Duration>,
    /// The longest pause between two pieces with tokens.
    pub longest_gap: Option<Duration>,
}

/// A request that waits on a server for its first token, counted until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it says that the first token is there"]
pub struct Prefilling {
    requests: Gauge,
    tokens: Gauge,
    prompt_tokens: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LengthLabels {
    length: &'static str,
    size: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabels {
    length: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitingLabels {
    group: Arc<str>,
    server: Arc<str>,
    length: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReusedLabels {
    reused: &'static str,
}

impl LatencyMetrics {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let connections: Family<ReusedLabels, Counter> = registered(
            registry,
            "tidegate_server_connections",
            "Connections that attempts on servers were sent over: made for them, or kept from before",
            Family::default(),
        );
        let gaps: fn() -> Histogram = || Histogram::new(GAPS);
        let seconds: fn() -> Histogram = || Histogram::new(SECONDS);
        Self {
            first_token: Remembered::of(registered(
                registry,
                "tidegate_time_to_first_token_seconds",
                "From the request header to the first token of the answer, by whether the policy takes the prompt for \
                 short or long, and by its size in tokens",
                Family::new_with_constructor(seconds),
            )),
            header: registered(
                registry,
                "tidegate_time_to_header_seconds",
                "From the request header to the header of the answer, for requests that count as load",
                seconds(),
            ),
            per_token: Remembered::of(registered(
                registry,
                "tidegate_time_per_output_token_seconds",
                "From one token of a stream to the next, in the mean of the stream",
                Family::new_with_constructor(gaps),
            )),
            longest_gap: Remembered::of(registered(
                registry,
                "tidegate_longest_token_gap_seconds",
                "The longest pause between two pieces of a stream with tokens, once for each stream",
                Family::new_with_constructor(gaps),
            )),
            waiting_requests: registered(
                registry,
                "tidegate_server_waiting_requests",
                "Requests on the server that wait for their first token, short ones behind long ones among them",
                Family::default(),
            ),
            waiting_tokens: registered(
                registry,
                "tidegate_server_waiting_prompt_tokens",
                "Tokens of the prompts of requests on the server that wait for their first token",
                Family::default(),
            ),
            connections: ["false", "true"].map(|reused| connections.get_or_create_owned(&ReusedLabels { reused })),
        }
    }

    /// Notes the times of an answer to a request with a prompt of so many tokens.
    pub fn answered(&self, length: Length, prompt_tokens: u64, times: &AnswerTimes) {
        let class = ClassLabels { length: length.label() };
        if let Some(first_token) = times.first_token {
            let labels = LengthLabels { length: length.label(), size: size_class(prompt_tokens) };
            self.first_token.with(&labels, |seconds| seconds.observe(first_token.as_secs_f64()));
        }
        if let Some(header) = times.header {
            self.header.observe(header.as_secs_f64());
        }
        if let Some(per_token) = times.per_token {
            self.per_token.with(&class, |seconds| seconds.observe(per_token.as_secs_f64()));
        }
        if let Some(longest_gap) = times.longest_gap {
            self.longest_gap.with(&class, |seconds| seconds.observe(longest_gap.as_secs_f64()));
        }
    }

    /// Counts a connection that an attempt is sent over.
    pub fn connected(&self, is_reused: bool) {
        self.connections[usize::from(is_reused)].inc();
    }
}

impl Metrics {
    /// How long requests wait for their tokens.
    #[must_use]
    pub fn latency(&self) -> &LatencyMetrics {
        &self.latency
    }

    /// A request has gone to a server and waits there for its first token; `None` when the server is not known.
    #[must_use]
    pub fn prefills(&self, server: usize, length: Length, prompt_tokens: u64) -> Option<Prefilling> {
        let series = self.series.load();
        let name = series.roster.server(server)?;
        let waiting = series.waiting.get(server)?[length as usize].get_or_init(|| {
            let (group, server) = (Arc::clone(&name.group), Arc::clone(&name.server));
            let labels = WaitingLabels { group, server, length: length.label() };
            let latency = &self.latency;
            (latency.waiting_requests.get_or_create_owned(&labels), latency.waiting_tokens.get_or_create_owned(&labels))
        });
        let (requests, tokens) = waiting.clone();
        let prompt_tokens = i64::try_from(prompt_tokens).unwrap_or(i64::MAX >> 16).min(i64::MAX >> 16);
        requests.inc();
        tokens.inc_by(prompt_tokens);
        Some(Prefilling { requests, tokens, prompt_tokens })
    }
}

impl Drop for Prefilling {
    fn drop(&mut self) {
        self.requests.dec();
        self.tokens.dec_by(self.prompt_tokens);
    }
}

/// The decade of a prompt's size.
fn size_class(prompt_tokens: u64) -> &'static str {
    match prompt_tokens {
        0..1_000 => "under_1k",
        1_000..10_000 => "1k_to_10k",
        10_000..100_000 => "10k_to_100k",
        _ => "over_100k",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fall_into_decades() {
        let classes = [0, 999, 1_000, 9_999, 10_000, 99_999, 100_000, u64::MAX].map(size_class);
        assert_eq!(
            classes,
            ["under_1k", "under_1k", "1k_to_10k", "1k_to_10k", "10k_to_100k", "10k_to_100k", "over_100k", "over_100k"]
        );
    }
}
