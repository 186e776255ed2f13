//! The spans of a request that is over: one of its own, and one for each attempt on a server.
//!
//! Attributes are named as OpenTelemetry's semantic conventions have it, and `tidegate.*` what those do not know. Nothing
//! that a client has written is in them, apart from the path, the model's name and the request's id.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use http::{Method, Version};
use opentelemetry::trace::{Event, SpanKind, Status};
use opentelemetry::{InstrumentationScope, KeyValue, SpanId, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::super::trace::{Attempt, Ended};
use super::context::span_context;
use crate::access_log::{End, Record};

/// All spans of a request, its own first.
pub(super) fn of(ended: &Ended) -> Vec<SpanData> {
    let attempts = ended.trace.attempts.iter().enumerate().map(|(number, attempt)| client_span(ended, attempt, number));
    std::iter::once(server_span(ended)).chain(attempts).collect()
}

fn server_span(ended: &Ended) -> SpanData {
    let parent = ended.trace.parent;
    let seconds = ended.record.duration_s;
    let end = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    SpanData {
        parent_span_is_remote: parent.is_some(),
        events: events(ended),
        status: status_of_request(&ended.record),
        ..span(ended, ended.trace.span_id, parent, SpanKind::Server, (Duration::ZERO, end), attributes(ended))
    }
}

fn client_span(ended: &Ended, attempt: &Attempt, number: usize) -> SpanData {
    // One that is still there was broken off by what ended the request.
    let end = attempt.ended.unwrap_or_else(|| Duration::try_from_secs_f64(ended.record.duration_s).unwrap_or_default());
    let (times, parent) = ((attempt.begun, end.max(attempt.begun)), Some(ended.trace.span_id));
    let error = error_of_attempt(attempt);
    let mut attributes = Attributes::default();
    attributes.set("http.request.method", method(&ended.method));
    attributes.set("server.address", attempt.host.clone());
    attributes.set("server.port", i64::from(attempt.port));
    let scheme = if attempt.has_tls { "https" } else { "http" };
    let host = if attempt.host.contains(':') { format!("[{}]", attempt.host) } else { attempt.host.clone() };
    attributes.set("url.full", format!("{scheme}://{host}:{}{}", attempt.port, ended.record.endpoint));
    attributes.set_if("http.response.status_code", attempt.status.map(i64::from));
    attributes.set_if("http.request.resend_count", i64::try_from(number).ok().filter(|number| *number > 0));
    attributes.set_if("error.type", error.clone());
    attributes.set("tidegate.server", attempt.server.clone());
    attributes.set("tidegate.group", attempt.group.clone());
    attributes.set("tidegate.reason", attempt.reason);
    attributes.set("tidegate.result", attempt.result);
    attributes.set("tidegate.waited_s", attempt.waited.as_secs_f64());
    SpanData {
        status: error.map_or(Status::Unset, Status::error),
        ..span(ended, attempt.span_id, parent, SpanKind::Client, times, attributes)
    }
}

fn span(
    ended: &Ended,
    span_id: u64,
    parent: Option<u64>,
    span_kind: SpanKind,
    (start, end): (Duration, Duration),
    attributes: Attributes,
) -> SpanData {
    SpanData {
        span_context: span_context(&ended.trace, span_id, false),
        parent_span_id: parent.map_or(SpanId::INVALID, |parent| SpanId::from_bytes(parent.to_be_bytes())),
        parent_span_is_remote: false,
        span_kind,
        name: name(ended),
        start_time: at(&ended.record, start),
        end_time: at(&ended.record, end),
        attributes: attributes.0,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("tidegate")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}

fn attributes(ended: &Ended) -> Attributes {
    let Ended { trace: _, record, method, version, has_tls, is_known_path: _, length, first_token: _ } = ended;
    let mut attributes = Attributes::default();
    attributes.set("http.request.method", self::method(method));
    attributes.set("url.scheme", if *has_tls { "https" } else { "http" });
    attributes.set("url.path", record.endpoint.clone());
    attributes.set_if("http.route", route(ended).map(str::to_owned));
    attributes.set_if("network.protocol.version", protocol_version(*version));
    attributes.set_if("http.response.status_code", record.status.map(i64::from));
    attributes.set_if("error.type", error_of_request(record));
    attributes.set_if("gen_ai.request.model", record.model.clone());
    attributes.set_if("gen_ai.request.max_tokens", whole(record.max_tokens));
    attributes.set_if("gen_ai.usage.input_tokens", whole(record.prompt_tokens));
    attributes.set_if("gen_ai.usage.output_tokens", whole(record.output_tokens));
    attributes.set("http.request.body.size", whole(Some(record.body_bytes)).unwrap_or(i64::MAX));
    attributes.set("http.response.body.size", whole(Some(record.sent_bytes)).unwrap_or(i64::MAX));
    attributes.set("tidegate.request_id", record.request_id.clone());
    attributes.set_if("tidegate.key", record.key.clone());
    attributes.set("tidegate.stream", record.stream);
    attributes.set_if("tidegate.length", *length);
    attributes.set_if("tidegate.estimated_tokens", whole(record.estimated_tokens));
    attributes.set_if("tidegate.group", record.group.clone());
    attributes.set_if("tidegate.redirected_from", record.redirected_from.clone());
    attributes.set_if("tidegate.server", record.server.clone());
    attributes.set_if("tidegate.reason", record.reason.clone());
    attributes.set("tidegate.attempts", i64::from(record.attempts));
    attributes.set("tidegate.waited_s", record.waited_s);
    attributes.set_if("tidegate.ttft_s", record.ttft_s);
    attributes.set("tidegate.end", end(record.end));
    attributes.set_if("tidegate.rejected", record.rejected.clone());
    attributes
}

/// When the request asked for a place, when it had one, and when its first token came.
fn events(ended: &Ended) -> SpanEvents {
    let event = |name: &'static str, after: Duration, attributes: Vec<KeyValue>| {
        Event::new(name, at(&ended.record, after), attributes, 0)
    };
    let mut events = SpanEvents::default();
    for attempt in &ended.trace.attempts {
        let server = || vec![KeyValue::new("tidegate.server", attempt.server.clone())];
        events.events.push(event(
            "tidegate.asked_for_a_place",
            attempt.begun.saturating_sub(attempt.waited),
            Vec::new(),
        ));
        events.events.push(event("tidegate.placed", attempt.begun, server()));
    }
    events.events.extend(ended.first_token.map(|after| event("tidegate.first_token", after, Vec::new())));
    events
}

/// Few names, whatever clients ask for: the paths that are known, of all others only the method.
fn name(ended: &Ended) -> Cow<'static, str> {
    let method = match method(&ended.method) {
        Cow::Borrowed("_OTHER") => Cow::Borrowed("HTTP"),
        method => method,
    };
    match route(ended) {
        Some(route) => format!("{method} {route}").into(),
        None => method,
    }
}

