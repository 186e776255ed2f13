//! The strict reader: asks a mapping for its keys, and reports every key that nobody asked for.
//!
//! A value is read by a function from [`Node`] to a value or to what would be accepted ("a port from 1 to 65535").

use std::collections::HashMap;

use super::nearest::nearest;
use super::problem::{Located, Problems, Spot};
use super::yaml::{Entry, Node, Value};

/// What a reader function returns: the value, or what would be accepted.
pub(super) type Parsed<T> = Result<T, String>;

/// One mapping while it is read.
pub(super) struct Section<'a> {
    spot: Spot,
    entries: HashMap<&'a str, &'a Entry>,
    /// Keys in the order of the file, for reports in that order.
    order: Vec<&'a Entry>,
    asked: Vec<&'static str>,
    /// It is no mapping, which is reported: its keys are not reported as missing.
    broken: bool,
    problems: &'a Problems,
}

/// One item of a list.
pub(super) struct Item<'a> {
    /// Where it stands.
    pub(super) spot: Spot,
    node: &'a Node,
    problems: &'a Problems,
}

impl<'a> Section<'a> {
    /// Reads a mapping with `read`, then reports the keys that it did not ask for. Without a node, or with nothing in
    /// it, all keys are absent.
    pub(super) fn read<T>(
        node: Option<&'a Node>,
        spot: Spot,
        problems: &'a Problems,
        read: impl FnOnce(&mut Section<'a>) -> T,
    ) -> T {
        let mut section =
            Self { spot, entries: HashMap::new(), order: Vec::new(), asked: Vec::new(), broken: false, problems };
        if let Some(node) = node {
            section.fill(node);
        }
        let value = read(&mut section);
        section.report_unknown_keys();
        value
    }

    fn fill(&mut self, node: &'a Node) {
        let Value::Mapping(entries) = &node.value else {
            if !node.is_nothing() {
                self.broken = true;
                let spot = self.spot.or_at(node.line);
                self.problems.error(&spot, format!("found {}, expected a mapping of keys", node.found()));
            }
            return;
        };
        for entry in entries {
            if let Some(first) = self.entries.get(entry.key.as_str()) {
                let spot = self.spot_of(entry);
                self.problems.error(&spot, format!("given twice, first on line {}; expected it once", first.line));
            } else {
                self.entries.insert(&entry.key, entry);
                self.order.push(entry);
            }
        }
    }

    /// Where a key stands that may be anything: short, and on one line.
    fn spot_of(&self, entry: &Entry) -> Spot {
        let key = super::yaml::shown(&entry.key, entry.key.contains(char::is_control));
        self.spot.child(&key).at(entry.line)
    }

    fn take(&mut self, key: &'static str) -> Option<(&'a Node, Spot)> {
        self.asked.push(key);
        let entry = self.entries.get(key)?;
        let line = if matches!(entry.value.value, Value::Scalar { .. }) { entry.value.line } else { entry.line };
        Some((&entry.value, self.spot.child(key).at(line)))
    }

    /// Whether the key stands in the file, with a good value or a bad one. True when the whole section is refused.
    pub(super) fn has(&self, key: &str) -> bool {
        self.broken || self.entries.contains_key(key)
    }

    /// Where this mapping stands.
    pub(super) fn spot(&self) -> &Spot {
        &self.spot
    }

    /// Reports a problem with a value of this section.
    pub(super) fn error(&self, spot: &Spot, text: impl Into<String>) {
        self.problems.error(spot, text);
    }

    /// The value of a key; `None` when it is absent or refused.
    pub(super) fn value<T>(&mut self, key: &'static str, parse: impl Fn(&Node) -> Parsed<T>) -> Option<Located<T>> {
        let (node, spot) = self.take(key)?;
        accept(node, spot, self.problems, parse, Node::found)
    }

    /// Like [`Self::value`] for a text that must not stand in a message.
    pub(super) fn secret<T>(&mut self, key: &'static str, parse: impl Fn(&Node) -> Parsed<T>) -> Option<Located<T>> {
        let (node, spot) = self.take(key)?;
        accept(node, spot, self.problems, parse, Node::found_kind)
    }

    /// The value of a key that must be there.
    pub(super) fn required<T>(&mut self, key: &'static str, parse: impl Fn(&Node) -> Parsed<T>) -> Option<Located<T>> {
        if !self.has(key)
            && let Err(expected) = parse(&Node::nothing(0))
        {
            self.problems.error(&self.spot.child(key), format!("missing, expected {expected}"));
        }
        self.value(key, parse)
    }

    /// Reports a key that is no longer known, when it is there. `instead` says what to do.
    pub(super) fn gone(&mut self, key: &str, instead: &str) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.retain(|other| other.key != key);
            self.problems.error(&self.spot.child(key).at(entry.line), format!("no longer known, {instead}"));
        }
    }

    /// Replaces `target` when the key is there.
    pub(super) fn set<T>(&mut self, key: &'static str, target: &mut T, parse: impl Fn(&Node) -> Parsed<T>) {
        if let Some(given) = self.value(key, parse) {
            *target = given.value;
        }
    }

    /// Like [`Self::set`] for a value that may be off: `none`.
    pub(super) fn set_or_none<T>(
        &mut self,
        key: &'static str,
        target: &mut Option<T>,
        parse: impl Fn(&Node) -> Parsed<T>,
    ) {
        self.set(key, target, or_none(parse));
    }

    /// Reads the mapping below a key, whether it is there or not.
    pub(super) fn section<T>(&mut self, key: &'static str, read: impl FnOnce(&mut Section<'a>) -> T) -> T {
        let (node, spot) = match self.take(key) {
            Some((node, spot)) => (Some(node), spot),
            None => (None, self.spot.child(key)),
        };
        Section::read(node, spot, self.problems, read)
    }

    /// The items of a list that may be absent. `what` says what is listed ("servers").
    pub(super) fn list(&mut self, key: &'static str, what: &str) -> Option<Vec<Item<'a>>> {
        let (node, spot) = self.take(key)?;
        match &node.value {
            Value::List(items) => Some(self.items(items, &spot)),
            _ => {
                self.problems.error(&spot, format!("found {}, expected a list of {what}", node.found()));
                None
            }
        }
    }

    /// The items of a list that must be there and hold at least one. Empty when that is not so, which is reported.
    pub(super) fn filled_list(&mut self, key: &'static str, what: &str) -> Vec<Item<'a>> {
        if !self.has(key) {
            self.problems.error(&self.spot.child(key), format!("missing, expected a list of {what}"));
        }
        let Some(items) = self.list(key, what) else { return Vec::new() };
        if items.is_empty() {
            let spot = self.entries.get(key).map_or_else(|| self.spot.clone(), |entry| self.spot.at(entry.line));
            self.problems.error(&spot.child(key), format!("found an empty list, expected at least one of {what}"));
        }
        items
    }

    /// The values of a key that holds one or a list of at least one; `None` when it is absent or refused.
    pub(super) fn one_or_more<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&Node) -> Parsed<T>,
    ) -> Option<Vec<Located<T>>> {
        let (node, spot) = self.take(key)?;
        let values: Vec<_> = match &node.value {
            Value::List(items) if !items.is_empty() => {
                self.items(items, &spot).iter().filter_map(|item| item.value(&parse)).collect()
            }
            _ => accept(node, spot, self.problems, parse, Node::found).into_iter().collect(),
        };
        (!values.is_empty()).then_some(values)
    }

    fn items(&self, nodes: &'a [Node], list: &Spot) -> Vec<Item<'a>> {
        let item = |(index, node): (usize, &'a Node)| Item {
            spot: list.item(index).at(node.line),
            node,
            problems: self.problems,
        };
        nodes.iter().enumerate().map(item).collect()
    }

    fn report_unknown_keys(self) {
        for key in &self.asked {
            self.problems.note_known_key(without_indices(&self.spot.child(key).key));
        }
        for entry in &self.order {
            if self.asked.contains(&entry.key.as_str()) {
                continue;
            }
            // When nobody will read the text, it is not worth the time that nearness costs.
            let near = if self.problems.is_full() { None } else { nearest(&entry.key, &self.asked) };
            let text = match near {
                Some(near) => format!("unknown key, did you mean {near}?"),
                None => format!("unknown key, expected one of: {}", self.asked.join(", ")),
            };
            self.problems.error(&self.spot_of(entry), text);
        }
    }
}

