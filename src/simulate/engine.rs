//! A model of vLLM's V1 engine: steps with a token budget, chunked prefill, first come first served, a bounded KV cache.
//!
//! In each step every running request gets what it can use of the budget, in the order in which they were admitted: a stream
//! one token, an unfinished prompt the next chunk. What is left admits waiting requests, in order, while the KV cache has
//! room. When a running request finds no room, the one admitted last is preempted: it gives all of its cache back and is
//! computed again later. A step takes
//!
//! ```text
//! o + max(a0, a1 + b * new tokens) + c * context of the streams + d * sum of chunk * (computed before + chunk / 2)
//! ```

use std::collections::VecDeque;

use super::outcome::LONG_FROM_TOKENS;
use super::traffic::as_f64;
use crate::work::{PrefixCache, Profile, Request};

/// vLLM's default of `max_num_seqs`.
const MAX_RUNNING: usize = 256;

/// What a step has brought to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// So many tokens in all.
    Token {
        /// The request.
        job: usize,
        /// Generated so far.
        generated: u64,
    },
    /// Its last token.
    Done {
        /// The request.
        job: usize,
        /// Generated in all.
        generated: u64,
    },
}

/// What an engine is busy with in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// Nothing.
    Idle,
    /// It generates tokens of answers that have begun.
    Decoding,
    /// It computes prompts, none of them long (32k tokens and more).
    ShortPrefill,
    /// It computes a long prompt, perhaps others beside it.
    LongPrefill,
}

#[derive(Debug)]
struct Sequence {
    job: usize,
    /// What has to be in the cache before the next token: the prompt, and what was generated.
    context_tokens: u64,
    /// What is in the cache.
    computed_tokens: u64,
    generated: u64,
    output_tokens: u64,
    prefix: Vec<u64>,
    prompt_tokens: u64,
    /// What the present step computes.
    chunk: u64,
}

/// One server.
#[derive(Debug)]
pub struct Engine {
    profile: Profile,
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    kv_used: u64,
    prefixes: PrefixCache,
    is_stepping: bool,
    /// Requests that were preempted.
    pub preemptions: u64,
}

