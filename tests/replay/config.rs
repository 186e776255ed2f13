//! Loading a configuration file that holds anything: it ends in problems for the operator or in something that runs.

use std::cell::RefCell;
use std::io::{Seek, Write};

use tempfile::NamedTempFile;
use tidegate::balance::{Balancer, Policy, Topology};
use tidegate::config::{self, Config, Flags, Refusal, Summary};

/// Loads a file with these bytes.
///
/// # Panics
/// When problems are not told as they should be, or when what was accepted cannot be run.
pub(crate) fn check(bytes: &[u8]) {
    // Listeners from flags: a name in the file would be looked up in the network.
    let flags = Flags {
        host: Some("127.0.0.1".to_owned()),
        port: Some(8000),
        admin_host: Some("127.0.0.1".to_owned()),
        admin_port: Some(9400),
        ..Flags::default()
    };
    let environment = |name: &str| name.starts_with('K').then(|| "sk-from-the-environment".to_owned());
    with_file(bytes, |path| match config::load(Some(path), &flags, &environment) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                assert_printable(&warning.to_string());
            }
            check_config(loaded.config);
        }
        Err(refusal) => check_refusal(&refusal),
    });
}

fn check_refusal(refusal: &Refusal) {
    assert!((1..=50).contains(&refusal.problems().len()), "{refusal}");
    for problem in refusal.problems() {
        assert_printable(&problem.to_string());
    }
}

/// A message is one line, and nothing in it steers a terminal.
fn assert_printable(message: &str) {
    assert!(!message.contains(char::is_control), "{message:?}");
}

fn check_config(config: Config) {
    assert_printable(&Summary(&config).to_string().replace('\n', ""));
    assert!(!config.listen.is_empty() && !config.groups.is_empty());
    assert!(config.groups.iter().all(|group| !group.servers.is_empty()), "a group is empty");
    assert!(config.retry.max_attempts >= 1 && config.max_body_bytes >= 1);
    if let Policy::ReferenceBucket(buckets) = &config.policy {
        let ranges = buckets.ranges();
        assert_eq!(ranges.len(), config.groups.len());
        assert!(ranges.iter().all(|range| range.from < range.to), "an empty range: {ranges:?}");
        assert!(ranges.windows(2).all(|pair| pair[0].to == pair[1].from), "a gap: {ranges:?}");
    }
    let topology = Topology::from_sizes(config.groups.iter().map(|group| group.servers.len()));
    let topology = topology.expect("groups that were accepted can be built");
    Balancer::new(topology, config.policy, config.ties).expect("a policy that was accepted can be built");
}

/// Calls `then` with the path of a file that holds these bytes.
fn with_file(bytes: &[u8], then: impl FnOnce(&std::path::Path)) {
    thread_local! {
        static FILE: RefCell<NamedTempFile> =
            RefCell::new(NamedTempFile::new().expect("a temporary file can be made"));
    }
    FILE.with_borrow_mut(|file| {
        file.rewind().and_then(|()| file.as_file().set_len(0)).expect("the file can be emptied");
        file.write_all(bytes).expect("the file can be written");
        then(file.path());
    });
}
