//! The `tidegate` program: from the command line to an exit code.

use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use log::LevelFilter;
use tidegate::app::{self, StartError};
use tidegate::cli::{self, Command, EXIT_USAGE, Start};
use tidegate::config::{self, Config, Flags, Summary};
use tidegate::reload::Origin;
use tidegate::{healthcheck, logging, offline, panics, replace, top};

/// glibc's allocator keeps what many streams at once have needed, and needs more each time.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A health check that takes longer has failed.
const HEALTHCHECK_WITHIN: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    match cli::parse(env::args_os()) {
        Ok(Command::Check { file }) => check(&file),
        Ok(Command::Run { file, flags, start }) => match (load(file.as_deref(), &flags), start) {
            (None, _) => EXIT_USAGE.into(),
            (Some(config), Start::Fresh) => run(config.log_level, || app::build(config, origin(file, flags), false)),
            (Some(config), Start::Upgrade) => run(config.log_level, || app::build(config, origin(file, flags), true)),
            (Some(config), Start::Replace { .. }) if config.pingora.daemon => {
                let text =
                    "error: --replace cannot wait for a daemon; leave out pingora.daemon, or use --upgrade and SIGQUIT";
                writeln!(io::stderr(), "{text}").ok();
                EXIT_USAGE.into()
            }
            (Some(_), Start::Replace { pid }) => replace::run(pid, env::args_os()),
        },
        Ok(Command::Demo(demo)) => run(LevelFilter::Info, || app::build_demo(&demo)),
        Ok(Command::Top(arguments)) => match top::run(&arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                writeln!(io::stderr(), "error: {error}").ok();
                ExitCode::FAILURE
            }
        },
        Ok(Command::Explain(arguments)) => match &arguments.conf {
            Some(file) => {
                let config = load(Some(file), &Flags::default());
                config.map_or(EXIT_USAGE.into(), |config| ended(offline::explain(&arguments, Some(config))))
            }
            None => ended(offline::explain(&arguments, None)),
        },
        Ok(Command::Policy(arguments)) => {
            with_config(arguments.conf.as_deref(), |config| offline::policy(&arguments, config))
        }
        Ok(Command::Simulate(arguments)) => ended(offline::simulate(&arguments)),
        Ok(Command::Tune(arguments)) => {
            with_config(arguments.conf.as_deref(), |config| offline::tune(&arguments, config))
        }
        Ok(Command::Healthcheck { address }) => healthcheck::run(&address, HEALTHCHECK_WITHIN),
        Err(error) => {
            // Nobody is left to tell when the output is closed.
            error.print().ok();
            cli::exit_code(&error).into()
        }
    }
}

/// Where the configuration is read again.
fn origin(file: Option<PathBuf>, flags: Flags) -> Option<Origin> {
    // Absolute, because a daemon changes its directory; not resolved, because links may change.
    file.and_then(|file| std::path::absolute(file).ok()).map(|file| Origin { file, flags })
}

/// Runs until a signal ends the process.
fn run(level: LevelFilter, build: impl FnOnce() -> Result<app::Program, StartError>) -> ExitCode {
    logging::start(level).expect("this is the only place where logging starts");
    panics::watch();
    match build() {
        Ok(program) => {
            program.run();
            ExitCode::SUCCESS
        }
        Err(error) => {
            writeln!(io::stderr(), "error: {error}").ok();
            ExitCode::FAILURE
        }
    }
}

/// Runs a command that serves nobody, with the configuration if a file is named.
fn with_config(file: Option<&Path>, command: impl FnOnce(Option<&Config>) -> Result<(), offline::Failure>) -> ExitCode {
    let Some(file) = file else { return ended(command(None)) };
    load(Some(file), &Flags::default()).map_or(EXIT_USAGE.into(), |config| ended(command(Some(&config))))
}

/// The exit code of a command that serves nobody.
fn ended(result: Result<(), offline::Failure>) -> ExitCode {
    let Err(failure) = result else { return ExitCode::SUCCESS };
    // Whoever read the output has gone: as with any filter, no failure worth a word.
    if failure.is_broken_pipe() {
        return ExitCode::SUCCESS;
    }
    writeln!(io::stderr(), "error: {failure}").ok();
    if failure.is_usage() { EXIT_USAGE.into() } else { ExitCode::FAILURE }
}

fn check(file: &Path) -> ExitCode {
    match load(Some(file), &Flags::default()) {
        Some(config) => {
            let written = write!(io::stdout(), "{}: ok\n{}", file.display(), Summary(&config));
            if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        None => EXIT_USAGE.into(),
    }
}

/// Reads the configuration and tells the operator what is wrong with it.
fn load(file: Option<&Path>, flags: &Flags) -> Option<Config> {
    let mut errors = io::stderr().lock();
    match config::load(file, flags, &|name| env::var(name).ok()) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                writeln!(errors, "warning: {warning}").ok();
            }
            Some(loaded.config)
        }
        Err(refusal) => {
            writeln!(errors, "{refusal}").ok();
            None
        }
    }
}
