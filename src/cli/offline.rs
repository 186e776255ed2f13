//! The flags of the commands that serve nobody.

use std::path::PathBuf;

use clap::Args;

use crate::simulate::{Load, SloText};

/// Flags of `tidegate policy`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct PolicyArgs {
    /// Read events as JSON lines from standard input, answer each with a line (the only way there is)
    #[arg(long, required = true)]
    pub stdio: bool,
    /// Configuration file with groups, servers and policy
    #[arg(short, long, value_name = "FILE", conflicts_with = "servers")]
    pub conf: Option<PathBuf>,
    /// Servers there are when no file says it, the long end last [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub servers: Option<u16>,
    /// lanes, least_work, reference_bucket or reference_plain [default: that of the file, else lanes]
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// What both commands ask.
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Flags that both commands have.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct EngineArgs {
    /// What a server can do: llama3-8b-a100 or llama3-70b-tp8 [default: the file's, else llama3-8b-a100]
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Keep the number of lanes at this [default: follow the traffic]
    #[arg(long, value_name = "N")]
    pub lanes: Option<usize>,
    /// Count prompts as long from so many new tokens on [default: follow the traffic]
    #[arg(long, value_name = "TOKENS")]
    pub long_from_tokens: Option<u64>,
}

/// Where traffic comes from.
#[derive(Debug, Clone, PartialEq, Args)]
#[group(required = true, multiple = false)]
pub struct TrafficArgs {
    /// CSV file of arrival_s, input_tokens, output_tokens and, if known, prefix_group, blocks
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Access log of Tidegate, in JSON; - is the standard input
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Traffic that is made up: synthetic (3 % prompts of 32k to 128k) or synthetic-burst
    #[arg(long, value_name = "NAME")]
    pub mix: Option<String>,
}

/// Flags of `tidegate tune`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct TuneArgs {
    /// The traffic.
    #[command(flatten)]
    pub traffic: TrafficArgs,
    /// Configuration that runs at present: its servers are simulated, and the gain over it is told
    #[arg(short, long, value_name = "FILE", conflicts_with = "servers")]
    pub conf: Option<PathBuf>,
    /// Servers [default: those of the configuration, else those of the log, else 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub servers: Option<u16>,
    /// Offered work as a share of what the servers can do, or own: the traffic's own speed
    #[arg(long, value_name = "SHARE", value_parser = load, default_value = "own")]
    pub load: Load,
    /// What both simulate and tune ask.
    #[command(flatten)]
    pub model: ModelArgs,
}

/// Flags of `tidegate simulate`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct SimulateArgs {
    /// The traffic.
    #[command(flatten)]
    pub traffic: SimulatedTrafficArgs,
    /// Policies to compare, or all
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "reference_bucket,least_work,lanes")]
    pub policy: Vec<String>,
    /// Servers; several numbers only with --traces
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "8", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub servers: Vec<u16>,
    /// Offered work as shares of what the servers can do, or own: the traffic's own speed [default: 0.8, with --log own]
    #[arg(long, value_name = "SHARES", value_delimiter = ',', value_parser = load)]
    pub load: Vec<Load>,
    /// What both simulate and tune ask.
    #[command(flatten)]
    pub model: ModelArgs,
    /// What the policy believes of the engines, to see what a wrong profile does [default: the truth]
    #[arg(long, value_name = "NAME")]
    pub belief: Option<String>,
    /// How many seeds, from --seed on; the tables have the means
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub seeds: u16,
    /// Write a report with curves and timelines to this file, as one HTML page
    #[arg(long, value_name = "FILE", conflicts_with = "traces")]
    pub report: Option<PathBuf>,
}

/// Where the simulator's traffic comes from.
#[derive(Debug, Clone, PartialEq, Args)]
#[group(required = true, multiple = false)]
pub struct SimulatedTrafficArgs {
    /// CSV file of arrival_s, input_tokens, output_tokens and, if known, prefix_group, blocks
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Folder of such files, each replayed by itself: prints an overview against reference_bucket
    #[arg(long, value_name = "FOLDER")]
    pub traces: Option<PathBuf>,
    /// Access log of Tidegate, in JSON; - is the standard input
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Traffic that is made up: synthetic (3 % prompts of 32k to 128k) or synthetic-burst
    #[arg(long, value_name = "NAME")]
    pub mix: Option<String>,
}

/// The model, and how it is run.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct ModelArgs {
    /// What the engines can do: llama3-8b-a100 or llama3-70b-tp8
    #[arg(long, value_name = "NAME", default_value = "llama3-8b-a100")]
    pub profile: String,
    /// Targets that goodput is counted by, such as ttft=2s,tpot=100ms,prefill=3x [default: those of MLPerf for the profile]
    #[arg(long, value_name = "TARGETS", default_value = "")]
    pub slo: SloText,
    /// Seed of what is random: made-up traffic, shifts of arrival times; a recording is replayed in its own order with 1
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// Most requests that are replayed of a recording, and how many are made up
    #[arg(long, value_name = "N", default_value = "12000", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub requests: u32,
    /// Simulations that run at once; results do not depend on it [default: as many as there are cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

fn load(text: &str) -> Result<Load, String> {
    if text == "own" {
        return Ok(Load::Own);
    }
    let share = text.parse().ok().filter(|share: &f64| *share > 0.0 && *share <= 2.0);
    share.map(Load::Share).ok_or_else(|| "expected a number above 0 and up to 2, such as 0.8, or own".to_owned())
}
