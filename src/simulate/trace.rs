//! Traces: requests with their lengths and arrival times.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::work::Profile;

/// One request of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Seconds from the beginning.
    pub arrival_s: f64,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Tokens that it generates. At least 1.
    pub output_tokens: u64,
    /// Its blocks of 512 tokens, each standing for itself and all before it.
    pub prefix: Vec<u64>,
}

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{}: {error}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A line is wrong.
    #[error("{}:{line}: expected arrival_s,input_tokens,output_tokens[,prefix_group,blocks]", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// There is nothing in it.
    #[error("{}: holds no request", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
}

/// Streams that share the fixed time of a decode step, for [`natural_load`].
const USUAL_BATCH: f64 = 32.0;

/// Arrivals a second where a trace has none.
const DEFAULT_RATE: f64 = 1.0;

/// Reads the first requests of a file, in order of arrival.
///
/// Arrival times that many requests share are those of a coarse clock, not of a burst: they are spread evenly over the
/// time to the next one. Where there are none, arrivals are made up as a Poisson process.
///
/// # Errors
/// When the file cannot be read, or a line of it, or there is none.
pub(super) fn read(file: &Path, most: usize, seed: u64) -> Result<Vec<Job>, TraceError> {
    let text = fs::read_to_string(file).map_err(|error| TraceError::Unreadable { file: file.to_owned(), error })?;
    let mut random = StdRng::seed_from_u64(seed);
    let (mut jobs, mut made_up_s) = (Vec::new(), 0.0);
    for (index, line) in text.lines().enumerate().skip(1).take(most) {
        let job = job(line, || {
            made_up_s += exponential(&mut random, DEFAULT_RATE);
            made_up_s
        });
        jobs.push(job.ok_or_else(|| TraceError::Line { file: file.to_owned(), line: index + 1 })?);
    }
    if jobs.is_empty() {
        return Err(TraceError::Empty { file: file.to_owned() });
    }
    spread(&mut jobs, &mut random);
    jobs.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s));
    Ok(jobs)
}

fn job(line: &str, made_up: impl FnOnce() -> f64) -> Option<Job> {
    let mut fields = line.split(',').map(str::trim);
    let arrival_s = match fields.next()? {
        "" => made_up(),
        text => text.parse().ok().filter(|arrival_s: &f64| arrival_s.is_finite() && *arrival_s >= 0.0)?,
    };
    let prompt_tokens = fields.next()?.parse().ok()?;
    let output_tokens: u64 = fields.next()?.parse().ok()?;
    let prefix = fields.nth(1).map_or(Some(Vec::new()), blocks)?;
    Some(Job { arrival_s, prompt_tokens, output_tokens: output_tokens.max(1), prefix })
}

/// `0 59-72`: single blocks and ranges.
fn blocks(text: &str) -> Option<Vec<u64>> {
    let mut blocks = Vec::new();
    for part in text.split_whitespace() {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        blocks.extend(from.parse::<u64>().ok()?..=to.parse().ok()?);
    }
    Some(blocks)
}

fn spread(jobs: &mut [Job], random: &mut StdRng) {
    let mut times: Vec<f64> = jobs.iter().map(|job| job.arrival_s).collect();
    times.sort_by(f64::total_cmp);
    times.dedup();
    if 3 * times.len() > jobs.len() || times.len() < 2 {
        return;
    }
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    let tick_s = gaps.fold(f64::INFINITY, f64::min);
    jobs.iter_mut().for_each(|job| job.arrival_s += tick_s * random.random::<f64>());
}

/// The next pause of a Poisson process.
pub(super) fn exponential(random: &mut StdRng, rate: f64) -> f64 {
    -(1.0 - random.random::<f64>()).ln() / rate
}

/// The work that a trace offers per second at its own speed, as a share of what so many servers can do.
///
/// The work of a request is its prefill and, for each token it generates, its own part of a decode step and a share of the
/// fixed part. It is a yardstick, not a limit: how much really fits depends on how full the batches are.
pub(super) fn natural_load(jobs: &[Job], profile: &Profile, servers: usize) -> f64 {
    let work_s: f64 = jobs.iter().map(|job| work_s(job, profile)).sum();
    let span_s = jobs.last().map_or(0.0, |job| job.arrival_s).max(1.0);
    work_s / span_s / as_f64(servers as u64)
}

fn work_s(job: &Job, profile: &Profile) -> f64 {
    let context = job.prompt_tokens + job.output_tokens / 2;
    let fixed_s = (profile.overhead_s + profile.base_s) / USUAL_BATCH;
    profile.prefill_s(job.prompt_tokens, 0) + as_f64(job.output_tokens) * (fixed_s + profile.stream_share_s(context))
}

#[expect(clippy::cast_precision_loss, reason = "counts of tokens and requests stay far below 2^53")]
pub(super) fn as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read_text(text: &str) -> Result<Vec<Job>, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let name = file.path().display().to_string();
        read(file.path(), 100, 1).map_err(|error| error.to_string().replace(&name, "FILE"))
    }

    #[test]
    fn lines_are_requests_with_or_without_blocks() {
        let jobs = read_text("arrival_s,input_tokens,output_tokens,prefix_group,blocks\n0.5,10,0,7,0 59-61\n2,20,3\n");
        let expected = [
            Job { arrival_s: 0.5, prompt_tokens: 10, output_tokens: 1, prefix: vec![0, 59, 60, 61] },
            Job { arrival_s: 2.0, prompt_tokens: 20, output_tokens: 3, prefix: vec![] },
        ];
        assert_eq!(jobs.unwrap(), expected);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let expected = "FILE:3: expected arrival_s,input_tokens,output_tokens[,prefix_group,blocks]";
        for wrong in ["x,1,1", "1,1", "-1,1,1", "nan,1,1", "1,1,1,0,5-x"] {
            assert_eq!(read_text(&format!("head\n1,1,1\n{wrong}\n")).unwrap_err(), expected, "{wrong}");
        }
        assert_eq!(read_text("head\n").unwrap_err(), "FILE: holds no request");
        assert!(read(Path::new("/nowhere"), 1, 1).unwrap_err().to_string().starts_with("/nowhere: "));
    }

    #[test]
    fn a_coarse_clock_is_spread_and_missing_times_are_made_up() {
        let coarse: String = (0..40).map(|index| format!("{},10,1\n", index / 10 * 3)).collect();
        let jobs = read_text(&format!("head\n{coarse}")).unwrap();
        assert!(jobs.windows(2).all(|pair| pair[0].arrival_s < pair[1].arrival_s));
        assert!(jobs.last().unwrap().arrival_s < 12.0);
        let jobs = read_text("head\n,10,1\n,10,1\n").unwrap();
        assert!(0.0 < jobs[0].arrival_s && jobs[0].arrival_s < jobs[1].arrival_s);
    }
}
