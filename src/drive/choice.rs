//! Which policy, over which servers: from names and numbers to a dispatcher.

use super::reference::{Groups, Reference};
use crate::balance::{Bucket, BucketError, Buckets, ByWork, GroupMismatch, RedirectTuning, Ties, WorkKind};
use crate::work::{
    Dispatcher, HoldLimits, LLAMA3_8B_A100, Lanes, Learning, LeastWork, Policy, Profile, ServerSpec, ServerTraits,
    Settings,
};

/// The policies by name, the default first.
pub const POLICIES: [&str; 4] = ["lanes", "least_work", "reference_bucket", "reference_plain"];

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Setup {
    /// One of [`POLICIES`].
    pub policy: String,
    /// How many servers there are, the long end last.
    pub servers: usize,
    /// What tells them from each other, in order; the rest are engines of the profile.
    pub traits: Vec<ServerTraits>,
    /// What each can do.
    pub profile: Profile,
    /// Pins the number of lanes.
    pub lanes: Option<usize>,
    /// Pins what counts as long.
    pub long_from_tokens: Option<u64>,
    /// Bounds of what is held.
    pub hold: HoldLimits,
    /// What is learned of the seconds that servers take.
    pub learning: Learning,
    /// The groups of a configuration, for the policies of the example.
    pub groups: Option<Groups>,
    /// Where the long group begins when there is no configuration, in tokens.
    pub group_threshold: u64,
    /// The longest prompt that the long group is meant for when there is no configuration, in tokens.
    pub max_request_tokens: u64,
}

/// Why a policy cannot be run so.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// There is no policy of this name.
    #[error("there is no policy {name:?}, expected one of {}", POLICIES.join(", "))]
    UnknownPolicy {
        /// What was asked for.
        name: String,
    },
    /// There are too few servers for it.
    #[error("{policy} needs at least {least} servers, there are {servers}")]
    TooFewServers {
        /// The policy.
        policy: String,
        /// What it needs.
        least: usize,
        /// What there are.
        servers: usize,
    },
    /// The two bounds do not make two ranges.
    #[error(transparent)]
    Buckets(#[from] BucketError),
    /// The configuration is for another policy.
    #[error(transparent)]
    Groups(#[from] GroupMismatch),
}

impl Setup {
    /// A policy over so many servers, everything else as by default.
    #[must_use]
    pub fn new(policy: &str, servers: usize) -> Self {
        Self {
            policy: policy.to_owned(),
            servers,
            traits: Vec::new(),
            profile: LLAMA3_8B_A100,
            lanes: None,
            long_from_tokens: None,
            hold: HoldLimits::default(),
            learning: Learning::USUAL,
            groups: None,
            group_threshold: 32_768,
            max_request_tokens: 131_072,
        }
    }

    /// With what a configuration says of routing by work.
    #[must_use]
    pub fn as_configured(self, by_work: &ByWork) -> Self {
        let ByWork { kind, profile, long_from_tokens, hold, media: _, prefix_bytes: _ } = by_work;
        let lanes = if let WorkKind::Lanes { count } = kind { *count } else { None };
        Self { profile: *profile, lanes, long_from_tokens: *long_from_tokens, hold: *hold, ..self }
    }

    /// A dispatcher to which nothing has happened yet.
    ///
    /// # Errors
    /// When the policy cannot be run so.
    pub fn dispatcher(self) -> Result<Dispatcher, SetupError> {
        let policy = self.policy()?;
        let settings = Settings { profile: self.profile, hold: self.hold, long_from_tokens: self.long_from_tokens };
        let traits = self.traits.into_iter().chain(std::iter::repeat(ServerTraits::default())).take(self.servers);
        let servers: Vec<ServerSpec> = traits.map(|traits| ServerSpec { traits, ..ServerSpec::default() }).collect();
        let mut dispatcher = Dispatcher::of_servers(&servers, settings, policy);
        dispatcher.learn(self.learning);
        Ok(dispatcher)
    }

    fn policy(&self) -> Result<Box<dyn Policy>, SetupError> {
        self.at_least(1)?;
        Ok(match self.policy.as_str() {
            "lanes" => Box::new(Lanes::new(self.lanes)),
            "least_work" => Box::new(LeastWork),
            "reference_plain" => Box::new(Reference::new(self.plain_groups())?),
            "reference_bucket" => Box::new(Reference::new(self.bucket_groups()?)?),
            other => return Err(SetupError::UnknownPolicy { name: other.to_owned() }),
        })
    }

    fn at_least(&self, least: usize) -> Result<(), SetupError> {
        let (policy, servers) = (self.policy.clone(), self.servers);
        if servers < least { Err(SetupError::TooFewServers { policy, least, servers }) } else { Ok(()) }
    }

    fn plain_groups(&self) -> Groups {
        let policy = crate::balance::Policy::ReferencePlain;
        match &self.groups {
            Some(groups) => Groups { policy, ..groups.clone() },
            None => Groups { names: vec!["all".to_owned()], sizes: vec![self.servers], policy, ties: Ties::First },
        }
    }

    /// Those of the configuration if it is for this policy; else the example's two halves.
    fn bucket_groups(&self) -> Result<Groups, SetupError> {
        if let Some(groups) = &self.groups
            && matches!(groups.policy, crate::balance::Policy::ReferenceBucket(_))
        {
            return Ok(groups.clone());
        }
        self.at_least(2)?;
        let (threshold, most) = (self.group_threshold, self.max_request_tokens);
        let ranges = vec![Bucket { from: 0, to: threshold }, Bucket { from: threshold, to: most }];
        let buckets = Buckets::new(ranges, RedirectTuning::default())?;
        Ok(Groups {
            names: ["short", "long"].map(str::to_owned).into(),
            sizes: vec![self.servers.div_ceil(2), self.servers / 2],
            policy: crate::balance::Policy::ReferenceBucket(buckets),
            ties: Ties::First,
        })
    }
}
