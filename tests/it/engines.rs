//! What the servers' engines are asked, and what becomes of their answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";

/// An engine as it is seen from outside.
#[derive(Default)]
struct Engine {
    running: AtomicU64,
    waiting: AtomicU64,
    prompt_tokens: AtomicU64,
    /// A status, or [`SILENT`] or [`RESET`].
    metrics: AtomicU16,
    models: AtomicU16,
    max_model_len: AtomicU64,
    /// The engine counts a token for so many bytes of a request.
    bytes_per_token: AtomicU64,
}

/// A server with an engine. Completions come when the gate lets them.
struct Served {
    backend: Backend,
    engine: Arc<Engine>,
}

impl Served {
    async fn start(max_model_len: u64) -> Self {
        Self::start_with(max_model_len, &opened()).await
    }

    async fn start_with(max_model_len: u64, gate: &Gate) -> Self {
        let engine = Arc::new(Engine {
            metrics: 200.into(),
            models: 200.into(),
            max_model_len: max_model_len.into(),
            bytes_per_token: 4.into(),
            ..Engine::default()
        });
        let (its_engine, gate) = (Arc::clone(&engine), gate.clone());
        let backend = Backend::start(move |mut conn: Conn| {
            let (engine, gate) = (Arc::clone(&its_engine), gate.clone());
            async move {
                while let Some(request) = conn.request().await {
                    let is_alive = match request.head.line.split(' ').nth(1).unwrap() {
                        "/metrics" => page(&mut conn, &engine.metrics, &engine.metrics_page()).await,
                        "/v1/models" => page(&mut conn, &engine.models, &engine.models_page()).await,
                        _ => {
                            let tokens = request.body.len() as u64 / engine.bytes_per_token.load(Ordering::SeqCst);
                            engine.prompt_tokens.fetch_add(tokens, Ordering::SeqCst);
                            sse_answer(&mut conn, 2, &gate).await
                        }
                    };
                    if !is_alive {
                        return;
                    }
                }
            }
        })
        .await;
        Self { backend, engine }
    }

    /// How often it was asked for something.
    fn asked(&self, path: &str) -> usize {
        self.questions(path).len()
    }

    fn questions(&self, path: &str) -> Vec<Received> {
        let line = format!("GET {path} ");
        self.backend.received().into_iter().filter(|request| request.head.line.starts_with(&line)).collect()
    }

    fn completions(&self) -> usize {
        self.backend.received().iter().filter(|request| request.head.line.starts_with("POST ")).count()
    }

    async fn is_asked_again(&self, path: &str) {
        let before = self.asked(path);
        until(&format!("it is asked for {path} again"), async || self.asked(path) > before).await;
    }
}

/// Answers with a page; false when the connection is of no more use.
async fn page(conn: &mut Conn, status: &AtomicU16, body: &str) -> bool {
    match status.load(Ordering::SeqCst) {
        SILENT => {
            conn.closed().await;
            false
        }
        status => conn.send(json_response(status, body)).await,
    }
}

impl Engine {
    fn metrics_page(&self) -> String {
        let [running, waiting, prompt_tokens] =
            [&self.running, &self.waiting, &self.prompt_tokens].map(|count| count.load(Ordering::SeqCst));
        format!(
            "# TYPE vllm:num_requests_running gauge\n\
             vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} {running}.0\n\
             vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} {waiting}.0\n\
             vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\"}} 0.25\n\
             vllm:prompt_tokens_total{{engine=\"0\",model_name=\"m\"}} {prompt_tokens}.0\n\
             vllm:generation_tokens_total{{engine=\"0\",model_name=\"m\"}} 0.0\n"
        )
    }

    fn models_page(&self) -> String {
        let most = self.max_model_len.load(Ordering::SeqCst);
        let cards = format!(r#"{{"id":"m","max_model_len":{most}}},{{"id":"lora","max_model_len":null}}"#);
        format!(r#"{{"object":"list","data":[{cards}]}}"#)
    }
}

const OFTEN: &str = "{ interval: 20ms, timeout: 200ms }";

/// What was reported is fresh for three seconds.
const EACH_SECOND: &str = "{ interval: 1s }";

fn setup<'a>(servers: impl IntoIterator<Item = &'a Served>, engines: &str) -> Setup {
    Setup::one_group(servers.into_iter().map(|server| &server.backend))
        .section("policy", "{ kind: least_work }")
        .section("engines", engines)
}

fn completion(prompt_bytes: usize) -> Vec<u8> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let prose = format!("Number {number}. ")
        + &"The gate opens when the water stands high enough. ".repeat(prompt_bytes / 50 + 1);
    let body = serde_json::json!({ "model": "m", "stream": true, "max_tokens": 9, "prompt": &prose[..prompt_bytes] });
    post(COMPLETIONS, body.to_string().as_bytes())
}

