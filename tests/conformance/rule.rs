//! The example's rule for buckets, written a second time and as plainly as possible, straight from its description.
//!
//! Where a recorded answer cannot be used because Tidegate deviates on purpose, its choice is checked against this.

use tidegate::balance::{Bucket, Neighbours, RedirectTuning};

/// Standard and chosen bucket for a request of `length` tokens.
pub(crate) fn choice(ranges: &[Bucket], tuning: &RedirectTuning, length: f64, loads: &[f64]) -> (usize, usize) {
    let last = ranges.len() - 1;
    let standard = ranges.iter().position(|range| range.from as f64 <= length && length < range.to as f64);
    let standard = standard.unwrap_or(last);
    let mut looked_at = Vec::new();
    match tuning.neighbours {
        Neighbours::Adjacent => {
            if standard > 0 {
                looked_at.push(standard - 1);
            }
            if standard < last {
                looked_at.push(standard + 1);
            }
        }
        Neighbours::All => looked_at.extend(0..=last),
    }
    let (mut best, mut best_score) = (standard, tuning.threshold);
    for bucket in looked_at {
        if loads[bucket] >= loads[standard] || loads[standard] <= 0.0 {
            continue;
        }
        let (from, to) = (ranges[bucket].from as f64, ranges[bucket].to as f64);
        let half = (to - from) / 2.0;
        let distance = ((length - (from + to) / 2.0).abs() - half) / half;
        let affinity = (-tuning.affinity_strength * distance).exp().min(1.0);
        let gap = 1.0 - (loads[bucket] / loads[standard].max(1e-9)).powf(tuning.sensitivity);
        let score = gap.min(1.0) * affinity;
        if score > best_score {
            (best, best_score) = (bucket, score);
        }
    }
    (standard, best)
}
