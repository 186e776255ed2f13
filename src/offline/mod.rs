//! The commands that serve nobody: the policy driven from outside, and the simulator.

mod explain;
mod progress;
mod simulate;
mod tune;

use std::io;
use std::path::PathBuf;

use crate::balance::Policy;
use crate::cli::PolicyArgs;
use crate::config::{Config, Group};
use crate::drive::{Driver, Event, Groups, Setup, SetupError, What, run};
use crate::explain::AskedError;
use crate::remote::RemoteError;
use crate::simulate::SimulateError;
use crate::work::{PROFILES, Profile, ServerTraits};

pub use explain::explain;
pub use simulate::simulate;
pub use tune::tune;

/// Servers that are driven when nothing says how many.
const DEFAULT_SERVERS: usize = 8;

/// Why a command has failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// There is no profile of this name.
    #[error("there is no profile {name:?}, expected {}", PROFILES.map(|profile| profile.name).join(" or "))]
    UnknownProfile {
        /// What was asked for.
        name: String,
    },
    /// Servers that are discovered are not known before Tidegate runs.
    #[error("group {group} discovers its servers, expected a file that lists them, or --servers N")]
    Discovers {
        /// The group.
        group: String,
    },
    /// The policy cannot be run so.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The simulation cannot be run so.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// Two things that were asked for do not go together.
    #[error("{0}")]
    Usage(&'static str),
    /// The body cannot be read.
    #[error("{}: {error}", file.display())]
    Body {
        /// Where it is.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is no question.
    #[error(transparent)]
    Asked(#[from] AskedError),
    /// A running Tidegate does not answer.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The configuration cannot be run.
    #[error("{0}")]
    Config(String),
    /// No server has this name.
    #[error("there is no server {name}, expected one of: {known}")]
    UnknownServer {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The load that was given is more than a server may have.
    #[error("server {name} does not take this load: it is drained, or beyond its limits")]
    Full {
        /// The server.
        name: String,
    },
    /// The report cannot be written.
    #[error("{}: {error}", file.display())]
    Report {
        /// Where it was to go.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Reading or writing has failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Failure {
    /// Whether what was asked for was wrong.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::Io(_) | Self::Report { .. } | Self::Body { .. } | Self::Remote(_))
    }

    /// Whether nobody reads the output any more.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// `tidegate policy --stdio`: answers events until the input ends.
///
/// # Errors
/// When there is no such policy, profile or set of servers, or input and output fail.
pub fn policy(arguments: &PolicyArgs, config: Option<&Config>) -> Result<(), Failure> {
    let setup = setup(arguments, config)?;
    let mut driver = Driver::new(setup.dispatcher()?);
    let servers = config.into_iter().flat_map(|config| config.groups.iter().flat_map(|group| &group.servers));
    for (server, _) in servers.enumerate().filter(|(_, server)| server.is_drained) {
        let drained = Event { now_s: 0.0, what: What::Server { server, is_up: false } };
        driver.apply(drained).expect("the server is one of the file's");
    }
    Ok(run(&mut driver, io::stdin().lock(), io::stdout().lock())?)
}

fn setup(arguments: &PolicyArgs, config: Option<&Config>) -> Result<Setup, Failure> {
    let groups = config.map(groups).transpose()?;
    let in_file = groups.as_ref().map(|groups| groups.policy.name());
    let policy = arguments.policy.as_deref().or(in_file).unwrap_or("lanes");
    let servers = match &groups {
        Some(groups) => groups.sizes.iter().sum(),
        None => arguments.servers.map_or(DEFAULT_SERVERS, usize::from),
    };
    let mut setup = Setup::new(policy, servers);
    if let Some(Policy::ByWork(by_work)) = config.map(|config| &config.policy) {
        setup = setup.as_configured(by_work);
    }
    let engine = &arguments.engine;
    if let Some(name) = &engine.profile {
        setup.profile = profile(name)?;
    }
    setup.lanes = engine.lanes.or(setup.lanes);
    setup.long_from_tokens = engine.long_from_tokens.or(setup.long_from_tokens);
    setup.traits = config.into_iter().flat_map(|config| &config.groups).flat_map(traits).collect();
    Ok(Setup { groups, ..setup })
}

fn traits(group: &Group) -> impl Iterator<Item = ServerTraits> {
    // Nobody is asked here.
    group.servers.iter().map(|server| server.traits.resolved(None))
}

fn groups(config: &Config) -> Result<Groups, Failure> {
    if let Some(group) = config.groups.iter().find(|group| group.discover.is_some()) {
        return Err(Failure::Discovers { group: group.name.clone() });
    }
    let policy: Policy = config.policy.clone();
    Ok(Groups {
        names: config.groups.iter().map(|group| group.name.clone()).collect(),
        sizes: config.groups.iter().map(|group| group.servers.len()).collect(),
        policy,
        ties: config.ties,
    })
}

fn profile(name: &str) -> Result<Profile, Failure> {
    Profile::named(name).ok_or_else(|| Failure::UnknownProfile { name: name.to_owned() })
}
