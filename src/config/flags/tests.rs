//! The command line alone and over a file.

use std::io::Write;

use super::super::{Config, load};
use super::*;
use crate::balance::{Policy, Ties};

fn no_environment(_: &str) -> Option<String> {
    None
}

/// The flags of `--server-hosts a b c ... --server-ports 1 2 3 ...`, and something more.
fn servers(hosts: &str) -> Flags {
    let hosts: Vec<_> = hosts.split(' ').map(str::to_owned).collect();
    let ports = (1..).take(hosts.len()).collect();
    Flags { server_hosts: Some(hosts), server_ports: Some(ports), ..Flags::default() }
}

fn alone(flags: &Flags) -> Result<Config, String> {
    load(None, flags, &no_environment).map(|loaded| loaded.config).map_err(|refusal| refusal.to_string())
}

const FILE: &str = "listen: [127.0.0.1:7000, 127.0.0.2:7001]\n\
                    groups:\n\
                    - {name: a, up_to_tokens: 10, servers: [x:1, y:1]}\n\
                    - {name: b, up_to_tokens: 20, servers: [z:1]}\n";

/// The same with the policy that uses the bounds.
fn buckets() -> String {
    format!("{FILE}policy: {{kind: reference_bucket}}\n")
}

/// The flags over a file; errors without the file's name.
fn over(file: &str, flags: &Flags) -> Result<Config, String> {
    let mut written = tempfile::NamedTempFile::new().unwrap();
    written.write_all(file.as_bytes()).unwrap();
    let loaded = load(Some(written.path()), flags, &no_environment).map(|loaded| loaded.config);
    let name = written.path().display().to_string();
    loaded.map_err(|refusal| refusal.to_string().replace(&name, "FILE"))
}

/// `group: server server; ...`
fn groups(config: &Config) -> String {
    let server = |server: &super::super::Server| server.authority();
    let group = |group: &super::super::Group| {
        format!("{}: {}", group.name, group.servers.iter().map(server).collect::<Vec<_>>().join(" "))
    };
    config.groups.iter().map(group).collect::<Vec<_>>().join("; ")
}

fn bounds(config: &Config) -> Vec<(u64, u64)> {
    match &config.policy {
        Policy::ReferencePlain | Policy::ByWork(_) => Vec::new(),
        Policy::ReferenceBucket(buckets) => buckets.ranges().iter().map(|range| (range.from, range.to)).collect(),
    }
}

