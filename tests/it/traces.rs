//! Spans of requests, at a collector that reads what is sent to it; what servers are told of a trace.

use std::collections::BTreeMap;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A collector of OpenTelemetry's.
async fn collector() -> Backend {
    Backend::start(reply("HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")).await
}

fn tracing(collector: impl std::fmt::Display, keys: &str) -> String {
    format!("{{ endpoint: \"http://{collector}\"{keys} }}")
}

/// A chat request with these header lines.
fn chat(fields: &str) -> Vec<u8> {
    let body = r#"{"model":"qwen","stream":true,"messages":[{"role":"user","content":"A secret tale of the sea"}]}"#;
    request("POST", CHAT, fields, body.as_bytes())
}

fn parent(flags: &str) -> String {
    format!("traceparent: 00-{TRACE}-{PARENT}-{flags}\r\ntracestate: vendor=1\r\n")
}

/// What has been exported so far.
fn exported(collector: &Backend) -> Vec<ExportTraceServiceRequest> {
    let whole = collector.received().into_iter().filter(|request| request.end == Some(End::Complete));
    whole.map(|request| ExportTraceServiceRequest::decode(&request.body[..]).unwrap()).collect()
}

/// All spans so far, by their beginnings.
fn spans(collector: &Backend) -> Vec<Span> {
    let resources = exported(collector).into_iter().flat_map(|request| request.resource_spans);
    let mut spans: Vec<Span> =
        resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect();
    spans.sort_by_key(|span| span.start_time_unix_nano);
    spans
}

