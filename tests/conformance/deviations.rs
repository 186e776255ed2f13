//! Where Tidegate differs from the example on purpose: one table, and the judge that holds every line against it.
//!
//! `DEVIATIONS.md` is the same table for people; a test compares the two.

use serde_json::Value;

use crate::vectors::{Line, lines};

/// Why Tidegate differs. Explained in `DEVIATIONS.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    Informational,
    BudgetClamped,
    MeasuresAnyway,
    ExactUnits,
    RefusedAtStart,
    LeasesHaveNoIds,
    ServersAreNumbered,
}

impl Reason {
    /// As written in the last column of the table for people.
    fn for_people(self) -> &'static str {
        match self {
            Self::Informational => "informational",
            Self::BudgetClamped => "budget clamped",
            Self::MeasuresAnyway => "measured anyway",
            Self::ExactUnits => "exact units",
            Self::RefusedAtStart => "refused at start",
            Self::LeasesHaveNoIds => "leases have no ids",
            Self::ServersAreNumbered => "servers are numbered",
        }
    }
}

/// What Tidegate does instead.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Instead {
    /// Construction fails with this message.
    Refuses(&'static str),
    /// The scenario runs by Tidegate's rules, all loads exact and zero at the end. See `proxy` and `algo`.
    RunsByItsOwnRules,
    /// The body counts with this output budget in thousandths of a token, and `ignore_eos` as false.
    Budget(u64),
    /// The single call has this result.
    Returns(f64),
    /// The neighbour's score is not above any threshold: the request stays.
    Stays,
    /// The two servers are two.
    TellsApart,
}

/// One row of the table.
#[derive(Debug)]
pub(crate) struct Deviation {
    pub(crate) file: &'static str,
    /// Name of a scenario or case; `*` stands for any text.
    pub(crate) pattern: &'static str,
    pub(crate) reason: Reason,
    pub(crate) instead: Instead,
}

const fn row(file: &'static str, pattern: &'static str, reason: Reason, instead: Instead) -> Deviation {
    Deviation { file, pattern, reason, instead }
}

use Instead::{Budget, Refuses, Returns, RunsByItsOwnRules, Stays, TellsApart};
use Reason::{
    BudgetClamped, ExactUnits, Informational, LeasesHaveNoIds, MeasuresAnyway, RefusedAtStart, ServersAreNumbered,
};

const PROXY: &str = "proxy_edge.jsonl";
const ALGO: &str = "algo_edge.jsonl";
const LOAD_ONLY: &str = "algo_nostandard.jsonl";
const CALLS: &str = "pure_functions.jsonl";
const BODIES: &str = "request_bodies.jsonl";

/// Bodies whose budget counts as 2^32 tokens, in thousandths.
const MOST: Instead = Budget((1 << 32) * 1_000);
const DEFAULT: Instead = Budget(16_000);

