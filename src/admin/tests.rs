//! The admin listener over real sockets, against the state of the balancer behind it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::IntoRawFd;
use std::time::Duration;

use parking_lot::Mutex;
use pingora::server::{Fds, ListenFds};
use pingora::services::Service as _;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::balance::{Balancer, Policy, Ties, Tried};
use crate::config::{Config, of_text};
use crate::journal::Placed;
use crate::metrics::{FinishedRequest, Metrics, Outcome, RetryReason};
use crate::prompt::{Demand, Endpoint};
use crate::upstream::Live;

/// A running admin service and what it shows.
struct Running {
    address: SocketAddr,
    live: Arc<Live>,
    balancer: Arc<Balancer>,
    metrics: Arc<Metrics>,
    shutdown: watch::Sender<bool>,
    service: JoinHandle<()>,
}

impl Running {
    /// Runs the service on a port that the system gives, as a Pingora server does.
    fn start(config: Config) -> Self {
        let live = Arc::new(Live::new(config).unwrap());
        let (balancer, metrics) = (Arc::clone(live.balancer()), Arc::clone(live.metrics()));
        let admin = Admin::new(Arc::new(Reloader::new(Arc::clone(&live), None)), Arc::default());

        // The socket is bound here and handed over as in a restart, so that nobody else can take the port.
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let mut sockets = Fds::new();
        sockets.add(address.to_string(), listener.into_raw_fd());
        let (shutdown, watch) = watch::channel(false);
        let mut service = service(address, admin);
        let service = tokio::spawn(async move {
            service.start_service(Some(ListenFds::new(Mutex::new(sockets))), watch, 1).await;
        });
        Self { address, live, balancer, metrics, shutdown, service }
    }

    async fn get(&self, path: &str) -> Reply {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n")).await
    }

    /// Sends raw bytes and reads until the server closes.
    async fn send(&self, request: &str) -> Reply {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        Reply::parse(&reply)
    }

    async fn status(&self) -> Value {
        let reply = self.get("/status").await;
        assert_eq!((reply.status, reply.header("content-type")), (200, "application/json"));
        serde_json::from_str(&reply.body).unwrap()
    }

    async fn stop(self) {
        self.shutdown.send(true).unwrap();
        self.service.await.unwrap();
    }
}

