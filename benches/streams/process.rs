//! The processes: started here, looked at through `/proc`, ended with their values.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long something may take that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// This program as the server.
pub(crate) struct ServerProcess {
    child: Child,
    port: u16,
}

impl ServerProcess {
    pub(crate) fn start() -> Self {
        let program = std::env::current_exe().expect("this program is a file");
        let mut child = Command::new(program)
            .arg("server")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be run again");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("the server says its port");
        Self { child, port: line.trim().parse().expect("a port") }
    }

    /// Ends all streams, also those to come.
    pub(crate) fn end_streams(&self) {
        let mut stdin = self.child.stdin.as_ref().expect("it is a pipe");
        stdin.write_all(b"end\n").expect("the server reads");
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Tidegate in front of one server.
pub(crate) struct Tidegate {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Tidegate {
    /// Starts it, with a limit of open files when one is given.
    pub(crate) fn start(server: &ServerProcess, open_files: Option<u64>) -> Self {
        // The port is free when it is looked for; nobody else takes ports on this address.
        let own_address = format!("127.{}.{}.9:0", std::process::id() % 250 + 1, std::process::id() / 250 % 250);
        let listener = TcpListener::bind(own_address).and_then(|listener| listener.local_addr());
        let address = listener.expect("a free port on loopback");
        let limit = open_files.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
        let child = Command::new("sh")
            // The shell becomes the program, so that its process id is the program's.
            .args(["-c", r#"[ "$0" = unlimited ] || ulimit -n "$0"; exec "$@""#, &limit])
            .arg(env!("CARGO_BIN_EXE_tidegate"))
            .args(["--host", &address.ip().to_string(), "--port", &address.port().to_string()])
            .args(["--server-hosts", "127.0.0.1", "--server-ports", &server.port.to_string()])
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary is there");
        let tidegate = Self { child, address };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "tidegate does not listen");
            std::thread::park_timeout(Duration::from_millis(20));
        }
        tidegate
    }

    fn proc(&self, file: &str) -> String {
        format!("/proc/{}/{file}", self.child.id())
    }

    /// Memory in use.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(self.proc("status")).expect("the program runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says so");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB") * 1_024
    }

    pub(crate) fn open_files(&self) -> usize {
        fs::read_dir(self.proc("fd")).expect("the program runs").count()
    }

    fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(self.proc("stat")).expect("the program runs");
        let after_name = stat.rsplit_once(')').expect("the name is in brackets").1;
        let ticks: u64 = after_name.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum();
        // 100 ticks a second, whatever the kernel's own rate.
        Duration::from_millis(ticks * 10)
    }

    /// The share of one processor that is used from now on for some time.
    pub(crate) async fn cpu_share(&self, time: Duration) -> f64 {
        let (begin, before) = (Instant::now(), self.cpu_time());
        tokio::time::sleep(time).await;
        (self.cpu_time() - before).as_secs_f64() / begin.elapsed().as_secs_f64()
    }

    /// Waits until no more than so many files are open.
    pub(crate) async fn settle(&self, files: u64) {
        let deadline = Instant::now() + PATIENCE;
        while self.open_files() as u64 > files {
            assert!(Instant::now() < deadline, "{} files stay open", self.open_files());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Tidegate {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn end(child: &mut Child) {
    child.kill().and_then(|()| child.wait()).map_or_else(|error| eprintln!("a process: {error}"), drop);
}
