//! API keys: known by their SHA-256, compared in constant time.

use std::fmt;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::{Denial, KeyLimits};

/// Anthropic's way of sending a key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The headers in which a client's key is looked for.
pub static CREDENTIAL_HEADERS: [HeaderName; 2] = [AUTHORIZATION, X_API_KEY];

/// What is kept of a key.
#[derive(Clone, Copy)]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// The SHA-256 of a key.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        Self(Sha256::digest(key).into())
    }

    /// For telling whether two are the same, where time tells nothing.
    #[must_use]
    pub(crate) fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// Reads 64 hexadecimal digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        let digits: Vec<u32> = text.chars().map(|digit| digit.to_digit(16)).collect::<Option<_>>()?;
        if digits.len() != 2 * bytes.len() {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::try_from(pair[0] << 4 | pair[1]).ok()?;
        }
        Some(Self(bytes))
    }
}

impl PartialEq for KeyDigest {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for KeyDigest {}

/// Shows nothing: a weak key can be found from its digest.
impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyDigest")
    }
}

/// A key that clients may use.
#[derive(Debug, Clone)]
pub struct Key {
    /// Name in metrics and logs. Unique.
    pub name: Arc<str>,
    /// The key itself, as far as it is kept.
    pub digest: KeyDigest,
    /// What it may be used for.
    pub limits: KeyLimits,
}

/// All keys, and what goes with having some.
#[derive(Debug, Clone)]
pub struct Keys {
    /// Fewer than 2^32; no name and no digest stands there twice. Empty: no key is asked for.
    keys: Vec<Key>,
    /// Paths for which no key is asked, in exactly this spelling.
    open_paths: Vec<String>,
    /// Whether a client's credentials go on to the servers.
    forward_credentials: bool,
}

impl Default for Keys {
    fn default() -> Self {
        let open_paths = ["/health", "/healthcheck", "/ping"].map(str::to_owned).into();
        Self { keys: Vec::new(), open_paths, forward_credentials: false }
    }
}

impl Keys {
    /// These keys, whose names and digests must differ.
    #[must_use]
    pub fn new(keys: Vec<Key>, open_paths: Vec<String>, forward_credentials: bool) -> Self {
        Self { keys, open_paths, forward_credentials }
    }

    /// Whether no key is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The keys in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Key> {
        self.keys.iter()
    }

    /// The paths for which no key is asked.
    #[must_use]
    pub fn open_paths(&self) -> &[String] {
        &self.open_paths
    }

    /// Whether a client's credentials are kept from the servers: they were meant for Tidegate.
    #[must_use]
    pub fn withholds_credentials(&self) -> bool {
        !self.is_empty() && !self.forward_credentials
    }

    pub(super) fn get(&self, number: usize) -> &Key {
        &self.keys[number]
    }

    /// Whether the path, spelled exactly so, needs no key.
    pub(super) fn opens(&self, path: &[u8]) -> bool {
        self.open_paths.iter().any(|open| open.as_bytes() == path)
    }

    /// The number of the key that a request carries. A bearer token goes before `x-api-key`; what else stands in
    /// `Authorization` is not looked at.
    pub(super) fn identify(&self, headers: &HeaderMap) -> Result<usize, Denial> {
        let mut denial = Denial::NoKey;
        for key in [bearer(headers), headers.get(X_API_KEY).map(http::HeaderValue::as_bytes)].into_iter().flatten() {
            let key = key.trim_ascii();
            if !key.is_empty() {
                match self.find(KeyDigest::of(key)) {
                    Some(number) => return Ok(number),
                    None => denial = Denial::WrongKey,
                }
            }
        }
        Err(denial)
    }

    /// Looks at all keys, also behind the one that is found: the time tells nothing.
    fn find(&self, digest: KeyDigest) -> Option<usize> {
        const NOT_FOUND: u32 = u32::MAX;
        let mut found = NOT_FOUND;
        for (number, key) in (0..NOT_FOUND).zip(&self.keys) {
            found.conditional_assign(&number, key.digest.0.ct_eq(&digest.0));
        }
        (found != NOT_FOUND).then(|| usize::try_from(found).ok()).flatten()
    }
}

/// The token of `Authorization: Bearer TOKEN`; the scheme's case does not matter (RFC 9110, section 11.1).
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes().trim_ascii();
    let (scheme, token) = value.split_at_checked(b"Bearer".len())?;
    (scheme.eq_ignore_ascii_case(b"Bearer") && token.first().is_some_and(u8::is_ascii_whitespace)).then_some(token)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn keys() -> Keys {
        let key = |name: &str, key: &str| Key {
            name: name.into(),
            digest: KeyDigest::of(key.as_bytes()),
            limits: KeyLimits::default(),
        };
        Keys::new(vec![key("a", "sk-a"), key("b", "sk-b")], vec!["/health".into()], false)
    }

    fn identified(fields: &[(&'static str, &'static str)]) -> Result<usize, Denial> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        keys().identify(&headers)
    }

    #[test]
    fn both_ways_to_send_a_key_are_taken() {
        assert_eq!(identified(&[("authorization", "Bearer sk-b")]), Ok(1));
        assert_eq!(identified(&[("authorization", "bEARER   sk-a ")]), Ok(0));
        assert_eq!(identified(&[("x-api-key", "sk-b")]), Ok(1));
        assert_eq!(identified(&[("authorization", "Basic x"), ("x-api-key", "sk-a")]), Ok(0));
        assert_eq!(identified(&[("authorization", "Bearer sk-a"), ("x-api-key", "sk-b")]), Ok(0));
    }

    #[test]
    fn a_missing_key_differs_from_a_wrong_one() {
        for fields in [&[][..], &[("authorization", "Bearer")], &[("authorization", "Bearer ")], &[("x-api-key", "")]] {
            assert_eq!(identified(fields), Err(Denial::NoKey), "{fields:?}");
        }
        assert_eq!(identified(&[("authorization", "Basic c2stYQ==")]), Err(Denial::NoKey));
        for token in ["Bearer sk-", "Bearer sk-ab", "Bearer SK-A", "Bearer sk-a,sk-b", "Bearer Bearer sk-a"] {
            assert_eq!(identified(&[("authorization", token)]), Err(Denial::WrongKey), "{token}");
        }
        assert_eq!(identified(&[("authorization", "sk-a")]), Err(Denial::NoKey));
        assert_eq!(identified(&[("authorization", "Bearersk-a")]), Err(Denial::NoKey));
    }

    #[test]
    fn a_digest_is_sixty_four_hexadecimal_digits() {
        let hex = "BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015ad";
        assert_eq!(KeyDigest::from_hex(hex), Some(KeyDigest::of(b"abc")));
        for text in ["", &hex[1..], &format!("{hex}0"), &hex.replace('B', "g"), &hex.replace("BA", "é")] {
            assert_eq!(KeyDigest::from_hex(text), None, "{text}");
        }
    }

    #[test]
    fn open_paths_are_open_in_one_spelling_only() {
        assert!(keys().opens(b"/health"));
        for path in [&b"/health/"[..], b"//health", b"/HEALTH", b"/he%61lth", b"/health/../v1/models"] {
            assert!(!keys().opens(path), "{}", path.escape_ascii());
        }
    }

    #[test]
    fn debug_output_shows_no_digest() {
        assert!(format!("{:?}", keys()).contains("digest: KeyDigest, "));
    }
}
