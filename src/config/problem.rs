//! Problems in what the user typed: collected, each with its place, and shown together.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// More problems than this are counted, but not listed: a file of the wrong kind would print thousands.
const MAX_LISTED: usize = 50;

/// Where a value was written: a key in a file, or a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spot {
    file: Option<Arc<str>>,
    line: Option<usize>,
    /// Key path (`groups[1].up_to_tokens`) or flag (`--port`). Empty for a file as a whole.
    pub(super) key: String,
}

impl Spot {
    /// A file as a whole.
    pub(super) fn file(name: &str) -> Self {
        Self { file: Some(name.into()), line: None, key: String::new() }
    }

    /// A flag, an environment variable, or a key that has its default.
    pub(super) fn named(key: &str) -> Self {
        Self { file: None, line: None, key: key.to_owned() }
    }

    /// The same file, at a line (counted from 1).
    pub(super) fn at(&self, line: usize) -> Self {
        Self { line: Some(line), ..self.clone() }
    }

    /// The same, with a line when there is none yet.
    pub(super) fn or_at(&self, line: usize) -> Self {
        Self { line: self.line.or(Some(line)), ..self.clone() }
    }

    /// The key `name` of the mapping at this spot.
    pub(super) fn child(&self, name: &str) -> Self {
        let key = if self.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.key) };
        Self { key, ..self.clone() }
    }

    /// The item `index` (from 0) of the list at this spot.
    pub(super) fn item(&self, index: usize) -> Self {
        Self { key: format!("{}[{index}]", self.key), ..self.clone() }
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(out, "{file}:")?;
            if let Some(line) = self.line {
                write!(out, "{line}:")?;
            }
            out.write_str(if self.key.is_empty() { "" } else { " " })?;
        }
        if self.key.is_empty() { Ok(()) } else { write!(out, "{}:", self.key) }
    }
}

/// A value that knows where it was written.
#[derive(Debug, Clone)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) spot: Spot,
}

impl<T> Located<T> {
    pub(super) fn new(value: T, spot: Spot) -> Self {
        Self { value, spot }
    }
}

/// One problem. Displayed as `FILE:LINE: KEY: what was found, what would be accepted`; never holds a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    spot: Spot,
    text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.spot, self.text)
    }
}

/// Why a configuration cannot be run: every problem that was found, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    problems: Vec<Problem>,
    unlisted: usize,
}

impl Refusal {
    /// The problems. Never empty; at most the first 50.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// How many more there are.
    #[must_use]
    pub fn unlisted(&self) -> usize {
        self.unlisted
    }
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            out.write_str(if index == 0 { "" } else { "\n" })?;
            write!(out, "error: {problem}")?;
        }
        if self.unlisted > 0 {
            write!(out, "\nerror: and {} more", self.unlisted)?;
        }
        Ok(())
    }
}

/// Collects while everything is read, so that one run shows all.
#[derive(Debug, Default)]
pub(super) struct Problems {
    collected: RefCell<Collected>,
}

#[derive(Debug, Default)]
struct Collected {
    errors: Vec<Problem>,
    unlisted: usize,
    warnings: Vec<Problem>,
    known_keys: BTreeSet<String>,
}

impl Problems {
    /// Adds a problem that forbids to start.
    pub(super) fn error(&self, spot: &Spot, text: impl Into<String>) {
        let mut collected = self.collected.borrow_mut();
        if collected.errors.len() < MAX_LISTED {
            collected.errors.push(Problem { spot: spot.clone(), text: text.into() });
        } else {
            collected.unlisted += 1;
        }
    }

    /// Adds something that the operator should know and that can be run.
    pub(super) fn warn(&self, spot: &Spot, text: impl Into<String>) {
        self.collected.borrow_mut().warnings.push(Problem { spot: spot.clone(), text: text.into() });
    }

    /// Whether further errors are only counted, so that their texts need not be made with much work.
    pub(super) fn is_full(&self) -> bool {
        self.collected.borrow().errors.len() >= MAX_LISTED
    }

    /// Whether nothing forbids to start so far.
    pub(super) fn none(&self) -> bool {
        self.collected.borrow().errors.is_empty()
    }

    /// Remembers that a key is one that the reader asks for. The path has no list indices (`groups[].name`).
    pub(super) fn note_known_key(&self, path: String) {
        self.collected.borrow_mut().known_keys.insert(path);
    }

    /// The keys noted.
    pub(super) fn into_known_keys(self) -> BTreeSet<String> {
        self.collected.into_inner().known_keys
    }

    /// `value` with the warnings when there was no problem.
    pub(super) fn finish<T>(self, value: Option<T>) -> Result<(T, Vec<Problem>), Refusal> {
        let Collected { mut errors, unlisted, warnings, .. } = self.collected.into_inner();
        match value {
            Some(value) if errors.is_empty() => Ok((value, warnings)),
            _ => {
                errors.sort_by_key(|problem| problem.spot.line);
                Err(Refusal { problems: errors, unlisted })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_file_line_and_key() {
        let spot = Spot::file("a.yaml").child("groups").item(1).child("name").at(7);
        let problem = Problem { spot, text: "missing, expected a name".into() };
        assert_eq!(problem.to_string(), "a.yaml:7: groups[1].name: missing, expected a name");
    }

    #[test]
    fn a_problem_with_a_flag_or_with_a_whole_file_has_no_line() {
        let flag = Problem { spot: Spot::named("--port"), text: "x".into() };
        let file = Problem { spot: Spot::file("a.yaml"), text: "x".into() };
        assert_eq!((flag.to_string(), file.to_string()), ("--port: x".into(), "a.yaml: x".into()));
    }

    #[test]
    fn problems_are_shown_in_the_order_of_the_file() {
        let problems = Problems::default();
        problems.error(&Spot::file("a").at(9), "later");
        problems.error(&Spot::file("a").at(2), "earlier");
        let refusal = problems.finish(Some(())).unwrap_err();
        assert_eq!(refusal.to_string(), "error: a:2: earlier\nerror: a:9: later");
    }

    #[test]
    fn problems_beyond_the_first_fifty_are_counted() {
        let problems = Problems::default();
        for line in 1..=53 {
            problems.error(&Spot::file("a").at(line), "x");
        }
        let refusal = problems.finish(Some(())).unwrap_err();
        assert_eq!(refusal.problems().len(), 50);
        assert!(refusal.to_string().ends_with("error: a:50: x\nerror: and 3 more"));
    }

    #[test]
    fn a_warning_does_not_forbid_to_start() {
        let problems = Problems::default();
        problems.warn(&Spot::named("user"), "has no effect");
        let (value, warnings) = problems.finish(Some(5)).unwrap();
        assert_eq!((value, warnings[0].to_string()), (5, "user: has no effect".into()));
    }
}
