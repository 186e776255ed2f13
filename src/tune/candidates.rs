//! What could be recommended.

use crate::balance::{Bucket, Buckets, Policy, RedirectTuning, Ties};
use crate::drive::{Groups, Setup, SetupError};
use crate::simulate::{Contender, Job};
use crate::work::Profile;

/// What is set of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pins {
    /// The policy `lanes`; what is not pinned follows the traffic.
    Lanes {
        /// The number of lanes.
        lanes: Option<usize>,
        /// What counts as long.
        long_from_tokens: Option<u64>,
    },
    /// The policy `least_work`.
    LeastWork,
    /// The policy `reference_bucket` with two groups.
    Buckets {
        /// Servers of the group for short prompts; the others are for long ones.
        short_servers: usize,
        /// Where the long group begins.
        threshold: u64,
    },
    /// The policy `reference_plain`.
    Plain,
}

/// Something that could be recommended.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// What is set.
    pub pins: Pins,
    /// The same as something to be simulated.
    pub contender: Contender,
}

/// The example's threshold and largest prompt.
pub(super) const DEFAULT_THRESHOLD: u64 = 32_768;
const MAX_REQUEST_TOKENS: u64 = 131_072;

/// Thresholds that are tried.
const THRESHOLDS: [u64; 4] = [4_096, 8_192, 16_384, 32_768];

/// A threshold is tried when at least this share of the requests is above it, and at most [`MOST_LONG`].
const LEAST_LONG: f64 = 0.002;
const MOST_LONG: f64 = 0.4;

/// With more servers not every number of lanes is tried, but so many, evenly spread.
const MOST_LANE_COUNTS: usize = 5;

impl Pins {
    /// The reference with the defaults of the example.
    #[must_use]
    pub fn reference(servers: usize) -> Self {
        Self::Buckets { short_servers: servers.div_ceil(2), threshold: DEFAULT_THRESHOLD }
    }

    /// The default of the product.
    pub const LANES: Self = Self::Lanes { lanes: None, long_from_tokens: None };

    /// How much the operator has to keep right by hand when the traffic changes: simpler is less.
    #[must_use]
    pub fn complexity(&self) -> usize {
        match *self {
            Self::Plain | Self::LeastWork => 0,
            Self::Lanes { lanes, long_from_tokens } => {
                usize::from(lanes.is_some()) + usize::from(long_from_tokens.is_some())
            }
            Self::Buckets { .. } => 2,
        }
    }

    /// In a few words.
    #[must_use]
    pub fn words(&self) -> String {
        let or_auto = |pin: Option<String>| pin.unwrap_or_else(|| "auto".to_owned());
        match self {
            Self::Lanes { lanes, long_from_tokens } => {
                let (lanes, from) = (lanes.map(|n| n.to_string()), long_from_tokens.map(|n| n.to_string()));
                format!("lanes (lanes: {}, long_from_tokens: {})", or_auto(lanes), or_auto(from))
            }
            Self::LeastWork => "least_work".to_owned(),
            Self::Plain => "reference_plain".to_owned(),
            Self::Buckets { short_servers, threshold } => {
                format!("reference_bucket ({short_servers} servers for prompts below {threshold} tokens)")
            }
        }
    }

    /// The part of the configuration file that says so.
    #[must_use]
    pub fn yaml(&self, servers: usize) -> String {
        let or_auto = |pin: Option<String>| pin.unwrap_or_else(|| "auto".to_owned());
        match self {
            Self::Lanes { lanes, long_from_tokens } => {
                let (lanes, from) = (lanes.map(|n| n.to_string()), long_from_tokens.map(|n| n.to_string()));
                let (lanes, from) = (or_auto(lanes), or_auto(from));
                format!("policy:\n  kind: lanes\n  lanes: {lanes}\n  long_from_tokens: {from}\n")
            }
            Self::LeastWork => "policy:\n  kind: least_work\n".to_owned(),
            Self::Plain => "policy:\n  kind: reference_plain\n".to_owned(),
            Self::Buckets { short_servers, threshold } => format!(
                "policy:\n  kind: reference_bucket\ngroups:\n  - name: short\n    up_to_tokens: {threshold}\n    servers: []  # the first \
                 {short_servers} of your servers\n  - name: long\n    up_to_tokens: {MAX_REQUEST_TOKENS}\n    servers: []  # the other {}\n",
                servers - short_servers
            ),
        }
    }

