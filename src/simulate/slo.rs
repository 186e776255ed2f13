//! What a request may ask of its answer: the targets that goodput is counted by.

use std::fmt;
use std::str::FromStr;

use super::outcome::Timing;
use super::traffic::{Job, as_f64};
use crate::work::Profile;

/// Targets of one request: its time to first token, and its time per output token after that.
///
/// The defaults are the limits of the server scenario of MLPerf Inference: 2 s and 100 ms for Llama 3.1 8B, 2 s and 200 ms
/// for Llama 2 70B (MLCommons, inference rules, benchmarks of version 5.1). Prompts there are of 2,048 tokens at most. No
/// engine can answer a prompt of 100,000 tokens in 2 s, so a request also meets its first target when it has its first
/// token within three times its prefill on an idle engine. (Mooncake, FAST 2025, grants ten times.)
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slo {
    /// Target of the time to first token, in seconds.
    pub ttft_s: f64,
    /// Target of the time per output token after the first, in seconds.
    pub tpot_s: f64,
    /// The first target is never below so many times the request's prefill on an idle engine.
    pub prefill_factor: f64,
}

impl Slo {
    /// The defaults for an engine.
    #[must_use]
    pub fn of(profile: &Profile) -> Self {
        // A model whose decode step takes 20 ms at best is of the larger class.
        let tpot_s = if profile.floor_s < 15e-3 { 0.1 } else { 0.2 };
        Self { ttft_s: 2.0, tpot_s, prefill_factor: 3.0 }
    }

    /// The target of one request's time to first token, in seconds.
    #[must_use]
    pub fn ttft_target_s(&self, job: &Job, profile: &Profile) -> f64 {
        self.ttft_s.max(self.prefill_factor * profile.prefill_s(job.prompt_tokens, 0))
    }

    /// How far a request was from its targets: its time to first token as a share of its target, or its time per output
    /// token as a share of that target if this is the larger and above 1 (who reads does not gain by faster tokens). At most
    /// 1 when it met both.
    #[must_use]
    pub fn stretch(&self, job: &Job, timing: &Timing, profile: &Profile) -> f64 {
        let ttft = timing.ttft_s() / self.ttft_target_s(job, profile);
        match timing.tpot_s(job) {
            Some(tpot_s) if tpot_s > self.tpot_s => ttft.max(tpot_s / self.tpot_s),
            _ => ttft,
        }
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ttft={}s,tpot={}ms,prefill={}x", self.ttft_s, round(1e3 * self.tpot_s), self.prefill_factor)
    }
}

fn round(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// Targets as they are typed: some of `ttft=2s,tpot=100ms,prefill=3x`. What is not named is as by default.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SloText {
    ttft_s: Option<f64>,
    tpot_s: Option<f64>,
    prefill_factor: Option<f64>,
}

impl SloText {
    /// The targets, those of an engine where nothing is said.
    #[must_use]
    pub fn over(&self, profile: &Profile) -> Slo {
        let default = Slo::of(profile);
        Slo {
            ttft_s: self.ttft_s.unwrap_or(default.ttft_s),
            tpot_s: self.tpot_s.unwrap_or(default.tpot_s),
            prefill_factor: self.prefill_factor.unwrap_or(default.prefill_factor),
        }
    }
}

impl FromStr for SloText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut slo = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.trim().split_once('=').unwrap_or((part, ""));
            match name {
                "ttft" => slo.ttft_s = Some(seconds(value)?),
                "tpot" => slo.tpot_s = Some(seconds(value)?),
                "prefill" => slo.prefill_factor = Some(factor(value)?),
                _ => return Err(format!("{part:?} is no target, expected ttft=2s, tpot=100ms or prefill=3x")),
            }
        }
        Ok(slo)
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let duration = humantime::parse_duration(text).map_err(|_| format!("{text:?} is no time, expected 2s or 100ms"))?;
    if duration.is_zero() { Err("a target of 0 can never be met".to_owned()) } else { Ok(duration.as_secs_f64()) }
}

fn factor(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('x').and_then(|number| number.parse::<f64>().ok());
    number
        .filter(|factor| factor.is_finite() && *factor >= 0.0)
        .ok_or_else(|| format!("{text:?} is no factor, expected 3x"))
}

/// The share of requests that met both targets, 0 to 1.
pub(super) fn share_met(slo: &Slo, profile: &Profile, jobs: &[Job], timings: &[Timing]) -> f64 {
    let met = jobs.iter().zip(timings).filter(|(job, timing)| slo.stretch(job, timing, profile) <= 1.0).count();
    as_f64(met as u64) / as_f64(jobs.len().max(1) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::{LLAMA3_8B_A100, LLAMA3_70B_TP8};

    fn met(prompt_tokens: u64, output_tokens: u64, first_s: f64, end_s: f64) -> bool {
        let (job, timing) = (Job::new(0.0, prompt_tokens, output_tokens), Timing { arrival_s: 0.0, first_s, end_s });
        Slo::of(&LLAMA3_8B_A100).stretch(&job, &timing, &LLAMA3_8B_A100) <= 1.0
    }

    #[test]
    fn both_targets_have_to_be_met() {
        assert!(met(100, 11, 1.9, 2.8));
        assert!(!met(100, 11, 2.1, 2.8), "the first token came late");
        assert!(!met(100, 11, 1.0, 2.1), "the others came slowly");
        assert!(met(100, 1, 1.0, 1.0), "one token has nothing after it");
    }

    #[test]
    fn a_prompt_that_takes_long_by_itself_may_take_longer() {
        let prefill_s = LLAMA3_8B_A100.prefill_s(100_000, 0);
        assert!(
            met(100_000, 1, 2.9 * prefill_s, 2.9 * prefill_s) && !met(100_000, 1, 3.1 * prefill_s, 3.1 * prefill_s)
        );
    }

    #[test]
    fn targets_are_read_and_the_rest_is_as_by_default() {
        let slo = |text: &str| text.parse::<SloText>().map(|slo| slo.over(&LLAMA3_70B_TP8).to_string());
        assert_eq!(slo("ttft=500ms,tpot=30ms,prefill=2x").unwrap(), "ttft=0.5s,tpot=30ms,prefill=2x");
        assert_eq!(slo("ttft=1s").unwrap(), "ttft=1s,tpot=200ms,prefill=3x");
        assert_eq!(slo("itl=1s").unwrap_err(), "\"itl=1s\" is no target, expected ttft=2s, tpot=100ms or prefill=3x");
        assert_eq!(slo("ttft=2").unwrap_err(), "\"2\" is no time, expected 2s or 100ms");
        assert_eq!(slo("prefill=3").unwrap_err(), "\"3\" is no factor, expected 3x");
        assert_eq!(slo("tpot=0s").unwrap_err(), "a target of 0 can never be met");
    }
}
