//! The page as Prometheus reads it, compared with the state after each step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::balance::{Bucket, Buckets, Policy, RedirectTuning, Ties, Topology, Tried};
use crate::prompt::{Demand, Endpoint};

/// Series with the values that they have on a page.
type Samples = BTreeMap<String, String>;

/// Two groups: `short` with the servers 0 and 1, `long` with server 2.
fn roster() -> Roster {
    let groups = [("short", vec![(0, "a"), (1, "b")]), ("long", vec![(2, "c")])];
    Roster::new(groups.into_iter().map(|(name, servers)| (name, servers.into_iter())))
}

fn balancer() -> Arc<Balancer> {
    let ranges = vec![Bucket { from: 0, to: 1_000 }, Bucket { from: 1_000, to: 4_000 }];
    let policy = Policy::ReferenceBucket(Buckets::new(ranges, RedirectTuning::default()).unwrap());
    Arc::new(Balancer::new(Topology::from_sizes([2, 1]).unwrap(), policy, Ties::First).unwrap())
}

fn samples(page: &str) -> Samples {
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value in {line:?}"));
        (series.to_owned(), value.to_owned())
    };
    page.lines().filter(|line| !line.starts_with('#')).map(sample).collect()
}

/// What a step changed: `series value` of all samples that are new or different, less the buckets of histograms and
/// the numbers of the process.
fn step(metrics: &Metrics, balancer: &Balancer, before: &mut Samples) -> Vec<String> {
    let after = samples(&metrics.render(balancer, &[], Format::OpenMetrics));
    assert!(before.keys().all(|series| after.contains_key(series)), "a series has vanished");
    let changed = after
        .iter()
        .filter(|(series, value)| before.get(*series) != Some(value))
        .filter(|(series, _)| !series.contains("_bucket{") && !series.starts_with("process_"))
        .map(|(series, value)| format!("{series} {value}"))
        .collect();
    *before = after;
    changed
}

