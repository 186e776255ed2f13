//! The order of an end, on tokio's paused clock.

use async_trait::async_trait;
use pingora::server::ListenFds;
use pingora::services::Service;

use super::*;

async fn finish_after(drain: &Drain, grace_seconds: u64) -> (usize, Duration) {
    let begun = Instant::now();
    let cut = drain.finish(Duration::from_secs(grace_seconds)).await;
    (cut, begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn an_idle_process_has_finished_at_once() {
    let drain = Drain::default();
    let (cut, took) = finish_after(&drain, 600).await;
    assert_eq!(cut, 0);
    assert!(took < Duration::from_millis(200), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_after_the_last_call() {
    let drain = Arc::new(Drain::default());
    let connection = drain.connection();
    let watching = Arc::clone(&drain);
    tokio::spawn(async move {
        watching.last_call_over().await;
        drop(connection);
    });
    let (cut, took) = finish_after(&drain, 600).await;
    assert_eq!(cut, 0);
    assert!((LAST_CALL..2 * LAST_CALL).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_end_comes_with_the_last_request_and_not_with_the_grace() {
    let drain = Drain::default();
    let request = (drain.connection(), drain.request());
    tokio::spawn(async move {
        sleep(Duration::from_secs(20)).await;
        drop(request);
    });
    let (cut, took) = finish_after(&drain, 600).await;
    assert_eq!((cut, took.as_secs()), (0, 20));
}

#[tokio::test(start_paused = true)]
async fn the_grace_is_the_longest_and_what_runs_then_is_counted() {
    let drain = Drain::default();
    let _running = (drain.connection(), drain.request(), drain.request());
    assert_eq!(finish_after(&drain, 10).await, (2, Duration::from_secs(10)));
    assert_eq!(finish_after(&drain, 0).await, (2, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_close_is_not_waited_for() {
    let drain = Drain::default();
    let _connection = drain.connection();
    let (cut, took) = finish_after(&drain, 600).await;
    assert_eq!(cut, 0);
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn readiness_is_lost_by_a_stop_and_not_by_a_hand_over() {
    let drain = Drain::default();
    drain.leave();
    assert!(drain.is_leaving() && drain.is_ready() && !*drain.clients_closed().borrow());
    drain.stop_being_ready();
    assert!(!drain.is_ready());
    drain.finish(Duration::ZERO).await;
    assert!(*drain.clients_closed().borrow() && !*drain.admin_closed().borrow());
}

/// A service that is told to close while it begins, and would end its connections when its listeners have.
struct Hasty {
    close: watch::Sender<bool>,
    has_seen_the_end: Arc<AtomicBool>,
}

#[async_trait]
impl Service for Hasty {
    async fn start_service(&mut self, _fds: Option<ListenFds>, mut closed: ShutdownWatch, _listeners_per_fd: usize) {
        self.close.send_replace(true);
        closed.wait_for(|closed| *closed).await.ok();
        self.has_seen_the_end.store(true, Ordering::Relaxed);
    }

    fn name(&self) -> &'static str {
        "hasty"
    }
}

#[tokio::test]
async fn a_service_never_sees_its_listeners_end_however_early_they_do() {
    let (close, closed) = watch::channel(false);
    let has_seen_the_end = Arc::new(AtomicBool::new(false));
    let sockets = Sockets::default();
    sockets.open();
    let hasty = Hasty { close, has_seen_the_end: Arc::clone(&has_seen_the_end) };
    Closable::new(hasty, closed, &sockets).start_service(None, watch::channel(false).1, 1).await;
    assert!(!has_seen_the_end.load(Ordering::Relaxed));
}
