//! What the policy knows of one request.

/// A request, known by number. Whoever drives the policy gives each a number of its own and
/// uses none again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Tokens in one block of a prefix.
pub const BLOCK_TOKENS: u64 = 512;

/// What a request asks for, as far as a proxy can see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Length of its body, in bytes: what the reference policies weigh.
    pub body_bytes: u64,
    /// Most tokens that it may generate; `None` when it names no limit.
    pub max_tokens: Option<u64>,
    /// Whether it generates exactly `max_tokens`.
    pub ignore_eos: bool,
    /// Whether its answer is streamed, so that its first token is seen.
    pub is_streamed: bool,
    /// Hashes of its prompt's blocks of [`BLOCK_TOKENS`] tokens, each standing for its block and all before it. May be
    /// empty: then nothing is known of what it shares with others.
    pub prefix: Vec<u64>,
    /// The same for a conversation that the client names: numbers that stand for the first, second ... block of whatever its
    /// prompts have been. Its next prompt is taken to begin with what its last one was.
    pub session: Vec<u64>,
    /// Servers that it must not go to: it was tried there. In any order.
    pub excluded: Vec<usize>,
    /// Whether it was dispatched before and comes again, so that it has been counted as traffic already.
    pub is_retry: bool,
    /// Tokens that a server's context must have room for: its prompt, with a margin for the estimate, and its output budget as far
    /// as that is known. `None`: it goes everywhere.
    pub needed_tokens: Option<u64>,
}

impl Request {
    /// A streamed request of which only the length is known.
    #[must_use]
    pub fn of_tokens(id: u64, prompt_tokens: u64) -> Self {
        Self {
            id: RequestId(id),
            prompt_tokens,
            body_bytes: prompt_tokens.saturating_mul(4),
            max_tokens: None,
            ignore_eos: false,
            is_streamed: true,
            prefix: Vec::new(),
            session: Vec::new(),
            excluded: Vec::new(),
            is_retry: false,
            needed_tokens: None,
        }
    }

    /// Whether a server may have something of its prompt in its cache.
    pub(super) fn may_be_cached(&self) -> bool {
        !self.prefix.is_empty() || !self.session.is_empty()
    }

    /// Output tokens to expect, given the mean of others.
    pub(super) fn expected_output(&self, mean_tokens: f64) -> f64 {
        match self.max_tokens.map(super::profile::as_f64) {
            Some(most) if self.ignore_eos => most,
            Some(most) => most.min(mean_tokens),
            None => mean_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_request_is_expected_to_write_more_than_it_may() {
        let expected = |max_tokens, ignore_eos| {
            Request { max_tokens, ignore_eos, ..Request::of_tokens(0, 1) }.expected_output(200.0)
        };
        assert_eq!(expected(None, false).to_bits(), 200.0_f64.to_bits());
        assert_eq!(expected(Some(50), false).to_bits(), 50.0_f64.to_bits());
        assert_eq!(expected(Some(900), false).to_bits(), 200.0_f64.to_bits());
        assert_eq!(expected(Some(900), true).to_bits(), 900.0_f64.to_bits());
    }
}
