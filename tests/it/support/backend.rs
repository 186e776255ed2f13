//! A scriptable server: every connection is driven by an async closure, and everything that happens is recorded.

use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::wire::{End, Head, Wire};
use super::{Loopback, until, until_within};

/// A request as a server got it.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    /// On which connection, counted from 0.
    pub(crate) connection: usize,
    pub(crate) head: Head,
    /// As far as it came.
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    /// `None` while the body is still coming, and when the script does not read it.
    pub(crate) end: Option<End>,
    /// When the header was complete.
    pub(crate) at: Instant,
}

#[derive(Debug, Default)]
struct Log {
    /// A server under load for minutes must not remember every body.
    keeps_nothing: bool,
    connections: usize,
    received: Vec<Received>,
    /// How the peer ended its connections, in the order in which that was seen.
    ends: Vec<End>,
    panics: Vec<String>,
}

type Script = Arc<dyn Fn(Conn) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A server. Ends with its value; a panic in its script fails the test there.
pub(crate) struct Backend {
    address: SocketAddr,
    log: Arc<Mutex<Log>>,
    accepting: JoinHandle<()>,
}

impl Backend {
    /// Starts a server that runs `script` for each connection.
    pub(crate) async fn start<F>(script: impl Fn(Conn) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::start_at(SocketAddr::new(Loopback::new().ip(), 0), script).await
    }

    /// Starts a server at a given address.
    pub(crate) async fn start_at<F>(address: SocketAddr, script: impl Fn(Conn) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::listen(address, Log::default(), script).await
    }

    /// Starts a server at a given address that does not record what it receives.
    pub(crate) async fn start_forgetful<F>(
        address: SocketAddr,
        script: impl Fn(Conn) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::listen(address, Log { keeps_nothing: true, ..Log::default() }, script).await
    }

    async fn listen<F>(address: SocketAddr, log: Log, script: impl Fn(Conn) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await.expect("nobody else uses the address");
        let address = listener.local_addr().expect("a bound socket has an address");
        let log = Arc::new(Mutex::new(log));
        let script: Script = Arc::new(move |conn| Box::pin(script(conn)));
        let accepting = tokio::spawn(accept(listener, Arc::clone(&log), script));
        Self { address, log, accepting }
    }

    /// Stops accepting connections: from here on they are refused. Those that are there go on.
    pub(crate) async fn stop(mut self) {
        self.accepting.abort();
        // Only when the task has ended is its socket closed. That it was aborted is no news.
        drop((&mut self.accepting).await);
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Address and port as configured, which is also the server's name in the status.
    pub(crate) fn name(&self) -> String {
        self.address.to_string()
    }

    /// Everything received so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.log.lock().received.clone()
    }

    /// The number of requests begun so far.
    pub(crate) fn count(&self) -> usize {
        self.log.lock().received.len()
    }

    /// Forgets what was received so far.
    pub(crate) fn forget(&self) {
        self.log.lock().received.clear();
    }

    /// The one request that was received.
    pub(crate) fn only(&self) -> Received {
        let received = self.received();
        assert_eq!(received.len(), 1, "exactly one request is expected: {received:?}");
        received.into_iter().next().expect("its length is 1")
    }

    pub(crate) fn connections(&self) -> usize {
        self.log.lock().connections
    }

    /// How the peer ended its connections, in the order in which that was seen.
    pub(crate) fn ends(&self) -> Vec<End> {
        self.log.lock().ends.clone()
    }

    /// Waits until so many requests have come (the whole header).
    pub(crate) async fn requests(&self, count: usize) {
        until(&format!("{} got {count} requests", self.address), async || self.count() >= count).await;
    }

    /// Waits until so many requests have come with their whole body.
    pub(crate) async fn whole_requests(&self, count: usize) {
        until(&format!("{} got {count} whole requests", self.address), async || {
            let log = self.log.lock();
            log.received.iter().filter(|request| request.end == Some(End::Complete)).count() >= count
        })
        .await;
    }

    /// Waits until the peer has closed so many connections.
    pub(crate) async fn closed_within(&self, patience: Duration, count: usize) {
        until_within(patience, &format!("{} sees {count} connections closed", self.address), async || {
            self.log.lock().ends.len() >= count
        })
        .await;
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.accepting.abort();
        let panics = std::mem::take(&mut self.log.lock().panics);
        assert!(panics.is_empty() || std::thread::panicking(), "panics in the script of a server: {panics:?}");
    }
}

