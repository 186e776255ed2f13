//! How much better one contender is than another, and how sure that is.
//!
//! The same requests came to both. Each run is cut into blocks of the same time; a bootstrap draws as many blocks, with
//! replacement and the same ones for both, and takes the change of the figure. The middle 90 % of many draws is the
//! interval. Blocks keep what belongs together (a burst, a queue and its end), which single requests would not.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::outcome::{LONG_FROM_TOKENS, Timing};
use super::slo::Slo;
use super::study::{Run, Study};
use super::traffic::{Job, as_f64};

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// p50 of the time to first token of short requests.
    ShortTtftP50,
    /// p99 of it.
    ShortTtftP99,
    /// Mean time to first token of long requests.
    LongTtftMean,
    /// p99 of it.
    LongTtftP99,
    /// Mean time to first token of all.
    TtftMean,
    /// Mean latency of all.
    LatencyMean,
    /// Mean distance from the targets of all ([`Slo::stretch`]).
    StretchMean,
}

impl Figure {
    fn value(self, job: &Job, timing: &Timing, slo: &Slo, study: &Study) -> Option<f64> {
        let is_long = job.prompt_tokens >= LONG_FROM_TOKENS;
        match self {
            Self::ShortTtftP50 | Self::ShortTtftP99 => (!is_long).then(|| timing.ttft_s()),
            Self::LongTtftMean | Self::LongTtftP99 => is_long.then(|| timing.ttft_s()),
            Self::TtftMean => Some(timing.ttft_s()),
            Self::LatencyMean => Some(timing.latency_s()),
            Self::StretchMean => Some(slo.stretch(job, timing, &study.plan.profile)),
        }
    }

    /// The figure of some values, which are reordered. `None` when there is none.
    fn of(self, values: &mut [f64]) -> Option<f64> {
        let percent = match self {
            Self::ShortTtftP50 => 50,
            Self::ShortTtftP99 | Self::LongTtftP99 => 99,
            _ => return (!values.is_empty()).then(|| values.iter().sum::<f64>() / as_f64(values.len() as u64)),
        };
        let place = (values.len() * percent / 100).min(values.len().checked_sub(1)?);
        Some(*values.select_nth_unstable_by(place, f64::total_cmp).1)
    }
}

/// Change of a figure: -0.8 is 80 % less.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// The figure before.
    pub before: f64,
    /// And after.
    pub after: f64,
    /// The change over all requests of all runs.
    pub share: f64,
    /// The lower end of its 90 % interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Change {
    /// Whether it is less with more than 95 % confidence.
    #[must_use]
    pub fn is_less(&self) -> bool {
        self.high < 0.0
    }

    /// Whether it is more with more than 95 % confidence.
    #[must_use]
    pub fn is_more(&self) -> bool {
        self.low > 0.0
    }
}

/// Blocks of each run.
const BLOCKS: usize = 24;

/// Draws of the bootstrap.
const DRAWS: usize = 300;

/// One block: the values of a figure before and after.
type Block = [Vec<f64>; 2];

/// The change of a figure from one contender to another at a load. `None` when no request has the figure.
#[must_use]
pub fn change(study: &Study, load: usize, [before, after]: [usize; 2], figure: Figure) -> Option<Change> {
    let runs = study.runs(load, before).iter().zip(study.runs(load, after)).zip(&study.jobs);
    let blocks: Vec<Block> =
        runs.flat_map(|((before, after), jobs)| blocks(study, jobs, [before, after], figure)).collect();
    let mut scratch = [Vec::new(), Vec::new()];
    let mut figures = |chosen: &mut dyn Iterator<Item = &Block>| {
        scratch.iter_mut().for_each(Vec::clear);
        for block in chosen {
            scratch.iter_mut().zip(block).for_each(|(all, values)| all.extend_from_slice(values));
        }
        let [before, after] = scratch.each_mut().map(|values| figure.of(values));
        Some((before?, after?)).filter(|(before, _)| *before > 0.0)
    };
    let (before, after) = figures(&mut blocks.iter())?;
    let mut random = StdRng::seed_from_u64(1);
    let mut shares = Vec::with_capacity(DRAWS);
    for _ in 0..DRAWS {
        let mut chosen = (0..blocks.len()).map(|_| &blocks[random.random_range(0..blocks.len())]);
        shares.extend(figures(&mut chosen).map(|(before, after)| after / before - 1.0));
    }
    shares.sort_by(f64::total_cmp);
    let at = |percent: usize| shares.get(shares.len() * percent / 100).copied().unwrap_or_default();
    Some(Change { before, after, share: after / before - 1.0, low: at(5), high: at(95) })
}

