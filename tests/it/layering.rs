//! Who may know whom (`src/lib.rs`): the policy is pure.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    assert!(!files.is_empty(), "{} has sources", folder.display());
    files
}

/// The lines of code (not comments) in which one of the words stands.
fn mentions(folder: &str, words: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for file in sources(&root.join(folder)) {
        for line in fs::read_to_string(&file).unwrap().lines() {
            let code = line.split("//").next().unwrap_or_default();
            if words.iter().any(|word| code.contains(word)) {
                found.push(format!("{}: {}", file.strip_prefix(root).unwrap().display(), line.trim()));
            }
        }
    }
    found
}

#[test]
fn the_policy_knows_no_network_no_clock_and_nothing_above_it() {
    let foreign = ["pingora", "tokio", "std::net", "std::time", "std::fs", "Instant", "crate::config", "crate::proxy"];
    let above = ["crate::metrics", "crate::admin", "crate::app", "crate::cli", "crate::demo"];
    for folder in ["src/balance", "src/prompt", "src/work"] {
        assert_eq!(mentions(folder, &foreign), [""; 0], "{folder}");
        assert_eq!(mentions(folder, &above), [""; 0], "{folder}");
    }
    let foreign = ["pingora::", "std::fs", "tokio::net", "crate::config", "crate::proxy", "crate::balance"];
    assert_eq!(mentions("src/access", &foreign), [""; 0]);
    assert_eq!(mentions("src/access", &above), [""; 0]);
    assert_eq!(mentions("src/prompt", &["crate::balance"]), [""; 0], "measuring comes before choosing");
    let others = ["crate::balance", "crate::drive", "crate::simulate", "parking_lot"];
    assert_eq!(mentions("src/work", &others), [""; 0], "the policies know nobody but themselves and prompt");
    let mut chance = mentions("src/work", &["rand::"]);
    chance.retain(|line| !line.contains("tests.rs: "));
    assert_eq!(chance, [""; 0], "nothing is left to chance, but for what is tested");
    assert_eq!(
        mentions("src/http1", &["use crate::", "log::info", "log::warn"]),
        [""; 0],
        "the wire knows only itself"
    );
    let live = ["pingora", "crate::proxy", "crate::upstream", "crate::journal", "crate::metrics"];
    assert_eq!(mentions("src/traces", &live), [""; 0], "spans are made of records, not of what runs");
    let live = ["pingora", "tokio", "crate::config", "crate::proxy", "crate::upstream"];
    for folder in ["src/drive", "src/simulate"] {
        assert_eq!(mentions(folder, &live), [""; 0], "{folder} drives policies, not servers");
        assert_eq!(mentions(folder, &["Instant", "::now()"]), [""; 0], "{folder} has a virtual clock");
    }
}

#[test]
fn load_is_given_back_by_the_drop_of_a_lease_and_nowhere_else() {
    let callers = mentions("src", &[".give_back("]);
    assert_eq!(callers.len(), 2, "{callers:?}");
    assert!(callers.iter().any(|line| line.starts_with("src/balance/lease.rs")), "{callers:?}");
    assert!(callers.iter().any(|line| line.starts_with("src/balance/mod.rs")), "{callers:?}");
}