pub(crate) const DEVIATIONS: &[Deviation] = &[
    row(PROXY, "plain-infinity-poisons", Informational, RunsByItsOwnRules),
    row(PROXY, "plain-nan-poisons", Informational, RunsByItsOwnRules),
    row(PROXY, "plain-max-tokens-types", MeasuresAnyway, RunsByItsOwnRules),
    row(PROXY, "plain-negative-score-attracts", BudgetClamped, RunsByItsOwnRules),
    row(PROXY, "plain-float-drift", ExactUnits, RunsByItsOwnRules),
    row(PROXY, "plain-release-twice", LeasesHaveNoIds, RunsByItsOwnRules),
    row(PROXY, "dynamic-duplicate-id", LeasesHaveNoIds, RunsByItsOwnRules),
    row(PROXY, "dynamic-release-unknown", LeasesHaveNoIds, RunsByItsOwnRules),
    row(PROXY, "dynamic-threshold-zero", RefusedAtStart, Refuses("bucket 0 is empty: 0 is not below 0")),
    row(
        PROXY,
        "dynamic-threshold-equals-max",
        RefusedAtStart,
        Refuses("bucket 1 is empty: 131072 is not below 131072"),
    ),
    row(PROXY, "dynamic-threshold-above-max", RefusedAtStart, Refuses("bucket 1 is empty: 200000 is not below 131072")),
    row(PROXY, "dynamic-threshold-negative", RefusedAtStart, Refuses("-5 is below zero")),
    row(PROXY, "dynamic-max-zero", RefusedAtStart, Refuses("bucket 1 is empty: 32768 is not below 0")),
    row(ALGO, "duplicate-id", LeasesHaveNoIds, RunsByItsOwnRules),
    row(ALGO, "release-unknown", LeasesHaveNoIds, RunsByItsOwnRules),
    row(ALGO, "release-all", LeasesHaveNoIds, RunsByItsOwnRules),
    row(ALGO, "negative-residue-fractional-sensitivity-raises", ExactUnits, RunsByItsOwnRules),
    row(ALGO, "drift-17-10-sens0.5", ExactUnits, RunsByItsOwnRules),
    row(ALGO, "drift-1.1-102-sens0.5", ExactUnits, RunsByItsOwnRules),
    row(ALGO, "drift-1.1-120-sens0.5", ExactUnits, RunsByItsOwnRules),
    row(ALGO, "drift-1.1-2*-sens0.5", ExactUnits, RunsByItsOwnRules),
    row(ALGO, "drift-absorb-201-sens0.5", ExactUnits, RunsByItsOwnRules),
    row(ALGO, "overlapping-*", RefusedAtStart, Refuses("bucket 1 begins at 50, before bucket 0 ends at 100")),
    row(ALGO, "zero-width-and-inverted", RefusedAtStart, Refuses("bucket 1 is empty: 10 is not below 10")),
    row(ALGO, "no-buckets", RefusedAtStart, Refuses("at least one bucket is needed")),
    row(ALGO, "negative-sensitivity", RefusedAtStart, Refuses("sensitivity must be a finite number above 0")),
    row(
        ALGO,
        "huge-negative-affinity-overflow",
        RefusedAtStart,
        Refuses("affinity strength must be a finite number of at least 0"),
    ),
    row(ALGO, "nostandard-num--1", RefusedAtStart, Refuses("-1 is below zero")),
    row(LOAD_ONLY, "nostd-n5-max6-*", RefusedAtStart, Refuses("bucket 3 is empty: 6 is not below 6")),
    row(LOAD_ONLY, "nostd-n8-max3-*", RefusedAtStart, Refuses("bucket 3 is empty: 3 is not below 3")),
    row(CALLS, "affinity/length-inside-the-neighbour", MeasuresAnyway, Returns(1.0)),
    row(
        CALLS,
        "affinity/negative-strength",
        RefusedAtStart,
        Refuses("affinity strength must be a finite number of at least 0"),
    ),
    row(
        CALLS,
        "affinity/overlapping-buckets",
        RefusedAtStart,
        Refuses("bucket 1 begins at 50, before bucket 0 ends at 100"),
    ),
    row(CALLS, "affinity/empty-buckets", RefusedAtStart, Refuses("bucket 1 is empty: 10 is not below 10")),
    row(
        CALLS,
        "redirect_probability/sensitivity-not-above-zero",
        RefusedAtStart,
        Refuses("sensitivity must be a finite number above 0"),
    ),
    row(CALLS, "redirect_probability/load-below-zero", ExactUnits, Stays),
    row(CALLS, "server_eq/two-names-of-this-machine", ServersAreNumbered, TellsApart),
    row(BODIES, "body-8", BudgetClamped, MOST),
    row(BODIES, "body-9", BudgetClamped, DEFAULT),
    row(BODIES, "body-10", BudgetClamped, DEFAULT),
    row(BODIES, "body-11", BudgetClamped, MOST),
    row(BODIES, "body-12", BudgetClamped, MOST),
    row(BODIES, "body-13", BudgetClamped, MOST),
    row(BODIES, "body-14", MeasuresAnyway, DEFAULT),
    row(BODIES, "body-15", MeasuresAnyway, DEFAULT),
    row(BODIES, "body-20", MeasuresAnyway, DEFAULT),
    row(BODIES, "body-21", MeasuresAnyway, DEFAULT),
    row(BODIES, "body-22", MeasuresAnyway, DEFAULT),
    row(BODIES, "body-23", MeasuresAnyway, DEFAULT),
    row(BODIES, "body-24", MeasuresAnyway, DEFAULT),
    row(BODIES, "body-25", MeasuresAnyway, DEFAULT),
    row(BODIES, "body-26", MeasuresAnyway, DEFAULT),
];

