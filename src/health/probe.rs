//! One question to one server, on a connection of its own.

use std::net::SocketAddr;
use std::time::Duration;

use http::HeaderValue;
use http::header::AUTHORIZATION;
use pingora::connectors::ConnectorOptions;
use pingora::connectors::http::Connector;
use pingora::http::RequestHeader;
use pingora::lb::Backend;
use pingora::lb::health_check::{HealthCheck, HttpHealthCheck};
use pingora::{Error, ErrorType, Result};

use crate::config::{ActiveChecks, Timeouts};
use crate::tls;
use crate::upstream::Server;

/// An answer that comes piece by piece is good, but not without end: so many times the limit for one piece.
const PIECES: u32 = 20;

/// Connections are not kept; the pool must have some size.
const POOL_SIZE: usize = 1;

/// Why a probe was not good.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Whether no connection came about.
    pub(super) is_refused: bool,
    /// Whether it is our own trouble (no socket could be made), which says nothing of the server.
    pub(super) is_our_own: bool,
    /// In words, for the log.
    pub(super) what: String,
}

/// Asks one server.
pub(super) struct Probe {
    check: HttpHealthCheck,
    limit: Duration,
}

impl Probe {
    /// A probe that carries the server's key, unless the configured fields have one.
    ///
    /// # Errors
    /// When the question is no HTTP; what the configuration allows always is.
    pub(super) fn new(server: &Server, key: Option<&HeaderValue>, checks: &ActiveChecks) -> Result<Self> {
        let host = server.host_header().to_str().unwrap_or_default();
        // With the authorities of the system only where this server needs them (`tls`).
        let ca_file = tls::authorities_file(server.config().uses_system_authorities());
        let connector = Connector::new(Some(ConnectorOptions { ca_file, ..ConnectorOptions::new(POOL_SIZE) }));
        let mut check = HttpHealthCheck::new_custom(host, false, connector);
        let mut request = RequestHeader::build(checks.method.clone(), checks.path.as_bytes(), None)?;
        request.insert_header(http::header::HOST, host)?;
        request.insert_header(http::header::USER_AGENT, concat!("tidegate/", env!("CARGO_PKG_VERSION")))?;
        request.insert_header(http::header::CONNECTION, "close")?;
        if let Some(key) = server.authorization().or(key) {
            request.insert_header(AUTHORIZATION, key)?;
        }
        if checks.method == http::Method::POST {
            request.insert_header(http::header::CONTENT_LENGTH, "0")?;
        }
        for (name, value) in &checks.headers {
            request.insert_header(name, value)?;
        }
        check.req = request;
        let expected = checks.expected;
        check.validator = Some(Box::new(move |response| {
            let status = response.status.as_u16();
            if expected.is_met_by(status) {
                return Ok(());
            }
            Error::e_explain(ErrorType::CustomCode("unexpected status", status), format!("expected {expected}"))
        }));
        Ok(Self { check, limit: checks.timeout })
    }

    /// Asks once. The connection is made as those for requests are, over TLS if need be, with files as they are now.
    ///
    /// # Errors
    /// When the answer is not as it should be.
    pub(super) async fn ask(
        &mut self,
        server: &Server,
        address: SocketAddr,
        timeouts: &Timeouts,
    ) -> std::result::Result<(), Failure> {
        let mut peer = server.peer(address, &Timeouts { connect: self.limit, ..timeouts.clone() });
        peer.options.read_timeout = Some(self.limit);
        peer.options.write_timeout = Some(self.limit);
        self.check.peer_template = peer;
        let backend = Backend {
            addr: pingora::protocols::l4::socket::SocketAddr::Inet(address),
            weight: 1,
            ext: http::Extensions::new(),
        };
        match tokio::time::timeout(self.limit * PIECES, self.check.check(&backend)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                server.note_tls_failure(&error);
                Err(Failure::of(&error))
            }
            Err(_) => Err(Failure { is_refused: false, is_our_own: false, what: "did not end its answer".to_owned() }),
        }
    }
}

/// Whether an error says nothing of the server: no socket could be made. Pingora calls that internal.
pub(crate) fn is_our_own(error: &Error) -> bool {
    matches!(error.etype(), ErrorType::SocketError | ErrorType::BindError | ErrorType::InternalError)
}

impl Failure {
    pub(super) fn of(error: &Error) -> Self {
        let is_refused = matches!(error.etype(), ErrorType::ConnectRefused | ErrorType::ConnectNoRoute);
        let what = match error.etype() {
            ErrorType::CustomCode(_, status) => format!("answered {status}"),
            ErrorType::ConnectRefused => "refused the connection".to_owned(),
            ErrorType::ConnectTimedout => "took too long to accept a connection".to_owned(),
            ErrorType::TLSHandshakeTimedout => "took too long for the TLS handshake".to_owned(),
            ErrorType::ReadTimedout => "took too long to answer".to_owned(),
            other => format!("failed with {}", other.as_str()),
        };
        Self { is_refused, is_our_own: is_our_own(error), what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_connections_are_told_from_our_own_trouble_and_from_bad_answers() {
        for (etype, refused, own, what) in [
            (ErrorType::ConnectRefused, true, false, "refused the connection"),
            (ErrorType::InternalError, false, true, "failed with InternalError"),
            (ErrorType::ReadTimedout, false, false, "took too long to answer"),
            (ErrorType::CustomCode("unexpected status", 401), false, false, "answered 401"),
        ] {
            let expected = Failure { is_refused: refused, is_our_own: own, what: what.to_owned() };
            assert_eq!(Failure::of(&Error::new(etype)), expected);
        }
    }
}
