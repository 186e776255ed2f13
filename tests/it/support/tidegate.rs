//! The real program, started for one test.

use std::collections::BTreeMap;
use std::fs::{File, read_to_string};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::{Client, Loopback, Response, Setup, get, until, until_within};

/// Load and running requests of a server or group, as the status says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Usage {
    pub(crate) load_tokens: f64,
    pub(crate) in_flight: u64,
}

/// A running Tidegate. Ends with its value; a panic of the program fails the test there.
pub(crate) struct Tidegate {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    child: Child,
    directory: Arc<TempDir>,
    /// The name of its log in the directory.
    log: String,
}

impl Tidegate {
    pub(crate) async fn start(setup: &Setup) -> Self {
        let [address, admin] = Loopback::new().free_ports();
        Self::start_at(address, admin, setup).await
    }

    /// With an environment variable.
    pub(crate) async fn start_with_environment(setup: &Setup, name: &str, value: &str) -> Self {
        let [address, admin] = Loopback::new().free_ports();
        Self::start_in(address, admin, setup, &[(name, value)]).await
    }

    /// Starts the program and waits until it accepts connections.
    pub(crate) async fn start_at(address: SocketAddr, admin: SocketAddr, setup: &Setup) -> Self {
        Self::start_in(address, admin, setup, &[]).await
    }

    /// Starts the program with a configuration as text, and waits until it accepts connections.
    pub(crate) async fn start_with(address: SocketAddr, admin: SocketAddr, yaml: &str) -> Self {
        Self::start_program(address, admin, yaml, program()).await
    }

    async fn start_in(address: SocketAddr, admin: SocketAddr, setup: &Setup, environment: &[(&str, &str)]) -> Self {
        let mut program = setup.program();
        program.envs(environment.iter().copied()).envs(setup.log_level().map(|level| ("RUST_LOG", level)));
        Self::start_program(address, admin, &setup.yaml(address, admin), program).await
    }

    async fn start_program(address: SocketAddr, admin: SocketAddr, yaml: &str, program: Command) -> Self {
        let directory = Arc::new(tempfile::tempdir().expect("a temporary directory can be made"));
        std::fs::write(directory.path().join(CONFIG), yaml).expect("the directory is writable");
        let log = "stderr".to_owned();
        let child = command(program, directory.path(), &log).spawn().expect("the program can be run");
        let mut tidegate = Self { address, admin, child, directory, log };
        until("Tidegate accepts connections", async || {
            if let Some(status) = tidegate.child.try_wait().expect("a child can be waited for") {
                panic!("Tidegate ended with {status}: {}", tidegate.stderr());
            }
            TcpStream::connect(address).await.is_ok() && TcpStream::connect(admin).await.is_ok()
        })
        .await;
        tidegate
    }

    /// The configuration file.
    pub(crate) fn configuration(&self) -> std::path::PathBuf {
        self.file(CONFIG)
    }

    /// Replaces the configuration file, as a whole.
    pub(crate) fn write(&self, setup: &Setup) {
        self.write_text(&setup.yaml(self.address, self.admin));
    }

    /// Replaces the configuration file by a text.
    pub(crate) fn write_text(&self, text: &str) {
        let new = self.file("new.yaml");
        std::fs::write(&new, text).expect("the directory is writable");
        std::fs::rename(new, self.configuration()).expect("the directory is writable");
    }

    /// Sends a POST to the admin listener; `fields` are whole header lines.
    pub(crate) async fn admin_post(&self, path: &str, fields: &str) -> Response {
        self.admin_post_body(path, fields, b"").await
    }

    /// The same with a body.
    pub(crate) async fn admin_post_body(&self, path: &str, fields: &str, body: &[u8]) -> Response {
        Client::connect(self.admin).await.exchange(&super::request("POST", path, fields, body)).await
    }

    /// Replaces the configuration and has it put in force.
    pub(crate) async fn reload(&self, setup: &Setup) -> serde_json::Value {
        self.write(setup);
        let response = self.admin_post("/reload", "").await;
        assert_eq!(response.status(), 200, "{}", response.text());
        response.json()
    }

    /// Waits until a configuration is in force.
    pub(crate) async fn generation(&self, generation: u64) {
        until(&format!("configuration {generation} is in force"), async || {
            self.status().await["config_generation"] == generation
        })
        .await;
    }

    /// Starts a second process that waits for the sockets of this one.
    pub(crate) fn start_successor(&self) -> Self {
        let (directory, log) = (Arc::clone(&self.directory), format!("{}-next", self.log));
        let child =
            command(program(), directory.path(), &log).arg("--upgrade").spawn().expect("the program can be run");
        Self { address: self.address, admin: self.admin, child, directory, log }
    }

    /// The program with this one's configuration, to be run beside it.
    pub(crate) fn another(&self, log: &str) -> Command {
        command(program(), self.directory.path(), log)
    }

