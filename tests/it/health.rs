//! Which servers are taken out of service, and how they come back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

/// Quick probes; the rest of the section may follow.
const PROBES: &str = "active: { interval: 20ms, timeout: 100ms, failures: 3, successes: 2 }";

/// State and reason of a server.
async fn state(tidegate: &Tidegate, server: &Backend) -> (String, String) {
    let status = tidegate.status().await;
    let groups = status["groups"].as_array().unwrap().iter();
    let mut servers = groups.flat_map(|group| group["servers"].as_array().unwrap());
    let found = servers.find(|found| found["name"] == server.name().as_str()).unwrap();
    (found["health"].as_str().unwrap().into(), found["health_reason"].as_str().unwrap().into())
}

async fn becomes(tidegate: &Tidegate, server: &Backend, health: &str) {
    until(&format!("{} is {health}", server.name()), async || state(tidegate, server).await.0 == health).await;
}

fn setup<'a>(servers: impl IntoIterator<Item = &'a Switched>, health: &str) -> Setup {
    Setup::one_group(servers.into_iter().map(|server| &server.backend)).section("health", &format!("{{ {health} }}"))
}

async fn ask(tidegate: &Tidegate) -> u16 {
    tidegate.exchange(&post(CHAT, &body_of(400))).await.status()
}

#[tokio::test]
async fn a_server_whose_probes_fail_goes_out_and_comes_back_by_way_of_probation() {
    let (s0, s1) = (Switched::start().await, Switched::start().await);
    let tidegate = Tidegate::start(&setup([&s0, &s1], PROBES)).await;
    s0.more_probes(2).await;
    assert_eq!(state(&tidegate, &s0.backend).await, ("healthy".into(), "started".into()));
    s0.health.store(503, Ordering::SeqCst);
    becomes(&tidegate, &s0.backend, "out").await;
    for _ in 0..5 {
        assert_eq!(ask(&tidegate).await, 200);
    }
    assert_eq!((s0.requests(), s1.requests()), (0, 5));
    let name = format!("server=\"{}\"", s0.backend.name());
    let metric = async |family: &str, label: &str| tidegate.metric(family, &[&name, label]).await;
    assert_eq!(metric("tidegate_server_health", "state=\"out\"").await, 1.0);
    assert_eq!(metric("tidegate_server_health", "state=\"healthy\"").await, 0.0);
    assert_eq!(metric("tidegate_ejections_total", "reason=\"probes\"").await, 1.0);
    assert!(metric("tidegate_probes_total", "result=\"failed\"").await >= 3.0);
    assert!(metric("tidegate_probes_total", "result=\"passed\"").await >= 1.0);
    // Probes are no requests.
    assert_eq!(tidegate.metric("tidegate_requests_total", &[]).await, 5.0);

    s0.health.store(200, Ordering::SeqCst);
    becomes(&tidegate, &s0.backend, "probation").await;
    for _ in 0..3 {
        assert_eq!(ask(&tidegate).await, 200);
    }
    assert_eq!(state(&tidegate, &s0.backend).await, ("healthy".into(), "proved".into()));
    let log = tidegate.stderr();
    let changes: Vec<&str> =
        log.lines().filter(|line| line.contains(&format!("server {} is", s0.backend.name()))).collect();
    assert_eq!(changes.len(), 3, "{changes:?}");
    assert!(
        changes[0].contains("is out, was healthy for") && changes[0].contains("probes (answered 503)"),
        "{changes:?}"
    );
    assert!(changes[1].contains("is probation, was out for") && changes[2].contains("is healthy"), "{changes:?}");
}

// B05, B49 d
#[tokio::test]
async fn streams_run_on_while_their_server_goes_out_and_comes_back_and_stay_counted() {
    let gate = Gate::closed();
    let (s0, s1) = (Switched::start_with(&gate).await, Switched::start().await);
    let tidegate = Tidegate::start(&setup([&s0, &s1], PROBES)).await;
    let request = post(CHAT, &body_of(100_000));
    let mut running = tidegate.begin(&request).await;
    s0.backend.requests(1).await;
    until("it runs on the first server", async || s0.requests() == 1).await;
    let load = tidegate.load(&s0.backend.name()).await;
    assert!(load > 24_000.0, "{load}");

    s0.health.store(SILENT, Ordering::SeqCst);
    s0.more_probes(1).await;
    assert_ne!(state(&tidegate, &s0.backend).await.0, "out", "one probe that hangs is nothing");
    becomes(&tidegate, &s0.backend, "out").await;
    // A probe that hangs holds up nobody else's.
    s1.more_probes(5).await;
    assert_eq!(tidegate.load(&s0.backend.name()).await, load, "what runs stays counted");
    s0.health.store(200, Ordering::SeqCst);
    becomes(&tidegate, &s0.backend, "probation").await;
    assert_eq!(tidegate.load(&s0.backend.name()).await, load, "it is not taken for empty");
    gate.open();
    assert_eq!(running.response().await.status(), 200);
    tidegate.idle().await;
}

