//! Who may do what on the port for clients, as `/status` shows it. No key and no digest is in it.

use serde::Serialize;

use crate::access::{Allowed, HeaderLimits, Key, KeyLimits, Rules};

#[derive(Debug, Serialize)]
pub(super) struct AccessStatus {
    keys: Vec<KeyStatus>,
    open_paths: Vec<String>,
    /// Whether the clients' keys go on to the servers.
    credentials_forwarded: bool,
    closed_paths: Vec<String>,
    max_header_bytes: usize,
    max_headers: usize,
    max_uri_bytes: usize,
    max_concurrent_per_client: Option<usize>,
    trusted_proxies: Vec<String>,
    /// Null: left to the servers.
    cors_origins: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
struct KeyStatus {
    name: String,
    requests_per_minute: Option<u64>,
    tokens_per_minute: Option<u64>,
    max_concurrent: Option<usize>,
}

impl AccessStatus {
    pub(super) fn of(rules: &Rules) -> Self {
        let Rules { keys, closed, header_limits, max_concurrent_per_client, trusted_proxies, cors } = rules;
        let HeaderLimits { header_bytes, fields, uri_bytes } = *header_limits;
        Self {
            keys: keys.iter().map(KeyStatus::of).collect(),
            open_paths: keys.open_paths().to_vec(),
            credentials_forwarded: !keys.withholds_credentials(),
            closed_paths: closed.iter().map(Into::into).collect(),
            max_header_bytes: header_bytes,
            max_headers: fields,
            max_uri_bytes: uri_bytes,
            max_concurrent_per_client: *max_concurrent_per_client,
            trusted_proxies: trusted_proxies.networks().iter().map(ToString::to_string).collect(),
            cors_origins: cors.as_ref().map(|cors| match &cors.origins {
                Allowed::Any => vec!["*".to_owned()],
                Allowed::These(origins) => origins.clone(),
            }),
        }
    }
}

impl KeyStatus {
    fn of(key: &Key) -> Self {
        let KeyLimits { requests_per_minute, tokens_per_minute, max_concurrent } = key.limits;
        Self { name: key.name.to_string(), requests_per_minute, tokens_per_minute, max_concurrent }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::access::{ClosedPaths, KeyDigest, Keys};

    #[test]
    fn names_and_limits_are_shown_and_keys_are_not() {
        let limits = KeyLimits { requests_per_minute: Some(60), ..KeyLimits::default() };
        let key = Key { name: "team-a".into(), digest: KeyDigest::of(b"abc"), limits };
        let rules = Rules {
            keys: Keys::new(vec![key], vec!["/health".to_owned()], false),
            closed: ClosedPaths::new(["/sleep"]),
            trusted_proxies: crate::access::TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]),
            ..Rules::default()
        };
        let expected = json!({
            "keys": [{
                "name": "team-a", "requests_per_minute": 60, "tokens_per_minute": null, "max_concurrent": null,
            }],
            "open_paths": ["/health"],
            "credentials_forwarded": false,
            "closed_paths": ["/sleep"],
            "max_header_bytes": 131_072,
            "max_headers": 128,
            "max_uri_bytes": 16_384,
            "max_concurrent_per_client": null,
            "trusted_proxies": ["10.0.0.0/8"],
            "cors_origins": null,
        });
        assert_eq!(serde_json::to_value(AccessStatus::of(&rules)).unwrap(), expected);
    }
}
