//! What first tokens on idle servers say about the coefficients of an engine: b, d, and what is the same for all prompts.
//!
//! A first token comes too early when the engine still had the prompt's beginning in its cache, which nobody told, and too late
//! when something ran there that did not come through here. So no single time is believed. Times are put into bins of about
//! equal prompt length, of each bin counts the middle third (of the times, as shares of what the profile predicts), and the
//! coefficients are those that fit these best:
//!
//! ```text
//! minimise  sum over times of weight * (time / predicted - 1)^2
//!           + PRIOR * ((b / b0 - 1)^2 + (d / d0 - b / b0)^2) + LATENCY_PRIOR * (latency / (o + a0))^2
//! ```
//!
//! b0 and d0 are those of the profile. While only short prompts have been seen d is known by nothing but b. Times that fit badly
//! count less (Huber). The rest of the profile (o, a0, a1, c, B) is taken as it is.

use std::collections::VecDeque;

use crate::work::profile::{Profile, as_f64};

/// Times that a bin keeps: the last ones.
const BIN_TIMES: usize = 31;

/// Bins for each doubling of the length.
const BINS_PER_OCTAVE: f64 = 2.0;

/// Bins in all: up to 2^20 tokens.
const BINS: usize = 40;

/// A bin with so many times beside its first has a quarter of its full weight: few may all be of prompts that were cached.
const QUARTER_WEIGHT_TIMES: f64 = 4.0;

/// How much the profile weighs, in units of a bin of full weight.
const PRIOR: f64 = 0.001;

/// The same for the latency, which nobody knows beforehand.
const LATENCY_PRIOR: f64 = 1e-4;

/// A time that is further off than this share counts less.
const HUBER: f64 = 0.1;

/// Coefficients are believed within this range of the profile's.
const RANGE: std::ops::RangeInclusive<f64> = 0.25..=4.0;

/// Rounds of weighing times by how well they fit; each fit goes on from the one before.
const ROUNDS: usize = 6;

/// So many times are learned from one by one, what comes after that in batches.
const EAGER_TIMES: u64 = 64;

/// Size of these batches.
const BATCH_TIMES: u64 = 16;

/// A first token on a server that was idle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FirstToken {
    /// Tokens that were computed, as far as is known.
    pub new_tokens: u64,
    /// Tokens before them that were believed to be in the cache.
    pub cached_tokens: u64,
    /// Seconds from dispatch, at speed 1, without what other streams took.
    pub seconds: f64,
}

#[derive(Debug, Default)]
struct Bin {
    /// Each with its share of what the profile predicts.
    times: VecDeque<(f64, FirstToken)>,
    /// The middle third of them, by share.
    middle: Vec<FirstToken>,
}

impl Bin {
    fn add(&mut self, share: f64, time: FirstToken) {
        if self.times.len() == BIN_TIMES {
            self.times.pop_front();
        }
        self.times.push_back((share, time));
        let mut order: Vec<(f64, FirstToken)> = self.times.iter().copied().collect();
        order.sort_by(|(share, _), (other, _)| share.total_cmp(other));
        let third = order.len() / 3;
        self.middle = order[third..order.len() - third].iter().map(|(_, time)| *time).collect();
    }

    /// The weight of each time in the middle.
    fn weight_each(&self) -> f64 {
        let others = as_f64(self.times.len() as u64) - 1.0;
        (others / (others + QUARTER_WEIGHT_TIMES)).powi(2) / as_f64(self.middle.len().max(1) as u64)
    }
}

/// Learns the coefficients of one kind of engine.
#[derive(Debug)]
pub struct Coefficients {
    prior: Profile,
    bins: Vec<Bin>,
    times: u64,
    learned: Profile,
}

impl Coefficients {
    /// Nothing learned yet: the profile is believed.
    #[must_use]
    pub fn new(prior: Profile) -> Self {
        Self { prior, bins: (0..BINS).map(|_| Bin::default()).collect(), times: 0, learned: prior }
    }

