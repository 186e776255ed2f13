//! YAML text to a small tree in which every node knows its line.
//!
//! Only what a configuration needs: one document of mappings, lists and scalars. Anchors, aliases, tags and nested
//! keys are refused: they hide where a value comes from.

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span, StrInput};

/// Deeper nesting than any configuration has; keeps recursion short.
const MAX_DEPTH: usize = 16;

/// A value with the line (counted from 1) where it begins.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Scalar { text: String, quoted: bool },
    List(Vec<Node>),
    Mapping(Vec<Entry>),
}

/// One `key: value`. Keys may repeat here; the reader reports it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) value: Node,
}

/// Why a text is no usable YAML.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) line: usize,
    pub(super) text: String,
}

impl Node {
    /// A node that holds nothing, as after `key:`.
    pub(super) fn nothing(line: usize) -> Self {
        Self { line, value: Value::Scalar { text: String::new(), quoted: false } }
    }

    /// The text of a scalar, quoted or not; `None` for anything else and for nothing.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, quoted } if *quoted || !is_nothing(text) => Some(text),
            _ => None,
        }
    }

    /// The text of a scalar without quotes: numbers and words such as `true` are not meant as such in quotes.
    pub(super) fn plain(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { quoted: true, .. } => None,
            _ => self.text(),
        }
    }

    /// Whether there is nothing after the key.
    pub(super) fn is_nothing(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, quoted: false } if is_nothing(text))
    }

    /// What kind of thing stands there, for a message that must not hold the text itself.
    pub(super) fn found_kind(&self) -> String {
        if self.text().is_some() { "a text".to_owned() } else { self.found() }
    }

    /// What stands there, for a message.
    pub(super) fn found(&self) -> String {
        match &self.value {
            Value::List(items) if items.is_empty() => "an empty list".to_owned(),
            Value::List(_) => "a list".to_owned(),
            Value::Mapping(_) => "a mapping".to_owned(),
            Value::Scalar { text, quoted: true } => shown(text, true),
            Value::Scalar { text, .. } if is_nothing(text) => "nothing".to_owned(),
            Value::Scalar { text, .. } => shown(text, text.contains(char::is_control)),
        }
    }
}

fn is_nothing(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// A text for a message: short, on one line, without what may be a password in an address.
pub(super) fn shown(text: &str, quoted: bool) -> String {
    const MAX_CHARS: usize = 60;
    let text = text.rsplit_once('@').map_or_else(|| text.to_owned(), |(_, host)| format!("***@{host}"));
    let mut short: String = text.chars().take(MAX_CHARS).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    if quoted { format!("{short:?}") } else { short }
}

/// Reads one document; `None` when the text holds nothing but comments.
pub(super) fn parse(text: &str) -> Result<Option<Node>, Fault> {
    let options = granit_parser::options! { emit_comments: false, emit_unresolved_aliases: true };
    let mut builder = Builder { text, parser: Parser::new_from_str_with_options(text, options), line: 1 };
    builder.document()
}

struct Builder<'t> {
    text: &'t str,
    parser: Parser<'t, StrInput<'t>>,
    /// The line of the latest event.
    line: usize,
}

impl<'t> Builder<'t> {
    fn document(&mut self) -> Result<Option<Node>, Fault> {
        let mut root = None;
        loop {
            match self.next()? {
                Event::StreamEnd => return Ok(root),
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) if root.is_some() => {
                    return Err(self.fault("a second document begins, expected one document: remove the `---`"));
                }
                Event::DocumentStart(..) => {
                    let event = self.next()?;
                    root = Some(self.node(&event, 0)?);
                }
                _ => return Err(self.fault("found a value outside of the document")),
            }
        }
    }

    fn next(&mut self) -> Result<Event<'t>, Fault> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => {
                self.line = line_of(&span);
                Ok(event)
            }
            Some(Err(error)) => Err(scan_fault(&error, self.text)),
            None => Err(self.fault("the file ends too early")),
        }
    }

    fn node(&mut self, event: &Event<'t>, depth: usize) -> Result<Node, Fault> {
        let line = self.line;
        if depth > MAX_DEPTH {
            return Err(self.fault("nested too deeply for a configuration"));
        }
        if event.alias_id().is_some() || matches!(event, Event::UnresolvedAlias(_)) {
            return Err(self.fault("aliases (`*name`) are not supported, expected the value itself"));
        }
        if event.anchor_id().is_some() {
            return Err(self.fault("anchors (`&name`) are not supported, expected the value alone"));
        }
        if event.tag().is_some() {
            return Err(self.fault("tags (`!name`) are not supported, expected the value alone"));
        }
        let value = match event {
            Event::Scalar(text, style, ..) => {
                Value::Scalar { text: text.clone().into_owned(), quoted: *style != ScalarStyle::Plain }
            }
            Event::SequenceStart(..) => self.list(depth)?,
            Event::MappingStart(..) => self.mapping(depth)?,
            _ => return Err(self.fault("expected a value")),
        };
        Ok(Node { line, value })
    }

    fn list(&mut self, depth: usize) -> Result<Value, Fault> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                Event::SequenceEnd => return Ok(Value::List(items)),
                event => items.push(self.node(&event, depth + 1)?),
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, Fault> {
        let mut entries = Vec::new();
        loop {
            let event = self.next()?;
            if event == Event::MappingEnd {
                return Ok(Value::Mapping(entries));
            }
            let key = self.node(&event, depth + 1)?;
            let Value::Scalar { text, .. } = key.value else {
                return Err(self.fault("found a list or mapping as a key, expected a word"));
            };
            let event = self.next()?;
            let mut value = self.node(&event, depth + 1)?;
            // The value may begin lines below its key, and nothing at all is placed at the next token.
            if value.is_nothing() {
                value.line = key.line;
            }
            entries.push(Entry { key: text, line: key.line, value });
        }
    }

    fn fault(&self, text: &str) -> Fault {
        Fault { line: self.line, text: text.to_owned() }
    }
}

