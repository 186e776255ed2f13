//! Servers that come and go.

use std::path::Path;
use std::sync::atomic::Ordering;

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

/// Replaces a file as a whole.
fn publish(file: &Path, servers: &[&Backend]) {
    let lines: String = servers.iter().map(|server| format!("{}\n", server.address())).collect();
    let new = file.with_extension("new");
    std::fs::write(&new, lines).unwrap();
    std::fs::rename(new, file).unwrap();
}

fn names(status: &serde_json::Value) -> Vec<String> {
    let servers = status["groups"][0]["servers"].as_array().unwrap();
    servers.iter().map(|server| server["name"].as_str().unwrap().to_owned()).collect()
}

async fn has(tidegate: &Tidegate, servers: &[&Backend]) {
    let expected: Vec<String> = servers.iter().map(|server| server.name()).collect();
    until(&format!("the servers are {expected:?}"), async || names(&tidegate.status().await) == expected).await;
}

/// Three servers, in the order of their addresses.
async fn sorted() -> [Backend; 3] {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Backend::start(reply(json_response(200, "{}"))).await);
    }
    servers.sort_by_key(Backend::address);
    servers.try_into().unwrap_or_else(|_| panic!("there are three"))
}

/// So that servers count requests only.
const NO_PROBES: &str = "health: { active: { enabled: false } }\n";
const NO_ENGINES: &str = "engines: { enabled: false }\n";

fn yaml(tidegate_address: impl std::fmt::Display, admin: impl std::fmt::Display, file: &Path, servers: &str) -> String {
    format!(
        "listen: \"{tidegate_address}\"\nadmin: {{ listen: \"{admin}\" }}\npolicy: {{ ties: first }}\n\
         groups: [{{ name: all, up_to_tokens: 131072, servers: [{servers}], \
         discover: {{ file: {}, interval: 100ms }} }}]\n{NO_PROBES}{NO_ENGINES}",
        file.display()
    )
}

#[tokio::test]
async fn servers_from_a_file_come_and_go_while_a_stream_runs() {
    let gate = Gate::closed();
    let streaming = Backend::start(sse(1, &gate)).await;
    let [a, b, listed] = sorted().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("servers");
    let tidegate = Tidegate::start(&Setup::one_group([&streaming])).await;
    let mut stream = tidegate.begin(&post(CHAT, &body_of(400))).await;
    streaming.requests(1).await;

    // The reload brings the source, and comes into force with its servers. The running one is found there by now.
    publish(&file, &[&b, &a]);
    tidegate.write_text(&yaml(tidegate.address, tidegate.admin, &file, &listed.address().to_yaml()));
    assert_eq!(tidegate.admin_post("/reload", "").await.status(), 200);
    assert_eq!(names(&tidegate.status().await), [listed.name(), a.name(), b.name()], "listed first, then by address");
    let generation = tidegate.status().await["config_generation"].clone();

    publish(&file, &[&a, &listed]);
    has(&tidegate, &[&listed, &a]).await;
    // A bad file leaves the servers as they are, and is reported once.
    std::fs::write(&file, "gpu-1:8000\n").unwrap();
    until("the bad line is reported", async || tidegate.stderr().contains("line 1: found gpu-1:8000")).await;
    let failed = async |count| {
        until("the metric says so", async || tidegate.metric("tidegate_discovery_failed", &["file"]).await == count)
            .await;
    };
    failed(1.0).await;
    std::fs::remove_file(&file).unwrap();
    assert_eq!(names(&tidegate.status().await), [listed.name(), a.name()]);
    publish(&file, &[&b]);
    has(&tidegate, &[&listed, &b]).await;
    failed(0.0).await;
    assert_eq!(tidegate.stderr().matches("the servers stay as they are").count(), 1, "{}", tidegate.stderr());
    // An empty one means that there are none.
    publish(&file, &[]);
    has(&tidegate, &[&listed]).await;
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    assert_eq!(listed.count(), 1);
    assert_eq!(tidegate.status().await["config_generation"], generation, "the configuration is the same");
    let text = yaml(tidegate.address, tidegate.admin, &file, &listed.address().to_yaml());
    let text: Vec<&str> = text.split(&format!(", discover: {{ file: {}, interval: 100ms }}", file.display())).collect();
    tidegate.write_text(&text.concat());
    assert_eq!(tidegate.admin_post("/reload", "").await.status(), 200);
    until("the source is forgotten", async || !tidegate.metrics().await.contains("tidegate_discovery_failed{")).await;

    gate.open();
    assert_eq!(stream.response().await.end, End::Complete);
    tidegate.idle().await;
}

