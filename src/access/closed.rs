//! Paths that no client may use: those by which vLLM servers are administered.
//!
//! The rule: closed is what changes a server for everyone (sleep, weights, adapters, scaling, caches, profiling, other
//! clients' requests) or shows its inside for that purpose. Paths that only read (`/metrics`, `/load`, `/version`) are
//! proxied as everything else is.
//!
//! A path is closed in every spelling that some server or proxy behind Tidegate may take for it, and below every prefix
//! (vLLM's `--root-path`): rather one path too many than one too few. `/sleep%0a` is one of them: vLLM's router lets
//! its patterns match in front of a final line feed.

use std::borrow::Cow;

/// The administrative paths of vLLM up to 0.32, most of which exist only when a server was started for them.
pub const ADMIN_PATHS: [&str; 32] = [
    "/abort_requests",
    "/collective_rpc",
    "/fault_tolerance/apply",
    "/fault_tolerance/status",
    "/finish_weight_update",
    "/get_world_size",
    "/init_weight_transfer_engine",
    "/is_paused",
    "/is_scaling_elastic_ep",
    "/is_sleeping",
    "/kv_event_sources",
    "/pause",
    "/release_kv_cache_memory",
    "/reset_encoder_cache",
    "/reset_mm_cache",
    "/reset_prefix_cache",
    "/resume",
    "/scale_elastic_ep",
    "/server_info",
    "/shutdown_weight_transfer_engine",
    "/sleep",
    "/start_draft_weight_update",
    "/start_profile",
    "/start_weight_update",
    "/stop_profile",
    "/update_weight_version",
    "/update_weights",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/wake_up",
    "/weight_checker",
    "/weight_info",
];

/// A set of closed paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedPaths {
    /// In canonical spelling.
    paths: Vec<Vec<u8>>,
}

impl Default for ClosedPaths {
    fn default() -> Self {
        Self::new(ADMIN_PATHS)
    }
}

impl ClosedPaths {
    /// These paths. `/` alone is left out: it would close everything.
    pub fn new<'a>(paths: impl IntoIterator<Item = &'a str>) -> Self {
        let mut paths: Vec<_> = paths.into_iter().map(|path| canonical(path.as_bytes())).collect();
        paths.retain(|path| path.len() > 1);
        paths.sort();
        paths.dedup();
        Self { paths }
    }

    /// Opens a path again; false when it was not closed.
    #[must_use]
    pub fn open(&mut self, path: &str) -> bool {
        let path = canonical(path.as_bytes());
        let before = self.paths.len();
        self.paths.retain(|closed| *closed != path);
        self.paths.len() < before
    }

    /// Whether this path, in whatever spelling, is closed.
    #[must_use]
    pub fn covers(&self, path: &[u8]) -> bool {
        let path = if is_canonical(path) { Cow::Borrowed(path) } else { Cow::Owned(canonical(path)) };
        self.paths.iter().any(|closed| path.ends_with(closed))
    }

    /// The paths in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.paths.iter().map(|path| String::from_utf8_lossy(path))
    }
}

/// The one spelling of a path: percent-decoded as often as it goes, in lower case, without blanks, control bytes,
/// repeated or final slashes, with dot segments resolved.
fn canonical(path: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(path.len());
    let is_kept = |byte: &u8| byte.is_ascii_graphic() || !byte.is_ascii();
    for byte in path {
        decoded.extend(Some(*byte).filter(is_kept));
        // What was decoded may be the end of a further escape.
        while let Some(byte) = escaped_end(&decoded) {
            decoded.truncate(decoded.len() - 3);
            decoded.extend(Some(byte).filter(is_kept));
        }
    }
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in decoded.split(|byte| matches!(byte, b'/' | b'\\')) {
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    let mut canonical = Vec::with_capacity(decoded.len() + 1);
    for segment in segments {
        canonical.push(b'/');
        canonical.extend(segment.to_ascii_lowercase());
    }
    if canonical.is_empty() { b"/".to_vec() } else { canonical }
}

/// Whether a path is spelled as [`canonical`] spells it, as far as can be told at a glance: nearly all are.
fn is_canonical(path: &[u8]) -> bool {
    let is_plain = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'/');
    path.first() == Some(&b'/')
        && path.len() > 1
        && path.iter().all(is_plain)
        && !path.windows(2).any(|pair| pair == b"//")
        && !path.ends_with(b"/")
}

/// The byte that the last three stand for, if they are an escape.
fn escaped_end(bytes: &[u8]) -> Option<u8> {
    let [.., b'%', high, low] = bytes else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(*high)? << 4 | digit(*low)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_path_is_closed_in_every_spelling() {
        let closed = ClosedPaths::default();
        for path in [
            "/sleep",
            "/sleep/",
            "//sleep",
            "/sleep//",
            "/SLEEP",
            "/sl%65ep",
            "/sl%2565ep",
            "/sl%252565ep",
            "/sl%%36%35ep",
            "/%73%6C%65%65%70",
            "%2fsleep",
            "/%2Fsleep",
            "/sleep%2f",
            "/sleep%0a",
            "/sleep%20",
            "/sleep%00",
            "/sle%09ep",
            "/./sleep",
            "/x/../sleep",
            "/x/%2e%2e/sleep",
            "/sleep/.",
            "/sleep/x/..",
            "\\sleep",
            "/x%5csleep",
            "/root/path/sleep",
            "/v1/Load_LoRA_adapter",
            "/v1//load_lora_adapter",
            "/v1%2fload_lora_adapter",
            "/inference/v1/abort_requests",
        ] {
            assert!(closed.covers(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn what_only_looks_like_a_closed_path_is_open() {
        let closed = ClosedPaths::default();
        for path in [
            "/",
            "*",
            "",
            "/sleepy",
            "/asleep",
            "/sleep/x",
            "/sl%ep",
            "/sleep%",
            "/v1/chat/completions",
            "/metrics",
            "/load",
            "/v1/models",
            "/v1/responses/resp_1/cancel",
            "/%zz",
            "/s%6ceep%2fx",
        ] {
            assert!(!closed.covers(path.as_bytes()), "{path}");
        }
        assert!(!closed.covers(b"/sl\xffeep"));
    }

    #[test]
    fn paths_can_be_opened_and_added() {
        let mut closed = ClosedPaths::new(ADMIN_PATHS.into_iter().chain(["/Metrics/", "/"]));
        assert!(closed.covers(b"/metrics") && !closed.covers(b"/"));
        assert!(closed.open("/sleep") && !closed.open("/sleep") && !closed.open("/nothing"));
        assert!(!closed.covers(b"/sleep") && closed.covers(b"/wake_up"));
    }

    #[test]
    fn the_list_is_in_canonical_spelling_and_order() {
        let closed = ClosedPaths::default();
        assert_eq!(closed.iter().collect::<Vec<_>>(), ADMIN_PATHS);
    }

    proptest::proptest! {
        #[test]
        fn what_looks_canonical_is(path in "[/a-c.A%_-]{0,12}") {
            let path = path.as_bytes();
            proptest::prop_assert!(!is_canonical(path) || canonical(path) == path);
        }

        #[test]
        fn a_canonical_path_stays_as_it_is(path in "[/%.\\\\2fF5eE a-c\\x00]{0,40}") {
            let once = canonical(path.as_bytes());
            proptest::prop_assert_eq!(canonical(&once), once);
        }
    }
}
