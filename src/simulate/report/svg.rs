//! The little of SVG that the figures need. Coordinates are pixels of the figure's own size; it scales with the page.

use std::fmt::{Display, Write};

/// A figure that is being drawn.
#[derive(Debug)]
pub(super) struct Svg {
    text: String,
}

/// Which end of a text is at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// An empty figure, with what it shows in words for whoever cannot see it.
    pub(super) fn new(width: f64, height: f64, words: &str) -> Self {
        let (width, height) = (Number(width), Number(height));
        let mut svg = Self { text: String::new() };
        svg.add(format_args!(
            "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">\n",
            Escaped(words)
        ));
        svg
    }

    pub(super) fn line(&mut self, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
        let [x1, y1, x2, y2] = [x1, y1, x2, y2].map(Number);
        self.add(format_args!("<path class=\"{class}\" d=\"M{x1} {y1}L{x2} {y2}\"/>\n"));
    }

    /// A line through points.
    pub(super) fn polyline(&mut self, class: &str, points: &[[f64; 2]]) {
        self.shape(class, points, "");
    }

    /// The area within points.
    pub(super) fn area(&mut self, class: &str, points: &[[f64; 2]]) {
        self.shape(class, points, "Z");
    }

    fn shape(&mut self, class: &str, points: &[[f64; 2]], end: &str) {
        if points.is_empty() {
            return;
        }
        self.add(format_args!("<path class=\"{class}\" d=\""));
        for (index, [x, y]) in points.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            self.add(format_args!("{command}{} {}", Number(*x), Number(*y)));
        }
        self.add(format_args!("{end}\"/>\n"));
    }

    /// A shape from a path that was put together elsewhere.
    pub(super) fn path(&mut self, class: &str, path: &str) {
        self.add(format_args!("<path class=\"{class}\" d=\"{path}\"/>\n"));
    }

    pub(super) fn rect(&mut self, class: &str, [x, y]: [f64; 2], [width, height]: [f64; 2]) {
        let [x, y, width, height] = [x, y, width, height].map(Number);
        self.add(format_args!("<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>\n"));
    }

    /// A point that tells its value when it is pointed at.
    pub(super) fn dot(&mut self, class: &str, [x, y]: [f64; 2], words: &str) {
        let [x, y] = [x, y].map(Number);
        self.add(format_args!(
            "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"3.2\"><title>{}</title></circle>\n",
            Escaped(words)
        ));
    }

    pub(super) fn text(&mut self, class: &str, [x, y]: [f64; 2], anchor: Anchor, text: &str) {
        let [x, y] = [x, y].map(Number);
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        self.add(format_args!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\"{anchor}>{}</text>\n", Escaped(text)));
    }

    pub(super) fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    fn add(&mut self, arguments: std::fmt::Arguments<'_>) {
        self.text.write_fmt(arguments).expect("text can be written to memory");
    }
}

/// A coordinate with a tenth of a pixel.
#[derive(Clone, Copy)]
pub(super) struct Number(pub(super) f64);

impl Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // What is no number would spoil the whole figure.
        let tenths = if self.0.is_finite() { (10.0 * self.0).round() } else { 0.0 };
        // Without the sign of a negative zero.
        write!(f, "{}", tenths / 10.0 + 0.0)
    }
}

/// Text that may stand in HTML, in an attribute too.
pub(super) struct Escaped<'t>(pub(super) &'t str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_written_with_tenths_of_pixels() {
        let mut svg = Svg::new(10.0, 5.0, "a & b");
        svg.polyline("a", &[[0.0, 1.26], [f64::NAN, 2.0]]);
        svg.area("b", &[[0.0, 0.0], [1.0, -0.01], [1.0, 1.0]]);
        svg.polyline("never", &[]);
        svg.text("t", [1.0, 2.0], Anchor::End, "<\"x\">");
        let expected = "<svg viewBox=\"0 0 10 5\" role=\"img\" aria-label=\"a &amp; b\">\n\
            <path class=\"a\" d=\"M0 1.3L0 2\"/>\n\
            <path class=\"b\" d=\"M0 0L1 0L1 1Z\"/>\n\
            <text class=\"t\" x=\"1\" y=\"2\" text-anchor=\"end\">&lt;&quot;x&quot;&gt;</text>\n</svg>\n";
        assert_eq!(svg.finish(), expected);
    }
}
