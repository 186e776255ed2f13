//! The search: successive halving, then a fair comparison of the finalists.

use super::advice::Advice;
use super::candidates::{Candidate, Pins, for_traffic};
use crate::drive::{Setup, SetupError};
use crate::simulate::{
    Contender, Figure, Job, Load, Observer, Plan, SimulateError, Slo, Study, Traffic, as_f64, change,
};
use crate::work::Profile;

/// What is asked.
#[derive(Debug, Clone)]
pub struct Question {
    /// Servers.
    pub servers: usize,
    /// What each can do.
    pub profile: Profile,
    /// How fast the traffic comes.
    pub load: Load,
    /// The targets.
    pub slo: Slo,
    /// The first seed.
    pub seed: u64,
    /// What runs at present, if that is known.
    pub present: Option<Setup>,
    /// Most simulations that run at once.
    pub threads: usize,
}

/// The rounds of the search: how many requests are replayed, with how many seeds, and how many candidates are left.
const ROUNDS: [(usize, u64, usize); 2] = [(1_500, 1, 12), (6_000, 2, 4)];

/// Seeds of the final comparison, far from those of the search.
const FINAL_SEEDS: std::ops::Range<u64> = 1_000..1_003;

/// What must not get worse for a gain elsewhere.
const NOBODY_PAYS: [Figure; 5] =
    [Figure::ShortTtftP99, Figure::LongTtftMean, Figure::LongTtftP99, Figure::TtftMean, Figure::LatencyMean];

/// A gain that is smaller is not worth a change, however sure it is.
pub(super) const LEAST_GAIN: f64 = 0.05;

/// What has to be kept right by hand when the traffic changes must gain more than what follows it.
const LEAST_GAIN_OF_PINS: f64 = 0.1;

/// Finds what suits the traffic best.
///
/// # Errors
/// When there are too few servers, or no request fits into them.
pub fn advise(question: &Question, traffic: &Traffic, observer: &dyn Observer) -> Result<Advice, SimulateError> {
    let Question { servers, profile, .. } = *question;
    let jobs = traffic.jobs(question.seed);
    let candidate = |pins: Pins| pins.candidate(servers, profile);
    let mut candidates =
        for_traffic(&jobs, servers).into_iter().map(candidate).collect::<Result<Vec<_>, SetupError>>()?;
    for (requests, seeds, left) in ROUNDS {
        if candidates.len() > left {
            let seeds = (0..seeds).map(|more| question.seed.saturating_add(more)).collect();
            candidates = best_of(question, traffic, candidates, (requests, seeds, left), observer)?;
        }
    }
    let mut finalists = with_simple_ones(question, candidates)?;
    let mut contenders: Vec<Contender> = finalists.iter().map(|finalist| finalist.contender.clone()).collect();
    let present = question.present.clone().map(|setup| Contender::of("present".to_owned(), setup)).transpose()?;
    contenders.extend(present);
    let seeds = FINAL_SEEDS.map(|more| question.seed.saturating_add(more)).collect();
    let study = Study::of(plan(question, contenders, seeds, None), traffic, observer)?;
    let chosen = choose(&study, &finalists);
    let pins = finalists.drain(..).map(|finalist| finalist.pins).collect();
    Ok(Advice { study, pins, chosen, has_present: question.present.is_some() })
}

fn plan(question: &Question, contenders: Vec<Contender>, seeds: Vec<u64>, most_requests: Option<usize>) -> Plan {
    let Question { servers, profile, load, slo, threads, .. } = *question;
    Plan { servers, profile, contenders, loads: vec![load], seeds, slo, threads, most_requests }
}

/// The candidates whose requests are nearest to their targets, the best first.
fn best_of(
    question: &Question,
    traffic: &Traffic,
    candidates: Vec<Candidate>,
    (requests, seeds, left): (usize, Vec<u64>, usize),
    observer: &dyn Observer,
) -> Result<Vec<Candidate>, SimulateError> {
    let contenders = candidates.iter().map(|candidate| candidate.contender.clone()).collect();
    let study = Study::of(plan(question, contenders, seeds, Some(requests)), traffic, observer)?;
    let mut scored: Vec<(f64, Candidate)> =
        candidates.into_iter().enumerate().map(|(place, candidate)| (stretch(&study, place), candidate)).collect();
    scored.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    scored.truncate(left);
    Ok(scored.into_iter().map(|(_, candidate)| candidate).collect())
}

/// Mean distance from the targets over all runs.
pub(super) fn stretch(study: &Study, contender: usize) -> f64 {
    let Plan { slo, profile, .. } = &study.plan;
    let of_run = |(run, jobs): (&crate::simulate::Run, &Vec<Job>)| {
        let stretches = jobs.iter().zip(&run.timings).map(|(job, timing)| slo.stretch(job, timing, profile));
        stretches.sum::<f64>() / as_f64(jobs.len() as u64)
    };
    study.runs(0, contender).iter().zip(&study.jobs).map(of_run).sum()
}

/// The finalists with what has to be compared in any case: the reference, lanes that follow the traffic, and least work.
fn with_simple_ones(question: &Question, mut finalists: Vec<Candidate>) -> Result<Vec<Candidate>, SetupError> {
    let reference = (question.servers > 1).then(|| Pins::reference(question.servers));
    for pins in reference.into_iter().chain([Pins::LANES, Pins::LeastWork]) {
        if !finalists.iter().any(|finalist| finalist.pins == pins) {
            finalists.push(pins.candidate(question.servers, question.profile)?);
        }
    }
    Ok(finalists)
}

/// Lanes that follow the traffic, unless something is better than that by more than chance and by enough, and nobody pays
/// for it.
fn choose(study: &Study, finalists: &[Candidate]) -> usize {
    let default = finalists.iter().position(|finalist| finalist.pins == Pins::LANES).expect("it is always there");
    let is_worse = |place: usize, figure| {
        change(study, 0, [default, place], figure).is_some_and(|change| change.is_more() && change.share >= LEAST_GAIN)
    };
    let is_better = |place: &usize| {
        let change = change(study, 0, [default, *place], Figure::StretchMean);
        let is_pinned = finalists[*place].pins.complexity() > 0;
        let least_gain = if is_pinned { LEAST_GAIN_OF_PINS } else { LEAST_GAIN };
        change.is_some_and(|change| change.is_less() && change.share <= -least_gain)
            && !NOBODY_PAYS.into_iter().any(|figure| is_worse(*place, figure))
    };
    let better: Vec<usize> = (0..finalists.len()).filter(|place| *place != default).filter(is_better).collect();
    let Some(best) = better.iter().copied().min_by(|a, b| stretch(study, *a).total_cmp(&stretch(study, *b))) else {
        return default;
    };
    // Of those that are as good as the best, the one with the least to keep right.
    let is_as_good = |place: &usize| {
        let change = change(study, 0, [*place, best], Figure::StretchMean);
        change.is_none_or(|change| !change.is_less() || change.share > -LEAST_GAIN)
    };
    let as_good = better.into_iter().filter(is_as_good);
    as_good.min_by_key(|place| (finalists[*place].pins.complexity(), *place != best)).unwrap_or(best)
}
