//! The command that starts a daemon and waits until that serves.

use std::time::Duration;

use async_trait::async_trait;
use pingora::server::ShutdownWatch;
use pingora::services::ServiceReadyNotifier;
use pingora::services::background::BackgroundService;
use tokio::time::Instant;

/// How often it is looked whether the command can be told.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// After so long the command is told anyhow.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ready when the command can be told that the daemon serves. Pingora 0.9.1 tells it with SIGUSR1, which ends a process
/// that does not receive it yet: the command prepares for it only after the daemon has been forked off.
#[derive(Debug)]
pub struct Launcher {
    process: u32,
}

impl Launcher {
    /// To be called before the fork.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self { process: std::process::id() }
    }

    /// Whether it receives SIGUSR1; also when the system does not say.
    async fn can_be_told(&self) -> bool {
        match tokio::fs::read_to_string(format!("/proc/{}/status", self.process)).await {
            Ok(status) => catches(&status, SIGUSR1).unwrap_or(true),
            Err(_) => true,
        }
    }
}

/// Its number here.
const SIGUSR1: u32 = nix::sys::signal::Signal::SIGUSR1 as u32;

/// Whether the process with this status, as Linux shows it, has a handler of its own for a signal.
fn catches(status: &str, signal: u32) -> Option<bool> {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
    let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
    Some(caught >> (signal - 1) & 1 == 1)
}

#[async_trait]
impl BackgroundService for Launcher {
    async fn start_with_ready_notifier(&self, _shutdown: ShutdownWatch, ready: ServiceReadyNotifier) {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE && !self.can_be_told().await {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        ready.notify_ready();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_is_seen_in_the_status() {
        let status = |caught: &str| format!("Name:\ttidegate\nSigIgn:\tffffffffffffffff\nSigCgt:\t{caught}\nx: y\n");
        assert_eq!(catches(&status("0000000000000200"), SIGUSR1), Some(true));
        assert_eq!(catches(&status("fffffffffffffdff"), SIGUSR1), Some(false));
        assert_eq!(catches(&status("?"), SIGUSR1), None);
        assert_eq!(catches("", SIGUSR1), None);
    }

    #[tokio::test]
    async fn this_process_is_told_once_it_has_a_handler() {
        let launcher = Launcher::of_this_process();
        let _handler = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::user_defined1()).unwrap();
        assert!(launcher.can_be_told().await);
    }
}
