//! One line of the access log.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// The version of the format that this program writes and reads.
///
/// A field may be added without a new version: readers ignore what they do not know. A field that goes, or means something
/// else, is a new version.
pub const VERSION: u32 = 1;

/// A request that has ended, however.
///
/// Optional fields are left out when nothing is known. Times in seconds are measured by the process's monotonic clock;
/// `time` alone is of the wall clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`VERSION`], in each line, because log files of several programs and times end up in one.
    pub version: u32,
    /// When the request's header had arrived: RFC 3339, UTC, microseconds.
    #[serde(with = "rfc3339")]
    pub time: SystemTime,
    /// The id under which the request is known to client and server (`x-request-id`).
    pub request_id: String,
    /// Name of the client's key. Never the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The model that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Path of the endpoint, without a query.
    pub endpoint: String,
    /// Length of the request's body, in bytes.
    #[serde(default)]
    pub body_bytes: u64,
    /// Whether the client asked for a stream; where nobody has read what it asked for, whether it got one.
    #[serde(default)]
    pub stream: bool,
    /// The prompt's length as it was estimated on arrival, in tokens: by its text, if anybody has read that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_tokens: Option<u64>,
    /// The prompt's length as the server told it (`usage.prompt_tokens`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Tokens of the prompt that the server still had in its cache (`usage.prompt_tokens_details.cached_tokens`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// The most tokens that the request allowed to generate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Whether it asked to generate exactly `max_tokens`.
    #[serde(default)]
    pub ignore_eos: bool,
    /// Tokens that were generated: as the server told it (`usage.completion_tokens`), else events that were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Name of the group that the prompt's length is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Name of that group again, when the request was sent to a server of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirected_from: Option<String>,
    /// Name of the last server that it was sent to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Why that server, in the policy's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// To how many servers it was sent, retries included.
    #[serde(default)]
    pub attempts: u32,
    /// The status that the client got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// For how long it waited in the balancer, in seconds: in a queue, or held for a lane.
    #[serde(default)]
    pub waited_s: f64,
    /// From the request's header to the first byte of the answer's body, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_s: Option<f64>,
    /// From the request's header to the end, in seconds.
    pub duration_s: f64,
    /// Bytes of the answer's body that the client was sent.
    #[serde(default)]
    pub sent_bytes: u64,
    /// How it ended.
    pub end: End,
    /// Why it was rejected, as the metrics name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<String>,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The whole answer was sent.
    Complete,
    /// The client went away.
    ClientGone,
    /// The server broke off an answer that had begun.
    UpstreamBroken,
    /// Tidegate answered itself.
    Rejected,
}

/// Why a line is no record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It is no JSON object with these fields.
    #[error("{}", without_place(.0))]
    Json(#[from] serde_json::Error),
    /// It is of a version that this program cannot read.
    #[error("version is {found}, expected {VERSION}")]
    Version {
        /// What the line says.
        found: u32,
    },
    /// A time is no time.
    #[error("{field} is {value}, expected seconds")]
    Seconds {
        /// Its name.
        field: &'static str,
        /// What the line says.
        value: f64,
    },
}

/// serde_json counts lines within what it was given, which is one line.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

impl Record {
    /// Reads a line.
    ///
    /// # Errors
    /// When it is no record of this [`VERSION`].
    pub fn parse(line: &[u8]) -> Result<Self, RecordError> {
        /// What has to be right before anything else is looked at.
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let Head { version } = serde_json::from_slice(line)?;
        if version != VERSION {
            return Err(RecordError::Version { found: version });
        }
        let record: Self = serde_json::from_slice(line)?;
        let times = [
            ("waited_s", record.waited_s),
            ("ttft_s", record.ttft_s.unwrap_or_default()),
            ("duration_s", record.duration_s),
        ];
        match times.into_iter().find(|(_, value)| !(value.is_finite() && *value >= 0.0)) {
            Some((field, value)) => Err(RecordError::Seconds { field, value }),
            None => Ok(record),
        }
    }

