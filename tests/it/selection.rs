//! Which server gets a request, seen over real sockets and in the counters.

use std::collections::BTreeSet;

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

/// Servers that hold every request until the gate opens.
async fn holding(gate: &Gate, count: usize) -> Vec<Backend> {
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(Backend::start(hold(gate, json_response(200, "{}"))).await);
    }
    servers
}

fn counts(servers: &[Backend]) -> Vec<usize> {
    servers.iter().map(Backend::count).collect()
}

/// Sends a request and waits until a server has it; returns which one, and the client.
async fn place(tidegate: &Tidegate, servers: &[Backend], request: &[u8]) -> (usize, Client) {
    let before = counts(servers);
    let client = tidegate.begin(request).await;
    let mut at = None;
    until("a server has the request", async || {
        at = counts(servers).iter().zip(&before).position(|(now, before)| now > before);
        at.is_some()
    })
    .await;
    (at.expect("the condition held"), client)
}

fn least_recently_used(servers: &[Backend]) -> Setup {
    Setup::one_group(servers).section("policy", "{ kind: reference_bucket, ties: least_recently_used }")
}

// B10 a
#[tokio::test]
async fn sequential_requests_take_turns_when_ties_go_to_the_least_recently_used() {
    let gate = Gate::closed();
    gate.open();
    let servers = holding(&gate, 4).await;
    let tidegate = Tidegate::start(&least_recently_used(&servers)).await;
    let mut client = tidegate.client().await;
    for _ in 0..40 {
        assert_eq!(client.exchange(&post(CHAT, &body_of(100))).await.status(), 200);
        tidegate.idle().await;
    }
    assert_eq!(counts(&servers), [10; 4]);
}

// B10 b
#[tokio::test]
async fn two_at_a_time_take_turns_when_ties_go_to_the_least_recently_used() {
    let gate = Gate::closed();
    let servers = holding(&gate, 4).await;
    let tidegate = Tidegate::start(&least_recently_used(&servers)).await;
    for _ in 0..20 {
        let (_, mut first) = place(&tidegate, &servers, &post(CHAT, &body_of(100))).await;
        let (_, mut second) = place(&tidegate, &servers, &post(CHAT, &body_of(100))).await;
        gate.admit(2);
        first.response().await;
        second.response().await;
        tidegate.idle().await;
    }
    assert_eq!(counts(&servers), [10; 4]);
}

#[tokio::test]
async fn sequential_requests_stay_on_the_first_server_when_ties_go_to_the_first() {
    let gate = Gate::closed();
    gate.open();
    let servers = holding(&gate, 4).await;
    let tidegate = Tidegate::start(&Setup::one_group(&servers)).await;
    let mut client = tidegate.client().await;
    for _ in 0..8 {
        assert_eq!(client.exchange(&post(CHAT, &body_of(100))).await.status(), 200);
        tidegate.idle().await;
    }
    assert_eq!(counts(&servers), [8, 0, 0, 0], "as the Python example does");
}

// B11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_spreads_evenly() {
    let gate = Gate::closed();
    let servers = holding(&gate, 4).await;
    let tidegate = Tidegate::start(&Setup::one_group(&servers).section("pingora", "{ threads: 4 }")).await;
    let mut clients = Vec::new();
    for _ in 0..64 {
        clients.push(tidegate.client().await);
    }
    for round in 1..=16 {
        let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(clients.len()));
        let mut sending = tokio::task::JoinSet::new();
        for mut client in clients.drain(..) {
            let barrier = barrier.clone();
            sending.spawn(async move {
                barrier.wait().await;
                client.send(&post(CHAT, &body_of(400))).await;
                client
            });
        }
        clients = sending.join_all().await;
        until("all have arrived", async || counts(&servers).iter().sum::<usize>() == round * 64).await;
        for (server, usage) in tidegate.usage().await {
            let requests = if server == "all" { 64 } else { usage.in_flight };
            assert!(server == "all" || (15..=17).contains(&requests), "spread by more than 2: {:?}", counts(&servers));
            let expected =
                Usage { load_tokens: f64::from(u32::try_from(requests).unwrap()) * 100.0, in_flight: requests };
            assert_eq!(usage, expected, "load is not the sum of the open requests");
        }
        gate.admit(64);
        for client in &mut clients {
            assert_eq!(client.response().await.status(), 200);
        }
        tidegate.idle().await;
    }
}

