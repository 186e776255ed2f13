//! The flags of the commands that serve nobody.

use std::path::PathBuf;

use clap::Args;

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

/// Flags of `tidegate simulate`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct SimulateArgs {
    /// CSV file of arrival_s, input_tokens, output_tokens and, if known, prefix_group, blocks
    #[arg(long, value_name = "FILE", required_unless_present = "mix", conflicts_with = "mix")]
    pub trace: Option<PathBuf>,
    /// Traffic that is made up: synthetic (3 % prompts of 32k to 128k) or synthetic-burst
    #[arg(long, value_name = "NAME")]
    pub mix: Option<String>,
    /// Policies to compare
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "reference_bucket,least_work,lanes")]
    pub policy: Vec<String>,
    /// Servers
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub servers: u16,
    /// Offered work as shares of what the servers can do
    #[arg(long, value_name = "SHARES", value_delimiter = ',', default_value = "0.8")]
    pub load: Vec<f64>,
    /// What the engines can do: llama3-8b-a100 or llama3-70b-tp8
    #[arg(long, value_name = "NAME", default_value = "llama3-8b-a100")]
    pub profile: String,
    /// What the policy believes of them, to see what a wrong profile does [default: the truth]
    #[arg(long, value_name = "NAME")]
    pub belief: Option<String>,
    /// Seed of what is random: made-up traffic, shifts of arrival times
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// Most requests of a trace that are replayed, and how many are made up
    #[arg(long, value_name = "N", default_value = "12000", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub requests: u32,
}
