//! The clients: connections in this process, each a task.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Connections that are being opened at the same time.
const OPENING: usize = 128;
/// Something that takes this long does not come any more.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Counts {
    events: AtomicUsize,
    answered: AtomicUsize,
    refused: AtomicUsize,
    failed: AtomicUsize,
}

/// Clients of one Tidegate.
pub(crate) struct Clients {
    address: SocketAddr,
    counts: Arc<Counts>,
    /// Whether the stream ended as its framing says.
    streams: JoinSet<bool>,
    idle: Vec<TcpStream>,
}

impl Clients {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, counts: Arc::default(), streams: JoinSet::new(), idle: Vec::new() }
    }

    /// Opens streams, a bounded number at a time, and waits until each has had its first event or has failed.
    pub(crate) async fn open_streams(&mut self, count: usize, path: &'static str) {
        let opening = Arc::new(Semaphore::new(OPENING));
        for _ in 0..count {
            let (address, counts) = (self.address, Arc::clone(&self.counts));
            let permit = Arc::clone(&opening).acquire_owned().await.expect("it is not closed");
            self.streams.spawn(async move {
                let opened = timeout(PATIENCE, open(address, path)).await.ok().flatten();
                drop(permit);
                match opened {
                    Some((stream, begin)) => read_stream(stream, begin, &counts).await,
                    None => {
                        counts.failed.fetch_add(1, Ordering::Relaxed);
                        false
                    }
                }
            });
        }
        drop(opening.acquire_many(u32::try_from(OPENING).expect("it is small")).await.expect("it is not closed"));
    }

    /// Asks for streams all at once, and gives them a few seconds.
    pub(crate) async fn press(&mut self, count: usize) {
        for _ in 0..count {
            let (address, counts) = (self.address, Arc::clone(&self.counts));
            self.streams.spawn(async move {
                match open(address, "/slow").await {
                    Some((stream, begin)) if begin.starts_with(b"HTTP/1.1 200") => {
                        counts.answered.fetch_add(1, Ordering::Relaxed);
                        read_stream(stream, begin, &counts).await
                    }
                    answer => {
                        let is_refusal = answer.is_some_and(|(_, begin)| begin.starts_with(b"HTTP/1.1 502"));
                        let count = if is_refusal { &counts.refused } else { &counts.failed };
                        count.fetch_add(1, Ordering::Relaxed);
                        false
                    }
                }
            });
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }

    /// Streams, refusals, and requests without an answer so far.
    pub(crate) fn outcomes(&self) -> [usize; 3] {
        let [answered, refused] =
            [&self.counts.answered, &self.counts.refused].map(|count| count.load(Ordering::Relaxed));
        [answered, refused, self.streams.len().saturating_sub(answered + refused)]
    }

    /// Opens connections, has one short answer on each, and keeps them.
    pub(crate) async fn answer_once(&mut self, count: usize) {
        let opening = Arc::new(Semaphore::new(OPENING));
        let mut answers = JoinSet::new();
        for _ in 0..count {
            let address = self.address;
            let permit = Arc::clone(&opening).acquire_owned().await.expect("it is not closed");
            answers.spawn(async move {
                let opened = timeout(PATIENCE, open(address, "/short")).await.ok().flatten();
                drop(permit);
                opened.filter(|(_, answer)| answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"{}"))
            });
        }
        for answer in answers.join_all().await {
            match answer {
                Some((stream, _)) => self.idle.push(stream),
                None => drop(self.counts.failed.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }

    /// Asks for 64 MiB on each of so many connections and reads no more than the beginning.
    pub(crate) async fn open_unread(&self, count: usize) -> Vec<TcpStream> {
        let mut unread = Vec::new();
        for _ in 0..count {
            unread.extend(open(self.address, "/flood").await.map(|(stream, _)| stream));
        }
        assert_eq!(unread.len(), count, "every request is answered");
        unread
    }

    /// Waits for the ends of all streams: how many were whole, and how many broken.
    pub(crate) async fn finish(&mut self) -> (usize, usize) {
        let mut ends = [0, 0];
        while let Some(whole) = self.streams.join_next().await {
            ends[usize::from(!whole.expect("clients do not panic"))] += 1;
        }
        (ends[0], ends[1])
    }

    /// Closes everything.
    pub(crate) fn leave(&mut self) {
        self.streams.abort_all();
    }

    pub(crate) fn events(&self) -> usize {
        self.counts.events.load(Ordering::Relaxed)
    }

    pub(crate) fn failed(&self) -> usize {
        self.counts.failed.load(Ordering::Relaxed)
    }
}

/// Sends a request and reads the beginning of its answer: the header and something of the body.
async fn open(address: SocketAddr, path: &str) -> Option<(TcpStream, Vec<u8>)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: 2\r\n\r\n{{}}");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut begin = Vec::with_capacity(512);
    loop {
        (stream.read_buf(&mut begin).await.ok()? > 0).then_some(())?;
        let body = begin.windows(4).position(|window| window == b"\r\n\r\n").map(|end| &begin[end + 4..]);
        if body.is_some_and(|body| !body.is_empty()) {
            return Some((stream, begin));
        }
    }
}

/// Counts the events of a stream to its end; true when that is the last chunk.
async fn read_stream(mut stream: TcpStream, begin: Vec<u8>, counts: &Counts) -> bool {
    const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
    let mut piece = begin;
    // What could be the first bytes of the last chunk.
    let mut tail = Vec::new();
    loop {
        let events = piece.windows(6).filter(|window| window == b"data: ").count();
        counts.events.fetch_add(events, Ordering::Relaxed);
        tail.extend(&piece[piece.len().saturating_sub(LAST_CHUNK.len())..]);
        if tail.ends_with(LAST_CHUNK) {
            return true;
        }
        tail.drain(..tail.len().saturating_sub(LAST_CHUNK.len()));
        piece.clear();
        if !stream.read_buf(&mut piece).await.is_ok_and(|length| length > 0) {
            return false;
        }
    }
}
