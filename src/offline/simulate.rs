//! `tidegate simulate`: from flags to a study, and from that to tables and a report.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use super::progress::Progress;
use super::{Failure, profile};
use crate::cli::{ModelArgs, SimulateArgs, SimulatedTrafficArgs};
use crate::simulate::{
    ALL_POLICIES, Contender, Load, LogNotes, Overview, Plan, SimulateError, Source, Study, cores, html, write_table,
};

/// `tidegate simulate`: replays traffic under each policy and prints a table.
///
/// # Errors
/// When the trace cannot be read, there is no such policy or profile, or the output fails.
pub fn simulate(arguments: &SimulateArgs) -> Result<(), Failure> {
    let source = source(&arguments.traffic);
    let is_overview = matches!(source, Source::Traces(_));
    if arguments.servers.len() > 1 && !is_overview {
        return Err(Failure::Usage("--servers with several numbers needs --traces"));
    }
    // Everything that can be refused is refused before anything is simulated.
    let plans = arguments.servers.iter().map(|servers| plan(arguments, usize::from(*servers)));
    let plans = plans.collect::<Result<Vec<Plan>, Failure>>()?;
    if let Some(file) = &arguments.report {
        may_write(file)?;
    }
    let (traffics, notes) = source.read(arguments.model.requests as usize)?;
    warn(&notes);
    let progress = Progress::new();
    let mut overview = Overview::default();
    for traffic in &traffics {
        for plan in &plans {
            progress.say(&traffic.name);
            let study = Study::of(plan.clone(), traffic, &progress)?;
            if is_overview {
                overview.add(&study);
            } else {
                write_table(&study, &mut io::stdout().lock())?;
            }
            if let Some(file) = &arguments.report {
                let written = fs::write(file, html(&study, &command_line()));
                written.map_err(|error| Failure::Report { file: file.clone(), error })?;
            }
        }
    }
    drop(progress);
    overview.write(&mut io::stdout().lock())?;
    Ok(())
}

/// Better to know before minutes of work that a file cannot be written. What stands in it stays until then.
fn may_write(file: &Path) -> Result<(), Failure> {
    let opened = OpenOptions::new().create(true).append(true).open(file);
    opened.map(drop).map_err(|error| Failure::Report { file: file.to_owned(), error })
}

/// What was typed, so that it can be typed again.
fn command_line() -> String {
    let plain =
        |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_=./,:+@%".contains(c));
    let quoted = |text: String| if plain(&text) { text } else { format!("'{}'", text.replace('\'', "'\\''")) };
    let arguments = env::args_os().skip(1).map(|argument| quoted(argument.to_string_lossy().into_owned()));
    ["tidegate".to_owned()].into_iter().chain(arguments).collect::<Vec<_>>().join(" ")
}

fn source(traffic: &SimulatedTrafficArgs) -> Source {
    let SimulatedTrafficArgs { trace, traces, log, mix } = traffic.clone();
    let trace = trace.map(Source::Trace).or(traces.map(Source::Traces));
    trace.or(log.map(Source::Log)).or(mix.map(Source::Mix)).expect("one of them is required")
}

fn plan(arguments: &SimulateArgs, servers: usize) -> Result<Plan, Failure> {
    let ModelArgs { profile: name, slo, seed, threads, .. } = &arguments.model;
    let (profile, belief) = (profile(name)?, profile(arguments.belief.as_deref().unwrap_or(name))?);
    let default = if arguments.traffic.log.is_some() { Load::Own } else { Load::Share(0.8) };
    let policies: Vec<&str> = arguments.policy.iter().map(String::as_str).collect();
    let policies = if policies == ["all"] { &ALL_POLICIES[..] } else { &policies };
    let contender = |name: &&str| {
        if !ALL_POLICIES.contains(name) {
            return Err(SimulateError::UnknownPolicy { name: (*name).to_owned() });
        }
        Ok(Contender::named(name, servers, belief)?)
    };
    Ok(Plan {
        servers,
        profile,
        contenders: policies.iter().map(contender).collect::<Result<_, _>>()?,
        loads: if arguments.load.is_empty() { vec![default] } else { arguments.load.clone() },
        seeds: (0..u64::from(arguments.seeds)).map(|more| seed.saturating_add(more)).collect(),
        slo: slo.over(&profile),
        threads: threads_of(*threads),
        most_requests: None,
    })
}

pub(super) fn threads_of(threads: Option<u16>) -> usize {
    threads.map_or_else(cores, usize::from)
}

/// Says on standard error what a log holds that was not replayed.
pub(super) fn warn(notes: &LogNotes) {
    let mut errors = io::stderr().lock();
    for sentence in notes.sentences() {
        // Nobody is left to tell when standard error is closed.
        writeln!(errors, "warning: {sentence}").ok();
    }
}
