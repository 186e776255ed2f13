//! The `access_log` section: which requests get a line, and where it goes.

use std::path::PathBuf;
use std::time::Duration;

use super::section::Section;
use super::value;

/// How the access log is written.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessLog {
    /// How a line looks.
    pub format: LogFormat,
    /// The file that lines are added to; `None` is the standard output.
    pub path: Option<PathBuf>,
    /// The share of requests that get a line, of those that went well: from 0 to 1. One that did not always has one.
    pub sample: f64,
    /// A request that went well gets a line only when it took at least this long, from its header to its end.
    pub slower_than: Duration,
}

/// How a line of the access log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// A JSON object.
    Json,
    /// Names and values, `status=200 end=complete`.
    Text,
}

impl LogFormat {
    /// The name in the configuration.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Text => "text",
        }
    }
}

/// The words for `format`; off is none.
const FORMATS: &[(&str, Option<LogFormat>)] =
    &[("off", None), ("json", Some(LogFormat::Json)), ("text", Some(LogFormat::Text))];

impl AccessLog {
    /// `None`: there is none.
    pub(super) fn read(section: &mut Section<'_>) -> Option<Self> {
        let format = section.value("format", value::choice(FORMATS)).and_then(|format| format.value);
        let (mut sample, mut slower_than) = (1.0, Duration::ZERO);
        let path = section.value("path", value::text).map(|path| path.value.into());
        section.set("sample", &mut sample, value::share);
        section.set("slower_than", &mut slower_than, value::delay);
        format.map(|format| Self { format, path, sample, slower_than })
    }
}

#[cfg(test)]
mod tests {
    use super::super::of_text;
    use super::*;

    fn access_log(section: &str) -> Option<AccessLog> {
        of_text(&format!("groups: [{{name: a, servers: [x:1]}}]\n{section}")).access_log
    }

    #[test]
    fn there_is_none_unless_a_format_is_named() {
        assert_eq!(access_log(""), None);
        assert_eq!(access_log("access_log: {format: off, path: /a.log}"), None);
        let all = AccessLog { format: LogFormat::Json, path: None, sample: 1.0, slower_than: Duration::ZERO };
        assert_eq!(access_log("access_log: {format: json}"), Some(all.clone()));
        let some = "access_log: {format: text, path: /var/log/a.log, sample: 0.25, slower_than: 2s}";
        let expected = AccessLog {
            format: LogFormat::Text,
            path: Some("/var/log/a.log".into()),
            sample: 0.25,
            slower_than: Duration::from_secs(2),
        };
        assert_eq!(access_log(some), Some(expected));
    }
}
