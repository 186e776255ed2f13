//! Where requests wait when no server is live or free.
//!
//! # Who is served next?
//!
//! Requests of one class (the group that their length is for) are served first come, first served. Between classes the
//! one that has waited longest goes first; a class for which there is no server just now is passed over, so it holds up
//! nobody. Waiting alone makes a request more urgent, so no class can starve.
//!
//! # How it works
//!
//! A request that [`Balancer::acquire`] refuses [`join`](Queue::join)s and gets a [`Ticket`]. Whenever a server may have
//! become able to take a request the balancer says so, and the [`Dispatcher`] goes through the queue in order and hands
//! leases to the tickets. A ticket that is dropped (its client has left, its time is up) leaves the queue; a lease that
//! was on its way to it drops, too, and goes to the next.
//!
//! The queue is bounded per class, in requests, in bytes of their bodies, and in time.

mod retry_after;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::balance::{Balancer, Lease, Tried};
use crate::config::QueueLimits;
use crate::metrics::{Metrics, QueueExit, Waiting};
use crate::prompt::Demand;
use retry_after::Pace;

/// The requests that wait.
#[derive(Debug)]
pub struct Queue {
    balancer: Arc<Balancer>,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
    /// The length of the queue, to be looked at without a lock. Relaxed: nothing is published through it; whoever joins
    /// wakes the dispatcher afterwards.
    length: AtomicUsize,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of arrival.
    waiters: VecDeque<Waiter>,
    /// By class.
    classes: Vec<Class>,
    tickets: u64,
}

#[derive(Debug, Default)]
struct Class {
    requests: usize,
    bytes: usize,
    pace: Pace,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    class: usize,
    bytes: usize,
    /// `None` weighs nothing.
    demand: Option<Demand>,
    tried: Tried,
    since: Instant,
    hand_over: oneshot::Sender<Lease>,
}

/// There is no room to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// When a place may be free, in seconds from now.
    pub retry_after_seconds: u64,
}

/// A place in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub struct Ticket {
    queue: Arc<Queue>,
    number: u64,
    class: usize,
    lease: oneshot::Receiver<Lease>,
}

impl Queue {
    /// An empty queue that hears from the balancer when there is capacity.
    #[must_use]
    pub fn new(balancer: &Arc<Balancer>, metrics: &Arc<Metrics>) -> Arc<Self> {
        let queue = Arc::new(Self {
            balancer: Arc::clone(balancer),
            metrics: Arc::clone(metrics),
            state: Mutex::default(),
            length: AtomicUsize::new(0),
            wake: Notify::new(),
        });
        let listener = Arc::downgrade(&queue);
        balancer.on_capacity(move || {
            if let Some(queue) = listener.upgrade().filter(|queue| queue.length.load(Ordering::Relaxed) > 0) {
                queue.wake.notify_one();
            }
        });
        queue
    }

    /// Whether a request of this class would overtake someone by not waiting.
    #[must_use]
    pub fn is_waiting(&self, class: usize) -> bool {
        self.length.load(Ordering::Relaxed) > 0
            && self.state.lock().classes.get(class).is_some_and(|class| class.requests > 0)
    }

    /// Takes a place at the end of the queue, for a request with a body of so many bytes.
    ///
    /// # Errors
    /// When its class has no room left.
    pub fn join(
        self: &Arc<Self>,
        demand: Option<Demand>,
        tried: &Tried,
        bytes: usize,
        limits: &QueueLimits,
    ) -> Result<Ticket, Full> {
        let class = demand.map_or(0, |demand| self.balancer.standard_group(&demand));
        let (hand_over, lease) = oneshot::channel();
        let number = {
            let mut state = self.state.lock();
            let state = &mut *state;
            if state.classes.len() <= class {
                state.classes.resize_with(class + 1, Class::default);
            }
            let room = &mut state.classes[class];
            if room.requests >= limits.max_requests || room.bytes.saturating_add(bytes) > limits.max_bytes {
                self.metrics.queue_refused(class);
                return Err(Full { retry_after_seconds: room.pace.seconds_for(room.requests, Instant::now()) });
            }
            room.requests += 1;
            room.bytes += bytes;
            state.tickets += 1;
            let since = Instant::now();
            let tried = tried.clone();
            state.waiters.push_back(Waiter { ticket: state.tickets, class, bytes, demand, tried, since, hand_over });
            self.length.store(state.waiters.len(), Ordering::Relaxed);
            state.tickets
        };
        // A place may have become free between the refusal and now.
        self.wake.notify_one();
        Ok(Ticket { queue: Arc::clone(self), number, class, lease })
    }