/// What the status says of a server's engine.
async fn engine_of(tidegate: &Tidegate, server: &Served) -> serde_json::Value {
    let status = tidegate.status().await;
    let servers = status["groups"][0]["servers"].as_array().unwrap();
    servers.iter().find(|found| found["name"] == server.backend.name().as_str()).unwrap()["engine"].clone()
}

async fn is_known(tidegate: &Tidegate, server: &Served, max_model_len: u64) {
    until(&format!("{max_model_len} is known"), async || {
        engine_of(tidegate, server).await["max_model_len"] == max_model_len
    })
    .await;
}

async fn gauge(tidegate: &Tidegate, name: &str, server: &Served) -> Option<f64> {
    let (metrics, label) = (tidegate.metrics().await, format!("server=\"{}\"", server.backend.name()));
    let mut lines = metrics.lines().filter(|line| line.starts_with(name) && line.contains(&label));
    lines.next().map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
}

async fn scrapes(tidegate: &Tidegate, server: &Served, result: &str) -> f64 {
    let labels = [&*format!("server=\"{}\"", server.backend.name()), &*format!("result=\"{result}\"")];
    tidegate.metric("tidegate_engine_scrapes_total", &labels).await
}

#[tokio::test]
async fn requests_go_where_they_fit_as_the_servers_say_themselves() {
    let [small, large] = [Served::start(8_192).await, Served::start(65_536).await];
    let tidegate = Tidegate::start(&setup([&small, &large], "{ interval: 1h }")).await;
    is_known(&tidegate, &small, 8_192).await;
    is_known(&tidegate, &large, 65_536).await;
    for _ in 0..4 {
        assert_eq!(tidegate.exchange(&completion(60_000)).await.status(), 200);
    }
    assert_eq!((small.completions(), large.completions()), (0, 4));
    let refused = tidegate.exchange(&completion(600_000)).await;
    assert_refusal(&refused, 400);
    let error = &refused.json()["error"];
    assert_eq!(error["code"], "context_length_exceeded");
    assert!(error["message"].as_str().unwrap().contains("maximum context length is 65536 tokens"), "{error}");
    // It was asked once each, and that is no new configuration.
    assert_eq!((small.asked("/v1/models"), large.asked("/v1/models")), (1, 1));
    assert_eq!(tidegate.status().await["config_generation"], 1);
    // Also behind a reload it is known, and asked for only when it is left to the servers.
    let configured = format!("{{ address: \"{}\", max_model_len: 4096 }}", large.backend.address());
    let setup = Setup::one_group([small.backend.address().to_yaml(), configured]);
    tidegate.reload(&setup.section("policy", "{ kind: least_work }").section("engines", "{ interval: 1h }")).await;
    let refused = tidegate.exchange(&completion(60_000)).await;
    assert!(refused.text().contains("maximum context length is 8192 tokens"), "{}", refused.text());
    tidegate.idle().await;
}

#[tokio::test]
async fn a_server_that_comes_back_is_asked_anew() {
    let [server, other] = [Served::start(8_192).await, Served::start(8_192).await];
    let setup = setup([&server, &other], "{ interval: 1h }");
    let probes = "{ active: { path: /metrics, interval: 20ms, failures: 2, successes: 1 } }";
    let tidegate = Tidegate::start(&setup.section("health", probes)).await;
    is_known(&tidegate, &server, 8_192).await;
    let becomes = async |health: &str| {
        until(&format!("it is {health}"), async || {
            tidegate.status().await["groups"][0]["servers"][0]["health"] == health
        })
        .await;
    };
    server.engine.metrics.store(503, Ordering::SeqCst);
    becomes("out").await;
    server.engine.max_model_len.store(16_384, Ordering::SeqCst);
    // The question that may be on its way now is not the one that is waited for.
    server.is_asked_again("/metrics").await;
    server.engine.metrics.store(200, Ordering::SeqCst);
    is_known(&tidegate, &server, 16_384).await;
    assert_eq!(other.asked("/v1/models"), 1);
}

