//! What real servers do when their engine hangs, dies or shuts down, from what was captured of vLLM.

use std::path::PathBuf;
use std::time::Duration;

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";

const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                           transfer-encoding: chunked\r\n\r\n";

/// As `--sse-keep-alive-interval` sends it.
const KEEP_ALIVE: &str = "e\r\n: keep-alive\n\n\r\n";

/// A captured response.
fn capture(name: &str) -> Vec<u8> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/vllm-wire").join(format!("{name}.resp"));
    std::fs::read(file).unwrap()
}

/// A captured stream that ends with an error: its header, its first event, and all from the error on. What is between
/// was cut for storing.
fn failing_stream(name: &str) -> Vec<u8> {
    let bytes = capture(name);
    let find = |what: &[u8]| bytes.windows(what.len()).position(|window| window == what).unwrap();
    let first_event_end = find(b"\n\n\r\n") + 4;
    let error = find(b"data: {\"error\"");
    let chunk = bytes[..error - 2].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    [&bytes[..first_event_end], &bytes[chunk..]].concat()
}

fn events_of(response: &Response) -> usize {
    response.text().matches("data: ").count()
}

async fn ask(tidegate: &Tidegate) -> Response {
    tidegate.exchange(&post(COMPLETIONS, &body_of(400))).await
}

/// State and reason of a server.
async fn state(tidegate: &Tidegate, name: &str) -> (String, String) {
    let status = tidegate.status().await;
    let servers = status["groups"][0]["servers"].as_array().unwrap();
    let found = servers.iter().find(|found| found["name"] == name).unwrap();
    (found["health"].as_str().unwrap().into(), found["health_reason"].as_str().unwrap().into())
}

async fn faults(tidegate: &Tidegate, server: &Backend, kind: &str) -> f64 {
    let labels = [format!("server=\"{}\"", server.name()), format!("kind=\"{kind}\"")];
    tidegate.metric("tidegate_server_faults_total", &[&labels[0], &labels[1]]).await
}

/// Opens a stream, sends `events` events, and then keep-alive comments until the peer leaves.
async fn keeps_alive(events: usize) -> Backend {
    Backend::start(move |mut conn: Conn| async move {
        conn.request().await;
        conn.send(STREAM_HEAD).await;
        for number in 0..events {
            let event = sse_event(number);
            conn.send(format!("{:x}\r\n{event}\r\n", event.len())).await;
        }
        while conn.send(KEEP_ALIVE).await {
            if conn.unless_closed(tokio::time::sleep(Duration::from_millis(20))).await.is_none() {
                return;
            }
        }
    })
    .await
}

// Finding 7
#[tokio::test]
async fn comments_are_relayed_but_do_not_end_the_wait_for_the_first_token() {
    let server = keeps_alive(0).await;
    let setup = Setup::one_group([&server]).section("timeouts", "{ first_byte: 400ms }");
    let tidegate = Tidegate::start(&setup).await;
    let mut client = tidegate.begin(&post(COMPLETIONS, &body_of(400))).await;
    assert_eq!(client.head().await.status(), 200);
    let (body, end) = client.rest().await;
    assert_ne!(end, End::Complete, "the client can tell that nothing came");
    let body = String::from_utf8(body).unwrap();
    assert!(body.starts_with(": keep-alive\n\n: keep-alive\n\n"), "{body:?}");
    assert_eq!(faults(&tidegate, &server, "first_byte").await, 1.0);
    assert_eq!(tidegate.metric("tidegate_time_to_first_byte_seconds_count", &[]).await, 0.0);
    tidegate.idle().await;
}

// Finding 7
#[tokio::test]
async fn comments_are_relayed_but_do_not_count_as_tokens_between_tokens() {
    let server = keeps_alive(2).await;
    let setup = Setup::one_group([&server]).section("timeouts", "{ response_idle: 400ms }");
    let tidegate = Tidegate::start(&setup).await;
    let response = ask(&tidegate).await;
    assert_ne!(response.end, End::Complete);
    assert_eq!(events_of(&response), 2);
    assert!(response.text().matches(": keep-alive").count() > 2);
    assert_eq!(faults(&tidegate, &server, "stream").await, 1.0);
    tidegate.idle().await;
}

// Findings 6, 21
#[tokio::test]
async fn an_error_in_mid_stream_is_relayed_as_it_is_and_speaks_against_the_server() {
    for name in ["life-kill9-engine-stream", "life-kill9-worker-stream", "life-sigterm-stream"] {
        let (s0, s1) = (Backend::start(reply_then_close(failing_stream(name))).await, Backend::start(echo()).await);
        let tidegate = Tidegate::start(&Setup::one_group([&s0, &s1])).await;
        let direct = Client::connect(s0.address()).await.exchange(&post(COMPLETIONS, &body_of(400))).await;
        let through = ask(&tidegate).await;
        assert_eq!((through.status(), through.end.clone()), (200, End::Complete), "{name}");
        assert_eq!(through.text(), direct.text(), "{name}");
        assert_eq!(faults(&tidegate, &s0, "stream").await, 1.0, "{name}");
        assert_eq!(s1.count(), 0, "what has begun is not tried again");
    }
}

