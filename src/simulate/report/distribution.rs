//! The cumulative distribution of the time to first token, its axes exchanged: how long the quickest so-and-so many percent
//! had to wait. Towards the right every nine gets as much room as the one before, because that is where policies differ.

use super::plot::{ACROSS, Line, draw};
use crate::simulate::as_f64;
use crate::simulate::outcome::LONG_FROM_TOKENS;
use crate::simulate::study::Study;

/// Points of a line.
const POINTS: u32 = 120;

/// Draws the distribution of short or of long requests at a load, over all seeds; nothing when there are too few.
pub(super) fn figure(study: &Study, load: usize, is_long: bool, words: &str) -> Option<String> {
    let sorted: Vec<Vec<f64>> =
        (0..study.plan.contenders.len()).map(|contender| ttfts(study, load, contender, is_long)).collect();
    let count = sorted.first().map_or(0, Vec::len);
    if count < 20 {
        return None;
    }
    let nines = as_f64(count as u64).log10().min(4.0);
    let [left, right] = ACROSS;
    let x = |nine: f64| left + nine / nines * (right - left);
    let marks = [(0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %")];
    let ticks = marks.iter().map(|(share, text)| (x(-(1.0_f64 - share).log10()), (*text).to_owned()));
    let ticks: Vec<(f64, String)> = ticks.filter(|(x, _)| *x <= right + 0.5).collect();
    let line = |(sorted, contender): (&Vec<f64>, &crate::simulate::Contender)| {
        let point = |index: u32| {
            let nine = nines * f64::from(index) / f64::from(POINTS);
            [x(nine), quantile(sorted, 1.0 - 10.0_f64.powf(-nine))]
        };
        Line { name: contender.name.clone(), points: (0..=POINTS).map(point).collect(), band: vec![], words: vec![] }
    };
    let lines: Vec<Line> = sorted.iter().zip(&study.plan.contenders).map(line).collect();
    Some(draw(words, "share of requests, from the quickest on", &ticks, &lines))
}

fn ttfts(study: &Study, load: usize, contender: usize, is_long: bool) -> Vec<f64> {
    let runs = study.runs(load, contender).iter().zip(&study.jobs);
    let all = runs.flat_map(|(run, jobs)| run.timings.iter().zip(jobs));
    let these = all.filter(|(_, job)| (job.prompt_tokens >= LONG_FROM_TOKENS) == is_long);
    let mut ttfts: Vec<f64> = these.map(|(timing, _)| timing.ttft_s()).collect();
    ttfts.sort_by(f64::total_cmp);
    ttfts
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of the length of a list")]
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = (share * as_f64(sorted.len() as u64)) as usize;
    sorted[place.min(sorted.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_of_the_list() {
        let sorted: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|share| quantile(&sorted, share)), [0.0, 50.0, 99.0, 99.0]);
    }
}
