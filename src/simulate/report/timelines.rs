//! What the servers did, a row for each: a bar filled by what its steps computed, and above it how many short requests
//! waited there for their first token. So one sees them pile up behind a long prompt, or not.

use std::fmt::Write;

use super::scale::Scale;
use super::svg::{Anchor, Number, Svg};
use crate::simulate::as_f64;
use crate::simulate::engine::Activity;
use crate::simulate::timeline::{Change, Timeline};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 10.0;

/// Height of the bar of a server, of the space above it for who waits, and of the pause below it.
const BAR: f64 = 11.0;
const ABOVE: f64 = 20.0;
const PAUSE: f64 = 5.0;
const ROW: f64 = ABOVE + BAR + PAUSE;

/// More servers would be no rows any more; the last ones are drawn, because lanes are there.
const MOST_SERVERS: usize = 16;

/// Peaks of so many and more short requests are written beside them.
const PEAK_FROM: usize = 5;

/// Most short requests that waited on one server, to draw several timelines on one scale.
pub(super) fn most_waiting(timeline: &Timeline) -> usize {
    timeline.servers.iter().flatten().map(|change| change.state.short_waiting).max().unwrap_or(0)
}

/// Draws a recording.
pub(super) fn figure(timeline: &Timeline, most_waiting: usize, words: &str) -> String {
    let servers = timeline.servers.len();
    let first = servers.saturating_sub(MOST_SERVERS);
    let holds = timeline.balancer.iter().any(|change| change.state.held > 0);
    let rows = servers - first + usize::from(holds);
    let floor = ROW * as_f64(rows as u64) + 2.0;
    let window = timeline.window;
    let across = Scale::linear([window.from_s, window.to_s], [LEFT, WIDTH - RIGHT]);
    let mut svg = Svg::new(WIDTH, floor + 34.0, words);
    let span_s = window.to_s - window.from_s;
    for tick in Scale::linear([0.0, span_s], [0.0, 1.0]).ticks() {
        let x = across.pixel(window.from_s + tick);
        svg.line("grid", [x, 0.0], [x, floor]);
        svg.text("tick", [x, floor + 14.0], Anchor::Middle, &format!("{tick:.0} s"));
    }
    svg.text(
        "name",
        [f64::midpoint(LEFT, WIDTH - RIGHT), floor + 30.0],
        Anchor::Middle,
        "time from the begin of the window",
    );
    let mut top = 0.0;
    if holds {
        draw_held(&mut svg, timeline, across, top);
        top += ROW;
    }
    for server in first..servers {
        draw_server(&mut svg, timeline, server, most_waiting, across, top);
        top += ROW;
    }
    svg.finish()
}

fn draw_server(svg: &mut Svg, timeline: &Timeline, server: usize, most_waiting: usize, across: Scale, top: f64) {
    let (changes, window) = (&timeline.servers[server], timeline.window);
    let bar = top + ABOVE;
    svg.text("label", [LEFT - 8.0, bar + BAR - 1.5], Anchor::End, &format!("server {server}"));
    svg.rect("idle", [LEFT, bar], [WIDTH - RIGHT - LEFT, BAR]);
    for (class, activities) in [
        ("long", &[Activity::LongPrefill][..]),
        ("short", &[Activity::LongPrefill, Activity::ShortPrefill]),
        ("decode", &[Activity::LongPrefill, Activity::ShortPrefill, Activity::Decoding]),
    ]
    .into_iter()
    .rev()
    {
        let busy = |change: &Change<_>| activities.contains(&activity(change));
        let shares = shares(changes, [window.from_s, window.to_s], columns(), busy);
        svg.path(class, &columns_path(&shares, bar + BAR));
    }
    let waiting = |change: &Change<crate::simulate::ServerState>| change.state.short_waiting;
    draw_steps(svg, "waiting", changes, waiting, most_waiting, timeline, across, bar - 1.0, PEAK_FROM);
    let is_lane = |change: &Change<crate::simulate::BalancerState>| change.state.lanes.contains(&server);
    for (index, change) in timeline.balancer.iter().enumerate().filter(|(_, change)| is_lane(change)) {
        let end_s = timeline.balancer.get(index + 1).map_or(window.to_s, |next| next.at_s);
        let [from, to] = [change.at_s, end_s].map(|at_s| across.pixel(at_s));
        svg.rect("lane", [from, bar + BAR + 1.0], [to - from, 2.0]);
    }
}

fn activity(change: &Change<crate::simulate::ServerState>) -> Activity {
    change.state.activity
}

fn draw_held(svg: &mut Svg, timeline: &Timeline, across: Scale, top: f64) {
    let base = top + ABOVE + BAR;
    let held = |change: &Change<crate::simulate::BalancerState>| change.state.held;
    let most = timeline.balancer.iter().map(held).max().unwrap_or(0);
    svg.text("label", [LEFT - 8.0, base - 1.5], Anchor::End, "held long");
    draw_steps(svg, "held", &timeline.balancer, held, most, timeline, across, base, 1);
    svg.line("axis", [LEFT, base], [WIDTH - RIGHT, base]);
}