// Finding 6
#[tokio::test]
async fn three_streams_in_a_row_that_end_with_an_error_take_the_server_out() {
    let dying = Backend::start(reply_then_close(failing_stream("life-kill9-engine-stream"))).await;
    let good = Backend::start(reply(capture("auth-stream"))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&dying, &good])).await;
    for _ in 0..6 {
        assert_eq!(ask(&tidegate).await.status(), 200);
    }
    assert_eq!(state(&tidegate, &dying.name()).await, ("out".into(), "stream".into()));
    assert_eq!(dying.count(), 3);
}

fn error_first(code: u16) -> String {
    let event = format!("data: {{\"error\": {{\"message\": \"EngineCore died\", \"code\": {code}}}}}\n\n");
    format!("{STREAM_HEAD}{:x}\r\n{event}\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", event.len())
}

#[tokio::test]
async fn a_stream_that_begins_with_an_error_of_the_server_is_tried_elsewhere() {
    let (s0, s1) = (Backend::start(reply(error_first(500))).await, Backend::start(echo()).await);
    let tidegate = Tidegate::start(&Setup::one_group([&s0, &s1])).await;
    let response = ask(&tidegate).await;
    assert_eq!(response.json()["length"], 400);
    assert_eq!((s0.count(), s1.count()), (1, 1));
    assert_eq!(faults(&tidegate, &s0, "stream").await, 1.0);
    tidegate.idle().await;
}

#[tokio::test]
async fn a_stream_that_begins_with_an_error_is_relayed_when_it_is_the_clients_or_nothing_is_left_to_try() {
    for (code, attempts) in [(400, 3), (500, 1)] {
        let (s0, s1) = (Backend::start(reply(error_first(code))).await, Backend::start(echo()).await);
        let setup = Setup::one_group([&s0, &s1]).section("retry", &format!("{{ max_attempts: {attempts} }}"));
        let tidegate = Tidegate::start(&setup).await;
        let response = ask(&tidegate).await;
        assert_eq!(response.status(), 200);
        assert!(response.text().starts_with("data: {\"error\": "), "{}", response.text());
        assert_eq!(s1.count(), 0);
        assert_eq!(faults(&tidegate, &s0, "stream").await, if code == 500 { 1.0 } else { 0.0 });
    }
}

// Finding 19
#[tokio::test]
async fn a_server_that_shuts_down_is_out_at_once_and_its_refusals_are_tried_elsewhere() {
    for name in ["life-sigterm-drain-late-plain", "life-sigterm-drain-late-stream"] {
        // Its health page goes on answering 200.
        let refusal = capture(name);
        let leaving = Backend::start(move |mut conn: Conn| {
            let refusal = refusal.clone();
            async move {
                while let Some(request) = conn.request().await {
                    let is_probe = request.head.line.starts_with("GET /health ");
                    let (head, body) = refusal.split_at(refusal.len() - 30);
                    // In two pieces: the body has to be waited for.
                    let is_sent = match is_probe {
                        true => conn.send(json_response(200, "")).await,
                        false => conn.send(head).await && conn.send(body).await,
                    };
                    if !is_sent {
                        return;
                    }
                }
            }
        })
        .await;
        let good = Backend::start(echo()).await;
        let setup = Setup::one_group([&leaving, &good])
            .section("health", "{ active: { interval: 10ms, timeout: 1s, status: below_500 } }");
        let tidegate = Tidegate::start(&setup).await;
        for _ in 0..5 {
            assert_eq!(ask(&tidegate).await.json()["length"], 400);
        }
        assert_eq!(state(&tidegate, &leaving.name()).await, ("out".into(), "leaving".into()));
        assert_eq!(faults(&tidegate, &leaving, "leaving").await, 1.0);
        assert_eq!(tidegate.metric("tidegate_ejections_total", &["reason=\"leaving\""]).await, 1.0);
        tidegate.idle().await;
    }
}

#[tokio::test]
async fn another_500_is_relayed_as_it_is() {
    let (s0, s1) = (Backend::start(reply(capture("life-kill9-engine-plain"))).await, Backend::start(echo()).await);
    let tidegate = Tidegate::start(&Setup::one_group([&s0, &s1])).await;
    let response = ask(&tidegate).await;
    assert_eq!((response.status(), response.end.clone()), (500, End::Complete));
    assert!(capture("life-kill9-engine-plain").ends_with(&response.body), "{}", response.text());
    assert_eq!(s1.count(), 0);
    until("it is counted", async || faults(&tidegate, &s0, "status").await == 1.0).await;
}

