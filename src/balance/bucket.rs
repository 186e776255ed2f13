//! Buckets: which group a prompt of some length is for, and when it crosses to another.
//!
//! This is the first of the two ideas of the vLLM-Ascend example, decision for decision
//! (`tests/conformance` replays what it does). For a request of `length` tokens:
//!
//! 1. The **standard bucket** is the first whose range holds the length, else the last one.
//! 2. Every **neighbour** (the buckets left and right, or all) with strictly less load than the standard bucket gets a
//!    score `gap x affinity`:
//!    - `gap = 1 - (neighbour load / own load) ^ sensitivity`: how much lighter it is;
//!    - `affinity = exp(-strength x distance)`: how far the length lies outside the neighbour's range, measured in
//!      half widths of that range.
//! 3. The best score wins if it is above the **threshold** (0.12): the request is *redirected*. Otherwise it stays.
//!
//! Nothing is random: the example calls the score a probability, but compares it with a constant.

use std::num::NonZeroUsize;

/// A range of prompt lengths, in tokens: `from` is inside, `to` is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// Shortest length inside.
    pub from: u64,
    /// First length beyond.
    pub to: u64,
}

impl Bucket {
    #[expect(clippy::cast_precision_loss, reason = "bounds are token counts, far below 2^53")]
    fn bounds(self) -> (f64, f64) {
        (self.from as f64, self.to as f64)
    }
}

/// Which buckets a request may cross to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbours {
    /// The ones left and right of the standard bucket.
    Adjacent,
    /// All of them.
    All,
}

/// The tunable part of the rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RedirectTuning {
    /// Exponent of the load ratio; larger redirects at smaller gaps. Above 0.
    pub sensitivity: f64,
    /// How fast affinity falls with the distance from a bucket. At least 0; 0 ignores length.
    pub affinity_strength: f64,
    /// Score above which a request is redirected. At least 0.
    pub threshold: f64,
    /// Which buckets are looked at.
    pub neighbours: Neighbours,
}

impl Default for RedirectTuning {
    /// The example's values.
    fn default() -> Self {
        Self { sensitivity: 1.0, affinity_strength: 0.1, threshold: 0.12, neighbours: Neighbours::Adjacent }
    }
}

impl RedirectTuning {
    /// The load-only variant ("no standard bucket"): a gap of 0.13 % is enough to cross, whatever the length.
    #[must_use]
    pub fn load_only() -> Self {
        Self { sensitivity: 100.0, affinity_strength: 0.0, neighbours: Neighbours::All, ..Self::default() }
    }
}

/// Why a set of buckets cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum BucketError {
    /// There is no bucket.
    #[error("at least one bucket is needed")]
    Empty,
    /// A bucket holds no length.
    #[error("bucket {index} is empty: {from} is not below {to}")]
    EmptyRange {
        /// Which one, counted from 0.
        index: usize,
        /// Its lower bound.
        from: u64,
        /// Its upper bound.
        to: u64,
    },
    /// A bucket begins before the one in front of it ends.
    #[error("bucket {index} begins at {from}, before bucket {} ends at {previous_to}", index - 1)]
    Overlap {
        /// Which one, counted from 0.
        index: usize,
        /// Its lower bound.
        from: u64,
        /// The upper bound of the one before.
        previous_to: u64,
    },
    /// Sensitivity is not a finite number above 0.
    #[error("sensitivity must be a finite number above 0")]
    Sensitivity,
    /// Affinity strength is not a finite number of at least 0.
    #[error("affinity strength must be a finite number of at least 0")]
    AffinityStrength,
    /// The threshold is not a finite number of at least 0.
    #[error("redirect threshold must be a finite number of at least 0")]
    Threshold,
}

/// Where a request goes, by bucket number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketChoice {
    /// The bucket that its length is for.
    pub standard: usize,
    /// The bucket it goes to.
    pub chosen: usize,
}

/// A neighbour that was lighter than the standard bucket, and how attractive it was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The neighbour.
    pub bucket: usize,
    /// `gap x affinity`, 0 to 1.
    pub score: f64,
}

/// Buckets that are known to be usable, with the rule for crossing between them.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    ranges: Vec<Bucket>,
    tuning: RedirectTuning,
}

