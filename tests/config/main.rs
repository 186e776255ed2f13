//! The program's command line and configuration files, seen from outside: exit codes and what it prints.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

mod check;
mod documents;
mod files;
mod flags;
mod tls;

use std::path::Path;
use std::process::Command;

/// How one run of the program ended.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs the program to its end with these arguments and environment variables.
fn run<S: AsRef<std::ffi::OsStr>>(arguments: &[S], variables: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments).env_remove("OPENAI_API_KEY").envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// `tidegate check` on a file, which is called FILE in what was printed.
fn check_file(path: &Path) -> Ended {
    let Ended { code, stdout, stderr } = run(&["check".as_ref(), path.as_os_str()], &[]);
    let anonymous = |text: String| text.replace(&path.display().to_string(), "FILE");
    Ended { code, stdout: anonymous(stdout), stderr: anonymous(stderr) }
}

/// `tidegate check` on a text.
fn check_text(text: impl AsRef<[u8]>) -> Ended {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    check_file(file.path())
}

/// The problems of a text, one a line, without the word `error:`. Both ways to load it must refuse it alike.
fn problems_of(text: impl AsRef<[u8]>) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let checked = check_file(file.path());
    assert_eq!((checked.code, checked.stdout.as_str()), (Some(64), ""), "{checked:?}");
    let started = run(&["--conf".as_ref(), file.path().as_os_str()], &[]);
    let name = file.path().display().to_string();
    assert_eq!((started.code, started.stderr.replace(&name, "FILE")), (Some(64), checked.stderr.clone()));
    let line = |line: &str| line.strip_prefix("error: ").unwrap_or_else(|| panic!("not an error: {line}")).to_owned();
    checked.stderr.lines().map(line).collect::<Vec<_>>().join("\n")
}
