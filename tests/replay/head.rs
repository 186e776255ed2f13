//! Whatever a client sends: a server sees exactly the requests that a reading to the letter finds, and load is given
//! back.
//!
//! The bytes go through the real way in (connection, header, admission, relaying) in this process; behind it
//! is a server on loopback that reads to the letter, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pingora::server::configuration::ServerConf;
use tidegate::balance::Balancer;
use tidegate::config::{self, Flags};
use tidegate::drain::Drain;
use tidegate::health::Health;
use tidegate::proxy::{ClientConnections, Proxy};
use tidegate::upstream::Live;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::timeout;

use super::strict::{self, Request};

/// Longer inputs show nothing that shorter ones do not.
const LONGEST_INPUT: usize = 16 << 10;

/// The status that only the server gives.
const FROM_SERVER: u16 = 299;

/// Something that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends bytes as one client's connection.
///
/// # Panics
/// When a server sees another request than the client sent, when a request hangs, or when load is not given back.
pub(crate) fn check(input: &[u8]) {
    thread_local! {
        static RIG: Rig = Rig::new();
    }
    if input.len() <= LONGEST_INPUT && !input.starts_with(b"PRI * HTTP/2.0") {
        RIG.with(|rig| rig.runtime.block_on(rig.check(input)));
    }
}

/// Tidegate in front of one server.
struct Rig {
    runtime: Runtime,
    clients: Arc<ClientConnections>,
    balancer: Arc<Balancer>,
    server: Server,
    shutdown: (watch::Sender<bool>, watch::Receiver<bool>),
}

impl Rig {
    fn new() -> Self {
        // Sockets are looked at between all steps, so that waiting for quiet does not need a clock.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().event_interval(1).build();
        let runtime = runtime.expect("a runtime can be built");
        let server = runtime.block_on(Server::start());
        let flags = Flags {
            host: Some("127.0.0.1".to_owned()),
            server_hosts: Some(vec!["127.0.0.1".to_owned()]),
            server_ports: Some(vec![server.port]),
            max_retries: Some(1),
            ..Flags::default()
        };
        let config = config::load(None, &flags, &|_| None).expect("the flags are right").config;
        let live = Arc::new(Live::new(config).expect("the configuration can be run"));
        let balancer = Arc::clone(live.balancer());
        let drain = Arc::new(Drain::default());
        let health = Arc::new(Health::new(Arc::clone(&live)));
        let proxy = Proxy::new(&ServerConf::default(), live, health, drain);
        let clients = Arc::new(ClientConnections::new(proxy));
        Self { runtime, clients, balancer, server, shutdown: watch::channel(false) }
    }

    async fn check(&self, input: &[u8]) {
        let (mut expected, mut read_to) = (Vec::new(), 0);
        while let Some((request, length)) = strict::request(&input[read_to..]) {
            expected.push(request);
            read_to += length;
        }
        let (mut client, connection) = tokio::io::duplex(1 << 20);
        let (clients, shutdown) = (Arc::clone(&self.clients), self.shutdown.1.clone());
        let serving = tokio::spawn(async move { clients.serve(Box::new(connection), &shutdown).await });
        client.write_all(input).await.expect("the pipe takes all");

        let mut answer = Vec::new();
        let answered = timeout(PATIENCE, async {
            while statuses(&answer).len() < expected.len() && client.read_buf(&mut answer).await.is_ok_and(|n| n > 0) {}
        });
        assert!(answered.await.is_ok(), "{expected:?} was neither answered nor refused: {}", answer.escape_ascii());
        // What follows is half a request or none: time to take it for one.
        for _ in 0..if read_to < input.len() { 200 } else { 0 } {
            tokio::task::yield_now().await;
        }
        client.shutdown().await.expect("a pipe can be closed");
        let ended = timeout(PATIENCE, client.read_to_end(&mut answer)).await;
        ended.expect("the connection ends with its client").expect("a pipe does not fail");
        timeout(PATIENCE, serving).await.expect("a connection without a client is given up").expect("nothing panics");

        let seen = self.server.all_seen().await;
        let statuses = statuses(&answer);
        let proxied: Vec<_> = statuses.iter().enumerate().filter(|(_, status)| **status == FROM_SERVER).collect();
        for (seen, number) in seen.iter().zip(proxied.iter().map(|(number, _)| *number).chain(statuses.len()..)) {
            let seen = seen.as_ref().unwrap_or_else(|bytes| panic!("the server got {}", bytes.escape_ascii()));
            let sent = expected.get(number);
            let sent = sent.unwrap_or_else(|| panic!("{seen:?} is nothing that the client sent to the letter"));
            assert_eq!((&seen.method, &seen.body), (&sent.method, &sent.body));
            assert!(seen.target.iter().all(|byte| byte.is_ascii_graphic() || !byte.is_ascii()), "{seen:?}");
            // A fragment is no part of a target, and is dropped; what is illegal in one is escaped.
            let target = sent.target.split(|byte| *byte == b'#').next().unwrap_or_default();
            let is_path = target.starts_with(b"/") && target.iter().all(u8::is_ascii_graphic);
            assert!(seen.target == target || !is_path, "{sent:?} became {seen:?}");
        }
        assert!(proxied.len() <= seen.len(), "{} answers for {} requests", proxied.len(), seen.len());
        let usage = self.balancer.snapshot();
        assert!(usage.servers.iter().all(|server| server.in_flight == 0 && server.load.tokens() == 0.0), "{usage:?}");
    }
}

