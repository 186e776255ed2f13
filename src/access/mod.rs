//! Who may do what on the port for clients: API keys and their limits, closed paths, limits on a request's header, and
//! what is said to servers and browsers about where a request comes from.
//!
//! ```text
//! request header -> size -> client's place -> key -> closed path -> key's limits -> (body, measure) -> token limit
//!                   414,431  429              401     403           429                                429
//! ```
//!
//! Every decision is made here, from values, and answered with a [`Denial`]; `proxy/guard.rs` asks. Everything is off
//! by default except the limits on the header and the closed paths.

mod client;
mod closed;
mod cors;
mod denial;
mod forwarded;
mod keys;
mod quota;
mod size;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, Method};
use pingora_limits::inflight::{Guard, Inflight};
use tokio::time::Instant;

pub use client::TrustedProxies;
pub use closed::{ADMIN_PATHS, ClosedPaths};
pub use cors::{Allowed, Cors, is_preflight};
pub use denial::Denial;
pub use forwarded::{Fields as OriginFields, Hop, Remembered as RememberedOrigin};
pub use keys::{CREDENTIAL_HEADERS, Key, KeyDigest, Keys};
pub use quota::KeyLimits;
pub use size::HeaderLimits;

use quota::Quota;

/// What the configuration says.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Who may use the servers. Without keys: everyone.
    pub keys: Keys,
    /// Paths that no client may use.
    pub closed: ClosedPaths,
    /// Limits on a request's header.
    pub header_limits: HeaderLimits,
    /// How many requests one client address may have running at once; `None` is no limit. At least 1.
    pub max_concurrent_per_client: Option<usize>,
    /// Peers whose word on where a request comes from is believed.
    pub trusted_proxies: TrustedProxies,
    /// What browsers are told; `None` leaves it to the servers.
    pub cors: Option<Cors>,
}

/// A request header as far as it is judged here.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The method.
    pub method: &'a Method,
    /// The path as it goes to a server, without the query.
    pub path: &'a [u8],
    /// All fields.
    pub headers: &'a HeaderMap,
    /// The other end of the connection; `None` when it has no IP address.
    pub peer: Option<IpAddr>,
}

/// Leave to go on. What it counts for runs until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Admission {
    key: Option<(usize, Arc<str>)>,
    _client_place: Option<Guard>,
    _key_place: Option<Guard>,
}

impl Admission {
    /// The configured name of the key that the request came with.
    #[must_use]
    pub fn key_name(&self) -> Option<&Arc<str>> {
        self.key.as_ref().map(|(_, name)| name)
    }
}

/// A refusal, and the key that it concerns when one was recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub denial: Denial,
    /// The configured name of the key.
    pub key_name: Option<Arc<str>>,
}

impl From<Denial> for Refused {
    fn from(denial: Denial) -> Self {
        Self { denial, key_name: None }
    }
}

/// The rules, and what runs under them now.
pub struct Access {
    rules: Rules,
    /// By number of key.
    quotas: Vec<Quota>,
    /// What runs, by client address and by key name. Shared with the rules before and after these.
    clients: Arc<Inflight>,
    keys: Arc<Inflight>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl Access {
    /// Nothing runs yet, and no limit is used up.
    #[must_use]
    pub fn new(rules: Rules, now: Instant) -> Self {
        let quotas = rules.keys.iter().map(|key| Quota::new(&key.limits, None, now)).collect();
        Self { rules, quotas, clients: Arc::new(Inflight::new()), keys: Arc::new(Inflight::new()) }
    }

    /// Other rules for what runs now. Keys are recognised by their names: one that stays owes what it owed, and what
    /// runs with it stays counted, also when the key itself or a limit of it is another.
    #[must_use]
    pub fn successor(&self, rules: Rules, now: Instant) -> Self {
        let known: HashMap<_, _> = self.rules.keys.iter().map(|key| &key.name).zip(&self.quotas).collect();
        let quota = |key: &Key| Quota::new(&key.limits, known.get(&key.name).copied(), now);
        let quotas = rules.keys.iter().map(quota).collect();
        Self { rules, quotas, clients: Arc::clone(&self.clients), keys: Arc::clone(&self.keys) }
    }

    /// The rules as configured.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Judges a request by its header, and counts it under the limits that it falls under.
    ///
    /// # Errors
    /// Why it may not go on.
    pub fn admit(&self, asked: &Asked<'_>, now: Instant) -> Result<Admission, Refused> {
        let client_place = self.take_client_place(asked)?;
        let key = if self.needs_key(asked) { Some(self.rules.keys.identify(asked.headers)?) } else { None };
        let named = key.map(|key| (key, Arc::clone(&self.rules.keys.get(key).name)));
        let refused = |denial| Refused { denial, key_name: named.as_ref().map(|(_, name)| Arc::clone(name)) };
        if self.rules.closed.covers(asked.path) {
            return Err(refused(Denial::ClosedPath));
        }
        let key_place = key.map(|key| self.take_key_place(key)).transpose().map_err(refused)?.flatten();
        if let Some(key) = key {
            self.quotas[key].take_request(now).map_err(refused)?;
        }
        Ok(Admission { key: named, _client_place: client_place, _key_place: key_place })
    }

    /// Counts the prompt of an admitted request under its key's limit.
    ///
    /// # Errors
    /// When the key has used up its tokens.
    pub fn charge(&self, admission: &Admission, prompt_tokens: u64, now: Instant) -> Result<(), Refused> {
        let Some((key, name)) = &admission.key else { return Ok(()) };
        let taken = self.quotas[*key].take_tokens(prompt_tokens, now);
        taken.map_err(|denial| Refused { denial, key_name: Some(Arc::clone(name)) })
    }

    /// A browser's question goes without a key: browsers never send one with it, and it does no inference.
    fn needs_key(&self, asked: &Asked<'_>) -> bool {
        !self.rules.keys.is_empty()
            && !self.rules.keys.opens(asked.path)
            && !cors::is_bare_preflight(asked.method, asked.headers)
    }

    fn take_client_place(&self, asked: &Asked<'_>) -> Result<Option<Guard>, Denial> {
        let Some(limit) = self.rules.max_concurrent_per_client else { return Ok(None) };
        let client = asked.peer.map(|peer| self.rules.trusted_proxies.client(peer, asked.headers));
        take_place(&self.clients, client, limit).map(Some).ok_or(Denial::ClientConcurrency { limit })
    }

    fn take_key_place(&self, key: usize) -> Result<Option<Guard>, Denial> {
        let key = self.rules.keys.get(key);
        let Some(limit) = key.limits.max_concurrent else { return Ok(None) };
        take_place(&self.keys, &key.name, limit).map(Some).ok_or(Denial::KeyConcurrency { limit })
    }
}

/// A place among those of `of`, unless all are taken.
fn take_place(places: &Inflight, of: impl std::hash::Hash, limit: usize) -> Option<Guard> {
    let (guard, taken) = places.incr(of, 1);
    usize::try_from(taken).is_ok_and(|taken| taken <= limit).then_some(guard)
}

#[cfg(test)]
mod tests;
