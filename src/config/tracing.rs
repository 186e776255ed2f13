//! The `tracing` section: where spans of requests are exported to, and which.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};

use super::section::{Parsed, Section, or_none};
use super::yaml::Node;
use super::{secret, value};

/// How spans are exported.
#[derive(Debug, Clone, PartialEq)]
pub struct Tracing {
    /// Where an OpenTelemetry collector takes spans by OTLP over HTTP, with its path: `http://127.0.0.1:4318/v1/traces`.
    pub url: String,
    /// `service.name` of all spans.
    pub service_name: String,
    /// The share of traces that begin here that are exported: from 0 to 1. One that began elsewhere is exported when it is
    /// there.
    pub sample: f64,
    /// Header fields for the collector.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Longest time that the collector may take for one batch.
    pub timeout: Duration,
}

impl Tracing {
    /// `None`: nothing is exported.
    pub(super) fn read(section: &mut Section<'_>) -> Option<Self> {
        let url = section.secret("endpoint", or_none(url)).and_then(secret::given);
        let (mut service_name, mut sample, mut timeout) = ("tidegate".to_owned(), 1.0, Duration::from_secs(10));
        section.set("service_name", &mut service_name, value::name);
        section.set("sample", &mut sample, value::share);
        let headers = section.secret("headers", secret::header_fields("x-scope-orgid: gpus"));
        section.set("timeout", &mut timeout, value::duration);
        let url = url?;
        if cfg!(not(feature = "otel")) {
            let text = "this program was built without tracing: build it with --features otel, or leave this out";
            section.error(&url.spot, text);
        }
        let headers = headers.map_or_else(Vec::new, |headers| headers.value);
        Some(Self { url: url.value, service_name, sample, headers, timeout })
    }
}

/// The address of a collector, completed by the path that the specification of OTLP gives traces.
fn url(node: &Node) -> Parsed<String> {
    const PATH: &str = "/v1/traces";
    const EXPECTED: &str = "a URL such as http://127.0.0.1:4318, without a user and without a query";
    let uri = node.text().and_then(|text| text.parse::<Uri>().ok()).ok_or(EXPECTED)?;
    let has_scheme = matches!(uri.scheme_str(), Some("http" | "https"));
    // Keys belong into header fields, of which only the names are shown.
    let is_plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@')) && uri.query().is_none();
    if !(has_scheme && is_plain) {
        return Err(EXPECTED.to_owned());
    }
    let text = uri.to_string();
    let base = text.trim_end_matches('/');
    Ok(if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") })
}

#[cfg(test)]
mod tests {
    use super::super::problem::{Problems, Spot};
    use super::super::yaml::parse;
    use super::*;

    fn read(yaml: &str) -> Result<Option<Tracing>, String> {
        let root = parse(yaml).unwrap();
        let problems = Problems::default();
        let value = Section::read(root.as_ref(), Spot::file("f"), &problems, Tracing::read);
        problems.finish(Some(value)).map(|(value, _)| value).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn nothing_is_exported_unless_there_is_a_collector() {
        for yaml in ["", "endpoint: none\n", "sample: 0.5\ntimeout: 1s\n"] {
            assert_eq!(read(yaml), Ok(None), "{yaml}");
        }
    }

    #[cfg(not(feature = "otel"))]
    #[test]
    fn a_program_without_tracing_says_what_to_do() {
        let expected = "error: f:2: endpoint: this program was built without tracing: build it with --features otel, or \
                        leave this out";
        assert_eq!(read("sample: 0.5\nendpoint: http://localhost:4318\n"), Err(expected.to_owned()));
    }

    #[cfg(feature = "otel")]
    #[test]
    fn every_key_has_its_place() {
        let all = "endpoint: http://a:4318\nservice_name: edge\nsample: 0.25\nheaders: ['x-key: sk-1']\ntimeout: 2s\n";
        let Tracing { url, service_name, sample, headers, timeout } = read(all).unwrap().unwrap();
        assert_eq!((url.as_str(), service_name.as_str(), sample), ("http://a:4318/v1/traces", "edge", 0.25));
        assert_eq!((headers[0].0.as_str(), headers[0].1.to_str().unwrap()), ("x-key", "sk-1"));
        assert_eq!((timeout, format!("{headers:?}").contains("sk-1")), (Duration::from_secs(2), false));
        let few = read("endpoint: https://b/otlp/").unwrap().unwrap();
        assert_eq!((few.url.as_str(), few.service_name.as_str()), ("https://b/otlp/v1/traces", "tidegate"));
        assert_eq!((few.sample, few.headers.len(), few.timeout), (1.0, 0, Duration::from_secs(10)));
        assert_eq!(read("endpoint: http://c/v1/traces").unwrap().unwrap().url, "http://c/v1/traces");
    }

    #[test]
    fn an_address_that_cannot_be_used_is_not_repeated() {
        for text in ["localhost:4318", "grpc://a:4317", "http://me:hunter2@a:4318", "http://a:4318/?key=hunter2", "[]"]
        {
            let error = read(&format!("endpoint: {text}\n")).unwrap_err();
            assert!(error.contains("endpoint: ") && error.contains("expected a URL such as"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        let error = read("headers: ['hunter2']\n").unwrap_err();
        assert!(error.contains("expected a list of header fields") && !error.contains("hunter2"), "{error}");
    }
}
