//! A figure over the load, one line for each policy. With a single load: a dot for each policy.

use super::palette;
use super::plot::{ACROSS, Line, draw};
use super::scale::{Scale, time};
use super::svg::{Anchor, Svg};
use crate::simulate::outcome::Summary;
use crate::simulate::study::Study;

/// A number of a summary, in seconds.
pub(super) type Figure = fn(&Summary) -> f64;

/// Draws it; nothing when no request has the figure.
pub(super) fn figure(study: &Study, words: &str, figure: Figure) -> Option<String> {
    let contenders = 0..study.plan.contenders.len();
    let loads = study.plan.loads.len();
    if contenders.clone().all(|contender| (0..loads).all(|load| figure(&study.summary(load, contender)) <= 0.0)) {
        return None;
    }
    Some(if loads == 1 { dots(study, words, figure) } else { lines(study, words, figure) })
}

fn lines(study: &Study, words: &str, figure: Figure) -> String {
    let mut order: Vec<usize> = (0..study.plan.loads.len()).collect();
    order.sort_by(|a, b| study.load_share(*a).total_cmp(&study.load_share(*b)));
    let shares = order.iter().map(|load| study.load_share(*load));
    let across = Scale::linear([shares.clone().fold(2.0, f64::min), shares.fold(0.0, f64::max)], inner(ACROSS));
    let percent = |load: usize| format!("{:.0} %", 100.0 * study.load_share(load));
    let x = |load: usize| across.pixel(study.load_share(load));
    let ticks: Vec<(f64, String)> = order.iter().map(|load| (x(*load), percent(*load))).collect();
    let line = |(contender, named): (usize, &crate::simulate::Contender)| {
        let value = |load: usize| figure(&study.summary(load, contender));
        Line {
            name: named.name.clone(),
            points: order.iter().map(|load| [x(*load), value(*load)]).collect(),
            band: order.iter().map(|load| range(study, *load, contender, figure)).collect(),
            words: order
                .iter()
                .map(|load| format!("{} at {}: {}", named.name, percent(*load), time(value(*load))))
                .collect(),
        }
    };
    let lines: Vec<Line> = study.plan.contenders.iter().enumerate().map(line).collect();
    draw(words, "load", &ticks, &lines)
}

/// Lines begin a little inside of the frame.
fn inner([left, right]: [f64; 2]) -> [f64; 2] {
    [left + 10.0, right - 4.0]
}

/// Least and most over the seeds.
fn range(study: &Study, load: usize, contender: usize, figure: Figure) -> [f64; 2] {
    let values = study.runs(load, contender).iter().map(|run| figure(&run.summary));
    values.fold([f64::INFINITY, 0.0], |[least, most], value| [least.min(value), most.max(value)])
}

const ROW: f64 = 24.0;

fn dots(study: &Study, words: &str, figure: Figure) -> String {
    let contenders = &study.plan.contenders;
    let floor = 8.0 + ROW * crate::simulate::as_f64(contenders.len() as u64);
    let (left, right) = (112.0, 356.0);
    let ranges: Vec<[f64; 2]> = (0..contenders.len()).map(|contender| range(study, 0, contender, figure)).collect();
    let across = Scale::of_times(ranges.iter().flatten().copied(), [left + 6.0, right]);
    let mut svg = Svg::new(420.0, floor + 24.0, words);
    for tick in across.ticks() {
        let x = across.pixel(tick);
        svg.line("grid", [x, 4.0], [x, floor]);
        svg.text("tick", [x, floor + 15.0], Anchor::Middle, &time(tick));
    }
    let mut y = 8.0 + ROW / 2.0;
    for ((contender, named), [least, most]) in contenders.iter().enumerate().zip(ranges) {
        let (class, value) = (palette::class(&named.name), figure(&study.summary(0, contender)));
        svg.text(&format!("label {class}"), [left - 6.0, y + 3.8], Anchor::End, &named.name);
        svg.line(&format!("line {class}"), [across.pixel(least), y], [across.pixel(most), y]);
        svg.dot(&format!("dot {class}"), [across.pixel(value), y], &format!("{}: {}", named.name, time(value)));
        svg.text("value", [across.pixel(most) + 8.0, y + 3.8], Anchor::Start, &time(value));
        y += ROW;
    }
    svg.finish()
}
