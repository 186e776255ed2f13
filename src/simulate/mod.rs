//! `tidegate simulate`: traffic replayed against modelled engines under one policy after the other.
//!
//! ```text
//! trace or mix -> Job list --scaled to a load--> World: arrivals -> work::Dispatcher -> Engine steps -> first tokens, ends
//!                                                 ^------------- events -----------------'
//! ```
//!
//! The policies are the product's own, through the same dispatcher that everything else uses. The engines are a model of
//! vLLM's V1 engine ([`Engine`]), with the coefficients of a [`Profile`].

mod baseline;
mod engine;
mod mix;
mod outcome;
mod report;
mod trace;
mod world;

#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;

pub use engine::{Engine, Progress};
pub use mix::Mix;
pub use outcome::{Distribution, Summary, Timing};
pub use trace::{Job, TraceError};
pub use world::World;

use crate::drive::{Setup, SetupError};
use crate::work::{Dispatcher, HoldLimits, Profile};

/// What is to be compared.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Servers.
    pub servers: usize,
    /// What the engines can do.
    pub profile: Profile,
    /// What the policy believes of them.
    pub belief: Profile,
    /// Names of policies.
    pub policies: Vec<String>,
    /// Offered work as shares of what the servers can do.
    pub loads: Vec<f64>,
    /// Seed of what is random.
    pub seed: u64,
    /// Most requests.
    pub requests: usize,
}

/// Where the traffic comes from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A CSV file.
    File(PathBuf),
    /// Made up.
    Mix(Mix),
}

/// Why nothing can be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The trace cannot be used.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// There is no such policy, or it cannot be run over so many servers.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// There is no such traffic.
    #[error("there is no mix {name:?}, expected synthetic or synthetic-burst")]
    UnknownMix {
        /// What was asked for.
        name: String,
    },
    /// A load is no share.
    #[error("a load is {load}, expected a number above 0 and up to 2, such as 0.8")]
    Load {
        /// What was asked for.
        load: f64,
    },
    /// The output cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Source {
    /// Made-up traffic by its name.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn mix(name: &str) -> Result<Self, SimulateError> {
        let mix = Mix::named(name).ok_or_else(|| SimulateError::UnknownMix { name: name.to_owned() })?;
        Ok(Self::Mix(mix))
    }

    fn jobs(&self, plan: &Plan) -> Result<Vec<Job>, SimulateError> {
        let jobs = match self {
            Self::File(file) => trace::read(file, plan.requests, plan.seed)?,
            Self::Mix(mix) => mix.jobs(plan.requests, plan.seed),
        };
        // What fits into no KV cache would be refused by a server.
        Ok(jobs.into_iter().filter(|job| job.prompt_tokens + job.output_tokens < plan.profile.kv_tokens).collect())
    }
}

/// Simulates every policy at every load, as many at once as there are cores, and prints a table.
///
/// # Errors
/// When the plan cannot be carried out or the output fails.
pub fn run(plan: &Plan, source: &Source, output: &mut impl Write) -> Result<(), SimulateError> {
    if let Some(load) = plan.loads.iter().find(|load| !(**load > 0.0 && **load <= 2.0)) {
        return Err(SimulateError::Load { load: *load });
    }
    let jobs = source.jobs(plan)?;
    let natural = trace::natural_load(&jobs, &plan.profile, plan.servers);
    for policy in &plan.policies {
        dispatcher(policy, plan)?;
    }
    let cases: Vec<(f64, &str)> =
        plan.loads.iter().flat_map(|load| plan.policies.iter().map(|policy| (*load, policy.as_str()))).collect();
    let simulate = |(load, policy): (f64, &str)| {
        let mut jobs = jobs.clone();
        jobs.iter_mut().for_each(|job| job.arrival_s *= natural / load);
        let dispatcher = dispatcher(policy, plan).expect("it could be made before");
        Summary::of(&jobs, &World::new(&jobs, dispatcher, plan.profile, plan.servers).run())
    };
    report::write(plan, &jobs, natural, &cases, &in_parallel(&cases, simulate), output)?;
    Ok(())
}

fn dispatcher(policy: &str, plan: &Plan) -> Result<Dispatcher, SetupError> {
    if let Some(policy) = baseline::named(policy, plan.seed) {
        return Ok(Dispatcher::new(plan.servers, plan.belief, policy, HoldLimits::default(), None));
    }
    Setup { profile: plan.belief, ..Setup::new(policy, plan.servers) }.dispatcher()
}

/// Works on all cases, each on one core, and gives the results in their order.
fn in_parallel<C: Copy + Sync, R: Send>(cases: &[C], work: impl Fn(C) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores.min(cases.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(index) else { return };
                    let result = work(*case);
                    results.lock().push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner();
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