fn line_of(span: &Span) -> usize {
    span.start.line()
}

fn scan_fault(error: &ScanError, text: &str) -> Fault {
    let line = error.marker().line();
    match error.kind() {
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabInPlainScalar => Fault {
            line: line_with_tab(text, line).unwrap_or(line),
            text: "a tab stands where YAML wants spaces, expected spaces".to_owned(),
        },
        kind => Fault { line, text: format!("not valid YAML: {kind}") },
    }
}

/// The first line from `from` on that is indented with a tab: the scanner names the line where the value began.
fn line_with_tab(text: &str, from: usize) -> Option<usize> {
    let indented = |line: &str| line.trim_start_matches(' ').starts_with('\t');
    let found = text.lines().enumerate().skip(from.saturating_sub(1)).find(|(_, line)| indented(line));
    found.map(|(index, _)| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> (usize, String) {
        let Fault { line, text } = parse(text).unwrap_err();
        (line, text)
    }

    fn mapping(text: &str) -> Vec<Entry> {
        let Some(Node { value: Value::Mapping(entries), .. }) = parse(text).unwrap() else {
            panic!("no mapping in {text}")
        };
        entries
    }

    #[test]
    fn nodes_know_their_lines() {
        let entries = mapping("# head\na: 1\nb:\n  - x\n  - y\nc:\n");
        let Value::List(items) = &entries[1].value.value else { panic!("b is a list") };
        assert_eq!((entries[0].line, entries[1].line, items[1].line), (2, 3, 5));
        assert_eq!((entries[2].line, entries[2].value.line), (6, 6));
    }

    #[test]
    fn quotes_tell_a_text_from_a_number() {
        let entries = mapping("a: 1\nb: \"1\"\nc: 'null'\n");
        assert_eq!((entries[0].value.plain(), entries[1].value.plain()), (Some("1"), None));
        assert_eq!((entries[1].value.text(), entries[2].value.text()), (Some("1"), Some("null")));
    }

    #[test]
    fn every_way_to_write_nothing_is_nothing() {
        for text in ["a:", "a: ~", "a: null"] {
            assert!(mapping(text)[0].value.is_nothing(), "{text}");
        }
    }

    #[test]
    fn text_without_a_document_is_none() {
        for text in ["", "\n", "# only this\n"] {
            assert!(parse(text).unwrap().is_none(), "{text:?}");
        }
    }

    #[test]
    fn a_tab_is_called_a_tab() {
        let expected = "a tab stands where YAML wants spaces, expected spaces".to_owned();
        assert_eq!(fault("a:\n\tb: 1\n"), (2, expected.clone()));
        assert_eq!(fault("a:\n  b: 1\n\tc: 1\n"), (3, expected));
    }

    #[test]
    fn what_hides_the_source_of_a_value_is_refused() {
        assert!(fault("a: &x 1\nb: *x\n").1.starts_with("anchors"));
        assert!(fault("a: *x\n").1.starts_with("aliases"));
        assert!(fault("a: !!str 1\n").1.starts_with("tags"));
        assert_eq!(fault("a: 1\n---\nb: 2\n").0, 2);
        assert!(fault("? [a]\n: b\n").1.contains("as a key"));
    }

    #[test]
    fn nesting_is_limited() {
        let deep = format!("a: {}{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(fault(&deep), (1, "nested too deeply for a configuration".to_owned()));
    }

    #[test]
    fn long_texts_are_shortened_in_messages() {
        assert_eq!(shown(&"x".repeat(100), false), format!("{}...", "x".repeat(60)));
        assert_eq!(shown("a\nb", true), "\"a\\nb\"");
        assert_eq!(shown("http://me:secret@host:80", false), "***@host:80");
    }
}