// Finding 15
#[tokio::test]
async fn a_full_queue_is_tried_elsewhere_and_is_no_fault() {
    let full = Backend::start(reply(capture("life-limit-stream"))).await;
    let free = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&full, &free])).await;
    assert_eq!(ask(&tidegate).await.status(), 200);
    assert_eq!(faults(&tidegate, &full, "saturated").await, 1.0);
    assert_eq!(faults(&tidegate, &full, "status").await, 0.0);
    assert_eq!(state(&tidegate, &full.name()).await.0, "healthy");
}

// Findings 1, 9
#[tokio::test]
async fn a_hung_engine_behind_a_good_health_page_is_found_by_streams_that_do_not_begin() {
    let gate = Gate::closed();
    let answers = gate.clone();
    let hung = Backend::start(move |mut conn: Conn| {
        let gate = answers.clone();
        async move {
            while let Some(request) = conn.request().await {
                let is_probe = request.head.line.starts_with("GET /health ");
                let goes_on = if is_probe {
                    conn.send(json_response(200, "")).await
                } else {
                    sse_answer(&mut conn, 2, &gate).await
                };
                if !goes_on {
                    return;
                }
            }
        }
    })
    .await;
    let health = "{ active: { interval: 10ms }, passive: { first_byte_limit: 200ms, max_ejected_share: 1.0 } }";
    let tidegate = Tidegate::start(&Setup::one_group([&hung]).section("health", health)).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(tidegate.begin(&post(COMPLETIONS, &body_of(400))).await);
    }
    until("it is out", async || state(&tidegate, &hung.name()).await == ("out".into(), "first_byte".into())).await;
    assert_eq!(faults(&tidegate, &hung, "first_byte").await, 3.0);
    assert_eq!(tidegate.metric("tidegate_probes_total", &["result=\"failed\""]).await, 0.0);
    gate.open();
    for client in &mut clients {
        let response = client.response().await;
        assert_eq!((response.status(), events_of(&response)), (200, 3), "the stream itself goes on");
    }
}

// Finding 18
#[tokio::test]
async fn a_silent_stream_on_a_server_that_refuses_connections_is_dead() {
    let silent = Backend::start(|mut conn: Conn| async move {
        while let Some(request) = conn.request().await {
            if request.head.line.starts_with("GET /health ") {
                conn.send(json_response(200, "")).await;
                continue;
            }
            conn.send(STREAM_HEAD).await;
            let event = sse_event(0);
            conn.send(format!("{:x}\r\n{event}\r\n", event.len())).await;
            conn.closed().await;
        }
    })
    .await;
    let health = "{ active: { interval: 10ms, timeout: 1s }, passive: { dead_stream_limit: 200ms } }";
    let tidegate = Tidegate::start(&Setup::one_group([&silent]).section("health", health)).await;
    let mut client = tidegate.begin(&post(COMPLETIONS, &body_of(400))).await;
    assert_eq!(client.head().await.status(), 200);
    client.body_bytes(sse_event(0).len()).await;
    // The process does not accept any more; what it has accepted stays open.
    drop(silent);
    let (body, end) = client.rest().await;
    assert!(body.is_empty() && end != End::Complete, "{end:?}");
    assert_eq!(tidegate.metric("tidegate_server_faults_total", &["kind=\"stream\""]).await, 1.0);
    assert_eq!(tidegate.metric("tidegate_timeouts_total", &["limit=\"dead_stream_limit\""]).await, 1.0);
    tidegate.idle().await;
}

// Finding 18
#[tokio::test]
async fn a_request_that_waits_for_a_server_that_refuses_connections_is_tried_elsewhere() {
    let silent = Backend::start(|mut conn: Conn| async move {
        while let Some(request) = conn.request().await {
            if !request.head.line.starts_with("GET /health ") {
                return conn.closed().await;
            }
            conn.send(json_response(200, "")).await;
        }
    })
    .await;
    let good = Backend::start(echo()).await;
    let health =
        "{ active: { interval: 10ms, timeout: 1s, status: below_500 }, passive: { dead_stream_limit: 200ms } }";
    let tidegate = Tidegate::start(&Setup::one_group([&silent, &good]).section("health", health)).await;
    let mut client = tidegate.begin(&post(COMPLETIONS, &body_of(400))).await;
    until("the first server has it", async || {
        silent.received().iter().any(|request| request.head.line.starts_with("POST") && request.end.is_some())
    })
    .await;
    drop(silent);
    assert_eq!(client.response().await.json()["length"], 400);
    assert_eq!(tidegate.metric("tidegate_server_faults_total", &["kind=\"reset\""]).await, 1.0);
    assert_eq!(tidegate.metric("tidegate_timeouts_total", &["limit=\"dead_stream_limit\""]).await, 1.0);
    tidegate.idle().await;
}