#[tokio::test]
async fn work_from_elsewhere_is_seen_and_stayed_clear_of() {
    let gate = Gate::closed();
    let [busy, idle] = [Served::start_with(8_192, &gate).await, Served::start_with(8_192, &gate).await];
    busy.engine.running.store(40, Ordering::SeqCst);
    busy.engine.waiting.store(20, Ordering::SeqCst);
    let tidegate = Tidegate::start(&setup([&busy, &idle], EACH_SECOND)).await;
    until("it is seen", async || gauge(&tidegate, "tidegate_engine_drift_requests", &busy).await == Some(60.0)).await;
    assert_eq!(gauge(&tidegate, "tidegate_engine_running_requests", &busy).await, Some(40.0));
    assert_eq!(gauge(&tidegate, "tidegate_engine_waiting_requests", &busy).await, Some(20.0));
    assert_eq!(gauge(&tidegate, "tidegate_engine_kv_usage_ratio", &busy).await, Some(0.25));
    let engine = engine_of(&tidegate, &busy).await;
    assert_eq!((engine["running"].as_u64(), engine["waiting"].as_u64()), (Some(40), Some(20)), "{engine}");
    assert_eq!((engine["kv_usage"].as_f64(), engine["max_model_len"].as_u64()), (Some(0.25), Some(8_192)), "{engine}");
    assert!(engine["observed_seconds_ago"].as_f64().unwrap() < 20.0, "{engine}");
    let mut clients = Vec::new();
    for number in 1..=3 {
        clients.push(tidegate.begin(&completion(400)).await);
        until("it is there", async || idle.completions() == number).await;
    }
    assert_eq!(busy.completions(), 0);
    // What came through here is no work from elsewhere.
    idle.engine.running.store(3, Ordering::SeqCst);
    until("it is seen", async || gauge(&tidegate, "tidegate_engine_running_requests", &idle).await == Some(3.0)).await;
    assert_eq!(gauge(&tidegate, "tidegate_engine_drift_requests", &idle).await, Some(0.0));
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    until("it is over", async || gauge(&tidegate, "tidegate_engine_drift_requests", &idle).await == Some(3.0)).await;
    tidegate.idle().await;
    // It is no load, and no request.
    assert_eq!(tidegate.metric("tidegate_requests_total", &[]).await, 3.0);
}

#[tokio::test]
async fn an_engine_that_says_nothing_is_as_good_as_any_other() {
    let [silent, broken, odd] = [Served::start(8_192).await, Served::start(8_192).await, Served::start(8_192).await];
    silent.engine.metrics.store(SILENT, Ordering::SeqCst);
    silent.engine.models.store(SILENT, Ordering::SeqCst);
    broken.engine.metrics.store(404, Ordering::SeqCst);
    broken.engine.models.store(401, Ordering::SeqCst);
    odd.engine.running.store(u64::MAX, Ordering::SeqCst);
    let servers = [&silent, &broken, &odd];
    let tidegate = Tidegate::start(&setup(servers, "{ interval: 20ms, timeout: 50ms }")).await;
    for server in servers {
        until("questions have failed", async || scrapes(&tidegate, server, "failed").await >= 2.0).await;
        assert_eq!(scrapes(&tidegate, server, "ok").await, 0.0);
        assert_eq!(gauge(&tidegate, "tidegate_engine_running_requests", server).await, None);
    }
    for _ in 0..30 {
        assert_eq!(tidegate.exchange(&completion(400)).await.status(), 200);
    }
    let completions = servers.map(Served::completions);
    assert!(completions.iter().all(|count| *count >= 5), "they take turns: {completions:?}");
    // The last answer is there a moment before its place is given back.
    until("all are healthy and nothing runs", async || {
        let status = tidegate.status().await;
        let mut servers = status["groups"][0]["servers"].as_array().unwrap().iter();
        servers.all(|server| (server["health"].as_str(), server["in_flight"].as_u64()) == (Some("healthy"), Some(0)))
    })
    .await;
    assert!(engine_of(&tidegate, &silent).await.is_null());
    tidegate.logs("the answer takes longer than 50ms").await;
    tidegate.logs("the answer has status 404").await;
}

#[tokio::test]
async fn what_was_reported_is_shown_only_while_it_is_fresh() {
    let server = Served::start(8_192).await;
    server.engine.running.store(7, Ordering::SeqCst);
    let tidegate = Tidegate::start(&setup([&server], OFTEN)).await;
    let running = async || gauge(&tidegate, "tidegate_engine_running_requests", &server).await;
    until("it is shown", async || running().await == Some(7.0)).await;
    server.engine.metrics.store(500, Ordering::SeqCst);
    until("it is old", async || running().await.is_none()).await;
    let engine = engine_of(&tidegate, &server).await;
    assert!(engine["observed_seconds_ago"].as_f64().unwrap() > 0.05, "{engine}");
    server.engine.metrics.store(200, Ordering::SeqCst);
    until("it is shown again", async || running().await == Some(7.0)).await;
}

