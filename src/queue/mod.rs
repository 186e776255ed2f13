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
//!
//! # Held by the policy
//!
//! The policies by work hold requests themselves, in an order of their own ([`work::Hold`](crate::work::Hold)). Such a
//! request waits here for the word, too: it [`keep`](Queue::keep)s its number, and the dispatcher hands it what the
//! policy has decided. A clock ticks once a second, because some of those decisions are made by time alone.

mod retry_after;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::balance::{Balancer, Lease, Tried, Unavailable};
use crate::config::QueueLimits;
use crate::metrics::{Metrics, QueueExit, Waiting};
use crate::prompt::Demand;
use crate::work::RequestId;
use retry_after::Pace;

/// How often the policy is told that time goes by.
const TICK: Duration = Duration::from_secs(1);

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
    /// Those that the policy holds, in its own order.
    held: HashMap<RequestId, Waiter>,
    /// What the policy has decided of requests that have not yet said that they wait.
    early: HashMap<RequestId, Answer>,
    /// By class.
    classes: Vec<Class>,
    tickets: u64,
}

/// What somebody who waits gets in the end.
type Answer = Result<Lease, Unavailable>;

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
    hand_over: oneshot::Sender<Answer>,
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
    number: Number,
    class: usize,
    answer: oneshot::Receiver<Answer>,
}

/// What a ticket is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    /// In the queue.
    Queued(u64),
    /// With the policy.
    Held(RequestId),
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
        let class = demand.as_ref().map_or(0, |demand| self.balancer.standard_group(demand));
        let (hand_over, answer) = oneshot::channel();
        let number = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let room = state.class(class);
            if room.requests >= limits.max_requests || room.bytes.saturating_add(bytes) > limits.max_bytes {
                self.metrics.queue_refused(class);
                return Err(Full { retry_after_seconds: room.pace.seconds_for(room.requests, Instant::now()) });
            }
            room.enter(bytes);
            state.tickets += 1;
            let since = Instant::now();
            let tried = tried.clone();
            state.waiters.push_back(Waiter { ticket: state.tickets, class, bytes, demand, tried, since, hand_over });
            self.length.store(state.len(), Ordering::Relaxed);
            state.tickets
        };
        // A place may have become free between the refusal and now.
        self.wake.notify_one();
        Ok(Ticket { queue: Arc::clone(self), number: Number::Queued(number), class, answer })
    }

    /// Waits for what the policy decides of a request that it holds. It is bounded by the policy.
    pub fn keep(self: &Arc<Self>, request: RequestId, demand: Demand, tried: &Tried, bytes: usize) -> Ticket {
        let class = self.balancer.standard_group(&demand);
        let (hand_over, answer) = oneshot::channel();
        {
            let mut state = self.state.lock();
            let state = &mut *state;
            if let Some(early) = state.early.remove(&request) {
                // The receiver is here.
                drop(hand_over.send(early));
            } else {
                state.class(class).enter(bytes);
                let (since, tried) = (Instant::now(), tried.clone());
                let waiter = Waiter { ticket: 0, class, bytes, demand: Some(demand), tried, since, hand_over };
                state.held.insert(request, waiter);
            }
            self.length.store(state.len(), Ordering::Relaxed);
        }
        self.wake.notify_one();
        Ticket { queue: Arc::clone(self), number: Number::Held(request), class, answer }
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
            let mut handed = self.take_decided();
            handed.extend(self.take_served().into_iter().map(|(waiter, lease)| (waiter, Ok(lease))));
            if handed.is_empty() {
                return;
            }
            for (waiter, answer) in handed {
                let waited = waiter.since.elapsed();
                let served = match answer {
                    Ok(_) => QueueExit::Served,
                    // The policy that held it is gone, or it was held for as long as it may be: it asks again.
                    Err(_) => QueueExit::AskedAgain,
                };
                let exit = match waiter.hand_over.send(answer) {
                    Ok(()) => served,
                    // It left at this very moment; its lease has dropped, and the next turn of the loop hands it on.
                    Err(_) => QueueExit::ClientGone,
                };
                self.metrics.queue_left(waiter.class, exit, waited);
            }
        }
    }

    /// Takes out everybody of whom the policy has decided, with what it has decided.
    fn take_decided(&self) -> Vec<(Waiter, Answer)> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut handed = Vec::new();
        for (request, answer) in self.balancer.take_decided() {
            match state.held.remove(&request) {
                Some(waiter) => {
                    let class = &mut state.classes[waiter.class];
                    class.leave(waiter.bytes);
                    if answer.is_ok() {
                        class.pace.count(Instant::now());
                    }
                    handed.push((waiter, answer));
                }
                // Between being held and saying that it waits. Who has left is not held, so that nothing is decided of it.
                None => drop(state.early.insert(request, answer)),
            }
        }
        self.length.store(state.len(), Ordering::Relaxed);
        handed
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
        self.length.store(state.len(), Ordering::Relaxed);
        served
    }
}

impl State {
    /// All that wait.
    fn len(&self) -> usize {
        self.waiters.len() + self.held.len()
    }

    fn class(&mut self, class: usize) -> &mut Class {
        if self.classes.len() <= class {
            self.classes.resize_with(class + 1, Class::default);
        }
        &mut self.classes[class]
    }

    fn leave(&mut self, position: usize) -> Option<Waiter> {
        let waiter = self.waiters.remove(position)?;
        self.classes[waiter.class].leave(waiter.bytes);
        Some(waiter)
    }
}

impl Class {
    fn enter(&mut self, bytes: usize) {
        self.requests += 1;
        self.bytes += bytes;
    }

    fn leave(&mut self, bytes: usize) {
        self.requests -= 1;
        self.bytes -= bytes;
    }
}

impl Ticket {
    /// Resolves with the lease when it is this request's turn, or with what keeps it from ever having one. Cancel safe.
    pub async fn served(&mut self) -> Answer {
        match (&mut self.answer).await {
            Ok(answer) => answer,
            // Only a served or dropped ticket leaves the queue.
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether it waits for its turn only, and will have it: nothing else is in its way.
    #[must_use]
    pub fn has_its_turn(&self) -> bool {
        matches!(self.number, Number::Held(_)) && self.queue.balancer.in_the_way().is_none()
    }

    /// Leaves the queue because time is up; says when it may be worth coming back, in seconds from now.
    #[must_use]
    pub fn give_up(mut self) -> u64 {
        self.leave(QueueExit::TimeUp);
        let mut state = self.queue.state.lock();
        let class = state.class(self.class);
        class.pace.seconds_for(class.requests, Instant::now())
    }

    fn leave(&mut self, exit: QueueExit) {
        let left = {
            let mut state = self.queue.state.lock();
            let state = &mut *state;
            let left = match self.number {
                Number::Queued(number) => {
                    let position = state.waiters.iter().position(|waiter| waiter.ticket == number);
                    position.and_then(|position| state.leave(position))
                }
                Number::Held(request) => {
                    let left = state.held.remove(&request);
                    if let Some(waiter) = &left {
                        state.classes[waiter.class].leave(waiter.bytes);
                        // Within the lock: nobody else takes what may have been decided just now.
                        self.queue.balancer.leave(request);
                    }
                    left
                }
            };
            self.queue.length.store(state.len(), Ordering::Relaxed);
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
        let mut clock = interval(TICK);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.0.wake.notified() => self.0.dispatch(),
                _ = clock.tick() => self.0.balancer.tick(),
                // What runs is still served while the process winds up: only the end of the watch ends this.
                changed = shutdown.changed() => if changed.is_err() { return },
            }
        }
    }
}
