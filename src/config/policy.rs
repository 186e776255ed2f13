//! The `policy` section.

use super::problem::{Located, Problems, Spot};
use super::section::Section;
use super::value;
use crate::balance::{Neighbours, RedirectTuning, Ties};

/// Which policy was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    ReferencePlain,
    ReferenceBucket,
}

const KINDS: [(&str, Kind); 2] =
    [("reference_bucket", Kind::ReferenceBucket), ("reference_plain", Kind::ReferencePlain)];

const NEIGHBOURS: [(&str, Neighbours); 2] = [("adjacent", Neighbours::Adjacent), ("all", Neighbours::All)];

const TIES: [(&str, Ties); 2] = [("least_recently_used", Ties::LeastRecentlyUsed), ("first", Ties::First)];

/// The section as it was typed: what is absent here gets the example's values.
#[derive(Debug)]
pub(super) struct PolicyDraft {
    pub(super) kind: Located<Kind>,
    pub(super) ties: Ties,
    sensitivity: Option<Located<f64>>,
    affinity_strength: Option<Located<f64>>,
    redirect_threshold: Option<Located<f64>>,
    neighbours: Option<Located<Neighbours>>,
    load_only: Option<Located<bool>>,
}

impl PolicyDraft {
    /// A policy with nothing tuned.
    pub(super) fn new(kind: Located<Kind>, ties: Ties) -> Self {
        let (sensitivity, affinity_strength, redirect_threshold) = (None, None, None);
        Self { kind, ties, sensitivity, affinity_strength, redirect_threshold, neighbours: None, load_only: None }
    }

    /// Reads the section; an absent kind is `reference_bucket`, absent ties are `least_recently_used`.
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let kind = section.value("kind", value::choice(&KINDS)).unwrap_or_else(|| {
            // A refused kind counts as the one that asks least of the groups: one problem is enough.
            let kind = if section.has("kind") { Kind::ReferencePlain } else { Kind::ReferenceBucket };
            Located::new(kind, section.spot().child("kind"))
        });
        let mut draft = Self::new(kind, Ties::LeastRecentlyUsed);
        draft.sensitivity = section.value("sensitivity", value::positive);
        draft.affinity_strength = section.value("affinity_strength", value::not_negative);
        draft.redirect_threshold = section.value("redirect_threshold", value::not_negative);
        draft.neighbours = section.value("neighbours", value::choice(&NEIGHBOURS));
        draft.load_only = section.value("load_only", value::switch);
        section.set("ties", &mut draft.ties, value::choice(&TIES));
        draft
    }

    /// The tuning of the bucket policy. Reports what contradicts `load_only`.
    pub(super) fn tuning(&self, problems: &Problems) -> RedirectTuning {
        let load_only = self.load_only.as_ref().is_some_and(|given| given.value);
        let mut tuning = if load_only { RedirectTuning::load_only() } else { RedirectTuning::default() };
        replace(&mut tuning.threshold, self.redirect_threshold.as_ref());
        if load_only {
            for spot in self.replaced_by_load_only() {
                problems.error(spot, "set by load_only: true, expected either this key or load_only");
            }
            return tuning;
        }
        replace(&mut tuning.sensitivity, self.sensitivity.as_ref());
        replace(&mut tuning.affinity_strength, self.affinity_strength.as_ref());
        replace(&mut tuning.neighbours, self.neighbours.as_ref());
        tuning
    }

    /// Warns of tuning that the plain policy does not use.
    pub(super) fn warn_of_unused_tuning(&self, problems: &Problems) {
        let others = [self.redirect_threshold.as_ref().map(|given| &given.spot), self.load_only.as_ref().map(spot_of)];
        for spot in self.replaced_by_load_only().chain(others.into_iter().flatten()) {
            problems.warn(spot, "has no effect with policy.kind reference_plain");
        }
    }

    fn replaced_by_load_only(&self) -> impl Iterator<Item = &Spot> {
        let (sensitivity, strength) = (self.sensitivity.as_ref(), self.affinity_strength.as_ref());
        let spots = [sensitivity.map(spot_of), strength.map(spot_of), self.neighbours.as_ref().map(spot_of)];
        spots.into_iter().flatten()
    }
}

fn spot_of<T>(given: &Located<T>) -> &Spot {
    &given.spot
}

fn replace<T: Copy>(target: &mut T, given: Option<&Located<T>>) {
    if let Some(given) = given {
        *target = given.value;
    }
}

#[cfg(test)]
mod tests {
    use super::super::yaml::parse;
    use super::*;

    fn read(yaml: &str) -> (RedirectTuning, Ties, String) {
        let root = parse(yaml).unwrap();
        let problems = Problems::default();
        let draft = Section::read(root.as_ref(), Spot::file("f"), &problems, PolicyDraft::read);
        let tuning = draft.tuning(&problems);
        let found = problems.finish(Some(())).map_or_else(|refusal| refusal.to_string(), |_| String::new());
        (tuning, draft.ties, found)
    }

    #[test]
    fn an_empty_section_is_the_example_with_rotating_ties() {
        assert_eq!(read(""), (RedirectTuning::default(), Ties::LeastRecentlyUsed, String::new()));
    }

    #[test]
    fn every_key_tunes() {
        let yaml = "sensitivity: 2\naffinity_strength: 0.5\nredirect_threshold: 0.3\nneighbours: all\nties: first\n";
        let tuning =
            RedirectTuning { sensitivity: 2.0, affinity_strength: 0.5, threshold: 0.3, neighbours: Neighbours::All };
        assert_eq!(read(yaml), (tuning, Ties::First, String::new()));
    }

    #[test]
    fn load_only_keeps_the_threshold_that_is_given() {
        let expected = RedirectTuning { threshold: 0.2, ..RedirectTuning::load_only() };
        assert_eq!(read("load_only: true\nredirect_threshold: 0.2\n").0, expected);
        assert_eq!(read("load_only: false\nsensitivity: 2\n").0.sensitivity.to_bits(), 2.0_f64.to_bits());
    }

    #[test]
    fn load_only_contradicts_what_it_sets() {
        let found = read("load_only: true\nsensitivity: 2\nneighbours: all\n").2;
        assert_eq!(
            found,
            "error: f:2: sensitivity: set by load_only: true, expected either this key or load_only\n\
             error: f:3: neighbours: set by load_only: true, expected either this key or load_only"
        );
    }
}
