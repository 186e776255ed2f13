//! A Tidegate, its servers, and the model of both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::model::{Asked, Ending, Model, SHORT_UP_TO};
use super::timed;
use crate::support::*;

/// Bytes of a short request, and of a long one.
pub(super) const SHORT: u32 = 4_000;
pub(super) const LONG: u32 = 200_000;

const KEY: &str = "Authorization: Bearer very-secret-key\r\n";

/// A chat request with a body of so many bytes.
pub(super) fn chat(bytes: u32, what: &'static str) -> Asked {
    Asked { endpoint: "chat", path: "/v1/chat/completions", bytes, what }
}

/// A request with the key that is let in.
pub(super) fn with_key(method: &str, asked: &Asked) -> Vec<u8> {
    let length = usize::try_from(asked.bytes).unwrap();
    let body = if asked.is_generation() { body_of(length) } else { vec![b' '; length] };
    request(method, asked.path, &format!("{KEY}X-Do: {}\r\n", asked.what), &body)
}

/// Families of which only the test by work sees a sample.
pub(super) const ONLY_BY_WORK: [&str; 16] = [
    "tidegate_discovery_failed",
    "tidegate_engine_drift_requests",
    "tidegate_engine_kv_usage_ratio",
    "tidegate_engine_running_requests",
    "tidegate_engine_scrapes",
    "tidegate_engine_waiting_requests",
    "tidegate_held_for_seconds",
    "tidegate_long_from_prefill_seconds",
    "tidegate_long_work_share",
    "tidegate_mean_output_tokens",
    "tidegate_server_context_tokens",
    "tidegate_server_lane",
    "tidegate_server_prefill_seconds",
    "tidegate_server_prefilling_long_requests",
    "tidegate_server_prefilling_requests",
    "tidegate_shadow_choices",
];

/// Needs a TLS listener; see `tls_clients`.
pub(super) const CERTIFICATE: &str = "tidegate_tls_certificate_valid_until_seconds";

/// The families that the program declares and that are not on a page.
pub(super) fn unseen(page: &Scraped) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/metrics");
    let mut declared = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            let source = std::fs::read_to_string(path).unwrap();
            let literals = source.split('"').skip(1).step_by(2);
            let names = literals.filter(|text| text.starts_with("tidegate_") || text.starts_with("process_"));
            declared.extend(names.map(str::to_owned));
        }
    }
    assert!(declared.len() > 50, "{declared:?}");
    declared.retain(|name| !page.kinds.contains_key(name) && !page.kinds.contains_key(&format!("{name}_total")));
    declared.into_iter().collect()
}

/// What servers are asked by Tidegate itself.
const PROBE: &str = "GET /health ";
const MODELS: &str = "GET /v1/models ";
const ENGINE: &str = "GET /metrics ";

const MODEL_LIST: &str = r#"{"object":"list","data":[{"id":"tiny","max_model_len":131072}]}"#;

/// A server that does what requests ask it to.
pub(super) struct Server {
    pub(super) backend: Backend,
    pub(super) gate: Gate,
    /// The status of its health page.
    pub(super) health: Arc<AtomicU16>,
    /// Probes that it has answered badly, and well.
    probes: Arc<[AtomicU32; 2]>,
    pub(super) engine: Arc<Engine>,
}

/// What a server says of its engine.
#[derive(Default)]
pub(super) struct Engine {
    /// Requests that run in it and did not come through Tidegate.
    pub(super) foreign: AtomicU32,
    own: AtomicU32,
    /// How often it has said so.
    pub(super) asked: AtomicU32,
}

impl Engine {
    fn page(&self) -> String {
        let running = self.foreign.load(Ordering::SeqCst) + self.own.load(Ordering::SeqCst);
        format!(
            "vllm:num_requests_running{{engine=\"0\"}} {running}.0\nvllm:num_requests_waiting{{engine=\"0\"}} 0.0\n\
             vllm:kv_cache_usage_perc{{engine=\"0\"}} 0.25\n"
        )
    }
}

