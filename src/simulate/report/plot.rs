//! Lines over an axis, each with its name at its end: the frame that curves and distributions share.

use super::palette;
use super::scale::{Scale, time};
use super::svg::{Anchor, Svg};

/// The size of a figure, of which several stand side by side on a screen and below each other on a phone.
const SIZE: [f64; 2] = [420.0, 270.0];

/// What the figure keeps free at its sides: for ticks, for names, for nothing, for ticks.
const LEFT: f64 = 48.0;
const RIGHT: f64 = 120.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 40.0;

/// Names that are closer are moved apart.
const NAME_HEIGHT: f64 = 13.0;

/// The horizontal ends of the plotted area.
pub(super) const ACROSS: [f64; 2] = [LEFT, SIZE[0] - RIGHT];

/// One line.
#[derive(Debug)]
pub(super) struct Line {
    /// Whose.
    pub(super) name: String,
    /// Pixels across, and seconds.
    pub(super) points: Vec<[f64; 2]>,
    /// Least and most seconds over the seeds at each point, or nothing.
    pub(super) band: Vec<[f64; 2]>,
    /// What each point says when it is pointed at; no points are drawn when there is none.
    pub(super) words: Vec<String>,
}

/// A value of the horizontal axis: where and what.
pub(super) type Tick = (f64, String);

/// Draws lines of seconds over an axis.
pub(super) fn draw(words: &str, axis: &str, ticks: &[Tick], lines: &[Line]) -> String {
    let [width, height] = SIZE;
    let (floor, [left, right]) = (height - BOTTOM, ACROSS);
    let values = lines.iter().flat_map(|line| line.points.iter().map(|[_, seconds]| *seconds));
    let bands = lines.iter().flat_map(|line| line.band.iter().flatten().copied());
    let up = Scale::of_times(values.chain(bands), [floor, TOP]);
    let mut svg = Svg::new(width, height, words);
    for tick in up.ticks() {
        let y = up.pixel(tick);
        svg.line("grid", [left, y], [right, y]);
        svg.text("tick", [left - 6.0, y + 3.6], Anchor::End, &time(tick));
    }
    for (x, text) in ticks {
        svg.line("mark", [*x, floor], [*x, floor + 4.0]);
        svg.text("tick", [*x, floor + 16.0], Anchor::Middle, text);
    }
    svg.line("axis", [left, floor], [right, floor]);
    svg.text("name", [f64::midpoint(left, right), height - 5.0], Anchor::Middle, axis);
    for line in lines {
        draw_line(&mut svg, &up, line);
    }
    let ends = lines.iter().filter_map(|line| Some((line.name.as_str(), up.pixel(line.points.last()?[1]))));
    for (name, y, label_y) in apart(ends.collect(), [TOP + 6.0, floor + 4.0]) {
        let class = palette::class(name);
        if (y - label_y).abs() > 2.0 {
            svg.line("leader", [right + 3.0, y], [right + 11.0, label_y]);
        }
        svg.text(&format!("label {class}"), [right + 14.0, label_y + 3.8], Anchor::Start, name);
    }
    svg.finish()
}

fn draw_line(svg: &mut Svg, up: &Scale, line: &Line) {
    let class = palette::class(&line.name);
    let edge = |end: usize| line.points.iter().zip(&line.band).map(move |([x, _], band)| [*x, up.pixel(band[end])]);
    let band: Vec<[f64; 2]> = edge(1).chain(edge(0).rev()).collect();
    svg.area(&format!("band {class}"), &band);
    let points: Vec<[f64; 2]> = line.points.iter().map(|[x, seconds]| [*x, up.pixel(*seconds)]).collect();
    svg.polyline(&format!("line {class}"), &points);
    for (point, words) in points.iter().zip(&line.words) {
        svg.dot(&format!("dot {class}"), *point, words);
    }
}

/// Places names so that none covers another, each as near to its line as can be: name, where the line ends, where the name
/// goes.
fn apart(mut ends: Vec<(&str, f64)>, [top, bottom]: [f64; 2]) -> Vec<(&str, f64, f64)> {
    ends.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut places: Vec<f64> = ends.iter().map(|(_, y)| y.clamp(top, bottom)).collect();
    // Each pass moves neighbours apart by half of what is missing; a few hundred settle any figure.
    for _ in 0..300 {
        for index in 1..places.len() {
            let missing = NAME_HEIGHT - (places[index] - places[index - 1]);
            if missing > 0.0 {
                places[index - 1] = (places[index - 1] - missing / 2.0).max(top);
                places[index] = (places[index] + missing / 2.0).min(bottom);
            }
        }
    }
    ends.into_iter().zip(places).map(|((name, y), place)| (name, y, place)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_cover_each_other_and_stay_within() {
        let ends = vec![("a", 50.0), ("b", 50.0), ("c", 51.0), ("d", 199.0), ("e", 200.0), ("f", 10.0)];
        let places = apart(ends, [10.0, 200.0]);
        assert_eq!(places.len(), 6);
        for pair in places.windows(2) {
            assert!(pair[1].2 - pair[0].2 > NAME_HEIGHT - 0.5, "{places:?}");
        }
        assert!(places.iter().all(|(_, _, place)| (9.9..=200.1).contains(place)), "{places:?}");
        assert_eq!(places[0].0, "f");
    }

    #[test]
    fn a_line_has_its_name_its_points_and_its_band() {
        let line = Line {
            name: "lanes".into(),
            points: vec![[60.0, 1.0], [200.0, 2.0]],
            band: vec![[0.5, 1.5], [1.0, 3.0]],
            words: vec!["1 s".into(), "2 s".into()],
        };
        let svg = draw("words", "load", &[(60.0, "60 %".into())], &[line]);
        for expected in ["class=\"band ", "class=\"line ", ">lanes</text>", "<title>2 s</title>", ">60 %</text>"] {
            assert!(svg.contains(expected), "{expected}: {svg}");
        }
    }
}
