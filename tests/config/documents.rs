//! What `docs/operations.md`, the README, the dashboard and the rules say, compared with the program: keys, defaults,
//! errors, metrics.
//!
//! A default is compared by what it does: a configuration in which it is written must be the one in which it is not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};
use tidegate::config::{Flags, known_keys, load};

/// Numbers that bound nothing: what the policy decides by.
const NO_LIMITS: [&str; 18] = [
    "access_log.sample",
    "access_log.slower_than",
    "groups[].weight",
    "groups[].servers[].weight",
    "policy.media_tokens.audio",
    "policy.media_tokens.image",
    "policy.media_tokens.video",
    "groups[].up_to_tokens",
    "groups[].kv_cache_tokens",
    "groups[].servers[].kv_cache_tokens",
    "policy.affinity_strength",
    "policy.engine.kv_cache_tokens",
    "policy.engine.max_num_batched_tokens",
    "policy.lanes",
    "policy.long_from_tokens",
    "policy.redirect_threshold",
    "policy.sensitivity",
    "tracing.sample",
];

/// What only buckets are tuned by.
const OF_BUCKETS: [&str; 3] = ["policy.affinity_strength", "policy.redirect_threshold", "policy.sensitivity"];

const DASHBOARD: &str = "conf/grafana/tidegate.json";
const RULES: &str = "conf/prometheus/rules.yaml";
const RULE_TESTS: [&str; 2] = ["conf/prometheus/rules_test.yaml", "conf/prometheus/rules_week_test.yaml"];

/// Values of every kind of limit. One of them is not the default of a key.
const OTHERS: [&str; 6] = ["7", "7s", "70ms", "7KiB", "0.25", "9"];

/// An almost empty configuration, in which nothing is switched off that has limits.
fn base() -> Value {
    json!({
        "groups": [{
            "name": "a", "up_to_tokens": "9", "servers": [{ "address": "gpu:1" }], "discover": { "dns": "gpus:1" }
        }],
        "access": { "keys": [{ "name": "k", "key": "sk" }] },
        "cors": { "allow_origins": ["any"] },
    })
}

/// The base for a key, in which it has an effect.
fn base_of(key: &str) -> Value {
    let mut root = base();
    if OF_BUCKETS.contains(&key) {
        root["policy"] = json!({ "kind": "reference_bucket" });
    }
    if key.starts_with("access_log.") {
        root["access_log"] = json!({ "format": "json" });
    }
    if key.starts_with("tracing.") {
        root["tracing"] = json!({ "endpoint": "http://collector:4318" });
    }
    root
}

/// YAML in one line, all texts without quotes: a quoted `"5s"` is no duration.
fn yaml(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<_> = fields.iter().map(|(key, value)| format!("{key}: {}", yaml(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(yaml).collect::<Vec<_>>().join(", ")),
        Value::String(text) => text.clone(),
        other => panic!("not used here: {other}"),
    }
}

/// The base with a key (`groups[].servers[].max_in_flight`) set to a value.
fn with(key: &str, value: &str) -> Value {
    let mut root = base_of(key);
    let mut place = &mut root;
    for part in key.split('.') {
        let (name, is_list) = part.strip_suffix("[]").map_or((part, false), |name| (name, true));
        place = &mut place[name];
        if is_list {
            if place.is_null() {
                *place = json!([{}]);
            }
            place = &mut place[0];
        }
    }
    *place = Value::String(value.to_owned());
    root
}

/// The configuration that would run; the problem when there is none.
fn in_force(configuration: &Value) -> Result<String, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), yaml(configuration)).unwrap();
    let loaded = load(Some(file.path()), &Flags::default(), &|_| None);
    loaded.map(|loaded| format!("{:?}", loaded.config)).map_err(|refusal| refusal.to_string())
}

/// Whether a key takes a number, a size or a duration, and nothing else.
fn is_number(key: &str) -> bool {
    let takes = |value| in_force(&with(key, value)).is_ok();
    !takes("abc") && OTHERS.iter().any(|value| takes(value))
}

