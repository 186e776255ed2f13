//! Load for the demo: many short chats and a few long prompts, sent through the balancer as any client would.
//!
//! The load is open: each request comes at its time, whatever has become of those before it. That is how users behave, and
//! what makes queues. What the clients see is logged every ten seconds.

mod client;
mod tally;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::server::ShutdownWatch;
use pingora::services::background::{BackgroundService, GenBackgroundService, background_service};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until};

use super::DemoSettings;
use crate::simulate::{Job, Mix, as_f64};
use tally::Tally;

pub use tally::Answers;

/// The share of what all demo servers prefill in the same time. Long prompts, of which only one server in two takes any, then
/// keep that one busy for three quarters of the time, so that some have to wait; and a short one hardly ever meets another.
const LOAD: f64 = 0.5;

/// Most clients at once. Who would be one more stays away, and is counted.
const MAX_CLIENTS: usize = 512;

/// Most tokens of an answer. At the demo servers' speed the longest ones of the mix would go on for a minute.
const MAX_ANSWER_TOKENS: u64 = 256;

/// How many requests are made up at once.
const REQUESTS_PER_ROUND: usize = 1_000;

/// The seed of the first round. With this one, long prompts come from the beginning, and some while others are computed.
const FIRST_SEED: u64 = 60;

/// How often the clients' view is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// How often a balancer that does not listen yet is tried.
const CONNECT_INTERVAL: Duration = Duration::from_millis(50);

/// Clients that send a mix of prompts to a balancer in front of demo servers.
#[derive(Debug)]
pub struct Load {
    balancer: SocketAddr,
    model_name: String,
    /// Longest prompt, in tokens.
    max_prompt_tokens: u64,
    /// Mean number of prompt tokens to be sent a second.
    tokens_per_second: f64,
    tally: Arc<Mutex<Tally>>,
}

impl Load {
    /// Clients of the balancer, which has so many servers with these settings behind it. They send nothing yet.
    #[must_use]
    pub fn new(balancer: SocketAddr, servers: usize, settings: &DemoSettings) -> Self {
        Self {
            balancer,
            model_name: settings.model_name.clone(),
            // A balancer estimates, and is careful: this leaves a quarter for its error and the answer.
            max_prompt_tokens: settings.max_model_len / 4 * 3,
            tokens_per_second: LOAD * as_f64(servers as u64) * as_f64(settings.prefill_tokens_per_second.get()),
            tally: Arc::default(),
        }
    }

    /// Sends requests, as soon as the balancer listens, until `stop` is ready. Clients that wait for an answer then leave.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        tokio::select! {
            () = stop => {}
            () = self.send() => {}
        }
    }

    /// What the clients have seen so far.
    #[must_use]
    pub fn answers(&self) -> Answers {
        self.tally.lock().answers()
    }

    async fn send(&self) {
        while !client::can_connect(self.balancer).await {
            sleep(CONNECT_INTERVAL).await;
        }
        // Dropped with this future: then all clients leave.
        let mut clients = JoinSet::new();
        let began = Instant::now();
        let mut log_time = interval_at(began + LOG_INTERVAL, LOG_INTERVAL);
        log_time.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut arrivals = Arrivals::new(self.tokens_per_second);
        loop {
            let (number, at_s, job) = arrivals.next();
            let job = self.cut(&job);
            let request = client::chat(&self.model_name, number, &job);
            let due = began + Duration::from_secs_f64(at_s);
            loop {
                tokio::select! {
                    () = sleep_until(due) => break,
                    _ = log_time.tick() => self.report(clients.len()),
                    Some(_) = clients.join_next(), if !clients.is_empty() => {}
                }
            }
            if clients.len() < MAX_CLIENTS {
                clients.spawn(ask(self.balancer, request, job.prompt_tokens, Arc::clone(&self.tally)));
            } else {
                self.tally.lock().left_out();
            }
        }
    }

    /// The same job with a prompt that the servers take, and an answer that comes to its end.
    fn cut(&self, job: &Job) -> Job {
        let prompt_tokens = job.prompt_tokens.min(self.max_prompt_tokens);
        Job::new(job.arrival_s, prompt_tokens, job.output_tokens.min(MAX_ANSWER_TOKENS))
    }

    fn report(&self, waiting: usize) {
        log::info!("load: {}; {waiting} clients at the moment", self.tally.lock().report(Instant::now()));
    }
}

/// One client: it sends a request, reads the answer, and is counted.
async fn ask(balancer: SocketAddr, request: Vec<u8>, prompt_tokens: u64, tally: Arc<Mutex<Tally>>) {
    let sent = Instant::now();
    let first = || {
        let now = Instant::now();
        tally.lock().first_token(prompt_tokens, now, now - sent);
    };
    match client::exchange(balancer, &request, first).await {
        Ok(()) => tally.lock().answered(),
        Err(failure) => tally.lock().failed(&failure),
    }
}

/// The mix without an end, at the speed that is wanted. The same requests in each demo.
struct Arrivals {
    jobs: std::vec::IntoIter<Job>,
    /// Of the next round.
    next_seed: u64,
    number: u64,
    /// What times of the mix are multiplied with.
    stretch: f64,
    /// When the present round began, in seconds.
    round_began_s: f64,
    last_s: f64,
}

impl Arrivals {
    fn new(tokens_per_second: f64) -> Self {
        // Of many requests, because a few long ones make the mean.
        let sample = Mix::Steady.jobs(50 * REQUESTS_PER_ROUND, 0);
        let tokens: u64 = sample.iter().map(|job| job.prompt_tokens).sum();
        let span_s = sample.last().map_or(0.0, |job| job.arrival_s);
        let stretch = as_f64(tokens) / span_s / tokens_per_second;
        Self {
            jobs: Vec::new().into_iter(),
            next_seed: FIRST_SEED,
            number: 0,
            stretch,
            round_began_s: 0.0,
            last_s: 0.0,
        }
    }

    /// The next request: its number, when it comes (seconds from the beginning), what it is.
    fn next(&mut self) -> (u64, f64, Job) {
        loop {
            if let Some(job) = self.jobs.next() {
                self.number += 1;
                self.last_s = self.round_began_s + job.arrival_s * self.stretch;
                return (self.number, self.last_s, job);
            }
            self.round_began_s = self.last_s;
            self.jobs = Mix::Steady.jobs(REQUESTS_PER_ROUND, self.next_seed).into_iter();
            self.next_seed += 1;
        }
    }
}

/// The load as a service of a Pingora server.
#[derive(Debug)]
pub struct LoadService {
    load: Load,
    closed: ShutdownWatch,
}

/// The load as a service to add to a Pingora server. Its clients leave when `closed` turns true: a process that waits for the
/// end of all requests need not wait for theirs.
#[must_use]
pub fn service(load: Load, closed: ShutdownWatch) -> GenBackgroundService<LoadService> {
    let mut service = background_service("demo load", LoadService { load, closed });
    service.threads = Some(1);
    service
}

#[async_trait]
impl BackgroundService for LoadService {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut closed = self.closed.clone();
        let stop = async {
            // Also when nobody is left who could tell.
            tokio::select! {
                _ = closed.wait_for(|closed| *closed) => {}
                _ = shutdown.changed() => {}
            }
        };
        self.load.run(stop).await;
    }
}
