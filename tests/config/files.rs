//! Files that are wrong. Each is refused with file, line, key, what was found and what would do.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{check_file, check_text, problems_of};

/// A right file.
const GOOD: &str = "\
listen: 127.0.0.1:8000
groups:
  - name: short
    up_to_tokens: 32768
    servers: [10.0.0.1:8100]
  - name: long
    up_to_tokens: 131072
    servers: [10.0.0.2:8100]
";

/// The problems of the right file with something replaced in it.
fn problems_with(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    problems_of(GOOD.replacen(from, to, 1))
}

// B57: "Then the right file."
#[test]
fn the_right_file_is_accepted() {
    let checked = check_text(GOOD);
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""));
}

// B57: "bad YAML".
#[test]
fn text_that_is_no_yaml_is_refused_with_its_line() {
    assert_eq!(problems_of("listen: x\ngroups: [a,\n"), "FILE:2: not valid YAML: unclosed bracket '['");
    assert_eq!(problems_of("listen: a: b\n"), "FILE:1: not valid YAML: mapping values are not allowed in this context");
    assert_eq!(problems_of("listen: \"a\n"), "FILE:1: not valid YAML: unclosed quote");
    assert_eq!(problems_of(b"listen: \xff\n"), "FILE: is not UTF-8 text on line 1, expected a YAML file in UTF-8");
}

// B57: "empty file".
#[test]
fn a_file_without_a_configuration_is_refused() {
    for text in ["", "\n\n", "# nothing yet\n", "---\n", "null\n"] {
        assert_eq!(problems_of(text), "FILE: holds no configuration, expected at least the key groups", "{text:?}");
    }
    assert_eq!(problems_of("listen: 127.0.0.1:8000\n"), "FILE: groups: missing, expected a list of groups");
    assert_eq!(problems_of("\n- a\n"), "FILE:2: found a list, expected a mapping of keys");
    assert_eq!(problems_of("hello\n"), "FILE:1: found hello, expected a mapping of keys");
}

// B57: "unknown key"; B58: "mis-spell one key".
#[test]
fn an_unknown_key_is_refused_with_the_one_that_was_meant() {
    assert_eq!(
        problems_with("up_to_tokens", "up_to_token"),
        "\
FILE:4: groups[0].up_to_token: unknown key, did you mean up_to_tokens?"
    );
    assert_eq!(
        problems_of(format!("{GOOD}timeouts: {{conect: 2s}}\n")),
        "\
FILE:9: timeouts.conect: unknown key, did you mean connect?"
    );
    assert_eq!(
        problems_of(format!("{GOOD}weather: {{}}\n")),
        "\
FILE:9: weather: unknown key, expected one of: listen, tls, admin, watch, groups, policy, limits, timeouts, retry, \
health, engines, log, access_log, tracing, queue, headers, upstream, access, forwarded, cors, shutdown, pingora"
    );
}

// B57: "duplicate key".
#[test]
fn a_key_that_stands_twice_is_refused() {
    assert_eq!(
        problems_of(format!("{GOOD}listen: 127.0.0.1:9000\n")),
        "FILE:9: listen: given twice, first on line 1; expected it once"
    );
}

// B57: "a tab indent".
#[test]
fn a_tab_is_refused_with_its_line() {
    assert_eq!(
        problems_with("    up_to_tokens: 32768", "\tup_to_tokens: 32768"),
        "FILE:4: a tab stands where YAML wants spaces, expected spaces"
    );
}

