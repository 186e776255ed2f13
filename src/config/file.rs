//! Loading: from a path and flags to a configuration, or to all problems.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::draft::Draft;
use super::problem::{Problems, Spot};
use super::yaml;
use super::{Environment, Flags, Loaded, Refusal};

/// A larger file is no configuration: this is room for ten thousand servers.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads the configuration: from the file with the flags over it, or from the flags alone. Host names to listen on
/// are resolved, which may block; names of servers are not.
///
/// # Errors
/// Everything that forbids to start, at once.
pub fn load(file: Option<&Path>, flags: &Flags, environment: Environment<'_>) -> Result<Loaded, Refusal> {
    let problems = Problems::default();
    let draft = match file {
        None => Some(flags.draft(&problems, environment)),
        Some(path) => {
            let name = path.display().to_string();
            let text = read(path).map_err(|text| problems.error(&Spot::file(&name), text)).ok();
            text.and_then(|text| draft(&text, &name, &problems, environment)).map(|mut draft| {
                flags.apply(&mut draft, &problems);
                draft
            })
        }
    };
    let config = draft.and_then(|draft| draft.check(&problems));
    problems.finish(config).map(|(config, warnings)| Loaded { config, warnings })
}

/// Every key of the file, list items as `[]` (`groups[].servers[].address`). For tests of documentation.
#[must_use]
pub fn known_keys() -> BTreeSet<String> {
    let problems = Problems::default();
    // Every section is asked for its keys also when it is absent, but items only when there are some.
    draft("groups: [{servers: [{}]}]\naccess: {keys: [{}]}\npolicy: {tokenizers: [{}]}", "", &problems, &|_| None);
    problems.into_known_keys()
}