fn document(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The cells of the first table below a heading, without its head.
fn table(text: &str, heading: &str) -> Vec<Vec<String>> {
    let below = text.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no heading {heading}")).1;
    let lines = below.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    let rows: Vec<Vec<String>> = lines.skip(2).map(cells).collect();
    assert!(rows.len() > 10, "a table below {heading}");
    rows
}

/// The texts in backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Fails when a written default is not the one that is in force.
fn assert_default(key: &str, default: &str) {
    let unset = in_force(&base_of(key)).unwrap();
    let set = in_force(&with(key, default)).unwrap_or_else(|problem| panic!("{key} cannot be {default}: {problem}"));
    assert!(set == unset, "the default of {key} is not {default}");
    let is_felt = OTHERS.iter().any(|other| in_force(&with(key, other)).is_ok_and(|set| set != unset));
    assert!(is_felt, "{key} changes nothing, so {default} was not compared with anything");
}

#[test]
fn every_limit_is_in_the_operations_chapter_with_its_default() {
    let mut limits: BTreeMap<String, String> = table(&document("docs/operations.md"), "### Limits with a key")
        .iter()
        .map(|row| (quoted(&row[0]).remove(0), quoted(&row[1]).remove(0)))
        .collect();
    // Without tracing its settings cannot be tried.
    limits.retain(|key, _| cfg!(feature = "otel") || !key.starts_with("tracing."));
    for (key, default) in &limits {
        assert_default(key, default);
    }
    let expected: BTreeSet<String> =
        known_keys().into_iter().filter(|key| !NO_LIMITS.contains(&key.as_str()) && is_number(key)).collect();
    assert_eq!(limits.into_keys().collect::<BTreeSet<_>>(), expected);
}

#[test]
fn the_readme_names_every_key_and_the_same_defaults() {
    let mut named = BTreeSet::new();
    for row in table(&document("README.md"), "## Configuration") {
        let (mut keys, defaults) = (quoted(&row[0]), quoted(&row[1]));
        for place in 1..keys.len() {
            // `upstream.tls.certificate`, `.key`, and for short also without the dot and what is before it.
            let before = keys[0].rsplit_once('.').map_or("", |(before, _)| before).to_owned();
            if !known_keys().contains(&keys[place]) {
                keys[place] = format!("{before}.{}", keys[place].trim_start_matches('.'));
            }
        }
        for (place, key) in keys.iter().enumerate() {
            if is_number(key) && !row[1].starts_with("as ") && row[1] != "required" {
                assert_default(key, defaults.get(place).or(defaults.last()).unwrap());
            }
        }
        named.extend(keys);
    }
    // Sections are named by what is in them.
    let is_section = |key: &String| {
        known_keys().iter().any(|other| other.starts_with(&format!("{key}.")))
            || known_keys().iter().any(|other| other.starts_with(&format!("{key}[]")))
    };
    // Some servers alone can have the keys that all can have.
    let of_some =
        |key: &String| key.starts_with("groups[].servers[].tls.") || key.starts_with("groups[].discover.tls.");
    let keys: BTreeSet<String> = known_keys().into_iter().filter(|key| !is_section(key) && !of_some(key)).collect();
    let missing: Vec<_> = keys.difference(&named).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let unknown: Vec<_> = named.iter().filter(|key| !known_keys().contains(key.trim_end_matches("[]"))).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// The words of a text that may stand in the name of a metric.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '{'))
}

#[test]
fn every_error_is_in_the_table_with_its_status() {
    let written: BTreeSet<(String, String)> = table(&document("docs/operations.md"), "## Errors of Tidegate's own")
        .iter()
        .map(|row| (quoted(&row[0]).remove(0), row[1].clone()))
        .collect();
    let mut in_code = BTreeSet::new();
    for file in ["src/proxy/reject.rs", "src/access/denial.rs"] {
        let text = document(file);
        for row in text.split("(StatusCode::").skip(1) {
            let (status, rest) = row.split_once(", \"").unwrap();
            let status = match status {
                "BAD_REQUEST" => "400",
                "UNAUTHORIZED" => "401",
                "FORBIDDEN" => "403",
                "METHOD_NOT_ALLOWED" => "405",
                "REQUEST_TIMEOUT" => "408",
                "PAYLOAD_TOO_LARGE" => "413",
                "URI_TOO_LONG" => "414",
                "TOO_MANY_REQUESTS" => "429",
                "REQUEST_HEADER_FIELDS_TOO_LARGE" => "431",
                "INTERNAL_SERVER_ERROR" => "500",
                "BAD_GATEWAY" => "502",
                "SERVICE_UNAVAILABLE" => "503",
                "GATEWAY_TIMEOUT" => "504",
                other => panic!("a status that this test does not know: {other}"),
            };
            in_code.insert((rest.split('"').next().unwrap().to_owned(), status.to_owned()));
        }
    }
    assert_eq!(written, in_code);
}

#[test]
fn every_metric_that_is_named_exists() {
    let mut source = String::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/metrics")).unwrap() {
        source += &std::fs::read_to_string(entry.unwrap().path()).unwrap();
    }
    let known: BTreeSet<&str> = source.split('"').filter(|text| text.starts_with("tidegate_")).collect();
    assert!(known.contains("tidegate_requests"), "{known:?}");
    let exists = |name: &str| {
        let suffixes = ["", "_total", "_bucket", "_sum", "_count"];
        suffixes.iter().any(|suffix| name.strip_suffix(suffix).is_some_and(|name| known.contains(name)))
    };
    for file in ["docs/operations.md", "README.md", DASHBOARD, RULES].into_iter().chain(RULE_TESTS) {
        let text = document(file);
        for name in words(&text).filter(|word| word.starts_with("tidegate_")) {
            let name = name.split('{').next().unwrap();
            assert!(exists(name) || name.ends_with("_upgrade") || name == "tidegate_", "{file}: {name}");
        }
    }
    // `rejections{reason="..."}` is short for `tidegate_rejections_total`.
    let text = document("docs/operations.md");
    let short: Vec<_> =
        words(&text).filter_map(|word| word.split_once('{')).filter(|(name, _)| !name.is_empty()).collect();
    assert!(short.len() > 50, "{short:?}");
    for (name, _) in short {
        assert!(name.starts_with("tidegate_") || exists(&format!("tidegate_{name}")), "{name}");
    }
}

