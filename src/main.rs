//! The `tidegate` program: from the command line to an exit code.

use std::env;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use tidegate::cli::{self, Command, EXIT_USAGE};
use tidegate::config::{self, Config, Flags, Summary};

fn main() -> ExitCode {
    match cli::parse(env::args_os()) {
        Ok(Command::Check { file }) => check(&file),
        Ok(Command::Run { file, flags, .. }) => match load(file.as_deref(), &flags) {
            Some(_config) => ExitCode::SUCCESS,
            None => EXIT_USAGE.into(),
        },
        Ok(Command::Demo(_)) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell when the output is closed.
            error.print().ok();
            cli::exit_code(&error).into()
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
