//! What spans say, and that a collector that is away holds up nobody.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use http::{Method, Version};
use opentelemetry::trace::{SpanKind, Status};

use super::*;
use crate::access_log::Record;
use crate::traces::Attempt;

const PATIENCE: Duration = Duration::from_secs(20);

fn record(rest: &str) -> Record {
    let json = format!(
        r#"{{"version":1,"time":"2026-01-31T12:00:00Z","request_id":"r","endpoint":"/v1/completions","model":"llama",
            "duration_s":2.5,"waited_s":0.5,"group":"long","server":"gpu-2","attempts":2,"estimated_tokens":9{rest}}}"#
    );
    Record::parse(json.as_bytes()).unwrap()
}

fn attempt(span_id: u64, begun_ms: u64, status: Option<u16>, result: &'static str) -> Attempt {
    Attempt {
        span_id,
        begun: Duration::from_millis(begun_ms),
        waited: Duration::from_millis(100),
        ended: None,
        server: format!("gpu-{span_id}"),
        host: "fd00::1".to_owned(),
        port: 8000,
        has_tls: false,
        group: "long".to_owned(),
        reason: "lane",
        status,
        result,
    }
}

fn ended(record: Record) -> Ended {
    let trace =
        Trace { trace_id: 1, span_id: 2, parent: Some(3), state: "a=b".to_owned(), is_sampled: true, attempts: vec![] };
    let (method, version, length) = (Method::POST, Version::HTTP_11, Some("long"));
    let first_token = Some(Duration::from_millis(1_500));
    Ended { trace, record, method, version, has_tls: false, is_known_path: true, length, first_token }
}

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    let of_key = |attribute: &&opentelemetry::KeyValue| attribute.key.as_str() == key;
    span.attributes.iter().find(of_key).map(|attribute| attribute.value.to_string())
}

fn attributes<const N: usize>(span: &SpanData, keys: [&str; N]) -> [String; N] {
    keys.map(|key| attribute(span, key).unwrap_or_else(|| "none".to_owned()))
}

/// When something of a span was, in milliseconds since the request's header.
fn after(ended: &Ended, at: std::time::SystemTime) -> u128 {
    at.duration_since(ended.record.time).unwrap().as_millis()
}

