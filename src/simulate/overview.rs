//! Many studies in few tables: what each policy is worth on each traffic, relative to the reference.

use std::io::{self, Write};

use super::compare::{Change, Figure, change};
use super::study::Study;
use super::table::lay_out;

/// What everything is compared with.
pub(super) const REFERENCE: &str = "reference_bucket";

/// What is compared with it in all figures.
pub(super) const CANDIDATE: &str = "lanes";

const FIGURES: [(Figure, &str); 6] = [
    (Figure::ShortTtftP50, "short TTFT p50"),
    (Figure::ShortTtftP99, "short TTFT p99"),
    (Figure::LongTtftMean, "long TTFT mean"),
    (Figure::LongTtftP99, "long TTFT p99"),
    (Figure::TtftMean, "TTFT mean of all"),
    (Figure::LatencyMean, "latency mean of all"),
];

/// The figures that have a table of all policies.
const COMPARED: [Figure; 4] = [Figure::ShortTtftP99, Figure::LongTtftMean, Figure::TtftMean, Figure::LatencyMean];

/// One traffic over some servers at one load.
#[derive(Debug)]
struct Row {
    /// Traffic, servers, load.
    heads: [String; 3],
    /// Each of [`FIGURES`], for each contender but the reference.
    changes: Vec<(String, Vec<Option<Change>>)>,
}

/// Collects studies, one after the other, so that not all of their requests have to be kept.
#[derive(Debug, Default)]
pub struct Overview {
    rows: Vec<Row>,
}

impl Overview {
    /// Adds a study. One without the reference has nothing to say here.
    pub fn add(&mut self, study: &Study) {
        let Some(reference) = study.contender(REFERENCE) else { return };
        for load in 0..study.plan.loads.len() {
            let heads = [study.traffic.clone(), study.plan.servers.to_string(), study.load_name(load)];
            let contenders = study.plan.contenders.iter().enumerate().filter(|(place, _)| *place != reference);
            let changes = contenders.map(|(place, contender)| {
                let is_shown = |figure: Figure| contender.name == CANDIDATE || COMPARED.contains(&figure);
                let of =
                    |(figure, _)| is_shown(figure).then(|| change(study, load, [reference, place], figure)).flatten();
                (contender.name.clone(), FIGURES.map(of).to_vec())
            });
            self.rows.push(Row { heads, changes: changes.collect() });
        }
    }

    /// Writes everything as Markdown.
    ///
    /// # Errors
    /// When the output fails.
    pub fn write(&self, output: &mut impl Write) -> io::Result<()> {
        let Some(first) = self.rows.first() else { return Ok(()) };
        if first.changes.iter().any(|(name, _)| name == CANDIDATE) {
            writeln!(
                output,
                "### {REFERENCE} -> {CANDIDATE}\n\nSeconds; a change that may be chance (its 90 % interval includes 0) stands in brackets.\n"
            )?;
            self.write_candidate(output)?;
            self.write_verdicts(output)?;
        }
        for figure in COMPARED {
            let place = FIGURES.iter().position(|(other, _)| *other == figure).expect("one of them");
            writeln!(output, "\n### {}, all policies, against {REFERENCE}\n", FIGURES[place].1)?;
            self.write_policies(place, &first.changes, output)?;
        }
        output.flush()
    }

    fn write_candidate(&self, output: &mut impl Write) -> io::Result<()> {
        let heads: Vec<&str> =
            ["traffic", "servers", "load"].into_iter().chain(FIGURES.iter().map(|(_, name)| *name)).collect();
        let cells = |row: &Row| {
            let changes = row.candidate().into_iter().flatten();
            let cells = changes.map(|change| change.map_or_else(none, |change| pair(&change)));
            row.heads.iter().cloned().chain(cells).collect()
        };
        lay_out(&heads, &self.rows.iter().map(cells).collect::<Vec<_>>(), output)
    }