impl Server {
    pub(super) async fn start(name: &'static str) -> Self {
        let (gate, health) = (Gate::closed(), Arc::new(AtomicU16::new(200)));
        let probes: Arc<[AtomicU32; 2]> = Arc::default();
        let engine: Arc<Engine> = Arc::default();
        let (its_gate, its_health, its_probes) = (gate.clone(), Arc::clone(&health), Arc::clone(&probes));
        let its_engine = Arc::clone(&engine);
        let backend = Backend::start(move |mut conn: Conn| {
            let (gate, health, probes) = (its_gate.clone(), Arc::clone(&its_health), Arc::clone(&its_probes));
            let engine = Arc::clone(&its_engine);
            async move {
                while let Some(request) = conn.request().await {
                    let line = &request.head.line;
                    if line.starts_with(PROBE) {
                        let status = health.load(Ordering::SeqCst);
                        if !conn.send(json_response(status, "{}")).await {
                            return;
                        }
                        probes[usize::from(status == 200)].fetch_add(1, Ordering::SeqCst);
                        continue;
                    }
                    if line.starts_with(ENGINE) || line.starts_with(MODELS) {
                        let is_engine = line.starts_with(ENGINE);
                        let page = if is_engine { engine.page() } else { MODEL_LIST.to_owned() };
                        if !conn.send(json_response(200, &page)).await {
                            return;
                        }
                        engine.asked.fetch_add(u32::from(is_engine), Ordering::SeqCst);
                        continue;
                    }
                    let asked = request.head.get("x-do").unwrap_or_default().to_owned();
                    let parts = || asked.split(',').map(|part| part.split_once('@').unwrap_or((part, name)));
                    let what = parts().find(|(_, server)| *server == name).map_or("", |(what, _)| what);
                    engine.own.fetch_add(1, Ordering::SeqCst);
                    let goes_on = answer(&mut conn, what, &gate).await;
                    engine.own.fetch_sub(1, Ordering::SeqCst);
                    if !goes_on {
                        return drop(tokio::time::timeout(PATIENCE, conn.finish()).await);
                    }
                }
            }
        })
        .await;
        Self { backend, gate, health, probes, engine }
    }

    /// Probes that were answered, by whether they passed.
    pub(super) fn probes(&self, passed: bool) -> u32 {
        self.probes[usize::from(passed)].load(Ordering::SeqCst)
    }

    /// The connections on which requests of clients came, in order.
    pub(super) fn connections(&self) -> Vec<usize> {
        let received = self.backend.received().into_iter();
        let received =
            received.filter(|request| ![PROBE, MODELS, ENGINE].iter().any(|line| request.head.line.starts_with(line)));
        received.map(|request| request.connection).collect()
    }
}