    /// A file beside this one's configuration, for instance one that [`another`](Self::another) has logged to.
    pub(crate) fn file(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the program has logged.
    pub(crate) fn stderr(&self) -> String {
        read_to_string(self.file(&self.log)).unwrap_or_default()
    }

    /// Waits until something stands in the log.
    pub(crate) async fn logs(&self, text: &str) {
        until(&format!("{text:?} is logged"), async || self.stderr().contains(text)).await;
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// Sends a request on a connection of its own and reads the response.
    pub(crate) async fn exchange(&self, request: &[u8]) -> Response {
        self.client().await.exchange(request).await
    }

    /// Sends a request on a connection of its own.
    pub(crate) async fn begin(&self, request: &[u8]) -> Client {
        let mut client = self.client().await;
        client.send(request).await;
        client
    }

    /// The status page.
    pub(crate) async fn status(&self) -> serde_json::Value {
        let response = Client::connect(self.admin).await.exchange(&get("/status")).await;
        assert_eq!(response.status(), 200, "{}", response.text());
        response.json()
    }

    /// Load and running requests of every server and group, by name.
    pub(crate) async fn usage(&self) -> BTreeMap<String, Usage> {
        let mut usage = BTreeMap::new();
        let status = self.status().await;
        for group in status["groups"].as_array().expect("`groups` is a list") {
            for item in group["servers"].as_array().expect("`servers` is a list").iter().chain([group]) {
                let load_tokens = item["load_tokens"].as_f64().expect("`load_tokens` is a number");
                let in_flight = item["in_flight"].as_u64().expect("`in_flight` is a whole number, not negative");
                assert!(load_tokens >= 0.0, "a load below zero: {status}");
                usage.insert(item["name"].as_str().expect("`name` is text").into(), Usage { load_tokens, in_flight });
            }
        }
        usage
    }

    /// The load of a server or group.
    pub(crate) async fn load(&self, name: &str) -> f64 {
        self.usage().await[name].load_tokens
    }

    /// Waits until nothing runs and all load is given back.
    pub(crate) async fn idle(&self) {
        let idle = Usage { load_tokens: 0.0, in_flight: 0 };
        until_within(Duration::from_secs(5), "all counters are zero", async || {
            self.usage().await.values().all(|usage| *usage == idle)
        })
        .await;
    }

    /// The metrics page.
    pub(crate) async fn metrics(&self) -> String {
        Client::connect(self.admin).await.exchange(&get("/metrics")).await.text()
    }

    /// The sum of all samples of a metric whose labels contain all of `labels` (each as `name="value"`).
    pub(crate) async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let page = self.metrics().await;
        let samples = page.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let series = series.strip_prefix(name)?;
            let is_it =
                (series.is_empty() || series.starts_with('{')) && labels.iter().all(|label| series.contains(label));
            is_it.then(|| value.parse::<f64>().expect("a sample is a number"))
        });
        samples.sum()
    }

    /// Waits until so many requests are counted as finished. That is a moment after their load is given back.
    pub(crate) async fn finished(&self, requests: u32) {
        until(&format!("{requests} requests are finished"), async || {
            self.metric("tidegate_requests_total", &[]).await == f64::from(requests)
        })
        .await;
    }

    /// Memory in use, in bytes.
    pub(crate) fn rss_bytes(&self) -> u64 {
        let status = read_to_string(format!("/proc/{}/status", self.child.id())).expect("the program runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("Linux says so");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number of KiB") * 1024
    }

    /// The number of files, sockets included, that are open.
    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("the program runs").count()
    }

    /// Processor time used so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        let stat = read_to_string(format!("/proc/{}/stat", self.child.id())).expect("the program runs");
        let after_name = stat.rsplit_once(')').expect("the name is in brackets").1;
        let ticks: u64 = after_name.split_whitespace().skip(11).take(2).map(|t| t.parse::<u64>().expect("ticks")).sum();
        // 100 ticks a second, whatever the kernel's own rate.
        Duration::from_millis(ticks * 10)
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.ended().await
    }

    /// Waits for the end.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let mut ended = None;
        until("Tidegate ends", async || {
            ended = self.child.try_wait().expect("a child can be waited for");
            ended.is_some()
        })
        .await;
        ended.expect("the condition held")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("process ids are small");
        kill(Pid::from_raw(pid), signal).expect("the program runs");
    }
}

/// The name of the configuration in its directory.
const CONFIG: &str = "tidegate.yaml";

/// The program, with the configuration and a log in a directory.
fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
}

fn command(mut command: Command, directory: &Path, log: &str) -> Command {
    let stderr = File::create(directory.join(log)).expect("the directory is writable");
    command
        .args(["--conf".as_ref(), directory.join(CONFIG).as_os_str()])
        .current_dir(directory)
        .env_remove("OPENAI_API_KEY")
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr);
    command
}

impl Drop for Tidegate {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        let log = self.stderr();
        if std::thread::panicking() {
            let from = log.char_indices().rev().nth(4_000).map_or(0, |(at, _)| at);
            eprintln!("--- the end of Tidegate's log:\n{}", &log[from..]);
        } else {
            assert!(!log.contains("panicked at"), "Tidegate panicked:\n{log}");
        }
    }
}
