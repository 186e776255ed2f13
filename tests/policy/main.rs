//! `tidegate policy --stdio`, `tidegate simulate` and `tidegate tune`, seen from outside.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

mod simulate;
mod stdio;
mod tune;

use std::io::Write;
use std::process::{Command, Stdio};

/// How one run of the program ended.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs the program on some input to its end.
fn run(arguments: &[&str], input: &str) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that refuses its flags reads nothing.
    child.stdin.take().unwrap().write_all(input.as_bytes()).ok();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}
