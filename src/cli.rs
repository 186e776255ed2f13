//! The command line: the example's flags, the subcommands, and nothing about what they do.

mod explain;
mod offline;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

pub use explain::{ExplainArgs, RemoteArgs};
pub use offline::{ModelArgs, PolicyArgs, SimulateArgs, SimulatedTrafficArgs, TrafficArgs, TuneArgs};

use crate::config::value::{ATTEMPTS, PORTS, TOKENS, parse_delay_seconds, parse_whole};
use crate::config::{DEFAULT_GROUP_THRESHOLD, DEFAULT_MAX_REQUEST_TOKENS, Flags};

/// Exit code for wrong flags and for a configuration that cannot be run (`EX_USAGE`).
pub const EXIT_USAGE: u8 = 64;

/// What the user wants.
#[derive(Debug, PartialEq)]
pub enum Command {
    /// Run the balancer.
    Run {
        /// The configuration file; without one the flags are everything.
        file: Option<PathBuf>,
        /// The flags, over the file.
        flags: Flags,
        /// How to begin.
        start: Start,
    },
    /// Check a configuration file and say what it would run.
    Check {
        /// The file.
        file: PathBuf,
    },
    /// Run the balancer in front of demo servers.
    Demo(Demo),
    /// Ask a running balancer whether it serves.
    Healthcheck {
        /// Where it listens, `host:port`.
        address: String,
    },
    /// Show a running balancer in the terminal.
    Top(RemoteArgs),
    /// Say why a request would go where it would go.
    Explain(ExplainArgs),
    /// Answer events with what the policy would do.
    Policy(PolicyArgs),
    /// Replay traffic against modelled engines.
    Simulate(SimulateArgs),
    /// Recommend a policy for some traffic.
    Tune(TuneArgs),
}

/// How a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With listening sockets of its own.
    Fresh,
    /// With the listening sockets of the process that runs.
    Upgrade,
    /// By another process that is started as the successor of a running one.
    Replace {
        /// The running one.
        pid: i32,
    },
}

/// Ports of the demo, all on loopback.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Demo {
    /// Port of the balancer
    #[arg(long, value_name = "PORT", default_value = "8000", value_parser = port, allow_negative_numbers = true)]
    pub port: u16,
    /// Port of the admin listener
    #[arg(long, value_name = "PORT", default_value = "9400", value_parser = port, allow_negative_numbers = true)]
    pub admin_port: u16,
    /// Ports of the demo servers, the first half for short prompts
    #[arg(long, value_name = "PORT", num_args = 1.., action = ArgAction::Set, default_values = ["8100", "8101"], value_parser = port,
          allow_negative_numbers = true)]
    pub server_ports: Vec<u16>,
    /// Send a mix of short chats and long prompts through the balancer, and log every ten seconds how long they wait
    #[arg(long)]
    pub load: bool,
    /// How the balancer routes: by work, or as the Python example does [default: lanes with --load, else reference_bucket]
    #[arg(long, value_name = "NAME")]
    pub policy: Option<DemoPolicy>,
}

/// The policies that the demo can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DemoPolicy {
    /// Long prompts one at a time on the last server, the next one held in the balancer.
    #[value(name = "lanes")]
    Lanes,
    /// Two groups by length, as the example's flags give them.
    #[value(name = "reference_bucket")]
    ReferenceBucket,
}

/// Load balancer for vLLM servers that routes requests by prompt length and load
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, args_conflicts_with_subcommands = true, args_override_self = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Subcommands>,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    /// Check a configuration file and say what it would run
    Check {
        /// The file
        file: PathBuf,
    },
    /// Run the balancer in front of demo servers, to try it without vLLM
    Demo(Demo),
    /// Ask a running balancer whether it serves, for containers without curl
    Healthcheck {
        /// Where it listens
        #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:8000")]
        address: String,
    },
    /// Show a running balancer in the terminal: groups, servers, decisions, as they change
    Top(RemoteArgs),
    /// Say why a request would go where it would go, without sending it
    Explain(ExplainArgs),
    /// Drive the routing policy with events from outside and a virtual clock
    Policy(PolicyArgs),
    /// Replay traffic against modelled engines and compare policies
    Simulate(SimulateArgs),
    /// Recommend policy, lanes, threshold and groups for some traffic
    Tune(TuneArgs),
}

