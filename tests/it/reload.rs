//! The configuration changes while requests run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::Signal;

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

async fn server() -> Backend {
    Backend::start(reply(json_response(200, "{}"))).await
}

#[tokio::test]
async fn sighup_puts_the_changed_file_in_force() {
    let (old, new) = (server().await, server().await);
    let tidegate = Tidegate::start(&Setup::one_group([&old])).await;
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    assert_eq!(tidegate.status().await["config_trigger"], "start");
    tidegate.write(&Setup::one_group([&new]));
    tidegate.signal(Signal::SIGHUP);
    tidegate.generation(2).await;
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    assert_eq!((old.count(), new.count()), (1, 1));
    let status = tidegate.status().await;
    assert_eq!(status["config_trigger"], "sighup");
    assert_eq!(status["config_source"], tidegate.configuration().display().to_string());
    assert!(status["config_applied_at"].as_str().unwrap().ends_with('Z'), "{status}");
    let changes = [format!("server {}: removed from all", old.name()), format!("server {}: added to all", new.name())];
    assert_eq!(status["config_changes"], serde_json::json!(changes));
}

// B57: bad YAML, empty file, unknown key, duplicate key, a tab, wrong types, an empty group, a missing file. Then the
// right file.
#[tokio::test]
async fn a_bad_file_changes_nothing_and_says_why_and_the_next_good_one_is_taken() {
    let (old, new) = (server().await, server().await);
    let tidegate = Tidegate::start(&Setup::one_group([&old])).await;
    let group = format!("groups: [{{name: all, up_to_tokens: 9, servers: [\"{}\"]}}]\n", new.address());
    for (text, problem) in [
        ("groups: [".to_owned(), "not valid YAML"),
        (String::new(), "holds no configuration"),
        (format!("{group}nonsense: 1\n"), "nonsense: unknown key"),
        (format!("{group}{group}"), "given twice"),
        (format!("{group}retry:\n\tmax_attempts: 1\n"), "a tab stands where"),
        (format!("{group}retry: {{max_attempts: true}}\n"), "retry.max_attempts: found true"),
        ("groups: [{name: all, up_to_tokens: 9, servers: []}]\n".to_owned(), "found an empty list"),
    ] {
        tidegate.write_text(&text);
        let response = tidegate.admin_post("/reload", "").await;
        assert_eq!(response.status(), 400, "{}", response.text());
        assert_eq!(response.json()["error"]["code"], "bad_configuration");
        let problems = response.json()["problems"].to_string();
        assert!(problems.contains(problem), "{problem}: {problems}");
        let status = tidegate.status().await;
        assert_eq!(status["config_generation"], 1);
        assert_eq!(status["config_refused"]["problems"].to_string(), problems);
        assert_eq!(tidegate.metric("tidegate_config_refused", &[]).await, 1.0);
    }
    std::fs::remove_file(tidegate.configuration()).unwrap();
    tidegate.signal(Signal::SIGHUP);
    until("the log says that the file is missing", async || {
        tidegate.stderr().contains("reload (sighup) refused, nothing has changed")
            && tidegate.stderr().contains("cannot be read")
    })
    .await;
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    assert_eq!((old.count(), new.count()), (1, 0));

    tidegate.reload(&Setup::one_group([&new])).await;
    assert_eq!(tidegate.status().await["config_refused"], serde_json::Value::Null);
    assert_eq!(tidegate.metric("tidegate_config_refused", &[]).await, 0.0);
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    assert_eq!((old.count(), new.count()), (1, 1));
}

#[tokio::test]
async fn what_needs_a_restart_is_named_and_the_rest_is_applied() {
    let (old, new) = (server().await, server().await);
    let tidegate = Tidegate::start(&Setup::one_group([&old])).await;
    let [elsewhere] = Loopback::new().free_ports();
    let setup = Setup::one_group([&new]).section("pingora", "{ threads: 3 }");
    tidegate.write_text(&setup.yaml(elsewhere, tidegate.admin));
    for _ in 0..2 {
        let answer = tidegate.admin_post("/reload", "").await.json();
        let expected = [format!("listen: {} -> {elsewhere}", tidegate.address), "pingora.threads: 2 -> 3".to_owned()];
        assert_eq!(answer["needs_restart"], serde_json::json!(expected), "also when it is applied again");
    }
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    assert_eq!((old.count(), new.count()), (0, 1));
    assert_eq!(tidegate.status().await["config"]["listen"][0], tidegate.address.to_string());
}

