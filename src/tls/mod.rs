//! TLS on both sides: the listener for clients ([`Listener`]) and the connections to servers ([`Upstream`]).
//!
//! # What is Pingora's, and what is not
//!
//! Pingora 0.9.1 with its `rustls` feature carries the bytes on both sides: its TLS stream is sound, hands the
//! negotiated protocol up, and needs no more than `cc` to build (ring), where `openssl` and `boringssl` need headers or
//! a C++ toolchain. What would not do is replaced here:
//!
//! - **Listener.** Pingora's own `TlsSettings` panics on a broken file, cannot set the lowest version, waits a fixed 60 s
//!   for a handshake, and logs each scan of the port as an error. So the listener is a plain one, and [`Listener`] makes
//!   the handshake, with rustls settings of our own on Pingora's TLS stream. A renewed certificate is a new set of
//!   settings for connections accepted from then on.
//! - **Servers.** Pingora's connector verifies the certificate and the name, and presents ours; it panics on files that
//!   it cannot parse, and on a broken certificate store of the system, even when no server uses TLS. So everything is
//!   read and tried here first, and the system's store is kept from Pingora unless a server needs it.
//!
//! Files are read again every few seconds ([`Watch`]); a broken or half-written pair changes nothing and is logged once.

mod expiry;
mod files;
mod listener;
mod upstream;
mod watch;

pub use files::{Part, Unusable};
pub use listener::{Listener, ListenerFiles, MinVersion};
pub use upstream::{Upstream, UpstreamFiles, check_name};
pub use watch::{Refresh, Watch, Watched};

/// What Pingora's connectors are given as the file of trusted authorities: the system's store (`None`), or nothing at
/// all. They read the store when they are made, and panic when that fails.
#[must_use]
pub fn authorities_file(uses_system_authorities: bool) -> Option<String> {
    (!uses_system_authorities).then(|| "/dev/null".to_owned())
}

/// The one provider of cryptography, the same as Pingora's.
pub(crate) fn provider() -> std::sync::Arc<rustls::crypto::CryptoProvider> {
    std::sync::Arc::new(rustls::crypto::ring::default_provider())
}
