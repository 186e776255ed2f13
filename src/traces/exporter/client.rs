//! The connection to the collector.

use std::io::Read;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use parking_lot::Mutex;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// An answer of a collector that is longer is cut off here: a few words are all that it has to say.
const LONGEST_ANSWER: u64 = 64 << 10;

/// What was wrong with the last exchange that failed: the library does not pass it on.
pub(super) type LastError = Arc<Mutex<Option<String>>>;

/// A client that blocks: it is for a thread of its own.
#[derive(Debug)]
pub(super) struct Client {
    /// Made there, because it reads the system's certificate authorities.
    agent: OnceLock<Agent>,
    timeout: Duration,
    last_error: LastError,
}

impl Client {
    pub(super) fn new(timeout: Duration, last_error: &LastError) -> Self {
        Self { agent: OnceLock::new(), timeout, last_error: Arc::clone(last_error) }
    }

    fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let has_tls = request.uri().scheme_str() == Some("https");
        let agent = self.agent.get_or_init(|| agent(self.timeout, has_tls));
        let answer = agent.run(request.map(|body| body.to_vec()))?;
        let (parts, body) = answer.into_parts();
        let mut bytes = Vec::new();
        body.into_reader().take(LONGEST_ANSWER).read_to_end(&mut bytes)?;
        Ok(Response::from_parts(parts, bytes.into()))
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.exchange(request);
        *self.last_error.lock() = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answers {}", answer.status())),
            Err(error) => Some(error.to_string()),
        };
        answer
    }
}

fn agent(timeout: Duration, has_tls: bool) -> Agent {
    let mut config = Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        // A redirect would take the keys in the header elsewhere.
        .max_redirects(0)
        .proxy(None);
    if has_tls {
        let authorities = rustls_native_certs::load_native_certs().unwrap_or_else(|error| {
            log::error!(
                "the certificate authorities of the system cannot be read for the collector of traces: {error}"
            );
            Vec::new()
        });
        let authorities = authorities.iter().map(|authority| Certificate::from_der(authority).to_owned()).collect();
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(authorities)))
            .unversioned_rustls_crypto_provider(crate::tls::provider());
        config = config.tls_config(tls.build());
    }
    config.build().into()
}