async fn accept(listener: TcpListener, log: Arc<Mutex<Log>>, script: Script) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let number = {
            let mut log = log.lock();
            log.connections += 1;
            log.connections - 1
        };
        let running = tokio::spawn(script(Conn::new(stream, number, Arc::clone(&log))));
        let log = Arc::clone(&log);
        tokio::spawn(async move {
            if let Err(e) = running.await
                && e.is_panic()
            {
                log.lock().panics.push(format!("{:?}", e.into_panic().downcast_ref::<String>()));
            }
        });
    }
}

/// Another hand on a connection to a server.
#[derive(Debug)]
pub(crate) struct Line(std::net::TcpStream);

impl Line {
    /// Whether the peer has closed it, read or not.
    pub(crate) fn is_closed_by_peer(&self) -> bool {
        match self.0.peek(&mut [0]) {
            Ok(length) => length == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// A connection to a server, in the hands of its script.
#[derive(Debug)]
pub(crate) struct Conn {
    /// Counted from 0.
    pub(crate) number: usize,
    wire: Wire,
    log: Arc<Mutex<Log>>,
}

impl Conn {
    fn new(stream: TcpStream, number: usize, log: Arc<Mutex<Log>>) -> Self {
        Self { number, wire: Wire::new(stream), log }
    }

    /// The server's end of the connection.
    pub(crate) fn local_address(&self) -> SocketAddr {
        self.wire.stream.local_addr().expect("a connected socket has an address")
    }

    /// The connection, to be looked at by somebody else. It is closed only when this has been dropped, too.
    pub(crate) fn line(&self) -> Line {
        let file = self.wire.stream.as_fd().try_clone_to_owned().expect("an open file can be doubled");
        Line(file.into())
    }

    /// Reads a request's header; `None` when the peer leaves instead.
    pub(crate) async fn head(&mut self) -> Option<Head> {
        // Idle connections have no deadline: the test decides how long it runs.
        while self.wire.buffer.is_empty() {
            if let Err(how) = self.wire.fill().await {
                self.ended(how);
                return None;
            }
        }
        match self.wire.head().await {
            Ok(head) => {
                let mut log = self.log.lock();
                if !log.keeps_nothing {
                    log.received.push(self.received(&head));
                }
                Some(head)
            }
            Err(how) => {
                self.ended(how);
                None
            }
        }
    }

    /// A request of which only the header is known yet.
    fn received(&self, head: &Head) -> Received {
        let (connection, at) = (self.number, Instant::now());
        Received { connection, head: head.clone(), body: Vec::new(), trailers: Vec::new(), end: None, at }
    }

    /// Reads a whole request; `None` when the peer leaves before its end.
    pub(crate) async fn request(&mut self) -> Option<Received> {
        let head = self.head().await?;
        self.body(&head).await
    }

    /// Reads the body of the request whose header was read last; `None` when the peer leaves before its end.
    pub(crate) async fn body(&mut self, head: &Head) -> Option<Received> {
        let (body, end) = self.wire.rest(&mut head.request_framing()).await;
        let trailers = self.wire.take_trailers();
        let request = {
            let mut log = self.log.lock();
            let recorded = log.received.iter_mut().rfind(|request| request.connection == self.number);
            let mut unrecorded = None;
            let request = recorded.unwrap_or_else(|| unrecorded.insert(self.received(head)));
            (request.body, request.trailers, request.end) = (body, trailers, Some(end.clone()));
            request.clone()
        };
        if end == End::Complete {
            return Some(request);
        }
        self.ended(end);
        None
    }

    /// Sends bytes; false when the peer is gone.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        if self.wire.send(bytes.as_ref()).await.is_ok() {
            return true;
        }
        self.ended(End::Reset);
        false
    }

    /// Waits for something; `None` when the peer leaves first.
    pub(crate) async fn unless_closed<T>(&mut self, something: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(something);
        loop {
            let how = tokio::select! {
                value = &mut something => return Some(value),
                filled = self.wire.fill() => filled,
            };
            if let Err(how) = how {
                self.ended(how);
                return None;
            }
        }
    }

    /// Waits until the peer leaves.
    pub(crate) async fn closed(&mut self) {
        let _: Option<()> = self.unless_closed(std::future::pending()).await;
    }

    /// Closes in order (FIN), having read what there is.
    pub(crate) async fn finish(mut self) {
        drop(self.wire.stream.shutdown().await);
        // Unread bytes would turn the close into a reset.
        drop(tokio::time::timeout(Duration::from_secs(2), async { while self.wire.fill().await.is_ok() {} }).await);
    }

    /// Closes with RST.
    pub(crate) fn reset(self) {
        self.wire.reset();
    }

    fn ended(&self, how: End) {
        self.log.lock().ends.push(how);
    }
}
