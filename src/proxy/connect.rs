//! One attempt begins: backoff, a place on a server, its address.

use std::sync::Arc;
use std::time::Duration;

use pingora::proxy::Session;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};

use super::Proxy;
use super::context::RequestContext;
use super::reject::Reject;
use crate::balance::{Lease, Placement};
use crate::config::Retry;
use crate::upstream::Server;

impl Proxy {
    /// Chooses the server for this attempt and counts the request there.
    pub(super) async fn choose_server(&self, session: &mut Session, ctx: &mut RequestContext) -> Result<Box<HttpPeer>> {
        // Replace before you retry: an earlier attempt's load must not be counted beside this one's.
        ctx.lease = None;
        if let Some(reason) = ctx.retry_reason.take() {
            self.metrics.retried(reason);
            back_off(session, &ctx.config().retry, ctx.attempts).await?;
        }
        ctx.attempts += 1;
        let lease = match &ctx.demand {
            Some(demand) => self.live.balancer().acquire(demand, &ctx.tried),
            None => self.live.balancer().acquire_weightless(&ctx.tried),
        };
        let lease = match lease {
            Ok(lease) => lease,
            Err(unavailable) => {
                ctx.reject = Some(Reject::Unavailable(unavailable));
                return Err(Error::explain(ErrorType::InternalError, unavailable.to_string()));
            }
        };
        // Not from this request's own picture: since that was taken the number may have become another server's. While
        // the lease lives it stays what it is now.
        let server = self.live.get().server(lease.server()).cloned();
        let server =
            server.ok_or_else(|| Error::explain(ErrorType::InternalError, "the chosen server is not known"))?;
        self.note_choice(ctx, &lease, &server);
        ctx.group = Some(lease.group());
        ctx.lease = Some(lease);
        ctx.server = Some(Arc::clone(&server));

        let timeouts = &ctx.in_force.clone().config.timeouts;
        match server.address(timeouts.connect).await {
            Ok(address) => Ok(Box::new(server.peer(address, timeouts))),
            Err(error) => Err(self.attempt_failed(session, ctx, error)),
        }
    }

    fn note_choice(&self, ctx: &RequestContext, lease: &Lease, server: &Server) {
        // Where a retry ends up is no decision of the policy.
        if ctx.attempts == 1 && lease.placement() == Placement::Redirected {
            self.metrics.redirected(lease.standard_group(), lease.group());
        }
        log::debug!(
            "attempt {} of {} goes to {} (group {}, standard group {}, load {} tokens)",
            ctx.attempts,
            ctx.endpoint.label(),
            server.name(),
            lease.group(),
            lease.standard_group(),
            lease.load().tokens(),
        );
    }
}

/// Waits before another attempt, but not longer than the client does.
async fn back_off(session: &mut Session, retry: &Retry, attempts: usize) -> Result<()> {
    let pause = backoff(retry, attempts, rand::random());
    tokio::select! {
        biased;
        gone = session.downstream_session.read_body_or_idle(true) => match gone {
            Err(error) => Err(error.into_down()),
            Ok(_) => Err(Error::new_down(ErrorType::ConnectionClosed)),
        },
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