    /// The prompt's length in tokens: as the server told it, else as it was estimated.
    #[must_use]
    pub fn tokens_of_prompt(&self) -> Option<u64> {
        self.prompt_tokens.or(self.estimated_tokens)
    }
}

mod rfc3339 {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_micros(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        humantime::parse_rfc3339(&text).map_err(|_| {
            D::Error::custom(format!("time is {text:?}, expected RFC 3339 such as 2026-01-31T12:00:00.000Z"))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn record() -> Record {
        Record {
            version: VERSION,
            time: UNIX_EPOCH + Duration::from_micros(1_764_500_000_123_456),
            request_id: "7f3a".into(),
            key: Some("team-a".into()),
            model: Some("llama".into()),
            endpoint: "/v1/chat/completions".into(),
            body_bytes: 2_048,
            stream: true,
            estimated_tokens: Some(512),
            prompt_tokens: Some(498),
            cached_tokens: None,
            max_tokens: Some(256),
            ignore_eos: false,
            output_tokens: Some(57),
            group: Some("short".into()),
            redirected_from: None,
            server: Some("10.0.0.1:8000".into()),
            reason: Some("short".into()),
            attempts: 1,
            status: Some(200),
            waited_s: 0.0,
            ttft_s: Some(0.25),
            duration_s: 1.5,
            sent_bytes: 9_000,
            end: End::Complete,
            rejected: None,
        }
    }

    #[test]
    fn a_record_is_a_line_and_comes_back() {
        let line = serde_json::to_string(&record()).unwrap();
        let expected = r#"{"version":1,"time":"2025-11-30T10:53:20.123456Z","request_id":"7f3a","key":"team-a","model":"llama","endpoint":"/v1/chat/completions","body_bytes":2048,"stream":true,"estimated_tokens":512,"prompt_tokens":498,"max_tokens":256,"ignore_eos":false,"output_tokens":57,"group":"short","server":"10.0.0.1:8000","reason":"short","attempts":1,"status":200,"waited_s":0.0,"ttft_s":0.25,"duration_s":1.5,"sent_bytes":9000,"end":"complete"}"#;
        assert_eq!(line, expected);
        assert_eq!(Record::parse(line.as_bytes()).unwrap(), record());
    }

    #[test]
    fn what_is_not_known_may_be_left_out_and_what_is_unknown_is_ignored() {
        let line = r#"{"version":1,"time":"2026-01-31T12:00:00Z","request_id":"a","endpoint":"/v1/models","duration_s":0.1,
                       "end":"rejected","rejected":"no_server","colour":"blue"}"#;
        let record = Record::parse(line.as_bytes()).unwrap();
        assert_eq!((record.end, record.rejected.as_deref(), record.ttft_s), (End::Rejected, Some("no_server"), None));
        assert_eq!(record.tokens_of_prompt(), None);
    }

    #[test]
    fn the_told_length_comes_before_the_estimated_one() {
        assert_eq!(record().tokens_of_prompt(), Some(498));
        assert_eq!(Record { prompt_tokens: None, ..record() }.tokens_of_prompt(), Some(512));
    }

    #[test]
    fn a_line_that_is_no_record_says_why() {
        let refused = |line: &str| Record::parse(line.as_bytes()).unwrap_err().to_string();
        assert_eq!(refused(r#"{"msg":"started"}"#), "missing field `version`");
        assert_eq!(refused(r#"{"version":2}"#), "version is 2, expected 1");
        assert_eq!(refused(r#"{"version":1,"time":"2026-01-31T12:00:00Z"}"#), "missing field `request_id`");
        assert!(refused("GET / 200").starts_with("expected value"));
        let line = serde_json::to_string(&record()).unwrap();
        assert_eq!(refused(&line.replace("1.5", "-1.5")), "duration_s is -1.5, expected seconds");
        let yesterday = line.replace("2025-11-30T10:53:20.123456Z", "yesterday");
        assert_eq!(refused(&yesterday), "time is \"yesterday\", expected RFC 3339 such as 2026-01-31T12:00:00.000Z");
    }
}