fn blocks(study: &Study, jobs: &[Job], runs: [&Run; 2], figure: Figure) -> Vec<Block> {
    let (first_s, last_s) = (jobs[0].arrival_s, jobs[jobs.len() - 1].arrival_s);
    let mut blocks = vec![[Vec::new(), Vec::new()]; BLOCKS];
    for (index, job) in jobs.iter().enumerate() {
        let place = (job.arrival_s - first_s) / (last_s - first_s).max(1e-9) * as_f64(BLOCKS as u64);
        let block = &mut blocks[whole(place).min(BLOCKS - 1)];
        for (values, run) in block.iter_mut().zip(runs) {
            values.extend(figure.value(job, &run.timings[index], &study.plan.slo, study));
        }
    }
    blocks
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 24")]
fn whole(place: f64) -> usize {
    place.max(0.0) as usize
}

#[cfg(test)]
mod tests {
    use super::super::{Contender, Load, Mix, Plan, Traffic, cores};
    use super::*;
    use crate::work::LLAMA3_8B_A100;

    fn study(names: &[&str]) -> Study {
        let contender = |name: &&str| Contender::named(name, 4, LLAMA3_8B_A100).unwrap();
        let plan = Plan {
            servers: 4,
            profile: LLAMA3_8B_A100,
            contenders: names.iter().map(contender).collect(),
            loads: vec![Load::Share(0.8)],
            seeds: vec![1, 2],
            slo: Slo::of(&LLAMA3_8B_A100),
            threads: cores(),
            most_requests: None,
        };
        Study::of(plan, &Traffic::made_up(Mix::Steady, 1_500), &()).unwrap()
    }

    #[test]
    fn a_real_gain_is_told_from_none() {
        let study = study(&["reference_bucket", "lanes", "lanes"]);
        let change = |pair| change(&study, 0, pair, Figure::ShortTtftP99).unwrap();
        let gain = change([0, 1]);
        assert!(gain.is_less() && gain.low <= gain.share && gain.share <= gain.high, "{gain:?}");
        assert!(gain.share < -0.8 && change([1, 0]).is_more(), "{gain:?}");
        let none = change([1, 2]);
        assert!(none.share.abs() < 1e-12 && !none.is_less() && !none.is_more(), "{none:?}");
    }

    #[test]
    fn figures_are_those_of_the_summaries() {
        let study = study(&["least_work", "lanes"]);
        let changed = |figure| change(&study, 0, [0, 1], figure).unwrap();
        let mean = |part: fn(&super::super::Summary) -> f64| {
            let runs = study.runs(0, 1);
            runs.iter().map(|run| part(&run.summary)).sum::<f64>() / 2.0
        };
        // All runs have as many requests, so the mean of their means is the mean of all.
        assert!((changed(Figure::TtftMean).after - mean(|summary| summary.ttft.mean)).abs() < 1e-9);
        assert!((changed(Figure::LatencyMean).after - mean(|summary| summary.latency.mean)).abs() < 1e-9);
        assert!(changed(Figure::ShortTtftP50).after < changed(Figure::ShortTtftP99).after);
    }
}