// B13
#[tokio::test]
async fn load_is_tokens_and_not_requests() {
    for heavy_first in [true, false] {
        let gate = Gate::closed();
        let servers = holding(&gate, 2).await;
        let tidegate = Tidegate::start(&Setup::one_group(&servers)).await;
        let (one, three) = if heavy_first { (0, 1) } else { (1, 0) };
        let mut clients = Vec::new();
        let sizes = if heavy_first { [102_400, 1_024, 1_024, 1_024] } else { [1_024, 102_400, 1_024, 1_024] };
        for size in sizes {
            let (at, client) = place(&tidegate, &servers, &post(CHAT, &body_of(size))).await;
            assert_eq!(at, if size > 2_000 { one } else { three });
            clients.push(client);
        }
        let (at, _client) = place(&tidegate, &servers, &post(CHAT, &body_of(1_024))).await;
        assert_eq!(at, three, "three small requests are less than a big one");
    }
}

// B14
#[tokio::test]
async fn every_generation_endpoint_is_counted_and_spreads() {
    let paths = [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/tokenize",
        "/pooling",
        "/classify",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
    ];
    let gate = Gate::closed();
    let servers = holding(&gate, 2).await;
    let tidegate = Tidegate::start(&Setup::one_group(&servers)).await;
    for (number, path) in paths.into_iter().enumerate() {
        let mut clients = Vec::new();
        for count in 1..=8_u32 {
            clients.push(place(&tidegate, &servers, &post(path, &body_of(400))).await.1);
            assert_eq!(
                tidegate.usage().await["all"],
                Usage { load_tokens: 100.0 * f64::from(count), in_flight: count.into() },
                "{path}"
            );
        }
        assert_eq!(counts(&servers), [4 * (number + 1); 2], "{path}");
        gate.admit(8);
        for client in &mut clients {
            client.response().await;
        }
        tidegate.idle().await;
    }
}

#[tokio::test]
async fn other_paths_go_to_the_least_loaded_server_and_weigh_nothing() {
    let gate = Gate::closed();
    let servers = holding(&gate, 3).await;
    let tidegate = Tidegate::start(&Setup::two_groups(&servers[..2], &servers[2..])).await;
    let (at, _held) = place(&tidegate, &servers, &post(CHAT, &body_of(4_000))).await;
    assert_eq!(at, 0);
    let (mut places, mut clients) = (Vec::new(), Vec::new());
    for request in [get("/version"), post("/v1/unheard_of", &body_of(200_000)), get("/v1/models/tiny"), get("/metrics")]
    {
        let (at, client) = place(&tidegate, &servers, &request).await;
        places.push(at);
        clients.push(client);
        assert_eq!(tidegate.usage().await["short"].load_tokens, 1_000.0);
        assert_eq!(tidegate.load("long").await, 0.0);
    }
    assert_eq!(places, [1, 2, 1, 2], "the idle servers take turns, whatever the size");
}

// B14, the table of reference arithmetic (loads a thousand times larger, so that one long request can make them)
#[tokio::test]
async fn groups_are_chosen_as_the_reference_arithmetic_says() {
    let rows: [(usize, u32, u32, &str); 12] = [
        (131_071, 0, 0, "short"),
        (131_072, 0, 0, "long"),
        (524_288, 0, 0, "long"),
        (2_000_000, 0, 0, "long"),
        (200, 100_000, 90_000, "short"),
        (200, 100_000, 87_000, "long"),
        (131_071, 100_000, 88_100, "short"),
        (131_071, 100_000, 87_900, "long"),
        (131_072, 88_100, 100_000, "long"),
        (131_072, 87_900, 100_000, "short"),
        (400_000, 82_000, 100_000, "long"),
        (400_000, 81_000, 100_000, "short"),
    ];
    let gate = Gate::closed();
    let servers = holding(&gate, 2).await;
    let tidegate = Tidegate::start(&Setup::two_groups(&servers[..1], &servers[1..])).await;
    let mut redirects = 0.0;
    for (size, short, long, goes_to) in rows {
        let mut held = Vec::new();
        if long > 0 {
            // The long request first: while the short group is empty nothing is redirected.
            let request = post(CHAT, &body_of(long as usize * 4));
            held.push(place(&tidegate, &servers, &request).await.1);
        }
        let mut left = short as usize * 4;
        while left > 0 {
            let size = left.min(100_000);
            held.push(place(&tidegate, &servers, &post(CHAT, &body_of(size))).await.1);
            left -= size;
        }
        let loads = (tidegate.load("short").await, tidegate.load("long").await);
        assert_eq!(loads, (f64::from(short), f64::from(long)));
        let (at, client) = place(&tidegate, &servers, &post(CHAT, &body_of(size))).await;
        assert_eq!(["short", "long"][at], goes_to, "{size} bytes at {short} / {long}");
        let standard = if size < 131_072 { "short" } else { "long" };
        if standard != goes_to {
            redirects += 1.0;
            let labels = [format!("from=\"{standard}\""), format!("to=\"{goes_to}\"")];
            assert!(tidegate.metric("tidegate_redirects_total", &[&labels[0], &labels[1]]).await > 0.0);
        }
        drop((held, client));
        tidegate.idle().await;
    }
    assert_eq!(tidegate.metric("tidegate_redirects_total", &[]).await, redirects);
}

