//! One attempt begins: backoff, a place on a server (waiting for one if need be), its address.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use pingora::proxy::Session;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};
use tokio::time::{Instant, sleep_until};

use super::Proxy;
use super::context::RequestContext;
use super::loan::Loan;
use super::reject::Reject;
use super::retry::{has_attempts_left, is_timeout};
use super::server_connections;
use super::watch::{MayTry, Told};
use crate::balance::{Lease, Placed, Placement, Unavailable};
use crate::config::Retry;
use crate::engines::Tallied;
use crate::prompt::Demand;
use crate::queue::{Full, Ticket};
use crate::upstream::Server;

impl Proxy {
    /// Chooses the server for this attempt and counts the request there.
    pub(super) async fn choose_server(&self, session: &mut Session, ctx: &mut RequestContext) -> Result<Box<HttpPeer>> {
        // Replace before you retry: an earlier attempt's load must not be counted beside this one's.
        ctx.lease = None;
        ctx.watch.left_server();
        ctx.at_work.end();
        if let Some(reason) = ctx.retry_reason.take() {
            self.metrics.retried(reason);
            back_off(session, &ctx.config().retry, ctx.attempts).await?;
        }
        ctx.attempts += 1;
        self.follow_in_shadow(ctx);
        let words = self.explained(ctx);
        let asked = Instant::now();
        let placed = self.place(session, ctx).await;
        let waited = asked.elapsed();
        ctx.waited += waited;
        let lease = placed?;
        // Not from this request's own picture: since that was taken the number may have become another server's. While
        // the lease lives it stays what it is now.
        let server = self.live.get().server(lease.server()).cloned();
        let server =
            server.ok_or_else(|| Error::explain(ErrorType::InternalError, "the chosen server is not known"))?;
        ctx.failover = self.failover(ctx, &lease);
        self.note_choice(ctx, &lease, &server);
        self.metrics.decided(lease.reason());
        (ctx.group, ctx.standard_group) = (Some(lease.group()), Some(lease.standard_group()));
        ctx.reason = Some(lease.reason());
        self.report_place(ctx, &lease, &server, words);
        let (policy, group, length) = (lease.progress(), lease.group(), lease.length());
        ctx.length = Some(length);
        ctx.lease = Some(lease);
        ctx.server = Some(Arc::clone(&server));
        ctx.attempt_begins(waited);
        let elsewhere = has_attempts_left(ctx);
        let larger = elsewhere && ctx.has_larger(&server, group);
        let tallied = tallied(ctx, &server);
        let may_try = MayTry { elsewhere, larger };
        let prefilling = ctx
            .demand
            .as_ref()
            .and_then(|demand| self.metrics.prefills(server.number(), length, demand.prompt_tokens()));
        let told = Told { policy, shadow: ctx.shadow.clone() };
        ctx.watch.attempt(Arc::clone(&server), may_try, told, tallied, prefilling);

        let timeouts = &ctx.in_force.clone().config.timeouts;
        let address = tokio::select! {
            biased;
            gone = session.downstream_session.read_body_or_idle(true) => {
                return Err(self.attempt_failed(session, ctx, left_or_late(gone)));
            }
            address = server.address(timeouts.connect) => address,
        };
        match address {
            Ok(address) => {
                let mut peer = Box::new(server.peer(address, timeouts));
                if self.follows_servers {
                    server_connections::follow(&mut peer);
                }
                ctx.loan = Some(Loan::begin(session, &mut peer, timeouts.connect));
                Ok(peer)
            }
            Err(error) => {
                self.judge_failure(session, ctx, &error, false);
                Err(self.attempt_failed(session, ctx, error))
            }
        }
    }

    /// A connection to the server is there.
    ///
    /// # Errors
    /// When the request has come to its end meanwhile.
    pub(super) fn connected(session: &mut Session, ctx: &mut RequestContext) -> Result<()> {
        ctx.loan.take().and_then(|loan| loan.end(session)).map_or(Ok(()), Err)
    }

    /// The name of the group that serves because no server of the own one can be tried.
    fn failover(&self, ctx: &RequestContext, lease: &Lease) -> Option<HeaderValue> {
        let name = |group: usize| ctx.config().groups.get(group).map(|group| group.name.as_str());
        let is_own_group_out = || {
            let mut groups = ctx.in_force.groups();
            let own = groups.nth(lease.standard_group());
            own.is_some_and(|mut servers| !servers.any(|server| server.standing().is_live()))
        };
        match lease.placement() {
            Placement::Standard => return None,
            // To the policy a group without a live server is one with endless load.
            Placement::Redirected if !is_own_group_out() => return None,
            Placement::Redirected | Placement::Failover => {}
        }
        let (from, to) = (name(lease.standard_group())?, name(lease.group())?);
        self.metrics.health().failed_over(from, to);
        HeaderValue::from_str(to).ok()
    }