#[tokio::test]
async fn a_found_server_is_probed_while_it_is_there_and_again_when_it_has_come_back() {
    let (found, listed) = (Switched::start().await, Switched::start().await);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("servers");
    publish(&file, &[&found.backend]);
    let [address, admin] = Loopback::new().free_ports();
    let text = yaml(address, admin, &file, &listed.backend.address().to_yaml());
    let probes = "health: { active: { interval: 20ms, failures: 2, successes: 1 } }\n";
    let tidegate = Tidegate::start_with(address, admin, &text.replace(NO_PROBES, probes)).await;
    let both = [&listed.backend, &found.backend];
    has(&tidegate, &both).await;
    found.more_probes(2).await;

    publish(&file, &[]);
    has(&tidegate, &[&listed.backend]).await;
    // One may have been on its way.
    listed.more_probes(2).await;
    let probes = found.probes();
    listed.more_probes(10).await;
    assert_eq!(found.probes(), probes, "a server that has left is asked nothing");

    publish(&file, &[&found.backend]);
    has(&tidegate, &both).await;
    for (health, state) in [(503, "out"), (200, "probation"), (503, "out"), (200, "probation")] {
        found.health.store(health, Ordering::SeqCst);
        until(&format!("probes find that it is {state}"), async || {
            tidegate.status().await["groups"][0]["servers"][1]["health"] == state
        })
        .await;
    }
}

#[tokio::test]
async fn a_group_may_start_without_servers_and_fill_later() {
    let [a, b, _] = sorted().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("servers");
    let source = format!("{{ file: {}, interval: 100ms }}", file.display());
    let [address, admin] = Loopback::new().free_ports();
    let text = yaml(address, admin, &file, "");
    assert!(text.contains(&source));
    let tidegate = Tidegate::start_with(address, admin, &text).await;
    assert!(tidegate.stderr().contains("starting without servers from there"), "{}", tidegate.stderr());
    let mut early = tidegate.begin(&post(CHAT, &body_of(200))).await;
    until("it waits", async || tidegate.metric("tidegate_queue_requests", &[]).await == 1.0).await;
    publish(&file, &[&a, &b]);
    has(&tidegate, &[&a, &b]).await;
    assert_eq!(early.response().await.status(), 200);
    assert_eq!((a.count(), b.count()), (1, 0));
}

#[tokio::test]
async fn all_addresses_of_a_name_are_servers() {
    let backend = Backend::start_at("127.0.0.1:0".parse().unwrap(), reply(json_response(200, "{}"))).await;
    let port = backend.address().port();
    let [address, admin] = Loopback::new().free_ports();
    let text = format!(
        "listen: \"{address}\"\nadmin: {{ listen: \"{admin}\" }}\n\
         groups: [{{ name: all, up_to_tokens: 131072, discover: {{ dns: \"localhost:{port}\" }} }}]\n{NO_PROBES}{NO_ENGINES}"
    );
    let tidegate = Tidegate::start_with(address, admin, &text).await;
    let found = names(&tidegate.status().await);
    assert!(found.contains(&backend.name()), "{found:?}");
    assert_eq!(tidegate.status().await["groups"][0]["discover"], format!("dns localhost:{port}"));
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    assert_eq!(backend.count(), 1);
}

#[tokio::test]
async fn a_reload_with_a_source_that_has_no_answer_is_refused() {
    let [a, _, _] = sorted().await;
    let tidegate = Tidegate::start(&Setup::one_group([&a])).await;
    let file = Path::new("/nowhere/servers");
    tidegate.write_text(&yaml(tidegate.address, tidegate.admin, file, ""));
    let refused = tidegate.admin_post("/reload", "").await;
    assert_eq!(refused.status(), 400);
    assert!(refused.text().contains("file /nowhere/servers: cannot be read"), "{}", refused.text());
    assert_eq!(names(&tidegate.status().await), [a.name()]);
}
