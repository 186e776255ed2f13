//! `tidegate demo --load`: the clients that it brings along, in front of its servers and Tidegate.

use std::net::{SocketAddr, TcpListener};
use std::num::{NonZeroU32, NonZeroU64};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pingora::services::Service as _;
use tidegate::demo::load::{Answers, Load};
use tidegate::demo::{self, DemoSettings};
use tokio::sync::{oneshot, watch};

use crate::support::*;

/// How many times as fast as in the demo everything is.
const SPEED: NonZeroU32 = NonZeroU32::new(10).unwrap();

/// Demo servers, each with what ends it.
async fn servers(settings: &DemoSettings) -> [(SocketAddr, watch::Sender<bool>); 2] {
    let addresses = Loopback::new().free_ports::<2>();
    addresses.map(|address| {
        let (stop, stopped) = watch::channel(false);
        let mut service = demo::service(&format!("at-{address}"), address, settings.clone());
        tokio::spawn(async move { service.start_service(None, stopped, 1).await });
        (address, stop)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_load_is_served_by_lanes_and_nothing_is_left_when_it_stops() {
    let usual = DemoSettings::default();
    let settings = DemoSettings {
        prefill_tokens_per_second: usual.prefill_tokens_per_second.saturating_mul(NonZeroU64::from(SPEED)),
        token_interval: usual.token_interval / SPEED.get(),
        ..usual
    };
    let servers = servers(&settings).await;
    let listed = servers.each_ref().map(|(address, _)| format!("{{ address: \"{address}\", weight: {SPEED} }}"));
    let tidegate = Tidegate::start(&Setup::one_group(listed).section("policy", "{ kind: lanes }")).await;
    let load = Load::new(tidegate.address, servers.len(), &settings);
    let (stop, stopped) = oneshot::channel();
    let watched = async {
        until("short and long prompts are served, and some wait for their turn", async || {
            let Answers { whole, short_begun, long_begun, .. } = load.answers();
            whole >= 40 && short_begun >= 50 && long_begun >= 3 && {
                tidegate.metric("tidegate_queue_exits_total", &["result=\"served\""]).await >= 1.0
            }
        })
        .await;
        stop.send(()).unwrap();
    };
    tokio::join!(load.run(async { stopped.await.unwrap() }), watched);
    tidegate.idle().await;
    let status = tidegate.status().await;
    assert_eq!(status["work"]["held"], 0, "{status}");
    for server in status["work"]["servers"].as_array().unwrap() {
        for sum in ["prefill_seconds", "prefilling", "prefilling_long", "streams", "context_tokens"] {
            assert_eq!(server[sum].as_f64(), Some(0.0), "{sum}: {status}");
        }
    }
    for (address, _) in &servers {
        until("the server has nothing to do", async || {
            Client::connect(*address).await.exchange(&get("/load")).await.json()["server_load"] == 0
        })
        .await;
    }
    let Answers { failed, left_out, .. } = load.answers();
    assert_eq!((failed, left_out), (0, 0));
    assert!(tidegate.metric("tidegate_decisions_total", &["reason=\"lane\""]).await >= 3.0);
}

/// The program with its demo, killed when dropped.
struct Demo {
    child: Child,
    admin: SocketAddr,
}

impl Demo {
    fn start(arguments: &[&str]) -> Self {
        // The demo listens at localhost, not at an address of this test's own: ports that nothing connects from.
        let [port, admin, first, second] = free_ports();
        let ports = ["--port", &port, "--admin-port", &admin, "--server-ports", &first, &second];
        let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("demo")
            .args(ports)
            .args(arguments)
            .env_remove("OPENAI_API_KEY")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, admin: ([127, 0, 0, 1], admin.parse().unwrap()).into() }
    }

    /// A page of the admin listener; `None` while there is none.
    async fn page(&self, path: &str) -> Option<Response> {
        tokio::net::TcpStream::connect(self.admin).await.ok()?;
        Some(Client::connect(self.admin).await.exchange(&get(path)).await)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Ports below those that Linux gives to outgoing connections.
fn free_ports<const N: usize>() -> [String; N] {
    let mut held = Vec::new();
    while held.len() < N {
        let port = 20_000 + rand::random::<u16>() % 12_000;
        held.extend(TcpListener::bind(("127.0.0.1", port)));
    }
    std::array::from_fn(|n| held[n].local_addr().unwrap().port().to_string())
}

#[tokio::test]
async fn the_demo_drives_itself_and_ends_with_its_load() {
    for (arguments, policy) in
        [(vec!["--load"], "lanes"), (vec!["--load", "--policy", "reference_bucket"], "reference_bucket")]
    {
        let mut demo = Demo::start(&arguments);
        until("requests are served", async || {
            let Some(page) = demo.page("/metrics").await else { return false };
            let text = page.text();
            text.lines().any(|line| {
                let is_chat = line.starts_with("tidegate_requests_total{") && line.contains("chat");
                is_chat && line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() >= 2.0
            })
        })
        .await;
        let status = demo.page("/status").await.unwrap().json();
        assert_eq!(status["policy"]["name"], policy);
        let pid = i32::try_from(demo.child.id()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM).unwrap();
        let mut ended = None;
        until_within(Duration::from_secs(20), "the demo ends", async || {
            ended = demo.child.try_wait().unwrap();
            ended.is_some()
        })
        .await;
        assert!(ended.unwrap().success(), "{ended:?}");
    }
}
