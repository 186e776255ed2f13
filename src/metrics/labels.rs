//! Label values. Closed lists: a value that is not here or in the configuration cannot become a label.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;

use crate::prompt::Endpoint;

/// How a request ended, seen from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The whole response was relayed, whatever its status.
    Complete,
    /// The client left before the end.
    ClientGone,
    /// The server's response broke off after the client had been sent a part of it.
    UpstreamBroken,
    /// Tidegate answered itself with an error.
    Rejected,
}

impl Outcome {
    /// All outcomes, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Complete, Self::ClientGone, Self::UpstreamBroken, Self::Rejected];

    /// The name in metrics, status and logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::ClientGone => "client_gone",
            Self::UpstreamBroken => "upstream_broken",
            Self::Rejected => "rejected",
        }
    }
}

/// How one attempt on one server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptResult {
    /// The server's response was relayed to its end, whatever its status.
    Answered,
    /// No connection came about.
    ConnectFailed,
    /// The connection broke, or what came over it was no HTTP.
    Broken,
    /// The server answered with a 5xx that sent the request to another server.
    Refused5xx,
    /// The server said that the request is longer than it takes, which sent it to another server.
    TooLong,
    /// The server took longer than a time limit.
    TimedOut,
    /// The client left while the server was at work.
    ClientGone,
}

impl AttemptResult {
    /// All results, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Answered,
        Self::ConnectFailed,
        Self::Broken,
        Self::Refused5xx,
        Self::TooLong,
        Self::TimedOut,
        Self::ClientGone,
    ];

    /// The name in metrics and logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::ConnectFailed => "connect_failed",
            Self::Broken => "broken",
            Self::Refused5xx => "refused_5xx",
            Self::TooLong => "too_long",
            Self::TimedOut => "timed_out",
            Self::ClientGone => "client_gone",
        }
    }
}

/// How a request left the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueExit {
    /// It was given a server.
    Served,
    /// The policy would not hold it any longer, and it asked for a place anew.
    AskedAgain,
    /// It waited for as long as it may.
    TimeUp,
    /// Its client left.
    ClientGone,
}

impl QueueExit {
    /// The name in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::AskedAgain => "asked_again",
            Self::TimeUp => "time_up",
            Self::ClientGone => "client_gone",
        }
    }
}

/// Why a request was tried once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryReason {
    /// The server could not be connected to.
    Connect,
    /// The connection died before anything had gone to the client.
    Reset,
    /// The server answered with a status that is retried.
    Status,
    /// The request was longer than the server takes.
    ContextLength,
}

impl RetryReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Connect, Self::Reset, Self::Status, Self::ContextLength];

    /// The name in metrics and logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Reset => "reset",
            Self::Status => "status",
            Self::ContextLength => "context_length",
        }
    }
}

/// What is counted when a request has ended.
#[derive(Debug, Clone)]
pub struct FinishedRequest {
    /// What the request was for.
    pub endpoint: Endpoint,
    /// How it ended.
    pub outcome: Outcome,
    /// The status that was sent to the client, if any was.
    pub status: Option<u16>,
    /// The group of the server that it ended on, if it was given to one.
    pub group: Option<usize>,
    /// From the request header to the first body byte towards the client, if one was sent.
    pub time_to_first_byte: Option<Duration>,
    /// From the request header to the end, whichever it was.
    pub duration: Duration,
    /// Bytes of request body that came from the client.
    pub request_bytes: u64,
    /// Bytes of response body that went to the client.
    pub response_bytes: u64,
}

/// The class of a status. Codes beyond 599, which HTTP allows a server to send, share one label.
pub(super) fn status_class(status: Option<u16>) -> &'static str {
    match status {
        None => "none",
        Some(100..=199) => "1xx",
        Some(200..=299) => "2xx",
        Some(300..=399) => "3xx",
        Some(400..=499) => "4xx",
        Some(500..=599) => "5xx",
        Some(_) => "other",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    pub(super) endpoint: &'static str,
    pub(super) outcome: &'static str,
    pub(super) code: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ResultLabels {
    pub(super) result: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReasonLabels {
    pub(super) reason: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ClassLabels {
    pub(super) class: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct KeyLabels {
    pub(super) key: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct KeyReasonLabels {
    pub(super) key: Arc<str>,
    pub(super) reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct AttemptLabels {
    pub(super) server: Arc<str>,
    pub(super) result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ServerLabels {
    pub(super) group: Arc<str>,
    pub(super) server: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ShadowLabels {
    pub(super) policy: &'static str,
    pub(super) group: Arc<str>,
    pub(super) reason: &'static str,
    pub(super) agreement: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RedirectLabels {
    pub(super) from: Arc<str>,
    pub(super) to: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct GroupLabels {
    pub(super) group: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct QueueLabels {
    pub(super) group: Arc<str>,
    pub(super) result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct SourceLabels {
    pub(super) source: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CertificateLabels {
    pub(super) certificate: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LimitLabels {
    pub(super) limit: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct VersionLabels {
    pub(super) version: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_has_the_number_of_its_place() {
        for (place, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, place, "{outcome:?}");
        }
        for (place, result) in AttemptResult::ALL.into_iter().enumerate() {
            assert_eq!(result as usize, place, "{result:?}");
        }
        for (place, reason) in RetryReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place, "{reason:?}");
        }
    }

    #[test]
    fn every_status_has_one_of_seven_classes() {
        assert_eq!(status_class(None), "none");
        let classes: std::collections::BTreeSet<_> = (0..=u16::MAX).map(|code| status_class(Some(code))).collect();
        assert_eq!(classes, ["1xx", "2xx", "3xx", "4xx", "5xx", "other"].into());
        assert_eq!((status_class(Some(599)), status_class(Some(600))), ("5xx", "other"));
        assert_eq!((status_class(Some(99)), status_class(Some(100))), ("other", "1xx"));
    }
}
