//! What the estimator learns from an engine's own count of prompt tokens, where responses carry no usage.
//!
//! The engine counts a prompt when it has its first token. Between two looks at the counter the estimates of those requests
//! are summed of which the first token was seen here, and sum and difference belong together, but for what nobody can
//! see: of a request that is answered as a whole the first token comes at some time before its answer, and one that failed
//! may have been counted or not. So a span of time goes on until that part is small. It teaches nothing when the engine
//! has served others, was started anew, had prompts of different kinds, or when responses carried usage anyway.

use std::sync::Arc;

use crate::prompt::Estimate;
use crate::upstream::Server;

/// Of the tokens of a span, one in so many may be unsure.
const UNSURE_SHARE: u64 = 50;

/// An engine that has one request in so many of others is taken to be ours alone.
const FOREIGN_SHARE: f64 = 0.05;

/// A span has no more looks at the counter: what is unsure for so long stays so.
const MOST_LOOKS: u32 = 360;

/// What an engine has counted since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tokens of prompts (`vllm:prompt_tokens_total`).
    pub prompt_tokens: u64,
    /// Tokens of answers (`vllm:generation_tokens_total`).
    pub generation_tokens: u64,
}

/// Prompts of one kind, and how many tokens they had together.
#[derive(Debug, Clone, PartialEq)]
pub struct Lesson {
    /// The sum of their estimates.
    pub estimates: Estimate,
    /// The tokens that the engine has counted.
    pub prompt_tokens: u64,
}

/// The prompts that a server was sent since the span began.
#[derive(Debug, Default)]
pub struct PromptTally {
    /// Tokens of those running ones that are answered as a whole.
    unseen_tokens: u64,
    span: Option<Span>,
}

#[derive(Debug, Default)]
struct Span {
    begun: Counters,
    looks: u32,
    estimates: Option<Estimate>,
    /// Prompts of another model or class are among them.
    is_mixed: bool,
    /// Tokens of those that may have been counted or not.
    unsure_tokens: u64,
    /// Tokens of those whose responses carried usage.
    told_tokens: u64,
}

impl PromptTally {
    /// Nobody looks at the counter any more.
    pub fn stop(&mut self) {
        self.span = None;
    }

    /// A response has carried usage, and was learned from.
    pub fn told(&mut self, tokens: u64) {
        if let Some(span) = &mut self.span {
            span.told_tokens = span.told_tokens.saturating_add(tokens);
        }
    }

    /// A look at the counter, with how many requests more than ours the engine has, and how many of ours. Gives what can be
    /// learned from the span that has ended with it.
    pub fn look(&mut self, counters: Counters, drift_requests: f64, own_requests: f64) -> Option<Lesson> {
        let is_foreign = drift_requests > FOREIGN_SHARE * own_requests;
        let mut span = match self.span.take() {
            Some(span) if !is_foreign && span.continues_to(counters) => span,
            _ => {
                self.begin(counters);
                return None;
            }
        };
        span.looks += 1;
        let unsure = span.unsure_tokens.saturating_add(self.unseen_tokens);
        let tokens = span.estimates.as_ref().map_or(0, Estimate::tokens);
        if unsure > tokens / UNSURE_SHARE && span.looks < MOST_LOOKS {
            self.span = Some(span);
            return None;
        }
        self.begin(counters);
        span.lesson(counters, unsure)
    }

    fn begin(&mut self, counters: Counters) {
        self.span = Some(Span { begun: counters, unsure_tokens: self.unseen_tokens, ..Span::default() });
    }

    fn counted(&mut self, estimate: Estimate) {
        let Some(span) = &mut self.span else { return };
        match &mut span.estimates {
            None => span.estimates = Some(estimate),
            Some(sum) if sum.class() == estimate.class() && sum.model() == estimate.model() => *sum += &estimate,
            Some(_) => span.is_mixed = true,
        }
    }

    fn unsure(&mut self, tokens: u64) {
        if let Some(span) = &mut self.span {
            span.unsure_tokens = span.unsure_tokens.saturating_add(tokens);
        }
    }
}

impl Span {
    fn continues_to(&self, counters: Counters) -> bool {
        let Counters { prompt_tokens, generation_tokens } = counters;
        prompt_tokens >= self.begun.prompt_tokens && generation_tokens >= self.begun.generation_tokens
    }

    fn lesson(self, counters: Counters, unsure_tokens: u64) -> Option<Lesson> {
        let prompt_tokens = counters.prompt_tokens - self.begun.prompt_tokens;
        let estimates = self.estimates.filter(|_| !self.is_mixed)?;
        let estimated = estimates.tokens();
        // Of token ids nothing can be learned; a sum that is far off is not of these prompts.
        let is_telling = unsure_tokens <= estimated / UNSURE_SHARE
            && self.told_tokens <= estimated / 2
            && estimates.exact_tokens() <= estimated / 2
            && (estimated / 2..=estimated.saturating_mul(2)).contains(&prompt_tokens);
        is_telling.then_some(Lesson { estimates, prompt_tokens })
    }
}

/// A request on its way to a server's engine. Dropped when it ends, however.
#[derive(Debug)]
pub struct Tallied {
    server: Arc<Server>,
    /// `None` once its first token was seen.
    estimate: Option<Estimate>,
    is_streamed: bool,
}

impl Tallied {
    /// A request goes to this server; its first token will be seen when it comes, if the answer is a stream.
    #[must_use]
    pub fn begin(server: Arc<Server>, estimate: Estimate, is_streamed: bool) -> Self {
        if !is_streamed {
            let mut report = server.engine().lock();
            report.prompts.unseen_tokens = report.prompts.unseen_tokens.saturating_add(estimate.tokens());
        }
        Self { server, estimate: Some(estimate), is_streamed }
    }

    /// Its first token has been seen.
    pub fn has_first_token(mut self) {
        if let Some(estimate) = self.seen() {
            self.server.engine().lock().prompts.counted(estimate);
        }
    }

    fn seen(&mut self) -> Option<Estimate> {
        let estimate = self.estimate.take()?;
        if !self.is_streamed {
            let mut report = self.server.engine().lock();
            report.prompts.unseen_tokens = report.prompts.unseen_tokens.saturating_sub(estimate.tokens());
        }
        Some(estimate)
    }
}

impl Drop for Tallied {
    fn drop(&mut self) {
        if let Some(estimate) = self.seen() {
            self.server.engine().lock().prompts.unsure(estimate.tokens());
        }
    }
}

#[cfg(test)]
mod tests;