fn draft(text: &str, name: &str, problems: &Problems, environment: Environment<'_>) -> Option<Draft> {
    let file = Spot::file(name);
    match yaml::parse(text) {
        Ok(Some(root)) if !root.is_nothing() => Some(Draft::read(Some(&root), file, problems, environment)),
        Ok(_) => {
            problems.error(&file, "holds no configuration, expected at least the key groups");
            None
        }
        Err(fault) => {
            problems.error(&file.at(fault.line), fault.text);
            None
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    let cannot = |error: io::Error| format!("cannot be read ({error}), expected a readable YAML file");
    let mut bytes = Vec::new();
    // One byte more than allowed tells a file that ends there from one that goes on.
    File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)).map_err(cannot)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("is too large, expected at most {} KiB", MAX_FILE_BYTES >> 10));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
        format!("is not UTF-8 text on line {line}, expected a YAML file in UTF-8")
    })
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::super::yaml::{Node, Value};
    use super::*;
    use crate::balance::Policy;

    const EXAMPLE: &str = include_str!("../../conf/example.yaml");
    const MINIMAL: &str = include_str!("../../conf/minimal.yaml");

    fn read_text(text: &str) -> Result<Config, String> {
        let problems = Problems::default();
        let config = draft(text, "f", &problems, &|_| None).and_then(|draft| draft.check(&problems));
        problems.finish(config).map(|(config, _)| config).map_err(|refusal| refusal.to_string())
    }

    /// The path of every key below a node.
    fn named_keys(node: &Node, path: &str, named: &mut BTreeSet<String>) {
        match &node.value {
            Value::Scalar { .. } => {}
            Value::List(items) => items.iter().for_each(|item| named_keys(item, &format!("{path}[]"), named)),
            Value::Mapping(entries) => {
                for entry in entries {
                    let path = if path.is_empty() { entry.key.clone() } else { format!("{path}.{}", entry.key) };
                    named_keys(&entry.value, &path, named);
                    named.insert(path);
                }
            }
        }
    }

    #[test]
    fn the_example_names_every_key_and_no_other() {
        let mut named = BTreeSet::new();
        // A key would switch keys on, so the one that shows how is a comment.
        let example = EXAMPLE.replace("  keys: []\n", "  keys:\n").replace("\n    #- ", "\n    - ");
        let example = example.replace("\n    #  ", "\n      ").replace("\n  #path: ", "\n  path: ");
        let example = example.replace("  tokenizers: []\n", "  tokenizers:\n");
        named_keys(&yaml::parse(&example).unwrap().unwrap(), "", &mut named);
        assert_eq!(named, known_keys());
        assert!(named.contains("access.keys[].sha256") && named.contains("groups[].servers[].api_key_env"));
        assert!(named.contains("pingora.threads"));
    }

    #[test]
    fn the_example_holds_the_defaults() {
        let [example, minimal] = [EXAMPLE, MINIMAL].map(|text| {
            let mut config = read_text(text).unwrap();
            assert_eq!(config.policy.name(), "lanes");
            // The groups have no default.
            config.groups.clear();
            format!("{config:#?}")
        });
        assert_eq!(example, minimal);
        // What only buckets use.
        let buckets = EXAMPLE.replace("kind: lanes", "kind: reference_bucket");
        let Policy::ReferenceBucket(buckets) = read_text(&buckets).unwrap().policy else { panic!("another policy") };
        assert_eq!(*buckets.tuning(), crate::balance::RedirectTuning::default());
    }

    #[test]
    fn every_section_reaches_the_configuration() {
        let text = "listen: [127.0.0.1:7000, 127.0.0.2:7000]\nadmin: {listen: 127.0.0.1:7001}\n\
                    groups: [{name: g, up_to_tokens: 9, servers: [{address: a:1, name: s, api_key: k}]}]\n\
                     policy: {ties: first}\nlimits: {max_body_size: 1KiB, max_headers: 7}\ntimeouts: {total: 1h}\n\
                     retry: {max_attempts: 5}\nheaders: {strip: [x-a]}\nupstream: {api_key: u}\naccess: {keys: [{name: a, key: k}]}\n\
                     forwarded: {trusted_proxies: [10.0.0.1]}\ncors: {allow_origins: [any]}\nshutdown: {delay: 4s}\n\
                     pingora: {threads: 3}\n";
        let config = read_text(text).unwrap();
        assert_eq!(config.listen, ["127.0.0.1:7000", "127.0.0.2:7000"].map(|address| address.parse().unwrap()));
        assert_eq!(config.admin, "127.0.0.1:7001".parse().ok());
        let server = &config.groups[0].servers[0];
        assert_eq!((server.name.as_str(), server.authority()), ("s", "a:1".to_owned()));
        assert_eq!(server.authorization.as_ref().unwrap(), "Bearer k");
        assert_eq!(config.ties, crate::balance::Ties::First);
        assert_eq!(config.access.header_limits.fields, 7);
        assert_eq!((config.max_body_bytes, config.timeouts.total.unwrap().as_secs()), (1024, 3600));
        assert_eq!(config.retry.max_attempts, 5);
        assert_eq!(config.strip_request_headers, ["x-a"]);
        assert_eq!(config.upstream_authorization.unwrap(), "Bearer u");
        assert_eq!(config.access.keys.iter().count(), 1);
        assert_eq!(config.access.trusted_proxies.networks().len(), 1);
        assert_eq!(config.access.cors.unwrap().max_age.as_secs(), 600);
        assert_eq!(config.shutdown.delay.as_secs(), 4);
        assert_eq!(config.pingora.threads, 3);
    }

    #[test]
    fn buckets_begin_where_the_one_before_ends() {
        let text = "groups:\n- {name: a, up_to_tokens: 10, servers: [a:1]}\n- {name: b, up_to_tokens: 20, servers: [b:1]}\n\
             policy: {kind: reference_bucket}\n";
        let Policy::ReferenceBucket(buckets) = read_text(text).unwrap().policy else { panic!("another policy") };
        let ranges: Vec<_> = buckets.ranges().iter().map(|range| (range.from, range.to)).collect();
        assert_eq!(ranges, [(0, 10), (10, 20)]);
    }

    #[test]
    fn admin_can_be_switched_off() {
        let text = format!("{MINIMAL}\nadmin: {{listen: none}}\n");
        assert_eq!(read_text(&text).unwrap().admin, None);
    }

    #[test]
    fn a_configuration_does_not_show_its_keys() {
        let config = read_text(&format!("{MINIMAL}\nupstream: {{api_key: sk-secret}}\n")).unwrap();
        assert!(!format!("{config:?}{}", super::super::Summary(&config)).contains("sk-secret"));
    }

    #[test]
    fn text_that_is_not_utf8_is_refused_with_its_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"a: 1\nb: \xff\n").unwrap();
        let error = load(Some(file.path()), &Flags::default(), &|_| None).unwrap_err().to_string();
        assert!(error.ends_with("is not UTF-8 text on line 2, expected a YAML file in UTF-8"), "{error}");
    }

    proptest::proptest! {
        #[test]
        fn a_damaged_file_never_panics(at in 0..EXAMPLE.len(), cut in 0..40_usize, put in "[\\x00-\\x7fä]{0,4}") {
            let start = (0..=at).rev().find(|&index| EXAMPLE.is_char_boundary(index)).unwrap();
            let end = (start + cut).min(EXAMPLE.len());
            if let Some(rest) = EXAMPLE.get(end..) {
                let text = format!("{}{put}{rest}", &EXAMPLE[..start]);
                let problems = Problems::default();
                let read = draft(&text, "f", &problems, &|_| None);
                proptest::prop_assert!(read.is_some() || !problems.none());
            }
        }
    }
}
