//! How much better one contender is than another, and how sure that is.
//!
//! The same requests came to both. Each run is cut into blocks of the same time; a bootstrap draws as many blocks, with
//! replacement and the same ones for both, and takes the change of the figure. The middle 90 % of many draws is the
//! interval. Blocks keep what belongs together (a burst, a queue and its end), which single requests would not.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::outcome::{LONG_FROM_TOKENS, Timing};
use super::slo::Slo;
use super::study::Study;
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

    /// The percentile that it is; `None` is a mean.
    fn percent(self) -> Option<usize> {
        match self {
            Self::ShortTtftP50 => Some(50),
            Self::ShortTtftP99 | Self::LongTtftP99 => Some(99),
            _ => None,
        }
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

/// The change of a figure from one contender to another at a load. `None` when no request has the figure.
#[must_use]
pub fn change(study: &Study, load: usize, [before, after]: [usize; 2], figure: Figure) -> Option<Change> {
    let sample = |contender| Sample::of(study, load, contender, figure);
    let (before, after) = (sample(before), sample(after));
    let all = vec![1; before.blocks];
    let value = |sample: &Sample, weights: &[usize]| sample.figure(figure, weights);
    let (before_all, after_all) = (value(&before, &all)?, value(&after, &all)?);
    let (mut random, mut weights) = (StdRng::seed_from_u64(1), all);
    let mut shares = Vec::with_capacity(DRAWS);
    for _ in 0..DRAWS {
        weights.fill(0);
        (0..before.blocks).for_each(|_| weights[random.random_range(0..before.blocks)] += 1);
        let drawn = value(&before, &weights).zip(value(&after, &weights)).filter(|(before, _)| *before > 0.0);
        shares.extend(drawn.map(|(before, after)| after / before - 1.0));
    }
    shares.sort_by(f64::total_cmp);
    let at = |percent: usize| shares.get(shares.len() * percent / 100).copied().unwrap_or_default();
    let share = if before_all > 0.0 { after_all / before_all - 1.0 } else { 0.0 };
    Some(Change { before: before_all, after: after_all, share, low: at(5), high: at(95) })
}

/// The values of a figure in all runs of a contender.
#[derive(Debug)]
struct Sample {
    /// Blocks of all runs.
    blocks: usize,
    /// Values with their blocks, the largest first: high percentiles are found after a few steps.
    values: Vec<(f64, usize)>,
    /// How many values each block has, and their sum.
    sums: Vec<(usize, f64)>,
}

impl Sample {
    fn of(study: &Study, load: usize, contender: usize, figure: Figure) -> Self {
        let runs = study.runs(load, contender);
        let mut values = Vec::new();
        for (number, (run, jobs)) in runs.iter().zip(&study.jobs).enumerate() {
            let (first_s, last_s) = (jobs[0].arrival_s, jobs[jobs.len() - 1].arrival_s);
            for (job, timing) in jobs.iter().zip(&run.timings) {
                let place = (job.arrival_s - first_s) / (last_s - first_s).max(1e-9) * as_f64(BLOCKS as u64);
                let block = number * BLOCKS + whole(place).min(BLOCKS - 1);
                values.extend(figure.value(job, timing, &study.plan.slo, study).map(|value| (value, block)));
            }
        }
        let blocks = runs.len() * BLOCKS;
        let mut sums = vec![(0, 0.0); blocks];
        for (value, block) in &values {
            sums[*block].0 += 1;
            sums[*block].1 += value;
        }
        if figure.percent().is_some() {
            values.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        }
        Self { blocks, values, sums }
    }

    /// The figure when each block is there so many times. `None` when no value is.
    fn figure(&self, figure: Figure, weights: &[usize]) -> Option<f64> {
        let count: usize = self.sums.iter().zip(weights).map(|((count, _), weight)| count * weight).sum();
        let Some(percent) = figure.percent() else {
            let sum: f64 = self.sums.iter().zip(weights).map(|((_, sum), weight)| sum * as_f64(*weight as u64)).sum();
            return (count > 0).then(|| sum / as_f64(count as u64));
        };
        // The same place as in a summary, counted from the largest.
        let last = count.checked_sub(1)?;
        let mut above = last - (count * percent / 100).min(last);
        for (value, block) in &self.values {
            if above < weights[*block] {
                return Some(*value);
            }
            above -= weights[*block];
        }
        None
    }
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
        study_of(names, vec![1, 2])
    }

    fn study_of(names: &[&str], seeds: Vec<u64>) -> Study {
        let contender = |name: &&str| Contender::named(name, 4, LLAMA3_8B_A100).unwrap();
        let plan = Plan {
            servers: 4,
            profile: LLAMA3_8B_A100,
            contenders: names.iter().map(contender).collect(),
            loads: vec![Load::Share(0.8)],
            seeds,
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
        let no_long = Traffic::recorded("short".into(), vec![Job::new(0.0, 10, 1), Job::new(1.0, 10, 1)], true);
        let no_long = Study::of(study.plan.clone(), &no_long, &()).unwrap();
        assert_eq!(change(&no_long, 0, [0, 1], Figure::LongTtftP99), None);
        assert_eq!(change(&no_long, 0, [0, 1], Figure::LongTtftMean), None);
        // With one run the percentiles are those of its summary too.
        let one = study_of(&["least_work", "lanes"], vec![1]);
        let p99 = change(&one, 0, [0, 1], Figure::ShortTtftP99).unwrap().after;
        assert_eq!(p99.to_bits(), one.runs(0, 1)[0].summary.short_ttft.p99.to_bits());
    }
}