// B58: settings that change while Tidegate runs have their effect.
#[tokio::test]
async fn each_reloaded_setting_has_its_effect_on_new_requests() {
    let busy = Backend::start(reply(json_response(503, "{}"))).await;
    let other_busy = Backend::start(reply(json_response(503, "{}"))).await;
    let setup = Setup::one_group([&busy, &other_busy]);
    let tidegate = Tidegate::start(&setup).await;
    let mut kept = tidegate.client().await;
    let request = request("POST", CHAT, "X-A: 1\r\n", &body_of(400));
    assert_eq!(kept.exchange(&request).await.status(), 503);
    assert_eq!(busy.count() + other_busy.count(), 3);
    let setup = setup
        .section("retry", "{ max_attempts: 5, base_delay: 1ms, max_delay: 1ms }")
        .section("headers", "{ strip: [x-a] }")
        .section("upstream", "{ api_key: new-key }");
    tidegate.reload(&setup).await;
    busy.forget();
    other_busy.forget();
    assert_eq!(kept.exchange(&request).await.status(), 503);
    assert_eq!(busy.count() + other_busy.count(), 5, "more attempts than Tidegate was started with");
    let received = busy.received().remove(0);
    assert_eq!((received.head.get("x-a"), received.head.get("authorization")), (None, Some("Bearer new-key")));

    tidegate.reload(&setup.clone().section("limits", "{ max_body_size: 399B }")).await;
    assert_eq!(kept.exchange(&request).await.status(), 413);

    // A connection that was there before is idle for too long by the new limit.
    let mut kept = tidegate.client().await;
    assert_eq!(kept.exchange(&get("/healthcheck")).await.status(), 200);
    tidegate.reload(&setup.section("timeouts", "{ client_keepalive: 1s, request_header: 1s }")).await;
    assert_eq!(kept.exchange(&get("/healthcheck")).await.status(), 200);
    kept.closed_within(PATIENCE).await.expect("the idle connection is closed");
    let mut slow = tidegate.begin(b"GET /healthcheck HTTP/1.1\r\n").await;
    slow.closed_within(PATIENCE).await.expect("a header that does not end is given up");
}

#[tokio::test]
async fn a_changed_threshold_moves_new_requests_and_no_running_one() {
    let gate = Gate::closed();
    let short = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let long = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let groups = |up_to| Setup::new().group("short", up_to, [&short]).group("long", 131_072, [&long]);
    let stay = |setup: Setup| setup.section("policy", "{ kind: reference_bucket, redirect_threshold: 1, ties: first }");
    let tidegate = Tidegate::start(&stay(groups(1_000))).await;
    let mut first = tidegate.begin(&post(CHAT, &body_of(2_000))).await;
    short.requests(1).await;
    tidegate.reload(&stay(groups(100))).await;
    assert_eq!(tidegate.load("short").await, 500.0, "what runs stays where it is");
    let mut second = tidegate.begin(&post(CHAT, &body_of(2_000))).await;
    long.requests(1).await;
    gate.open();
    assert_eq!((first.response().await.status(), second.response().await.status()), (200, 200));
    tidegate.idle().await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_watched_file_is_followed_through_the_links_of_a_config_map() {
    let (old, new) = (server().await, server().await);
    let setup = |server| Setup::one_group([server]).section("watch", "true");
    let tidegate = Tidegate::start(&setup(&old)).await;
    let file = tidegate.configuration();
    let folder = file.parent().unwrap();
    // As the kubelet does: tidegate.yaml -> ..data/tidegate.yaml, and ..data -> ..1, which is swapped.
    let publish = |version: &str, text: &str| {
        std::fs::create_dir(folder.join(version)).unwrap();
        std::fs::write(folder.join(version).join("tidegate.yaml"), text).unwrap();
        std::os::unix::fs::symlink(version, folder.join("..tmp")).unwrap();
        std::fs::rename(folder.join("..tmp"), folder.join("..data")).unwrap();
    };
    publish("..1", &setup(&old).yaml(tidegate.address, tidegate.admin));
    std::os::unix::fs::symlink("..data/tidegate.yaml", folder.join("link")).unwrap();
    std::fs::rename(folder.join("link"), &file).unwrap();

    publish("..2", "groups: nonsense\n");
    until("the bad file is reported", async || tidegate.stderr().contains("found nonsense")).await;
    publish("..3", &setup(&new).yaml(tidegate.address, tidegate.admin));
    tidegate.generation(2).await;
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    assert_eq!((old.count(), new.count()), (0, 1));
    assert_eq!(tidegate.status().await["config_trigger"], "watch");
    assert_eq!(tidegate.stderr().matches("found nonsense").count(), 1, "{}", tidegate.stderr());
}

#[tokio::test]
async fn nothing_administrative_is_on_the_clients_port() {
    let backend = Backend::start(reply(json_response(404, "{}"))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&backend])).await;
    for path in ["/reload", "/drain?server=x", "/undrain?server=x", "/status", "/metrics"] {
        assert_eq!(tidegate.exchange(&post(path, b"{}")).await.status(), 404, "{path}");
    }
    assert_eq!(backend.count(), 5, "they are the server's paths there");
    assert_eq!(tidegate.status().await["config_generation"], 1);
}