/// The status codes of final responses, in their order.
fn statuses(answer: &[u8]) -> Vec<u16> {
    const MARK: &[u8] = b"HTTP/1.1 ";
    let code = |at: usize| -> Option<u16> { std::str::from_utf8(answer.get(at..at + 3)?).ok()?.parse().ok() };
    let marks = answer.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    marks.filter_map(|(at, _)| code(at + MARK.len())).filter(|status| *status >= 200).collect()
}

/// The server: reads one request of each connection, to the letter, and answers it.
struct Server {
    port: u16,
    log: Arc<Log>,
}

#[derive(Default)]
struct Log {
    /// Whole requests, and the bytes of what is none.
    seen: Mutex<Vec<Result<Request, Vec<u8>>>>,
    open: AtomicUsize,
    barriers: AtomicUsize,
}

/// What a check sends to be sure that all connections before have been accepted.
const BARRIER: &[u8] = b"barrier";

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let port = listener.local_addr().expect("it is bound").port();
        let log = Arc::new(Log::default());
        let accepting = Arc::clone(&log);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a connection can be accepted");
                accepting.open.fetch_add(1, Ordering::Relaxed);
                let log = Arc::clone(&accepting);
                tokio::spawn(async move {
                    log.read(stream).await;
                    log.open.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        Self { port, log }
    }

    /// Everything that was seen since the last call.
    async fn all_seen(&self) -> Vec<Result<Request, Vec<u8>>> {
        let before = self.log.barriers.load(Ordering::Relaxed);
        let mut barrier = TcpStream::connect(("127.0.0.1", self.port)).await.expect("the server listens");
        barrier.write_all(BARRIER).await.expect("the server reads");
        drop(barrier);
        let settled = timeout(PATIENCE, async {
            while self.log.barriers.load(Ordering::Relaxed) == before || self.log.open.load(Ordering::Relaxed) > 0 {
                tokio::task::yield_now().await;
            }
        });
        settled.await.expect("connections to the server are closed");
        std::mem::take(&mut *self.log.seen.lock())
    }
}

impl Log {
    async fn read(&self, mut stream: TcpStream) {
        let mut bytes = Vec::new();
        while stream.read_buf(&mut bytes).await.is_ok_and(|length| length > 0) {
            if let Some((request, length)) = strict::request(&bytes) {
                let whole = length == bytes.len();
                self.seen.lock().push(if whole { Ok(request) } else { Err(std::mem::take(&mut bytes)) });
                bytes.clear();
                // Closing makes each connection one request's, so that nothing of one check is left for the next.
                let answer = format!("HTTP/1.1 {FROM_SERVER} OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                drop(stream.write_all(answer.as_bytes()).await);
            }
        }
        if bytes == BARRIER {
            self.barriers.fetch_add(1, Ordering::Relaxed);
        } else if bytes.windows(4).any(|window| window == b"\r\n\r\n") && !is_cut_short(&bytes) {
            self.seen.lock().push(Err(bytes));
        }
    }
}

/// Whether more of the body would make it a request: the client left in the middle.
fn is_cut_short(bytes: &[u8]) -> bool {
    let filled = [bytes, &vec![b'x'; LONGEST_INPUT]].concat();
    strict::request(&filled).is_some()
}
