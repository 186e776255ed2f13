//! The samples whose values depend on time, or on what was learned: all of them are named here.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::{Scraped, name_and_labels, series};

/// Histograms of which the number of observations is known, and the number of buckets.
const HISTOGRAMS: [(&str, usize); 8] = [
    ("tidegate_time_to_first_byte_seconds", 20),
    ("tidegate_request_duration_seconds", 20),
    ("tidegate_time_to_header_seconds", 20),
    ("tidegate_time_to_first_token_seconds", 20),
    ("tidegate_queue_wait_seconds", 20),
    ("tidegate_time_per_output_token_seconds", 15),
    ("tidegate_longest_token_gap_seconds", 15),
    ("tidegate_prompt_estimate_error_ratio", 14),
];

/// What Linux tells of the process.
const OF_THE_PROCESS: [&str; 5] = [
    "process_resident_memory_bytes",
    "process_open_fds",
    "process_max_fds",
    "process_threads",
    "process_cpu_seconds_total",
];

/// What the policies by work have learned, or look at over time.
const LEARNED: [&str; 4] = [
    "tidegate_mean_output_tokens",
    "tidegate_long_from_prefill_seconds",
    "tidegate_long_work_share",
    "tidegate_held_for_seconds",
];

const START_TIME: &str = "tidegate_start_time_seconds";

/// Takes the samples out of a page that are judged by [`faults`] alone.
pub(super) fn split(page: &Scraped) -> (BTreeMap<String, f64>, BTreeMap<String, f64>) {
    page.samples.clone().into_iter().partition(|(series, _)| is_timed(name_and_labels(series).0))
}

/// Whether a sample may be another one at the next look, although nothing has happened.
pub(super) fn moves_by_itself(series: &str) -> bool {
    series.starts_with("process_") || LEARNED.contains(&series)
}

fn is_timed(name: &str) -> bool {
    let is_of_histogram = |(family, _): &(&str, usize)| {
        name.strip_prefix(family).is_some_and(|suffix| ["_bucket", "_sum"].contains(&suffix))
    };
    name == START_TIME
        || OF_THE_PROCESS.contains(&name)
        || LEARNED.contains(&name)
        || HISTOGRAMS.iter().any(is_of_histogram)
}

/// What cannot be, of these samples now and before; `running_for` is the age of the process at the least.
pub(super) fn faults(now: &Scraped, before: Option<&Scraped>, running_for: Duration) -> Vec<String> {
    let mut faults = Vec::new();
    let mut demand = |is_right: bool, what: String| {
        if !is_right {
            faults.push(what);
        }
    };
    let mut known = 1 + OF_THE_PROCESS.len();
    for (family, buckets) in HISTOGRAMS {
        for (count, observed) in
            now.samples.iter().filter(|(series, _)| name_and_labels(series).0 == format!("{family}_count"))
        {
            let labels = name_and_labels(count).1;
            let sum = if labels.is_empty() { format!("{family}_sum") } else { format!("{family}_sum{{{labels}}}") };
            let of_bucket = |series: &&String| {
                let (name, its_labels) = name_and_labels(series);
                let others: Vec<&str> = its_labels.split(',').filter(|label| !label.starts_with("le=")).collect();
                name == format!("{family}_bucket") && others.join(",") == labels
            };
            let series: Vec<&String> = now.samples.keys().filter(of_bucket).chain([&sum]).collect();
            demand(series.len() == buckets + 1, format!("{count} has {} buckets", series.len() - 1));
            known += series.len();
            let Some(total) = now.samples.get(&sum) else {
                demand(false, format!("{sum} is not there"));
                continue;
            };
            let was = |series: &str| before.and_then(|before| before.samples.get(series)).copied().unwrap_or(0.0);
            let (more, longer) = (observed - was(count), total - was(&sum));
            if more == 0.0 {
                let has_changed = |series: &&&String| now.samples[**series] != was(series);
                let changed: Vec<_> = series.iter().filter(has_changed).collect();
                demand(changed.is_empty(), format!("{changed:?} changed without an observation"));
            } else if family.ends_with("_seconds") {
                let most = more * running_for.as_secs_f64();
                demand((0.0..=most).contains(&longer), format!("{sum} has grown by {longer} with {more} observations"));
            }
        }
    }
    let learned: Vec<f64> = LEARNED.iter().filter_map(|name| now.samples.get(*name).copied()).collect();
    known += learned.len();
    demand(learned.iter().all(|value| *value >= 0.0), format!("{LEARNED:?} are {learned:?}"));
    if let [_, _, share, held_for] = *learned {
        demand(share <= 1.0, format!("{share} is no share"));
        let is_held = now.sum("tidegate_queue_requests") > 0.0;
        let most = if is_held { running_for.as_secs_f64() } else { 0.0 };
        demand(held_for <= most, format!("held for {held_for} s, at most {most} s"));
    }
    let (timed, _) = split(now);
    demand(timed.len() == known, format!("{} samples depend on time, and {known} are known", timed.len()));
    let value = |name: &str| now.samples.get(&series(name, &[])).copied().unwrap_or(f64::NAN);
    let was = |name: &str| before.map_or(value(name), |before| before.samples[name]);
    demand(value(START_TIME) == was(START_TIME), "the start has moved".to_owned());
    demand(value("process_max_fds") == was("process_max_fds"), "the limit of open files has changed".to_owned());
    let memory = value("process_resident_memory_bytes");
    demand((1e6..2e9).contains(&memory), format!("{memory} bytes of memory"));
    let (open, most) = (value("process_open_fds"), value("process_max_fds"));
    demand((5.0..=most.min(500.0)).contains(&open), format!("{open} of {most} files are open"));
    demand((2.0..200.0).contains(&value("process_threads")), "the number of threads".to_owned());
    let cpu = "process_cpu_seconds_total";
    demand(value(cpu) >= was(cpu), "processor time runs backwards".to_owned());
    faults
}