// B49 b
#[tokio::test]
async fn single_bad_probes_do_not_take_a_server_out() {
    let server = Switched::start().await;
    let tidegate = Tidegate::start(&setup([&server], PROBES)).await;
    for bad in [RESET, 500, RESET, 503] {
        server.health.store(bad, Ordering::SeqCst);
        server.more_probes(1).await;
        server.health.store(200, Ordering::SeqCst);
        server.more_probes(2).await;
    }
    assert!(tidegate.metric("tidegate_probes_total", &["result=\"failed\""]).await >= 4.0);
    assert_eq!(state(&tidegate, &server.backend).await, ("healthy".into(), "started".into()));
}

// B49 c
#[tokio::test]
async fn a_probe_that_is_answered_byte_by_byte_is_good() {
    let slow = Backend::start(|mut conn: Conn| async move {
        conn.request().await;
        for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n" {
            conn.send([*byte]).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        conn.finish().await;
    })
    .await;
    // All bytes together take longer than the limit for each.
    let health = "{ active: { interval: 10ms, timeout: 200ms, failures: 1 } }";
    let tidegate = Tidegate::start(&Setup::one_group([&slow]).section("health", health)).await;
    until("three probes are good", async || {
        tidegate.metric("tidegate_probes_total", &["result=\"passed\""]).await >= 3.0
    })
    .await;
    assert_eq!(state(&tidegate, &slow).await.0, "healthy");
}

// B51
#[tokio::test]
async fn probes_carry_the_key_of_their_server_and_their_own_header_fields() {
    let keyed = Backend::start(|mut conn: Conn| async move {
        while let Some(request) = conn.request().await {
            let is_right = request.head.get("authorization") == Some("Bearer sk-right");
            let status = if is_right { 200 } else { 401 };
            if !conn.send(json_response(status, "{}")).await {
                return;
            }
        }
    })
    .await;
    let health = "{ active: { interval: 20ms, path: /v1/models, headers: ['x-probe: of-mine'] } }";
    for (key, is_right) in [("sk-right", true), ("sk-wrong", false)] {
        keyed.forget();
        let server = format!("{{ address: \"{}\", api_key: {key} }}", keyed.address());
        let tidegate = Tidegate::start(&Setup::one_group([server]).section("health", health)).await;
        keyed.requests(4).await;
        let probe = &keyed.received()[0].head;
        assert!(probe.line.starts_with("GET /v1/models "), "{}", probe.line);
        assert_eq!(probe.get("x-probe"), Some("of-mine"));
        if is_right {
            assert_eq!(state(&tidegate, &keyed).await.0, "healthy");
        } else {
            becomes(&tidegate, &keyed, "out").await;
            let line = format!("server {} is out", keyed.name());
            let log = tidegate.stderr();
            assert!(log.lines().any(|logged| logged.contains(&line) && logged.contains("answered 401")), "{log}");
        }
        let shown = format!("{}{}{}", tidegate.stderr(), tidegate.status().await, tidegate.metrics().await);
        assert!(!shown.contains(key) && !shown.contains("of-mine"), "a secret is shown");
    }
}

// B48
#[tokio::test]
async fn bad_requests_and_clients_that_leave_do_not_count_against_a_server() {
    let (s0, s1) = (Switched::start().await, Switched::start().await);
    let tidegate = Tidegate::start(&setup([&s0, &s1], PROBES)).await;
    for status in [400, 404, 422, 401, 413] {
        s0.answer.store(status, Ordering::SeqCst);
        s1.answer.store(status, Ordering::SeqCst);
        for _ in 0..20 {
            assert_eq!(ask(&tidegate).await, status);
        }
    }
    s0.answer.store(SILENT, Ordering::SeqCst);
    s1.answer.store(SILENT, Ordering::SeqCst);
    for left in 1..=20 {
        let client = tidegate.begin(&post(CHAT, &body_of(400))).await;
        until("a server has it", async || s0.requests() + s1.requests() == 100 + left).await;
        client.close();
    }
    tidegate.idle().await;
    for server in [&s0, &s1] {
        assert_eq!(state(&tidegate, &server.backend).await, ("healthy".into(), "started".into()));
        server.answer.store(200, Ordering::SeqCst);
    }
    assert_eq!(tidegate.metric("tidegate_server_faults_total", &[]).await, 0.0);
    assert_eq!(ask(&tidegate).await, 200);
}

