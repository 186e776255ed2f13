//! Where a request stands among the spans of others: W3C Trace Context.

use http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanContext, SpanKind, TraceContextExt, TraceState};
use opentelemetry::{Context, SpanId, TraceFlags, TraceId};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, ShouldSample};

use super::super::trace::{TRACEPARENT, TRACESTATE, Trace};

/// A `traceparent` of version 00: `00-`, 32 digits, `-`, 16 digits, `-`, 2 digits.
const LENGTH: usize = 55;

/// The place of a request with these header fields. A trace that begins here is exported with this probability; whether
/// another one is, was decided where it began.
pub(super) fn begin(headers: &HeaderMap, sample: f64) -> Trace {
    let span_id = rand::random::<u64>();
    let Some(parent) = parent(headers) else {
        let trace_id = rand::random::<u128>();
        let is_sampled = is_sampled(trace_id, sample);
        return Trace { trace_id, span_id, parent: None, state: String::new(), is_sampled, attempts: Vec::new() };
    };
    let is_sampled = parent.trace_flags().is_sampled();
    let states = headers.get_all(&TRACESTATE).iter().filter_map(|value| value.to_str().ok());
    let state = if is_sampled { states.collect::<Vec<_>>().join(",") } else { String::new() };
    let trace_id = u128::from_be_bytes(parent.trace_id().to_bytes());
    let parent = Some(u64::from_be_bytes(parent.span_id().to_bytes()));
    Trace { trace_id, span_id, parent, state, is_sampled, attempts: Vec::new() }
}

/// The span of a trace with this id, as others are to see it.
pub(super) fn span_context(trace: &Trace, span_id: u64, is_remote: bool) -> SpanContext {
    let (trace_id, span_id) =
        (TraceId::from_bytes(trace.trace_id.to_be_bytes()), SpanId::from_bytes(span_id.to_be_bytes()));
    let state: TraceState = trace.state.parse().unwrap_or_default();
    SpanContext::new(trace_id, span_id, TraceFlags::SAMPLED, is_remote, state)
}

/// The client's span. One that is not written as it must be is none, and neither are two.
fn parent(headers: &HeaderMap) -> Option<SpanContext> {
    let mut values = headers.get_all(&TRACEPARENT).iter();
    let value = values.next()?;
    if values.next().is_some() || !is_well_formed(value.as_bytes().trim_ascii()) {
        return None;
    }
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers));
    Some(context.span().span_context().clone()).filter(SpanContext::is_valid)
}

/// Whether each digit is in its place; the library takes fewer digits, too. Later versions may have more behind it.
fn is_well_formed(value: &[u8]) -> bool {
    let is_good = |(place, byte): (usize, &u8)| match place {
        2 | 35 | 52 | LENGTH => *byte == b'-',
        LENGTH.. => true,
        _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(byte),
    };
    let is_long_enough = value.len() == LENGTH || (value.len() > LENGTH && !value.starts_with(b"00"));
    is_long_enough && value.iter().enumerate().all(is_good)
}

/// Decided by the trace's id, so that all who ask for the same share or more choose the same traces.
fn is_sampled(trace_id: u128, sample: f64) -> bool {
    let trace_id = TraceId::from_bytes(trace_id.to_be_bytes());
    let sampler = Sampler::TraceIdRatioBased(sample);
    let result = sampler.should_sample(None, trace_id, "", &SpanKind::Server, &[], &[]);
    result.decision == SamplingDecision::RecordAndSample
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn begun(traceparent: &[&str], state: &[&str]) -> Trace {
        let mut headers = HeaderMap::new();
        for value in traceparent {
            headers.append(&TRACEPARENT, HeaderValue::from_str(value).unwrap());
        }
        for value in state {
            headers.append(&TRACESTATE, HeaderValue::from_str(value).unwrap());
        }
        begin(&headers, 0.0)
    }

    #[test]
    fn a_trace_goes_on_as_its_beginning_has_decided() {
        let trace = begun(&[PARENT], &["a=1", "b=2"]);
        assert_eq!(trace.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!((trace.parent, trace.is_sampled), (Some(0xb7ad_6b71_6920_3331), true));
        assert_eq!(trace.state, "a=1,b=2");
        assert_eq!(span_context(&trace, 1, false).trace_state().header(), "a=1,b=2");
        let unsampled = begun(&[&PARENT.replace("-01", "-00")], &[]);
        assert_eq!((unsampled.parent, unsampled.is_sampled), (trace.parent, false));
        // Later versions may say more.
        assert!(begun(&[&format!("cc{}-what-comes", &PARENT[2..])], &[]).is_sampled);
    }

    #[test]
    fn what_is_no_traceparent_begins_a_trace() {
        let zeros = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        let upper = PARENT.to_uppercase();
        let longer = format!("{PARENT}-00");
        let version = format!("ff{}", &PARENT[2..]);
        for traceparent in
            [&[][..], &["00-1-2-01"], &["00-1"], &[zeros], &[&upper], &[&longer], &[&version], &[PARENT, PARENT], &[""]]
        {
            let trace = begun(traceparent, &["a=1"]);
            assert!(trace.is_own() && !trace.is_sampled && trace.state.is_empty(), "{traceparent:?} {trace:?}");
        }
    }

    #[test]
    fn of_traces_that_begin_here_a_share_is_exported() {
        let exported = |sample: f64| (0..2_000).filter(|_| begin(&HeaderMap::new(), sample).is_sampled).count();
        assert_eq!((exported(0.0), exported(1.0)), (0, 2_000));
        // 19 is one standard deviation.
        assert!((400..=600).contains(&exported(0.25)));
    }
}