/// Three groups with one server each, of which the first two are loaded.
async fn three_loaded_groups(policy: &str) -> (usize, Vec<usize>) {
    let gate = Gate::closed();
    let servers = holding(&gate, 3).await;
    let setup = Setup::new()
        .group("s", 1_000, &servers[..1])
        .group("m", 10_000, &servers[1..2])
        .group("l", 100_000, &servers[2..])
        .section("policy", policy);
    let tidegate = Tidegate::start(&setup).await;
    let mut held = Vec::new();
    for size in [4_400, 3_996] {
        held.push(place(&tidegate, &servers, &post(CHAT, &body_of(size))).await);
    }
    let at = held.iter().map(|(at, _)| *at).collect();
    (place(&tidegate, &servers, &post(CHAT, &body_of(400))).await.0, at)
}

#[tokio::test]
async fn a_request_crosses_to_an_adjacent_group_only_or_to_any_as_configured() {
    // 1,100 tokens in the middle, 999 below: the middle is no lighter, and the far one is not looked at.
    let (at, held) = three_loaded_groups("{ kind: reference_bucket, neighbours: adjacent }").await;
    assert_eq!((at, held), (0, vec![1, 0]));
    let (at, held) = three_loaded_groups("{ kind: reference_bucket, neighbours: all }").await;
    assert_eq!((at, held), (2, vec![1, 0]));
}

#[tokio::test]
async fn the_tuning_of_redirects_is_configured() {
    // 200 bytes at 100,000 / 90,000 tokens score 0.0936.
    for (tuning, goes_to) in [
        ("redirect_threshold: 0.12", 0),
        ("redirect_threshold: 0.09", 1),
        ("sensitivity: 1.5", 1),
        ("affinity_strength: 2.0, redirect_threshold: 0.05", 0),
        ("load_only: true", 1),
    ] {
        let gate = Gate::closed();
        let servers = holding(&gate, 2).await;
        let setup = Setup::two_groups(&servers[..1], &servers[1..]);
        let setup = setup.section("policy", &format!("{{ kind: reference_bucket, {tuning} }}"));
        let tidegate = Tidegate::start(&setup).await;
        let mut held = vec![place(&tidegate, &servers, &post(CHAT, &body_of(360_000))).await];
        for _ in 0..4 {
            held.push(place(&tidegate, &servers, &post(CHAT, &body_of(100_000))).await);
        }
        let (at, _client) = place(&tidegate, &servers, &post(CHAT, &body_of(200))).await;
        assert_eq!(at, goes_to, "{tuning}");
    }
}

#[tokio::test]
async fn plain_mode_scores_bytes_and_output_and_picks_the_least() {
    let gate = Gate::closed();
    let servers = holding(&gate, 2).await;
    let setup = Setup::one_group(&servers).section("policy", "{ kind: reference_plain, ties: first }");
    let tidegate = Tidegate::start(&setup).await;
    let body = |rest: &str| format!(r#"{{"prompt":"p"{rest}}}"#).into_bytes();
    let mut held = Vec::new();
    // (rest of the body, output part of the score, server)
    let rows = [
        (r#","max_tokens":1000"#, 500.0, 0),
        (r#","max_tokens":1000,"ignore_eos":true"#, 1_000.0, 1),
        ("", 8.0, 0),
        (r#","max_tokens":2000"#, 1_000.0, 0),
        ("", 8.0, 1),
    ];
    let mut scores = [0.0, 0.0];
    for (rest, output, server) in rows {
        let body = body(rest);
        scores[server] += f64::from(u32::try_from(body.len()).unwrap()) + output;
        let (at, client) = place(&tidegate, &servers, &post("/v1/completions", &body)).await;
        assert_eq!(at, server, "{rest}");
        held.push(client);
        for (server, score) in servers.iter().zip(scores) {
            assert_eq!(tidegate.load(&server.name()).await, score, "{rest}");
        }
    }
}

#[tokio::test]
async fn a_group_shares_its_requests_among_its_own_servers_only() {
    let gate = Gate::closed();
    let servers = holding(&gate, 4).await;
    let tidegate = Tidegate::start(&Setup::two_groups(&servers[..2], &servers[2..])).await;
    let mut held = Vec::new();
    let mut seen = BTreeSet::new();
    for _ in 0..2 {
        let (at, client) = place(&tidegate, &servers, &post(CHAT, &body_of(200_000))).await;
        held.push(client);
        seen.insert(at);
        let (at, client) = place(&tidegate, &servers, &post(CHAT, &body_of(200))).await;
        held.push(client);
        seen.insert(at);
    }
    assert_eq!(seen, BTreeSet::from([0, 1, 2]), "{:?}", counts(&servers));
}