#[derive(Debug, Args)]
struct Run {
    /// Configuration file; flags that are given override it
    #[arg(short, long, value_name = "FILE")]
    conf: Option<PathBuf>,
    /// Host to listen on, a name or an IP address [default: localhost]
    #[arg(long)]
    host: Option<String>,
    /// Port to listen on [default: 8000]
    #[arg(long, value_parser = port, allow_negative_numbers = true)]
    port: Option<u16>,
    /// Hosts of the servers, short prompts first [default: localhost]
    #[arg(long, value_name = "HOST", num_args = 1.., action = ArgAction::Set)]
    server_hosts: Option<Vec<String>>,
    /// Ports of the servers, one for each host [default: 8001]
    #[arg(long, value_name = "PORT", num_args = 1.., action = ArgAction::Set, value_parser = port, allow_negative_numbers = true)]
    server_ports: Option<Vec<u16>>,
    /// Cut the servers into a group for short and one for long prompts
    #[arg(long)]
    enable_dynamic_bucket: bool,
    #[arg(long, value_name = "TOKENS", value_parser = tokens, allow_negative_numbers = true,
          help = format!("Prompt length at which the long group begins [default: {DEFAULT_GROUP_THRESHOLD}]"))]
    server_group_threshold: Option<u64>,
    #[arg(long, value_name = "TOKENS", value_parser = tokens, allow_negative_numbers = true,
          help = format!("Largest prompt that is planned for [default: {DEFAULT_MAX_REQUEST_TOKENS}]"))]
    max_request_tokens: Option<u64>,
    /// Attempts in all, the first one included [default: 3]
    #[arg(long, value_name = "ATTEMPTS", value_parser = attempts, allow_negative_numbers = true)]
    max_retries: Option<usize>,
    /// Pause before the second attempt, in seconds; doubles from attempt to attempt [default: 0.001]
    #[arg(long, value_name = "SECONDS", value_parser = delay, allow_hyphen_values = true)]
    retry_delay: Option<Duration>,
    /// Port of the admin listener (metrics, status) [default: off, with a file 9400]
    #[arg(long, value_name = "PORT", value_parser = port, allow_negative_numbers = true)]
    admin_port: Option<u16>,
    /// Host of the admin listener [default: 127.0.0.1]
    #[arg(long, value_name = "HOST")]
    admin_host: Option<String>,
    /// Put the configuration file in force whenever it changes
    #[arg(long, requires = "conf")]
    watch: bool,
    /// Run in the background
    #[arg(short, long)]
    daemon: bool,
    /// Take the listening sockets over from the running process, which gets SIGQUIT for that
    #[arg(short, long)]
    upgrade: bool,
    /// Start a successor of the running process PID with these flags, and return when it serves
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..), conflicts_with_all = ["upgrade", "daemon"])]
    replace: Option<i32>,
}

/// Reads the command line, the program's name first.
///
/// # Errors
/// What clap has to say: wrong flags (exit with [`EXIT_USAGE`]), or the text of `--help` and `--version` (exit with 0);
/// see [`exit_code`].
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, clap::Error> {
    let Cli { command, run } = Cli::try_parse_from(arguments)?;
    Ok(match command {
        Some(Subcommands::Check { file }) => Command::Check { file },
        Some(Subcommands::Demo(demo)) => Command::Demo(demo),
        Some(Subcommands::Healthcheck { address }) => Command::Healthcheck { address },
        Some(Subcommands::Top(arguments)) => Command::Top(arguments),
        Some(Subcommands::Explain(arguments)) => Command::Explain(arguments),
        Some(Subcommands::Policy(arguments)) => Command::Policy(arguments),
        Some(Subcommands::Simulate(arguments)) => Command::Simulate(arguments),
        Some(Subcommands::Tune(arguments)) => Command::Tune(arguments),
        None => run.into_command(),
    })
}