    /// The profile as it is believed now.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.learned
    }

    /// How many first tokens it rests on.
    #[must_use]
    pub fn times(&self) -> u64 {
        self.times
    }

    /// Learns from a first token.
    pub fn add(&mut self, time: FirstToken) {
        let predicted_s = self.prior.prefill_s(time.new_tokens, time.cached_tokens);
        if !(time.seconds.is_finite() && time.seconds > 0.0) {
            return;
        }
        self.bins[bin_of(time.new_tokens)].add(time.seconds / predicted_s, time);
        self.times += 1;
        if self.times <= EAGER_TIMES || self.times.is_multiple_of(BATCH_TIMES) {
            self.learned = self.fit();
        }
    }

    fn fit(&self) -> Profile {
        let mut fitted = self.learned;
        for _ in 0..ROUNDS {
            let mut sums = Normal::default();
            let base = self.prior.overhead_s + self.prior.floor_s;
            // In units of the profile: latency of o + a0, b of b0, d of d0.
            sums.add([1.0, 0.0, 0.0], 0.0, LATENCY_PRIOR);
            sums.add([0.0, 1.0, 0.0], 1.0, PRIOR);
            sums.add([0.0, 1.0, -1.0], 0.0, PRIOR);
            let middles = self.bins.iter().flat_map(|bin| bin.middle.iter().map(|time| (bin.weight_each(), time)));
            for (weight, time) in middles {
                let predicted_s = fitted.prefill_s(time.new_tokens, time.cached_tokens);
                // As a share of what is predicted, so that a time that is too short has no more say than one that is too long.
                let error = (time.seconds / predicted_s - 1.0).abs();
                let (row, known_s) = self.row(&fitted, time, base);
                let (row, value) = (row.map(|value| value / predicted_s), (time.seconds - known_s) / predicted_s);
                sums.add(row, value, weight * (HUBER / error.max(HUBER)));
            }
            let Some([latency, per_token, per_pair]) = sums.solve() else { return fitted };
            let within = |factor: f64| factor.clamp(*RANGE.start(), *RANGE.end());
            // A prefill takes some time, whatever the others say.
            fitted.latency_s = base * latency.max(-0.75);
            fitted.per_token_s = self.prior.per_token_s * within(per_token);
            fitted.per_token_pair_s = self.prior.per_token_pair_s * within(per_pair);
        }
        fitted
    }

    /// What a time is made of: a row of factors of (latency, b, d), and what is known beforehand.
    fn row(&self, fitted: &Profile, time: &FirstToken, base: f64) -> ([f64; 3], f64) {
        let prior = &self.prior;
        let new = time.new_tokens.max(1);
        let chunks = as_f64(new.div_ceil(prior.budget_tokens));
        let (new, cached) = (as_f64(new), as_f64(time.cached_tokens));
        let pairs_s = prior.per_token_pair_s * new * (cached + new / 2.0);
        if prior.base_s * chunks + fitted.per_token_s * new < prior.floor_s {
            ([base, 0.0, pairs_s], chunks * prior.overhead_s + prior.floor_s)
        } else {
            ([base, prior.per_token_s * new, pairs_s], chunks * (prior.overhead_s + prior.base_s))
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the logarithm of a count, at least 0")]
fn bin_of(tokens: u64) -> usize {
    ((as_f64(tokens.max(1)).log2() * BINS_PER_OCTAVE) as usize).min(BINS - 1)
}

/// Least squares of three unknowns.
#[derive(Debug, Default)]
struct Normal {
    matrix: [[f64; 3]; 3],
    right: [f64; 3],
}

impl Normal {
    fn add(&mut self, row: [f64; 3], value: f64, weight: f64) {
        for i in 0..3 {
            for j in 0..3 {
                self.matrix[i][j] += weight * row[i] * row[j];
            }
            self.right[i] += weight * row[i] * value;
        }
    }

    /// By Cramer's rule; `None` when the rows do not say enough.
    fn solve(&self) -> Option<[f64; 3]> {
        let whole = determinant(&self.matrix);
        let replaced = |column: usize| {
            let mut matrix = self.matrix;
            (0..3).for_each(|row| matrix[row][column] = self.right[row]);
            determinant(&matrix) / whole
        };
        let found = [0, 1, 2].map(replaced);
        found.iter().all(|value| value.is_finite()).then_some(found)
    }
}

fn determinant(m: &[[f64; 3]; 3]) -> f64 {
    let minor = |a: usize, b: usize| m[1][a] * m[2][b] - m[1][b] * m[2][a];
    m[0][0] * minor(1, 2) - m[0][1] * minor(0, 2) + m[0][2] * minor(0, 1)
}

#[cfg(test)]
mod tests;