    /// A place on a server: at once, or when it is this request's turn.
    async fn place(&self, session: &mut Session, ctx: &mut RequestContext) -> Result<Lease> {
        let limits = ctx.config().queue;
        let now = Instant::now();
        let total = ctx.config().timeouts.total.map(|total| ctx.started + total);
        let max_wait = limits.max_wait.map_or(now, |wait| now + wait);
        let mut deadline = total.map_or(max_wait, |total| total.min(max_wait));
        loop {
            let mut ticket = match self.place_or_wait(ctx) {
                Wanted::Lease(lease) => return Ok(lease),
                Wanted::Ticket(ticket) => ticket,
                Wanted::Nothing(reject) => return refuse(ctx, reject),
            };
            loop {
                tokio::select! {
                    biased;
                    answer = ticket.served() => match answer {
                        Ok(lease) => return Ok(lease),
                        // Another policy is in force now, and does not hold it.
                        Err(Unavailable::NoneFree) => break,
                        Err(why) => return refuse(ctx, Reject::Unavailable { why, retry_after_seconds: RETRY_AFTER_SECONDS }),
                    },
                    gone = session.downstream_session.read_body_or_idle(true) => {
                        let over = left_or_late(gone);
                        if is_timeout(over.etype()) {
                            // It goes by its time, not by its client.
                            let _worth_coming_back = ticket.give_up();
                        }
                        return Err(over);
                    }
                    () = sleep_until(deadline) => {
                        let has_time = total.is_none_or(|total| Instant::now() < total);
                        if has_time && ticket.has_its_turn() {
                            // Not for want of servers: the policy holds it, and bounds that by itself.
                            let later = Instant::now() + TURN_LOOKED_AT;
                            deadline = total.map_or(later, |total| total.min(later));
                            continue;
                        }
                        let retry_after_seconds = ticket.give_up();
                        // What is in the way now may be another thing than when it came.
                        let placed = self.place_now(ctx);
                        return placed.or_else(|why| refuse(ctx, Reject::Unavailable { why, retry_after_seconds }));
                    }
                }
            }
        }
    }

    /// A place now, or one in the queue.
    fn place_or_wait(&self, ctx: &RequestContext) -> Wanted {
        let queue = self.live.queue();
        let limits = ctx.config().queue;
        let bytes = usize::try_from(ctx.request_bytes).unwrap_or(usize::MAX);
        let class = ctx.demand.as_ref().map_or(0, |demand| self.live.balancer().standard_group(demand));
        if limits.max_wait.is_none() || !queue.is_waiting(class) || self.live.balancer().holds() {
            match (self.ask(ctx), &ctx.demand) {
                (Placed::Now(lease), _) => return Wanted::Lease(lease),
                (Placed::Held(request), Some(demand)) => {
                    return Wanted::Ticket(queue.keep(request, demand.clone(), &ctx.tried, bytes));
                }
                (Placed::Not(why @ (Unavailable::TooManyWait | Unavailable::TooLong { .. })), _) => {
                    return Wanted::Nothing(Reject::Unavailable { why, retry_after_seconds: RETRY_AFTER_SECONDS });
                }
                (Placed::Not(why), _) if limits.max_wait.is_none() => {
                    return Wanted::Nothing(Reject::Unavailable { why, retry_after_seconds: RETRY_AFTER_SECONDS });
                }
                (Placed::Not(_) | Placed::Held(_), _) => {}
            }
        }
        match queue.join(ctx.demand.clone(), &ctx.tried, bytes, &limits) {
            Ok(ticket) => Wanted::Ticket(ticket),
            Err(Full { retry_after_seconds }) => {
                Wanted::Nothing(Reject::Unavailable { why: Unavailable::TooManyWait, retry_after_seconds })
            }
        }
    }

    fn ask(&self, ctx: &RequestContext) -> Placed {
        let balancer = self.live.balancer();
        match &ctx.demand {
            Some(demand) => balancer.ask(demand, &ctx.tried),
            None => balancer.acquire_weightless(&ctx.tried).map_or_else(Placed::Not, Placed::Now),
        }
    }

