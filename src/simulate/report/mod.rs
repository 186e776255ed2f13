//! A study as one HTML page: figures, table, and how to get it again. It needs nothing but itself: no script, no font, no
//! network.

mod curves;
mod distribution;
mod facts;
mod palette;
mod plot;
mod scale;
mod svg;
mod tabular;
mod timelines;
mod window;

use std::fmt::Write;

use super::compare::{Figure, change};
use super::outcome::Summary;
use super::overview::{CANDIDATE, REFERENCE, percent};
use super::study::Study;
use scale::{digits, time};
use svg::Escaped;

/// Policies whose timelines are drawn, as far as they were simulated: more would be a wall of bars.
const DRAWN: [&str; 3] = [REFERENCE, "least_work", CANDIDATE];

/// The load that distributions and timelines are of is the one nearest to this.
const USUAL_LOAD: f64 = 0.8;

/// The page. `command` is what was typed to get it.
#[must_use]
pub fn html(study: &Study, command: &str) -> String {
    let mut page = Page { study, load: usual_load(study), text: String::new() };
    page.head();
    page.curves();
    page.timelines();
    page.distributions();
    page.add("<h2>All figures</h2>\n<p class=\"soft\">The best of each load is bold. TTFT: time to first token; TPOT: time per output token after the first.</p>\n");
    page.text.push_str(&tabular::table(study));
    page.text.push_str(&facts::facts(study, command));
    page.add("</body>\n</html>\n");
    page.text
}

fn usual_load(study: &Study) -> usize {
    let distance = |load: &usize| (study.load_share(*load) - USUAL_LOAD).abs();
    (0..study.plan.loads.len()).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
}

struct Page<'s> {
    study: &'s Study,
    /// The load of what is of one load.
    load: usize,
    text: String,
}