/// How the lines of one file are replayed.
pub(crate) trait Replays {
    /// The name of the line's scenario or case, as patterns match it.
    fn name(&self, line: &Value) -> String;

    /// Replays the line; an error is the first difference between Tidegate and the example.
    fn replay(&self, line: &Value) -> Result<(), String>;

    /// Checks that Tidegate does what is listed instead. Panics when it does not.
    fn check_instead(&self, line: &Value, instead: Instead);
}

/// Replays a whole file and holds it against the table. Returns the number of lines.
pub(crate) fn judge(file: &str, how: &dyn Replays) -> usize {
    let lines = lines(file);
    let rows: Vec<_> = DEVIATIONS.iter().filter(|row| row.file == file).collect();
    let mut used = vec![false; rows.len()];
    for Line { number, value } in &lines {
        let name = how.name(value);
        let listed = rows.iter().position(|row| matches(row.pattern, &name));
        match (how.replay(value), listed) {
            (Ok(()), None) => {}
            (Err(difference), None) => panic!("{file}:{number} {name}: unlisted difference: {difference}"),
            (Ok(()), Some(row)) => {
                panic!("{file}:{number} {name}: agrees, but is listed as deviating ({:?})", rows[row].reason)
            }
            (Err(_), Some(row)) => {
                used[row] = true;
                let is_informational = value["informational"] == true;
                assert_eq!(is_informational, rows[row].reason == Informational, "{file}:{number} {name}");
                how.check_instead(value, rows[row].instead);
            }
        }
    }
    for (row, used) in rows.iter().zip(used) {
        assert!(used, "{file}: no line is named {}", row.pattern);
    }
    lines.len()
}

/// Whether a name matches a pattern, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| matches(tail, &rest[at..]))
        }),
    }
}

/// The message with which construction failed, compared with the listed one.
pub(crate) fn assert_refused<T: std::fmt::Debug>(construction: Result<T, String>, listed: &str) {
    assert_eq!(construction.expect_err("the construction is listed as refused"), listed);
}

#[test]
fn a_star_matches_any_text_and_nothing_else_does() {
    for (pattern, name) in [("a", "a"), ("*", ""), ("a*", "a"), ("a*c", "abbc"), ("*b*", "abc"), ("a*c", "acc")] {
        assert!(matches(pattern, name), "{pattern} {name}");
    }
    for (pattern, name) in [("a", "ab"), ("a", ""), ("a*c", "ab"), ("a*", "ba"), ("a*c", "abcd"), ("", "a")] {
        assert!(!matches(pattern, name), "{pattern} {name}");
    }
}

/// The rows of the table in `DEVIATIONS.md`: file (its heading), pattern (in backquotes in the first cell, one or
/// more) and reason (the last cell).
fn rows_for_people() -> Vec<(&'static str, &'static str, &'static str)> {
    let mut file = "";
    let mut rows = Vec::new();
    for line in include_str!("DEVIATIONS.md").lines() {
        if let Some(heading) = line.strip_prefix("## `") {
            file = heading.trim_end_matches('`');
        } else if let Some(cells) = line.strip_prefix("| `").and_then(|cells| cells.strip_suffix(" |")) {
            let cells: Vec<_> = cells.split(" | ").collect();
            let [patterns, _example, _tidegate, reason] = cells[..] else { panic!("not four cells: {line}") };
            rows.extend(patterns.trim_end_matches('`').split("`, `").map(|pattern| (file, pattern, reason)));
        }
    }
    rows
}

#[test]
fn the_table_for_people_names_the_same_deviations() {
    let mut for_people = rows_for_people();
    let mut in_code: Vec<_> = DEVIATIONS.iter().map(|row| (row.file, row.pattern, row.reason.for_people())).collect();
    for_people.sort_unstable();
    in_code.sort_unstable();
    assert_eq!(for_people, in_code);
}
