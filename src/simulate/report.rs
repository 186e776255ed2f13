//! The table.

use std::io::{self, Write};

use super::outcome::{Distribution, Summary};
use super::trace::Job;
use super::{Plan, outcome};

pub(super) fn write(
    plan: &Plan,
    jobs: &[Job],
    natural: f64,
    cases: &[(f64, &str)],
    summaries: &[Summary],
    output: &mut impl Write,
) -> io::Result<()> {
    let Plan { servers, profile, seed, .. } = plan;
    let long = jobs.iter().filter(|job| job.prompt_tokens >= outcome::LONG_FROM_TOKENS).count();
    writeln!(
        output,
        "{} requests, {long} of them long (32k and more), {servers} servers {}, seed {seed}; at its own speed the load is {natural:.2}",
        jobs.len(),
        profile.name,
    )?;
    writeln!(output, "time to first token, latency in seconds; time per output token (tpot) in milliseconds\n")?;
    writeln!(
        output,
        "| load | policy | short ttft mean | p50 | p90 | p99 | long ttft mean | p50 | p90 | p99 | ttft mean | latency mean | p99 | short tpot mean | p99 |"
    )?;
    writeln!(output, "|---|---|{}", "---|".repeat(13))?;
    for ((load, policy), summary) in cases.iter().zip(summaries) {
        let Summary { short_ttft, long_ttft, ttft, latency, short_tpot, .. } = summary;
        let [short, long] = [short_ttft, long_ttft].map(all);
        writeln!(
            output,
            "| {load} | {policy} | {short} | {long} | {:.2} | {:.2} | {:.1} | {:.0} | {:.0} |",
            ttft.mean,
            latency.mean,
            latency.p99,
            1e3 * short_tpot.mean,
            1e3 * short_tpot.p99,
        )?;
    }
    output.flush()
}

fn all(distribution: &Distribution) -> String {
    let Distribution { count, mean, p50, p90, p99 } = distribution;
    if *count == 0 {
        return "- | - | - | -".to_owned();
    }
    format!("{mean:.2} | {p50:.2} | {p90:.2} | {p99:.2}")
}
