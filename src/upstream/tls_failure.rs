//! What went wrong with TLS towards a server, for the log.

use std::time::Duration;

use pingora::{Error, ErrorType};
use tokio::time::Instant;

/// A failure that goes on is said again after this long.
const SAY_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The failure of one server that was logged last.
#[derive(Debug, Default)]
pub(super) struct LastFailure(Option<(String, Instant)>);

impl LastFailure {
    /// Whether this is to be logged: another failure than the last, or long after it.
    pub(super) fn is_news(&mut self, reason: &str) -> bool {
        let is_news = !self.0.as_ref().is_some_and(|(last, at)| last == reason && at.elapsed() < SAY_AGAIN_AFTER);
        if is_news {
            self.0 = Some((reason.to_owned(), Instant::now()));
        }
        is_news
    }
}

/// Why TLS failed; `None` when it is not TLS that failed.
pub(super) fn reason(error: &Error) -> Option<String> {
    let cause = error.root_cause();
    // rustls hands its errors through the socket's.
    let wrapped = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    if let Some(cause) = wrapped.and_then(|cause| cause.downcast_ref::<rustls::Error>()) {
        return Some(cause.to_string());
    }
    match error.etype() {
        ErrorType::TLSHandshakeFailure | ErrorType::InvalidCert => Some(handshake_failure(&error.to_string())),
        _ => None,
    }
}

/// Of a handshake Pingora keeps what rustls said only as text, between more text. The address of our side, which is
/// another each time, is left out in any case.
fn handshake_failure(text: &str) -> String {
    let text = text.split(" cause: local address").next().unwrap_or(text);
    let said = text.rsplit_once(", SNI: ").map_or(text, |(before, _)| before);
    said.rsplit_once(" cause: ").map_or(said, |(_, said)| said).to_owned()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_said_once_a_minute_and_another_at_once() {
        let mut last = LastFailure::default();
        assert!(last.is_news("a") && !last.is_news("a") && last.is_news("b"));
        tokio::time::advance(SAY_AGAIN_AFTER).await;
        assert!(last.is_news("b"));
    }

    #[test]
    fn what_rustls_says_is_found_below_any_error() {
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
        let alert = io::Error::new(io::ErrorKind::InvalidData, alert);
        let error = Error::because(ErrorType::ReadError, "reading", alert);
        assert_eq!(reason(&error).unwrap(), "received fatal alert: CertificateRequired".to_owned());
    }

    #[test]
    fn what_rustls_said_is_found_in_the_text_of_a_handshake() {
        let text = "Upstream TLSHandshakeFailure context: TLS connect() failed:  TLSHandshakeFailure context: tls connect \
                    error cause: invalid peer certificate: UnknownIssuer, SNI: a.test cause: local address 127.0.0.1:1";
        assert_eq!(handshake_failure(text), "invalid peer certificate: UnknownIssuer");
        assert_eq!(handshake_failure("another text cause: local address 127.0.0.1:1"), "another text");
    }

    #[test]
    fn what_has_nothing_to_do_with_tls_has_no_reason() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(reason(&Error::because(ErrorType::ConnectRefused, "connecting", refused)), None);
    }
}