#[tokio::test]
async fn with_a_token_a_reload_needs_it_and_the_token_changes_with_the_reload() {
    let backend = server().await;
    let tidegate = Tidegate::start(&Setup::one_group([&backend])).await;
    let (address, admin) = (tidegate.address, tidegate.admin);
    let text = Setup::one_group([&backend]).yaml(address, admin);
    let with = |token: &str| text.replace("admin: { ", &format!("admin: {{ token: {token}, protect_reads: true, "));
    tidegate.write_text(&with("one"));
    assert_eq!(tidegate.admin_post("/reload", "").await.status(), 200);
    let refused = tidegate.admin_post("/reload", "").await;
    assert_eq!((refused.status(), refused.head.get("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(refused.json()["error"]["code"], "unauthorized");
    assert_eq!(Client::connect(admin).await.exchange(&get("/status")).await.status(), 401);
    assert_eq!(Client::connect(admin).await.exchange(&get("/healthz")).await.status(), 200);
    tidegate.write_text(&with("two"));
    assert_eq!(tidegate.admin_post("/reload", "Authorization: Bearer one\r\n").await.status(), 200);
    assert_eq!(tidegate.admin_post("/reload", "Authorization: Bearer one\r\n").await.status(), 401);
    let answer = tidegate.admin_post("/reload", "Authorization: Bearer two\r\n").await;
    assert_eq!(answer.status(), 200);
    assert!(!format!("{}{}", answer.text(), tidegate.stderr()).contains("Bearer"), "the token is nowhere");
}

/// Begins streams, ends them when the gate opens, and answers everything else at once.
fn streams_and_answers(gate: &Gate) -> impl Fn(Conn) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> + use<> {
    let gate = gate.clone();
    move |mut conn| {
        let gate = gate.clone();
        Box::pin(async move {
            while let Some(request) = conn.request().await {
                let is_stream = String::from_utf8_lossy(&request.body).contains("\"stream\":true");
                let goes_on = if is_stream {
                    let event = sse_event(0);
                    let head =
                        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
                    conn.send(format!("{head}{:x}\r\n{event}\r\n", event.len())).await
                        && conn.unless_closed(gate.pass()).await.is_some()
                        && conn.send("e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n").await
                } else {
                    conn.send(json_response(200, "{}")).await
                };
                if !goes_on {
                    return;
                }
            }
        })
    }
}

/// The servers in two groups, another way for each `round`: moved, left out, drained, and with other thresholds.
fn shuffled(servers: &[Backend], round: usize) -> Setup {
    let mut groups: [Vec<String>; 2] = Default::default();
    for (index, server) in servers.iter().enumerate() {
        let place = (index * 7 + round * 3 + index * round) % 5;
        // The first two keep each group alive.
        let group = if index < 2 { (index + round) % 2 } else { place % 2 };
        match place {
            4 if index >= 2 => {}
            3 if index >= 2 => groups[group].push(format!("{{ address: \"{}\", drain: true }}", server.address())),
            _ => groups[group].push(server.address().to_yaml()),
        }
    }
    let [short, long] = groups;
    let threshold = [50, 200, 1_000, 30_000][round % 4];
    Setup::new().group("short", threshold, short).group("long", 131_072, long)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_reloads_that_move_everything_lose_no_request_and_no_stream() {
    let gate = Gate::closed();
    let mut servers = Vec::new();
    for _ in 0..6 {
        servers.push(Backend::start(streams_and_answers(&gate)).await);
    }
    let tidegate = Arc::new(Tidegate::start(&shuffled(&servers, 0)).await);
    let is_over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|number| {
            let (tidegate, is_over) = (Arc::clone(&tidegate), Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut client = tidegate.client().await;
                let mut count = 0_u32;
                while !is_over.load(Ordering::Relaxed) {
                    let body = body_of([200, 900, 5_000, 150_000][(count as usize + number) % 4]);
                    let response = client.exchange(&post(CHAT, &body)).await;
                    assert_eq!((response.status(), response.end.clone()), (200, End::Complete), "{}", response.text());
                    count += 1;
                }
                count
            })
        })
        .collect();
    let mut streams = Vec::new();
    for round in 1..=20 {
        let mut stream = tidegate.begin(&post(CHAT, br#"{"model":"m","stream":true,"prompt":"x"}"#)).await;
        assert_eq!(stream.head().await.status(), 200);
        streams.push(stream);
        tidegate.reload(&shuffled(&servers, round)).await;
    }
    tidegate.generation(21).await;
    is_over.store(true, Ordering::Relaxed);
    let mut requests = 20;
    for client in clients {
        requests += client.await.unwrap();
    }
    gate.open();
    for mut stream in streams {
        let (body, end) = stream.rest().await;
        assert_eq!(end, End::Complete);
        assert!(String::from_utf8(body).unwrap().ends_with("data: [DONE]\n\n"));
    }
    tidegate.idle().await;
    tidegate.finished(requests).await;
    assert_eq!(tidegate.metric("tidegate_requests_total", &["outcome=\"complete\""]).await, f64::from(requests));
    assert_eq!(tidegate.metric("tidegate_retries_total", &[]).await, 0.0);
    let status = tidegate.status().await;
    assert_eq!(status["leaving"], serde_json::json!([]));
    assert!(requests > 100, "there was load: {requests}");
}

#[tokio::test]
async fn how_the_process_ends_follows_the_configuration_in_force() {
    let gate = Gate::closed();
    let server = Backend::start(sse_held(&gate)).await;
    let setup = |grace: &str| Setup::one_group([&server]).section("shutdown", &format!("{{ grace: {grace} }}"));
    let mut tidegate = Tidegate::start(&setup("1h")).await;
    let mut stream = tidegate.begin(&post(CHAT, b"{}")).await;
    assert_eq!(stream.head().await.status(), 200);
    tidegate.reload(&setup("100ms")).await;
    assert!(tidegate.terminate().await.success());
    assert!(tidegate.stderr().contains("stopped: 1 running requests were cut off"), "{}", tidegate.stderr());
}

#[tokio::test]
async fn a_successor_is_reloaded_as_its_predecessor_was() {
    let (first, second) = (server().await, server().await);
    let setup = |server| Setup::one_group([server]).section("pingora", "{ threads: 2, upgrade_sock: upgrade.sock }");
    let mut old = Tidegate::start(&setup(&first)).await;
    let new = old.start_successor();
    old.signal(Signal::SIGQUIT);
    assert!(old.ended().await.success());
    new.write(&setup(&second));
    new.signal(Signal::SIGHUP);
    new.generation(2).await;
    assert_eq!(new.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    assert_eq!((first.count(), second.count()), (0, 1));
}

#[tokio::test]
async fn how_much_is_logged_changes_with_the_file() {
    let server = Backend::start(echo()).await;
    let setup = |level: &str| Setup::one_group([&server]).section("log", &format!("{{ level: {level} }}"));
    let tidegate = Tidegate::start(&setup("info")).await;
    let ask = async |id: &str| {
        let asked = request("POST", "/v1/completions", &format!("x-request-id: {id}\r\n"), b"{}");
        assert_eq!(tidegate.exchange(&asked).await.status(), 200);
    };
    ask("quiet-1").await;
    tidegate.reload(&setup("debug")).await;
    ask("loud").await;
    tidegate.logs("request loud has ended: complete").await;
    tidegate.reload(&setup("warn")).await;
    ask("quiet-2").await;
    tidegate.reload(&setup("info")).await;
    tidegate.logs("log.level: warn -> info").await;
    let log = tidegate.stderr();
    assert!(!log.contains("quiet-1") && !log.contains("quiet-2") && !log.contains("log.level: debug -> warn"), "{log}");
}
