//! How wrong estimates were.

/// An estimate, and what it turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LengthError {
    /// Tokens that were estimated.
    pub estimated_tokens: u64,
    /// Tokens that were counted.
    pub counted_tokens: u64,
}

impl LengthError {
    /// By which share of the counted tokens the estimate was off: -0.1 is ten percent too low.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn relative(self) -> f64 {
        let counted = self.counted_tokens.max(1) as f64;
        (self.estimated_tokens as f64 - counted) / counted
    }
}

/// How many errors are kept.
const KEPT: usize = 256;

/// The last errors.
#[derive(Debug, Clone, Default)]
pub(super) struct RecentErrors {
    relative: Vec<f32>,
    next: usize,
}

impl RecentErrors {
    pub(super) fn note(&mut self, error: LengthError) {
        #[expect(clippy::cast_possible_truncation, reason = "three digits would do")]
        let relative = error.relative() as f32;
        if self.relative.len() < KEPT {
            self.relative.push(relative);
        } else {
            self.relative[self.next] = relative;
        }
        self.next = (self.next + 1) % KEPT;
    }

    /// The size of error that this share of the estimates did not exceed; `None` when there were none.
    pub(super) fn quantile(&self, share: f64) -> Option<f64> {
        let mut sizes: Vec<f32> = self.relative.iter().map(|error| error.abs()).collect();
        sizes.sort_unstable_by(f32::total_cmp);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a place among at most 256"
        )]
        let place = (share * sizes.len() as f64) as usize;
        sizes.get(place.min(sizes.len().saturating_sub(1))).copied().map(f64::from)
    }
}