// B57: "wrong types (port "abc", threshold true)".
#[test]
fn values_of_the_wrong_type_are_refused() {
    let port = "expected a port from 1 to 65535 after the last colon";
    assert_eq!(
        problems_with("127.0.0.1:8000", "127.0.0.1:abc"),
        format!("FILE:1: listen: found 127.0.0.1:abc, {port}")
    );
    let tokens = "expected a whole number from 1 to 1000000000000";
    assert_eq!(problems_with("32768", "true"), format!("FILE:4: groups[0].up_to_tokens: found true, {tokens}"));
    assert_eq!(
        problems_with("32768", "\"32768\""),
        format!("FILE:4: groups[0].up_to_tokens: found \"32768\", {tokens}")
    );
    assert_eq!(problems_with("32768", "[1]"), format!("FILE:4: groups[0].up_to_tokens: found a list, {tokens}"));
    assert_eq!(problems_with("32768", ""), format!("FILE:4: groups[0].up_to_tokens: found nothing, {tokens}"));
    assert_eq!(
        problems_with("[10.0.0.1:8100]", "10.0.0.1:8100"),
        "\
FILE:5: groups[0].servers: found 10.0.0.1:8100, expected a list of servers"
    );
    assert_eq!(problems_of(format!("{GOOD}timeouts: 5s\n")), "FILE:9: timeouts: found 5s, expected a mapping of keys");
}

// B57: "port 0 and 70000".
#[test]
fn ports_out_of_range_are_refused() {
    for port in ["0", "70000", "-1", "80.5", ""] {
        assert_eq!(
            problems_with("127.0.0.1:8000", &format!("\"127.0.0.1:{port}\"")),
            format!("FILE:1: listen: found \"127.0.0.1:{port}\", expected a port from 1 to 65535 after the last colon")
        );
        assert_eq!(
            problems_with("10.0.0.2:8100", &format!("\"10.0.0.2:{port}\"")),
            format!(
                "FILE:8: groups[1].servers[0]: found \"10.0.0.2:{port}\", \
                 expected a port from 1 to 65535 after the last colon"
            )
        );
    }
}

// B57: "threshold 0 / negative / above max tokens".
#[test]
fn thresholds_that_cannot_be_are_refused() {
    for threshold in ["0", "-5", "1.5", "2000000000000"] {
        assert_eq!(
            problems_with("32768", threshold),
            format!(
                "FILE:4: groups[0].up_to_tokens: found {threshold}, expected a whole number from 1 to 1000000000000"
            )
        );
    }
    for threshold in ["131072", "131073"] {
        assert_eq!(
            problems_with("32768", threshold),
            format!(
                "FILE:7: groups[1].up_to_tokens: found 131072, expected more than groups[0].up_to_tokens ({threshold})"
            )
        );
    }
}

// B57: "an empty group".
#[test]
fn a_group_without_servers_is_refused() {
    assert_eq!(
        problems_with("[10.0.0.2:8100]", "[]"),
        "FILE:8: groups[1].servers: found an empty list, expected at least one of servers"
    );
    assert_eq!(
        problems_with("[10.0.0.2:8100]", ""),
        "FILE:8: groups[1].servers: found nothing, expected a list of servers"
    );
    assert_eq!(problems_of("groups: []\n"), "FILE:1: groups: found an empty list, expected at least one of groups");
}

// B57: "one server with two groups".
#[test]
fn two_groups_need_two_servers() {
    assert_eq!(
        problems_with("    servers: [10.0.0.2:8100]\n", ""),
        "FILE:6: groups[1].servers: missing, expected a list of servers"
    );
    assert_eq!(
        problems_with("10.0.0.2:8100", "10.0.0.1:8100"),
        "FILE:8: groups[1].servers[0]: found 10.0.0.1:8100, the address of groups[0].servers[0] too; \
         expected each server once"
    );
}

// B57: "duplicate servers".
#[test]
fn a_server_that_stands_twice_is_refused() {
    let twice = "expected each server once";
    for second in ["10.0.0.1:8100", "http://10.0.0.1:8100/", "{address: 10.0.0.1:8100, name: other}"] {
        assert_eq!(
            problems_with("[10.0.0.1:8100]", &format!("[10.0.0.1:8100, {second}]")),
            format!(
                "FILE:5: groups[0].servers[1]{}: found 10.0.0.1:8100, the address of groups[0].servers[0] too; {twice}",
                if second.starts_with('{') { ".address" } else { "" }
            )
        );
    }
    assert_eq!(
        problems_with("10.0.0.2:8100", "{address: gpu-2:8100, name: 10.0.0.1:8100}"),
        "FILE:8: groups[1].servers[0].address: its name 10.0.0.1:8100 is the name of groups[0].servers[0] too, \
         expected a name of its own"
    );
}

