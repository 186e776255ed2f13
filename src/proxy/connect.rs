//! One attempt: backoff, a place on a server (waiting for one if need be), a connection, and what comes of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use pingora::protocols::Stream;
use pingora::{Error, ErrorType, Result};
use tokio::time::{Instant, sleep_until};

use super::Proxy;
use super::client::Client;
use super::context::RequestContext;
use super::reject::Reject;
use super::relay::{Relay, has_left};
use super::request;
use super::retry::{has_attempts_left, is_timeout};
use super::silence::{Silence, TOTAL_TIMEOUT};
use super::watch::{MayTry, Told};
use crate::balance::{Lease, Placed, Placement, Unavailable};
use crate::config::Retry;
use crate::engines::Tallied;
use crate::http1::Outbound;
use crate::prompt::Demand;
use crate::queue::{Full, Ticket};
use crate::upstream::Server;

impl Proxy {
    /// One attempt on one server.
    ///
    /// # Errors
    /// When it fails; whether it is worth another one stands in the error.
    pub(super) async fn attempt(&self, client: &mut Client<'_>, ctx: &mut RequestContext) -> Result<()> {
        let server = self.choose_server(client, ctx).await?;
        let (address, stream, is_reused) = self.connect(client, ctx, &server).await?;
        self.metrics.latency().connected(is_reused);
        let exchange = async {
            let asked = request::prepare(client, ctx, &server, ctx.body.clone())?;
            let mut connection = Outbound::new(stream, asked);
            let mut relay = Relay::new(silence(ctx), &self.health, &self.drain);
            let ran = relay.run(client, &mut connection, ctx).await;
            if let Some(written) = relay.written() {
                ctx.watch.wrote(written);
            }
            ran.map(|()| connection)
        };
        let exchanged: Result<Outbound> = exchange.await;
        match exchanged {
            Ok(connection) => {
                #[cfg(test)]
                assert!(!self.panics_at_answers, "a fault");
                if let Some(stream) = connection.into_kept() {
                    self.servers.keep(&server, address, stream);
                }
                Ok(())
            }
            Err(error) => {
                let error = error.more_context(format!("server {}", server.name()));
                Err(self.exchange_failed(client, ctx, error, is_reused))
            }
        }
    }

    /// A connection to the server, and whether it has served requests before.
    async fn connect(
        &self,
        client: &mut Client<'_>,
        ctx: &mut RequestContext,
        server: &Server,
    ) -> Result<(SocketAddr, Stream, bool)> {
        let in_force = Arc::clone(&ctx.in_force);
        let timeouts = &in_force.config.timeouts;
        let address = tokio::select! {
            biased;
            address = server.address(timeouts.connect) => address,
            over = left_or_late(client, ctx.total_at()) => return Err(self.attempt_failed(client, ctx, over)),
        };
        let address = match address {
            Ok(address) => address,
            Err(error) => {
                self.judge_failure(client, ctx, &error, false);
                return Err(self.attempt_failed(client, ctx, error));
            }
        };
        if let Some(stream) = self.servers.kept(server, address, timeouts) {
            return Ok((address, stream, true));
        }
        let connected = tokio::select! {
            biased;
            over = left_or_late(client, ctx.total_at()) => return Err(self.attempt_failed(client, ctx, over)),
            // Apart: it takes kilobytes, and is soon over.
            connected = Box::pin(self.servers.connect(server, address, timeouts)) => connected,
        };
        match connected {
            Ok(stream) => Ok((address, stream, false)),
            Err(error) => Err(self.connect_failed(client, address, ctx, error)),
        }
    }

    /// Chooses the server for this attempt and counts the request there.
    async fn choose_server(&self, client: &mut Client<'_>, ctx: &mut RequestContext) -> Result<Arc<Server>> {
        // Replace before you retry: an earlier attempt's load must not be counted beside this one's.
        ctx.lease = None;
        ctx.watch.left_server();
        if let Some(reason) = ctx.retry_reason.take() {
            self.metrics.retried(reason);
            back_off(client, ctx).await?;
        }
        ctx.attempts += 1;
        self.follow_in_shadow(ctx);
        let words = self.explained(ctx);
        let waited_before = ctx.waited;
        let lease = match self.place_or_wait(ctx) {
            Wanted::Lease(lease) => lease,
            Wanted::Nothing(reject) => return refuse(ctx, reject),
            Wanted::Ticket(ticket) => {
                let asked = Instant::now();
                let placed = self.place(client, ctx, ticket).await;
                ctx.waited += asked.elapsed();
                placed?
            }
        };
        let waited = ctx.waited - waited_before;
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
        Ok(server)
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

    /// A place on a server, when it is this request's turn.
    async fn place(&self, client: &mut Client<'_>, ctx: &mut RequestContext, mut ticket: Ticket) -> Result<Lease> {
        let limits = ctx.config().queue;
        let now = Instant::now();
        let total = ctx.total_at();
        let max_wait = limits.max_wait.map_or(now, |wait| now + wait);
        let mut deadline = total.map_or(max_wait, |total| total.min(max_wait));
        loop {
            loop {
                tokio::select! {
                    biased;
                    answer = ticket.served() => match answer {
                        Ok(lease) => return Ok(lease),
                        // Another policy is in force now, and does not hold it.
                        Err(Unavailable::NoneFree) => break,
                        Err(why) => return refuse(ctx, Reject::Unavailable { why, retry_after_seconds: RETRY_AFTER_SECONDS }),
                    },
                    over = left_or_late(client, total) => {
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
            ticket = match self.place_or_wait(ctx) {
                Wanted::Lease(lease) => return Ok(lease),
                Wanted::Ticket(ticket) => ticket,
                Wanted::Nothing(reject) => return refuse(ctx, reject),
            };
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

/// Resolves when the client has left, or its request has taken too long. Cancel safe.
async fn left_or_late(client: &mut Client<'_>, total_at: Option<Instant>) -> Box<Error> {
    let late = async {
        match total_at {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = client.gone() => has_left(),
        () = late => Error::new_up(TOTAL_TIMEOUT),
    }
}

/// What bounds the silence of a server that is given the request now.
fn silence(ctx: &RequestContext) -> Silence {
    let limits = &ctx.config().timeouts;
    let silence = Silence::new(limits.first_byte, limits.response_idle, ctx.total_at());
    match &ctx.config().health.passive {
        Some(checks) => silence.suspecting(checks),
        None => silence,
    }
}

/// Waits before another attempt, but not longer than the client does.
async fn back_off(client: &mut Client<'_>, ctx: &RequestContext) -> Result<()> {
    let pause = backoff(&ctx.config().retry, ctx.attempts, rand::random());
    tokio::select! {
        biased;
        over = left_or_late(client, ctx.total_at()) => Err(over),
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
