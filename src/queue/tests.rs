//! Order, bounds and leaving, with the dispatcher called by hand.

use std::time::Duration;

use super::*;
use crate::balance::{Admission, Bucket, Buckets, Policy, RedirectTuning, Ties, Topology};
use crate::metrics::Roster;

const SHORT: Demand = Demand::of_bytes(400);
const LONG: Demand = Demand::of_bytes(8_000);
const LIMITS: QueueLimits = QueueLimits { max_requests: 10, max_bytes: 1_000, max_wait: Some(Duration::from_secs(30)) };

/// A short and a long group of one server each, both closed.
fn closed() -> (Arc<Balancer>, Arc<Queue>) {
    let ranges = vec![Bucket { from: 0, to: 1_000 }, Bucket { from: 1_000, to: 4_000 }];
    let policy = Policy::ReferenceBucket(Buckets::new(ranges, RedirectTuning::default()).unwrap());
    let balancer = Arc::new(Balancer::new(Topology::split_evenly(2, 2).unwrap(), policy, Ties::First).unwrap());
    let groups = [("short", [(0, "a")].into_iter()), ("long", [(1, "b")].into_iter())];
    let queue = Queue::new(&balancer, &Arc::new(Metrics::new(&Roster::new(groups.into_iter()))));
    (0..2).for_each(|server| balancer.set_admission(server, Admission::closed()));
    (balancer, queue)
}

fn places(most: u64) -> Admission {
    Admission { max_in_flight: Some(most), ..Admission::default() }
}

fn join(queue: &Arc<Queue>, demand: Demand) -> Ticket {
    queue.join(Some(demand), &Tried::default(), 10, &LIMITS).unwrap()
}

/// The leases of those who are served by now, in the order of the tickets.
fn served(tickets: &mut [Ticket]) -> Vec<Option<Lease>> {
    tickets.iter_mut().map(|ticket| ticket.answer.try_recv().ok().and_then(Result::ok)).collect()
}

fn who(leases: &[Option<Lease>]) -> Vec<bool> {
    leases.iter().map(Option::is_some).collect()
}

#[tokio::test]
async fn of_one_class_the_first_come_is_the_first_served() {
    let (balancer, queue) = closed();
    let mut tickets = [join(&queue, SHORT), join(&queue, SHORT), join(&queue, SHORT)];
    balancer.set_admission(0, places(1));
    queue.dispatch();
    let first = served(&mut tickets);
    assert_eq!(who(&first), [true, false, false]);
    drop(first);
    queue.dispatch();
    assert_eq!(who(&served(&mut tickets[1..])), [true, false]);
}

#[tokio::test]
async fn a_class_without_a_server_holds_up_nobody_and_loses_its_place_to_nobody() {
    let (balancer, queue) = closed();
    // The short server is full, so shorts wait for it; the long group is closed and longs would fail over to it.
    let mut tickets = [join(&queue, LONG), join(&queue, SHORT), join(&queue, LONG)];
    balancer.set_admission(1, places(1));
    balancer.set_admission(0, places(0));
    queue.dispatch();
    assert_eq!(who(&served(&mut tickets)), [true, false, false], "the long server takes the first long one");
    balancer.set_admission(0, places(1));
    queue.dispatch();
    assert_eq!(who(&served(&mut tickets[1..])), [true, true], "the lease of the first has dropped");
}

#[tokio::test]
async fn between_classes_the_one_that_waited_longest_goes_first() {
    let (balancer, queue) = closed();
    let mut tickets = [join(&queue, LONG), join(&queue, SHORT)];
    // Only the short server is there: both are for it.
    balancer.set_admission(0, places(1));
    queue.dispatch();
    let first = served(&mut tickets);
    assert_eq!(who(&first), [true, false]);
    drop(first);
    queue.dispatch();
    assert_eq!(who(&served(&mut tickets[1..])), [true]);
}

#[tokio::test]
async fn whoever_leaves_is_passed_over_and_its_room_is_free() {
    let (balancer, queue) = closed();
    let limits = QueueLimits { max_requests: 2, ..LIMITS };
    let join = || queue.join(Some(SHORT), &Tried::default(), 10, &limits);
    let gone = join().unwrap();
    let mut stays = [join().unwrap()];
    assert!(join().is_err(), "two is the bound");
    drop(gone);
    let mut late = [join().unwrap()];
    balancer.set_admission(0, places(1));
    queue.dispatch();
    assert_eq!((who(&served(&mut stays)), who(&served(&mut late))), (vec![true], vec![false]));
}

#[tokio::test]
async fn bytes_are_bounded_per_class() {
    let (_balancer, queue) = closed();
    let join = |demand, bytes| queue.join(Some(demand), &Tried::default(), bytes, &LIMITS);
    let first = join(SHORT, 600).unwrap();
    assert!(join(SHORT, 401).is_err());
    let _fits = join(SHORT, 400).unwrap();
    let _other_class = join(LONG, 1_000).unwrap();
    drop(first);
    let _fits_again = join(SHORT, 600).unwrap();
}

#[tokio::test]
async fn a_lease_for_someone_who_has_just_left_goes_to_the_next() {
    let (balancer, queue) = closed();
    let gone = join(&queue, SHORT);
    let mut next = [join(&queue, SHORT)];
    balancer.set_admission(0, places(1));
    // Taken out of the queue, but not handed over yet, when the client leaves.
    let handed = queue.take_served();
    drop(gone);
    for (waiter, lease) in handed {
        drop(waiter.hand_over.send(Ok(lease)));
    }
    queue.dispatch();
    assert_eq!(who(&served(&mut next)), [true]);
    drop(next);
    assert_eq!(balancer.snapshot().servers[0].in_flight, 0);
}

#[tokio::test]
async fn nobody_waits_when_all_have_been_served() {
    let (balancer, queue) = closed();
    assert!(!queue.is_waiting(0));
    let mut tickets = [join(&queue, SHORT)];
    assert!(queue.is_waiting(0) && !queue.is_waiting(1));
    balancer.set_admission(0, Admission::default());
    queue.dispatch();
    assert_eq!(who(&served(&mut tickets)), [true]);
    assert!(!queue.is_waiting(0));
}

#[tokio::test]
async fn the_dispatcher_serves_when_a_place_becomes_free() {
    let (balancer, queue) = closed();
    let (stop, shutdown) = tokio::sync::watch::channel(false);
    let dispatcher = Dispatcher(Arc::clone(&queue));
    let running = tokio::spawn(async move { dispatcher.start(shutdown).await });
    let mut first = join(&queue, SHORT);
    let mut second = join(&queue, SHORT);
    balancer.set_admission(0, places(1));
    let lease = first.served().await;
    stop.send(true).unwrap();
    drop(lease);
    assert_eq!(second.served().await.unwrap().server(), 0, "also while the process winds up");
    drop(stop);
    running.await.unwrap();
}

#[tokio::test]
async fn giving_up_tells_when_to_come_back() {
    let (_balancer, queue) = closed();
    assert_eq!(join(&queue, SHORT).give_up(), 5);
    assert!(!queue.is_waiting(0));
}
