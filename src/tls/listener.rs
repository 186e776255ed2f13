//! The TLS listener's side of a handshake.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use pingora::listeners::tls::Acceptor;
use pingora::protocols::Stream;
use pingora::protocols::l4::stream::Stream as Socket;
use pingora::{Error, ErrorType, Result};
use rustls::ServerConfig;
use rustls::version::{TLS12, TLS13};

use super::expiry::Expiry;
use super::files::{Contents, Part, Reloading, Unusable, certificates, private_key};
use super::provider;
use super::watch::{Refresh, Watched};

/// Protocols that clients are offered, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The lowest TLS version that clients may speak. Below 1.2 nothing is offered at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinVersion {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl fmt::Display for MinVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls12 => "1.2",
            Self::Tls13 => "1.3",
        })
    }
}

/// What a TLS listener is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerFiles {
    /// The certificate, then its chain, in PEM.
    pub certificate: PathBuf,
    /// The private key, in PEM.
    pub key: PathBuf,
    /// The lowest version that is accepted.
    pub min_version: MinVersion,
}

/// Makes the handshakes of a TLS listener, with the certificate in force.
#[derive(Debug)]
pub struct Listener {
    files: ListenerFiles,
    loaded: Reloading<Loaded>,
}

struct Loaded {
    acceptor: Acceptor,
    expiry: Expiry,
}

impl Listener {
    /// Reads the files, which may block.
    ///
    /// # Errors
    /// When a file cannot be read, or certificate and key do not make a pair.
    pub fn load(files: ListenerFiles) -> Result<Self, Unusable> {
        let paths = vec![(Part::Certificate, files.certificate.clone()), (Part::Key, files.key.clone())];
        let make = files.clone();
        let loaded = Reloading::load(paths, Box::new(move |contents| make.load(contents)))?;
        Ok(Self { files, loaded })
    }

    /// What it is made from.
    #[must_use]
    pub fn files(&self) -> &ListenerFiles {
        &self.files
    }

    /// Until when the certificate in force is valid, for people.
    #[must_use]
    pub fn valid_until(&self) -> String {
        self.loaded.current().expiry.to_string()
    }

    /// The same in seconds since 1970.
    #[must_use]
    pub fn valid_until_seconds(&self) -> i64 {
        self.loaded.current().expiry.seconds()
    }

    /// Whether the certificate in force is no longer valid.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.loaded.current().expiry.is_over()
    }

    /// Makes the handshake on a connection just accepted. Has no time limit of its own.
    ///
    /// # Errors
    /// When the client does not speak TLS, or none that is accepted.
    pub async fn accept(&self, stream: Stream) -> Result<Stream> {
        let socket = stream.into_any().downcast::<Socket>();
        let socket = socket.map_err(|_| Error::explain(ErrorType::AcceptError, "no socket to speak TLS on"))?;
        let loaded = self.loaded.current();
        Ok(Box::new(loaded.acceptor.tls_handshake(*socket).await?))
    }
}

impl ListenerFiles {
    fn load(&self, contents: &Contents) -> Result<Loaded, Unusable> {
        let [certificate, key] = contents.texts.as_slice() else {
            return Err(Unusable::new(Part::Certificate, "expected a certificate and a key"));
        };
        let chain = certificates(Part::Certificate, &self.certificate, certificate)?;
        let key = private_key(&self.key, key)?;
        let unusable = |error: &dyn fmt::Display| {
            let (certificate, key) = (self.certificate.display(), self.key.display());
            let text = format!("{certificate} cannot be used ({error}), expected a certificate for the key {key}");
            Unusable::new(Part::Certificate, text)
        };
        let expiry = chain.first().map_or_else(|| Err("it is missing".to_owned()), Expiry::of);
        let expiry = expiry.map_err(|error| unusable(&error))?;
        let versions: &[_] = match self.min_version {
            MinVersion::Tls12 => &[&TLS13, &TLS12],
            MinVersion::Tls13 => &[&TLS13],
        };
        let config = ServerConfig::builder_with_provider(provider()).with_protocol_versions(versions);
        let config = config.and_then(|config| config.with_no_client_auth().with_single_cert(chain, key));
        let mut config = config.map_err(|error| unusable(&error))?;
        config.alpn_protocols = PROTOCOLS.map(Vec::from).into();
        Ok(Loaded { acceptor: Acceptor::from_server_config(Arc::new(config)), expiry })
    }
}

impl Watched for Listener {
    fn refresh(&self) -> Refresh {
        self.loaded.refresh()
    }

    fn is_refused(&self) -> bool {
        self.loaded.is_refused()
    }

    fn describe(&self) -> String {
        let expired = if self.is_expired() { "EXPIRED, " } else { "" };
        format!("listener: {} ({expired}valid until {})", self.files.certificate.display(), self.valid_until())
    }
}