fn finished(outcome: Outcome, status: Option<u16>) -> FinishedRequest {
    FinishedRequest {
        endpoint: Endpoint::Chat,
        outcome,
        status,
        group: None,
        time_to_first_byte: None,
        duration: Duration::from_millis(1_500),
        request_bytes: 0,
        response_bytes: 0,
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_first_page_is_the_golden_page() {
    // To change it on purpose, copy the page from the message.
    let page = Metrics::new(&roster()).render(&balancer(), &[], Format::OpenMetrics);
    let golden = include_str!("golden.txt");
    let page = masked_and_sorted(&page);
    assert!(page == golden, "the page is not src/metrics/golden.txt:\n{page}");
}

/// Masks what differs between runs, and sorts the samples of each family: the encoder writes them in any order.
#[cfg(target_os = "linux")]
fn masked_and_sorted(page: &str) -> String {
    let mut lines: Vec<Vec<String>> = Vec::new();
    for line in page.lines() {
        if line.starts_with('#') {
            lines.push(vec![line.to_owned()]);
            continue;
        }
        let masked = if line.starts_with("process_") || line.starts_with("tidegate_start_time") {
            line.rsplit_once(' ').map(|(series, _)| format!("{series} MASKED"))
        } else if line.starts_with("tidegate_build_info") {
            Some(line.replace(env!("CARGO_PKG_VERSION"), "MASKED"))
        } else {
            None
        };
        let family = lines.last_mut().expect("each family begins with a comment");
        family.push(masked.unwrap_or_else(|| line.to_owned()));
        family[1..].sort();
    }
    lines.concat().into_iter().map(|line| line + "\n").collect()
}

#[test]
fn each_event_moves_its_own_series_and_no_other() {
    let (metrics, balancer) = (Metrics::new(&roster()), balancer());
    let mut page = samples(&metrics.render(&balancer, &[], Format::OpenMetrics));
    assert_eq!(step(&metrics, &balancer, &mut page), [""; 0]);

    let lease = balancer.acquire(&Demand::of_bytes(4_002), &Tried::default()).unwrap();
    assert_eq!(
        step(&metrics, &balancer, &mut page),
        [
            r#"tidegate_group_in_flight_requests{group="long"} 1"#,
            r#"tidegate_group_load_tokens{group="long"} 1000.5"#,
            r#"tidegate_server_in_flight_requests{group="long",server="c"} 1"#,
            r#"tidegate_server_load_tokens{group="long",server="c"} 1000.5"#,
        ]
    );

    metrics.attempt_ended(2, AttemptResult::ConnectFailed);
    metrics.retried(RetryReason::Connect);
    metrics.redirected(1, 0);
    assert_eq!(
        step(&metrics, &balancer, &mut page),
        [
            r#"tidegate_attempts_total{server="c",result="connect_failed"} 1"#,
            r#"tidegate_redirects_total{from="long",to="short"} 1"#,
            r#"tidegate_retries_total{reason="connect"} 1"#,
        ]
    );

    metrics.redirected(1, 1);
    assert_eq!(step(&metrics, &balancer, &mut page), [""; 0], "staying in the group is no redirect");

    drop(lease);
    metrics.attempt_ended(0, AttemptResult::Answered);
    metrics.request_finished(&FinishedRequest {
        group: Some(0),
        time_to_first_byte: Some(Duration::from_millis(250)),
        request_bytes: 4_002,
        response_bytes: 100,
        ..finished(Outcome::Complete, Some(200))
    });
    assert_eq!(
        step(&metrics, &balancer, &mut page),
        [
            r#"tidegate_attempts_total{server="a",result="answered"} 1"#,
            r#"tidegate_group_in_flight_requests{group="long"} 0"#,
            r#"tidegate_group_load_tokens{group="long"} 0.0"#,
            r#"tidegate_request_body_bytes_count 1"#,
            r#"tidegate_request_body_bytes_sum 4002.0"#,
            r#"tidegate_request_bytes_total 4002"#,
            r#"tidegate_request_duration_seconds_count{group="short"} 1"#,
            r#"tidegate_request_duration_seconds_sum{group="short"} 1.5"#,
            r#"tidegate_requests_total{endpoint="chat",outcome="complete",code="2xx"} 1"#,
            r#"tidegate_response_bytes_total 100"#,
            r#"tidegate_server_in_flight_requests{group="long",server="c"} 0"#,
            r#"tidegate_server_load_tokens{group="long",server="c"} 0.0"#,
            r#"tidegate_time_to_first_byte_seconds_count{group="short"} 1"#,
            r#"tidegate_time_to_first_byte_seconds_sum{group="short"} 0.25"#,
        ]
    );

    metrics.timed_out("first_byte");
    metrics.discovery_failed("dns vllm:80".to_owned(), true);
    metrics.config_refused(true);
    metrics.tls(Some(("a.crt".to_owned(), 1_800_000_000)), 2);
    assert_eq!(
        step(&metrics, &balancer, &mut page),
        [
            "tidegate_config_refused 1",
            r#"tidegate_discovery_failed{source="dns vllm:80"} 1"#,
            r#"tidegate_timeouts_total{limit="first_byte"} 1"#,
            r#"tidegate_tls_certificate_valid_until_seconds{certificate="a.crt"} 1800000000"#,
            "tidegate_tls_files_refused 2",
        ]
    );

    metrics.rejected("body_too_large");
    metrics.request_finished(&finished(Outcome::Rejected, Some(413)));
    metrics.request_finished(&finished(Outcome::ClientGone, None));
    assert_eq!(
        step(&metrics, &balancer, &mut page),
        [
            r#"tidegate_rejections_total{reason="body_too_large"} 1"#,
            r#"tidegate_requests_total{endpoint="chat",outcome="client_gone",code="none"} 1"#,
            r#"tidegate_requests_total{endpoint="chat",outcome="rejected",code="4xx"} 1"#,
        ],
        "what was given to no server has no place in the histograms"
    );

    let other = FinishedRequest {
        endpoint: Endpoint::Other,
        group: Some(1),
        time_to_first_byte: Some(Duration::from_millis(1)),
        ..finished(Outcome::Complete, Some(200))
    };
    metrics.request_finished(&other);
    assert_eq!(
        step(&metrics, &balancer, &mut page),
        [r#"tidegate_requests_total{endpoint="other",outcome="complete",code="2xx"} 1"#],
        "what does not count as load has no place in the histograms"
    );
}

#[test]
fn the_totals_are_the_sums_of_the_page() {
    let (metrics, balancer) = (Metrics::new(&roster()), balancer());
    assert_eq!(metrics.totals(), Totals { requests: [0; 4], retries: 0, redirects: 0 });
    for (count, outcome) in (1..).zip(Outcome::ALL) {
        for status in [200, 400, 500].into_iter().cycle().take(count) {
            metrics.request_finished(&finished(outcome, Some(status)));
        }
    }
    for reason in [RetryReason::Connect, RetryReason::Reset, RetryReason::Reset, RetryReason::Status] {
        metrics.retried(reason);
    }
    metrics.redirected(0, 1);
    metrics.redirected(1, 0);
    metrics.redirected(1, 1);
    assert_eq!(metrics.totals(), Totals { requests: [1, 2, 3, 4], retries: 4, redirects: 2 });

    let page = samples(&metrics.render(&balancer, &[], Format::Text));
    let sum = |part: &str| -> u64 {
        page.iter().filter(|(series, _)| series.contains(part)).map(|(_, value)| value.parse::<u64>().unwrap()).sum()
    };
    for (outcome, total) in Outcome::ALL.into_iter().zip(metrics.totals().requests) {
        assert_eq!(sum(&format!(r#"outcome="{}""#, outcome.label())), total, "{outcome:?}");
    }
    assert_eq!(sum("tidegate_retries_total{"), 4);
    assert_eq!(sum("tidegate_redirects_total{"), 2);
}

#[test]
fn times_and_sizes_fall_into_the_right_buckets() {
    let (metrics, balancer) = (Metrics::new(&roster()), balancer());
    let count = |duration: Duration, request_bytes: u64| {
        let request = finished(Outcome::Complete, Some(200));
        metrics.request_finished(&FinishedRequest { group: Some(1), duration, request_bytes, ..request });
    };
    count(Duration::from_millis(1), 256);
    count(Duration::from_secs(900), 64 << 20);
    count(Duration::from_secs(901), (64 << 20) + 1);

    let page = samples(&metrics.render(&balancer, &[], Format::Text));
    let duration =
        |bound: &str| &page[&format!(r#"tidegate_request_duration_seconds_bucket{{le="{bound}",group="long"}}"#)];
    assert_eq!([duration("0.001"), duration("600.0"), duration("900.0"), duration("+Inf")], ["1", "1", "2", "3"]);
    let size = |bound: &str| &page[&format!(r#"tidegate_request_body_bytes_bucket{{le="{bound}"}}"#)];
    assert_eq!([size("256.0"), size("16777216.0"), size("67108864.0"), size("+Inf")], ["1", "1", "2", "3"]);
}

#[test]
fn nothing_that_a_client_sends_makes_a_series() {
    // B69 of the field reports: unbounded label values from requests.
    let (metrics, balancer) = (Metrics::new(&roster()), balancer());
    let finish = |method: &str, path: &str, status: u16| {
        let endpoint = Endpoint::of(&method.parse().unwrap(), path);
        let request = FinishedRequest { endpoint, ..finished(Outcome::Complete, Some(status)) };
        metrics.request_finished(&request);
    };
    finish("GET", "/", 200);
    let before = samples(&metrics.render(&balancer, &[], Format::Text)).len();
    for number in 0..2_000_u16 {
        finish(&format!("FOO{number}"), &format!("/v1/\"scan\\{number}\n"), 200);
        finish("POST", &format!("/v1/{number}"), 200);
    }
    assert_eq!(samples(&metrics.render(&balancer, &[], Format::Text)).len(), before);
    for status in 0..=u16::MAX {
        finish("GET", "/", status);
    }
    let other_classes = 5;
    assert_eq!(samples(&metrics.render(&balancer, &[], Format::Text)).len(), before + other_classes);
}

#[test]
fn both_formats_hold_the_same_samples_and_declare_each_family_once() {
    let (metrics, balancer) = (Metrics::new(&roster()), balancer());
    metrics.rejected("no_server");
    metrics.request_finished(&finished(Outcome::Rejected, Some(503)));
    let open_metrics = metrics.render(&balancer, &[], Format::OpenMetrics);
    let text = metrics.render(&balancer, &[], Format::Text);

    let series = |page: &str| samples(page).into_keys().collect::<Vec<_>>();
    assert_eq!(series(&open_metrics), series(&text));
    assert!(open_metrics.ends_with("\n# EOF\n"));
    assert!(!text.contains("# EOF"));
    check(&open_metrics, "");
    check(&text, "_total");
}

/// What `promtool check metrics` looks at: each sample belongs to the family declared above it, each family has a help
/// text, and a counter is called so. `counter_suffix` is what the format puts behind a counter's declared name.
fn check(page: &str, counter_suffix: &str) {
    let mut families = BTreeSet::new();
    let (mut help_of, mut family, mut kind) = ("", "", "");
    for line in page.lines().filter(|line| *line != "# EOF") {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            assert!(help.len() > 10 && help.ends_with('.') && !help.contains(['\\', '"']), "{line}");
            help_of = name;
        } else if let Some(declared) = line.strip_prefix("# TYPE ") {
            (family, kind) = declared.split_once(' ').unwrap();
            assert_eq!(family, help_of, "{line}");
            assert!(families.insert(family), "declared twice: {line}");
            assert_eq!(kind == "counter" && !counter_suffix.is_empty(), family.ends_with("_total"), "{line}");
        } else {
            let name = line.split(['{', ' ']).next().unwrap();
            let expected = match kind {
                "counter" => vec![format!("{}_total", family.trim_end_matches("_total"))],
                "gauge" => vec![family.to_owned()],
                "histogram" => ["_bucket", "_sum", "_count"].map(|suffix| format!("{family}{suffix}")).to_vec(),
                _ => panic!("a type that the formats do not share: {kind}"),
            };
            assert!(expected.iter().any(|expected| expected == name), "{line} below {family} ({kind})");
        }
    }
}

#[test]
fn names_with_special_characters_are_escaped() {
    let metrics = Metrics::new(&Roster::new([("a \"b\"\\c\nd", [(0, "é")].into_iter())].into_iter()));
    let balancer =
        Arc::new(Balancer::new(Topology::from_sizes([1]).unwrap(), Policy::ReferencePlain, Ties::First).unwrap());
    let _lease = balancer.acquire_weightless(&Tried::default()).unwrap();
    for format in [Format::OpenMetrics, Format::Text] {
        let page = samples(&metrics.render(&balancer, &[], format));
        let in_flight = r#"tidegate_server_in_flight_requests{group="a \"b\"\\c\nd",server="é"}"#;
        assert_eq!(page.get(in_flight).map(String::as_str), Some("1"), "{page:#?}");
    }
}
