//! What is known of one request while it is being handled.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::HeaderValue;
use tokio::time::Instant;

use super::reject::Reject;
use super::watch::Watch;
use crate::access::Admission;
use crate::balance::{Lease, Length, Policy, Tried};
use crate::config::Config;
use crate::drain::Running;
use crate::metrics::{AttemptResult, Outcome, RetryReason};
use crate::prompt::{Demand, Endpoint, Estimate, Work};
use crate::shadow::Followed;
use crate::traces::Trace;
use crate::upstream::{InForce, Server};

/// One request. Dropped when it is over, whatever ended it, and the lease with it.
pub(super) struct RequestContext {
    /// The configuration and the servers that this request sees, from its beginning to its end. Set once.
    pub(super) in_force: Arc<InForce>,
    /// When the request header was read. Set once.
    pub(super) started: Instant,
    /// The same by the wall clock, for people.
    pub(super) started_at: SystemTime,
    /// Counts this request while it runs, so that the process waits for it before it ends.
    #[expect(dead_code, reason = "it is held for its drop")]
    pub(super) running: Option<Running>,
    /// Set by `admit`; sent to the server and back to the client.
    pub(super) request_id: Option<HeaderValue>,
    /// What was let in, with its API key's name; holds the places of limits on concurrency. Set by `guard`.
    pub(super) admission: Option<Admission>,
    /// Set by `admit`.
    pub(super) endpoint: Endpoint,
    /// Length of the request body, in bytes. Set by `admit`.
    pub(super) request_bytes: u64,
    /// The request body, as long as it may be needed: until its answer begins. Set by `admit`.
    pub(super) body: Bytes,
    /// What the policy is asked with; `None` for requests that weigh nothing. Set by `admit`.
    pub(super) demand: Option<Demand>,
    /// How long the prompt is believed to be; `None` when nobody asks. Set by `weigh`.
    pub(super) estimate: Option<Estimate>,
    /// What is known of the prompt and the answer that it asks for, whether the policy wants to know it or not; `None` when
    /// nobody does. Set by `weigh`.
    pub(super) work: Option<Arc<Work>>,
    /// Its place in a trace, while spans are exported. Set by `admit`.
    pub(super) trace: Option<Box<Trace>>,
    /// The place on the present server. Set by `connect`, given back at the end of each attempt.
    pub(super) lease: Option<Lease>,
    /// The request in the eyes of the policy beside the one in force, if there is one. Set by `connect`.
    pub(super) shadow: Option<Arc<Followed>>,
    /// The present server. Set by `connect`.
    pub(super) server: Option<Arc<Server>>,
    /// The group of the last lease, for metrics. Set by `connect`.
    pub(super) group: Option<usize>,
    /// The group that the prompt's length is for. Set by `connect`.
    pub(super) standard_group: Option<usize>,
    /// How long the policy takes the prompt to be. Set by `connect`.
    pub(super) length: Option<Length>,
    /// Why the policy has chosen the last server. Set by `connect`.
    pub(super) reason: Option<&'static str>,
    /// For how long it has waited for a place, in all attempts. Counted by `connect`.
    pub(super) waited: Duration,
    /// Servers that this request has failed on. Kept by `retry`.
    pub(super) tried: Tried,
    /// A server has said that the request is longer than it takes. Set by `retry`.
    pub(super) was_too_long: bool,
    /// Attempts begun. Counted by `connect`.
    pub(super) attempts: usize,
    /// Why the next attempt is made. Set by `retry`, read by `connect`.
    pub(super) retry_reason: Option<RetryReason>,
    /// Why Tidegate answers by itself. Set where it is decided.
    pub(super) reject: Option<Reject>,
    /// The final response status. Set by `response` and `finish`.
    pub(super) status: Option<u16>,
    /// The status that sent the last attempt elsewhere. Set by `response`.
    pub(super) refused_status: Option<u16>,
    /// The group that serves in place of the own one. Set by `connect`.
    pub(super) failover: Option<HeaderValue>,
    /// The present attempt, for those who relay it. Told by `connect`.
    pub(super) watch: Watch,
    /// Bytes of the response body passed on. Counted by `response`.
    pub(super) response_bytes: u64,
}

impl std::fmt::Debug for RequestContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestContext")
            .field("request_id", &self.request_id)
            .field("key", &self.admission.as_ref().and_then(Admission::key_name))
            .field("endpoint", &self.endpoint)
            .field("lease", &self.lease)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}

