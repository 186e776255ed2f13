//! The policies: how much a request weighs, and among which servers it may choose.

use super::{Buckets, Load};
use crate::prompt::{Demand, MediaCosts};
use crate::work::{
    self, DEFAULT_PREFIX_BYTES, Dispatcher, HoldLimits, LLAMA3_8B_A100, Lanes, Learning, LeastWork, Profile,
    ServerSpec, Settings,
};

/// How a request finds its group.
#[derive(Debug, Clone, PartialEq)]
pub enum Policy {
    /// The example's plain mode: no groups, a score of prompt bytes and output tokens, least active score wins.
    ReferencePlain,
    /// The example's dynamic-bucket mode: one group per bucket, a quarter token per byte. See [`Buckets`].
    ReferenceBucket(Buckets),
    /// By predicted work in seconds. See [`work`](crate::work).
    ByWork(ByWork),
}

/// How to route by work.
#[derive(Debug, Clone, PartialEq)]
pub struct ByWork {
    /// Which of the policies.
    pub kind: WorkKind,
    /// What the engines can do, until it is learned.
    pub profile: Profile,
    /// Pins what counts as long, in tokens.
    pub long_from_tokens: Option<u64>,
    /// Bounds of what is held.
    pub hold: HoldLimits,
    /// What images, sounds and films count as.
    pub media: MediaCosts,
    /// Memory for what all servers are believed to hold of prompts, in bytes.
    pub prefix_bytes: u64,
}

/// The policies that route by work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind {
    /// Long prefills one at a time on the last servers; see [`Lanes`](crate::work::Lanes).
    Lanes {
        /// Pins how many servers are lanes.
        count: Option<usize>,
    },
    /// Where it costs least; see [`LeastWork`](crate::work::LeastWork).
    LeastWork,
}

impl Default for ByWork {
    /// Lanes, with everything learned that can be.
    fn default() -> Self {
        Self {
            kind: WorkKind::Lanes { count: None },
            profile: LLAMA3_8B_A100,
            long_from_tokens: None,
            hold: HoldLimits::default(),
            media: MediaCosts::default(),
            prefix_bytes: DEFAULT_PREFIX_BYTES,
        }
    }
}

impl ByWork {
    /// What the dispatcher goes by.
    pub(super) fn settings(&self) -> Settings {
        Settings { profile: self.profile, hold: self.hold, long_from_tokens: self.long_from_tokens }
    }

    /// The policy, to which nothing has happened yet.
    pub(super) fn policy(&self) -> Box<dyn work::Policy> {
        match self.kind {
            WorkKind::Lanes { count } => Box::new(Lanes::new(count)),
            WorkKind::LeastWork => Box::new(LeastWork),
        }
    }

    /// A dispatcher for these servers, to which nothing has happened yet.
    #[must_use]
    pub fn dispatcher(&self, servers: &[ServerSpec]) -> Dispatcher {
        let mut dispatcher = Dispatcher::of_servers(servers, self.settings(), self.policy());
        dispatcher.learn(Learning::USUAL);
        dispatcher.set_prefix_memory(self.prefix_bytes);
        dispatcher
    }
}

impl Policy {
    /// The name in the configuration, metrics and status.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::ReferencePlain => "reference_plain",
            Self::ReferenceBucket(_) => "reference_bucket",
            Self::ByWork(ByWork { kind: WorkKind::Lanes { .. }, .. }) => "lanes",
            Self::ByWork(ByWork { kind: WorkKind::LeastWork, .. }) => "least_work",
        }
    }

    /// What images, sounds and films count as, for policies that ask.
    #[must_use]
    pub fn media(&self) -> MediaCosts {
        match self {
            Self::ByWork(by_work) => by_work.media,
            Self::ReferencePlain | Self::ReferenceBucket(_) => MediaCosts::default(),
        }
    }

    /// How much a request weighs while it runs.
    ///
    /// Plain mode: `bytes + 0.5 x max_tokens`, or `bytes + max_tokens` with `ignore_eos`. Bucket mode: `bytes / 4`
    /// (the example's estimate of prompt tokens); the output does not count. By work it is the prompt's estimated
    /// tokens, which serves limits and people: decisions are made on the [`Book`](crate::work::Book).
    #[must_use]
    pub fn load_of(&self, demand: &Demand) -> Load {
        match self {
            Self::ReferencePlain => {
                let output = demand.max_tokens.millitokens();
                let output = if demand.ignore_eos { output } else { output / 2 };
                Load::from_millitokens(demand.body_bytes.saturating_mul(1_000).saturating_add(output))
            }
            Self::ReferenceBucket(_) => Load::from_millitokens(demand.body_bytes.saturating_mul(250)),
            Self::ByWork(_) => Load::from_millitokens(demand.prompt_tokens().saturating_mul(1_000)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::RedirectTuning;
    use crate::prompt::Budget;

    fn demand(body_bytes: u64, max_tokens: f64, ignore_eos: bool) -> Demand {
        let max_tokens = Budget::from_fractional_tokens(max_tokens);
        Demand { body_bytes, max_tokens, ignore_eos, work: None }
    }

    #[test]
    fn plain_mode_adds_bytes_and_half_the_budget_or_all_of_it() {
        let tokens = |demand| Policy::ReferencePlain.load_of(&demand).tokens();
        assert_eq!(tokens(Demand::of_bytes(100)), 108.0);
        assert_eq!(tokens(demand(100, 10.5, false)), 105.25);
        assert_eq!(tokens(demand(100, 10.5, true)), 110.5);
    }

    #[test]
    fn bucket_mode_counts_a_quarter_of_the_bytes_whatever_the_budget() {
        let buckets = Buckets::equal_width(10, 1, RedirectTuning::default()).unwrap();
        let tokens = |demand| Policy::ReferenceBucket(buckets.clone()).load_of(&demand).tokens();
        assert_eq!(tokens(demand(3, 1e9, true)), 0.75);
        assert_eq!(tokens(demand(131_072, 0.0, false)), 32_768.0);
    }

    #[test]
    fn no_size_overflows() {
        let most = demand(u64::MAX, f64::MAX, true);
        assert_eq!(Policy::ReferencePlain.load_of(&most).millitokens(), u64::MAX);
    }
}