#[tokio::test]
async fn engines_are_asked_only_where_somebody_wants_to_know() {
    let server = Served::start(8_192).await;
    let bucket = || setup([&server], OFTEN).section("policy", "{ kind: reference_bucket }");
    let off = setup([&server], "{ enabled: false, interval: 20ms }");
    let tidegate = Tidegate::start(&bucket()).await;
    let is_quiet = async || {
        // Two questions may be on their way.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = server.backend.count();
        // Longer than it takes to see that something has changed.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        assert_eq!(server.backend.count(), before);
        assert!(engine_of(&tidegate, &server).await["running"].is_null());
        assert_eq!(gauge(&tidegate, "tidegate_engine_running_requests", &server).await, None);
    };
    is_quiet().await;
    assert_eq!(server.backend.count(), 0);
    tidegate.reload(&off).await;
    is_quiet().await;
    assert_eq!(server.backend.count(), 0);
    tidegate.reload(&setup([&server], OFTEN)).await;
    server.is_asked_again("/metrics").await;
    is_known(&tidegate, &server, 8_192).await;
    tidegate.reload(&bucket()).await;
    until("it is forgotten", async || engine_of(&tidegate, &server).await["running"].is_null()).await;
    is_quiet().await;
}

#[tokio::test]
async fn questions_carry_the_servers_key_and_go_over_tls() {
    let server = Served::start(8_192).await;
    let authority = Authority::new();
    let pair = authority.issue("server", &["vllm.test"]);
    let relay = Relay::from_tls(tls_server(&pair, None), server.backend.address()).await;
    let keys = format!("ca: {}, server_name: vllm.test", authority.file().display());
    let setup = Setup::one_group([relay.server(&keys)])
        .section("policy", "{ kind: lanes }")
        .section("engines", OFTEN)
        .section("upstream", "{ api_key: sk-servers }");
    let tidegate = Tidegate::start(&setup).await;
    until("both are asked for", async || server.asked("/metrics") > 1 && server.asked("/v1/models") > 0).await;
    for question in server.questions("/metrics").into_iter().chain(server.questions("/v1/models")) {
        assert_eq!(question.head.get("authorization"), Some("Bearer sk-servers"));
        assert_eq!(question.head.get("host"), Some(relay.address.to_string().as_str()));
    }
    let connections: std::collections::HashSet<_> =
        server.backend.received().iter().map(|request| request.connection).collect();
    assert_eq!(connections.len(), server.backend.count(), "each on a connection of its own");
    until("it is known", async || {
        tidegate.status().await["groups"][0]["servers"][0]["engine"]["max_model_len"] == 8_192
    })
    .await;
}

#[tokio::test]
async fn estimates_are_learned_from_what_an_engine_counts_where_answers_do_not_say_it() {
    let gate = Gate::closed();
    gate.admit(400);
    let server = Served::start_with(65_536, &gate).await;
    let tidegate = Tidegate::start(&setup([&server], OFTEN)).await;
    server.is_asked_again("/metrics").await;
    // The load of a request is what its prompt is estimated at.
    let estimate = async || {
        let before = server.completions();
        let client = tidegate.begin(&completion(8_000)).await;
        until("it runs", async || server.completions() > before && tidegate.load("all").await > 0.0).await;
        let load = tidegate.load("all").await;
        client.close();
        tidegate.idle().await;
        load
    };
    // With a body that is a tenth longer than its prompt at most, this is what the engine counts.
    server.engine.bytes_per_token.store(3, Ordering::SeqCst);
    let mut client = tidegate.client().await;
    for _ in 0..60 {
        assert_eq!(client.exchange(&completion(8_000)).await.status(), 200);
        server.is_asked_again("/metrics").await;
    }
    // From here on nothing is let through.
    let passes = 400 - 2 * 60;
    for _ in 0..passes {
        gate.pass().await;
    }
    let learned = estimate().await;
    let counted = 8_000.0 / 3.0;
    assert!((learned / counted - 1.0).abs() < 0.1, "{learned} of {counted}");
    assert!(8_000.0 / 4.2 < 0.8 * counted, "it was far from that before");
}