#[derive(Debug)]
struct Reply {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

impl Reply {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no whole header: {text:?}"));
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
        Self { status, headers: lines.map(|line| header(line).unwrap()).collect(), body: body.to_owned() }
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

const FILE: &str = "
listen: 0.0.0.0:8000
admin: { listen: 127.0.0.1:9000 }
groups:
- name: short
  up_to_tokens: 1000
  servers:
  - { address: vllm-a:8100, name: a }
  - { address: '[::1]:8101', name: b, api_key: key-of-one-server }
- name: long
  up_to_tokens: 4000
  servers: [{ address: 10.0.0.3:8102, name: c }]
policy: { kind: reference_bucket, sensitivity: 2.0, neighbours: all, ties: least_recently_used }
limits: { max_body_size: 1MiB }
timeouts: { request_header: 10s, request_body_idle: 30s, request_body: 5m, first_byte: none, response_idle: 1500ms,
            client_write: none, total: 1h, client_keepalive: 75s }
retry: { base_delay: 1ms, max_delay: 1s }
headers: { strip: [x-data-parallel-rank] }
upstream: { api_key: key-of-all-servers }
shutdown: { delay: 5s, grace: 7s }
pingora: { threads: 2 }
";

/// Two groups, `short` with two servers and `long` with one.
fn config() -> Config {
    Config { listen: vec!["0.0.0.0:8000".parse().unwrap(), "[::]:8000".parse().unwrap()], ..of_text(FILE) }
}

#[tokio::test]
async fn status_is_what_the_balancer_and_the_metrics_say() {
    let running = Running::start(config());
    let lease = running.balancer.acquire(&Demand::of_bytes(4_002), &Tried::default()).unwrap();
    let weightless = running.balancer.acquire_weightless(&Tried::default()).unwrap();
    assert_eq!((lease.server(), weightless.server()), (2, 0));
    running.metrics.retried(RetryReason::Reset);
    running.metrics.redirected(1, 0);
    for (outcome, status) in [(Outcome::ClientGone, None), (Outcome::Complete, Some(200)), (Outcome::Complete, None)] {
        running.metrics.request_finished(&FinishedRequest {
            endpoint: Endpoint::Chat,
            outcome,
            status,
            group: None,
            time_to_first_byte: None,
            duration: Duration::ZERO,
            request_bytes: 0,
            response_bytes: 0,
        });
    }

    let mut status = running.status().await;
    for server in
        status["groups"].as_array_mut().unwrap().iter_mut().flat_map(|group| group["servers"].as_array_mut().unwrap())
    {
        let since = server.as_object_mut().unwrap().shift_remove("health_for_seconds").unwrap();
        assert!(since.as_f64().unwrap() < running.metrics.uptime().as_secs_f64() + 60.0, "{since}");
    }
    assert_eq!(status["status_version"], 1);
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert!(status["start_time_seconds"].as_f64().unwrap() > 1.7e9, "{status}");
    let uptime = status["uptime_seconds"].as_f64().unwrap();
    assert!(uptime > 0.0 && uptime <= running.metrics.uptime().as_secs_f64(), "{status}");
    assert_eq!(
        status["groups"],
        json!([
            {
                "name": "short", "from_tokens": 0, "to_tokens": 1_000, "load_tokens": 0.0, "in_flight": 1,
                "waiting": 0, "discover": null, "servers": [
                    { "name": "a", "authority": "vllm-a:8100", "tls": false, "authorization_set": false,
                      "load_tokens": 0.0, "in_flight": 1, "health": "healthy", "health_reason": "started",
                      "probes_failed": 0, "ejections": 0, "draining": false,
                      "drained": false, "engine": null },
                    { "name": "b", "authority": "[::1]:8101", "tls": false, "authorization_set": true,
                      "load_tokens": 0.0, "in_flight": 0, "health": "healthy", "health_reason": "started",
                      "probes_failed": 0, "ejections": 0, "draining": false,
                      "drained": false, "engine": null },
                ],
            },
            {
                "name": "long", "from_tokens": 1_000, "to_tokens": 4_000, "load_tokens": 1_000.5, "in_flight": 1,
                "waiting": 0, "discover": null, "servers": [
                    { "name": "c", "authority": "10.0.0.3:8102", "tls": false, "authorization_set": false,
                      "load_tokens": 1_000.5, "in_flight": 1, "health": "healthy", "health_reason": "started",
                      "probes_failed": 0, "ejections": 0, "draining": false,
                      "drained": false, "engine": null },
                ],
            },
        ])
    );
    let requests = json!({ "complete": 2, "client_gone": 1, "upstream_broken": 0, "rejected": 0 });
    assert_eq!(status["totals"], json!({ "requests": requests, "retries": 1, "redirects": 1 }));

    drop((lease, weightless));
    let status = running.status().await;
    for group in status["groups"].as_array().unwrap() {
        assert_eq!((&group["load_tokens"], &group["in_flight"]), (&json!(0.0), &json!(0)));
        for server in group["servers"].as_array().unwrap() {
            assert_eq!((&server["load_tokens"], &server["in_flight"]), (&json!(0.0), &json!(0)));
        }
    }
    running.stop().await;
}

#[tokio::test]
async fn status_shows_the_configuration_in_force() {
    let running = Running::start(config());
    let status = running.status().await;
    assert_eq!(
        status["policy"],
        json!({
            "name": "reference_bucket",
            "tuning": { "sensitivity": 2.0, "affinity_strength": 0.1, "threshold": 0.12, "neighbours": "all" },
            "buckets": [{ "from_tokens": 0, "to_tokens": 1_000 }, { "from_tokens": 1_000, "to_tokens": 4_000 }],
            "by_work": null,
        })
    );
    assert_eq!(status["ties"], "least_recently_used");
    assert_eq!(
        status["config"],
        json!({
            "listen": ["0.0.0.0:8000", "[::]:8000"],
            "tls": null,
            "admin": "127.0.0.1:9000",
            "admin_token_set": false,
            "admin_protect_reads": false,
            "watch": false,
            "tokenizers": [],
            "session_header": null,
            "max_body_bytes": 1_048_576,
            "timeouts_seconds": {
                "connect": 5.0, "request_header": 10.0, "request_body_idle": 30.0, "request_body": 300.0,
                "first_byte": null, "response_idle": 1.5, "client_write": null, "total": 3_600.0,
                "client_keepalive": 75.0, "server_keepalive": 4.0,
            },
            "retry": { "max_attempts": 3, "base_delay_seconds": 0.001, "max_delay_seconds": 1.0 },
            "health": {
                "active": {
                    "method": "GET", "path": "/health", "status": "200", "interval_seconds": 5.0,
                    "timeout_seconds": 2.0, "failures": 3, "successes": 2, "headers": [],
                },
                "passive": {
                    "failures": 3, "base_ejection_seconds": 5.0, "max_ejection_seconds": 60.0,
                    "max_ejected_share": 0.5, "first_byte_limit_seconds": 120.0, "dead_stream_limit_seconds": 10.0,
                },
                "probation_max_in_flight": 4, "probation_successes": 3,
            },
            "engines": { "interval_seconds": 10.0, "timeout_seconds": 2.0 },
            "log_level": "info",
            "access_log": null,
            "tracing": null,
            "queue": { "max_requests": 1_000, "max_bytes": 1_073_741_824, "max_wait_seconds": 30.0 },
            "strip_request_headers": ["x-data-parallel-rank"],
            "decision_headers": "none",
            "access": serde_json::to_value(super::allowed::AccessStatus::of(&config().access)).unwrap(),
            "upstream_authorization_set": true,
            "threads": 2,
            "shutdown": { "delay_seconds": 5.0, "grace_seconds": 7.0 },
        })
    );
    running.stop().await;
}

#[tokio::test]
async fn plain_mode_has_no_ranges_and_no_tuning() {
    let config = Config { policy: Policy::ReferencePlain, ties: Ties::First, ..config() };
    let running = Running::start(config);
    let status = running.status().await;
    assert_eq!(status["policy"], json!({ "name": "reference_plain", "tuning": null, "buckets": [], "by_work": null }));
    assert_eq!(status["ties"], "first");
    for group in status["groups"].as_array().unwrap() {
        assert_eq!((&group["from_tokens"], &group["to_tokens"]), (&Value::Null, &Value::Null));
    }
    running.stop().await;
}

#[tokio::test]
async fn no_page_shows_a_key() {
    let running = Running::start(config());
    for path in ["/", "/status", "/metrics", "/healthz", "/key"] {
        let reply = running.get(path).await;
        assert!(!format!("{reply:?}").contains("key-of"), "{path}: {reply:?}");
    }
    running.stop().await;
}

#[tokio::test]
async fn metrics_come_in_the_format_that_is_asked_for() {
    let running = Running::start(config());
    let lease = running.balancer.acquire(&Demand::of_bytes(4_002), &Tried::default()).unwrap();
    let load = "\ntidegate_group_load_tokens{group=\"long\"} 1000.5\n";

    let text = running.get("/metrics?for=nobody").await;
    assert_eq!((text.status, text.header("content-type")), (200, "text/plain; version=0.0.4; charset=utf-8"));
    assert!(text.body.contains(load) && !text.body.contains("# EOF"), "{}", text.body);

    let open_metrics = running
        .send(
            "GET /metrics HTTP/1.1\r\nHost: admin\r\nConnection: close\r\nAccept: text/plain;q=0.5\r\n\
             Accept: application/openmetrics-text;version=1.0.0\r\n\r\n",
        )
        .await;
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!((open_metrics.status, open_metrics.header("content-type")), (200, content_type));
    assert!(open_metrics.body.contains(load) && open_metrics.body.ends_with("# EOF\n"), "{}", open_metrics.body);
    drop(lease);
    running.stop().await;
}

#[tokio::test]
async fn every_page_has_its_length_and_is_never_stored() {
    let running = Running::start(config());
    for (path, status, content_type) in [
        ("/", 200, "text/plain; charset=utf-8"),
        ("/healthz", 200, "text/plain; charset=utf-8"),
        ("/metrics", 200, "text/plain; version=0.0.4; charset=utf-8"),
        ("/status", 200, "application/json"),
        ("/metrics/", 404, "application/json"),
        ("//status", 404, "application/json"),
    ] {
        let reply = running.get(path).await;
        assert_eq!((reply.status, reply.header("content-type")), (status, content_type), "{path}");
        assert_eq!(reply.header("content-length"), reply.body.len().to_string(), "{path}");
        assert_eq!(reply.header("cache-control"), "no-store", "{path}");
    }
    assert_eq!(running.get("/healthz").await.body, "ok\n");
    for path in ["/metrics", "/status", "/healthz"] {
        assert!(running.get("/").await.body.contains(path), "the index does not name {path}");
    }
    running.stop().await;
}

#[tokio::test]
async fn head_gives_the_header_without_the_body() {
    let running = Running::start(config());
    let get = running.get("/healthz").await;
    let head = running.send("HEAD /healthz HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    for header in ["content-length", "content-type"] {
        assert_eq!(head.header(header), get.header(header));
    }
    running.stop().await;
}

#[tokio::test]
async fn other_methods_are_refused_with_the_ones_that_work() {
    let running = Running::start(config());
    for (method, path) in [("POST", "/metrics"), ("DELETE", "/status"), ("OPTIONS", "/"), ("FOO", "/healthz")] {
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody");
        let reply = running.send(&request).await;
        assert_eq!((reply.status, reply.header("allow")), (405, "GET, HEAD"), "{method} {path}");
        let body: Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(body["error"]["code"], "method_not_allowed");
    }
    let unknown = running.send("POST /v1/models HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n").await;
    let body: Value = serde_json::from_str(&unknown.body).unwrap();
    assert_eq!((unknown.status, &body["error"]["code"]), (404, &json!("not_found")));
    running.stop().await;
}

#[tokio::test]
async fn a_connection_is_kept_for_the_next_request() {
    let running = Running::start(config());
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    for method in ["GET", "HEAD", "GET"] {
        stream.write_all(format!("{method} /healthz HTTP/1.1\r\nHost: admin\r\n\r\n").as_bytes()).await.unwrap();
        let end: &[u8] = if method == "HEAD" { b"\r\n\r\n" } else { b"\r\n\r\nok\n" };
        let mut reply = Vec::new();
        while !reply.ends_with(end) {
            assert_ne!(stream.read_buf(&mut reply).await.unwrap(), 0, "closed after {reply:?}");
        }
        assert_eq!(Reply::parse(std::str::from_utf8(&reply).unwrap()).header("connection"), "keep-alive");
    }
    drop(stream);
    running.stop().await;
}

#[tokio::test]
async fn a_body_that_nobody_asked_for_is_never_taken_as_a_request() {
    let running = Running::start(config());
    let hidden = "GET /status HTTP/1.1\r\nHost: admin\r\n\r\n";
    for method in ["GET", "POST"] {
        let length = hidden.len();
        let request = format!("{method} /healthz HTTP/1.1\r\nHost: admin\r\nContent-Length: {length}\r\n\r\n{hidden}");
        let reply = running.send(&request).await;
        assert_eq!(reply.header("connection"), "close", "{reply:?}");
        assert!(!reply.body.contains("HTTP/1.1"), "a second answer: {reply:?}");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_watcher_that_is_too_slow_is_told_how_much_it_has_missed() {
    const PLACED: u64 = 5_000;
    let running = Running::start(config());
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(b"GET /events HTTP/1.1\r\nHost: admin\r\n\r\n").await.unwrap();
    let mut seen = Vec::new();
    while !seen.windows(13).any(|piece| piece == b"event: recent") {
        assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0);
    }
    // All at once: nobody reads meanwhile.
    for number in 0..PLACED {
        running.live.journal().placed(Placed {
            request_id: number.to_string(),
            attempt: 1,
            tokens: Some(100),
            standard_group: "short".into(),
            group: "short".into(),
            server: "a".into(),
            reason: "standard",
            waited_s: 0.0,
            words: Vec::new(),
        });
    }
    seen.clear();
    let count = |seen: &[u8]| {
        let text = String::from_utf8_lossy(seen).into_owned();
        // A number that is not there as a whole counts with the next piece.
        let whole = |rest: &str| rest.split_once('}').and_then(|(number, _)| number.parse::<u64>().ok());
        let missed = text.split("{\"missed\":").skip(1).filter_map(whole);
        (text.matches("event: placed").count() as u64, missed.sum::<u64>())
    };
    while count(&seen).0 + count(&seen).1 < PLACED {
        assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0);
    }
    let (placed, missed) = count(&seen);
    assert!(placed > 0 && missed > 0 && placed + missed == PLACED, "{placed} placed, {missed} missed");
    drop(stream);
    running.stop().await;
}

#[tokio::test]
async fn without_a_file_there_is_nothing_to_reload() {
    let running = Running::start(config());
    let reply = running.send("POST /reload HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n").await;
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("there is no file to read: Tidegate was started without --conf"), "{}", reply.body);
    let status = running.status().await;
    assert_eq!((&status["config_source"], &status["config_generation"]), (&Value::Null, &json!(1)));
    running.stop().await;
}
