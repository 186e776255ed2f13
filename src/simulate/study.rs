//! A study: one traffic over a number of servers, under several policies, at several loads, with several seeds.

use super::SimulateError;
use super::contender::Contender;
use super::outcome::{Summary, Timing};
use super::parallel::{Observer, in_parallel};
use super::slo::Slo;
use super::timeline::{Timeline, Window};
use super::traffic::{Job, Traffic, as_f64, natural_load};
use super::world::World;
use crate::work::Profile;

/// How fast the traffic comes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// At its own speed.
    Own,
    /// At the speed at which its work is this share of what the servers can do.
    Share(f64),
}

/// What is to be simulated.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Servers.
    pub servers: usize,
    /// What the engines can do.
    pub profile: Profile,
    /// What is compared.
    pub contenders: Vec<Contender>,
    /// The loads.
    pub loads: Vec<Load>,
    /// Seeds of what is random.
    pub seeds: Vec<u64>,
    /// The targets of goodput.
    pub slo: Slo,
    /// Most simulations that run at once. Results do not depend on it.
    pub threads: usize,
    /// Most requests of each seed; `None` are all.
    pub most_requests: Option<usize>,
}

/// One simulation that has been run.
#[derive(Debug, Clone)]
pub struct Run {
    /// The times of each request.
    pub timings: Vec<Timing>,
    /// The same in numbers.
    pub summary: Summary,
}

/// What came out.
#[derive(Debug)]
pub struct Study {
    /// What was simulated.
    pub plan: Plan,
    /// What the traffic is called.
    pub traffic: String,
    /// The requests for each seed, at the speed of the traffic.
    pub jobs: Vec<Vec<Job>>,
    /// Requests of the traffic that fit into no KV cache and were left out.
    pub too_large: usize,
    /// The load of the traffic at its own speed, for each seed.
    pub natural: Vec<f64>,
    /// In the order of loads, contenders, seeds.
    runs: Vec<Run>,
}

/// One combination.
#[derive(Debug, Clone, Copy)]
struct Case {
    load: usize,
    contender: usize,
    seed: usize,
}

impl Study {
    /// Simulates everything, as many at once as the plan allows.
    ///
    /// # Errors
    /// When every request is too large for the engines.
    pub fn of(plan: Plan, traffic: &Traffic, observer: &dyn Observer) -> Result<Self, SimulateError> {
        let mut too_large = 0;
        let fitting = |seed: &u64| {
            let mut jobs = traffic.jobs(*seed);
            // A server would refuse what fits into no KV cache.
            jobs.truncate(plan.most_requests.unwrap_or(usize::MAX));
            let all = jobs.len();
            jobs.retain(|job| job.prompt_tokens.saturating_add(job.output_tokens) < plan.profile.kv_tokens);
            too_large = all - jobs.len();
            jobs
        };
        let jobs: Vec<Vec<Job>> = plan.seeds.iter().map(fitting).collect();
        if jobs.iter().any(Vec::is_empty) {
            return Err(SimulateError::NothingFits { traffic: traffic.name.clone(), tokens: plan.profile.kv_tokens });
        }
        let natural = jobs.iter().map(|jobs| natural_load(jobs, &plan.profile, plan.servers)).collect();
        let mut study = Self { plan, traffic: traffic.name.clone(), jobs, too_large, natural, runs: Vec::new() };
        let Plan { contenders, loads, seeds, .. } = &study.plan;
        let mut cases = Vec::new();
        for load in 0..loads.len() {
            for contender in 0..contenders.len() {
                cases.extend((0..seeds.len()).map(|seed| Case { load, contender, seed }));
            }
        }
        study.runs = in_parallel(&cases, study.plan.threads, observer, |case| study.simulate(*case));
        Ok(study)
    }

    fn world(&self, Case { load, contender, seed }: Case) -> World<'_> {
        let stretch = match self.plan.loads[load] {
            Load::Own => 1.0,
            Load::Share(share) => self.natural[seed] / share,
        };
        let dispatcher = self.plan.contenders[contender].dispatcher(self.plan.seeds[seed]);
        World::new(&self.jobs[seed], stretch, dispatcher, self.plan.profile, self.plan.servers)
    }

    fn simulate(&self, case: Case) -> Run {
        let timings = self.world(case).run();
        let summary = Summary::of(&self.jobs[case.seed], &timings, &self.plan.slo, &self.plan.profile);
        Run { timings, summary }
    }

    /// The runs of a contender at a load, one for each seed.
    #[must_use]
    pub fn runs(&self, load: usize, contender: usize) -> &[Run] {
        let seeds = self.plan.seeds.len();
        let first = (load * self.plan.contenders.len() + contender) * seeds;
        &self.runs[first..first + seeds]
    }

    /// The mean of the runs of a contender at a load.
    #[must_use]
    pub fn summary(&self, load: usize, contender: usize) -> Summary {
        let summaries: Vec<Summary> = self.runs(load, contender).iter().map(|run| run.summary).collect();
        Summary::mean(&summaries)
    }

    /// Runs one simulation again and records what the servers do in a window.
    #[must_use]
    pub fn record(&self, load: usize, contender: usize, seed: usize, window: Window) -> Timeline {
        self.world(Case { load, contender, seed }).record(window)
    }

    /// The place of a contender.
    #[must_use]
    pub fn contender(&self, name: &str) -> Option<usize> {
        self.plan.contenders.iter().position(|contender| contender.name == name)
    }

    /// A load as it is written: the share, at the traffic's own speed with what that is.
    #[must_use]
    pub fn load_name(&self, load: usize) -> String {
        match self.plan.loads[load] {
            Load::Own => format!("own ({:.2})", self.natural_mean()),
            Load::Share(share) => share.to_string(),
        }
    }

    /// A load as a number.
    #[must_use]
    pub fn load_share(&self, load: usize) -> f64 {
        match self.plan.loads[load] {
            Load::Own => self.natural_mean(),
            Load::Share(share) => share,
        }
    }

    fn natural_mean(&self) -> f64 {
        self.natural.iter().sum::<f64>() / as_f64(self.natural.len().max(1) as u64)
    }
}