/// The names in a text that rules give: `job:tidegate_requests:error_ratio_rate5m`.
fn recorded_names(text: &str) -> BTreeSet<&str> {
    let names = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    names.filter(|name| name.contains(":tidegate_") || name.starts_with("tidegate:")).collect()
}

#[test]
fn every_recorded_series_that_is_used_is_recorded() {
    let rules = document(RULES);
    let recorded: BTreeSet<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- record: ")).collect();
    assert!(recorded.len() > 10, "{recorded:?}");
    for file in ["docs/operations.md", DASHBOARD, RULES].into_iter().chain(RULE_TESTS) {
        let text = document(file);
        let unknown: Vec<_> = recorded_names(&text).difference(&recorded).copied().collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
}

#[test]
fn every_alert_points_to_what_to_do() {
    let operations = document("docs/operations.md");
    let headings = operations.lines().filter_map(|line| line.strip_prefix("##")).map(|line| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        heading.replace(' ', "-").replace(|c: char| !(c.is_alphanumeric() || c == '-'), "")
    });
    let sections: BTreeSet<String> = headings.collect();
    let rules = document(RULES);
    for alert in rules.split("      - alert: ").skip(1) {
        let name = alert.lines().next().unwrap();
        for key in ["expr:", "for:", "severity:", "annotations:"] {
            assert!(alert.contains(&format!(" {key} ")) || alert.contains(&format!(" {key}\n")), "{name}: {key}");
        }
        if alert.contains("annotations: *") {
            continue; // those of the alert before
        }
        assert!(alert.contains(" summary: ") && alert.contains(" description: "), "{name}");
        let runbook = alert.split_once(" runbook: docs/operations.md#").unwrap_or_else(|| panic!("{name}: no runbook"));
        let section = runbook.1.lines().next().unwrap();
        assert!(sections.contains(section), "{name}: no section {section}");
    }
    // Each is in the table, and nothing else.
    let in_table: BTreeSet<String> = table(&operations, "### Alerts").iter().flat_map(|row| quoted(&row[0])).collect();
    let in_rules = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).map(str::to_owned).collect();
    assert_eq!(in_table, in_rules);
}
