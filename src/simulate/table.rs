//! A study as tables: Markdown that lines up in a terminal.

use std::io::{self, Write};

use super::outcome::{Distribution, LONG_FROM_TOKENS, Summary};
use super::study::Study;

/// Writes what was simulated and what came out.
///
/// # Errors
/// When the output fails.
pub fn write(study: &Study, output: &mut impl Write) -> io::Result<()> {
    writeln!(output, "{}\n", describe(study))?;
    writeln!(output, "Time to first token (TTFT) in seconds:\n")?;
    let heads = ["load", "policy", "short mean", "p50", "p90", "p99", "long mean", "p50", "p90", "p99", "all mean"];
    lay_out(&heads, &rows(study, ttft), output)?;
    writeln!(
        output,
        "\nLatency in seconds; time per output token (TPOT) in milliseconds; targets {}:\n",
        study.plan.slo
    )?;
    let heads = [
        "load",
        "policy",
        "latency mean",
        "p99",
        "tpot mean",
        "p99",
        "short tpot mean",
        "p99",
        "met targets",
        "goodput req/s",
        "req/s",
        "output tokens/s",
    ];
    lay_out(&heads, &rows(study, rest), output)?;
    output.flush()
}

/// What was simulated, in a sentence or two.
#[must_use]
pub fn describe(study: &Study) -> String {
    let plan = &study.plan;
    let requests = study.jobs[0].len();
    let long = study.jobs[0].iter().filter(|job| job.prompt_tokens >= LONG_FROM_TOKENS).count();
    let seeds: Vec<String> = plan.seeds.iter().map(u64::to_string).collect();
    let seeds =
        if seeds.len() == 1 { format!("seed {}", seeds[0]) } else { format!("means of seeds {}", seeds.join(", ")) };
    let too_large = match study.too_large {
        0 => String::new(),
        count => format!(" {count} more fit into no KV cache and are left out."),
    };
    format!(
        "{requests} requests ({}), {long} of them long (32k tokens and more); {} servers {}; {seeds}. At its own speed the load is {:.2}.{too_large}",
        study.traffic, plan.servers, plan.profile.name, study.natural[0],
    )
}

fn rows(study: &Study, cells: fn(&Summary) -> Vec<String>) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for load in 0..study.plan.loads.len() {
        for (contender, named) in study.plan.contenders.iter().enumerate() {
            let mut row = vec![study.load_name(load), named.name.clone()];
            row.extend(cells(&study.summary(load, contender)));
            rows.push(row);
        }
    }
    rows
}

fn ttft(summary: &Summary) -> Vec<String> {
    let all = |Distribution { count, mean, p50, p90, p99 }: Distribution| {
        [mean, p50, p90, p99].map(|figure| if count == 0 { "-".to_owned() } else { format!("{figure:.2}") })
    };
    let mut cells = Vec::from(all(summary.short_ttft));
    cells.extend(all(summary.long_ttft));
    cells.push(format!("{:.2}", summary.ttft.mean));
    cells
}

fn rest(summary: &Summary) -> Vec<String> {
    let Summary { latency, tpot, short_tpot, .. } = summary;
    let milliseconds = |seconds: f64| format!("{:.0}", 1e3 * seconds);
    vec![
        format!("{:.2}", latency.mean),
        format!("{:.1}", latency.p99),
        milliseconds(tpot.mean),
        milliseconds(tpot.p99),
        milliseconds(short_tpot.mean),
        milliseconds(short_tpot.p99),
        format!("{:.1} %", 100.0 * summary.met_share),
        format!("{:.2}", summary.goodput_per_s),
        format!("{:.2}", summary.requests_per_s),
        format!("{:.0}", summary.output_tokens_per_s),
    ]
}

/// Writes a table whose columns line up: texts to the left (as many as there are before the first number), numbers to the
/// right.
pub(super) fn lay_out(heads: &[&str], rows: &[Vec<String>], output: &mut impl Write) -> io::Result<()> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].chars().count(), 3]).max().unwrap_or(3)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let is_text =
        |column: usize| rows.iter().all(|row| !row[column].starts_with(|c: char| c.is_ascii_digit() || c == '-'));
    let texts: Vec<bool> = (0..heads.len()).map(is_text).collect();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        for ((cell, width), is_text) in cells.zip(&widths).zip(&texts) {
            if *is_text { write!(output, "| {cell:<width$} ")? } else { write!(output, "| {cell:>width$} ")? }
        }
        writeln!(output, "|")
    };
    line(&mut heads.iter().copied())?;
    let rules: Vec<String> = widths
        .iter()
        .zip(&texts)
        .map(|(width, is_text)| if *is_text { "-".repeat(*width) } else { format!("{}:", "-".repeat(width - 1)) })
        .collect();
    line(&mut rules.iter().map(String::as_str))?;
    rows.iter().try_for_each(|row| line(&mut row.iter().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_it_is_markdown() {
        let mut output = Vec::new();
        let rows = [["lanes", "0.5"], ["reference_bucket", "-"]].map(|row| row.map(str::to_owned).to_vec());
        lay_out(&["policy", "short mean"], &rows, &mut output).unwrap();
        let expected = "\
| policy           | short mean |
| ---------------- | ---------: |
| lanes            |        0.5 |
| reference_bucket |          - |
";
        assert_eq!(String::from_utf8(output).unwrap(), expected);
    }
}