    fn place_now(&self, ctx: &RequestContext) -> Result<Lease, Unavailable> {
        let balancer = self.live.balancer();
        match &ctx.demand {
            Some(demand) => balancer.acquire(demand, &ctx.tried),
            None => balancer.acquire_weightless(&ctx.tried),
        }
    }

    /// Lets the policy beside the one in force see a request that has come. Retries follow from where it went.
    fn follow_in_shadow(&self, ctx: &mut RequestContext) {
        if ctx.attempts > 1 {
            return;
        }
        if let (Some(shadow), Some(demand)) = (self.live.shadow(), &ctx.demand) {
            let demand = Demand { work: ctx.work.clone(), ..demand.clone() };
            ctx.shadow = Some(Arc::new(shadow.arrive(&demand)));
        }
    }

    fn note_choice(&self, ctx: &RequestContext, lease: &Lease, server: &Server) {
        if let Some(shadow) = ctx.shadow.as_ref().filter(|_| ctx.attempts == 1) {
            shadow.placed(lease.server(), lease.group());
        }
        // Where a retry ends up is no decision of the policy.
        if ctx.attempts == 1 && lease.placement() == Placement::Redirected && ctx.failover.is_none() {
            self.metrics.redirected(lease.standard_group(), lease.group());
        }
        log::debug!(
            "attempt {} of {} goes to {} ({}; group {}, standard group {}, load {} tokens)",
            ctx.attempts,
            ctx.endpoint.label(),
            server.name(),
            lease.reason(),
            lease.group(),
            lease.standard_group(),
            lease.load().tokens(),
        );
    }
}

/// Counts a prompt among those that the server's own count is compared with, while somebody compares.
fn tallied(ctx: &RequestContext, server: &Arc<Server>) -> Option<Tallied> {
    ctx.config().asks_engines()?;
    let is_streamed = ctx.demand.as_ref()?.work.as_ref()?.is_streamed;
    Some(Tallied::begin(Arc::clone(server), ctx.estimate.clone()?, is_streamed))
}

/// Without a queue there is nothing to compute it from.
const RETRY_AFTER_SECONDS: u64 = 5;

/// How often a request that the policy holds for longer than others may wait looks whether it still does.
const TURN_LOOKED_AT: Duration = Duration::from_secs(1);

/// What asking for a place has come to.
enum Wanted {
    Lease(Lease),
    Ticket(Ticket),
    Nothing(Reject),
}

fn refuse<T>(ctx: &mut RequestContext, reject: Reject) -> Result<T> {
    ctx.reject = Some(reject);
    Error::e_explain(ErrorType::InternalError, reject.reason())
}

/// Reading on after the body ends only when the client has gone, or when the request has taken too long.
pub(super) fn left_or_late(read: Result<Option<Bytes>>) -> Box<Error> {
    match read {
        Err(error) if is_timeout(error.etype()) => error.into_up(),
        Err(error) => error.into_down(),
        Ok(_) => Error::new_down(ErrorType::ConnectionClosed),
    }
}

/// Waits before another attempt, but not longer than the client does.
async fn back_off(session: &mut Session, retry: &Retry, attempts: usize) -> Result<()> {
    let pause = backoff(retry, attempts, rand::random());
    tokio::select! {
        biased;
        gone = session.downstream_session.read_body_or_idle(true) => Err(left_or_late(gone)),
        () = tokio::time::sleep(pause) => Ok(()),
    }
}

/// The pause before attempt `attempts + 1`: doubles each time up to a bound, and is then shortened by up to half
/// (`jitter`, 0 to 1), so that requests that failed together do not come back together.
fn backoff(retry: &Retry, attempts: usize, jitter: f64) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX).min(30);
    let pause = retry.base_delay.saturating_mul(1 << doublings).min(retry.max_delay);
    pause.mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Retry =
        Retry { max_attempts: 9, base_delay: Duration::from_millis(50), max_delay: Duration::from_secs(2) };

    #[test]
    fn pauses_double_up_to_the_bound() {
        let pauses: Vec<u128> = (1..=8).map(|attempts| backoff(&RETRY, attempts, 0.0).as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
    }

    #[test]
    fn jitter_shortens_by_at_most_half() {
        assert_eq!(backoff(&RETRY, 1, 1.0), Duration::from_millis(25));
        assert_eq!(backoff(&RETRY, 2, 0.5), Duration::from_millis(75));
    }

    #[test]
    fn any_number_of_attempts_has_a_pause() {
        assert_eq!(backoff(&RETRY, usize::MAX, 0.0), RETRY.max_delay);
    }
}
