//! Traffic: requests with their lengths and arrival times, and other traffic of the same kind.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::mix::Mix;
use crate::work::{Profile, Request, RequestId};

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Seconds from the beginning.
    pub arrival_s: f64,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Tokens that it generates. At least 1.
    pub output_tokens: u64,
    /// Length of its body in bytes; 4 for each token when nobody has told.
    pub body_bytes: u64,
    /// Most tokens that it may generate, when it says so.
    pub max_tokens: Option<u64>,
    /// Whether it generates exactly `max_tokens`.
    pub ignore_eos: bool,
    /// Whether its first token is seen.
    pub is_streamed: bool,
    /// Its blocks of 512 tokens, each standing for itself and all before it.
    pub prefix: Vec<u64>,
}

impl Job {
    /// A streamed request of which only the lengths are known.
    #[must_use]
    pub fn new(arrival_s: f64, prompt_tokens: u64, output_tokens: u64) -> Self {
        Self {
            arrival_s,
            prompt_tokens,
            output_tokens: output_tokens.max(1),
            body_bytes: prompt_tokens.saturating_mul(4),
            max_tokens: None,
            ignore_eos: false,
            is_streamed: true,
            prefix: Vec::new(),
        }
    }

    /// What a balancer sees of it.
    #[must_use]
    pub fn request(&self, id: u64) -> Request {
        Request {
            id: RequestId(id),
            body_bytes: self.body_bytes,
            max_tokens: self.max_tokens,
            ignore_eos: self.ignore_eos,
            is_streamed: self.is_streamed,
            prefix: self.prefix.clone(),
            ..Request::of_tokens(id, self.prompt_tokens)
        }
    }
}

/// Traffic by its name, for any seed.
#[derive(Debug, Clone)]
pub struct Traffic {
    /// What to call it.
    pub name: String,
    /// The seed that gives it as it was recorded (nothing says that for made-up traffic).
    origin: Origin,
}

#[derive(Debug, Clone)]
enum Origin {
    MadeUp { mix: Mix, requests: usize },
    Recorded { jobs: Vec<Job>, has_times: bool },
}

/// The seed with which recorded traffic comes in the order in which it was recorded.
const AS_RECORDED: u64 = 1;

/// Into so many blocks recorded traffic is cut to be replayed in another order.
const BLOCKS: usize = 24;

/// Arrivals a second where a trace has none.
const DEFAULT_RATE: f64 = 1.0;

/// Streams that share the fixed time of a decode step, for [`natural_load`].
const USUAL_BATCH: f64 = 32.0;

impl Traffic {
    /// So many made-up requests.
    #[must_use]
    pub fn made_up(mix: Mix, requests: usize) -> Self {
        Self { name: mix.name().to_owned(), origin: Origin::MadeUp { mix, requests } }
    }

    /// Recorded requests. Without `has_times` their arrivals are made up, as a Poisson process.
    #[must_use]
    pub fn recorded(name: String, jobs: Vec<Job>, has_times: bool) -> Self {
        Self { name, origin: Origin::Recorded { jobs, has_times } }
    }

    /// The requests in order of arrival. The same seed gives the same ones.
    ///
    /// Made-up requests are others with each seed. Recorded ones are as recorded with seed 1; with any other the recording is
    /// cut into 24 blocks of the same time, which come in another order: the same requests, bursts and pauses included,
    /// that meet in another way.
    ///
    /// Arrival times that many requests share are those of a coarse clock, not of a burst: they are spread evenly over the
    /// time to the next one.
    #[must_use]
    pub fn jobs(&self, seed: u64) -> Vec<Job> {
        let (mut jobs, has_times) = match &self.origin {
            Origin::MadeUp { mix, requests } => return mix.jobs(*requests, seed),
            Origin::Recorded { jobs, has_times } => (jobs.clone(), *has_times),
        };
        let mut random = StdRng::seed_from_u64(seed);
        if has_times {
            spread(&mut jobs, &mut random);
            jobs.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s));
            if seed == AS_RECORDED { jobs } else { in_another_order(&jobs, &mut random) }
        } else {
            let mut now_s = 0.0;
            if seed != AS_RECORDED {
                jobs.shuffle(&mut random);
            }
            for job in &mut jobs {
                now_s += exponential(&mut random, DEFAULT_RATE);
                job.arrival_s = now_s;
            }
            jobs
        }
    }
}