impl RequestContext {
    pub(super) fn new(in_force: Arc<InForce>, running: Running) -> Self {
        Self {
            in_force,
            started: Instant::now(),
            started_at: SystemTime::now(),
            running: Some(running),
            request_id: None,
            admission: None,
            endpoint: Endpoint::Other,
            request_bytes: 0,
            body: Bytes::new(),
            demand: None,
            estimate: None,
            work: None,
            trace: None,
            lease: None,
            shadow: None,
            server: None,
            group: None,
            standard_group: None,
            length: None,
            reason: None,
            waited: Duration::ZERO,
            tried: Tried::default(),
            was_too_long: false,
            attempts: 0,
            retry_reason: None,
            reject: None,
            status: None,
            refused_status: None,
            failover: None,
            watch: Watch::default(),
            response_bytes: 0,
        }
    }

    /// The configuration that holds for this request.
    pub(super) fn config(&self) -> &Config {
        &self.in_force.config
    }

    /// When the request has to be over.
    pub(super) fn total_at(&self) -> Option<Instant> {
        self.config().timeouts.total.map(|total| self.started + total)
    }

    /// Whether a server may take longer requests than this one of a group: by what is known of both, or, with groups by
    /// length, by their order.
    fn may_take_more(&self, other: &Server, server: &Server, group: usize) -> bool {
        let limit = |server: &Server| self.in_force.traits_of(server).max_model_len;
        let is_larger = limit(other).is_none_or(|most| limit(server).is_none_or(|own| most > own));
        match &self.config().policy {
            Policy::ReferenceBucket(_) => {
                let mut longer = self.in_force.groups().skip(group + 1).flatten();
                is_larger && longer.any(|in_longer| in_longer.number() == other.number())
            }
            Policy::ReferencePlain | Policy::ByWork(_) => is_larger,
        }
    }

    /// Whether there is a server that may take longer requests than this one, and was not tried. It is tried once.
    pub(super) fn has_larger(&self, server: &Server, group: usize) -> bool {
        let is_candidate = |other: &Server| {
            other.number() != server.number()
                && self.may_take_more(other, server, group)
                && !self.tried.contains(other.number())
                && other.standing().is_live()
        };
        !self.was_too_long && self.in_force.servers().any(|other| is_candidate(other))
    }

    /// The request is longer than a server takes: neither it nor any that takes no more is to be tried again.
    pub(super) fn was_too_long_for(&mut self, server: usize, group: usize) {
        self.was_too_long = true;
        let in_force = Arc::clone(&self.in_force);
        let Some(small) = in_force.server(server) else { return };
        let no_larger = in_force.servers().filter(|other| !self.may_take_more(other, small, group));
        let no_larger: Vec<usize> = no_larger.map(|other| other.number()).collect();
        no_larger.into_iter().for_each(|number| self.tried.insert(number));
    }

    /// The request's id, for logs.
    pub(super) fn id(&self) -> &str {
        self.request_id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or("none")
    }

    /// How the request ended, given the error that Pingora ended it with.
    pub(super) fn outcome(&self, error: Option<&pingora::Error>) -> Outcome {
        match error {
            _ if self.reject.is_some() => Outcome::Rejected,
            None => Outcome::Complete,
            Some(error) if self.is_client_gone(error) => Outcome::ClientGone,
            Some(_) => Outcome::UpstreamBroken,
        }
    }

    /// Whether the client is to blame for the error that ended its request.
    pub(super) fn is_client_gone(&self, error: &pingora::Error) -> bool {
        *error.esource() == pingora::ErrorSource::Downstream
    }

    /// What an attempt came to that ended with this error.
    pub(super) fn attempt_result(error: Option<&pingora::Error>) -> AttemptResult {
        use pingora::ErrorType::{ConnectError, ConnectNoRoute, ConnectRefused, ConnectTimedout, SocketError};
        use pingora::ErrorType::{InvalidCert, TLSHandshakeFailure};
        match error {
            None => AttemptResult::Answered,
            Some(error) if *error.esource() == pingora::ErrorSource::Downstream => AttemptResult::ClientGone,
            Some(error) => match error.etype() {
                ConnectTimedout | ConnectRefused | ConnectNoRoute | ConnectError | SocketError => {
                    AttemptResult::ConnectFailed
                }
                TLSHandshakeFailure | InvalidCert => AttemptResult::ConnectFailed,
                etype if super::retry::is_timeout(etype) => AttemptResult::TimedOut,
                etype if *etype == super::answer::TOO_LONG => AttemptResult::TooLong,
                etype if super::retry::is_refusal(etype) => AttemptResult::Refused5xx,
                _ => AttemptResult::Broken,
            },
        }
    }
}
