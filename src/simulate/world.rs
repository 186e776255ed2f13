//! The world: arrivals, engines and the dispatcher on one virtual clock.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::engine::{Engine, Progress};
use super::outcome::Timing;
use super::timeline::{Timeline, Window};
use super::traffic::Job;
use crate::work::{Dispatcher, Outcome, Profile, RequestId};

/// The dispatcher is told of generated tokens once in so many.
const TOKENS_PER_REPORT: u64 = 16;

/// Seconds between two ticks.
const TICK_S: f64 = 1.0;

/// A simulation that can be run once.
#[derive(Debug)]
pub struct World<'j> {
    jobs: &'j [Job],
    dispatcher: Dispatcher,
    engines: Vec<Engine>,
    steps: BinaryHeap<Reverse<Step>>,
    timings: Vec<Timing>,
    unfinished: usize,
    timeline: Option<Timeline>,
}

/// The end of an engine's step.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    at_s: f64,
    server: usize,
}

impl Eq for Step {}

impl PartialOrd for Step {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Step {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at_s.total_cmp(&other.at_s).then(self.server.cmp(&other.server))
    }
}

impl<'j> World<'j> {
    /// Idle servers in front of which so much will arrive, at the times of the jobs multiplied by `stretch`. Every job must
    /// fit into a KV cache.
    #[must_use]
    pub fn new(jobs: &'j [Job], stretch: f64, dispatcher: Dispatcher, profile: Profile, servers: usize) -> Self {
        Self::of_engines(jobs, stretch, dispatcher, &vec![profile; servers])
    }

    /// The same with engines that differ.
    #[must_use]
    pub fn of_engines(jobs: &'j [Job], stretch: f64, dispatcher: Dispatcher, engines: &[Profile]) -> Self {
        Self {
            jobs,
            dispatcher,
            engines: engines.iter().copied().map(Engine::new).collect(),
            steps: BinaryHeap::new(),
            timings: jobs.iter().map(|job| Timing::new(job.arrival_s * stretch)).collect(),
            unfinished: jobs.len(),
            timeline: None,
        }
    }

    /// Lets everything happen; gives the times of each request.
    #[must_use]
    pub fn run(self) -> Vec<Timing> {
        self.run_through().timings
    }

    /// The same, and the dispatcher with what it has learned.
    #[must_use]
    pub fn run_and_learn(self) -> (Vec<Timing>, Dispatcher) {
        let ended = self.run_through();
        (ended.timings, ended.dispatcher)
    }

    /// Lets everything happen, and records what the servers do in a window of time.
    #[must_use]
    pub fn record(mut self, window: Window) -> Timeline {
        let lanes = self.dispatcher.policy().lanes().to_vec();
        self.timeline = Some(Timeline::new(window, self.engines.len(), lanes));
        self.run_through().timeline.expect("it was there before")
    }

    fn run_through(mut self) -> Self {
        let (mut next_job, mut next_tick_s, mut progress) = (0, TICK_S, Vec::new());
        while self.unfinished > 0 {
            let arrival_s = self.timings.get(next_job).map_or(f64::INFINITY, |timing| timing.arrival_s);
            let step_s = self.steps.peek().map_or(f64::INFINITY, |Reverse(step)| step.at_s);
            if next_tick_s <= arrival_s && next_tick_s <= step_s {
                self.dispatcher.tick(next_tick_s);
                self.submit(next_tick_s);
                next_tick_s += TICK_S;
            } else if arrival_s <= step_s {
                self.arrive(next_job);
                next_job += 1;
            } else if let Some(Reverse(Step { at_s, server })) = self.steps.pop() {
                self.engines[server].end_step(&mut progress);
                progress.drain(..).for_each(|event| self.tell(event, at_s));
                self.submit(at_s);
                self.begin_step(server, at_s);
            }
        }
        self
    }

    fn arrive(&mut self, index: usize) {
        let (arrival_s, request) = (self.timings[index].arrival_s, self.jobs[index].request(index as u64));
        self.dispatcher.arrive(request, arrival_s).expect("each job has a number of its own");
        self.submit(arrival_s);
    }

    fn tell(&mut self, event: Progress, now_s: f64) {
        match event {
            Progress::Token { job, generated } => {
                if generated == 1 {
                    self.timings[job].first_s = now_s;
                    self.dispatcher.first_token(RequestId(job as u64), now_s);
                } else if generated % TOKENS_PER_REPORT == 0 {
                    self.dispatcher.tokens(RequestId(job as u64), generated, now_s);
                }
            }
            Progress::Done { job, generated } => {
                let timing = &mut self.timings[job];
                timing.first_s = if generated == 1 { now_s } else { timing.first_s };
                timing.end_s = now_s;
                self.unfinished -= 1;
                self.dispatcher.end(RequestId(job as u64), true, Some(generated), now_s);
            }
        }
    }

    /// Hands over what has been assigned.
    fn submit(&mut self, now_s: f64) {
        let outcomes: Vec<Outcome> = self.dispatcher.outcomes().collect();
        for outcome in outcomes {
            let Outcome::Assigned { id, server, .. } = outcome else {
                unreachable!("all servers stay up, so nothing is rejected")
            };
            let job = usize::try_from(id.0).expect("it was a place in the list");
            self.engines[server].submit(job, &self.jobs[job].request(id.0), self.jobs[job].output_tokens);
            self.begin_step(server, now_s);
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.note_balancer(now_s, self.dispatcher.held(), self.dispatcher.policy().lanes());
        }
    }

    fn begin_step(&mut self, server: usize, now_s: f64) {
        if let Some(step_s) = self.engines[server].begin_step() {
            self.steps.push(Reverse(Step { at_s: now_s + step_s, server }));
        }
        if let Some(timeline) = &mut self.timeline {
            let engine = &self.engines[server];
            timeline.note_server(now_s, server, engine.activity(), engine.short_waiting());
        }
    }
}
