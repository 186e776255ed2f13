//! The table of the page.

use std::fmt::Write;

use super::scale::{digits, time};
use super::svg::Escaped;
use crate::simulate::outcome::Summary;
use crate::simulate::study::Study;

/// A column: its head, how it reads a summary, and how that is written.
struct Column {
    group: &'static str,
    head: &'static str,
    value: fn(&Summary) -> f64,
    text: fn(f64) -> String,
    /// Whether more is better.
    is_gain: bool,
}

const fn seconds(group: &'static str, head: &'static str, value: fn(&Summary) -> f64) -> Column {
    Column { group, head, value, text: time, is_gain: false }
}

fn rate(value: f64) -> String {
    digits(value, 3)
}

fn share(value: f64) -> String {
    format!("{} %", digits(100.0 * value, 3))
}

const COLUMNS: [Column; 17] = [
    seconds("TTFT, short requests", "mean", |summary| summary.short_ttft.mean),
    seconds("TTFT, short requests", "p50", |summary| summary.short_ttft.p50),
    seconds("TTFT, short requests", "p90", |summary| summary.short_ttft.p90),
    seconds("TTFT, short requests", "p99", |summary| summary.short_ttft.p99),
    seconds("TTFT, long requests", "mean", |summary| summary.long_ttft.mean),
    seconds("TTFT, long requests", "p50", |summary| summary.long_ttft.p50),
    seconds("TTFT, long requests", "p90", |summary| summary.long_ttft.p90),
    seconds("TTFT, long requests", "p99", |summary| summary.long_ttft.p99),
    seconds("TTFT, all", "mean", |summary| summary.ttft.mean),
    seconds("latency, all", "mean", |summary| summary.latency.mean),
    seconds("latency, all", "p99", |summary| summary.latency.p99),
    seconds("TPOT, all", "mean", |summary| summary.tpot.mean),
    seconds("TPOT, all", "p99", |summary| summary.tpot.p99),
    Column { group: "targets", head: "met", value: |summary| summary.met_share, text: share, is_gain: true },
    Column { group: "targets", head: "goodput/s", value: |summary| summary.goodput_per_s, text: rate, is_gain: true },
    Column {
        group: "throughput",
        head: "requests/s",
        value: |summary| summary.requests_per_s,
        text: rate,
        is_gain: true,
    },
    Column {
        group: "throughput",
        head: "tokens/s",
        value: |summary| summary.output_tokens_per_s,
        text: rate,
        is_gain: true,
    },
];

pub(super) fn table(study: &Study) -> String {
    let mut text = String::from("<div class=\"scroll\"><table>\n<thead><tr><th></th><th></th>");
    let mut rest = &COLUMNS[..];
    while let Some(first) = rest.first() {
        let width = rest.iter().take_while(|column| column.group == first.group).count();
        add(&mut text, format_args!("<th class=\"group\" colspan=\"{width}\">{}</th>", first.group));
        rest = &rest[width..];
    }
    text.push_str("</tr>\n<tr><th>load</th><th>policy</th>");
    COLUMNS.iter().for_each(|column| add(&mut text, format_args!("<th>{}</th>", column.head)));
    text.push_str("</tr></thead>\n<tbody>\n");
    for load in 0..study.plan.loads.len() {
        let summaries: Vec<Summary> =
            (0..study.plan.contenders.len()).map(|contender| study.summary(load, contender)).collect();
        for (place, summary) in summaries.iter().enumerate() {
            text.push_str(if place == 0 && load > 0 { "<tr class=\"group\">" } else { "<tr>" });
            let name = &study.plan.contenders[place].name;
            add(&mut text, format_args!("<td>{}</td><td>{}</td>", Escaped(&study.load_name(load)), Escaped(name)));
            COLUMNS.iter().for_each(|column| cell(&mut text, column, summary, &summaries));
            text.push_str("</tr>\n");
        }
    }
    text.push_str("</tbody></table></div>\n");
    text
}

fn cell(text: &mut String, column: &Column, summary: &Summary, all: &[Summary]) {
    let value = (column.value)(summary);
    let values = all.iter().map(column.value);
    let best = if column.is_gain { values.fold(0.0, f64::max) } else { values.fold(f64::INFINITY, f64::min) };
    let written = (column.text)(value);
    // What is written alike is alike.
    let is_best = all.len() > 1 && written == (column.text)(best);
    let written = if value > 0.0 { written } else { "–".to_owned() };
    add(text, format_args!("<td{}>{written}</td>", if is_best && value > 0.0 { " class=\"best\"" } else { "" }));
}

fn add(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("text can be written to memory");
}