/// Answers a request; false when the connection is over.
async fn answer(conn: &mut Conn, what: &str, gate: &Gate) -> bool {
    let good = json_response(200, r#"{"usage":{"prompt_tokens":1000,"completion_tokens":3}}"#);
    match what {
        "hold" => conn.unless_closed(gate.pass()).await.is_some() && conn.send(good).await,
        "stream" => sse_answer(conn, 3, gate).await,
        "leaving" => {
            let text = r#"{"error":{"message":"cannot schedule new futures after shutdown","code":500}}"#;
            conn.send(json_response(500, text)).await
        }
        "error" => {
            let event = "data: {\"error\":{\"message\":\"the engine is dead\",\"code\":500}}\n\n";
            let header = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length";
            conn.send(format!("{header}: {}\r\n\r\n{event}", event.len())).await
        }
        "too-long" => {
            let text = r#"{"error":{"message":"This model's maximum context length is 9 tokens.","code":400}}"#;
            conn.send(json_response(400, text)).await
        }
        "silent" => {
            conn.closed().await;
            false
        }
        "close" => false,
        "break" => {
            conn.send("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nstart").await;
            false
        }
        "" => conn.send(good).await,
        status => conn.send(json_response(status.parse().unwrap(), "{}")).await,
    }
}

pub(super) struct Scenario {
    pub(super) tidegate: Tidegate,
    pub(super) model: Model,
    servers: BTreeMap<&'static str, Server>,
    folder: tempfile::TempDir,
    started: Instant,
    before: Option<Scraped>,
}

impl Scenario {
    pub(super) async fn start() -> Self {
        let mut servers = BTreeMap::new();
        for name in ["a", "b", "c", "d"] {
            servers.insert(name, Server::start(name).await);
        }
        let (folder, started) = (tempfile::tempdir().unwrap(), Instant::now());
        let setup = setup(&servers, &folder, &["a", "b"], &["c"], true);
        let mut model = Model::default();
        model.follow(&[("short", &["a", "b"]), ("long", &["c"])]);
        model.health = ["a", "b", "c"].map(|server| (server, "healthy")).into();
        Self { tidegate: Tidegate::start(&setup).await, model, servers, folder, started, before: None }
    }

    pub(super) fn server(&self, name: &str) -> &Server {
        &self.servers[name]
    }

    pub(super) fn gate(&self, name: &str) -> Gate {
        self.servers[name].gate.clone()
    }

    /// Whether the latest request came to the server over a connection that it had before.
    pub(super) fn was_reused(&self, name: &str) -> bool {
        let connections = self.servers[name].connections();
        let (last, earlier) = connections.split_last().expect("a request came");
        earlier.contains(last)
    }

    /// Sends a request and waits until a server has it.
    pub(super) async fn begin(&mut self, asked: Asked, server: &'static str) -> Client {
        let before = self.servers[server].connections().len();
        let client = self.tidegate.begin(&with_key("POST", &asked)).await;
        until(&format!("{server} has {asked:?}"), async || self.servers[server].connections().len() > before).await;
        self.model.arrives(&asked);
        self.model.body_came(&asked);
        self.model.placed(asked, server, &[]);
        client
    }

    /// Notes a whole answer.
    pub(super) fn answered(&mut self, asked: Asked, server: &'static str, answer: &Response) {
        assert_eq!(answer.end, End::Complete);
        self.model.attempt_ended(&asked, server, "answered");
        self.model.over(&asked, &Ending::complete(server, answer.status(), answer.body.len()));
    }

    /// Sends a request that a server answers.
    pub(super) async fn exchange(&mut self, asked: Asked, server: &'static str) {
        let mut client = self.begin(asked, server).await;
        let answer = client.response().await;
        self.answered(asked, server, &answer);
    }

    /// Sends a request whose attempt on `a` ends so, and which `b` answers.
    pub(super) async fn retried(&mut self, asked: Asked, result: &str, reason: &str) {
        let mut client = self.begin(asked, "a").await;
        let answer = client.response().await;
        assert_eq!(answer.status(), 200);
        self.model.attempt_ended(&asked, "a", result);
        self.model.count("tidegate_retries_total", &[("reason", reason)]);
        self.model.placed(asked, "b", &["a"]);
        self.answered(asked, "b", &answer);
    }

    /// Sends a request that has to wait.
    pub(super) async fn waits(&mut self, asked: Asked) -> Client {
        let client = self.tidegate.begin(&with_key("POST", &asked)).await;
        self.model.arrives(&asked);
        self.model.body_came(&asked);
        self.model.waits(asked);
        client
    }

    /// Sends a request that is refused when it asks for a server.
    pub(super) async fn rejected(&mut self, asked: Asked, reason: &str) {
        let answer = self.tidegate.exchange(&with_key("POST", &asked)).await;
        assert_eq!(answer.head.get("x-tidegate-error"), Some(reason), "{}", answer.text());
        let ending = Ending::without_answer("rejected", Some(answer.status()), answer.body.len());
        self.model.over(&asked, &ending);
        self.model.rejected(reason);
    }

    pub(super) async fn drain(&mut self, servers: &[&'static str]) {
        for server in servers {
            assert_eq!(self.tidegate.admin_post(&format!("/drain?server={server}"), "").await.status(), 200);
            self.model.draining.insert(server);
        }
    }

    pub(super) async fn undrain(&mut self, servers: &[&'static str]) {
        for server in servers {
            assert_eq!(self.tidegate.admin_post(&format!("/undrain?server={server}"), "").await.status(), 200);
            self.model.draining.remove(server);
        }
    }

    /// Puts these servers in force. When there is no time, servers are to be quick, requests do not wait for long, and
    /// servers are not asked how they are.
    pub(super) async fn reload(&mut self, short: &[&'static str], long: &[&'static str], has_time: bool) {
        self.tidegate.reload(&setup(&self.servers, &self.folder, short, long, has_time)).await;
        self.model.follow(&[("short", short), ("long", long)]);
    }

    /// Nothing runs, and what was counted adds up.
    pub(super) async fn is_idle(&self) {
        self.tidegate.idle().await;
        let page = Scraped::text(&self.tidegate.metrics().await);
        let lines = std::fs::read_to_string(self.folder.path().join("access.log")).unwrap();
        assert_eq!(page.sum("tidegate_requests_total"), lines.lines().map(|_| 1.0).sum::<f64>());
        assert_eq!(page.sum("tidegate_attempts_total"), page.sum("tidegate_decisions_total"));
        assert_eq!(unseen(&page), [&ONLY_BY_WORK[..], &[CERTIFICATE]].concat());
    }

    /// Compares the whole page, in both formats, and the status with what has happened.
    ///
    /// # Panics
    /// When they do not agree in time.
    pub(super) async fn check(&mut self, step: &str) {
        let mut wrong = Vec::new();
        let agree = async {
            loop {
                match self.compare().await {
                    Ok(page) => return page,
                    Err(differences) => wrong = differences,
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let agreed = tokio::time::timeout(PATIENCE, agree).await;
        self.before = Some(agreed.unwrap_or_else(|_| panic!("{step}:\n{}\n", wrong.join("\n"))));
    }

    async fn compare(&self) -> Result<Scraped, Vec<String>> {
        let (page, mut wrong) = scrape(&self.tidegate).await;
        let (_, exact) = timed::split(&page);
        wrong.extend(differences(&exact, &self.expected()));
        wrong.extend(timed::faults(&page, self.before.as_ref(), self.started.elapsed()));
        if wrong.is_empty() { Ok(page) } else { Err(wrong) }
    }

    /// What the model says, and what servers have seen.
    fn expected(&self) -> BTreeMap<String, f64> {
        let mut samples = self.model.samples();
        for (name, server) in &self.servers {
            for (passed, result) in [(true, "passed"), (false, "failed")] {
                let probes = server.probes(passed);
                if probes > 0 {
                    samples.insert(
                        series("tidegate_probes_total", &[("server", name), ("result", result)]),
                        probes.into(),
                    );
                }
            }
        }
        samples.extend(connections(self.servers.values()));
        samples
    }
}

/// The page, and where it is another one in OpenMetrics or says something else than the status.
pub(super) async fn scrape(tidegate: &Tidegate) -> (Scraped, Vec<String>) {
    let page = Scraped::text(&tidegate.metrics().await);
    let asking = b"GET /metrics HTTP/1.1\r\nHost: admin\r\nAccept: application/openmetrics-text\r\n\r\n";
    let answer = Client::connect(tidegate.admin).await.exchange(asking).await;
    let open_metrics = Scraped::open_metrics(&answer.text());
    let mut wrong = beside_status(&page, &tidegate.status().await);
    if open_metrics.kinds != page.kinds {
        wrong.push("the formats have other families".to_owned());
    }
    let [text, open] = [&page, &open_metrics].map(|page| {
        let mut samples = page.samples.clone();
        samples.retain(|series, _| !timed::moves_by_itself(series));
        samples
    });
    wrong.extend(differences(&open, &text).into_iter().map(|line| format!("in OpenMetrics: {line}")));
    (page, wrong)
}

/// The connections that servers have seen, as samples.
pub(super) fn connections<'a>(servers: impl Iterator<Item = &'a Server>) -> [(String, f64); 2] {
    let mut counts = [0.0; 2];
    for server in servers {
        let all = server.connections();
        for (place, connection) in all.iter().enumerate() {
            counts[usize::from(all[..place].contains(connection))] += 1.0;
        }
    }
    let sample = |reused: &str, count| (series("tidegate_server_connections_total", &[("reused", reused)]), count);
    [sample("false", counts[0]), sample("true", counts[1])]
}

fn setup(
    servers: &BTreeMap<&'static str, Server>,
    folder: &tempfile::TempDir,
    short: &[&'static str],
    long: &[&'static str],
    has_time: bool,
) -> Setup {
    // Nobody listens where a server is that was not started.
    let nobody = || format!("\"{}\"", closed_address());
    let yaml = |name: &&str| servers.get(name).map_or_else(nobody, |server| server.backend.address().to_yaml());
    let yaml = |names: &[&'static str]| {
        let server = |name| format!("{{ name: {name}, address: {} }}", yaml(name));
        names.iter().map(server).collect::<Vec<_>>()
    };
    let log = folder.path().join("access.log");
    let [max_wait, timeouts] =
        if has_time { ["60s", "{ first_byte: 15m }"] } else { ["200ms", "{ first_byte: 200ms }"] };
    let health = format!(
        "{{ active: {{ enabled: {has_time}, interval: 300ms, timeout: 5s, failures: 2, successes: 1 }}, \
         passive: {{ base_ejection: 1h, max_ejection: 1h }}, probation: {{ successes: 1 }} }}"
    );
    Setup::new()
        .group("short", SHORT_UP_TO.into(), yaml(short))
        .group("long", 131_072, yaml(long))
        .section("access", "{ keys: [{ name: team, key: very-secret-key }] }")
        .section("access_log", &format!("{{ format: json, path: \"{}\" }}", log.display()))
        .section("limits", "{ max_body_size: 1MiB }")
        .section("queue", &format!("{{ max_requests: 1, max_wait: {max_wait} }}"))
        .section("timeouts", timeouts)
        .section("health", &health)
}

/// What the page and the status both say, and not alike.
fn beside_status(page: &Scraped, status: &Value) -> Vec<String> {
    let mut said = BTreeMap::new();
    let mut say = |name: &str, labels: &[(&str, &str)], value: &Value| {
        let number = value.as_f64().or_else(|| value.as_bool().map(|is_so| f64::from(u8::from(is_so))));
        said.insert(series(name, labels), number.unwrap_or_else(|| panic!("{name} in the status: {value}")));
    };
    say("tidegate_start_time_seconds", &[], &status["start_time_seconds"]);
    say("tidegate_config_generation", &[], &status["config_generation"]);
    say("tidegate_config_refused", &[], &(!status["config_refused"].is_null()).into());
    for group in status["groups"].as_array().unwrap() {
        let name = group["name"].as_str().unwrap();
        for (metric, key) in [
            ("group_load_tokens", "load_tokens"),
            ("group_in_flight_requests", "in_flight"),
            ("queue_requests", "waiting"),
        ] {
            say(&format!("tidegate_{metric}"), &[("group", name)], &group[key]);
        }
        for server in group["servers"].as_array().unwrap() {
            let labels = [("group", name), ("server", server["name"].as_str().unwrap())];
            for (metric, key) in
                [("load_tokens", "load_tokens"), ("in_flight_requests", "in_flight"), ("draining", "draining")]
            {
                say(&format!("tidegate_server_{metric}"), &labels, &server[key]);
            }
            let labels = [labels[1], ("state", server["health"].as_str().unwrap())];
            say("tidegate_server_health", &labels, &true.into());
        }
    }
    let work = &status["work"];
    for server in work["servers"].as_array().into_iter().flatten() {
        let labels = [("group", "all"), ("server", server["name"].as_str().unwrap())];
        for (metric, key) in [
            ("prefill_seconds", "prefill_seconds"),
            ("prefilling_requests", "prefilling"),
            ("prefilling_long_requests", "prefilling_long"),
            ("context_tokens", "context_tokens"),
        ] {
            say(&format!("tidegate_server_{metric}"), &labels, &server[key]);
        }
        let is_lane = work["lanes"].as_array().unwrap().contains(&server["name"]);
        say("tidegate_server_lane", &labels, &is_lane.into());
    }
    let mut wrong: Vec<String> = said
        .iter()
        .filter(|(series, value)| page.samples.get(*series) != Some(value))
        .map(|(series, value)| format!("{series} is {value} in the status"))
        .collect();
    let mut sum = |what: &str, value: &Value, of: f64| {
        if value.as_f64() != Some(of) {
            let mut line = String::new();
            write!(line, "{what} are {value} in the status, not {of}").unwrap();
            wrong.push(line);
        }
    };
    for (outcome, count) in status["totals"]["requests"].as_object().unwrap() {
        let with_outcome = page.samples.iter().filter(|(series, _)| {
            series.starts_with("tidegate_requests_total{") && series.contains(&format!("outcome=\"{outcome}\""))
        });
        sum(outcome, count, with_outcome.map(|(_, count)| count).sum());
    }
    for agreement in
        status["shadow"].as_object().into_iter().flat_map(|_| ["same_server", "same_group", "other_group", "none"])
    {
        let agreeing = page.samples.iter().filter(|(series, _)| {
            series.starts_with("tidegate_shadow_choices_total{")
                && series.contains(&format!("agreement=\"{agreement}\""))
        });
        sum(agreement, &status["shadow"][agreement], agreeing.map(|(_, count)| count).sum());
    }
    sum("retries", &status["totals"]["retries"], page.sum("tidegate_retries_total"));
    sum("redirects", &status["totals"]["redirects"], page.sum("tidegate_redirects_total"));
    wrong
}
