//! What one model's tokenizer and template make of text, learned from how long prompts were.

use super::errors::{LengthError, RecentErrors};
use super::estimate::Estimate;
use super::ratios::{KINDS, TokensByKind};

/// The built-in ratios weigh as much as this many prompts.
const PRIOR_PROMPTS: f64 = 3.0;

/// Of what was learned this many prompts count at most, so that older ones are forgotten exponentially.
const REMEMBERED_PROMPTS: f64 = 64.0;

/// A prompt that is more wrong than this, as a logarithm, counts as if it were this wrong: it is an outlier, or the
/// next will tell the same.
const LARGEST_ERROR: f64 = 0.5;

/// Factors stay within a quarter and four times the built-in ratios.
const FACTOR_RANGE: (f64, f64) = (0.25, 4.0);

/// From this many tokens of text on, a prompt tells of the ratios.
const LEAST_TOKENS: f64 = 32.0;

/// Up to this many tokens, a prompt tells of what the template adds to each.
const SHORT_TOKENS: f64 = 256.0;

/// Tokens added to each prompt, at least and at most.
const ADDED_RANGE: (f64, f64) = (-8.0, 512.0);

/// How much more an outlier can tell of the tokens that are added to each prompt.
const LARGEST_ADDITION: f64 = 32.0;

/// Factors on the built-in ratios, by kind of text, and tokens that are added to each prompt.
#[derive(Debug, Clone)]
pub(super) struct Correction {
    log_factors: [f64; KINDS],
    /// In prompts.
    factor_weights: [f64; KINDS],
    added_tokens: f64,
    added_weight: f64,
    learned: u64,
    errors: RecentErrors,
}

impl Default for Correction {
    fn default() -> Self {
        Self {
            log_factors: [0.0; KINDS],
            factor_weights: [0.0; KINDS],
            added_tokens: 0.0,
            added_weight: 0.0,
            learned: 0,
            errors: RecentErrors::default(),
        }
    }
}

impl Correction {
    /// The same, as a beginning for another model: nothing of it is certain.
    pub(super) fn as_beginning(&self) -> Self {
        Self { log_factors: self.log_factors, added_tokens: self.added_tokens, ..Self::default() }
    }

    /// Factors on the built-in ratios, by kind of text.
    pub(super) fn factors(&self) -> [f64; KINDS] {
        self.log_factors.map(f64::exp)
    }

    /// Tokens added to each prompt.
    pub(super) fn added_tokens(&self) -> f64 {
        self.added_tokens
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
        estimate.template_tokens as f64 + self.added_tokens * estimate.prompts as f64
    }

    /// Learns that text and template had so many tokens.
    ///
    /// Each kind of text moves by its share of the error, as in normalised least mean squares, in logarithms.
    pub(super) fn learn(&mut self, estimate: &Estimate, counted: f64) {
        let by_kind = self.text_tokens(&estimate.text);
        let text: f64 = by_kind.iter().sum();
        let template = self.template_tokens(estimate);
        self.learned += 1;
        if text >= LEAST_TOKENS {
            let error = ((counted - template).max(1.0) / text).ln().clamp(-LARGEST_ERROR, LARGEST_ERROR);
            let shares = by_kind.map(|tokens| tokens / text);
            let norm: f64 = shares.iter().map(|share| share * share).sum();
            for (kind, share) in shares.into_iter().enumerate() {
                let weight = &mut self.factor_weights[kind];
                let moved = error * share / norm / (*weight + 1.0 + PRIOR_PROMPTS);
                let (least, most) = FACTOR_RANGE;
                self.log_factors[kind] = (self.log_factors[kind] + moved).clamp(least.ln(), most.ln());
                *weight = (*weight + share).min(REMEMBERED_PROMPTS);
            }
        }
        if estimate.prompts == 1 && text < SHORT_TOKENS {
            let error = (counted - text - template).clamp(-LARGEST_ADDITION, LARGEST_ADDITION);
            let (least, most) = ADDED_RANGE;
            self.added_tokens =
                (self.added_tokens + error / (self.added_weight + 1.0 + PRIOR_PROMPTS)).clamp(least, most);
            self.added_weight = (self.added_weight + 1.0).min(REMEMBERED_PROMPTS);
        }
    }
}
