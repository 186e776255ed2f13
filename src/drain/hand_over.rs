//! Handing the listening sockets to a successor, over Pingora's upgrade socket.

use std::io;
use std::path::Path;
use std::time::Duration;

use pingora::server::ListenFds;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::wait;

/// How long a successor may take to be there, and then to take the sockets.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why the sockets were not handed over.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandOverError {
    /// Nobody listens at the upgrade socket.
    #[error("no successor waits at {path}: start it with --upgrade and the same pingora.upgrade_sock")]
    Nobody { path: String },
    /// The successor is there, but sending to it failed.
    #[error("sending them to {path} failed: {source}")]
    Send { path: String, source: io::Error },
    /// The successor did not take them.
    #[error("the successor at {path} did not take them, its log says why")]
    NotTaken { path: String },
}

/// Sends the sockets to the process that waits at `path`, and returns when that has them.
///
/// A successor makes the file when it begins to wait and removes it when it has the sockets (or gives up).
///
/// # Errors
/// When there is no successor or it does not take them: then this process still has them.
pub(super) async fn hand_over(sockets: ListenFds, path: &str) -> Result<(), HandOverError> {
    let file = Path::new(path);
    timeout(PATIENCE, wait(|| file.exists())).await.map_err(|_| HandOverError::Nobody { path: path.to_owned() })?;

    // Sending blocks, and a runtime waits for its blocking calls when it ends: a thread of its own holds up nothing.
    let (done, sent) = oneshot::channel();
    let to = path.to_owned();
    std::thread::spawn(move || done.send(sockets.lock().send_to_sock(to.as_str())));
    let failed = |source| HandOverError::Send { path: path.to_owned(), source };
    match sent.await {
        Ok(Ok(_)) => {}
        Ok(Err(errno)) => return Err(failed(io::Error::from(errno))),
        Err(_) => return Err(failed(io::Error::other("the sending thread panicked"))),
    }
    timeout(PATIENCE, wait(|| !file.exists())).await.map_err(|_| HandOverError::NotTaken { path: path.to_owned() })
}