impl<'a> Item<'a> {
    /// Whether it is a mapping of keys.
    pub(super) fn is_mapping(&self) -> bool {
        matches!(self.node.value, Value::Mapping(_))
    }

    /// Its value; `None` when it is refused.
    pub(super) fn value<T>(&self, parse: impl Fn(&Node) -> Parsed<T>) -> Option<Located<T>> {
        accept(self.node, self.spot.clone(), self.problems, parse, Node::found)
    }

    /// Reads it as a mapping.
    pub(super) fn section<T>(&self, read: impl FnOnce(&mut Section<'a>) -> T) -> T {
        Section::read(Some(self.node), self.spot.clone(), self.problems, read)
    }
}

fn accept<T>(
    node: &Node,
    spot: Spot,
    problems: &Problems,
    parse: impl Fn(&Node) -> Parsed<T>,
    found: fn(&Node) -> String,
) -> Option<Located<T>> {
    match parse(node) {
        Ok(value) => Some(Located::new(value, spot)),
        Err(expected) => {
            problems.error(&spot, format!("found {}, expected {expected}", found(node)));
            None
        }
    }
}

/// Lets the word `none` stand for "off".
pub(super) fn or_none<T>(parse: impl Fn(&Node) -> Parsed<T>) -> impl Fn(&Node) -> Parsed<Option<T>> {
    move |node| match node.plain() {
        Some("none") => Ok(None),
        _ => parse(node).map(Some).map_err(|expected| format!("{expected}, or none")),
    }
}

/// `groups[].name` for `groups[1].name`.
fn without_indices(path: &str) -> String {
    let mut kept = String::new();
    let mut inside = false;
    for c in path.chars() {
        inside = c == '[' || (inside && c != ']');
        if !inside || c == '[' {
            kept.push(c);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::super::yaml::parse;
    use super::*;

    fn text(node: &Node) -> Parsed<String> {
        node.text().map(str::to_owned).ok_or_else(|| "a text".to_owned())
    }

    /// Reads the YAML with `read` and returns the problems.
    fn problems_of(yaml: &str, read: impl FnOnce(&mut Section<'_>)) -> String {
        let root = parse(yaml).unwrap();
        let problems = Problems::default();
        Section::read(root.as_ref(), Spot::file("f"), &problems, read);
        problems.finish(Some(())).map_or_else(|refusal| refusal.to_string(), |_| String::new())
    }

    #[test]
    fn a_key_that_nobody_asks_for_is_reported_with_the_nearest_known_one() {
        let found = problems_of("thresold: 1\nzzz: 2\n", |section| {
            section.value("threshold", text);
            section.value("ties", text);
        });
        assert_eq!(
            found,
            "error: f:1: thresold: unknown key, did you mean threshold?\n\
             error: f:2: zzz: unknown key, expected one of: threshold, ties"
        );
    }

    #[test]
    fn a_key_that_stands_twice_is_reported_with_both_lines() {
        let found = problems_of("a: 1\nb: 1\na: 2\n", |section| {
            section.value("a", text);
            section.value("b", text);
        });
        assert_eq!(found, "error: f:3: a: given twice, first on line 1; expected it once");
        let odd = problems_of("\"a\\nb\": 1\n\"a\\nb\": 2\n", |_| ());
        assert_eq!(odd.lines().last(), Some("error: f:2: \"a\\nb\": given twice, first on line 1; expected it once"));
    }

    #[test]
    fn problems_in_nested_sections_and_lists_carry_the_whole_path() {
        let found = problems_of("s:\n  list:\n    - a: [1]\n    - 5\n", |section| {
            section.section("s", |section| {
                for item in section.filled_list("list", "things") {
                    item.section(|section| section.required("a", text));
                }
            });
        });
        assert_eq!(
            found,
            "error: f:3: s.list[0].a: found a list, expected a text\n\
             error: f:4: s.list[1]: found 5, expected a mapping of keys"
        );
    }

    #[test]
    fn a_missing_key_and_an_empty_list_say_what_is_expected() {
        let found = problems_of("l: []\n", |section| {
            section.required("a", text);
            section.filled_list("l", "servers");
            section.filled_list("m", "groups");
        });
        assert_eq!(
            found,
            "error: f: a: missing, expected a text\n\
             error: f: m: missing, expected a list of groups\n\
             error: f:1: l: found an empty list, expected at least one of servers"
        );
    }

    #[test]
    fn a_section_with_nothing_in_it_is_an_empty_one() {
        let found = problems_of("s:\n", |section| section.section("s", |section| assert!(!section.has("a"))));
        assert_eq!(found, "");
    }

    #[test]
    fn none_is_off_only_without_quotes() {
        let mut targets = [Some("x".to_owned()), Some("x".to_owned())];
        let [off, on] = &mut targets;
        problems_of("a: none\nb: \"none\"\n", |section| {
            section.set_or_none("a", off, text);
            section.set_or_none("b", on, text);
        });
        assert_eq!(targets, [None, Some("none".to_owned())]);
    }

    #[test]
    fn one_value_or_a_list_of_them_is_taken() {
        for (yaml, values) in [("a: x", vec!["x"]), ("a: [x, y]", vec!["x", "y"])] {
            problems_of(yaml, |section| {
                let found = section.one_or_more("a", text).unwrap();
                assert_eq!(found.into_iter().map(|found| found.value).collect::<Vec<_>>(), values);
            });
        }
    }
}