// B52
#[tokio::test]
async fn the_only_server_serves_again_as_soon_as_it_is_not_full_any_more() {
    for status in [503, 429] {
        let server = Switched::start().await;
        let tidegate = Tidegate::start(&setup([&server], PROBES)).await;
        server.answer.store(status, Ordering::SeqCst);
        for _ in 0..20 {
            assert_eq!(ask(&tidegate).await, status);
        }
        server.answer.store(200, Ordering::SeqCst);
        assert_eq!(ask(&tidegate).await, 200);
        assert_eq!(tidegate.metric("tidegate_ejections_total", &[]).await, 0.0);
    }
}

// B52
#[tokio::test]
async fn the_load_moves_away_from_a_full_server() {
    let (full, free) = (Switched::start().await, Switched::start().await);
    let tidegate = Tidegate::start(&setup([&full, &free], PROBES)).await;
    full.answer.store(503, Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(ask(&tidegate).await, 200);
    }
    assert_eq!(full.requests(), 3);
    assert_eq!(tidegate.metric("tidegate_ejections_total", &["reason=\"saturated\""]).await, 1.0);
    full.answer.store(200, Ordering::SeqCst);
    until("it serves again", async || {
        assert_eq!(ask(&tidegate).await, 200);
        state(&tidegate, &full.backend).await.0 == "healthy"
    })
    .await;
}

#[tokio::test]
async fn a_server_that_fails_fast_loses_no_request_and_gets_hardly_any() {
    let servers = [Switched::start().await, Switched::start().await, Switched::start().await];
    let tidegate = Tidegate::start(&setup(&servers, PROBES)).await;
    servers[0].answer.store(RESET, Ordering::SeqCst);
    for _ in 0..100 {
        assert_eq!(ask(&tidegate).await, 200);
    }
    assert!(servers[0].requests() <= 5, "{} attempts", servers[0].requests());
    assert_eq!(state(&tidegate, &servers[0].backend).await, ("out".into(), "reset".into()));
}

#[tokio::test]
async fn faults_do_not_take_out_more_than_a_share_of_a_group() {
    let servers = [Switched::start().await, Switched::start().await, Switched::start().await];
    let tidegate = Tidegate::start(&setup(&servers, PROBES)).await;
    for server in &servers {
        server.answer.store(500, Ordering::SeqCst);
    }
    for _ in 0..30 {
        assert_eq!(ask(&tidegate).await, 500);
    }
    assert_eq!(tidegate.metric("tidegate_server_health", &["state=\"out\""]).await, 1.0);
    let name = servers[0].backend.name();
    let of_the_first = tidegate.metric("tidegate_ejections_spared_total", &[&format!("server=\"{name}\"")]).await;
    assert_eq!(of_the_first, 0.0, "it could be spared");
    let spared = tidegate.metric("tidegate_ejections_spared_total", &["reason=\"status\""]).await;
    assert!(spared > 2.0, "the others go on failing: {spared}");
}

#[tokio::test]
async fn an_ejection_ends_by_itself_and_one_more_fault_makes_it_longer() {
    let (s0, s1) = (Switched::start().await, Switched::start().await);
    let health = "active: { enabled: false }, passive: { base_ejection: 100ms, max_ejection: 10s }";
    let tidegate = Tidegate::start(&setup([&s0, &s1], health)).await;
    s0.answer.store(502, Ordering::SeqCst);
    for ejections in 1..=3 {
        until("it is ejected", async || {
            assert_eq!(ask(&tidegate).await, 200);
            tidegate.metric("tidegate_ejections_total", &["reason=\"status\""]).await == f64::from(ejections)
        })
        .await;
        becomes(&tidegate, &s0.backend, "probation").await;
    }
    // Three faults the first time, one each on probation.
    assert_eq!(s0.requests(), 5);
}

#[tokio::test]
async fn a_server_that_comes_back_gets_few_requests_until_it_has_proved_itself() {
    let gate = Gate::closed();
    let (s0, s1) = (Switched::start_with(&gate).await, Switched::start_with(&gate).await);
    let tidegate = Tidegate::start(&setup([&s0, &s1], PROBES)).await;
    s0.health.store(503, Ordering::SeqCst);
    becomes(&tidegate, &s0.backend, "out").await;
    s0.health.store(200, Ordering::SeqCst);
    becomes(&tidegate, &s0.backend, "probation").await;
    let mut clients = Vec::new();
    for begun in 1..=20 {
        clients.push(tidegate.begin(&post(CHAT, &body_of(400))).await);
        until("a server has it", async || s0.requests() + s1.requests() == begun).await;
    }
    assert_eq!((s0.requests(), s1.requests()), (4, 16));
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    becomes(&tidegate, &s0.backend, "healthy").await;
}

