//! A successor takes the listening sockets over, under load.

use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::*;

fn setup(server: &Backend) -> Setup {
    with_upgrades(Setup::one_group([server]))
}

fn with_upgrades(setup: Setup) -> Setup {
    setup.section("shutdown", "{ grace: 600s }").section("pingora", "{ threads: 2, upgrade_sock: upgrade.sock }")
}

/// Clients that send one request after the other, and fail the test when one of them is not answered.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    clients: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    /// `kept` clients keep their connections while they may, `fresh` ones take a new one for each request.
    fn start(tidegate: &Tidegate, kept: usize, fresh: usize) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let clients = (0..kept + fresh).map(|number| {
            let (address, stop, answered) = (tidegate.address, Arc::clone(&stop), Arc::clone(&answered));
            tokio::spawn(async move {
                let mut connection = None;
                while !stop.load(Ordering::Relaxed) {
                    let mut client = match connection.take() {
                        Some(client) => client,
                        None => Client::connect(address).await,
                    };
                    let response = client.exchange(&post("/v1/completions", &body_of(2_000))).await;
                    assert_eq!((response.status(), &response.end), (200, &End::Complete), "{}", response.text());
                    answered.fetch_add(1, Ordering::Relaxed);
                    if number < kept && response.head.get("connection") != Some("close") {
                        connection = Some(client);
                    }
                }
            })
        });
        let clients = clients.collect();
        Self { stop, answered, clients }
    }

    /// Waits until so many more requests have been answered.
    async fn answers(&self, count: usize) {
        let goal = self.answered.load(Ordering::Relaxed) + count;
        until(&format!("{count} more answers come"), async || {
            assert!(self.clients.iter().all(|client| !client.is_finished()), "a request failed");
            self.answered.load(Ordering::Relaxed) >= goal
        })
        .await;
    }

    async fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_and_no_stream_fails_across_an_upgrade_under_load() {
    let gate = Gate::closed();
    let (plain, streaming) = (Backend::start(lengths()).await, Backend::start(sse_held(&gate)).await);
    let setup = with_upgrades(Setup::two_groups([&plain], [&streaming]));
    // Long prompts never cross.
    let setup = setup.section("policy", "{ kind: reference_bucket, redirect_threshold: 1 }");
    let mut old = Tidegate::start(&setup).await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(old.begin(&post("/v1/completions", &body_of(200_000))).await);
    }
    let http2 = H2Client::connect(old.address).await;
    let over_http2 = tokio::spawn(async move { http2.post("/v1/completions", &body_of(200_000)).await });
    for stream in &mut streams {
        assert_eq!(stream.head().await.status(), 200);
    }
    streaming.whole_requests(5).await;
    let load = Load::start(&old, 4, 4);
    load.answers(100).await;

    let mut new = old.start_successor();
    old.signal(Signal::SIGQUIT);
    new.logs("serving").await;
    old.logs("a successor has the sockets").await;
    // The old process closes its side; from then on all answers, also the admin listener's, come from the new one.
    until("the new process answers at the admin listener", async || {
        new.status().await["totals"]["requests"]["complete"] != 0
    })
    .await;
    load.answers(200).await;

    // The streams run in the old process, and no longer.
    gate.open();
    for stream in &mut streams {
        stream.whole_stream().await;
    }
    let response = over_http2.await.unwrap();
    assert_eq!((response.status(), &response.end), (200, &End::Complete));
    assert!(old.ended().await.success());
    assert!(old.stderr().contains("stopped: all requests were finished"), "{}", old.stderr());
    load.answers(100).await;
    load.finish().await;
    new.idle().await;
    assert!(new.terminate().await.success());
}

#[tokio::test]
async fn an_idle_program_ends_soon_after_its_sockets_were_taken() {
    let server = Backend::start(echo()).await;
    let mut old = Tidegate::start(&setup(&server)).await;
    let mut kept = old.client().await;
    assert_eq!(kept.exchange(&post("/v1/completions", b"{}")).await.status(), 200);
    let new = old.start_successor();
    old.signal(Signal::SIGQUIT);
    assert!(old.ended().await.success());
    assert_eq!(kept.closed().await, (Vec::new(), End::Truncated));
    assert_eq!(new.exchange(&post("/v1/completions", b"{}")).await.status(), 200);
}