/// The spans, once there are so many.
async fn spans_of(collector: &Backend, count: usize) -> Vec<Span> {
    until(&format!("{count} spans are exported"), async || spans(collector).len() >= count).await;
    let spans = spans(collector);
    assert_eq!(spans.len(), count, "{spans:?}");
    spans
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Names and values as text.
fn attributes(attributes: &[KeyValue]) -> BTreeMap<&str, String> {
    let text = |attribute: &KeyValue| match attribute.value.clone().and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        Some(Value::BoolValue(is_so)) => is_so.to_string(),
        other => panic!("no such attribute is made: {other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.as_str(), text(attribute))).collect()
}

fn assert_attributes(span: &Span, expected: &[(&str, &str)]) {
    let attributes = attributes(&span.attributes);
    for (name, value) in expected {
        assert_eq!(attributes.get(name).map(String::as_str), Some(*value), "{name} of {attributes:?}");
    }
}

/// What a server was told of the trace.
fn told(server: &Backend) -> Vec<(Vec<String>, Vec<String>)> {
    let texts = |values: Vec<&str>| values.into_iter().map(str::to_owned).collect();
    let of = |request: Received| (texts(request.head.all("traceparent")), texts(request.head.all("tracestate")));
    server.received().into_iter().map(of).collect()
}

#[tokio::test]
async fn a_retry_is_two_spans_below_the_requests_own_and_each_server_is_told_of_its_own() {
    let collector = collector().await;
    let [busy, good] = [Backend::start(reply(json_response(503, "{}"))).await, Backend::start(sse(3, &opened())).await];
    let keys = ", service_name: edge, sample: 0.0, headers: [\"x-key: collectors-secret\"]";
    let setup = Setup::one_group([&busy, &good])
        .without_health()
        .section("tracing", &tracing(collector.address(), keys))
        .section("access", "{ keys: [{ name: team-a, key: very-secret-key }] }");
    let tidegate = Tidegate::start(&setup).await;
    let fields = format!("{}authorization: Bearer very-secret-key\r\n", parent("01"));
    assert_eq!(tidegate.exchange(&chat(&fields)).await.status(), 200);

    let all = spans_of(&collector, 3).await;
    assert!(all.iter().all(|span| hex(&span.trace_id) == TRACE && span.trace_state == "vendor=1"), "{all:?}");
    let [server, first, second] = &all[..] else { panic!("{all:?}") };
    assert_eq!((server.kind(), hex(&server.parent_span_id).as_str()), (SpanKind::Server, PARENT));
    assert_eq!(server.name, format!("POST {CHAT}"));
    assert_attributes(
        server,
        &[
            ("http.request.method", "POST"),
            ("http.route", CHAT),
            ("url.path", CHAT),
            ("url.scheme", "http"),
            ("http.response.status_code", "200"),
            ("network.protocol.version", "1.1"),
            ("gen_ai.request.model", "qwen"),
            ("tidegate.group", "all"),
            ("tidegate.server", &good.name()),
            ("tidegate.attempts", "2"),
            ("tidegate.key", "team-a"),
            ("tidegate.stream", "true"),
            ("tidegate.length", "any"),
            ("tidegate.end", "complete"),
        ],
    );
    let names = attributes(&server.attributes);
    assert!(names.contains_key("tidegate.estimated_tokens") && names.contains_key("tidegate.reason"), "{names:?}");
    assert!(names.contains_key("tidegate.ttft_s") && !names.contains_key("error.type"), "{names:?}");
    let events: Vec<_> = server.events.iter().map(|event| event.name.as_str()).collect();
    let (asked, placed) = ("tidegate.asked_for_a_place", "tidegate.placed");
    assert_eq!(events, [asked, placed, asked, placed, "tidegate.first_token"]);
    let end = server.end_time_unix_nano;
    assert!(server.events.iter().all(|event| (server.start_time_unix_nano..=end).contains(&event.time_unix_nano)));

    for (span, backend) in [(first, &busy), (second, &good)] {
        assert_eq!((span.kind(), &span.parent_span_id), (SpanKind::Client, &server.span_id));
        let address = backend.address();
        assert_attributes(
            span,
            &[("server.address", &address.ip().to_string()), ("server.port", &address.port().to_string())],
        );
        // The server's own spans are to hang under that of its attempt.
        let traceparent = format!("00-{TRACE}-{}-01", hex(&span.span_id));
        assert_eq!(told(backend), [(vec![traceparent], vec!["vendor=1".to_owned()])]);
    }
    let refused = [("tidegate.result", "refused_5xx"), ("http.response.status_code", "503"), ("error.type", "503")];
    assert_attributes(first, &refused);
    let answered =
        [("tidegate.result", "answered"), ("http.response.status_code", "200"), ("http.request.resend_count", "1")];
    assert_attributes(second, &answered);
    assert!(first.end_time_unix_nano <= second.start_time_unix_nano && second.end_time_unix_nano <= end);

    let resource = exported(&collector)[0].resource_spans[0].resource.clone().unwrap();
    assert_eq!(attributes(&resource.attributes)["service.name"], "edge");
    let batch = &collector.received()[0];
    assert_eq!(batch.head.line, "POST /v1/traces HTTP/1.1");
    assert_eq!(batch.head.get("content-type"), Some("application/x-protobuf"));
    assert_eq!(batch.head.get("x-key"), Some("collectors-secret"));
    assert!(!String::from_utf8_lossy(&batch.body).contains("secret"), "{}", String::from_utf8_lossy(&batch.body));
    let status = tidegate.status().await["config"]["tracing"].to_string();
    assert!(status.contains("x-key") && !status.contains("secret"), "{status}");
    assert!(!tidegate.stderr().contains("collectors-secret"));
    until("the spans are counted", async || {
        tidegate.metric("tidegate_trace_spans_total", &["result=\"exported\""]).await == 3.0
    })
    .await;
}

#[tokio::test]
async fn what_is_not_sampled_is_passed_on_or_marked_so_and_a_reload_changes_that() {
    let collector = collector().await;
    let server = Backend::start(sse(1, &opened())).await;
    let setup = |keys: &str| {
        Setup::one_group([&server]).section("tracing", &tracing(collector.address(), keys)).section("headers", "{}")
    };
    let tidegate = Tidegate::start(&setup(", sample: 0.0")).await;
    let last = || told(&server).pop().unwrap();
    // The client's decision holds, and its header goes on to the byte.
    assert_eq!(tidegate.exchange(&chat(&parent("00"))).await.status(), 200);
    assert_eq!(last(), (vec![format!("00-{TRACE}-{PARENT}-00")], vec!["vendor=1".to_owned()]));
    // Without one, and with one that is none, a trace begins here. The server is told that it is not sampled.
    for fields in ["", "traceparent: 00-1\r\ntracestate: vendor=1\r\n"] {
        assert_eq!(tidegate.exchange(&chat(fields)).await.status(), 200);
        let (parents, states) = last();
        let [parent] = &parents[..] else { panic!("{parents:?}") };
        assert!(parent.starts_with("00-") && parent.ends_with("-00") && parent.len() == 55, "{parent}");
        assert_eq!(states, [""; 0], "the client's state is of no trace");
    }
    // Clients who are not trusted do not decide.
    let stripping = setup(", sample: 1.0").section("headers", "{ strip: [traceparent, tracestate] }");
    assert!(tidegate.reload(&stripping).await.to_string().contains("a share of 1"), "the change is named");
    assert_eq!(tidegate.exchange(&chat(&parent("00"))).await.status(), 200);
    let (parents, states) = last();
    assert!(parents[0].ends_with("-01") && !parents[0].contains(TRACE) && states.is_empty(), "{parents:?}");
    let [own, attempt] = &spans_of(&collector, 2).await[..] else { panic!("two spans") };
    assert!(own.parent_span_id.is_empty() && own.trace_state.is_empty(), "{own:?}");
    assert_eq!(parents[0], format!("00-{}-{}-01", hex(&own.trace_id), hex(&attempt.span_id)));
    // Off: everything as it came.
    tidegate.reload(&Setup::one_group([&server])).await;
    assert_eq!(tidegate.exchange(&chat("traceparent: 00-1\r\ntracestate: vendor=1\r\n")).await.status(), 200);
    assert_eq!(last(), (vec!["00-1".to_owned()], vec!["vendor=1".to_owned()]));
    assert_eq!(spans(&collector).len(), 2);
}

#[tokio::test]
async fn what_tidegate_answers_itself_and_who_leaves_have_spans() {
    let collector = collector().await;
    let gate = Gate::closed();
    let [held, first] = [Backend::start(sse_held(&gate)).await, Backend::start(echo()).await];
    let setup = Setup::two_groups([&held], [&first]).section("tracing", &tracing(collector.address(), ""));
    let mut tidegate = Tidegate::start(&setup).await;
    let client = tidegate.begin(&chat(&parent("01"))).await;
    held.requests(1).await;
    client.reset();
    let [server, attempt] = &spans_of(&collector, 2).await[..] else { panic!("two spans") };
    assert_attributes(server, &[("tidegate.end", "client_gone"), ("tidegate.length", "short")]);
    assert_attributes(attempt, &[("tidegate.result", "client_gone")]);

    let refused = request("POST", "/sleep", &parent("01"), b"");
    assert_refusal(&tidegate.exchange(&refused).await, 403);
    gate.open();
    // The list of models is asked of both servers; they are told the request's own span.
    let list = format!("GET /v1/models HTTP/1.1\r\nHost: a\r\n{}\r\n", parent("01"));
    assert_eq!(tidegate.exchange(list.as_bytes()).await.status(), 200);
    // What is over is with the collector when the process is gone.
    assert!(tidegate.terminate().await.success());
    let all = spans(&collector);
    let [_, _, refused, models] = &all[..] else { panic!("{all:?}") };
    assert_eq!((refused.name.as_str(), models.name.as_str()), ("POST", "GET /v1/models"));
    assert_attributes(refused, &[("tidegate.end", "rejected"), ("http.response.status_code", "403")]);
    let told = told(&first).pop().unwrap().0;
    assert_eq!(told, [format!("00-{TRACE}-{}-01", hex(&models.span_id))]);
}

#[tokio::test]
async fn a_collector_that_is_away_or_hangs_holds_up_nobody() {
    let server = Backend::start(sse(1, &opened())).await;
    let hanging = Backend::start(silent()).await;
    for (collector, timeout) in [(closed_address(), "50ms"), (hanging.address(), "7days")] {
        let keys = format!(", timeout: {timeout}");
        let setup = Setup::one_group([&server]).section("tracing", &tracing(collector, &keys));
        let mut tidegate = Tidegate::start(&setup).await;
        let mut client = tidegate.client().await;
        for _ in 0..100 {
            assert_eq!(client.exchange(&chat("")).await.status(), 200);
        }
        if collector == hanging.address() {
            hanging.requests(1).await;
        } else {
            until("the spans are lost", async || {
                tidegate.metric("tidegate_trace_spans_total", &["result=\"failed\""]).await == 200.0
            })
            .await;
            let lines = tidegate.stderr();
            assert_eq!(lines.matches("spans were not taken by the collector of traces").count(), 1, "{lines}");
            assert!(lines.contains("Connection refused"), "{lines}");
        }
        let begun = std::time::Instant::now();
        assert!(tidegate.terminate().await.success());
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_collector_may_be_reached_over_tls() {
    let (server, collector) = (Backend::start(echo()).await, collector().await);
    let (authority, at) = (Authority::new(), Loopback::new());
    let shown = tls_server(&authority.issue("collector", &[&at.ip().to_string()]), None);
    let good = Relay::from_tls_at(at, shown.clone(), collector.address()).await;
    let other = Relay::from_tls(shown, collector.address()).await;
    let setup = |relay: &Relay| {
        let section = tracing(relay.address, ", timeout: 2s").replace("http:", "https:");
        Setup::one_group([&server]).section("tracing", &section)
    };
    // The system's authorities, of which there is one.
    let store = authority.file().display().to_string();
    let tidegate = Tidegate::start_with_environment(&setup(&other), "SSL_CERT_FILE", &store).await;
    // Whoever has not the name of the collector gets no spans.
    assert_eq!(tidegate.exchange(&chat("")).await.status(), 200);
    tidegate.logs("2 spans were not taken by the collector of traces").await;
    assert_eq!(collector.connections(), 0);
    tidegate.reload(&setup(&good)).await;
    assert_eq!(tidegate.exchange(&chat("")).await.status(), 200);
    spans_of(&collector, 2).await;
}