impl Engine {
    /// An idle engine.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            running: Vec::new(),
            waiting: VecDeque::new(),
            kv_used: 0,
            prefixes: PrefixCache::new(profile.kv_tokens),
            is_stepping: false,
            preemptions: 0,
        }
    }

    /// Takes a request, known as `job`, that will generate so much.
    pub fn submit(&mut self, job: usize, request: &Request, output_tokens: u64) {
        self.waiting.push_back(Sequence {
            job,
            context_tokens: request.prompt_tokens.max(1),
            computed_tokens: 0,
            generated: 0,
            output_tokens,
            prefix: request.prefix.clone(),
            prompt_tokens: request.prompt_tokens,
            chunk: 0,
        });
    }

    /// Begins a step if none runs and there is something to do; says how long it takes.
    pub fn begin_step(&mut self) -> Option<f64> {
        if self.is_stepping || (self.running.is_empty() && self.waiting.is_empty()) {
            return None;
        }
        let mut budget = self.profile.budget_tokens;
        self.continue_running(&mut budget);
        self.admit(&mut budget);
        self.is_stepping = true;
        Some(self.step_s())
    }

    fn continue_running(&mut self, budget: &mut u64) {
        let mut index = 0;
        while index < self.running.len() {
            let sequence = &self.running[index];
            let chunk = (sequence.context_tokens - sequence.computed_tokens).min(*budget);
            while self.kv_used + chunk > self.profile.kv_tokens && self.running.len() > index + 1 {
                self.preempt_last();
            }
            // Alone it fits: what is larger than the cache was never submitted.
            self.give(index, chunk, budget);
            index += 1;
        }
    }

    fn preempt_last(&mut self) {
        let Some(mut last) = self.running.pop() else { return };
        self.kv_used -= last.computed_tokens;
        self.preemptions += 1;
        (last.computed_tokens, last.chunk) = (0, 0);
        self.waiting.push_front(last);
    }

    fn give(&mut self, index: usize, chunk: u64, budget: &mut u64) {
        self.running[index].chunk = chunk;
        *budget -= chunk;
        self.kv_used += chunk;
    }

    fn admit(&mut self, budget: &mut u64) {
        while *budget > 0 && self.running.len() < MAX_RUNNING {
            let Some(first) = self.waiting.front() else { return };
            let cached = self.cached_tokens(first);
            let chunk = (first.context_tokens - cached).min(*budget);
            let needed = self.kv_reserved() + first.context_tokens;
            if needed > self.profile.kv_tokens && !self.running.is_empty() {
                return;
            }
            let Some(mut first) = self.waiting.pop_front() else { return };
            first.computed_tokens = cached;
            self.kv_used += cached;
            self.running.push(first);
            self.give(self.running.len() - 1, chunk, budget);
        }
    }

    /// What the running requests need until each has its next token, with their whole prompts. An engine that looks at the
    /// first chunk alone computes prompts that do not fit over and over.
    fn kv_reserved(&self) -> u64 {
        self.running.iter().map(|sequence| sequence.context_tokens).sum()
    }

    fn cached_tokens(&self, sequence: &Sequence) -> u64 {
        if sequence.prefix.is_empty() {
            return 0;
        }
        let prefix = sequence.prefix.clone();
        let request = Request { prefix, ..Request::of_tokens(0, sequence.prompt_tokens) };
        self.prefixes.cached_tokens(&request).min(sequence.context_tokens - 1)
    }

    fn step_s(&self) -> f64 {
        let (mut new, mut context, mut pairs) = (0, 0, 0.0);
        for sequence in &self.running {
            new += sequence.chunk;
            if sequence.chunk == 1 && sequence.generated > 0 {
                context += sequence.computed_tokens;
            } else {
                pairs += as_f64(sequence.chunk) * (as_f64(sequence.computed_tokens) + as_f64(sequence.chunk) / 2.0);
            }
        }
        let profile = &self.profile;
        profile.overhead_s
            + profile.floor_s.max(profile.base_s + profile.per_token_s * as_f64(new))
            + profile.per_context_token_s * as_f64(context)
            + profile.per_token_pair_s * pairs
    }

    /// Ends the step that runs; says what it has brought.
    pub fn end_step(&mut self, progress: &mut Vec<Progress>) {
        self.is_stepping = false;
        let mut freed = 0;
        let prefixes = &mut self.prefixes;
        self.running.retain_mut(|sequence| {
            sequence.computed_tokens += std::mem::take(&mut sequence.chunk);
            if sequence.computed_tokens < sequence.context_tokens {
                return true;
            }
            if sequence.generated == 0 {
                prefixes.touch(&sequence.prefix);
            }
            sequence.generated += 1;
            sequence.context_tokens += 1;
            let (job, generated) = (sequence.job, sequence.generated);
            if generated < sequence.output_tokens {
                progress.push(Progress::Token { job, generated });
                return true;
            }
            progress.push(Progress::Done { job, generated });
            freed += sequence.computed_tokens;
            false
        });
        self.kv_used -= freed;
    }

    /// What the step that runs computes.
    #[must_use]
    pub fn activity(&self) -> Activity {
        if !self.is_stepping {
            return Activity::Idle;
        }
        let of = |sequence: &Sequence| match (sequence.generated, sequence.prompt_tokens >= LONG_FROM_TOKENS) {
            (0, true) => Activity::LongPrefill,
            (0, false) => Activity::ShortPrefill,
            _ => Activity::Decoding,
        };
        self.running.iter().filter(|sequence| sequence.chunk > 0).map(of).max().unwrap_or(Activity::Idle)
    }

    /// Short requests that have not had their first token.
    #[must_use]
    pub fn short_waiting(&self) -> usize {
        let waits = |sequence: &&Sequence| sequence.generated == 0 && sequence.prompt_tokens < LONG_FROM_TOKENS;
        self.running.iter().chain(&self.waiting).filter(waits).count()
    }

    /// Tokens in the KV cache that running requests need.
    #[must_use]
    pub fn kv_used(&self) -> u64 {
        self.kv_used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::LLAMA3_8B_A100;

    /// Runs until idle; gives when each request had its first token and its end.
    fn run(engine: &mut Engine, requests: &[(u64, u64)]) -> Vec<(f64, f64)> {
        for (job, (prompt_tokens, output_tokens)) in requests.iter().enumerate() {
            engine.submit(job, &Request::of_tokens(job as u64, *prompt_tokens), *output_tokens);
        }
        let (mut now_s, mut times, mut progress) = (0.0, vec![(0.0, 0.0); requests.len()], Vec::new());
        while let Some(step_s) = engine.begin_step() {
            now_s += step_s;
            engine.end_step(&mut progress);
            for event in progress.drain(..) {
                let (Progress::Token { job, generated } | Progress::Done { job, generated }) = event;
                if generated == 1 {
                    times[job].0 = now_s;
                }
                times[job].1 = now_s;
            }
        }
        assert_eq!(engine.kv_used(), 0);
        times
    }

    #[test]
    fn a_prompt_alone_takes_what_the_profile_predicts() {
        for prompt_tokens in [1, 500, 8_192, 8_193, 100_000] {
            let times = run(&mut Engine::new(LLAMA3_8B_A100), &[(prompt_tokens, 1)]);
            let predicted = LLAMA3_8B_A100.prefill_s(prompt_tokens, 0);
            assert!((times[0].0 - predicted).abs() < 0.02 * predicted, "{prompt_tokens}: {times:?}, not {predicted}");
        }
    }

    #[test]
    fn decoding_takes_a_step_for_each_token() {
        let times = run(&mut Engine::new(LLAMA3_8B_A100), &[(1_000, 101)]);
        let predicted = 100.0 * LLAMA3_8B_A100.decode_step_s(1, 1_050);
        assert!((times[0].1 - times[0].0 - predicted).abs() < 1e-3);
    }

    #[test]
    fn a_short_prompt_behind_a_long_one_waits_for_it() {
        let times = run(&mut Engine::new(LLAMA3_8B_A100), &[(100_000, 1), (100, 1)]);
        assert!(times[1].0 > 0.95 * times[0].0);
    }

    #[test]
    fn what_it_is_busy_with_is_known_in_each_step() {
        let mut engine = Engine::new(LLAMA3_8B_A100);
        let (mut seen, mut progress) = (vec![engine.activity()], Vec::new());
        engine.submit(0, &Request::of_tokens(0, 40_000), 2);
        engine.submit(1, &Request::of_tokens(1, 100), 2);
        while engine.begin_step().is_some() {
            seen.push(engine.activity());
            assert!(engine.activity() != Activity::LongPrefill || engine.short_waiting() == 1);
            engine.end_step(&mut progress);
        }
        seen.dedup();
        assert_eq!(seen, [Activity::Idle, Activity::LongPrefill, Activity::Decoding]);
        engine.submit(2, &Request::of_tokens(2, 100), 1);
        engine.begin_step();
        assert_eq!((engine.activity(), engine.short_waiting()), (Activity::ShortPrefill, 1));
    }

    #[test]
    fn what_does_not_fit_waits_or_is_computed_again() {
        let mut engine = Engine::new(Profile { kv_tokens: 10_000, ..LLAMA3_8B_A100 });
        let times = run(&mut engine, &[(4_000, 1_500), (4_000, 1_500), (4_000, 10)]);
        assert!(times[2].0 > times[1].0);
        assert_eq!(engine.preemptions, 1);
    }
}