#[tokio::test]
async fn without_a_successor_it_goes_on_serving() {
    let server = Backend::start(echo()).await;
    let mut tidegate = Tidegate::start(&setup(&server)).await;
    tidegate.signal(Signal::SIGQUIT);
    tidegate.logs("going on serving: no successor waits at upgrade.sock").await;
    let mut client = tidegate.client().await;
    let response = client.exchange(&post("/v1/completions", b"{}")).await;
    assert_eq!((response.status(), response.head.get("connection")), (200, Some("keep-alive")));
    assert_eq!(tidegate.exchange(&get("/healthcheck")).await.status(), 200);
    // Waiting for a successor does not make it deaf.
    tidegate.signal(Signal::SIGQUIT);
    assert!(tidegate.terminate().await.success());
}

/// Runs `--replace` and returns its exit code.
async fn replace(tidegate: &Tidegate, log: &str, notify: &std::path::Path) -> Option<i32> {
    let mut command = tidegate.another(log);
    command.args(["--replace", &tidegate.pid().to_string()]).env("NOTIFY_SOCKET", notify).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut status = None;
    until("the command returns", async || {
        status = child.try_wait().unwrap();
        status.is_some()
    })
    .await;
    status.and_then(|status| status.code())
}

#[tokio::test]
async fn a_process_is_replaced_by_one_command_which_tells_systemd_of_the_successor() {
    let server = Backend::start(echo()).await;
    let mut old = Tidegate::start(&setup(&server)).await;
    let notify = old.file("notify");
    let systemd = UnixDatagram::bind(&notify).unwrap();
    systemd.set_read_timeout(Some(Duration::from_secs(20))).unwrap();

    assert_eq!(replace(&old, "replace", &notify).await, Some(0));
    let mut message = [0; 100];
    let length = systemd.recv(&mut message).unwrap();
    let message = String::from_utf8_lossy(&message[..length]);
    let pid = message.strip_prefix("MAINPID=").and_then(|rest| rest.strip_suffix("\nREADY=1")).unwrap();
    let successor = EndsWithTheTest(pid.parse().unwrap());

    assert!(old.ended().await.success());
    assert_eq!(old.exchange(&post("/v1/completions", b"{}")).await.status(), 200, "the successor serves");
    kill(Pid::from_raw(successor.0), Signal::SIGTERM).unwrap();
    until("the successor ends", async || {
        std::fs::read_to_string(old.file("replace")).unwrap().contains("stopped: all requests were finished")
    })
    .await;
}

#[tokio::test]
async fn a_successor_that_cannot_start_changes_nothing() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&setup(&server)).await;
    let good = std::fs::read_to_string(tidegate.file("tidegate.yaml")).unwrap();
    let notify = tidegate.file("notify");

    // Refused before anything is started.
    std::fs::write(tidegate.file("tidegate.yaml"), "groups: []").unwrap();
    assert_eq!(replace(&tidegate, "refused", &notify).await, Some(64));
    let daemon = good.replace("upgrade_sock: upgrade.sock", "upgrade_sock: upgrade.sock, daemon: true");
    std::fs::write(tidegate.file("tidegate.yaml"), daemon).unwrap();
    assert_eq!(replace(&tidegate, "daemon", &notify).await, Some(64));

    // The successor waits where nobody comes to.
    std::fs::write(tidegate.file("tidegate.yaml"), good.replace("upgrade.sock", "elsewhere.sock")).unwrap();
    assert_eq!(replace(&tidegate, "elsewhere", &notify).await, Some(1));
    let log = std::fs::read_to_string(tidegate.file("elsewhere")).unwrap();
    assert!(log.contains(&format!("before it served, its log says why; process {} goes on serving", tidegate.pid())));

    tidegate.logs("going on serving: no successor waits at upgrade.sock").await;
    assert_eq!(tidegate.exchange(&post("/v1/completions", b"{}")).await.status(), 200);
}

