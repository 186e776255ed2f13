//! `--replace PID`: starts the successor of a running Tidegate, and returns when it serves.
//!
//! This is what `systemctl reload` runs when an upgrade is asked for. The successor is this program with the same flags
//! and `--upgrade`; it stays when this one has returned.

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Why there is no successor. The running process goes on serving.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// There is no such process, or it belongs to somebody else.
    #[error("process {pid} cannot be signalled: {source}")]
    Signal {
        /// The process to be replaced.
        pid: i32,
        /// What the system says.
        source: io::Error,
    },
    /// This program cannot be started again.
    #[error("the successor cannot be started: {0}")]
    Start(#[from] io::Error),
    /// It ended before it served.
    #[error("the successor ended with {0} before it served, its log says why; process {1} goes on serving")]
    Ended(ExitStatus, i32),
}

/// Replaces process `pid` by a new one with these arguments, the program's name first. Exit code 0 when that serves,
/// else 1 with the reason on standard error.
#[must_use]
pub fn run(pid: i32, arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match replace(pid, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            writeln!(io::stderr(), "error: {error}").ok();
            ExitCode::FAILURE
        }
    }
}

fn replace(pid: i32, arguments: impl IntoIterator<Item = OsString>) -> Result<(), ReplaceError> {
    let running = Pid::from_raw(pid);
    let unreachable = |errno| ReplaceError::Signal { pid, source: io::Error::from(errno) };
    // Before anything is started: is there somebody to replace?
    kill(running, None).map_err(unreachable)?;
    let mut successor = Command::new(env::current_exe()?)
        .args(successors_arguments(arguments))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Err(errno) = kill(running, Signal::SIGQUIT) {
        successor.kill()?;
        successor.wait()?;
        return Err(unreachable(errno));
    }
    if says_that_it_serves(&mut successor)? {
        return Ok(());
    }
    Err(ReplaceError::Ended(successor.wait()?, pid))
}

/// Waits for the successor's word; false when it ends without one.
fn says_that_it_serves(successor: &mut Child) -> io::Result<bool> {
    let Some(output) = successor.stdout.take() else { return Ok(false) };
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    Ok(line.trim_end() == crate::drain::SERVES)
}

/// The same arguments without the program's name and `--replace PID`, and with `--upgrade`.
fn successors_arguments(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut arguments = arguments.into_iter().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--replace") => drop(arguments.next()),
            Some(text) if text.starts_with("--replace=") => {}
            _ => kept.push(argument),
        }
    }
    kept.push("--upgrade".into());
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_successor_gets_the_same_flags_and_takes_over() {
        for line in ["t --conf f --replace 7 --port 1", "t --replace=7 --conf f --port 1"] {
            let arguments = successors_arguments(line.split(' ').map(OsString::from));
            assert_eq!(arguments, ["--conf", "f", "--port", "1", "--upgrade"]);
        }
    }

    #[test]
    fn a_process_that_is_not_there_is_not_replaced() {
        // Far above the largest process number that Linux gives.
        let error = replace(i32::MAX, ["t".into()]).unwrap_err();
        assert!(matches!(error, ReplaceError::Signal { pid: i32::MAX, .. }), "{error}");
    }
}