// B57: "missing file".
#[test]
fn a_file_that_is_not_there_is_refused() {
    let ended = check_file(Path::new("/no/such/file.yaml"));
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (
            Some(64),
            "\
error: FILE: cannot be read (No such file or directory (os error 2)), expected a readable YAML file\n"
        )
    );
}

// B57: "unreadable file".
#[test]
fn a_file_that_cannot_be_read_is_refused() {
    // Fails for everybody, root too.
    let ended = check_file(Path::new("/proc/self/mem"));
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (
            Some(64),
            "\
error: FILE: cannot be read (Input/output error (os error 5)), expected a readable YAML file\n"
        )
    );
    let ended = check_file(Path::new("/"));
    assert_eq!((ended.code, ended.stderr.contains("cannot be read (Is a directory")), (Some(64), true), "{ended:?}");
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), GOOD).unwrap();
    fs::set_permissions(file.path(), Permissions::from_mode(0o000)).unwrap();
    let may_read = File::open(file.path()).is_ok();
    assert_eq!(check_file(file.path()).code, Some(if may_read { 0 } else { 64 }));
}

// B57: "a 10 MB file".
#[test]
fn a_file_of_ten_megabytes_is_refused() {
    let comment = format!("{GOOD}# {}\n", "x".repeat(10_000_000));
    assert_eq!(problems_of(comment), "FILE: is too large, expected at most 1024 KiB");
}

#[test]
fn a_large_file_full_of_unknown_keys_is_refused_in_few_lines() {
    let keys: String = (0..50_000).map(|number| format!("key{number}: 1\n")).collect();
    let problems = problems_of(format!("{GOOD}{keys}"));
    assert_eq!((problems.lines().count(), problems.lines().last()), (51, Some("and 49950 more")));
}

#[test]
fn all_problems_of_a_file_are_reported_in_one_run() {
    let text = "\
listen: [127.0.0.1:0, 127.0.0.1:8000]
listne: x
groups:
  - name: a b
    up_to_tokens: 100
    servers:
      - ftp://10.0.0.1:8100
      - {adress: 10.0.0.2:8100}
  - name: long
    up_to_tokens: 50
    servers: [10.0.0.3:8100/v1]
policy:
  kind: fastest
  redirect_threshold: -1
timeouts:
  connect: 5
  total: never
limits: {max_body_size: big}
retry: {max_attempts: 0, base_delay: 5s}
headers: {strip: [Host]}
upstream: {api_key_env: NO_SUCH_VARIABLE}
pingora:
  threads: many
  grace_period: 1s
shutdown: {delay: 1}
";
    let expected = "\
FILE:1: listen[0]: found 127.0.0.1:0, expected a port from 1 to 65535 after the last colon
FILE:2: listne: unknown key, did you mean listen?
FILE:4: groups[0].name: found a b, expected a name of 1 to 128 letters, digits and any of . _ : [ ] -
FILE:7: groups[0].servers[0]: found ftp://10.0.0.1:8100, expected host:port, http://host:port or https://host:port, such as 10.0.0.5:8100, gpu-1:8100 or [fd00::5]:8100
FILE:8: groups[0].servers[1].address: missing, expected host:port, such as 10.0.0.5:8100, gpu-1:8100 or [fd00::5]:8100
FILE:8: groups[0].servers[1].adress: unknown key, did you mean address?
FILE:10: groups[1].up_to_tokens: found 50, expected more than groups[0].up_to_tokens (100)
FILE:11: groups[1].servers[0]: found 10.0.0.3:8100/v1, expected an address without a path: servers are called with the client's path
FILE:13: policy.kind: found fastest, expected lanes or least_work or reference_bucket or reference_plain
FILE:14: policy.redirect_threshold: found -1, expected a number of at least 0, such as 0.1
FILE:16: timeouts.connect: found 5, expected a duration from 1ms to 7days, such as 250ms, 5s or 10m
FILE:17: timeouts.total: found never, expected a duration from 1ms to 7days, such as 250ms, 5s or 10m, or none
FILE:18: limits.max_body_size: found big, expected a size from 1B to 16GiB, such as 512KiB or 64MiB
FILE:19: retry.max_attempts: found 0, expected a whole number from 1 to 100
FILE:19: retry.base_delay: base_delay (5s) is above max_delay (2s), expected at most max_delay
FILE:20: headers.strip[0]: found Host, expected a header name other than host, content-length, transfer-encoding, connection
FILE:21: upstream.api_key_env: the environment variable NO_SUCH_VARIABLE is not set, expected it to hold a key of visible ASCII characters, alone and without the word Bearer
FILE:23: pingora.threads: found many, expected a whole number from 1 to 1024, or auto
FILE:24: pingora.grace_period: no longer known, expected shutdown.grace in its place
FILE:25: shutdown.delay: found 1, expected a duration from 0s to 1day, such as 500ms, 5s or 10m";
    assert_eq!(problems_of(text), expected);
}