#[test]
fn a_request_has_a_span_and_so_has_each_attempt() {
    let mut request = ended(record(r#","end":"complete","status":200,"prompt_tokens":11,"ttft_s":1.5"#));
    let refused = Attempt { ended: Some(Duration::from_millis(900)), ..attempt(4, 400, Some(503), "refused_5xx") };
    request.trace.attempts = vec![refused, attempt(5, 1_000, Some(200), "answered")];
    let spans = spans::of(&request);
    assert_eq!(spans.len(), request.spans());
    let [server, first, second] = &spans[..] else { panic!("{spans:?}") };
    assert!(spans.iter().all(|span| span.name == "POST /v1/completions"), "{spans:?}");
    assert!(spans.iter().all(|span| span.span_context.trace_id().to_string() == format!("{:032x}", 1)), "{spans:?}");
    assert_eq!((server.span_kind.clone(), first.span_kind.clone()), (SpanKind::Server, SpanKind::Client));
    let ids = [server, first, second].map(|span| span.span_context.span_id().to_string());
    assert_eq!(ids, ["0000000000000002", "0000000000000004", "0000000000000005"]);
    let parents = [server, first, second].map(|span| (span.parent_span_id.to_string(), span.parent_span_is_remote));
    assert_eq!(parents[0], ("0000000000000003".to_owned(), true));
    assert!(parents[1..].iter().all(|parent| *parent == (ids[0].clone(), false)));
    assert_eq!(server.span_context.trace_state().header(), "a=b");
    let times = [server, first, second].map(|span| (after(&request, span.start_time), after(&request, span.end_time)));
    assert_eq!(times, [(0, 2_500), (400, 900), (1_000, 2_500)]);

    let keys = ["http.request.method", "url.path", "http.response.status_code", "gen_ai.request.model", "error.type"];
    assert_eq!(attributes(server, keys), ["POST", "/v1/completions", "200", "llama", "none"]);
    let keys = ["tidegate.length", "tidegate.estimated_tokens", "tidegate.attempts", "tidegate.end", "tidegate.group"];
    assert_eq!(attributes(server, keys), ["long", "9", "2", "complete", "long"]);
    assert_eq!(attributes(server, ["gen_ai.usage.input_tokens", "tidegate.ttft_s"]), ["11", "1.5"]);
    let events: Vec<_> =
        server.events.iter().map(|event| (event.name.as_ref(), after(&request, event.timestamp))).collect();
    let (asked, placed) = ("tidegate.asked_for_a_place", "tidegate.placed");
    let first_token = ("tidegate.first_token", 1_500);
    assert_eq!(events, [(asked, 300), (placed, 400), (asked, 900), (placed, 1_000), first_token]);

    let keys = ["server.address", "server.port", "url.full", "http.request.resend_count", "error.type"];
    assert_eq!(attributes(first, keys), ["fd00::1", "8000", "http://[fd00::1]:8000/v1/completions", "none", "503"]);
    assert_eq!(attributes(second, ["http.request.resend_count", "tidegate.result"]), ["1", "answered"]);
    assert_eq!((&server.status, &second.status), (&Status::Unset, &Status::Unset));
    assert_eq!(first.status, Status::error("503"));
}

#[test]
fn what_went_wrong_is_an_error_unless_the_client_did_it() {
    for (rest, error) in [
        (r#","end":"complete","status":404"#, None),
        (r#","end":"client_gone","status":200"#, None),
        (r#","end":"rejected","status":401,"rejected":"no_key""#, None),
        (r#","end":"complete","status":500"#, Some("500")),
        (r#","end":"rejected","status":503,"rejected":"queue_full""#, Some("queue_full")),
        (r#","end":"upstream_broken","status":200"#, Some("upstream_broken")),
    ] {
        let [server] = &spans::of(&ended(record(rest)))[..] else { panic!("{rest}") };
        assert_eq!(attribute(server, "error.type").as_deref(), error, "{rest}");
        assert_eq!(server.status == Status::Unset, error.is_none(), "{rest}");
    }
}

#[test]
fn there_are_few_names() {
    let name = |request: &Ended| spans::of(request)[0].name.to_string();
    let mut request = ended(record(r#","end":"complete","status":404"#));
    request.is_known_path = false;
    assert_eq!(name(&request), "POST");
    request.method = Method::from_bytes(b"BREW").unwrap();
    assert_eq!(
        (name(&request).as_str(), attribute(&spans::of(&request)[0], "http.request.method").as_deref()),
        ("HTTP", Some("_OTHER"))
    );
    request.is_known_path = true;
    request.record.endpoint = "/v1/%63ompletions".to_owned();
    assert_eq!((name(&request).as_str(), attribute(&spans::of(&request)[0], "http.route")), ("HTTP", None));
}

/// A collector that answers each batch like this, once it is told to go on when somebody holds it.
fn collector(answer: &'static str, held: bool) -> (SocketAddr, Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (open, gate) = channel::<()>();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if held {
                gate.recv().ok();
            }
            // The answer may come before the end of the request: it is read in one piece.
            let mut request = [0; 1 << 16];
            std::io::Read::read(&mut stream, &mut request).ok();
            stream.write_all(answer.as_bytes()).ok();
        }
    });
    (address, open)
}

const TAKEN: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
const REFUSED: &str = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

fn exporter(address: SocketAddr, counts: &Counts) -> Exporter {
    let settings = Tracing {
        url: format!("http://{address}/v1/traces"),
        service_name: "test".to_owned(),
        sample: 1.0,
        headers: Vec::new(),
        timeout: Duration::from_millis(500),
    };
    Exporter::start(&settings, counts.clone()).unwrap()
}

fn one() -> Box<Ended> {
    Box::new(ended(record(r#","end":"complete","status":200"#)))
}

fn numbers(counts: &Counts) -> [u64; 3] {
    [counts.exported.get(), counts.failed.get(), counts.dropped.get()]
}

#[test]
fn spans_are_counted_by_what_has_become_of_them() {
    for (answer, expected) in [(TAKEN, [3, 0, 0]), (REFUSED, [0, 3, 0])] {
        let counts = Counts::default();
        let exporter = exporter(collector(answer, false).0, &counts);
        exporter.flush(PATIENCE);
        (0..3).for_each(|_| exporter.ended(one()));
        exporter.flush(PATIENCE);
        assert_eq!(numbers(&counts), expected);
    }
}

#[test]
fn a_collector_that_hangs_costs_spans_and_no_time() {
    let counts = Counts::default();
    let (address, open) = collector(TAKEN, true);
    let exporter = Arc::new(exporter(address, &counts));
    let extra = 1_000;
    let begun = Instant::now();
    (0..MOST_WAITING + BATCH_SPANS + extra).for_each(|_| exporter.ended(one()));
    assert!(begun.elapsed() < PATIENCE);
    let dropped = counts.dropped.get();
    assert!(dropped > 0 && dropped <= (BATCH_SPANS + extra) as u64, "{dropped}");
    // The end of the process waits no longer than it may.
    let begun = Instant::now();
    exporter.flush(Duration::from_millis(20));
    assert!(begun.elapsed() < PATIENCE);
    drop(open);
}
