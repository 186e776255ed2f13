//! What was simulated, and how to get it again.

use std::fmt::Write;

use super::svg::Escaped;
use crate::simulate::as_f64;
use crate::simulate::outcome::LONG_FROM_TOKENS;
use crate::simulate::study::Study;
use crate::simulate::traffic::Job;

pub(super) fn facts(study: &Study, command: &str) -> String {
    let mut text = String::from("<h2>What was simulated</h2>\n<dl>\n");
    for (term, fact) in [
        ("traffic", traffic(study)),
        ("engines", engines(study)),
        ("load", format!(
            "the work that arrives per second as a share of what the servers can do; at its own speed this traffic is at {:.2}. Arrival times are \
             stretched to meet a load.",
            study.natural[0]
        )),
        ("long", format!("prompts of {LONG_FROM_TOKENS} tokens and more, whatever a policy takes for long")),
        ("targets", format!(
            "{}: a request is good when its first token comes within the first (or within so many times its prefill on an idle engine, whichever is \
             longer) and the others at least as fast as the second. By default those of MLPerf Inference's server scenario.",
            study.plan.slo
        )),
        ("seeds", seeds(study)),
        ("intervals", "90 %, by a bootstrap over 24 blocks of time of each run, the same blocks for both policies".to_owned()),
        ("not simulated", "network, tokenisation, the time of the proxy itself. The engines are a model; nothing here was measured on hardware.".to_owned()),
    ] {
        writeln!(text, "<dt>{term}</dt><dd>{}</dd>", Escaped(&fact)).expect("text can be written to memory");
    }
    write!(
        text,
        "</dl>\n<h2>How to get this again</h2>\n<pre>{}</pre>\n<p class=\"soft\">tidegate {}. The same command gives the same figures on any number of \
         cores.</p>\n",
        Escaped(command),
        env!("CARGO_PKG_VERSION"),
    )
    .expect("text can be written to memory");
    text
}

fn traffic(study: &Study) -> String {
    let jobs = &study.jobs[0];
    let count = as_f64(jobs.len() as u64);
    let long: Vec<&Job> = jobs.iter().filter(|job| job.prompt_tokens >= LONG_FROM_TOKENS).collect();
    let tokens = |jobs: &mut dyn Iterator<Item = &Job>| jobs.map(|job| as_f64(job.prompt_tokens)).sum::<f64>();
    let (all_tokens, long_tokens) = (tokens(&mut jobs.iter()), tokens(&mut long.iter().copied()));
    let quantiles = |value: fn(&Job) -> u64| {
        let mut values: Vec<u64> = jobs.iter().map(value).collect();
        values.sort_unstable();
        [50, 90, 99].map(|percent| values[(values.len() * percent / 100).min(values.len() - 1)].to_string()).join(" / ")
    };
    format!(
        "{}: {} requests; prompt tokens p50 / p90 / p99 {}, output tokens {}; {:.1} % of the requests are long and have {:.0} % of the prompt tokens{}",
        study.traffic,
        jobs.len(),
        quantiles(|job| job.prompt_tokens),
        quantiles(|job| job.output_tokens),
        100.0 * as_f64(long.len() as u64) / count,
        100.0 * long_tokens / all_tokens.max(1.0),
        match study.too_large {
            0 => String::new(),
            large => format!("; {large} more fit into no KV cache and are left out"),
        }
    )
}

fn engines(study: &Study) -> String {
    let profile = &study.plan.profile;
    format!(
        "{} servers of profile {}: a model of vLLM's V1 engine (steps of at most {} new tokens, chunked prefill, first come first served, KV cache of {} \
         tokens with preemption); coefficients fitted to published measurements, see docs/policy.md",
        study.plan.servers, profile.name, profile.budget_tokens, profile.kv_tokens
    )
}

fn seeds(study: &Study) -> String {
    let seeds: Vec<String> = study.plan.seeds.iter().map(u64::to_string).collect();
    format!(
        "{}; figures are means over them. Timelines are of the first. Seed 1 replays a recording as it is, others its blocks of time in another order",
        seeds.join(", ")
    )
}
