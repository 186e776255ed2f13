//! `tidegate tune`: from flags to a question, and from the answer to text.

use std::io::{self, Write};

use super::progress::Progress;
use super::simulate::{threads_of, warn};
use super::{DEFAULT_SERVERS, Failure, groups, profile};
use crate::balance::Policy;
use crate::cli::{ModelArgs, TrafficArgs, TuneArgs};
use crate::config::Config;
use crate::drive::Setup;
use crate::simulate::{LogNotes, Source};
use crate::tune::{Question, advise, speeds};
use crate::work::Profile;

/// `tidegate tune`: recommends what suits some traffic.
///
/// # Errors
/// When the traffic cannot be read, there is no such profile or set of servers, or the output fails.
pub fn tune(arguments: &TuneArgs, config: Option<&Config>) -> Result<(), Failure> {
    let ModelArgs { profile: name, slo, seed, requests, threads } = &arguments.model;
    let profile = profile(name)?;
    let present = config.map(|config| present(config, profile)).transpose()?;
    let (traffics, notes) = source(&arguments.traffic).read(*requests as usize)?;
    warn(&notes);
    let in_log = Some(notes.servers.len()).filter(|servers| *servers > 0);
    let in_file = present.as_ref().map(|setup| setup.servers);
    let question = Question {
        servers: arguments.servers.map(usize::from).or(in_file).or(in_log).unwrap_or(DEFAULT_SERVERS),
        profile,
        load: arguments.load,
        slo: slo.over(&profile),
        seed: *seed,
        present,
        threads: threads_of(*threads),
    };
    let progress = Progress::new();
    for traffic in &traffics {
        progress.say(&traffic.name);
        let advice = advise(&question, traffic, &progress)?;
        let mut output = io::stdout().lock();
        advice.write(&mut output)?;
        write_speeds(&notes, &profile, &mut output)?;
    }
    Ok(())
}

fn source(traffic: &TrafficArgs) -> Source {
    let TrafficArgs { trace, log, mix } = traffic.clone();
    trace.map(Source::Trace).or(log.map(Source::Log)).or(mix.map(Source::Mix)).expect("one of them is required")
}

/// What runs with this configuration. The engines are simulated alike, so the weights of its servers are left out.
fn present(config: &Config, profile: Profile) -> Result<Setup, Failure> {
    let groups = groups(config)?;
    let servers = groups.sizes.iter().sum();
    let setup = Setup::new(groups.policy.name(), servers);
    let setup = match &config.policy {
        Policy::ByWork(by_work) => setup.as_configured(by_work),
        _ => setup,
    };
    Ok(Setup { profile, groups: Some(groups), ..setup })
}

fn write_speeds(notes: &LogNotes, profile: &Profile, output: &mut impl Write) -> io::Result<()> {
    let speeds = speeds(&notes.first_tokens, &notes.servers, profile);
    if speeds.is_empty() {
        return Ok(());
    }
    writeln!(
        output,
        "\nThe servers are not equally fast (by the quickest first tokens in the log; 1 is their mean). For each under servers:"
    )?;
    speeds.iter().try_for_each(|speed| {
        writeln!(output, "  weight: {:.2}  # {}, {} requests", speed.speed, speed.server, speed.requests)
    })
}