    /// Something to be simulated.
    ///
    /// # Errors
    /// When it cannot be run over so many servers.
    pub fn candidate(self, servers: usize, profile: Profile) -> Result<Candidate, SetupError> {
        let setup = |name| Setup { profile, ..Setup::new(name, servers) };
        let setup = match self {
            Self::Lanes { lanes, long_from_tokens } => Setup { lanes, long_from_tokens, ..setup("lanes") },
            Self::LeastWork => setup("least_work"),
            Self::Plain => setup("reference_plain"),
            Self::Buckets { short_servers, threshold } => {
                let groups = two_groups([short_servers, servers - short_servers], threshold)?;
                Setup { groups: Some(groups), ..setup("reference_bucket") }
            }
        };
        Ok(Candidate { pins: self, contender: Contender::of(self.words(), setup)? })
    }
}

fn two_groups(sizes: [usize; 2], threshold: u64) -> Result<Groups, SetupError> {
    let ranges = vec![Bucket { from: 0, to: threshold }, Bucket { from: threshold, to: MAX_REQUEST_TOKENS }];
    Ok(Groups {
        names: ["short", "long"].map(str::to_owned).into(),
        sizes: sizes.into(),
        policy: Policy::ReferenceBucket(Buckets::new(ranges, RedirectTuning::default())?),
        ties: Ties::LeastRecentlyUsed,
    })
}

/// Everything that is worth trying for this traffic.
pub(super) fn for_traffic(jobs: &[Job], servers: usize) -> Vec<Pins> {
    let count = crate::simulate::as_f64(jobs.len().max(1) as u64);
    let share_above = |threshold: u64| {
        let above = jobs.iter().filter(|job| job.prompt_tokens >= threshold).count();
        crate::simulate::as_f64(above as u64) / count
    };
    let thresholds =
        THRESHOLDS.into_iter().filter(|threshold| (LEAST_LONG..=MOST_LONG).contains(&share_above(*threshold)));
    let thresholds: Vec<u64> = thresholds.collect();
    let mut all = vec![Pins::Plain, Pins::LeastWork];
    // Pins make sense only where there is something that is long.
    let most_lanes = if thresholds.is_empty() { 0 } else { servers.saturating_sub(1) };
    let tried = most_lanes.min(MOST_LANE_COUNTS);
    for lanes in std::iter::once(None).chain((1..=tried).map(|place| Some(place * most_lanes / tried))) {
        let froms = std::iter::once(None).chain(thresholds.iter().copied().map(Some));
        all.extend(froms.map(|long_from_tokens| Pins::Lanes { lanes, long_from_tokens }));
    }
    let mut splits: Vec<usize> = [servers / 4, servers / 2, servers * 3 / 4]
        .into_iter()
        .filter(|short| *short >= 1 && *short < servers)
        .collect();
    splits.dedup();
    for threshold in thresholds {
        all.extend(splits.iter().map(|short_servers| Pins::Buckets { short_servers: *short_servers, threshold }));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Mix, Traffic};
    use crate::work::LLAMA3_8B_A100;

    #[test]
    fn pins_are_tried_where_there_is_something_long() {
        let mixed = Traffic::made_up(Mix::Steady, 3_000).jobs(1);
        let tried = for_traffic(&mixed, 8);
        assert!(tried.contains(&Pins::LANES) && tried.contains(&Pins::LeastWork));
        assert!(tried.contains(&Pins::Lanes { lanes: Some(7), long_from_tokens: Some(32_768) }));
        assert!(tried.contains(&Pins::Buckets { short_servers: 6, threshold: 8_192 }));
        let short: Vec<Job> = (0..1_000).map(|number| Job::new(f64::from(number), 300, 50)).collect();
        assert_eq!(for_traffic(&short, 8), [Pins::Plain, Pins::LeastWork, Pins::LANES]);
    }

    #[test]
    fn everything_that_is_tried_can_be_run_and_says_what_it_is() {
        let mixed = Traffic::made_up(Mix::Steady, 3_000).jobs(1);
        for servers in [2, 3, 8] {
            for pins in for_traffic(&mixed, servers) {
                assert!(pins.candidate(servers, LLAMA3_8B_A100).is_ok(), "{pins:?}");
                let kind = pins.words().split(' ').next().unwrap().to_owned();
                assert!(pins.yaml(servers).contains(&format!("  kind: {kind}\n")), "{pins:?}");
            }
        }
        let pins = Pins::Lanes { lanes: Some(2), long_from_tokens: None };
        assert_eq!(pins.yaml(4), "policy:\n  kind: lanes\n  lanes: 2\n  long_from_tokens: auto\n");
    }
}
