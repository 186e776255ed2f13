//! The two text formats that Prometheus reads, and which of them a client asked for.

/// A text format for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.0, for whoever asks for it (Prometheus does).
    OpenMetrics,
    /// The older text format 0.0.4, for everyone else: `curl`, `promtool check metrics`, other scrapers.
    Text,
}

impl Format {
    /// The format to answer with, given the values of the request's `Accept` headers: OpenMetrics when it is named and
    /// not ranked below plain text. Wildcards do not count as naming it.
    #[must_use]
    pub fn negotiate<'a>(accept: impl Iterator<Item = &'a str>) -> Self {
        let (mut open_metrics, mut text) = (0.0, 0.0);
        for range in accept.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let weight = match parts.next() {
                Some(media) if media.eq_ignore_ascii_case("application/openmetrics-text") => &mut open_metrics,
                Some(media) if media.eq_ignore_ascii_case("text/plain") => &mut text,
                _ => continue,
            };
            // A weight that cannot be read counts as the default, 1.
            let asked = parts.find_map(|parameter| parameter.strip_prefix("q=")).and_then(|q| q.parse().ok());
            *weight = f32::max(*weight, asked.unwrap_or(1.0));
        }
        if open_metrics > 0.0 && open_metrics >= text { Self::OpenMetrics } else { Self::Text }
    }

    /// The value of the `Content-Type` header.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Turns OpenMetrics as `prometheus-client` writes it into text format 0.0.4.
///
/// Sample lines are the same in both (there are no exemplars, timestamps or `_created` samples here). The difference
/// lies in the comments: OpenMetrics declares a counter without the `_total` of its samples, the older format with it,
/// and `# EOF` and `# UNIT` are unknown there. So nothing is encoded a second time.
pub(super) fn to_text(open_metrics: &str) -> String {
    let mut page = String::with_capacity(open_metrics.len() + 256);
    let mut help = "";
    for line in open_metrics.lines() {
        if let Some(name_and_help) = line.strip_prefix("# HELP ") {
            // Held until the type is known: it comes next.
            help = name_and_help.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let suffix = if kind == "counter" { "_total" } else { "" };
            page.extend(["# HELP ", name, suffix, " ", help, "\n# TYPE ", name, suffix, " ", kind, "\n"]);
        } else if !line.starts_with('#') {
            page.extend([line, "\n"]);
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiated(accept: &[&str]) -> Format {
        Format::negotiate(accept.iter().copied())
    }

    #[test]
    fn whoever_names_no_format_gets_plain_text() {
        assert_eq!(negotiated(&[]), Format::Text);
        assert_eq!(negotiated(&["*/*"]), Format::Text);
        assert_eq!(negotiated(&["text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"]), Format::Text);
        assert_eq!(negotiated(&["", ";;,,;q=", "application/openmetrics"]), Format::Text);
    }

    #[test]
    fn prometheus_gets_open_metrics() {
        let version_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                         text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let version_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                         application/openmetrics-text;version=0.0.1;q=0.4,\
                         text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        assert_eq!(negotiated(&[version_2]), Format::OpenMetrics);
        assert_eq!(negotiated(&[version_3]), Format::OpenMetrics);
    }

    #[test]
    fn the_weights_of_all_headers_decide() {
        assert_eq!(negotiated(&["text/plain", "application/openmetrics-text; q=0.5"]), Format::Text);
        assert_eq!(negotiated(&["text/plain; q=0.4", "Application/OpenMetrics-Text; q=0.5"]), Format::OpenMetrics);
        assert_eq!(negotiated(&["text/plain, application/openmetrics-text"]), Format::OpenMetrics);
        assert_eq!(negotiated(&["application/openmetrics-text;q=0"]), Format::Text);
        assert_eq!(negotiated(&["application/openmetrics-text;q=high"]), Format::OpenMetrics);
    }

    #[test]
    fn counters_are_declared_as_each_format_wants() {
        let open_metrics = "# HELP a_bytes All a.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
                            a_bytes_total{x=\"# EOF\"} 1\n# HELP b Now b.\n# TYPE b gauge\nb 2.5\n# EOF\n";
        let text = "# HELP a_bytes_total All a.\n# TYPE a_bytes_total counter\na_bytes_total{x=\"# EOF\"} 1\n\
                    # HELP b Now b.\n# TYPE b gauge\nb 2.5\n";
        assert_eq!(to_text(open_metrics), text);
    }
}
