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

/// The waiting connections to one server, the one that has waited longest in front.
#[derive(Debug, Default)]
pub struct Kept(Mutex<VecDeque<Waiting>>);

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
        loop {
            let mut waiting = {
                let mut kept = self.0.lock();
                let place = kept.iter().rposition(|waiting| waiting.address == address)?;
                kept.remove(place)?
            };
            if waiting.since.elapsed() < keepalive && is_open(&mut waiting.stream) {
                return Some(waiting.stream);
            }
        }
    }

    /// Keeps a connection on which the last answer has come to its end.
    pub fn put(&self, stream: Stream, address: SocketAddr, count: &Count) {
        let waiting = Waiting { stream, address, since: Instant::now(), _counted: Counted::begin(count) };
        self.0.lock().push_back(waiting);
    }

    /// Closes what its server has closed, and what has waited for longer than `keepalive`.
    pub fn sweep(&self, keepalive: Duration) {
        // Closing is a system call each: not under the lock.
        let closed: Vec<_> = {
            let mut kept = self.0.lock();
            let is_good = |waiting: &mut Waiting| waiting.since.elapsed() < keepalive && is_open(&mut waiting.stream);
            let (good, closed) = kept
                .drain(..)
                .map(|mut waiting| (is_good(&mut waiting), waiting))
                .partition::<Vec<_>, _>(|(is_good, _)| *is_good);
            kept.extend(good.into_iter().map(|(_, waiting)| waiting));
            closed
        };
        drop(closed);
    }

    /// Since when the connection waits that has waited longest.
    #[must_use]
    pub fn oldest(&self) -> Option<Instant> {
        self.0.lock().front().map(|waiting| waiting.since)
    }

    /// Closes the connection that has waited longest.
    pub fn drop_oldest(&self) {
        let oldest = self.0.lock().pop_front();
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