/// The exit code for what [`parse`] could not turn into a command.
#[must_use]
pub fn exit_code(error: &clap::Error) -> u8 {
    if error.use_stderr() { EXIT_USAGE } else { 0 }
}

impl Run {
    fn into_command(self) -> Command {
        let flags = Flags {
            host: self.host,
            port: self.port,
            server_hosts: self.server_hosts,
            server_ports: self.server_ports,
            enable_dynamic_bucket: self.enable_dynamic_bucket,
            server_group_threshold: self.server_group_threshold,
            max_request_tokens: self.max_request_tokens,
            max_retries: self.max_retries,
            retry_delay: self.retry_delay,
            admin_host: self.admin_host,
            admin_port: self.admin_port,
            daemon: self.daemon,
            watch: self.watch,
        };
        let start = match self.replace {
            Some(pid) => Start::Replace { pid },
            None if self.upgrade => Start::Upgrade,
            None => Start::Fresh,
        };
        Command::Run { file: self.conf, flags, start }
    }
}

fn port(text: &str) -> Result<u16, String> {
    let port = parse_whole(text, &PORTS).map_err(expected)?;
    u16::try_from(port).map_err(|error| error.to_string())
}

fn tokens(text: &str) -> Result<u64, String> {
    parse_whole(text, &TOKENS).map_err(expected)
}

fn attempts(text: &str) -> Result<usize, String> {
    let attempts = parse_whole(text, &ATTEMPTS).map_err(expected)?;
    usize::try_from(attempts).map_err(|error| error.to_string())
}