impl Page<'_> {
    fn add(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn head(&mut self) {
        let study = self.study;
        let title = format!("{}, {} servers: routing policies in simulation", study.traffic, study.plan.servers);
        write!(
            self.text,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <style>\n{}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<p class=\"soft\">{}</p>\n",
            include_str!("style.css"),
            Escaped(&super::table::describe(study)),
            title = Escaped(&title),
        )
        .expect("text can be written to memory");
        self.tiles();
    }

    /// The reference and the candidate in four figures.
    fn tiles(&mut self) {
        let Some((reference, candidate)) = self.study.contender(REFERENCE).zip(self.study.contender(CANDIDATE)) else {
            return;
        };
        let load = self.load;
        let (before, after) = (self.study.summary(load, reference), self.study.summary(load, candidate));
        let mut tiles = String::new();
        for (figure, name) in [
            (Figure::ShortTtftP99, "short requests, p99 TTFT"),
            (Figure::LongTtftMean, "long requests, mean TTFT"),
            (Figure::TtftMean, "all requests, mean TTFT"),
        ] {
            let Some(change) = change(self.study, load, [reference, candidate], figure) else { continue };
            let (before, after) = (time(change.before), time(change.after));
            let (share, low, high) = (percent(change.share), percent(change.low), percent(change.high));
            writeln!(tiles, "<li><span>{name}</span><b>{before} → {after}</b><span>{share} % (90 % interval {low} to {high} %)</span></li>")
                .expect("text can be written to memory");
        }
        let share = |summary: Summary| format!("{} %", digits(100.0 * summary.met_share, 3));
        let (before_share, after_share) = (share(before), share(after));
        let (before, after) = (digits(before.goodput_per_s, 3), digits(after.goodput_per_s, 3));
        writeln!(tiles, "<li><span>requests that meet their targets</span><b>{before_share} → {after_share}</b><span>goodput {before} → {after} requests/s</span></li>")
            .expect("text can be written to memory");
        let load = self.load_text();
        write!(
            self.text,
            "<ul class=\"tiles\">\n{tiles}</ul>\n<p class=\"soft\">{REFERENCE} → {CANDIDATE}, at {load}.</p>\n"
        )
        .expect("text can be written to memory");
    }

    fn load_text(&self) -> String {
        format!("{:.0} % load", 100.0 * self.study.load_share(self.load))
    }

    fn curves(&mut self) {
        let title = if self.study.plan.loads.len() > 1 { "Waiting against load" } else { "Waiting" };
        write!(self.text, "<h2>{title}</h2>\n<p class=\"soft\">Time to first token")
            .expect("text can be written to memory");
        self.add(if self.study.plan.seeds.len() > 1 {
            "; the shaded range is that of the seeds.</p>\n"
        } else {
            ".</p>\n"
        });
        self.add("<div class=\"panels\">\n");
        let figures: [(&str, curves::Figure); 6] = [
            ("Short requests, median", |summary| summary.short_ttft.p50),
            ("Short requests, p99", |summary| summary.short_ttft.p99),
            ("Long requests, mean", |summary| summary.long_ttft.mean),
            ("Long requests, p99", |summary| summary.long_ttft.p99),
            ("All requests, mean", |summary| summary.ttft.mean),
            ("All requests, mean latency to the last token", |summary| summary.latency.mean),
        ];
        for (title, value) in figures {
            if let Some(svg) = curves::figure(self.study, title, value) {
                self.figure("", title, &svg);
            }
        }
        self.add("</div>\n");
    }

    fn timelines(&mut self) {
        let drawn = DRAWN.iter().filter_map(|name| self.study.contender(name));
        let mut drawn: Vec<usize> = drawn.collect();
        if drawn.is_empty() {
            drawn = (0..self.study.plan.contenders.len().min(DRAWN.len())).collect();
        }
        let Some(worst) = drawn.first().copied() else { return };
        let window = window::of(self.study, self.load, worst);
        let recorded: Vec<_> =
            drawn.iter().map(|place| (*place, self.study.record(self.load, *place, 0, window))).collect();
        let most = recorded.iter().map(|(_, timeline)| timelines::most_waiting(timeline)).max().unwrap_or(0);
        let (name, load, span) =
            (&self.study.plan.contenders[worst].name, self.load_text(), window.to_s - window.from_s);
        write!(
            self.text,
            "<h2>What the servers do</h2>\n<p>The {span:.0} seconds in which short requests waited longest under {}, at {load}, and the same \
             requests under the others. A bar is filled by what a server computes; the dark area above it is how many short requests wait there for \
             their first token, on one scale in all figures, its peak as a number.</p>\n{KEY}",
            Escaped(name),
        )
        .expect("text can be written to memory");
        for (place, timeline) in recorded {
            let name = &self.study.plan.contenders[place].name;
            let title = format!("{name}: {}", window::waited(self.study, self.load, place, window));
            let svg = timelines::figure(&timeline, most, &title);
            self.figure("wide", &title, &svg);
        }
    }

    fn distributions(&mut self) {
        let load = self.load_text();
        let figures = [("Short requests", false), ("Long requests", true)];
        let drawn = figures.map(|(title, is_long)| {
            let title = format!("{title}, at {load}");
            distribution::figure(self.study, self.load, is_long, &title).map(|svg| (title, svg))
        });
        if drawn.iter().all(Option::is_none) {
            return;
        }
        self.add("<h2>Distribution of the time to first token</h2>\n<p class=\"soft\">Cumulative: above 99 % stands what all but one of a hundred requests had to wait at most.</p>\n<div class=\"panels\">\n");
        for (title, svg) in drawn.into_iter().flatten() {
            self.figure("", &title, &svg);
        }
        self.add("</div>\n");
    }

    fn figure(&mut self, class: &str, title: &str, svg: &str) {
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        write!(self.text, "<figure{class}><h3>{}</h3>\n<div class=\"scroll\">{svg}</div></figure>\n", Escaped(title))
            .expect("text can be written to memory");
    }
}

const KEY: &str = "<ul class=\"key\">\
<li><i style=\"background:var(--long)\"></i>prefill of a long prompt</li>\
<li><i style=\"background:var(--short)\"></i>prefill of short prompts</li>\
<li><i style=\"background:var(--decode)\"></i>decoding only</li>\
<li><i style=\"border:1px solid var(--soft)\"></i>idle</li>\
<li><i style=\"background:var(--waiting)\"></i>short requests waiting</li>\
<li><i style=\"background:var(--lane);height:.25em;vertical-align:.2em\"></i>the server is a lane</li>\
</ul>\n";
