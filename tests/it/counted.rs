//! What the metrics say of requests that ended in every possible way.

use std::time::Duration;

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

/// A server whose answer depends on the path of the request.
async fn many_sided(gate: &Gate) -> Backend {
    let gate = gate.clone();
    Backend::start(move |mut conn: Conn| {
        let gate = gate.clone();
        async move {
            while let Some(request) = conn.request().await {
                let asked = request.head.get("x-do").unwrap_or_default().to_owned();
                match asked.as_str() {
                    "400" => drop(conn.send(json_response(400, "{}")).await),
                    "503" => drop(conn.send(json_response(503, "{}")).await),
                    "nothing" => return conn.closed().await,
                    "break" => {
                        conn.send("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nstart").await;
                        return conn.reset();
                    }
                    "stream" => {
                        conn.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nstart\r\n").await;
                        if conn.unless_closed(gate.pass()).await.is_none() {
                            return;
                        }
                    }
                    _ => drop(conn.send(json_response(200, "{}")).await),
                }
            }
        }
    })
    .await
}

fn asking(what: &str) -> Vec<u8> {
    request("POST", CHAT, &format!("X-Do: {what}\r\n"), &body_of(100))
}

// B70
#[tokio::test]
async fn every_request_is_counted_once_and_in_its_class() {
    let gate = Gate::closed();
    let server = many_sided(&gate).await;
    let spare = Backend::start(reply(json_response(200, "{}"))).await;
    let setup = Setup::one_group([&server, &spare])
        .section("limits", "{ max_body_size: 1KiB }")
        .section("timeouts", "{ first_byte: 500ms }");
    let tidegate = Tidegate::start(&setup).await;
    for _ in 0..10 {
        for (request, status, end) in [
            (asking("200"), 200, End::Complete),
            (asking("400"), 400, End::Complete),
            (asking("503"), 200, End::Complete),
            (post(CHAT, &body_of(1_025)), 413, End::Complete),
            (asking("break"), 200, End::Truncated),
        ] {
            let response = tidegate.exchange(&request).await;
            assert_eq!((response.status(), response.end), (status, end));
            // The next one is to find the first server idle.
            tidegate.idle().await;
        }

        let seen = server.count();
        let before_header = tidegate.begin(&asking("nothing")).await;
        server.whole_requests(seen + 1).await;
        before_header.close();
        tidegate.idle().await;

        let mut mid_stream = tidegate.begin(&asking("stream")).await;
        mid_stream.head().await;
        mid_stream.body_bytes(5).await;
        mid_stream.close();
        tidegate.idle().await;
    }
    let mut waiting = Vec::new();
    for _ in 0..10 {
        // One after the other would take too long; together they would share the servers.
        waiting.push(tidegate.begin(&asking("nothing")).await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut timed_out = 0.0;
    for client in &mut waiting {
        if client.response().await.status() == 504 {
            timed_out += 1.0;
        }
    }
    tidegate.finished(80).await;
    let count = async |outcome: &str, code: &str| {
        let labels = [format!("outcome=\"{outcome}\""), format!("code=\"{code}\"")];
        tidegate.metric("tidegate_requests_total", &[&labels[0], &labels[1]]).await
    };
    assert!(timed_out > 0.0);
    assert_eq!(count("complete", "2xx").await, 30.0 - timed_out);
    assert_eq!(count("complete", "4xx").await, 10.0);
    assert_eq!(count("rejected", "4xx").await, 10.0);
    assert_eq!(count("rejected", "5xx").await, timed_out);
    assert_eq!(count("upstream_broken", "2xx").await, 10.0);
    assert_eq!(tidegate.metric("tidegate_requests_total", &["outcome=\"client_gone\""]).await, 20.0);
    assert_eq!(tidegate.metric("tidegate_retries_total", &["reason=\"status\""]).await, 10.0);

    let down = Tidegate::start(&Setup::one_group([closed_address()])).await;
    for _ in 0..10 {
        assert_eq!(down.exchange(&asking("200")).await.status(), 502);
    }
    down.finished(10).await;
    assert_eq!(down.metric("tidegate_requests_total", &["outcome=\"rejected\"", "code=\"5xx\""]).await, 10.0);
    assert_eq!(down.metric("tidegate_retries_total", &["reason=\"connect\""]).await, 20.0);
}

// B69
#[tokio::test]
async fn clients_cannot_make_new_series() {
    let server = Backend::start(reply(json_response(200, "{}"))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let ask = async |number: usize| {
        let body = format!(r#"{{"model":"m{number}\"\\\n","user":"u{number}","messages":[]}}"#);
        for (method, path) in [("POST", CHAT.to_owned()), ("FOO", format!("/x{number}?q={number}"))] {
            let fields = format!("X-Request-Id: id{number}\r\n");
            let response = tidegate.exchange(&request(method, &path, &fields, body.as_bytes())).await;
            assert_eq!(response.status(), 200, "{}", response.text());
        }
    };
    ask(0).await;
    tidegate.finished(2).await;
    let before = tidegate.metrics().await.lines().count();
    for number in 1..500 {
        ask(number).await;
    }
    tidegate.finished(1_000).await;
    assert_eq!(tidegate.metrics().await.lines().count(), before);
}

/// A burst of requests of every kind at once, whose clients stay or leave; in the end nothing is counted as running.
#[tokio::test]
async fn a_request_is_found_in_the_log_by_its_id() {
    let server = Backend::start(reply(json_response(200, "{}"))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server]).logging("tidegate=debug")).await;
    tidegate.exchange(&request("POST", CHAT, "X-Request-Id: good-1\r\n", b"{}")).await;
    tidegate.logs("request good-1 has ended: complete, status 200, reason none, 1 attempts, the last on 127.").await;
    tidegate.exchange(&request("POST", "/sleep", "X-Request-Id: bad-1\r\n", b"{}")).await;
    let line = "request bad-1 has ended: rejected, status 403, reason closed_path, 0 attempts, the last on no server";
    tidegate.logs(line).await;

    let refusing = Setup::one_group([closed_address()]).without_health().logging("tidegate=debug");
    let tidegate = Tidegate::start(&refusing).await;
    tidegate.exchange(&request("POST", CHAT, "X-Request-Id: bad-2\r\n", b"{}")).await;
    tidegate.logs("request bad-2: an attempt failed and is tried elsewhere").await;
    tidegate.logs("request bad-2 has ended: rejected, status 502, reason not_reachable, 3 attempts").await;
}

#[tokio::test]
async fn a_status_that_was_sent_to_nobody_is_not_counted() {
    let shutting_down = r#"{"error":{"message":"cannot schedule new futures after shutdown","code":500}}"#;
    let server = Backend::start(reply(json_response(500, shutting_down))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let waiting = tidegate.begin(&post(CHAT, b"{}")).await;
    until("it waits for another server", async || tidegate.metric("tidegate_queue_requests", &[]).await == 1.0).await;
    drop(waiting);
    tidegate.finished(1).await;
    assert_eq!(tidegate.metric("tidegate_requests_total", &["code=\"none\""]).await, 1.0);
}

#[tokio::test]
async fn any_mixture_of_trouble_leaves_the_counters_at_zero() {
    let gate = Gate::closed();
    let (first, second) = (many_sided(&gate).await, many_sided(&gate).await);
    let setup = Setup::two_groups([first.address(), closed_address()], [second.address()])
        .section("timeouts", "{ first_byte: 1s }");
    let tidegate = Tidegate::start(&setup).await;
    let address = tidegate.address;
    let kinds = ["200", "400", "503", "nothing", "break", "stream", "200"];
    let mut clients = tokio::task::JoinSet::new();
    let total = 600_u64;
    for number in 0..usize::try_from(total).unwrap() {
        let what = kinds[number % kinds.len()];
        // Spread over lengths, ways of leaving and moments of leaving, the same in every run.
        let size = [100, 5_000, 140_000][number / 7 % 3];
        let patience = Duration::from_millis(u64::try_from(number * 37 % 60).unwrap());
        clients.spawn(async move {
            let fields = format!("X-Do: {what}\r\n");
            let mut client = Client::connect(address).await;
            client.send(&request("POST", CHAT, &fields, &body_of(size))).await;
            match number % 4 {
                0 => drop(client.response_within(patience).await),
                1 => {
                    drop(client.response_within(patience).await);
                    client.reset();
                }
                _ => drop(client.response_within(Duration::from_secs(2)).await),
            }
        });
    }
    while !clients.is_empty() {
        let usage = tidegate.usage().await;
        let in_flight: u64 = ["short", "long"].iter().map(|group| usage[*group].in_flight).sum();
        assert!(in_flight <= total, "{usage:?}");
        while clients.try_join_next().transpose().unwrap().is_some() {}
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tidegate.idle().await;
    tidegate.finished(u32::try_from(total).unwrap()).await;
}

#[tokio::test]
async fn who_waits_behind_whom_is_seen_on_each_server_and_how_long_by_length() {
    let gate = Gate::closed();
    let server = Backend::start(sse(3, &gate)).await;
    let setup = Setup::two_groups([&server], [closed_address()]).without_health();
    let tidegate = Tidegate::start(&setup).await;
    let body = |bytes: usize| post("/v1/chat/completions", &body_of(bytes));
    let waiting = async |name: &str, length: &str| {
        let labels = [&*format!("server=\"{}\"", server.name()), &*format!("length=\"{length}\"")];
        tidegate.metric(&format!("tidegate_server_waiting_{name}"), &labels).await
    };
    let mut clients = Vec::new();
    for bytes in [200_000, 4_000, 8_000] {
        clients.push(tidegate.begin(&body(bytes)).await);
    }
    // The long one is sent to the only server that there is.
    server.requests(3).await;
    assert_eq!((waiting("requests", "long").await, waiting("requests", "short").await), (1.0, 2.0));
    assert_eq!((waiting("prompt_tokens", "long").await, waiting("prompt_tokens", "short").await), (50_000.0, 3_000.0));
    // The first token of each, and no more.
    gate.admit(3);
    until("nobody waits for a first token", async || {
        waiting("requests", "long").await + waiting("requests", "short").await == 0.0
    })
    .await;
    assert_eq!(tidegate.load(&server.name()).await, 53_000.0);
    assert_eq!(waiting("prompt_tokens", "long").await + waiting("prompt_tokens", "short").await, 0.0);
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    tidegate.finished(3).await;
    let count =
        async |name: &str, labels: &[&str]| tidegate.metric(&format!("tidegate_{name}_seconds_count"), labels).await;
    assert_eq!(count("time_to_first_token", &["length=\"short\"", "size=\"1k_to_10k\""]).await, 2.0);
    assert_eq!(count("time_to_first_token", &["length=\"long\"", "size=\"10k_to_100k\""]).await, 1.0);
    assert_eq!(count("time_to_first_token", &[]).await, 3.0);
    assert_eq!(count("time_to_header", &[]).await, 3.0);
    assert_eq!(
        (count("time_per_output_token", &[]).await, count("longest_token_gap", &["length=\"short\""]).await),
        (3.0, 2.0)
    );
    let connections = async |reused: &str| {
        tidegate.metric("tidegate_server_connections_total", &[&*format!("reused=\"{reused}\"")]).await
    };
    assert_eq!(connections("false").await, 3.0);
    assert_eq!(tidegate.exchange(&body(4_000)).await.status(), 200);
    assert_eq!((connections("false").await, connections("true").await), (3.0, 1.0));
    assert_eq!(tidegate.metric("tidegate_config_generation", &[]).await, 1.0);
    tidegate.reload(&setup).await;
    assert_eq!(tidegate.metric("tidegate_config_generation", &[]).await, 2.0);
    assert!(tidegate.metric("process_cpu_seconds_total", &[]).await > 0.0);
    tidegate.idle().await;
}

#[tokio::test]
async fn who_waits_for_another_server_waits_on_none() {
    let gate = Gate::closed();
    let [busy, broken] = [Backend::start(sse(1, &gate)).await, Backend::start(reply_then_close("")).await];
    let setup = Setup::one_group([&busy, &broken]).without_health().section("queue", "{ server_max_in_flight: 1 }");
    let tidegate = Tidegate::start(&setup).await;
    let body = post("/v1/chat/completions", &body_of(4_000));
    let mut first = tidegate.begin(&body).await;
    busy.requests(1).await;
    let mut second = tidegate.begin(&body).await;
    until("it waits here", async || tidegate.metric("tidegate_queue_requests", &[]).await == 1.0).await;
    assert_eq!(broken.count(), 1);
    let waiting = async |server: &Backend| {
        let label = format!("server=\"{}\"", server.name());
        tidegate.metric("tidegate_server_waiting_requests", &[&*label]).await
    };
    assert_eq!((waiting(&busy).await, waiting(&broken).await), (1.0, 0.0));
    gate.open();
    for client in [&mut first, &mut second] {
        assert_eq!(client.response().await.status(), 200);
    }
    tidegate.idle().await;
    assert_eq!((waiting(&busy).await, waiting(&broken).await), (0.0, 0.0));
}
