//! Waits for a thread behind a bounded queue, at the end of a process: for the lines of the access log, for spans.

use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Waits until the thread has come to a message and dropped what is in it, but not longer than this. Blocks.
#[expect(clippy::disallowed_methods, reason = "a blocking queue has no send with a time limit")]
pub(crate) fn flush<M>(queue: &SyncSender<M>, message: impl FnOnce(SyncSender<()>) -> M, patience: Duration) {
    let deadline = Instant::now() + patience;
    let (done, is_done) = sync_channel(0);
    let mut message = message(done);
    while let Err(TrySendError::Full(back)) = queue.try_send(message) {
        if Instant::now() >= deadline {
            return;
        }
        message = back;
        thread::sleep(Duration::from_millis(1));
    }
    // It ends by the other end's drop: nothing is ever sent.
    let _is_over = is_done.recv_timeout(deadline.saturating_duration_since(Instant::now()));
}