    fn write_policies(
        &self,
        place: usize,
        policies: &[(String, Vec<Option<Change>>)],
        output: &mut impl Write,
    ) -> io::Result<()> {
        let names = policies.iter().map(|(name, _)| name.as_str());
        let heads: Vec<&str> = ["traffic", "servers", "load", REFERENCE].into_iter().chain(names).collect();
        let cells = |row: &Row| {
            let of = |change: &Option<Change>| change.map_or_else(none, |change| relative(&change));
            let before = row.changes.iter().find_map(|(_, changes)| changes[place]);
            let before = before.map_or_else(none, |change| format!("{:.2} s", change.before));
            let changes = row.changes.iter().map(|(_, changes)| of(&changes[place]));
            row.heads.iter().cloned().chain([before]).chain(changes).collect()
        };
        lay_out(&heads, &self.rows.iter().map(cells).collect::<Vec<_>>(), output)
    }

    /// Who pays, and whether anybody but the long requests.
    fn write_verdicts(&self, output: &mut impl Write) -> io::Result<()> {
        for (figure, name) in FIGURES {
            let place = FIGURES.iter().position(|(other, _)| *other == figure).expect("one of them");
            let changes = self.rows.iter().filter_map(|row| Some((row, row.candidate()?[place]?)));
            let worse: Vec<(&Row, Change)> = changes.filter(|(_, change)| change.is_more()).collect();
            write!(output, "\n{name}: ")?;
            if worse.is_empty() {
                writeln!(output, "in none of {} cases higher by more than chance.", self.rows.len())?;
                continue;
            }
            writeln!(output, "in {} of {} cases higher by more than chance:\n", worse.len(), self.rows.len())?;
            for (Row { heads: [traffic, servers, load], .. }, change) in worse {
                let Change { share, low, high, .. } = change;
                let (share, low, high) = (percent(share), percent(low), percent(high));
                writeln!(
                    output,
                    "- {traffic}, {servers} servers, load {load}: {share} % (90 % interval {low}..{high} %)"
                )?;
            }
        }
        Ok(())
    }
}

impl Row {
    fn candidate(&self) -> Option<&Vec<Option<Change>>> {
        self.changes.iter().find(|(name, _)| name == CANDIDATE).map(|(_, changes)| changes)
    }
}

fn none() -> String {
    "-".to_owned()
}

fn pair(change: &Change) -> String {
    format!("{:.2} -> {:.2} {}", change.before, change.after, relative(change))
}

fn relative(change: &Change) -> String {
    let share = percent(change.share);
    if change.is_less() || change.is_more() { format!("{share} %") } else { format!("({share} %)") }
}

/// With a sign, without a fraction.
pub(crate) fn percent(share: f64) -> String {
    format!("{:+.0}", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::super::{Contender, Load, Mix, Plan, Slo, Traffic, cores};
    use super::*;
    use crate::work::LLAMA3_8B_A100;

    #[test]
    fn every_traffic_and_load_has_a_row_and_who_pays_is_said() {
        let contender = |name| Contender::named(name, 2, LLAMA3_8B_A100).unwrap();
        let plan = Plan {
            servers: 2,
            profile: LLAMA3_8B_A100,
            contenders: ["reference_bucket", "round_robin", "lanes"].map(contender).to_vec(),
            loads: vec![Load::Share(0.7), Load::Own],
            seeds: vec![1],
            slo: Slo::of(&LLAMA3_8B_A100),
            threads: cores(),
            most_requests: None,
        };
        let study = Study::of(plan, &Traffic::made_up(Mix::Steady, 600), &()).unwrap();
        let (mut overview, mut output) = (Overview::default(), Vec::new());
        overview.add(&study);
        overview.write(&mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        assert!(text.contains("\n| traffic   | servers |"), "{text}");
        // Two loads in one table of pairs and four of all policies.
        assert_eq!(text.matches("\n| synthetic |").count(), 10, "{text}");
        assert!(text.contains("short TTFT p99: in none of 2 cases higher by more than chance."), "{text}");
        assert!(text.contains("| reference_plain |") || text.contains("round_robin |"), "{text}");
    }
}