impl Buckets {
    /// Checks the ranges (ascending, not overlapping, none empty; gaps are allowed and fall to the last bucket) and
    /// the tuning.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn new(ranges: Vec<Bucket>, tuning: RedirectTuning) -> Result<Self, BucketError> {
        if ranges.is_empty() {
            return Err(BucketError::Empty);
        }
        for (index, range) in ranges.iter().enumerate() {
            if range.from >= range.to {
                return Err(BucketError::EmptyRange { index, from: range.from, to: range.to });
            }
            if index > 0 && range.from < ranges[index - 1].to {
                let previous_to = ranges[index - 1].to;
                return Err(BucketError::Overlap { index, from: range.from, previous_to });
            }
        }
        if !(tuning.sensitivity.is_finite() && tuning.sensitivity > 0.0) {
            return Err(BucketError::Sensitivity);
        }
        if !(tuning.affinity_strength.is_finite() && tuning.affinity_strength >= 0.0) {
            return Err(BucketError::AffinityStrength);
        }
        if !(tuning.threshold.is_finite() && tuning.threshold >= 0.0) {
            return Err(BucketError::Threshold);
        }
        Ok(Self { ranges, tuning })
    }

    /// Cuts the lengths from 0 to `max_length` (tokens) into `count` buckets of one width, rounded up; the last one is
    /// narrower where it does not come out even.
    ///
    /// # Errors
    /// When there is no bucket, when rounding up leaves none for the last ones (5 buckets up to 6 are 2 wide, and three
    /// of them hold everything), or when the tuning is not usable.
    pub fn equal_width(max_length: u64, count: usize, tuning: RedirectTuning) -> Result<Self, BucketError> {
        let count = count as u64;
        if count == 0 {
            return Err(BucketError::Empty);
        }
        let width = max_length.div_ceil(count);
        let range = |index: u64| {
            let from = index.saturating_mul(width);
            Bucket { from, to: from.saturating_add(width).min(max_length) }
        };
        Self::new((0..count).map(range).collect(), tuning)
    }

    /// The number of buckets.
    #[must_use]
    pub fn count(&self) -> NonZeroUsize {
        NonZeroUsize::new(self.ranges.len()).expect("`new` refuses an empty list")
    }

    /// The ranges, in order.
    #[must_use]
    pub fn ranges(&self) -> &[Bucket] {
        &self.ranges
    }

    /// The tuning in force.
    #[must_use]
    pub fn tuning(&self) -> &RedirectTuning {
        &self.tuning
    }

    /// The bucket that a length (in tokens) is for.
    #[must_use]
    pub fn standard(&self, length: f64) -> usize {
        self.ranges
            .iter()
            .position(|range| {
                let (from, to) = range.bounds();
                from <= length && length < to
            })
            .unwrap_or(self.ranges.len() - 1)
    }

    /// Decides where a request of `length` tokens goes, given the load of each bucket (any unit, the same for all).
    #[must_use]
    pub fn choose(&self, length: f64, load_of: impl Fn(usize) -> f64) -> BucketChoice {
        let standard = self.standard(length);
        let mut best = Candidate { bucket: standard, score: self.tuning.threshold };
        for candidate in self.candidates(standard, length, load_of) {
            // Strictly greater: of equals the first stays, and exactly the threshold is not enough.
            if candidate.score > best.score {
                best = candidate;
            }
        }
        BucketChoice { standard, chosen: best.bucket }
    }

    /// The neighbours of `standard` that are lighter, in the order in which they are looked at.
    pub fn candidates(
        &self,
        standard: usize,
        length: f64,
        load_of: impl Fn(usize) -> f64,
    ) -> impl Iterator<Item = Candidate> {
        let own_load = load_of(standard);
        let neighbours = (0..self.ranges.len()).filter(move |bucket| self.is_neighbour(standard, *bucket));
        neighbours.filter_map(move |bucket| {
            let load = load_of(bucket);
            (load < own_load).then(|| Candidate { bucket, score: self.score(bucket, length, load, own_load) })
        })
    }

    /// `gap x affinity`, 0 to 1: how attractive a neighbour is for a request of `length` tokens, given its load and the
    /// load of the standard bucket (one unit, both at least 0).
    #[must_use]
    pub fn score(&self, neighbour: usize, length: f64, neighbour_load: f64, own_load: f64) -> f64 {
        if own_load <= 0.0 { 0.0 } else { self.gap(neighbour_load, own_load) * self.affinity(neighbour, length) }
    }

    /// How much lighter a neighbour is, 0 to 1.
    #[must_use]
    pub fn gap(&self, neighbour_load: f64, own_load: f64) -> f64 {
        if own_load <= 0.0 {
            return 0.0;
        }
        let ratio = neighbour_load / own_load.max(1e-9);
        // `powf` also for whole exponents: `powi` rounds differently, and the last bit decides at the threshold.
        (1.0 - ratio.powf(self.tuning.sensitivity)).clamp(0.0, 1.0)
    }

    /// Whether a bucket is one that requests of another can cross to.
    #[must_use]
    pub fn is_neighbour(&self, standard: usize, bucket: usize) -> bool {
        bucket != standard
            && match self.tuning.neighbours {
                Neighbours::Adjacent => bucket.abs_diff(standard) == 1,
                Neighbours::All => true,
            }
    }

    /// How well a length fits a bucket that it does not belong to: 1 at the bucket's edge, falling with the distance.
    #[must_use]
    pub fn affinity(&self, bucket: usize, length: f64) -> f64 {
        let (from, to) = self.ranges[bucket].bounds();
        let half_width = (to - from) / 2.0;
        let centre = (from + to) / 2.0;
        let distance = ((length - centre).abs() - half_width) / half_width;
        (-self.tuning.affinity_strength * distance).exp().clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(from: u64, to: u64) -> Bucket {
        Bucket { from, to }
    }

    fn refused(ranges: &[Bucket]) -> BucketError {
        Buckets::new(ranges.to_vec(), RedirectTuning::default()).unwrap_err()
    }

    fn refused_tuning(tuning: RedirectTuning) -> BucketError {
        Buckets::new(vec![bucket(0, 1)], tuning).unwrap_err()
    }

    #[test]
    fn a_bucket_that_holds_no_length_is_refused() {
        assert_eq!(refused(&[]), BucketError::Empty);
        assert_eq!(refused(&[bucket(0, 0)]), BucketError::EmptyRange { index: 0, from: 0, to: 0 });
        assert_eq!(refused(&[bucket(0, 5), bucket(9, 7)]), BucketError::EmptyRange { index: 1, from: 9, to: 7 });
    }

    #[test]
    fn a_bucket_that_begins_inside_the_one_before_is_refused() {
        let overlap = BucketError::Overlap { index: 1, from: 4, previous_to: 5 };
        assert_eq!(refused(&[bucket(0, 5), bucket(4, 9)]), overlap);
        assert_eq!(overlap.to_string(), "bucket 1 begins at 4, before bucket 0 ends at 5");
    }

    #[test]
    fn tuning_that_decides_nothing_is_refused() {
        let usual = RedirectTuning::default();
        for sensitivity in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(refused_tuning(RedirectTuning { sensitivity, ..usual }), BucketError::Sensitivity);
        }
        for affinity_strength in [-0.1, f64::NAN, f64::INFINITY] {
            assert_eq!(refused_tuning(RedirectTuning { affinity_strength, ..usual }), BucketError::AffinityStrength);
        }
        for threshold in [-0.1, f64::NAN, f64::INFINITY] {
            assert_eq!(refused_tuning(RedirectTuning { threshold, ..usual }), BucketError::Threshold);
        }
    }

    #[test]
    fn a_gap_between_buckets_and_what_lies_beyond_fall_to_the_last() {
        let buckets = Buckets::new(vec![bucket(10, 20), bucket(30, 40)], RedirectTuning::default()).unwrap();
        let standard = [0.0, 10.0, 19.75, 20.0, 30.0, 39.75, 40.0].map(|length| buckets.standard(length));
        assert_eq!(standard, [1, 0, 0, 1, 1, 1, 1]);
    }

    #[test]
    fn buckets_of_equal_width_end_at_the_longest_length() {
        let buckets = Buckets::equal_width(100, 3, RedirectTuning::load_only()).unwrap();
        assert_eq!(buckets.ranges(), [bucket(0, 34), bucket(34, 68), bucket(68, 100)]);
    }

    #[test]
    fn buckets_of_equal_width_that_leave_some_empty_are_refused() {
        let built = |most, count| Buckets::equal_width(most, count, RedirectTuning::load_only()).unwrap_err();
        assert_eq!(built(10, 0), BucketError::Empty);
        assert_eq!(built(0, 2), BucketError::EmptyRange { index: 0, from: 0, to: 0 });
        assert_eq!(built(6, 5), BucketError::EmptyRange { index: 3, from: 6, to: 6 });
    }

    #[test]
    fn a_score_of_exactly_the_threshold_stays() {
        let tuning = RedirectTuning { affinity_strength: 0.0, threshold: 0.5, ..RedirectTuning::default() };
        let buckets = Buckets::new(vec![bucket(0, 10), bucket(10, 20)], tuning).unwrap();
        let chosen = |neighbour: f64| buckets.choose(5.0, |bucket| [8.0, neighbour][bucket]).chosen;
        assert_eq!((chosen(4.0), chosen(3.9)), (0, 1));
    }

    #[test]
    fn the_load_only_variant_looks_at_all_buckets_and_takes_the_lightest() {
        let buckets = Buckets::equal_width(400, 4, RedirectTuning::load_only()).unwrap();
        let choice = buckets.choose(350.0, |bucket| [98.0, 99.0, 97.0, 100.0][bucket]);
        assert_eq!(choice, BucketChoice { standard: 3, chosen: 2 });
    }
}
