//! What the rules of access will do, for people.

use std::fmt::{self, Display};

use bytesize::ByteSize;

use crate::access::{ADMIN_PATHS, Allowed, KeyLimits, Rules};

/// Shows the rules in words. No key is in it.
#[derive(Debug)]
pub(in crate::config) struct AccessSummary<'a>(pub(in crate::config) &'a Rules);

impl AccessSummary<'_> {
    /// The part that stands in the line of limits.
    pub(in crate::config) fn limits(&self) -> String {
        let limits = &self.0.header_limits;
        let [header, uri] = [limits.header_bytes, limits.uri_bytes].map(|bytes| ByteSize::b(bytes as u64));
        let (fields, per_client) = (limits.fields, or_none(self.0.max_concurrent_per_client));
        format!(
            "max_header_size {header}, max_headers {fields}, max_uri_size {uri}, max_concurrent_per_client {per_client}"
        )
    }
}

impl Display for AccessSummary<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rules { keys, closed, trusted_proxies, cors, .. } = self.0;
        if keys.is_empty() {
            writeln!(out, "access: no keys, everyone may use the servers")?;
        } else {
            let credentials = if keys.withholds_credentials() { "not passed on" } else { "passed on" };
            writeln!(
                out,
                "access: keys needed except for {}; they are {credentials} to servers",
                list(keys.open_paths())
            )?;
        }
        for key in keys.iter() {
            let KeyLimits { requests_per_minute, tokens_per_minute, max_concurrent } = key.limits;
            writeln!(
                out,
                "  key {}: requests_per_minute {}, tokens_per_minute {}, max_concurrent {}",
                key.name,
                or_none(requests_per_minute),
                or_none(tokens_per_minute),
                or_none(max_concurrent)
            )?;
        }
        let closed: Vec<_> = closed.iter().collect();
        let open: Vec<_> = ADMIN_PATHS.iter().filter(|path| !closed.iter().any(|closed| closed == *path)).collect();
        let more: Vec<_> = closed.iter().filter(|path| !ADMIN_PATHS.contains(&path.as_ref())).collect();
        let open = if open.len() == ADMIN_PATHS.len() { "all".to_owned() } else { list(&open) };
        writeln!(out, "  administrative paths closed, except {open}; also closed: {}", list(&more))?;
        writeln!(out, "forwarded: trusted_proxies {}", list(trusted_proxies.networks()))?;
        match cors.as_ref().map(|cors| &cors.origins) {
            None => writeln!(out, "cors: left to the servers"),
            Some(Allowed::Any) => writeln!(out, "cors: pages of any origin"),
            Some(Allowed::These(origins)) => writeln!(out, "cors: pages of {}", list(origins)),
        }
    }
}

fn list<T: Display>(items: &[T]) -> String {
    let items: Vec<_> = items.iter().map(ToString::to_string).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

fn or_none(limit: Option<impl Display>) -> String {
    limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string())
}
