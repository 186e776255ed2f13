use std::io::Write as _;

use super::super::problem::{Problems, Spot};
use super::super::yaml::parse;
use super::*;
use crate::access::{Allowed, KeyDigest, KeyLimits};

const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

fn rules(yaml: &str) -> Result<Rules, String> {
    let root = parse(yaml).unwrap();
    let problems = Problems::default();
    let mut rules = Rules::default();
    let environment = |name: &str| (name == "KEY").then(|| "abc\n".to_owned());
    Section::read(root.as_ref(), Spot::file("f"), &problems, |root| {
        root.section("limits", |section| limits(section, &mut rules));
        read(root, &mut rules, &environment);
    });
    problems.finish(Some(rules)).map(|(rules, _)| rules).map_err(|refusal| refusal.to_string())
}

#[test]
fn a_key_may_be_given_in_three_ways() {
    for way in ["key: abc".to_owned(), "key_env: KEY".to_owned(), format!("sha256: {ABC}")] {
        let rules = rules(&format!("access: {{keys: [{{name: a, {way}}}]}}\n")).unwrap();
        let key = rules.keys.iter().next().unwrap();
        assert_eq!((&*key.name, key.digest), ("a", KeyDigest::of(b"abc")), "{way}");
    }
}

#[test]
fn a_key_that_is_given_wrongly_is_refused_without_its_text() {
    let secret = "sk-secret";
    for (item, problem) in [
        ("{name: a}", "f:1: access.keys[0]: expected exactly one of key, key_env and sha256"),
        ("{name: a, key: none}", "f:1: access.keys[0]: expected exactly one of key, key_env and sha256"),
        ("{name: a, key: sk-secret, key_env: KEY}", "f:1: access.keys[0]: expected exactly one of"),
        ("{key: sk-secret}", "f:1: access.keys[0].name: missing, expected a name"),
        ("{name: a, key: sk-secret x}", "f:1: access.keys[0].key: found a text, expected a key of visible ASCII"),
        ("{name: a, sha256: sk-secret}", "f:1: access.keys[0].sha256: found a text, expected the SHA-256"),
        ("{name: a, key_env: NO}", "f:1: access.keys[0].key_env: the environment variable NO holds no usable key"),
        ("{name: a, key: sk-secret, max_concurrent: 0}", "f:1: access.keys[0].max_concurrent: found 0, expected"),
    ] {
        let error = rules(&format!("access: {{keys: [{item}]}}\n")).unwrap_err();
        assert!(error.contains(problem) && error.lines().count() == 1, "{item}: {error}");
        assert!(!error.contains(secret), "{error}");
    }
}

#[test]
fn names_and_keys_stand_there_once() {
    let error = rules("access: {keys: [{name: a, key: x}, {name: a, key: y}]}\n").unwrap_err();
    assert_eq!(error, "error: f:1: access.keys[1].name: the name a stands there twice, expected it once");
    let error = rules(&format!("access: {{keys: [{{name: a, key: abc}}, {{name: b, sha256: {ABC}}}]}}\n")).unwrap_err();
    assert!(error.ends_with("b has the same key as another name, expected a key of its own"), "{error}");
}

#[test]
fn keys_have_the_shared_limits_unless_they_have_their_own() {
    let rules = rules(
        "access:\n  key_limits: {requests_per_minute: 60, max_concurrent: 2}\n  keys:\n\
         \x20 - {name: a, key: x, max_concurrent: none, tokens_per_minute: 5}\n  - {name: b, key: y}\n",
    );
    let limits: Vec<_> = rules.unwrap().keys.iter().map(|key| key.limits).collect();
    let a = KeyLimits { requests_per_minute: Some(60), tokens_per_minute: Some(5), max_concurrent: None };
    let b = KeyLimits { requests_per_minute: Some(60), tokens_per_minute: None, max_concurrent: Some(2) };
    assert_eq!(limits, [a, b]);
}

fn with_file(text: &str) -> Result<Rules, String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let name = file.path().display().to_string();
    let rules = rules(&format!(
        "access: {{keys: [{{name: a, key: x}}], keys_file: {name}, key_limits: {{max_concurrent: 3}}}}\n"
    ));
    rules.map_err(|error| error.replace(&name, "KEYS"))
}

#[test]
fn a_file_of_digests_adds_keys() {
    let rules = with_file(&format!("# comment\n\n  b\t{ABC}  \r\n")).unwrap();
    let keys: Vec<_> = rules.keys.iter().map(|key| (&*key.name, key.limits.max_concurrent)).collect();
    assert_eq!(keys, [("a", Some(3)), ("b", Some(3))]);
}

#[test]
fn a_file_that_is_wrong_is_refused_without_what_stands_in_it() {
    let expected = "expected a name and the SHA-256 of a key in 64 hexadecimal digits";
    for line in ["b sk-secret", "sk-secret", &format!("b {ABC} sk-secret"), &format!("sk/secret {ABC}")] {
        let error = with_file(&format!("\n{line}\n")).unwrap_err();
        assert_eq!(error, format!("error: f:1: access.keys_file: line 2 of KEYS is no key, {expected}"));
    }
    let error = with_file("# nothing\n").unwrap_err();
    assert_eq!(error, format!("error: f:1: access.keys_file: KEYS holds no key, {expected}"));
    assert!(with_file(&format!("a {ABC}\n")).unwrap_err().contains("the name a stands there twice"));
    assert!(with_file(&"x".repeat(2 << 20)).unwrap_err().contains("is too large, expected at most 1024 KiB"));
    let error = rules("access: {keys_file: /nonexistent}\n").unwrap_err();
    assert!(error.contains("/nonexistent cannot be read ("), "{error}");
}