fn delay(text: &str) -> Result<Duration, String> {
    parse_delay_seconds(text).map_err(expected)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` wants")]
fn expected(accepted: String) -> String {
    format!("expected {accepted}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::Load;

    fn parsed(line: &str) -> Result<Command, clap::Error> {
        parse(format!("tidegate {line}").split_whitespace().map(OsString::from))
    }

    fn flags(line: &str) -> Flags {
        match parsed(line) {
            Ok(Command::Run { flags, .. }) => flags,
            other => panic!("no run: {other:?}"),
        }
    }

    #[test]
    fn no_flags_are_no_flags() {
        assert_eq!(parsed("").unwrap(), Command::Run { file: None, flags: Flags::default(), start: Start::Fresh });
    }

    #[test]
    fn all_flags_of_the_example_are_read() {
        let line = "--host 0.0.0.0 --port 8000 --server-hosts a b c --server-ports 1 2 3 --enable-dynamic-bucket \
                    --server-group-threshold 5 --max-request-tokens 6 --max-retries 7 --retry-delay 0.5";
        let expected = Flags {
            host: Some("0.0.0.0".into()),
            port: Some(8000),
            server_hosts: Some(vec!["a".into(), "b".into(), "c".into()]),
            server_ports: Some(vec![1, 2, 3]),
            enable_dynamic_bucket: true,
            server_group_threshold: Some(5),
            max_request_tokens: Some(6),
            max_retries: Some(7),
            retry_delay: Some(Duration::from_millis(500)),
            ..Flags::default()
        };
        assert_eq!(flags(line), expected);
    }

    #[test]
    fn the_last_of_a_repeated_flag_counts_as_in_the_example() {
        let flags = flags("--port 1 --port 2 --server-hosts a b --server-hosts c");
        assert_eq!((flags.port, flags.server_hosts), (Some(2), Some(vec!["c".to_owned()])));
    }

    #[test]
    fn own_flags_are_read() {
        let command = parsed("-c f.yaml -d -u --watch --admin-port 9 --admin-host h").unwrap();
        let flags =
            Flags { daemon: true, watch: true, admin_port: Some(9), admin_host: Some("h".into()), ..Flags::default() };
        assert_eq!(command, Command::Run { file: Some("f.yaml".into()), flags, start: Start::Upgrade });
    }

    #[test]
    fn the_process_to_replace_is_named_by_its_number() {
        let Command::Run { start, .. } = parsed("--replace 7").unwrap() else { panic!("no run") };
        assert_eq!(start, Start::Replace { pid: 7 });
        for line in ["--replace 0", "--replace -1", "--replace x", "--replace 7 -u", "--replace 7 -d"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn subcommands_are_read() {
        assert_eq!(parsed("check f.yaml").unwrap(), Command::Check { file: "f.yaml".into() });
        let demo = |port, admin_port, server_ports| Demo { port, admin_port, server_ports, load: false, policy: None };
        assert_eq!(parsed("demo").unwrap(), Command::Demo(demo(8000, 9400, vec![8100, 8101])));
        let line = "demo --port 1 --admin-port 2 --server-ports 3 4 5";
        assert_eq!(parsed(line).unwrap(), Command::Demo(demo(1, 2, vec![3, 4, 5])));
        let Command::Demo(demo) = parsed("demo --load --policy reference_bucket").unwrap() else { panic!("no demo") };
        assert_eq!((demo.load, demo.policy), (true, Some(DemoPolicy::ReferenceBucket)));
        assert!(parsed("demo --policy least").is_err());
    }

    #[test]
    fn the_health_check_has_the_default_port() {
        let healthcheck = |address: &str| Command::Healthcheck { address: address.to_owned() };
        assert_eq!(parsed("healthcheck").unwrap(), healthcheck("127.0.0.1:8000"));
        assert_eq!(parsed("healthcheck [::1]:1").unwrap(), healthcheck("[::1]:1"));
    }

    #[test]
    fn top_watches_the_admin_listener_of_this_machine_or_another() {
        let top = |admin: &str, token_env: Option<&str>| {
            Command::Top(RemoteArgs { admin: admin.to_owned(), token_env: token_env.map(str::to_owned) })
        };
        assert_eq!(parsed("top").unwrap(), top("127.0.0.1:9400", None));
        assert_eq!(parsed("top --admin lb:1 --token-env T").unwrap(), top("lb:1", Some("T")));
    }

    #[test]
    fn the_policy_is_driven_with_the_defaults_or_as_told() {
        let Command::Policy(arguments) = parsed("policy --stdio --servers 3 --policy lanes --lanes 1").unwrap() else {
            panic!("not the policy")
        };
        assert_eq!((arguments.servers, arguments.policy.as_deref()), (Some(3), Some("lanes")));
        assert_eq!((arguments.engine.lanes, arguments.engine.profile), (Some(1), None));
        for line in ["policy", "policy --stdio --servers 0", "policy --stdio -c f --servers 2"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_simulation_has_lists_of_policies_and_loads() {
        let line = "simulate --mix synthetic --policy lanes,least_work --load 0.6,0.8";
        let Command::Simulate(arguments) = parsed(line).unwrap() else { panic!("no simulation") };
        assert_eq!(arguments.policy, ["lanes", "least_work"]);
        assert_eq!(arguments.load, [Load::Share(0.6), Load::Share(0.8)]);
        for wrong in ["--trace f", "--load 80", "--load fast", "--servers 0", "--slo ttft=2", "--traces d"] {
            assert!(parsed(&format!("simulate --mix synthetic {wrong}")).is_err(), "{wrong}");
        }
        assert!(parsed("simulate --traces d --report f").is_err());
    }

    #[test]
    fn tuning_needs_one_traffic_and_knows_its_servers_from_one_place() {
        let Command::Tune(arguments) = parsed("tune --log - --slo ttft=1s").unwrap() else { panic!("not tuning") };
        assert_eq!((arguments.traffic.log, arguments.load, arguments.servers), (Some("-".into()), Load::Own, None));
        for wrong in ["", "--log a --trace b", "--log a --conf f --servers 2", "--mix synthetic --load 3"] {
            assert!(parsed(&format!("tune {wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn flags_do_not_mix_with_subcommands() {
        assert!(parsed("--port 1 check f.yaml").is_err());
    }

    #[test]
    fn help_and_version_are_no_errors_and_wrong_flags_are() {
        for (line, code) in [("--help", 0), ("--version", 0), ("demo --help", 0), ("--nope", 64), ("check", 64)] {
            assert_eq!(exit_code(&parsed(line).unwrap_err()), code, "{line}");
        }
    }
}