#[test]
fn one_mistake_is_one_problem() {
    let plain = "groups: [{name: a, servers: [x:1]}]\npolicy: {kind: reference_plan}\n";
    assert_eq!(
        problems_of(plain),
        "FILE:2: policy.kind: found reference_plan, expected lanes or least_work or reference_bucket or reference_plain"
    );
    assert_eq!(problems_of("groups: [x:1]\n"), "FILE:1: groups[0]: found x:1, expected a mapping of keys");
}

#[test]
fn names_are_given_once() {
    assert_eq!(
        problems_with("name: long", "name: short"),
        "FILE:6: groups[1].name: found short, the name of groups[0].name too; expected a name of its own"
    );
}

#[test]
fn listeners_and_servers_do_not_meet() {
    assert_eq!(
        problems_of(format!("{GOOD}admin: {{listen: 127.0.0.1:8000}}\n")),
        "FILE:9: admin.listen: found 127.0.0.1:8000, expected an address other than listen (127.0.0.1:8000)"
    );
    assert_eq!(
        problems_with("127.0.0.1:8000", "[127.0.0.1:8000, 0.0.0.0:8000]"),
        "FILE:1: listen[1]: found 0.0.0.0:8000 beside 127.0.0.1:8000, expected each address once"
    );
    assert_eq!(
        problems_with("10.0.0.1:8100", "localhost:8000"),
        "FILE:5: groups[0].servers[0]: found localhost:8000, on which Tidegate itself listens (127.0.0.1:8000); \
         expected a server"
    );
}

#[test]
fn what_is_probably_not_meant_is_a_warning() {
    let text = GOOD.replace("10.0.0.1:8100", "127.0.0.1:8100").replace("10.0.0.2:8100", "localhost:8100");
    let checked = check_text(text);
    assert_eq!(
        (checked.code, checked.stderr.as_str()),
        (
            Some(0),
            "\
warning: FILE:8: groups[1].servers[0]: localhost:8100 and 127.0.0.1:8100 (groups[0].servers[0]) are probably the same \
server\n"
        )
    );
    let checked = check_text(format!("{GOOD}policy: {{kind: reference_plain, sensitivity: 2}}\n"));
    assert_eq!(
        (checked.code, checked.stderr.as_str()),
        (
            Some(0),
            "\
warning: FILE:9: policy.sensitivity: has no effect with policy.kind reference_plain
warning: FILE:4: groups[0].up_to_tokens: has no effect with policy.kind reference_plain
warning: FILE:7: groups[1].up_to_tokens: has no effect with policy.kind reference_plain\n"
        )
    );
}
