//! How far a command is, for people who wait.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::simulate::Observer;

/// A bar on standard error; nothing when that is no terminal, so that pipes and logs stay clean.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(super) fn new() -> Self {
        let is_seen = std::io::stderr().is_terminal();
        let target = if is_seen { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let style = ProgressStyle::with_template("{msg} [{bar:32}] {pos} of {len} simulations, {eta} left");
        bar.set_style(style.expect("the template is right").progress_chars("=> "));
        Self { bar }
    }

    /// Says what is simulated.
    pub(super) fn say(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }
}

impl Observer for Progress {
    fn planned(&self, simulations: usize) {
        self.bar.inc_length(simulations as u64);
    }

    fn finished(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