#[test]
fn administrative_paths_are_opened_one_by_one_or_all() {
    let closed = |yaml: &str| rules(&format!("access: {{{yaml}}}\n")).unwrap().closed;
    assert_eq!(closed(""), ClosedPaths::default());
    assert_eq!(closed("open_admin_paths: none"), ClosedPaths::default());
    let some = closed("open_admin_paths: [/sleep, /V1/load_lora_adapter/], close_paths: [/metrics]");
    assert!(!some.covers(b"/sleep") && !some.covers(b"/v1/load_lora_adapter"));
    assert!(some.covers(b"/wake_up") && some.covers(b"/metrics"));
    assert_eq!(closed("open_admin_paths: /sleep").iter().count(), ADMIN_PATHS.len() - 1);
    assert_eq!(closed("open_admin_paths: all, close_paths: [/metrics, /sleep]").iter().count(), 2);
    let error = rules("access: {open_admin_paths: [/slep]}\n").unwrap_err();
    assert!(
        error.starts_with("error: f:1: access.open_admin_paths[0]: found /slep, expected one of /abort_requests, ")
    );
    for path in ["sleep", "/a?b", "/a b", "\"\"", "true", "/ä"] {
        assert!(rules(&format!("access: {{open_admin_paths: {path}}}\n")).is_err(), "{path}");
    }
    assert!(rules("access: {close_paths: [//]}\n").unwrap_err().contains("not / alone"));
}

#[test]
fn proxies_are_addresses_or_networks() {
    let networks = |text: &str| {
        let rules = rules(&format!("forwarded: {{trusted_proxies: [{text}]}}\n"))?;
        Ok::<_, String>(rules.trusted_proxies.networks().iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let given = "10.0.0.0/8, 192.0.2.1, \"fd00::/8\", \"::1\", \"::ffff:10.1.0.0/112\", \"::ffff:1.2.3.4\"";
    let read = ["10.0.0.0/8", "192.0.2.1/32", "fd00::/8", "::1/128", "10.1.0.0/16", "1.2.3.4/32"];
    assert_eq!(networks(given).unwrap(), read);
    for text in ["10.0.0.1/8", "10.0.0.0/33", "10", "proxy.test", "\"\"", "\"[::1]\""] {
        assert!(networks(text).unwrap_err().contains("expected an IP address, or a network such as"), "{text}");
    }
}

#[test]
fn cors_is_off_without_origins() {
    assert!(rules("cors: {allow_methods: [PUT]}\n").unwrap().cors.is_none());
    let cors = rules("cors: {allow_origins: [\"*\"], allow_headers: [X-A, x-b]}\n").unwrap().cors.unwrap();
    assert_eq!(cors.origins, Allowed::Any);
    assert_eq!(cors.headers, Allowed::These(vec!["x-a".parse().unwrap(), "x-b".parse().unwrap()]));
    let cors =
        rules("cors: {allow_origins: [\"http://a.test:3000\"], allow_credentials: true}\n").unwrap().cors.unwrap();
    assert_eq!(cors.origins, Allowed::These(vec!["http://a.test:3000".into()]));
    assert!(cors.allows_credentials);
}

#[test]
fn what_browsers_would_not_understand_is_refused() {
    for origin in
        ["a.test", "https://a.test/", "https://a.test/x", "https://A.test", "null", "https://u@a.test", "\"\""]
    {
        let error =
            rules(&format!("cors: {{allow_origins: [\"{origin}\"]}}\n").replace("\"\"\"\"", "\"\"")).unwrap_err();
        assert!(error.contains("expected an origin such as https://chat.example.org"), "{origin}: {error}");
    }
    let error = rules("cors: {allow_origins: [any], allow_credentials: true}\n").unwrap_err();
    assert!(error.contains("cors.allow_credentials: given beside allow_origins: [any]"), "{error}");
    for wrong in ["allow_methods: [post]", "allow_methods: [\"a b\"]", "allow_headers: [\"a b\"]", "max_age: 2days"] {
        assert!(rules(&format!("cors: {{{wrong}}}\n")).is_err(), "{wrong}");
    }
}

#[test]
fn limits_are_not_above_pingoras_own() {
    let read =
        rules("limits: {max_header_size: 1MiB, max_headers: 256, max_uri_size: 65534, max_concurrent_per_client: 5}\n");
    let read = read.unwrap();
    assert_eq!((read.header_limits.header_bytes, read.header_limits.fields), (1 << 20, 256));
    assert_eq!((read.header_limits.uri_bytes, read.max_concurrent_per_client), (65_534, Some(5)));
    for wrong in ["max_header_size: 1025KiB", "max_headers: 257", "max_uri_size: 64KiB", "max_concurrent_per_client: 0"]
    {
        assert!(rules(&format!("limits: {{{wrong}}}\n")).is_err(), "{wrong}");
    }
}
