//! The keys that clients may use: in the file, in the environment, or in a file of digests. Their text is in no message.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;

use super::super::problem::{Located, Spot};
use super::super::secret::{given, usable_key};
use super::super::section::{Item, Parsed, Section, or_none};
use super::super::yaml::Node;
use super::super::{Environment, value};
use super::{MAX_CONCURRENT, path, values};
use crate::access::{Key, KeyDigest, KeyLimits, Keys};

/// A larger file of keys is none: this is room for ten thousand.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Most requests or tokens a minute that can be configured.
const MAX_RATE: u64 = 1_000_000_000_000;

/// Reads the section but for its paths that are closed.
pub(super) fn read(section: &mut Section<'_>, environment: Environment<'_>) -> Keys {
    let shared = section.section("key_limits", |section| limits(section, KeyLimits::default()));
    let items = section.list("keys", "keys").unwrap_or_default();
    let mut keys: Vec<_> = items.iter().filter_map(|item| key(item, shared, environment)).collect();
    if let Some(Located { value: Some(file), spot }) = section.value("keys_file", or_none(value::text)) {
        match read_file(&file, shared) {
            Ok(found) => keys.extend(found.into_iter().map(|key| Located::new(key, spot.clone()))),
            Err(text) => section.error(&spot, text),
        }
    }
    let default = Keys::default();
    let open_paths = section.list("open_paths", "paths").map(|items| values(&items, path));
    let mut forward_credentials = false;
    section.set("forward_credentials", &mut forward_credentials, value::switch);
    let open_paths = open_paths.unwrap_or_else(|| default.open_paths().to_vec());
    Keys::new(all_different(keys, section), open_paths, forward_credentials)
}

fn limits(section: &mut Section<'_>, default: KeyLimits) -> KeyLimits {
    let mut limits = default;
    section.set_or_none("requests_per_minute", &mut limits.requests_per_minute, value::whole(1..=MAX_RATE));
    section.set_or_none("tokens_per_minute", &mut limits.tokens_per_minute, value::whole(1..=MAX_RATE));
    section.set_or_none("max_concurrent", &mut limits.max_concurrent, value::count(1..=MAX_CONCURRENT));
    limits
}

fn key(item: &Item<'_>, shared: KeyLimits, environment: Environment<'_>) -> Option<Located<Key>> {
    item.section(|section| {
        let name = section.required("name", value::name);
        let limits = limits(section, shared);
        let digest = digest(section, environment)?;
        let Located { value: name, spot } = name?;
        Some(Located::new(Key { name: name.into(), digest, limits }, spot))
    })
}

/// The one of the three ways to give a key that is used.
fn digest(section: &mut Section<'_>, environment: Environment<'_>) -> Option<KeyDigest> {
    let key = section.secret("key", or_none(plain_key));
    let variable = section.value("key_env", or_none(value::text));
    let sha256 = section.secret("sha256", or_none(sha256));
    let was_refused = [("key", key.is_none()), ("key_env", variable.is_none()), ("sha256", sha256.is_none())]
        .into_iter()
        .any(|(way, is_absent)| is_absent && section.has(way));
    match (key.and_then(given), variable.and_then(given), sha256.and_then(given)) {
        (Some(digest), None, None) | (None, None, Some(digest)) => Some(digest.value),
        (None, Some(Located { value: variable, spot }), None) => {
            let key = environment(&variable);
            let digest = key.as_deref().and_then(|key| usable_key(key).ok()).map(|key| KeyDigest::of(key.as_bytes()));
            if digest.is_none() {
                let text = format!("the environment variable {variable} holds no usable key, expected it to hold one");
                section.error(&spot, text);
            }
            digest
        }
        (None, None, None) if was_refused => None,
        _ => {
            section.error(section.spot(), "expected exactly one of key, key_env and sha256");
            None
        }
    }
}

fn plain_key(node: &Node) -> Parsed<KeyDigest> {
    usable_key(node.text().unwrap_or_default()).map(|key| KeyDigest::of(key.as_bytes()))
}

fn sha256(node: &Node) -> Parsed<KeyDigest> {
    let digest = KeyDigest::from_hex(node.text().unwrap_or_default());
    digest.ok_or_else(|| "the SHA-256 of a key in 64 hexadecimal digits".to_owned())
}

/// Lines of a name and a digest; empty ones and those that begin with `#` are passed over.
fn read_file(file: &str, limits: KeyLimits) -> Result<Vec<Key>, String> {
    const EXPECTED: &str = "expected a name and the SHA-256 of a key in 64 hexadecimal digits";
    let mut text = String::new();
    let read = File::open(file).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
    read.map_err(|error| format!("{file} cannot be read ({error}), expected a readable text file"))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("{file} is too large, expected at most {} KiB", MAX_FILE_BYTES >> 10));
    }
    let mut keys = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // What stands there is not shown: it may be a key.
        let wrong = || format!("line {} of {file} is no key, {EXPECTED}", number + 1);
        let words: Vec<_> = line.split_whitespace().collect();
        let [name, hex] = words[..] else { return Err(wrong()) };
        if !value::is_name(name) {
            return Err(wrong());
        }
        keys.push(Key { name: name.into(), digest: KeyDigest::from_hex(hex).ok_or_else(wrong)?, limits });
    }
    // No keys at all would let everyone in.
    if keys.is_empty() { Err(format!("{file} holds no key, {EXPECTED}")) } else { Ok(keys) }
}

fn all_different(keys: Vec<Located<Key>>, section: &Section<'_>) -> Vec<Key> {
    let mut names: HashMap<std::sync::Arc<str>, Spot> = HashMap::new();
    let mut digests = HashSet::new();
    for Located { value: key, spot } in &keys {
        if names.insert(std::sync::Arc::clone(&key.name), spot.clone()).is_some() {
            section.error(spot, format!("the name {} stands there twice, expected it once", key.name));
        } else if !digests.insert(key.digest.bytes()) {
            section.error(spot, format!("{} has the same key as another name, expected a key of its own", key.name));
        }
    }
    keys.into_iter().map(|key| key.value).collect()
}
