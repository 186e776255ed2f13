//! What came out of the search, in words.

use std::io::{self, Write};

use super::candidates::Pins;
use super::search::LEAST_GAIN;
use crate::simulate::{Change, Figure, LONG_FROM_TOKENS, Study, change, describe, percent};

/// A recommendation and what it rests on.
#[derive(Debug)]
pub struct Advice {
    /// The final comparison, with seeds that had no part in the search.
    pub study: Study,
    /// What the contenders of the study are, without what runs at present.
    pub pins: Vec<Pins>,
    /// Which of them suits best.
    pub chosen: usize,
    /// Whether the last contender of the study is what runs at present.
    pub has_present: bool,
}

/// Below this load servers are mostly idle.
const QUIET: f64 = 0.3;

/// Above this load a queue grows without an end.
const TOO_MUCH: f64 = 1.1;

const FIGURES: [(Figure, &str); 6] = [
    (Figure::ShortTtftP99, "short p99"),
    (Figure::ShortTtftP50, "short p50"),
    (Figure::LongTtftMean, "long mean"),
    (Figure::LongTtftP99, "long p99"),
    (Figure::TtftMean, "mean of all"),
    (Figure::LatencyMean, "mean latency"),
];

impl Advice {
    /// What suits best.
    #[must_use]
    pub fn pins(&self) -> Pins {
        self.pins[self.chosen]
    }

    fn present(&self) -> Option<usize> {
        self.has_present.then_some(self.pins.len())
    }

    fn place(&self, pins: Pins) -> Option<usize> {
        self.pins.iter().position(|other| *other == pins)
    }

    /// The reference with the defaults of the example; one server has no groups.
    fn reference(&self) -> Option<usize> {
        self.place(Pins::reference(self.study.plan.servers))
    }

    /// How the distance from the targets changes when the recommendation replaces what runs at present (the reference, when
    /// that is not known).
    #[must_use]
    pub fn gain(&self) -> Option<Change> {
        let before = self.present().or(self.reference())?;
        change(&self.study, 0, [before, self.chosen], Figure::StretchMean)
    }

    /// Whether there is a gain, by more than chance and by enough.
    #[must_use]
    pub fn is_worth_it(&self) -> bool {
        self.gain().is_some_and(|gain| gain.is_less() && gain.share <= -LEAST_GAIN)
    }

    /// Writes the advice: a short text, and what to paste.
    ///
    /// # Errors
    /// When the output fails.
    pub fn write(&self, output: &mut impl Write) -> io::Result<()> {
        let study = &self.study;
        writeln!(output, "{}", describe(study))?;
        self.write_load(output)?;
        writeln!(output)?;
        if self.is_worth_it() {
            writeln!(output, "Recommended: {}", self.pins().words())?;
        } else {
            let instead_of =
                if self.has_present { "the present configuration" } else { "reference_bucket at its defaults" };
            writeln!(output, "No significant gain over {instead_of}: leave it.")?;
            writeln!(output, "The best found: {}", self.pins().words())?;
        }
        self.write_need_of_lanes(output)?;
        if let Some(present) = self.present() {
            self.write_changes("Against the present configuration", present, output)?;
        }
        if let Some(reference) = self.reference().filter(|reference| *reference != self.chosen) {
            self.write_changes("Against reference_bucket at its defaults", reference, output)?;
        }
        if let Some(default) = self.place(Pins::LANES).filter(|default| *default != self.chosen) {
            self.write_changes("Against lanes with everything learned (auto)", default, output)?;
        }
        self.write_buckets(output)?;
        if self.is_worth_it() {
            write!(output, "\nTo be pasted into the configuration:\n\n{}", self.pins().yaml(study.plan.servers))?;
        }
        output.flush()
    }

    fn write_load(&self, output: &mut impl Write) -> io::Result<()> {
        let share = self.study.load_share(0);
        writeln!(output, "Simulated at {:.0} % load.", 100.0 * share)?;
        if share < QUIET {
            writeln!(
                output,
                "The servers are mostly idle, so hardly anything waits. To see what more traffic would bring: --load 0.8"
            )?;
        } else if share > TOO_MUCH {
            writeln!(
                output,
                "That is more than the servers can do: queues grow to the end, and no policy helps. More servers would."
            )?;
        }
        Ok(())
    }

    fn write_need_of_lanes(&self, output: &mut impl Write) -> io::Result<()> {
        let Some((lanes, least_work)) = self.place(Pins::LANES).zip(self.place(Pins::LeastWork)) else { return Ok(()) };
        let has_long = self.study.jobs[0].iter().any(|job| job.prompt_tokens >= LONG_FROM_TOKENS);
        let change = change(&self.study, 0, [least_work, lanes], Figure::StretchMean);
        let differs =
            change.is_some_and(|change| (change.is_less() || change.is_more()) && change.share.abs() >= LEAST_GAIN);
        if self.pins() == Pins::LANES && !differs {
            let why = if has_long { "Long prompts are too few to need lanes" } else { "There are no long prompts" };
            writeln!(output, "{why}: least_work does as well, and lanes with auto become that by themselves.")?;
        }
        Ok(())
    }

    fn write_changes(&self, title: &str, before: usize, output: &mut impl Write) -> io::Result<()> {
        writeln!(output, "\n{title} (time to first token):")?;
        for (figure, name) in FIGURES {
            let Some(change) = change(&self.study, 0, [before, self.chosen], figure) else { continue };
            writeln!(output, "  {name:<12} {}", words(&change))?;
        }
        let [before, after] = [before, self.chosen].map(|place| 100.0 * self.study.summary(0, place).met_share);
        writeln!(output, "  targets met  {before:.1} % -> {after:.1} % of the requests ({})", self.study.plan.slo)
    }

    /// For whoever stays with groups: the best of those that reached the final.
    fn write_buckets(&self, output: &mut impl Write) -> io::Result<()> {
        let Some(reference) = self.reference() else { return Ok(()) };
        let is_buckets = |place: &usize| matches!(self.pins[*place], Pins::Buckets { .. });
        let others =
            (0..self.pins.len()).filter(is_buckets).filter(|place| *place != reference && *place != self.chosen);
        for place in others {
            let Some(change) = change(&self.study, 0, [reference, place], Figure::ShortTtftP99) else { continue };
            if change.is_less() {
                writeln!(
                    output,
                    "\nWith groups the best found is {}: short p99 {}",
                    self.pins[place].words(),
                    words(&change)
                )?;
            }
        }
        Ok(())
    }
}

/// `14.96 s -> 0.73 s, -95 % (90 % interval -96..-93 %)`.
fn words(change: &Change) -> String {
    let Change { before, after, share, low, high } = *change;
    let (share, low, high) = (percent(share), percent(low), percent(high));
    let doubt = if change.is_less() || change.is_more() { "" } else { ", may be chance" };
    format!("{before:.2} s -> {after:.2} s, {share} % (90 % interval {low}..{high} %{doubt})")
}
