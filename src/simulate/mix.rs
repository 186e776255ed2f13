//! Made-up traffic: many short chats and a few very long prompts, so that nobody needs a trace of others.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::traffic::{Job, exponential};

/// Traffic with known statistics.
///
/// Short prompts: log-normal lengths, median 420 tokens (sigma 1.1), up to 16,000; answers with median 170 (sigma 0.9). Long
/// ones, 3 %: log-uniform from 32,768 to 131,072 tokens; answers with median 240 (sigma 0.8). Ten requests a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// Poisson arrivals.
    Steady,
    /// Three times the rate for 10 seconds of each minute, the same mean.
    Burst,
}

const RATE: f64 = 10.0;
const LONG_SHARE: f64 = 0.03;

impl Mix {
    /// The mix of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Steady, Self::Burst].into_iter().find(|mix| mix.name() == name)
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Steady => "synthetic",
            Self::Burst => "synthetic-burst",
        }
    }

    /// So many requests. The same seed gives the same ones.
    #[must_use]
    pub fn jobs(self, requests: usize, seed: u64) -> Vec<Job> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut now_s = 0.0;
        let job = |_| {
            now_s += exponential(&mut random, self.rate(now_s));
            let (prompt_tokens, output_tokens) = lengths(&mut random);
            Job::new(now_s, prompt_tokens, output_tokens)
        };
        (0..requests).map(job).collect()
    }

    fn rate(self, now_s: f64) -> f64 {
        match self {
            Self::Steady => RATE,
            Self::Burst if now_s % 60.0 < 10.0 => 3.0 * RATE,
            Self::Burst => 0.6 * RATE,
        }
    }
}

fn lengths(random: &mut StdRng) -> (u64, u64) {
    if random.random::<f64>() < LONG_SHARE {
        let prompt = 32_768.0 * 4.0_f64.powf(random.random::<f64>());
        (whole(prompt, 32_768.0, 131_072.0), whole(log_normal(random, 240.0, 0.8), 8.0, 2_000.0))
    } else {
        let prompt = whole(log_normal(random, 420.0, 1.1), 8.0, 16_000.0);
        (prompt, whole(log_normal(random, 170.0, 0.9), 2.0, 2_000.0))
    }
}

/// By Box and Muller.
fn log_normal(random: &mut StdRng, median: f64, sigma: f64) -> f64 {
    let radius = (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt();
    let angle = std::f64::consts::TAU * random.random::<f64>();
    median * (sigma * radius * angle.cos()).exp()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped before")]
fn whole(value: f64, least: f64, most: f64) -> u64 {
    value.clamp(least, most) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_traffic_and_another_gives_other() {
        assert_eq!(Mix::Steady.jobs(100, 1), Mix::Steady.jobs(100, 1));
        assert_ne!(Mix::Steady.jobs(100, 1), Mix::Steady.jobs(100, 2));
    }

    #[test]
    fn the_statistics_are_those_that_are_told() {
        for mix in [Mix::Steady, Mix::Burst] {
            let jobs = mix.jobs(20_000, 1);
            let long = jobs.iter().filter(|job| job.prompt_tokens >= 32_768).count();
            assert!((500..700).contains(&long), "{long}");
            let mut lengths: Vec<u64> = jobs.iter().map(|job| job.prompt_tokens).collect();
            lengths.sort_unstable();
            assert!((400..470).contains(&lengths[10_000]), "{}", lengths[10_000]);
            assert!((1_900.0..2_100.0).contains(&jobs[19_999].arrival_s), "{}", jobs[19_999].arrival_s);
        }
    }
}
