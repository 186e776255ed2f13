//! `tidegate check` on files that are right: what it prints.

use std::path::Path;

use super::{check_file, check_text, run};

/// The files that come with the program.
fn shipped() -> Vec<std::path::PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect()
}

#[test]
fn every_shipped_file_is_right() {
    let files = shipped();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        let checked = check_file(&file);
        assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""), "{}", file.display());
        assert!(checked.stdout.starts_with("FILE: ok\n"), "{checked:?}");
    }
}

/// A file in which every value differs from the default.
const FULL: &str = "\
listen: [127.0.0.1:7000, '[::1]:7000']
admin: {listen: none, token: sk-admin, protect_reads: true}
watch: true
groups:
  - name: short
    up_to_tokens: 1000
    servers: [gpu-1:8100, {address: '[fd00::2]:8100', name: two, api_key: sk-server}]
  - name: middle
    up_to_tokens: 2000
    servers: [http://10.0.0.3:8100/]
  - name: long
    up_to_tokens: 3000
    discover: {dns: long.svc:8100, interval: 3s}
    servers: [{address: 10.0.0.4:8100, drain: true}]
policy: {kind: reference_bucket, sensitivity: 2, affinity_strength: 0.5, redirect_threshold: 0.25, neighbours: all, ties: first}
limits: {max_body_size: 1MiB, max_header_size: 32KiB, max_headers: 64, max_uri_size: 8KiB, max_concurrent_per_client: 9}
timeouts:
  connect: 1s
  request_header: 2s
  request_body_idle: 3s
  request_body: 4s
  first_byte: 5s
  response_idle: none
  client_write: none
  total: 1h
  client_keepalive: 6s
  server_keepalive: 500ms
retry: {max_attempts: 5, base_delay: 0s, max_delay: 1s}
health:
  active: {path: /ping, method: POST, status: below_500, interval: 1s, timeout: 500ms, failures: 2, successes: 1, headers: ['x-key: sk-probe']}
  passive: {failures: 4, base_ejection: 2s, max_ejection: 9s, max_ejected_share: 0.25, first_byte_limit: none, dead_stream_limit: 3s}
  probation: {max_in_flight: 2, successes: 5}
headers: {strip: []}
upstream: {api_key: sk-upstream}
access:
  keys: [{name: a, key: sk-a, requests_per_minute: 60}, {name: b, key: sk-b, max_concurrent: none}]
  key_limits: {tokens_per_minute: 1000, max_concurrent: 2}
  open_admin_paths: [/sleep, /wake_up]
  close_paths: [/metrics]
forwarded: {trusted_proxies: [10.0.0.0/8, \"::1\"]}
cors: {allow_origins: [\"https://a.test\", \"http://b.test:8080\"]}
shutdown: {delay: 5s, grace: 2m}
pingora: {threads: 3, work_stealing: false, upgrade_sock: /run/t, daemon: true}
";

#[test]
fn what_would_run_is_printed() {
    let checked = check_text(FULL);
    let expected = "\
FILE: ok
listen: 127.0.0.1:7000, [::1]:7000
tls: none
admin: none
admin access: a token for everything but /healthz and /readyz
watch: the file is watched
policy: reference_bucket, sensitivity 2, affinity_strength 0.5, redirect_threshold 0.25, neighbours all, ties first
shadow: none
tokenizers: none
session header: none
group short: prompts from 0 to below 1000 tokens
  gpu-1:8100
  [fd00::2]:8100, name two, a key of its own
group middle: prompts from 1000 to below 2000 tokens
  10.0.0.3:8100
group long: prompts from 2000 tokens, planned up to 3000
  10.0.0.4:8100, drained
  discovered: dns long.svc:8100, every 3s
limits: max_body_size 1.0 MiB, max_header_size 32.0 KiB, max_headers 64, max_uri_size 8.0 KiB, \
max_concurrent_per_client 9
timeouts: connect 1s, request_header 2s, request_body_idle 3s, request_body 4s, first_byte 5s, response_idle none, \
client_write none, total 1h, client_keepalive 6s, server_keepalive 500ms
retry: max_attempts 5, base_delay 0s, max_delay 1s
health: POST /ping is to give below_500 every 1s, timeout 500ms, failures 2, successes 1, headers x-key
health: 4 faults in a row eject for 2s to 9s, max_ejected_share 0.25, first_byte_limit none, dead_stream_limit 3s
health: probation max_in_flight 2, successes 5
engines: not asked, which policy reference_bucket does not need
log: level info
access log: none
tracing: none
queue: max_requests 1000, max_size 1.0 GiB, max_wait 30s
headers: strip none, decision none
upstream: the configured key is sent to servers without a key of their own
access: keys needed except for /health, /healthcheck, /ping; they are not passed on to servers
  key a: requests_per_minute 60, tokens_per_minute 1000, max_concurrent 2
  key b: requests_per_minute none, tokens_per_minute 1000, max_concurrent none
  administrative paths closed, except /sleep, /wake_up; also closed: /metrics
forwarded: trusted_proxies 10.0.0.0/8, ::1/128
cors: pages of https://a.test, http://b.test:8080
shutdown: delay 5s, grace 2m
pingora: in the background, 3 threads, no work stealing, upgrade_sock /run/t
";
    assert_eq!((checked.code, checked.stdout.as_str(), checked.stderr.as_str()), (Some(0), expected, ""));
}

#[test]
fn keys_are_never_printed() {
    let checked = check_text(FULL);
    assert!(!format!("{checked:?}").contains("sk-"), "{checked:?}");
}

#[test]
fn a_plain_policy_needs_no_ranges() {
    let checked =
        check_text("groups: [{name: a, servers: [x:1]}, {name: b, servers: [y:1]}]\npolicy: {kind: reference_plain}\n");
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""));
    assert!(checked.stdout.contains("policy: reference_plain, ties least_recently_used\n"), "{}", checked.stdout);
    assert!(checked.stdout.contains("\ngroup a: all prompts\n"), "{}", checked.stdout);
}

#[test]
fn a_policy_beside_the_one_in_force_is_another_one_and_needs_what_it_needs() {
    let check = |policy: &str| check_text(format!("groups: [{{name: a, servers: [x:1]}}]\npolicy: {{{policy}}}\n"));
    let checked = check("shadow: reference_plain, session_header: X-Session");
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""));
    assert!(
        checked.stdout.contains(
            "shadow: reference_plain, ties least_recently_used\ntokenizers: none\nsession header: x-session\n"
        )
    );
    // What only one of the two needs is of use.
    let checked = check("kind: reference_plain, shadow: lanes, lanes: 2, long_from_tokens: 9");
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""));
    assert!(checked.stdout.contains("shadow: lanes, lanes 2, "), "{}", checked.stdout);
    let checked = check("kind: reference_plain, shadow: least_work, lanes: 2");
    assert!(
        checked.stderr.contains("policy.lanes: has no effect with policy.kind reference_plain"),
        "{}",
        checked.stderr
    );
    for (policy, problem) in [
        ("shadow: lanes", "policy.shadow: found lanes, which is policy.kind itself, expected another one or none"),
        ("shadow: reference_bucket", "groups[0].up_to_tokens: missing"),
        ("shadow: best", "policy.shadow: found best, expected lanes or least_work or"),
        ("session_header: a b", "policy.session_header: found a b, expected a header name, such as x-session-id"),
    ] {
        let checked = check(policy);
        assert_eq!(checked.code, Some(64), "{policy}");
        assert!(checked.stderr.contains(problem), "{policy}: {}", checked.stderr);
    }
}

#[test]
fn a_key_may_come_from_the_environment() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "groups: [{name: a, up_to_tokens: 1, servers: [x:1]}]\nupstream: {api_key_env: TIDEGATE_TEST_KEY}\n";
    std::fs::write(file.path(), text).unwrap();
    let checked = run(&["check".as_ref(), file.path().as_os_str()], &[("TIDEGATE_TEST_KEY", "sk-1")]);
    assert!(checked.stdout.contains("upstream: the configured key"), "{checked:?}");
    let unset = check_file(file.path());
    assert_eq!(unset.code, Some(64));
}