fn route(ended: &Ended) -> Option<&str> {
    // The same endpoint has many spellings with percent signs.
    Some(ended.record.endpoint.as_str()).filter(|path| ended.is_known_path && !path.contains('%'))
}

fn method(method: &Method) -> Cow<'static, str> {
    let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    Cow::Borrowed(known.into_iter().find(|known| *known == method.as_str()).unwrap_or("_OTHER"))
}

fn protocol_version(version: Version) -> Option<&'static str> {
    match version {
        Version::HTTP_10 => Some("1.0"),
        Version::HTTP_11 => Some("1.1"),
        Version::HTTP_2 => Some("2"),
        _ => None,
    }
}

fn end(end: End) -> &'static str {
    match end {
        End::Complete => "complete",
        End::ClientGone => "client_gone",
        End::UpstreamBroken => "upstream_broken",
        End::Rejected => "rejected",
    }
}

/// What went wrong on this side of the client; what the client did wrong is no error of a server's span.
fn error_of_request(record: &Record) -> Option<String> {
    let is_fault = record.status.is_some_and(|status| status >= 500);
    match (&record.rejected, record.end) {
        (Some(rejected), _) if is_fault => Some(rejected.clone()),
        (_, End::UpstreamBroken) => Some(end(record.end).to_owned()),
        _ => record.status.filter(|_| is_fault).map(|status| status.to_string()),
    }
}

fn status_of_request(record: &Record) -> Status {
    error_of_request(record).map_or(Status::Unset, Status::error)
}

/// A client's span is in error also when it was the client's own fault.
fn error_of_attempt(attempt: &Attempt) -> Option<String> {
    match attempt.status {
        Some(status) if status >= 400 => Some(status.to_string()),
        _ => (attempt.result != "answered").then(|| attempt.result.to_owned()),
    }
}

/// A moment of the request by the wall clock: that is looked at once, so that no span begins before its parent.
fn at(record: &Record, after: Duration) -> SystemTime {
    record.time + after
}

fn whole(number: Option<u64>) -> Option<i64> {
    number.and_then(|number| i64::try_from(number).ok())
}

#[derive(Default)]
struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        self.0.push(KeyValue::new(key, value));
    }

    fn set_if(&mut self, key: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }
}
