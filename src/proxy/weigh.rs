//! From a body to what the policy is asked with: how long the prompt is, and what the answer may be.

use std::sync::Arc;

use bytes::Bytes;
use pingora::http::RequestHeader;
use pingora::{Error, ErrorType, Result};

use super::Proxy;
use super::context::RequestContext;
use crate::access::Admission;
use crate::balance::Policy;
use crate::prompt::{self, Content, Demand, Endpoint, Estimate, MAX_IN_PLACE_BYTES, Usage, Work};
use crate::work::BLOCK_TOKENS;

/// Bodies up to this length, in bytes, are measured where they are.
const MEASURED_IN_PLACE: usize = 512 << 10;

impl Proxy {
    /// Measures a body, for the policy that is in force.
    pub(super) async fn weigh(&self, header: &RequestHeader, body: &Bytes, ctx: &mut RequestContext) -> Result<Demand> {
        let endpoint = ctx.endpoint;
        let is_by_work = matches!(ctx.config().policy, Policy::ByWork(_));
        // By bytes the text is nobody's business, unless somebody has asked to see what is asked.
        let is_reported = self.live.journal().wants_prompts() || ctx.is_traced();
        let is_read = is_by_work || ctx.config().shadow.is_some() || is_reported;
        let (mut demand, content) = measure(body, endpoint, is_read).await?;
        if let Some(content) = content {
            let estimate = self.live.estimator().lock().estimate(endpoint, &content);
            let estimate = self.counted_exactly(estimate, endpoint, body, ctx);
            let session = session(header, ctx, &estimate);
            let work = Arc::new(Work { session, ..Work::new(content, &estimate) });
            demand.work = is_by_work.then(|| Arc::clone(&work));
            ctx.work = Some(work);
            ctx.estimate = Some(estimate);
        }
        Ok(demand)
    }

    /// Has the model's own tokenizer count a prompt, if there is one: a short one at once. A long one is not waited for,
    /// but the next ones of this model are estimated the better for it.
    fn counted_exactly(&self, estimate: Estimate, endpoint: Endpoint, body: &Bytes, ctx: &RequestContext) -> Estimate {
        let Some(counter) = ctx.config().counter(estimate.model()) else { return estimate };
        if body.len() <= MAX_IN_PLACE_BYTES {
            return match counter.prompt_tokens(endpoint, body) {
                Ok(tokens) => estimate.counted(tokens),
                Err(error) => {
                    log::debug!("request {}: {error}", ctx.id());
                    estimate
                }
            };
        }
        // One at a time: that is enough to learn from, and no other work is held up.
        if let Ok(turn) = Arc::clone(&self.counting).try_acquire_owned() {
            let (counter, live, body, guess) =
                (Arc::clone(counter), Arc::clone(&self.live), body.clone(), estimate.clone());
            tokio::task::spawn_blocking(move || {
                if let Ok(tokens) = counter.prompt_tokens(endpoint, &body) {
                    live.estimator().lock().learn(&guess, tokens);
                }
                drop(turn);
            });
        }
        estimate
    }

    /// An answer has come to its end: learns from what its server has counted.
    pub(super) fn learn(&self, ctx: &RequestContext, usage: Option<Usage>) {
        if let (Some(usage), Some(estimate)) = (usage, &ctx.estimate) {
            let error = self.live.estimator().lock().learn(estimate, usage.prompt_tokens);
            self.metrics.estimated(estimate.class().label(), error.relative());
            if let Some(server) = &ctx.server {
                server.engine().lock().prompts.told(estimate.tokens());
            }
        }
    }
}

/// Measures a body; a long one on another thread, so that reading it (10 ms for 8 MiB of escapes) does not hold up
/// the other requests of this one.
async fn measure(body: &Bytes, endpoint: Endpoint, is_read: bool) -> Result<(Demand, Option<Content>)> {
    let measure = move |body: &[u8]| {
        if is_read {
            let (demand, content) = prompt::measured_content(endpoint, body);
            (demand, Some(content))
        } else {
            (prompt::measure(body), None)
        }
    };
    if body.len() <= MEASURED_IN_PLACE {
        return Ok(measure(body));
    }
    let body = body.clone();
    tokio::task::spawn_blocking(move || measure(&body))
        .await
        .map_err(|error| Error::because(ErrorType::InternalError, "while measuring a body", error))
}

/// The blocks of the conversation that the client names, if it does.
fn session(header: &RequestHeader, ctx: &RequestContext, estimate: &Estimate) -> Vec<u64> {
    let name = ctx.config().session_header.as_ref().and_then(|name| header.headers.get(name));
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Vec::new() };
    // Others may use the same names.
    let key = ctx.admission.as_ref().and_then(Admission::key_name).map_or("", |key| &**key);
    let parts = [name.as_bytes(), key.as_bytes(), estimate.model().unwrap_or_default().as_bytes()];
    prompt::session_blocks(parts, estimate.tokens() / BLOCK_TOKENS)
}
