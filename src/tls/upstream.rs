//! How connections to servers are secured: whom Tidegate trusts, and who it is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pingora::protocols::tls::CaType;
use pingora::upstreams::peer::{HttpPeer, Scheme};
use pingora::utils::tls::{CertKey, WrappedX509};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::files::{Contents, Part, Reloading, Unusable, certificates, private_key};
use super::provider;
use super::watch::{Refresh, Watched};

/// A certificate that signs nothing (its key was never kept). rustls cannot be set up without an authority to trust,
/// not even to trust everyone.
const NOBODY: &[u8] = include_bytes!("nobody.pem");

/// What connections to servers are made with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct UpstreamFiles {
    /// Authorities that may have signed the server's certificate, in PEM. `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// Our certificate with its chain, and its key, both in PEM, for servers that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Whether any certificate is taken from the server.
    pub insecure: bool,
}

/// The same, read and ready.
#[derive(Debug)]
pub struct Upstream {
    files: UpstreamFiles,
    loaded: Reloading<Loaded>,
}

struct Loaded {
    ca: Option<Arc<CaType>>,
    identity: Option<Arc<CertKey>>,
    /// Connections that were made with other files are not used again.
    group_key: u64,
}

impl Upstream {
    /// Reads the files, which may block.
    ///
    /// # Errors
    /// When a file cannot be used, or the system's authorities are needed and cannot be had.
    pub fn load(files: UpstreamFiles) -> Result<Self, Unusable> {
        if files.uses_system_authorities() {
            try_system_authorities()?;
        }
        let mut paths = Vec::new();
        paths.extend(files.ca.clone().map(|ca| (Part::Ca, ca)));
        if let Some((certificate, key)) = files.identity.clone() {
            paths.extend([(Part::Certificate, certificate), (Part::Key, key)]);
        }
        let make = files.clone();
        let loaded = Reloading::load(paths, Box::new(move |contents| make.load(contents)))?;
        Ok(Self { files, loaded })
    }

    /// What it is made from.
    #[must_use]
    pub fn files(&self) -> &UpstreamFiles {
        &self.files
    }

    /// Makes connections to a peer go over TLS. The server must have the name, unless anyone is trusted.
    pub fn secure(&self, peer: &mut HttpPeer, name: &str) {
        let loaded = self.loaded.current();
        peer.scheme = Scheme::HTTPS;
        name.clone_into(&mut peer.sni);
        peer.client_cert_key.clone_from(&loaded.identity);
        peer.group_key = loaded.group_key;
        peer.options.ca.clone_from(&loaded.ca);
        peer.options.verify_cert = !self.files.insecure;
        peer.options.verify_hostname = !self.files.insecure;
    }
}

impl UpstreamFiles {
    /// Whether the authorities of the system are trusted.
    #[must_use]
    pub fn uses_system_authorities(&self) -> bool {
        self.ca.is_none() && !self.insecure
    }

    fn load(&self, contents: &Contents) -> Result<Loaded, Unusable> {
        let mut texts = contents.texts.iter();
        let mut next = || texts.next().map(Vec::as_slice).unwrap_or_default();
        let mut roots = RootCertStore::empty();
        let authorities = match &self.ca {
            Some(path) => certificates(Part::Ca, path, next())?,
            None if self.insecure => certificates(Part::Ca, Path::new("nobody.pem"), NOBODY)?,
            None => Vec::new(),
        };
        let path = self.ca.clone().unwrap_or_default();
        for authority in &authorities {
            roots.add(authority.clone()).map_err(|error| {
                let text = format!("{} holds a certificate that cannot be trusted ({error})", path.display());
                Unusable::new(Part::Ca, format!("{text}, expected certificates of authorities"))
            })?;
        }
        let ca = wrap(Part::Ca, &path, &authorities)?;
        let identity = match &self.identity {
            Some((certificate, key)) => Some(identity(certificate, key, next(), next(), roots)?),
            None => None,
        };
        let ca = (!ca.is_empty()).then(|| ca.into());
        Ok(Loaded { ca, identity: identity.map(Arc::new), group_key: contents.fingerprint })
    }
}

impl Watched for Upstream {
    fn refresh(&self) -> Refresh {
        self.loaded.refresh()
    }

    fn is_refused(&self) -> bool {
        self.loaded.is_refused()
    }

    fn describe(&self) -> String {
        let paths = self.files.identity.iter().flat_map(|(certificate, key)| [certificate, key]);
        let paths: Vec<_> = self.files.ca.iter().chain(paths).map(|path| path.display().to_string()).collect();
        format!("connections to servers: {}", paths.join(", "))
    }
}

/// Tries what Pingora will do with our certificate for each connection, where it would panic.
fn identity(
    certificate: &Path,
    key: &Path,
    chain: &[u8],
    secret: &[u8],
    roots: RootCertStore,
) -> Result<CertKey, Unusable> {
    let chain = certificates(Part::Certificate, certificate, chain)?;
    let secret = private_key(key, secret)?;
    wrap(Part::Certificate, certificate, &chain)?;
    let unusable = |error: &dyn std::fmt::Display| {
        let (certificate, key) = (certificate.display(), key.display());
        let text = format!("{certificate} cannot be used ({error}), expected a certificate for the key {key}");
        Unusable::new(Part::Certificate, text)
    };
    let guessed = PrivateKeyDer::try_from(secret.secret_der().to_vec()).map_err(|error| unusable(&error))?;
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let config = config.map(|config| config.with_root_certificates(roots));
    config.and_then(|config| config.with_client_auth_cert(chain.clone(), guessed)).map_err(|error| unusable(&error))?;
    let chain = chain.iter().map(|certificate| certificate.to_vec()).collect();
    Ok(CertKey::new(chain, secret.secret_der().to_vec()))
}

fn wrap(part: Part, path: &Path, chain: &[CertificateDer<'_>]) -> Result<Vec<WrappedX509>, Unusable> {
    let wrap = |certificate: &CertificateDer<'_>| {
        let parsed =
            WrappedX509::try_new(certificate.to_vec(), |raw| X509Certificate::from_der(raw).map(|found| found.1));
        parsed.map_err(|error| {
            let text = format!("{} holds a broken certificate ({error}), expected certificates in PEM", path.display());
            Unusable::new(part, text)
        })
    };
    chain.iter().map(wrap).collect()
}

/// Pingora reads the system's store when it starts, and panics when it is broken.
fn try_system_authorities() -> Result<(), Unusable> {
    let refused = |why: String| {
        let expected = "expected a file of authorities here, or the package ca-certificates and SSL_CERT_FILE unset";
        Unusable::new(Part::Ca, format!("the system's certificate authorities {why}, {expected}"))
    };
    let found =
        rustls_native_certs::load_native_certs().map_err(|error| refused(format!("cannot be read ({error})")))?;
    let mut roots = RootCertStore::empty();
    for authority in found {
        roots.add(authority).map_err(|error| refused(format!("cannot be used ({error})")))?;
    }
    if roots.is_empty() { Err(refused("are not there".to_owned())) } else { Ok(()) }
}

/// # Errors
/// When no certificate can have this name.
pub fn check_name(name: &str) -> Result<(), Unusable> {
    let expected = || Unusable::new(Part::ServerName, format!("found {name}, expected a DNS name or an IP address"));
    ServerName::try_from(name).map(drop).map_err(|_| expected())
}
