//! Every way in which Tidegate itself says no: one table of reasons.

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderName, HeaderValue, StatusCode};
use pingora::Result;
use pingora::http::ResponseHeader;

use crate::access::Denial;
use crate::balance::Unavailable;

/// Tells Tidegate's own errors from a server's: holds the reason.
pub const ERROR_HEADER: HeaderName = HeaderName::from_static("x-tidegate-error");

/// Why a request got an error from Tidegate itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reject {
    /// It is no header, or one that cannot be passed on.
    BadHeader,
    /// There is not exactly one `Host`.
    BadHost,
    /// The header can be read in two ways.
    BadFraming,
    /// It asks for a tunnel (`CONNECT`).
    Tunnel,
    /// It is not allowed.
    Denied(Denial),
    /// The body is larger than `max_body_bytes`.
    BodyTooLarge { limit_bytes: usize },
    /// The body did not come in time.
    BodyTimeout {
        /// The key of the limit.
        limit: &'static str,
    },
    /// The body's framing is broken.
    BadBody,
    /// No server can be given the request, and it may not wait (any longer).
    Unavailable {
        /// Why.
        why: Unavailable,
        /// When it may be worth coming back.
        retry_after_seconds: u64,
    },
    /// No attempt reached a server.
    NotReachable,
    /// A server closed or broke the connection before its answer began.
    ServerBroke,
    /// A server's answer cannot be understood or relayed.
    BadAnswer,
    /// A server did not begin its answer in time.
    FirstByteTimeout,
    /// The request did not finish in time.
    TotalTimeout,
    /// Something that should not happen.
    Internal,
}

impl Reject {
    /// Status, reason (header, metric label and, but for a [`Denial`], `code` in the body), `type` in the body.
    const fn row(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::BadHeader => (StatusCode::BAD_REQUEST, "bad_header", "invalid_request_error"),
            Self::BadHost => (StatusCode::BAD_REQUEST, "bad_host", "invalid_request_error"),
            Self::BadFraming => (StatusCode::BAD_REQUEST, "bad_framing", "invalid_request_error"),
            Self::Tunnel => (StatusCode::METHOD_NOT_ALLOWED, "no_tunnels", "invalid_request_error"),
            Self::Denied(denial) => denial.row(),
            Self::BodyTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "invalid_request_error"),
            Self::BodyTimeout { .. } => (StatusCode::REQUEST_TIMEOUT, "body_timeout", "invalid_request_error"),
            Self::BadBody => (StatusCode::BAD_REQUEST, "bad_body", "invalid_request_error"),
            Self::Unavailable { why, .. } => match why {
                Unavailable::NoneLive => (StatusCode::SERVICE_UNAVAILABLE, "no_live_server", "server_error"),
                Unavailable::NoneFree => (StatusCode::SERVICE_UNAVAILABLE, "no_free_server", "server_error"),
                Unavailable::TooManyWait => (StatusCode::SERVICE_UNAVAILABLE, "queue_full", "server_error"),
                Unavailable::TooLong { .. } => {
                    (StatusCode::BAD_REQUEST, "context_length_exceeded", "invalid_request_error")
                }
            },
            Self::NotReachable => (StatusCode::BAD_GATEWAY, "not_reachable", "server_error"),
            Self::ServerBroke => (StatusCode::BAD_GATEWAY, "server_broke", "server_error"),
            Self::BadAnswer => (StatusCode::BAD_GATEWAY, "bad_answer", "server_error"),
            Self::FirstByteTimeout => (StatusCode::GATEWAY_TIMEOUT, "first_byte_timeout", "server_error"),
            Self::TotalTimeout => (StatusCode::GATEWAY_TIMEOUT, "total_timeout", "server_error"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "server_error"),
        }
    }

    pub(super) const fn status(self) -> StatusCode {
        self.row().0
    }

    /// The reason's name: header value and metric label.
    pub(super) const fn reason(self) -> &'static str {
        self.row().1
    }

    fn message(self) -> String {
        match self {
            Self::BadHeader => "The request header is malformed.".into(),
            Self::BadHost => "A request needs exactly one Host header.".into(),
            Self::BadFraming => "The request header does not say clearly where the request ends.".into(),
            Self::Tunnel => "This gateway makes no tunnels.".into(),
            Self::Denied(denial) => denial.message(),
            Self::BodyTooLarge { limit_bytes } => {
                format!("The request body is larger than the {limit_bytes} bytes that this gateway accepts.")
            }
            Self::BodyTimeout { .. } => "The request body did not arrive in time.".into(),
            Self::BadBody => "The request body is not framed as its headers say.".into(),
            Self::Unavailable { why, .. } => match why {
                Unavailable::NoneLive => "No model server is in service. Try again later.".into(),
                Unavailable::NoneFree => "All model servers are busy. Try again later.".into(),
                Unavailable::TooManyWait => "Too many requests are waiting for a model server. Try again later.".into(),
                // As vLLM says it: clients look for these words.
                Unavailable::TooLong { needed_tokens, limit_tokens } => format!(
                    "This model's maximum context length is {limit_tokens} tokens. However, your request needs about \
                     {needed_tokens} tokens (estimated by the gateway, with its answer). Please reduce the length of \
                     the input prompt or the number of requested output tokens."
                ),
            },
            Self::NotReachable => "No model server could be reached. Try again later.".into(),
            Self::ServerBroke => "The model server closed the connection before it answered. Try again later.".into(),
            Self::BadAnswer => "The model server's answer could not be understood.".into(),
            Self::FirstByteTimeout => "The model server did not begin its answer in time.".into(),
            Self::TotalTimeout => "The request did not finish within the time that this gateway allows.".into(),
            Self::Internal => "The gateway failed to handle this request.".into(),
        }
    }

    /// Header and body of the answer, shaped as OpenAI's errors are.
    ///
    /// # Errors
    /// Never in practice: all header values are fixed or numbers.
    pub(super) fn response(self, request_id: Option<&HeaderValue>) -> Result<(ResponseHeader, Bytes)> {
        let (status, reason, kind) = self.row();
        let denial = if let Self::Denied(denial) = self { Some(denial) } else { None };
        let code = denial.map_or(reason, Denial::code);
        let error = serde_json::json!({ "message": self.message(), "type": kind, "param": null, "code": code });
        json_response(status, &serde_json::json!({ "error": error }), request_id).and_then(|(mut header, body)| {
            header.insert_header(ERROR_HEADER, reason)?;
            if let Some((name, value)) = denial.and_then(Denial::field) {
                header.insert_header(name, value)?;
            }
            if let Self::Unavailable { retry_after_seconds, .. } = self
                && status == StatusCode::SERVICE_UNAVAILABLE
            {
                header.insert_header(RETRY_AFTER, retry_after_seconds)?;
            }
            Ok((header, body))
        })
    }
}

/// Header and body of an answer that Tidegate makes itself.
pub(super) fn json_response(
    status: StatusCode,
    json: &serde_json::Value,
    request_id: Option<&HeaderValue>,
) -> Result<(ResponseHeader, Bytes)> {
    let body = Bytes::from(json.to_string());
    let mut header = ResponseHeader::build(status, Some(6))?;
    header.insert_header(http::header::CONTENT_TYPE, "application/json")?;
    header.insert_header(http::header::CONTENT_LENGTH, body.len())?;
    if let Some(request_id) = request_id {
        header.insert_header(&super::request::REQUEST_ID, request_id)?;
    }
    Ok((header, body))
}