/// A number over time, as an area with steps, its highest peak written beside it.
#[expect(clippy::too_many_arguments, reason = "what, where and how large; a type for it would be used twice")]
fn draw_steps<T>(
    svg: &mut Svg,
    class: &str,
    changes: &[Change<T>],
    number: impl Fn(&Change<T>) -> usize,
    most: usize,
    timeline: &Timeline,
    across: Scale,
    base: f64,
    peak_from: usize,
) {
    let up = (ABOVE - 3.0) / as_f64(most.max(1) as u64);
    let mut points = vec![[across.pixel(timeline.window.from_s), base]];
    let (mut peak, mut last_x) = ((0, 0.0), f64::NEG_INFINITY);
    for (index, change) in changes.iter().enumerate() {
        let (x, value) = (across.pixel(change.at_s), number(change));
        let end = changes.get(index + 1).map_or(across.pixel(timeline.window.to_s), |next| across.pixel(next.at_s));
        peak = if value > peak.0 { (value, x) } else { peak };
        // What lasts less than a third of a pixel is left out unless it is the peak so far.
        if end - x < 0.33 && x - last_x < 0.33 && value < peak.0 {
            continue;
        }
        last_x = x;
        let y = base - up * as_f64(value as u64);
        points.push([x, points[points.len() - 1][1]]);
        points.push([x, y]);
    }
    points.push([across.pixel(timeline.window.to_s), points[points.len() - 1][1]]);
    points.push([across.pixel(timeline.window.to_s), base]);
    svg.area(class, &points);
    if peak.0 >= peak_from {
        let y = (base - up * as_f64(peak.0 as u64) + 6.0).min(base - 2.0);
        svg.text("peak", [peak.1 - 3.0, y], Anchor::End, &peak.0.to_string());
    }
}

/// One column for each pixel.
fn columns() -> usize {
    whole(WIDTH - LEFT - RIGHT)
}

/// For each of so many equal stretches of time, the share of it in which something was so.
fn shares<T>(
    changes: &[Change<T>],
    [from_s, to_s]: [f64; 2],
    columns: usize,
    is_so: impl Fn(&Change<T>) -> bool,
) -> Vec<f64> {
    let mut shares = vec![0.0; columns];
    let per_second = as_f64(columns as u64) / (to_s - from_s);
    for (index, change) in changes.iter().enumerate().filter(|(_, change)| is_so(change)) {
        let end_s = changes.get(index + 1).map_or(to_s, |next| next.at_s);
        let [begin, end] = [change.at_s, end_s].map(|at_s| ((at_s - from_s) * per_second).max(0.0));
        let mut column = whole(begin);
        while column < columns && as_f64(column as u64) < end {
            let left = as_f64(column as u64);
            shares[column] += end.min(left + 1.0) - begin.max(left);
            column += 1;
        }
    }
    shares
}

/// Columns of a height, side by side on a base line, as one shape. Heights are rounded to half a pixel, and equal
/// neighbours are one step, to keep the page small.
fn columns_path(shares: &[f64], base: f64) -> String {
    let height = |share: f64| (2.0 * share.clamp(0.0, 1.0) * BAR).round() / 2.0;
    let mut path = format!("M{} {}", Number(LEFT), Number(base));
    let (mut present, mut run) = (0.0, 0_u64);
    for share in shares {
        let next = height(*share);
        if (next - present).abs() > 0.1 {
            if run > 0 {
                write!(path, "h{run}").expect("text can be written to memory");
            }
            write!(path, "v{}", Number(present - next)).expect("text can be written to memory");
            (present, run) = (next, 0);
        }
        run += 1;
    }
    write!(path, "h{run}V{}Z", Number(base)).expect("text can be written to memory");
    path
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "pixels of a figure")]
fn whole(pixels: f64) -> usize {
    pixels.max(0.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_time_add_up_within_columns() {
        let changes = [(0.0, true), (1.5, false), (3.0, true)].map(|(at_s, state)| Change { at_s, state });
        assert_eq!(shares(&changes, [0.0, 4.0], 4, |change| change.state), [1.0, 0.5, 0.0, 1.0]);
        assert_eq!(shares(&changes, [0.0, 4.0], 2, |change| change.state), [0.75, 0.5]);
    }

    #[test]
    fn equal_columns_are_one_step() {
        assert_eq!(columns_path(&[1.0, 1.0, 0.5, 0.0], 20.0), "M74 20v-11h2v5.5h1v5.5h1V20Z");
        assert_eq!(columns_path(&[0.0, 0.0], 20.0), "M74 20h2V20Z");
    }
}