#[tokio::test]
async fn the_only_server_that_comes_back_is_not_held_to_few_requests() {
    let gate = Gate::closed();
    let server = Switched::start_with(&gate).await;
    let setup = setup([&server], PROBES).section("queue", "{ max_wait: none }");
    let tidegate = Tidegate::start(&setup).await;
    server.health.store(503, Ordering::SeqCst);
    becomes(&tidegate, &server.backend, "out").await;
    assert_refusal(&tidegate.exchange(&post(CHAT, &body_of(400))).await, 503);
    server.health.store(200, Ordering::SeqCst);
    becomes(&tidegate, &server.backend, "probation").await;
    let mut clients = Vec::new();
    for begun in 1..=10 {
        clients.push(tidegate.begin(&post(CHAT, &body_of(400))).await);
        until("the server has it", async || server.requests() == begun).await;
    }
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
}

#[tokio::test]
async fn what_comes_while_the_only_server_is_out_waits_and_is_served_when_it_is_back() {
    let server = Switched::start().await;
    let tidegate = Tidegate::start(&setup([&server], PROBES)).await;
    server.health.store(503, Ordering::SeqCst);
    becomes(&tidegate, &server.backend, "out").await;
    let mut client = tidegate.begin(&post(CHAT, &body_of(400))).await;
    until("it waits", async || tidegate.metric("tidegate_queue_requests", &[]).await == 1.0).await;
    server.more_probes(2).await;
    assert_eq!(server.requests(), 0, "a server that is out gets none");
    server.health.store(200, Ordering::SeqCst);
    assert_eq!(client.response().await.status(), 200);
    assert_eq!(server.requests(), 1);
}

#[tokio::test]
async fn servers_that_are_reached_over_tls_are_probed_over_tls() {
    let server = Switched::start().await;
    let (authority, stranger) = (Authority::new(), Authority::new());
    let pair = authority.issue("server", &["vllm.test"]);
    let relay = Relay::from_tls(tls_server(&pair, None), server.backend.address()).await;
    let health = async |tidegate: &Tidegate| tidegate.status().await["groups"][0]["servers"][0]["health"].clone();
    let trusting = |authority: &Authority| {
        let keys = format!("ca: {}, server_name: vllm.test", authority.file().display());
        Setup::one_group([relay.server(&keys)]).section("health", &format!("{{ {PROBES} }}"))
    };
    let tidegate = Tidegate::start(&trusting(&authority)).await;
    server.more_probes(2).await;
    assert_eq!(health(&tidegate).await, "healthy");
    server.health.store(503, Ordering::SeqCst);
    until("it is out", async || health(&tidegate).await == "out").await;
    server.health.store(200, Ordering::SeqCst);
    until("it is back", async || health(&tidegate).await == "probation").await;
    drop(tidegate);

    let tidegate = Tidegate::start(&trusting(&stranger)).await;
    until("a server that cannot be trusted is out", async || health(&tidegate).await == "out").await;
    let log = tidegate.stderr();
    assert_eq!(log.lines().filter(|line| line.contains("TLS failed")).count(), 1, "{log}");
}

#[tokio::test]
async fn the_neighbour_serves_when_no_server_of_the_own_group_is_live_and_the_answer_says_so() {
    let (short, long) = (Switched::start().await, Switched::start().await);
    let setup = Setup::two_groups([&short.backend], [&long.backend]).section("health", &format!("{{ {PROBES} }}"));
    let tidegate = Tidegate::start(&setup).await;
    let response = tidegate.exchange(&post(CHAT, &body_of(400))).await;
    assert_eq!((response.status(), response.head.get("x-tidegate-failover")), (200, None));
    short.health.store(503, Ordering::SeqCst);
    becomes(&tidegate, &short.backend, "out").await;
    let response = tidegate.exchange(&post(CHAT, &body_of(400))).await;
    assert_eq!((response.status(), response.head.get("x-tidegate-failover")), (200, Some("long")));
    let labels = ["from=\"short\"", "to=\"long\""];
    assert_eq!(tidegate.metric("tidegate_failovers_total", &labels).await, 1.0);
    assert_eq!((short.requests(), long.requests()), (1, 1));
}

#[tokio::test]
async fn the_only_server_that_refuses_connections_is_taken_out_by_probes_that_hurry() {
    let server = Switched::start().await;
    let name = server.backend.name();
    // Left to themselves the probes would take minutes.
    let health = "active: { interval: 10m, timeout: 1s, failures: 2 }";
    let tidegate = Tidegate::start(&setup([&server], health)).await;
    let dead = server.backend.address();
    drop(server);
    assert_refusal(&tidegate.exchange(&post(CHAT, &body_of(400))).await, 502);
    until("it is out", async || {
        tidegate.metric("tidegate_ejections_total", &[&format!("server=\"{name}\""), "reason=\"probes\""]).await == 1.0
    })
    .await;
    assert!(tidegate.stderr().contains("refused the connection"), "{dead}");
}
