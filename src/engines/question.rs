//! One question to one server, on a connection of its own.

use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONNECTION, HOST, USER_AGENT};
use pingora::Error;
use pingora::connectors::ConnectorOptions;
use pingora::connectors::http::Connector;
use pingora::http::RequestHeader;

use crate::config::{Config, Timeouts};
use crate::tls;
use crate::upstream::Server;

/// No answer that is wanted is longer, in bytes.
const LONGEST_ANSWER: usize = 4 << 20;

/// Connections are not kept; the pool must have some size.
const POOL_SIZE: usize = 1;

/// Why there is no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("there is no answer: {0}")]
    NoAnswer(#[from] Box<Error>),
    #[error("the answer has status {0}")]
    Status(u16),
    #[error("the answer takes longer than {0:?}")]
    TooSlow(Duration),
    #[error("the answer is longer than {LONGEST_ANSWER} bytes")]
    TooLong,
    #[error("the answer has no metrics of vLLM in it, or absurd ones")]
    NotMetrics,
    #[error("the answer is no list of models: {0}")]
    NotModels(#[from] serde_json::Error),
}

/// Asks one server.
pub(super) struct Asker {
    connector: Connector,
}

impl Asker {
    pub(super) fn new(server: &Server) -> Self {
        // With the authorities of the system only where this server needs them (`tls`).
        let ca_file = tls::authorities_file(server.config().uses_system_authorities());
        let options = ConnectorOptions { ca_file, ..ConnectorOptions::new(POOL_SIZE) };
        Self { connector: Connector::new(Some(options)) }
    }

    /// Asks for a page, whose pieces are given to `take` as they come. With the server's key, as health probes have it.
    pub(super) async fn get(
        &self,
        server: &Server,
        path: &str,
        config: &Config,
        limit: Duration,
        take: impl FnMut(&[u8]) + Send,
    ) -> Result<(), Failure> {
        let asked = tokio::time::timeout(limit, self.exchange(server, path, config, limit, take)).await;
        asked.unwrap_or(Err(Failure::TooSlow(limit)))
    }

    async fn exchange(
        &self,
        server: &Server,
        path: &str,
        config: &Config,
        limit: Duration,
        mut take: impl FnMut(&[u8]) + Send,
    ) -> Result<(), Failure> {
        let request = request(server, path, config)?;
        let timeouts = Timeouts { connect: limit, ..config.timeouts.clone() };
        let peer = server.peer(server.address(limit).await?, &timeouts);
        let connected = self.connector.get_http_session(&peer).await;
        let (mut session, _reused) = connected.inspect_err(|error| server.note_tls_failure(error))?;
        session.write_request_header(Box::new(request)).await?;
        session.finish_request_body().await?;
        session.read_response_header().await?;
        let status = session.response_header().map_or(0, |header| header.status.as_u16());
        if status != 200 {
            return Err(Failure::Status(status));
        }
        let mut bytes = 0;
        while let Some(piece) = session.read_response_body().await? {
            bytes += piece.len();
            if bytes > LONGEST_ANSWER {
                return Err(Failure::TooLong);
            }
            take(&piece);
        }
        session.shutdown().await;
        Ok(())
    }
}

fn request(server: &Server, path: &str, config: &Config) -> pingora::Result<RequestHeader> {
    let mut request = RequestHeader::build(http::Method::GET, path.as_bytes(), None)?;
    request.insert_header(HOST, server.host_header())?;
    request.insert_header(USER_AGENT, concat!("tidegate/", env!("CARGO_PKG_VERSION")))?;
    request.insert_header(ACCEPT, "*/*")?;
    request.insert_header(CONNECTION, "close")?;
    if let Some(key) = server.authorization().or(config.upstream_authorization.as_ref()) {
        request.insert_header(AUTHORIZATION, key)?;
    }
    Ok(request)
}