fn in_another_order(jobs: &[Job], random: &mut StdRng) -> Vec<Job> {
    let (first_s, last_s) = (jobs[0].arrival_s, jobs[jobs.len() - 1].arrival_s);
    // The block of the last one ends a little later, so that no two requests of different blocks coincide.
    let block_s = (last_s - first_s) / as_f64(BLOCKS as u64) + 1e-6;
    let mut order: Vec<u64> = (0..BLOCKS as u64).collect();
    order.shuffle(random);
    let mut moved = Vec::with_capacity(jobs.len());
    for (place, block) in order.into_iter().enumerate() {
        let from_s = first_s + as_f64(block) * block_s;
        let begin = jobs.partition_point(|job| job.arrival_s < from_s);
        let end = jobs.partition_point(|job| job.arrival_s < from_s + block_s);
        let shift_s = first_s + as_f64(place as u64) * block_s - from_s;
        moved.extend(jobs[begin..end].iter().map(|job| Job { arrival_s: job.arrival_s + shift_s, ..job.clone() }));
    }
    moved
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
#[must_use]
pub fn natural_load(jobs: &[Job], profile: &Profile, servers: usize) -> f64 {
    let work_s: f64 = jobs.iter().map(|job| work_s(job, profile)).sum();
    let span_s = jobs.last().map_or(0.0, |job| job.arrival_s).max(1.0);
    work_s / span_s / as_f64(servers as u64)
}

fn work_s(job: &Job, profile: &Profile) -> f64 {
    let context = job.prompt_tokens.saturating_add(job.output_tokens / 2);
    let fixed_s = (profile.overhead_s + profile.base_s) / USUAL_BATCH;
    profile.prefill_s(job.prompt_tokens, 0) + as_f64(job.output_tokens) * (fixed_s + profile.stream_share_s(context))
}

#[expect(clippy::cast_precision_loss, reason = "counts of tokens and requests stay far below 2^53")]
pub(crate) fn as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(times: impl Iterator<Item = f64>) -> Traffic {
        let jobs = times.enumerate().map(|(number, time)| Job::new(time, 10 + number as u64, 1)).collect();
        Traffic::recorded("test".into(), jobs, true)
    }

    #[test]
    fn a_coarse_clock_is_spread() {
        let jobs = recorded((0..40).map(|index| f64::from(index / 10 * 3))).jobs(1);
        assert!(jobs.windows(2).all(|pair| pair[0].arrival_s < pair[1].arrival_s));
        assert!(jobs.last().unwrap().arrival_s < 12.0);
    }

    #[test]
    fn missing_times_are_made_up() {
        let jobs = Traffic::recorded("test".into(), vec![Job::new(0.0, 10, 1); 2], false).jobs(1);
        assert!(0.0 < jobs[0].arrival_s && jobs[0].arrival_s < jobs[1].arrival_s);
    }

    #[test]
    fn another_seed_replays_the_same_requests_in_another_order() {
        let traffic = recorded((0..1_000).map(|index| f64::from(index) * 0.5));
        let (first, second) = (traffic.jobs(1), traffic.jobs(2));
        assert_eq!(second, traffic.jobs(2));
        assert_ne!(first, second);
        assert!(second.windows(2).all(|pair| pair[0].arrival_s <= pair[1].arrival_s));
        let lengths = |jobs: &[Job]| {
            let mut lengths: Vec<u64> = jobs.iter().map(|job| job.prompt_tokens).collect();
            lengths.sort_unstable();
            lengths
        };
        assert_eq!(lengths(&first), lengths(&second));
        assert!((second[999].arrival_s - first[999].arrival_s).abs() < 1.0);
    }

    #[test]
    fn one_request_has_no_other_order() {
        assert_eq!(recorded(std::iter::once(3.0)).jobs(2).len(), 1);
    }
}