fn listen(config: &Config) -> String {
    config.listen.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn no_flags_are_the_examples_plain_mode() {
    let config = alone(&Flags::default()).unwrap();
    assert_eq!((groups(&config), config.policy.clone()), ("all: localhost:8001".into(), Policy::ReferencePlain));
    assert!(config.listen.iter().all(|address| address.port() == 8000 && address.ip().is_loopback()));
    assert_eq!((config.admin, config.ties), (None, Ties::First));
    assert_eq!((config.retry.max_attempts, config.retry.base_delay), (3, Duration::from_millis(1)));
    assert!(config.upstream_authorization.is_none());
}

#[test]
fn dynamic_buckets_cut_the_servers_into_short_and_long() {
    let config = alone(&Flags { enable_dynamic_bucket: true, ..servers("a b [fd00::1]") }).unwrap();
    assert_eq!(groups(&config), "short: a:1 b:2; long: [fd00::1]:3");
    assert_eq!(bounds(&config), [(0, 32_768), (32_768, 131_072)]);
}

#[test]
fn numbers_given_replace_the_examples() {
    let flags = Flags {
        enable_dynamic_bucket: true,
        server_group_threshold: Some(5),
        max_request_tokens: Some(6),
        max_retries: Some(7),
        retry_delay: Some(Duration::from_secs(3)),
        daemon: true,
        ..servers("a b")
    };
    let config = alone(&flags).unwrap();
    assert_eq!(bounds(&config), [(0, 5), (5, 6)]);
    assert_eq!(config.retry.max_attempts, 7);
    assert_eq!((config.retry.base_delay, config.retry.max_delay), (Duration::from_secs(3), Duration::from_secs(3)));
    assert!(config.pingora.daemon);
}

#[test]
fn the_key_of_the_environment_is_sent_as_the_example_does() {
    let environment = |name: &str| (name == "OPENAI_API_KEY").then(|| "sk-1".to_owned());
    let config = load(None, &Flags::default(), &environment).unwrap().config;
    assert_eq!(config.upstream_authorization.unwrap(), "Bearer sk-1");
}

#[test]
fn the_environment_does_not_reach_into_a_file_that_names_no_variable() {
    let mut written = tempfile::NamedTempFile::new().unwrap();
    written.write_all(FILE.as_bytes()).unwrap();
    let environment = |_: &str| Some("sk-1".to_owned());
    let config = load(Some(written.path()), &Flags::default(), &environment).unwrap().config;
    assert!(config.upstream_authorization.is_none());
}

#[test]
fn hosts_and_ports_come_in_pairs() {
    let flags = Flags { server_ports: Some(vec![1, 2, 3]), ..servers("a b") };
    let expected =
        "error: --server-hosts: found 2 hosts and 3 ports in --server-ports, expected one port for each host";
    assert_eq!(alone(&flags).unwrap_err(), expected);
    let flags = Flags { server_ports: Some(vec![1, 2]), ..Flags::default() };
    assert!(alone(&flags).unwrap_err().contains("found 1 host and 2 ports"));
}

#[test]
fn every_group_needs_a_server() {
    let error = alone(&Flags { enable_dynamic_bucket: true, ..servers("a") }).unwrap_err();
    assert_eq!(error, "error: --server-hosts: found 1 server, expected at least 2: one for each group");
}

#[test]
fn the_threshold_is_below_the_maximum() {
    let flags = Flags { enable_dynamic_bucket: true, server_group_threshold: Some(131_072), ..servers("a b") };
    let expected = "error: --server-group-threshold: found 131072, expected less than --max-request-tokens (131072)";
    assert_eq!(alone(&flags).unwrap_err(), expected);
    assert_eq!(alone(&Flags { enable_dynamic_bucket: false, ..flags }).unwrap_err(), expected);
}

#[test]
fn the_plain_mode_does_not_mind_a_small_maximum() {
    assert!(alone(&Flags { max_request_tokens: Some(1_000), ..Flags::default() }).is_ok());
}

#[test]
fn all_problems_with_flags_are_reported_at_once() {
    let flags = Flags {
        host: Some("a b".into()),
        admin_host: Some("127.0.0.1".into()),
        server_group_threshold: Some(200_000),
        ..servers("a 10.0.0.256 a/b")
    };
    let expected = "\
        error: --server-group-threshold: found 200000, expected less than --max-request-tokens (131072)\n\
        error: --host: found a b, expected a host name or IP address, such as gpu-1, 10.0.0.5 or fd00::5\n\
        error: --admin-host: given while the admin listener is off, expected --admin-port too\n\
        error: --server-hosts: found 10.0.0.256, expected an IPv4 address such as 10.0.0.5\n\
        error: --server-hosts: found a/b, expected a host name or IP address, such as gpu-1, 10.0.0.5 or fd00::5";
    assert_eq!(alone(&flags).unwrap_err(), expected);
}

#[test]
fn a_file_is_left_alone_without_flags() {
    let config = over(&buckets(), &Flags::default()).unwrap();
    assert_eq!(listen(&config), "127.0.0.1:7000 127.0.0.2:7001");
    assert_eq!((groups(&config), bounds(&config)), ("a: x:1 y:1; b: z:1".into(), vec![(0, 10), (10, 20)]));
    assert_eq!((config.ties, config.retry.base_delay), (Ties::LeastRecentlyUsed, Duration::from_millis(50)));
}

#[test]
fn host_and_port_replace_their_part_of_the_files_listeners() {
    let listen_of = |flags: Flags| listen(&over(FILE, &flags).unwrap());
    let host = Some("127.0.0.3".to_owned());
    assert_eq!(listen_of(Flags { host: host.clone(), ..Flags::default() }), "127.0.0.3:7000");
    assert_eq!(listen_of(Flags { port: Some(9), ..Flags::default() }), "127.0.0.1:9 127.0.0.2:9");
    assert_eq!(listen_of(Flags { host, port: Some(9), ..Flags::default() }), "127.0.0.3:9");
    let file = FILE.replace("127.0.0.2", "127.0.0.1");
    let config = over(&file, &Flags { port: Some(9), ..Flags::default() }).unwrap();
    assert_eq!(listen(&config), "127.0.0.1:9");
}

#[test]
fn servers_replace_the_files_over_its_groups() {
    let config = over(FILE, &servers("p q r")).unwrap();
    assert_eq!(groups(&config), "a: p:1 q:2; b: r:3");
    assert!(over(FILE, &servers("p")).unwrap_err().contains("expected at least 2: one for each group"));
}

#[test]
fn bounds_replace_the_files() {
    let bounds_of = |threshold, max| {
        let flags = Flags { server_group_threshold: threshold, max_request_tokens: max, ..Flags::default() };
        over(&buckets(), &flags).map(|config| bounds(&config))
    };
    assert_eq!(bounds_of(Some(15), None), Ok(vec![(0, 15), (15, 20)]));
    assert_eq!(bounds_of(None, Some(30)), Ok(vec![(0, 10), (10, 30)]));
    let expected = "error: FILE:4: groups[1].up_to_tokens: found 20, expected more than --server-group-threshold (25)";
    assert_eq!(bounds_of(Some(25), None), Err(expected.to_owned()));
    let expected = "error: --max-request-tokens: found 7, expected more than groups[0].up_to_tokens (10)";
    assert_eq!(bounds_of(None, Some(7)), Err(expected.to_owned()));
}

#[test]
fn a_threshold_needs_two_groups() {
    let one = "groups: [{name: a, up_to_tokens: 10, servers: [x:1]}]\n";
    let error = over(one, &Flags { server_group_threshold: Some(5), ..Flags::default() }).unwrap_err();
    let expected = "separates two groups, and the file has 1; expected the file alone";
    assert_eq!(error, format!("error: --server-group-threshold: {expected}"));
}

#[test]
fn the_dynamic_flag_replaces_a_plain_policy() {
    let plain = format!("{FILE}policy: {{kind: reference_plain}}\n");
    assert_eq!(over(&plain, &Flags::default()).unwrap().policy, Policy::ReferencePlain);
    let flags = Flags { enable_dynamic_bucket: true, ..Flags::default() };
    assert_eq!(bounds(&over(&plain, &flags).unwrap()), [(0, 10), (10, 20)]);
}

#[test]
fn the_admin_listener_can_be_moved_and_opened() {
    let admin = |config: Result<Config, String>| config.unwrap().admin.map(|admin| admin.to_string());
    let port = Flags { admin_port: Some(9), ..Flags::default() };
    let both = Flags { admin_host: Some("::1".into()), ..port.clone() };
    assert_eq!(admin(alone(&port)).as_deref(), Some("127.0.0.1:9"));
    assert_eq!(admin(alone(&both)).as_deref(), Some("[::1]:9"));
    assert_eq!(admin(over(FILE, &port)).as_deref(), Some("127.0.0.1:9"));
    let host = Flags { admin_host: Some("127.0.0.2".into()), ..Flags::default() };
    assert_eq!(admin(over(FILE, &host)).as_deref(), Some("127.0.0.2:9400"));
    let off = format!("{FILE}admin: {{listen: none}}\n");
    assert_eq!(admin(over(&off, &port)).as_deref(), Some("127.0.0.1:9"));
}

#[test]
fn servers_of_the_flags_are_probed_and_any_answer_that_is_no_5xx_is_good() {
    use crate::config::ExpectedStatus;
    let of_flags = alone(&servers("a b")).unwrap().health.active.unwrap();
    assert_eq!(of_flags.expected, ExpectedStatus::BelowFiveHundred);
    let of_file = over(FILE, &Flags::default()).unwrap().health.active.unwrap();
    assert_eq!(of_file.expected, ExpectedStatus::Is(200));
    assert_eq!((of_flags.path, of_flags.interval), (of_file.path, of_file.interval));
}
