//! Connections to a server that wait for the next request.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use pingora::protocols::Stream;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;

/// The waiting connections to one server.
///
/// Closing one takes a system call, and what the kernel does about it: a hundred of them take longer than a request may wait.
/// So those that are no good are only set aside here, and whoever [sweeps](Self::sweep) closes them, one after the other.
#[derive(Debug, Default)]
pub struct Kept(Mutex<Connections>);

#[derive(Debug, Default)]
struct Connections {
    /// The one that has waited longest stands in front.
    waiting: VecDeque<Waiting>,
    /// Those that their server has closed.
    closed: Vec<Waiting>,
}

/// A connection that is no good any more. It is closed when this is dropped.
#[derive(Debug)]
pub struct ToBeClosed(#[expect(dead_code, reason = "it is held for its drop")] Waiting);

#[derive(Debug)]
struct Waiting {
    stream: Stream,
    address: SocketAddr,
    since: Instant,
    _counted: Counted,
}

/// How many connections wait, to all servers.
#[derive(Debug, Clone, Default)]
pub struct Count(Arc<AtomicUsize>);

impl Count {
    /// How many there are.
    #[must_use]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Counted(Count);

impl Counted {
    fn begin(count: &Count) -> Self {
        count.0.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Kept {
    /// The connection to this address that was used last, if its server has not closed it and it has not waited for longer
    /// than `keepalive`.
    pub fn take(&self, address: SocketAddr, keepalive: Duration) -> Option<Stream> {
        let mut kept = self.0.lock();
        loop {
            let place = kept.waiting.iter().rposition(|waiting| waiting.address == address)?;
            if kept.waiting[place].since.elapsed() >= keepalive {
                // Those before have waited even longer.
                return None;
            }
            let mut waiting = kept.waiting.remove(place)?;
            if is_open(&mut waiting.stream) {
                return Some(waiting.stream);
            }
            kept.closed.push(waiting);
        }
    }

    /// Keeps a connection on which the last answer has come to its end.
    pub fn put(&self, stream: Stream, address: SocketAddr, count: &Count) {
        let waiting = Waiting { stream, address, since: Instant::now(), _counted: Counted::begin(count) };
        self.0.lock().waiting.push_back(waiting);
    }

    /// What its server has closed, and what has waited for longer than `keepalive`.
    pub fn sweep(&self, keepalive: Duration) -> Vec<ToBeClosed> {
        let mut kept = self.0.lock();
        let mut closed = std::mem::take(&mut kept.closed);
        for _ in 0..kept.waiting.len() {
            let Some(mut waiting) = kept.waiting.pop_front() else { break };
            if waiting.since.elapsed() < keepalive && is_open(&mut waiting.stream) {
                kept.waiting.push_back(waiting);
            } else {
                closed.push(waiting);
            }
        }
        drop(kept);
        closed.into_iter().map(ToBeClosed).collect()
    }

    /// Since when the connection waits that has waited longest.
    #[must_use]
    pub fn oldest(&self) -> Option<Instant> {
        self.0.lock().waiting.front().map(|waiting| waiting.since)
    }

    /// Closes the connection that has waited longest.
    pub fn drop_oldest(&self) {
        let oldest = self.0.lock().waiting.pop_front();
        drop(oldest);
    }
}

/// Whether nothing has come on a connection on which nothing is due, not even its end.
fn is_open(stream: &mut Stream) -> bool {
    let mut byte = [0; 1];
    let mut read = ReadBuf::new(&mut byte);
    // Nobody has to be woken: it is looked at again.
    Pin::new(stream).poll_read(&mut Context::from_waker(Waker::noop()), &mut read).is_pending()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const KEEPALIVE: Duration = Duration::from_secs(4);

    struct Pool {
        kept: Kept,
        count: Count,
        address: SocketAddr,
    }

    impl Pool {
        fn new() -> Self {
            Self { kept: Kept::default(), count: Count::default(), address: ([127, 0, 0, 1], 1).into() }
        }

        /// Keeps a connection; the other end of it.
        fn put(&self) -> DuplexStream {
            let (ours, theirs) = duplex(64);
            self.kept.put(Box::new(ours), self.address, &self.count);
            theirs
        }

        fn take(&self) -> Option<Stream> {
            self.kept.take(self.address, KEEPALIVE)
        }
    }

    async fn is_closed(mut end: DuplexStream) -> bool {
        tokio::time::timeout(Duration::from_millis(1), end.read_u8()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_one_is_taken_first_and_only_for_its_address() {
        let pool = Pool::new();
        let (_first, mut second) = (pool.put(), pool.put());
        assert!(pool.kept.take(([127, 0, 0, 1], 2).into(), KEEPALIVE).is_none());
        pool.take().unwrap().write_u8(7).await.unwrap();
        assert_eq!((second.read_u8().await.unwrap(), pool.count.get()), (7, 1));
        assert!(pool.take().is_some() && pool.take().is_none());
        assert_eq!(pool.count.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_good_is_not_taken_and_closed_by_the_sweep_alone() {
        let pool = Pool::new();
        let old: Vec<_> = (0..3).map(|_| pool.put()).collect();
        tokio::time::advance(KEEPALIVE).await;
        assert!(pool.take().is_none());
        assert_eq!(pool.count.get(), 3, "nobody has closed them");
        let good = pool.put();
        drop(pool.put());
        let mut talkative = pool.put();
        talkative.write_u8(1).await.unwrap();
        assert!(pool.take().is_some(), "the good one is behind those that are closed, or talk unasked");
        let _also_good = (pool.put(), good);
        let closed = pool.kept.sweep(KEEPALIVE);
        assert_eq!((closed.len(), pool.count.get()), (5, 6), "set aside, and still open");
        drop(closed);
        for end in old {
            assert!(is_closed(end).await);
        }
        assert!(pool.take().is_some());
        assert_eq!(pool.count.get(), 0);
    }
}
