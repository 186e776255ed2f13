//! Every way in which a request is not let in.

use http::StatusCode;

/// Why a request may not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    /// It came without an API key.
    NoKey,
    /// Its API key is not one of the configured ones.
    WrongKey,
    /// Nobody may use the path.
    ClosedPath,
    /// A browser asked for a page whose origin is not allowed.
    Origin,
    /// The key's requests for this minute are used up.
    RequestRate {
        /// When it is worth trying again.
        retry_after_seconds: u64,
    },
    /// The key's prompt tokens for this minute are used up.
    TokenRate {
        /// When it is worth trying again.
        retry_after_seconds: u64,
    },
    /// As many requests with this key run as may.
    KeyConcurrency {
        /// How many that is.
        limit: usize,
    },
    /// As many requests from this address run as may.
    ClientConcurrency {
        /// How many that is.
        limit: usize,
    },
    /// The request target is too long.
    UriTooLong {
        /// Longest one, in bytes.
        limit_bytes: usize,
    },
    /// The header is too long as a whole.
    HeaderTooLarge {
        /// Longest one, in bytes.
        limit_bytes: usize,
    },
    /// The header has too many fields.
    TooManyFields {
        /// Most that are accepted.
        limit: usize,
    },
}

impl Denial {
    /// Status, reason (header, metric label), `type` in the body.
    #[must_use]
    pub const fn row(self) -> (StatusCode, &'static str, &'static str) {
        const INVALID: &str = "invalid_request_error";
        match self {
            Self::NoKey | Self::WrongKey => (StatusCode::UNAUTHORIZED, "invalid_api_key", INVALID),
            Self::ClosedPath => (StatusCode::FORBIDDEN, "closed_path", INVALID),
            Self::Origin => (StatusCode::FORBIDDEN, "origin_not_allowed", INVALID),
            Self::RequestRate { .. } => (StatusCode::TOO_MANY_REQUESTS, "key_request_rate", "requests"),
            Self::TokenRate { .. } => (StatusCode::TOO_MANY_REQUESTS, "key_token_rate", "tokens"),
            Self::KeyConcurrency { .. } => (StatusCode::TOO_MANY_REQUESTS, "key_concurrency", "requests"),
            Self::ClientConcurrency { .. } => (StatusCode::TOO_MANY_REQUESTS, "client_concurrency", "requests"),
            Self::UriTooLong { .. } => (StatusCode::URI_TOO_LONG, "uri_too_long", INVALID),
            Self::HeaderTooLarge { .. } => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "header_too_large", INVALID),
            Self::TooManyFields { .. } => {
                (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too_many_header_fields", INVALID)
            }
        }
    }

    /// The reason's name: header value and metric label.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        self.row().1
    }

    /// `code` in the body: what OpenAI has for it, else the reason.
    #[must_use]
    pub fn code(self) -> &'static str {
        let (status, reason, _) = self.row();
        if status == StatusCode::TOO_MANY_REQUESTS { "rate_limit_exceeded" } else { reason }
    }

    /// For people. Holds nothing that the client sent.
    #[must_use]
    pub fn message(self) -> String {
        match self {
            Self::NoKey => {
                "You did not provide an API key. Send it as \"Authorization: Bearer KEY\" or as \"x-api-key: KEY\"."
                    .into()
            }
            Self::WrongKey => "The API key that you provided is not known to this gateway.".into(),
            Self::ClosedPath => "This path is for the administration of the servers and closed to clients.".into(),
            Self::Origin => "Pages of this origin may not use this gateway.".into(),
            Self::RequestRate { retry_after_seconds } => {
                format!("The requests per minute of this API key are used up. Try again in {retry_after_seconds} s.")
            }
            Self::TokenRate { retry_after_seconds } => {
                format!(
                    "The prompt tokens per minute of this API key are used up. Try again in {retry_after_seconds} s."
                )
            }
            Self::KeyConcurrency { limit } => {
                format!("{limit} requests with this API key are running, more may not. Try again when one is over.")
            }
            Self::ClientConcurrency { limit } => {
                format!("{limit} requests from this address are running, more may not. Try again when one is over.")
            }
            Self::UriTooLong { limit_bytes } => {
                format!("The request target is longer than the {limit_bytes} bytes that this gateway accepts.")
            }
            Self::HeaderTooLarge { limit_bytes } => {
                format!("The request header is larger than the {limit_bytes} bytes that this gateway accepts.")
            }
            Self::TooManyFields { limit } => {
                format!("The request header has more than the {limit} fields that this gateway accepts.")
            }
        }
    }

    /// A field that belongs to the answer.
    #[must_use]
    pub fn field(self) -> Option<(http::HeaderName, String)> {
        use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
        match self {
            Self::NoKey | Self::WrongKey => Some((WWW_AUTHENTICATE, "Bearer".into())),
            Self::RequestRate { retry_after_seconds } | Self::TokenRate { retry_after_seconds } => {
                Some((RETRY_AFTER, retry_after_seconds.to_string()))
            }
            // Nobody knows when the running ones are over: soon, most often.
            Self::KeyConcurrency { .. } | Self::ClientConcurrency { .. } => Some((RETRY_AFTER, "1".into())),
            _ => None,
        }
    }
}
