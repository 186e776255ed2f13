//! The trace of one request while it runs, and what is left of it when the request is over.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, Version};

use crate::access_log::Record;

/// Names the trace that a request belongs to, and its caller's span (W3C Trace Context).
pub static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// What others have to say of that trace. Passed on as it is.
pub static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// A request's place in its trace, and the attempts that it has had. Times are since the request's header.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The trace: the client's, or one that begins here.
    pub trace_id: u128,
    /// The span of this request.
    pub span_id: u64,
    /// The client's span; `None`: the trace begins here.
    pub parent: Option<u64>,
    /// The client's `tracestate`; empty without one.
    pub state: String,
    /// Whether the spans are exported.
    pub is_sampled: bool,
    /// Where the request went, in order. Empty when it is not exported.
    pub attempts: Vec<Attempt>,
}

/// A request on one server.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// Its span: the parent of the server's own spans.
    pub span_id: u64,
    /// When the request was given its place on the server.
    pub begun: Duration,
    /// For how long it waited for that place.
    pub waited: Duration,
    /// When the attempt was over; `None`: not yet.
    pub ended: Option<Duration>,
    /// Name of the server.
    pub server: String,
    /// Host name or IP literal of the server.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Whether it is reached over TLS.
    pub has_tls: bool,
    /// Name of its group.
    pub group: String,
    /// Why that server, in the policy's words.
    pub reason: &'static str,
    /// The status that the server answered with.
    pub status: Option<u16>,
    /// What the attempt came to, as the metrics name it.
    pub result: &'static str,
}

/// A request that is over, with all that its spans are made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// Its place in the trace, its attempts.
    pub trace: Trace,
    /// Its line of the access log.
    pub record: Record,
    /// The request's method.
    pub method: Method,
    /// The version of HTTP that the client speaks.
    pub version: Version,
    /// Whether the client came over TLS.
    pub has_tls: bool,
    /// Whether the path is one of the endpoints that Tidegate knows.
    pub is_known_path: bool,
    /// How long the policy takes the prompt to be.
    pub length: Option<&'static str>,
    /// When the first token of the answer came, else the first byte of its body.
    pub first_token: Option<Duration>,
}

impl Trace {
    /// The `traceparent` for a server: the present attempt's span is the parent of what the server does. `None`: the
    /// client's goes on unchanged, because nothing is made of this request here.
    #[must_use]
    pub fn traceparent(&self) -> Option<HeaderValue> {
        let passes_on = self.parent.is_some() && !self.is_sampled;
        let parent = self.attempts.last().map_or(self.span_id, |attempt| attempt.span_id);
        let text = || format!("00-{:032x}-{parent:016x}-{:02x}", self.trace_id, u8::from(self.is_sampled));
        (!passes_on).then(|| HeaderValue::try_from(text()).expect("hexadecimal digits are legal in a header"))
    }

    /// Whether the trace begins here. Then what a client says of a trace is not about this one.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.parent.is_none()
    }

    /// The present attempt is over, if there is one.
    pub fn attempt_over(&mut self, at: Duration, status: Option<u16>, result: &'static str) {
        if let Some(attempt) = self.attempts.last_mut().filter(|attempt| attempt.ended.is_none()) {
            attempt.ended = Some(at);
            attempt.status = status;
            attempt.result = result;
        }
    }
}

impl Ended {
    /// How many spans are made of it: its own, and one for each attempt.
    #[must_use]
    pub fn spans(&self) -> usize {
        1 + self.trace.attempts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(parent: Option<u64>, is_sampled: bool) -> Trace {
        Trace { trace_id: 0xabc, span_id: 0x12, parent, state: String::new(), is_sampled, attempts: Vec::new() }
    }

    fn attempt(span_id: u64) -> Attempt {
        let (server, host, group) = ("gpu-1".to_owned(), "10.0.0.1".to_owned(), "short".to_owned());
        let (begun, waited) = (Duration::from_millis(1), Duration::ZERO);
        let (reason, result) = ("short", "answered");
        let (port, has_tls, status, ended) = (8000, false, None, None);
        Attempt { span_id, begun, waited, ended, server, host, port, has_tls, group, reason, status, result }
    }

    fn told(trace: &Trace) -> Option<String> {
        trace.traceparent().map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_server_is_told_the_span_of_its_attempt() {
        let mut trace = trace(Some(7), true);
        assert_eq!(told(&trace).as_deref(), Some("00-00000000000000000000000000000abc-0000000000000012-01"));
        trace.attempts = vec![attempt(0x13), attempt(0x14)];
        assert_eq!(told(&trace).as_deref(), Some("00-00000000000000000000000000000abc-0000000000000014-01"));
    }

    #[test]
    fn what_is_not_exported_is_passed_on_or_marked_so() {
        assert_eq!(told(&trace(Some(7), false)), None);
        let own = trace(None, false);
        assert_eq!(told(&own).as_deref(), Some("00-00000000000000000000000000000abc-0000000000000012-00"));
        assert!(own.is_own());
    }

    #[test]
    fn an_attempt_is_over_once() {
        let mut trace = trace(None, true);
        trace.attempt_over(Duration::from_secs(1), None, "broken");
        trace.attempts.push(attempt(1));
        trace.attempt_over(Duration::from_secs(2), Some(503), "refused_5xx");
        trace.attempt_over(Duration::from_secs(3), None, "broken");
        let [only] = &trace.attempts[..] else { panic!("{trace:?}") };
        assert_eq!((only.ended, only.status, only.result), (Some(Duration::from_secs(2)), Some(503), "refused_5xx"));
    }
}