/// A process that nobody waits for.
struct EndsWithTheTest(i32);

impl Drop for EndsWithTheTest {
    fn drop(&mut self) {
        // Most often it has ended already.
        kill(Pid::from_raw(self.0), Signal::SIGKILL).ok();
    }
}

#[tokio::test]
async fn the_command_that_starts_a_daemon_returns_when_that_serves() {
    let server = Backend::start(echo()).await;
    let mut program = Tidegate::start(&setup(&server)).await;
    let text = std::fs::read_to_string(program.file("tidegate.yaml")).unwrap();
    // A daemon runs in the root directory, so its paths are whole.
    let [pid_file, log_file] = [program.file("pid"), program.file("daemon-log")];
    let daemon = format!(
        "daemon: true, daemon_wait_for_ready: true, daemon_ready_timeout: 20s, pid_file: {}, error_log: {}",
        pid_file.display(),
        log_file.display()
    );
    let lines = program.file("access-log");
    let access_log = format!("\naccess_log: {{ format: json, path: {} }}\n", lines.display());
    let text = text.replace("upgrade_sock: upgrade.sock", &daemon) + &access_log;
    std::fs::write(program.file("tidegate.yaml"), text).unwrap();
    assert!(program.terminate().await.success());

    let mut command = program.another("command");
    let mut command = command.spawn().unwrap();
    let mut status = None;
    until("the command returns", async || {
        status = command.try_wait().unwrap();
        status.is_some()
    })
    .await;
    let log = || std::fs::read_to_string(&log_file).unwrap_or_default();
    assert!(status.is_some_and(|status| status.success()), "{status:?} {}", log());
    let daemon = EndsWithTheTest(std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap());
    until("the daemon serves", async || log().contains("serving")).await;
    assert_eq!(program.exchange(&post("/v1/completions", b"{}")).await.status(), 200);
    let written = || std::fs::read_to_string(&lines).unwrap_or_default().lines().count();
    until("the daemon writes its access log", async || written() == 1).await;
    kill(Pid::from_raw(daemon.0), Signal::SIGTERM).unwrap();
    until("the daemon ends", async || log().contains("stopped: all requests were finished")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute; prints figures"]
async fn no_request_and_no_stream_fails_in_a_minute_of_upgrades() {
    let gate = Gate::closed();
    let (plain, streaming) = (Backend::start(lengths()).await, Backend::start(sse_held(&gate)).await);
    let setup = with_upgrades(Setup::two_groups([&plain], [&streaming]));
    let mut running =
        Tidegate::start(&setup.section("policy", "{ kind: reference_bucket, redirect_threshold: 1 }")).await;
    let load = Load::start(&running, 4, 4);
    let begun = std::time::Instant::now();
    let (mut upgrades, mut whole_streams) = (0, 0);
    while begun.elapsed() < Duration::from_secs(60) {
        let mut streams = Vec::new();
        for _ in 0..8 {
            streams.push(running.begin(&post("/v1/completions", &body_of(200_000))).await);
        }
        for stream in &mut streams {
            assert_eq!(stream.head().await.status(), 200);
        }
        let next = running.start_successor();
        running.signal(Signal::SIGQUIT);
        next.logs("serving").await;
        running.logs("a successor has the sockets").await;
        load.answers(500).await;
        gate.admit(streams.len());
        for stream in &mut streams {
            stream.whole_stream().await;
            whole_streams += 1;
        }
        assert!(running.ended().await.success());
        running = next;
        upgrades += 1;
    }
    let (requests, seconds) = (load.answered.load(Ordering::Relaxed), begun.elapsed().as_secs());
    load.finish().await;
    println!("{seconds} s, {upgrades} upgrades: {requests} requests and {whole_streams} streams, none failed");
}
