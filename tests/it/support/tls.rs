//! Certificates, and relays that put TLS around what the other helpers send in plain text.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::Loopback;

/// A certificate authority, and the files of what it has signed.
pub(crate) struct Authority {
    directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// A certificate and its key, in files.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Pair {
    /// As the two keys of a YAML mapping.
    pub(crate) fn yaml(&self) -> String {
        format!("certificate: {}, key: {}", self.certificate.display(), self.key.display())
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(&self.certificate).expect("the file was written by an authority")
    }

    fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_file(&self.key).expect("the file was written by an authority")
    }
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no name cannot be wrong");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Authorities are told apart by their names.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("authority {}", NEXT.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("keys can be made");
        let certificate = params.self_signed(&key).expect("a key can sign");
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        std::fs::write(directory.path().join("ca.pem"), certificate.pem()).expect("the directory is writable");
        Self { directory, issuer: Issuer::new(params, key), certificate: certificate.der().clone() }
    }

    /// The file with its certificate.
    pub(crate) fn file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// Signs a certificate for some names or addresses; its files are called `file`, and replaced when they exist.
    pub(crate) fn issue(&self, file: &str, names: &[&str]) -> Pair {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).expect("the names are good");
        let key = KeyPair::generate().expect("keys can be made");
        let certificate = params.signed_by(&key, &self.issuer).expect("an authority can sign");
        let path = |end| self.directory.path().join(format!("{file}.{end}"));
        let pair = Pair { certificate: path("crt"), key: path("key") };
        std::fs::write(&pair.key, key.serialize_pem()).expect("the directory is writable");
        std::fs::write(&pair.certificate, certificate.pem()).expect("the directory is writable");
        pair
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("an authority can be trusted");
        Arc::new(roots)
    }

    /// A client that trusts this authority, and offers these protocols.
    pub(crate) fn client(&self, protocols: &[&str]) -> ClientConfig {
        self.client_of_versions(protocols, &[&TLS13, &TLS12])
    }

    pub(crate) fn client_of_versions(
        &self,
        protocols: &[&str],
        versions: &[&'static SupportedProtocolVersion],
    ) -> ClientConfig {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_protocol_versions(versions).expect("the provider knows them");
        let mut config = config.with_root_certificates(self.roots()).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        config
    }
}

/// A server that shows this certificate, and demands one that `clients` has signed.
pub(crate) fn tls_server(pair: &Pair, clients: Option<&Authority>) -> ServerConfig {
    let provider = Arc::new(default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let config = config.with_safe_default_protocol_versions().expect("the provider knows them");
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(clients) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(clients.roots(), provider).build();
            config.with_client_cert_verifier(verifier.expect("there is an authority"))
        }
    };
    config.with_single_cert(vec![pair.der()], pair.key_der()).expect("certificate and key are a pair")
}

/// Makes a TLS connection.
pub(crate) async fn tls_connect(to: SocketAddr, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::IpAddress(to.ip().into()), stream).await
}

/// Accepts connections and relays them to somewhere else, until it is dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    running: AbortHandle,
}

impl Relay {
    /// Accepts plain text and speaks TLS with `to`, which is known by its IP address.
    pub(crate) async fn into_tls(to: SocketAddr, config: ClientConfig) -> Self {
        Self::start(Loopback::new(), move |plain| {
            let config = config.clone();
            async move {
                let Ok(secured) = tls_connect(to, config).await else { return };
                relay(plain, secured).await;
            }
        })
        .await
    }

    /// Accepts TLS and speaks plain text with `to`.
    pub(crate) async fn from_tls(config: ServerConfig, to: SocketAddr) -> Self {
        Self::from_tls_at(Loopback::new(), config, to).await
    }

    /// The same at an address that is known beforehand, and may stand in a certificate.
    pub(crate) async fn from_tls_at(at: Loopback, config: ServerConfig, to: SocketAddr) -> Self {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Self::start(at, move |stream| {
            let acceptor = acceptor.clone();
            async move {
                let secured = match acceptor.accept(stream).into_fallible().await {
                    Ok(secured) => secured,
                    // What still comes is read: a reset could overtake the alert.
                    Err((_, mut stream)) => {
                        stream.shutdown().await.ok();
                        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.ok();
                        return;
                    }
                };
                let plain = TcpStream::connect(to).await.expect("the address accepts connections");
                plain.set_nodelay(true).expect("a connected socket takes the option");
                relay(secured, plain).await;
            }
        })
        .await
    }

    async fn start<F>(at: Loopback, each: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind((at.ip(), 0)).await.expect("nobody else uses the address");
        let address = listener.local_addr().expect("a bound socket has an address");
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).expect("a connected socket takes the option");
                tokio::spawn(each(stream));
            }
        });
        Self { address, running: accepting.abort_handle() }
    }

    /// As a server that Tidegate reaches over TLS, with keys of its `tls` section.
    pub(crate) fn server(&self, tls: &str) -> String {
        format!("{{ address: \"https://{}\", tls: {{ {tls} }} }}", self.address)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// Relays both ways. When one side leaves, so does the other.
async fn relay(a: impl AsyncRead + AsyncWrite + Unpin, b: impl AsyncRead + AsyncWrite + Unpin) {
    let (mut a, mut b) = (a, b);
    // How they leave is what the tests look at.
    drop(tokio::io::copy_bidirectional(&mut a, &mut b).await);
}