    /// What waits, by class.
    #[must_use]
    pub fn waiting(&self) -> Vec<Waiting> {
        let of = |class: &Class| Waiting { requests: class.requests as u64, bytes: class.bytes as u64 };
        self.state.lock().classes.iter().map(of).collect()
    }

    /// Hands out what can be had now, in order.
    fn dispatch(&self) {
        loop {
            let handed = self.take_served();
            if handed.is_empty() {
                return;
            }
            for (waiter, lease) in handed {
                let waited = waiter.since.elapsed();
                let exit = match waiter.hand_over.send(lease) {
                    Ok(()) => QueueExit::Served,
                    // It left at this very moment; its lease has dropped, and the next turn of the loop hands it on.
                    Err(_) => QueueExit::ClientGone,
                };
                self.metrics.queue_left(waiter.class, exit, waited);
            }
        }
    }

    /// Takes out everybody who can be served now, with a lease each.
    fn take_served(&self) -> Vec<(Waiter, Lease)> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut blocked = vec![false; state.classes.len()];
        let mut served = Vec::new();
        let mut position = 0;
        while position < state.waiters.len() && blocked.contains(&false) {
            let waiter = &state.waiters[position];
            let class = waiter.class;
            if blocked[class] {
                position += 1;
                continue;
            }
            let lease = match &waiter.demand {
                Some(demand) => self.balancer.acquire(demand, &waiter.tried),
                None => self.balancer.acquire_weightless(&waiter.tried),
            };
            match lease {
                Ok(lease) => {
                    let waiter = state.leave(position).expect("the position is below the length");
                    state.classes[class].pace.count(Instant::now());
                    served.push((waiter, lease));
                }
                Err(_) => {
                    blocked[class] = true;
                    position += 1;
                }
            }
        }
        self.length.store(state.waiters.len(), Ordering::Relaxed);
        served
    }
}

impl State {
    fn leave(&mut self, position: usize) -> Option<Waiter> {
        let waiter = self.waiters.remove(position)?;
        let class = &mut self.classes[waiter.class];
        class.requests -= 1;
        class.bytes -= waiter.bytes;
        Some(waiter)
    }
}

impl Ticket {
    /// Resolves with the lease when it is this request's turn. Cancel safe.
    pub async fn served(&mut self) -> Lease {
        match (&mut self.lease).await {
            Ok(lease) => lease,
            // Only a served or dropped ticket leaves the queue.
            Err(_) => std::future::pending().await,
        }
    }

    /// Leaves the queue because time is up; says when it may be worth coming back, in seconds from now.
    #[must_use]
    pub fn give_up(mut self) -> u64 {
        self.leave(QueueExit::TimeUp);
        let state = self.queue.state.lock();
        let class = &state.classes[self.class];
        class.pace.seconds_for(class.requests, Instant::now())
    }

    fn leave(&mut self, exit: QueueExit) {
        let left = {
            let mut state = self.queue.state.lock();
            let position = state.waiters.iter().position(|waiter| waiter.ticket == self.number);
            let left = position.and_then(|position| state.leave(position));
            self.queue.length.store(state.waiters.len(), Ordering::Relaxed);
            left
        };
        if let Some(waiter) = left {
            self.queue.metrics.queue_left(waiter.class, exit, waiter.since.elapsed());
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.leave(QueueExit::ClientGone);
    }
}

/// Serves the queue whenever there is capacity. Runs for as long as the process does.
#[derive(Debug)]
pub struct Dispatcher(pub Arc<Queue>);

#[async_trait]
impl BackgroundService for Dispatcher {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        loop {
            tokio::select! {
                () = self.0.wake.notified() => self.0.dispatch(),
                // What runs is still served while the process winds up: only the end of the watch ends this.
                changed = shutdown.changed() => if changed.is_err() { return },
            }
        }
    }
}
