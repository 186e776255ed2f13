//! What one model's tokenizer and template make of text, learned from how long prompts were.

use super::errors::{LengthError, RecentErrors};
use super::estimate::Estimate;
use super::ratios::{KINDS, TokensByKind};

/// How far the built-in ratios are expected to be off for a model, as the variance of a logarithm: about 30 %.
const FACTOR_VARIANCE: f64 = 0.09;

/// How many tokens a template is expected to add to each prompt, or to take away, as a variance: about 20.
const ADDED_VARIANCE: f64 = 400.0;

/// How far a single prompt is expected to be off when everything is right, as the variance of a logarithm: about 10 %.
const PROMPT_VARIANCE: f64 = 0.01;

/// How much of what is known for certain is forgotten with each prompt that tells of it, as a share of the variance at
/// first. About the last 50 prompts are remembered.
const FORGOTTEN: f64 = 4e-5;

/// An error of more standard deviations than this counts as one of this many: it is an outlier, or the next prompt will
/// tell the same.
const MOST_DEVIATIONS: f64 = 2.5;

/// Factors stay within a quarter and four times the built-in ratios.
const FACTOR_RANGE: (f64, f64) = (0.25, 4.0);

/// Tokens added to each prompt, at least and at most.
const ADDED_RANGE: (f64, f64) = (-8.0, 512.0);

/// What is learned: a factor for each kind of text, and the tokens that are added.
const UNKNOWNS: usize = KINDS + 1;

/// The place of the added tokens among the unknowns.
const ADDED: usize = KINDS;

/// Factors on the built-in ratios, by kind of text, and tokens that are added to each prompt.
///
/// They are the state of a Kalman filter. Each prompt tells the mean of the factors, as logarithms, weighted with the
/// share that each kind has in it; and of a short prompt the added tokens are a share, too.
#[derive(Debug, Clone)]
pub(super) struct Correction {
    /// Logarithms of the factors, and tokens.
    unknowns: [f64; UNKNOWNS],
    /// How uncertain the unknowns are, and what one says about another.
    covariance: [[f64; UNKNOWNS]; UNKNOWNS],
    learned: u64,
    errors: RecentErrors,
}

impl Default for Correction {
    fn default() -> Self {
        let mut covariance = [[0.0; UNKNOWNS]; UNKNOWNS];
        for (unknown, row) in covariance.iter_mut().enumerate() {
            row[unknown] = variance_at_first(unknown);
        }
        Self { unknowns: [0.0; UNKNOWNS], covariance, learned: 0, errors: RecentErrors::default() }
    }
}

fn variance_at_first(unknown: usize) -> f64 {
    if unknown == ADDED { ADDED_VARIANCE } else { FACTOR_VARIANCE }
}

impl Correction {
    /// The same, as a beginning for another model: nothing of it is certain.
    pub(super) fn as_beginning(&self) -> Self {
        Self { unknowns: self.unknowns, ..Self::default() }
    }

    /// Factors on the built-in ratios, by kind of text.
    pub(super) fn factors(&self) -> [f64; KINDS] {
        std::array::from_fn(|kind| self.unknowns[kind].exp())
    }

    /// Tokens added to each prompt.
    pub(super) fn added_tokens(&self) -> f64 {
        self.unknowns[ADDED]
    }

    /// How many prompts were learned from.
    pub(super) fn learned(&self) -> u64 {
        self.learned
    }

    pub(super) fn errors(&self) -> &RecentErrors {
        &self.errors
    }

    pub(super) fn note(&mut self, error: LengthError) {
        self.errors.note(error);
    }

    /// Tokens of text and template.
    pub(super) fn tokens(&self, estimate: &Estimate) -> f64 {
        let text: f64 = self.text_tokens(&estimate.text).iter().sum();
        text + self.template_tokens(estimate)
    }

    fn text_tokens(&self, text: &TokensByKind) -> TokensByKind {
        let mut tokens = *text;
        for (tokens, factor) in tokens.iter_mut().zip(self.factors()) {
            *tokens *= factor;
        }
        tokens
    }

    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn template_tokens(&self, estimate: &Estimate) -> f64 {
        // Without any text there is no prompt that a template could be around.
        let has_text = estimate.template_tokens > 0 || estimate.text.iter().any(|tokens| *tokens > 0.0);
        let added = if has_text { self.added_tokens() * estimate.prompts as f64 } else { 0.0 };
        estimate.template_tokens as f64 + added
    }

    /// Learns that text and template had so many tokens.
    pub(super) fn learn(&mut self, estimate: &Estimate, counted: f64) {
        let believed = self.tokens(estimate).max(1.0);
        let error = (counted.max(1.0) / believed).ln();
        // How much the logarithm of the tokens changes with each of the unknowns.
        let mut slopes = [0.0; UNKNOWNS];
        for (slope, tokens) in slopes.iter_mut().zip(self.text_tokens(&estimate.text)) {
            *slope = tokens / believed;
        }
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let prompts = estimate.prompts as f64;
        slopes[ADDED] = prompts / believed;
        self.learned += 1;
        self.update(error, &slopes);
    }

    fn update(&mut self, error: f64, slopes: &[f64; UNKNOWNS]) {
        for (unknown, slope) in slopes.iter().enumerate() {
            // What is not told of is not forgotten, so that it does not become uncertain without end.
            let at_first = variance_at_first(unknown);
            let told = (slope * (at_first / FACTOR_VARIANCE).sqrt()).min(1.0);
            self.covariance[unknown][unknown] += FORGOTTEN * at_first * told;
        }
        let product = |row: &[f64; UNKNOWNS]| -> f64 { row.iter().zip(slopes).map(|(cell, slope)| cell * slope).sum() };
        let gains = self.covariance.each_ref().map(product);
        let variance = PROMPT_VARIANCE + product(&gains);
        let bound = MOST_DEVIATIONS * variance.sqrt();
        let moved = error.clamp(-bound, bound) / variance;
        for (unknown, gain) in gains.iter().enumerate() {
            let (least, most) = if unknown == ADDED { ADDED_RANGE } else { (FACTOR_RANGE.0.ln(), FACTOR_RANGE.1.ln()) };
            self.unknowns[unknown] = (self.unknowns[unknown] + gain * moved).clamp(least, most);
            for (other, other_gain) in gains.iter().enumerate() {
                self.covariance[unknown][other] -= gain * other_gain / variance;
            }
        }
    }
}
