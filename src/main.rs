//! The `tidegate` program: from the command line to an exit code.

use std::env;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tidegate::app::{self, StartError};
use tidegate::cli::{self, Command, EXIT_USAGE};
use tidegate::config::{self, Config, Flags, Summary};
use tidegate::healthcheck;
use tidegate::reload::Origin;

/// A health check that takes longer has failed.
const HEALTHCHECK_WITHIN: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    match cli::parse(env::args_os()) {
        Ok(Command::Check { file }) => check(&file),
        Ok(Command::Run { file, flags, upgrade }) => match load(file.as_deref(), &flags) {
            Some(config) => {
                // Absolute, because a daemon changes its directory; not resolved, because links may change.
                let origin = file.and_then(|file| std::path::absolute(file).ok()).map(|file| Origin { file, flags });
                run(|| app::build(config, origin, upgrade))
            }
            None => EXIT_USAGE.into(),
        },
        Ok(Command::Demo(demo)) => run(|| app::build_demo(&demo)),
        Ok(Command::Healthcheck { address }) => healthcheck::run(&address, HEALTHCHECK_WITHIN),
        Err(error) => {
            // Nobody is left to tell when the output is closed.
            error.print().ok();
            cli::exit_code(&error).into()
        }
    }
}

/// Runs until a signal ends the process.
fn run(build: impl FnOnce() -> Result<app::Server, StartError>) -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info,pingora_core=warn")).init();
    match build() {
        Ok(server) => server.run_forever(),
        Err(error) => {
            writeln!(io::stderr(), "error: {error}").ok();
            ExitCode::FAILURE
        }
    }
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
