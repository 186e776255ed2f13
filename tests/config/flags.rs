//! Flags that are wrong: one clear error, exit code 64, nothing started.

use super::{Ended, run};

/// The exit code and the first line that the program prints to stderr.
fn refused(line: &str) -> String {
    let Ended { code, stdout, stderr } = run(&line.split_whitespace().collect::<Vec<_>>(), &[]);
    assert_eq!((code, stdout.as_str()), (Some(64), ""), "{line}: {stderr}");
    stderr.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    for (flag, accepted, values) in [
        ("--port <PORT>", "a whole number from 1 to 65535", vec!["0", "70000", "-1", "abc", "80.5"]),
        ("--admin-port <PORT>", "a whole number from 1 to 65535", vec!["0", "65536"]),
        ("--server-ports <PORT>...", "a whole number from 1 to 65535", vec!["0", "-8001", "x"]),
        ("--server-group-threshold <TOKENS>", "a whole number from 1 to 1000000000000", vec!["0", "-1", "true"]),
        ("--max-request-tokens <TOKENS>", "a whole number from 1 to 1000000000000", vec!["0", "-1", "1e6"]),
        ("--max-retries <ATTEMPTS>", "a whole number from 1 to 100", vec!["0", "-1", "101", "x"]),
        ("--retry-delay <SECONDS>", "seconds from 0 to 60", vec!["nan", "inf", "-inf", "-0.1", "-1", "1e400", "x"]),
    ] {
        let name = flag.split(' ').next().unwrap();
        for value in values {
            let expected = format!("error: invalid value '{value}' for '{flag}': expected {accepted}");
            assert_eq!(refused(&format!("{name} {value}")), expected);
        }
    }
}

// B57: "one server with two groups", "threshold above max tokens", "duplicate servers", "missing file", by flag.
#[test]
fn flags_that_do_not_fit_together_are_refused() {
    for (line, error) in [
        (
            "--server-hosts a b --server-ports 1",
            "--server-hosts: found 2 hosts and 1 port in --server-ports, expected one port for each host",
        ),
        (
            "--server-ports 1 2",
            "--server-hosts: found 1 host and 2 ports in --server-ports, expected one port for each host",
        ),
        ("--enable-dynamic-bucket", "--server-hosts: found 1 server, expected at least 2: one for each group"),
        (
            "--enable-dynamic-bucket --server-hosts a b --server-ports 1 2 --server-group-threshold 131072",
            "--server-group-threshold: found 131072, expected less than --max-request-tokens (131072)",
        ),
        (
            "--enable-dynamic-bucket --server-hosts a b --server-ports 1 2 --max-request-tokens 1000",
            "--server-group-threshold: found 32768, expected less than --max-request-tokens (1000)",
        ),
        (
            "--server-hosts a A --server-ports 1 1",
            "--server-hosts: found a:1, the address of --server-hosts too; expected each server once",
        ),
        (
            "--server-hosts 127.0.0.1 --server-ports 8000",
            "--server-hosts: found 127.0.0.1:8000, on which Tidegate itself listens (127.0.0.1:8000); expected a server",
        ),
        ("--server-hosts 10.0.0.256", "--server-hosts: found 10.0.0.256, expected an IPv4 address such as 10.0.0.5"),
        ("--host [::1", "--host: found [::1, expected an IPv6 address such as fd00::5"),
        ("--admin-host 127.0.0.1", "--admin-host: given while the admin listener is off, expected --admin-port too"),
        (
            "--conf /no/such.yaml",
            "/no/such.yaml: cannot be read (No such file or directory (os error 2)), expected a readable YAML file",
        ),
    ] {
        assert_eq!(refused(line), format!("error: {error}"), "{line}");
    }
}

#[test]
fn words_that_are_no_flags_are_refused() {
    for (line, error) in [
        ("--prot 1", "error: unexpected argument '--prot' found"),
        ("start", "error: unrecognized subcommand 'start'"),
        ("--port", "error: a value is required for '--port <PORT>' but none was supplied"),
        ("check", "error: the following required arguments were not provided:"),
        (
            "demo --server-ports 0",
            "error: invalid value '0' for '--server-ports <PORT>...': expected a whole number from 1 to 65535",
        ),
    ] {
        assert_eq!(refused(line), error, "{line}");
    }
}

#[test]
fn an_unusable_key_in_the_environment_is_refused_without_its_text() {
    let ended = run::<&str>(&[], &[("OPENAI_API_KEY", "Bearer sk-secret")]);
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (
            Some(64),
            "\
error: OPENAI_API_KEY: the environment variable holds no usable key, expected a key of visible ASCII characters, alone \
and without the word Bearer, or to unset it\n"
        )
    );
}

#[test]
fn help_and_version_are_printed_and_succeed() {
    let help = run(&["--help"], &[]);
    let flags = ["--host", "--port", "--server-hosts", "--server-ports", "--enable-dynamic-bucket"];
    let numbers = ["--server-group-threshold", "--max-request-tokens", "--max-retries", "--retry-delay"];
    for flag in flags.iter().chain(&numbers) {
        assert!(help.stdout.contains(flag), "{flag}");
    }
    assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
    let version = run(&["--version"], &[]);
    assert_eq!((version.code, version.stdout), (Some(0), format!("tidegate {}\n", env!("CARGO_PKG_VERSION"))));
}
