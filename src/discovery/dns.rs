//! A name that resolves to many addresses, such as a headless service of Kubernetes.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;

use async_trait::async_trait;
use pingora::lb::Backend;
use pingora::lb::discovery::ServiceDiscovery;
use pingora::{Error, ErrorType, Result};

/// Resolves names.
#[async_trait]
pub trait Resolve {
    /// All addresses of a name, with a port.
    ///
    /// # Errors
    /// When there is no answer.
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// The resolver of the system.
#[derive(Debug, Clone, Copy)]
pub struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }
}

/// All addresses of a name.
#[derive(Debug)]
pub struct Dns<R> {
    resolver: R,
    host: String,
    port: u16,
}

impl<R> Dns<R> {
    /// The addresses of a name, with a port.
    pub fn new(resolver: R, host: &str, port: u16) -> Self {
        Self { resolver, host: host.to_owned(), port }
    }
}

#[async_trait]
impl<R: Resolve + Send + Sync> ServiceDiscovery for Dns<R> {
    /// An answer without addresses is an error.
    async fn discover(&self) -> Result<(BTreeSet<Backend>, HashMap<u64, bool>)> {
        let resolved = self.resolver.resolve(&self.host, self.port).await;
        let addresses = resolved.map_err(|error| {
            Error::explain(ErrorType::ConnectError, format!("the name cannot be resolved ({error})"))
        })?;
        if addresses.is_empty() {
            return Error::e_explain(ErrorType::ConnectError, "the name has no address");
        }
        super::file::backends(addresses)
    }
}
