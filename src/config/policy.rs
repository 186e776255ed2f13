//! The `policy` section.

use std::time::Duration;

use http::HeaderName;

use super::QueueLimits;
use super::problem::{Located, Problems, Spot};
use super::section::{Parsed, Section, or_none};
use super::tokenizers::{self, ModelTokenizer, TokenizerDraft};
use super::value;
use super::yaml::Node;
use crate::balance::{ByWork, Neighbours, RedirectTuning, Ties, WorkKind};
use crate::prompt::MediaCosts;
use crate::work::{DEFAULT_PREFIX_BYTES, HoldLimits, LLAMA3_8B_A100, LLAMA3_70B_TP8, Profile};

/// Which policy was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Lanes,
    LeastWork,
    ReferencePlain,
    ReferenceBucket,
}

impl Kind {
    /// The word in the file.
    pub(super) fn name(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

const KINDS: [(&str, Kind); 4] = [
    ("lanes", Kind::Lanes),
    ("least_work", Kind::LeastWork),
    ("reference_bucket", Kind::ReferenceBucket),
    ("reference_plain", Kind::ReferencePlain),
];

const NEIGHBOURS: [(&str, Neighbours); 2] = [("adjacent", Neighbours::Adjacent), ("all", Neighbours::All)];

const TIES: [(&str, Ties); 2] = [("least_recently_used", Ties::LeastRecentlyUsed), ("first", Ties::First)];

const PROFILES: [(&str, Profile); 2] = [(LLAMA3_8B_A100.name, LLAMA3_8B_A100), (LLAMA3_70B_TP8.name, LLAMA3_70B_TP8)];

/// The default of `policy.max_hold`.
const DEFAULT_MAX_HOLD: Duration = Duration::from_secs(120);

/// The section as it was typed: what is absent here gets the example's values.
#[derive(Debug)]
pub(super) struct PolicyDraft {
    pub(super) kind: Located<Kind>,
    /// The policy beside it.
    pub(super) shadow: Option<Located<Kind>>,
    pub(super) ties: Ties,
    sensitivity: Option<Located<f64>>,
    affinity_strength: Option<Located<f64>>,
    redirect_threshold: Option<Located<f64>>,
    neighbours: Option<Located<Neighbours>>,
    load_only: Option<Located<bool>>,
    lanes: Option<Located<Option<usize>>>,
    long_from_tokens: Option<Located<Option<u64>>>,
    max_hold: Option<Located<Duration>>,
    pub(super) session_header: Option<Located<Option<HeaderName>>>,
    engine: EngineDraft,
    media: MediaDraft,
    tokenizers: Vec<TokenizerDraft>,
    prefix_memory: Option<Located<u64>>,
}

/// What media are said to count as.
#[derive(Debug, Default)]
struct MediaDraft {
    image: Option<Located<u64>>,
    audio: Option<Located<u64>>,
    video: Option<Located<u64>>,
}

/// What is said of the servers' engines.
#[derive(Debug, Default)]
struct EngineDraft {
    profile: Option<Located<Profile>>,
    max_num_batched_tokens: Option<Located<u64>>,
    kv_cache_tokens: Option<Located<u64>>,
}

impl PolicyDraft {
    /// A policy with nothing tuned.
    pub(super) fn new(kind: Located<Kind>, ties: Ties) -> Self {
        let (sensitivity, affinity_strength, redirect_threshold) = (None, None, None);
        let (lanes, long_from_tokens, max_hold) = (None, None, None);
        Self {
            kind,
            shadow: None,
            ties,
            sensitivity,
            affinity_strength,
            redirect_threshold,
            neighbours: None,
            load_only: None,
            lanes,
            long_from_tokens,
            max_hold,
            session_header: None,
            engine: EngineDraft::default(),
            media: MediaDraft::default(),
            tokenizers: Vec::new(),
            prefix_memory: None,
        }
    }

    /// Reads the section; an absent kind is `lanes`, absent ties are `least_recently_used`.
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        // Also a refused kind counts as the one that asks nothing of the groups: one problem is enough.
        let kind = section
            .value("kind", value::choice(&KINDS))
            .unwrap_or_else(|| Located::new(Kind::Lanes, section.spot().child("kind")));
        let mut draft = Self::new(kind, Ties::LeastRecentlyUsed);
        let shadow = section.value("shadow", or_none(value::choice(&KINDS)));
        draft.shadow = shadow.and_then(|Located { value, spot }| Some(Located::new(value?, spot)));
        draft.sensitivity = section.value("sensitivity", value::positive);
        draft.affinity_strength = section.value("affinity_strength", value::not_negative);
        draft.redirect_threshold = section.value("redirect_threshold", value::not_negative);
        draft.neighbours = section.value("neighbours", value::choice(&NEIGHBOURS));
        draft.load_only = section.value("load_only", value::switch);
        draft.lanes = section.value("lanes", or_auto(value::count(1..=1_000_000)));
        draft.long_from_tokens = section.value("long_from_tokens", or_auto(value::whole(value::TOKENS)));
        draft.max_hold = section.value("max_hold", value::duration);
        draft.session_header = section.value("session_header", or_none(value::header_name));
        draft.engine = section.section("engine", EngineDraft::read);
        draft.prefix_memory = section.value("prefix_memory", |node| value::size(node).map(|bytes| bytes as u64));
        draft.tokenizers = tokenizers::read(section);
        draft.media = section.section("media_tokens", MediaDraft::read);
        section.set("ties", &mut draft.ties, value::choice(&TIES));
        draft
    }

    /// The policy, and the one beside it.
    pub(super) fn kinds(&self) -> impl Iterator<Item = Kind> {
        [Some(&self.kind), self.shadow.as_ref()].into_iter().flatten().map(|kind| kind.value)
    }

    /// The policy of a kind that routes by work; `None` for the policies of the example.
    pub(super) fn by_work(&self, kind: Kind, queue: &QueueLimits) -> Option<ByWork> {
        let kind = match kind {
            Kind::Lanes => WorkKind::Lanes { count: value_of(self.lanes.as_ref()).flatten() },
            Kind::LeastWork => WorkKind::LeastWork,
            Kind::ReferenceBucket | Kind::ReferencePlain => return None,
        };
        let max_hold = value_of(self.max_hold.as_ref()).unwrap_or(DEFAULT_MAX_HOLD);
        let hold = HoldLimits {
            max_requests: queue.max_requests,
            max_bytes: queue.max_bytes as u64,
            max_wait_s: max_hold.as_secs_f64(),
        };
        let long_from_tokens = value_of(self.long_from_tokens.as_ref()).flatten();
        let prefix_bytes = value_of(self.prefix_memory.as_ref()).unwrap_or(DEFAULT_PREFIX_BYTES);
        let (profile, media) = (self.engine.profile(), self.media.costs());
        Some(ByWork { kind, profile, long_from_tokens, hold, media, prefix_bytes })
    }

    /// The tokenizers of models.
    pub(super) fn tokenizers(&self, problems: &Problems) -> Vec<ModelTokenizer> {
        tokenizers::load(&self.tokenizers, self.media.costs(), problems)
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

    /// Warns of what is tuned and belongs to another kind of policy.
    pub(super) fn warn_of_unused_keys(&self, problems: &Problems) {
        let is_used = |of: &[Kind]| self.kinds().any(|kind| of.contains(&kind));
        let unused = [
            (is_used(&[Kind::ReferenceBucket]), self.tuned_buckets()),
            (is_used(&[Kind::Lanes]), self.tuned_lanes()),
            (is_used(&[Kind::Lanes, Kind::LeastWork]), self.tuned_work()),
        ];
        let unused = unused.into_iter().filter(|(is_used, _)| !is_used).flat_map(|(_, spots)| spots);
        for spot in unused {
            problems.warn(spot, format!("has no effect with policy.kind {}", self.kind.value.name()));
        }
    }

    fn tuned_buckets(&self) -> Vec<&Spot> {
        let RedirectTuning { sensitivity, affinity_strength, threshold, neighbours } = RedirectTuning::default();
        let tuned = [
            tuned(self.sensitivity.as_ref(), &sensitivity),
            tuned(self.affinity_strength.as_ref(), &affinity_strength),
            tuned(self.neighbours.as_ref(), &neighbours),
            tuned(self.redirect_threshold.as_ref(), &threshold),
            tuned(self.load_only.as_ref(), &false),
        ];
        tuned.into_iter().flatten().collect()
    }

    fn tuned_lanes(&self) -> Vec<&Spot> {
        let tuned = [tuned(self.lanes.as_ref(), &None), tuned(self.max_hold.as_ref(), &DEFAULT_MAX_HOLD)];
        tuned.into_iter().flatten().collect()
    }

    fn tuned_work(&self) -> Vec<&Spot> {
        let EngineDraft { profile, max_num_batched_tokens, kv_cache_tokens } = &self.engine;
        let tuned = [
            tuned(self.long_from_tokens.as_ref(), &None),
            tuned(self.prefix_memory.as_ref(), &DEFAULT_PREFIX_BYTES),
            tuned(self.session_header.as_ref(), &None),
            tuned(profile.as_ref(), &LLAMA3_8B_A100),
            tuned(max_num_batched_tokens.as_ref(), &LLAMA3_8B_A100.budget_tokens),
            tuned(kv_cache_tokens.as_ref(), &LLAMA3_8B_A100.kv_tokens),
            tuned(self.media.image.as_ref(), &MediaCosts::default().image_tokens),
            tuned(self.media.audio.as_ref(), &MediaCosts::default().audio_tokens),
            tuned(self.media.video.as_ref(), &MediaCosts::default().video_tokens),
        ];
        tuned.into_iter().flatten().collect()
    }

    fn replaced_by_load_only(&self) -> impl Iterator<Item = &Spot> {
        let (sensitivity, strength) = (self.sensitivity.as_ref(), self.affinity_strength.as_ref());
        let spots = [sensitivity.map(spot_of), strength.map(spot_of), self.neighbours.as_ref().map(spot_of)];
        spots.into_iter().flatten()
    }
}

impl EngineDraft {
    fn read(section: &mut Section<'_>) -> Self {
        Self {
            profile: section.value("profile", value::choice(&PROFILES)),
            max_num_batched_tokens: section.value("max_num_batched_tokens", value::whole(value::TOKENS)),
            kv_cache_tokens: section.value("kv_cache_tokens", value::whole(value::TOKENS)),
        }
    }

    fn profile(&self) -> Profile {
        let mut profile = value_of(self.profile.as_ref()).unwrap_or(LLAMA3_8B_A100);
        replace(&mut profile.budget_tokens, self.max_num_batched_tokens.as_ref());
        replace(&mut profile.kv_tokens, self.kv_cache_tokens.as_ref());
        profile
    }
}

impl MediaDraft {
    fn read(section: &mut Section<'_>) -> Self {
        let mut tokens = |key| section.value(key, value::whole(value::TOKENS));
        Self { image: tokens("image"), audio: tokens("audio"), video: tokens("video") }
    }

    fn costs(&self) -> MediaCosts {
        let mut costs = MediaCosts::default();
        replace(&mut costs.image_tokens, self.image.as_ref());
        replace(&mut costs.audio_tokens, self.audio.as_ref());
        replace(&mut costs.video_tokens, self.video.as_ref());
        costs
    }
}

/// Lets the word `auto` stand for "learned".
fn or_auto<T>(parse: impl Fn(&Node) -> Parsed<T>) -> impl Fn(&Node) -> Parsed<Option<T>> {
    move |node| match node.plain() {
        Some("auto") => Ok(None),
        _ => parse(node).map(Some).map_err(|expected| format!("{expected}, or auto")),
    }
}

fn value_of<T: Copy>(given: Option<&Located<T>>) -> Option<T> {
    given.map(|given| given.value)
}

/// Where a key stands that is not at its default.
fn tuned<'a, T: PartialEq>(given: Option<&'a Located<T>>, default: &T) -> Option<&'a Spot> {
    given.filter(|given| given.value != *default).map(spot_of)
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
