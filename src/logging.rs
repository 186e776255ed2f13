//! The log: standard error, by the level in `RUST_LOG`, or, without that, by the one that is configured.
//!
//! Below `info`, Pingora and the HTTP/2 library write out whole request headers, keys included. Whatever level is asked
//! for, those lines are left out.

use std::sync::atomic::{AtomicBool, Ordering};

use env_logger::{Builder, Env, Logger};
use log::{Level, LevelFilter, Log, Metadata, Record, SetLoggerError};

/// What is logged unless RUST_LOG says otherwise. Below TLS every scanner and every client that leaves is a warning.
/// How much of Tidegate's own is logged is for [`set_level`] to say.
const LOG_FILTER: &str = "info,tidegate=trace,pingora_core=warn,pingora_core::protocols::tls=error,rustls=error";

/// The crates whose fine messages quote what clients send.
const QUOTING: [&str; 3] = ["pingora", "h2", "hyper"];

/// Pingora calls it an error when a kept connection is closed or taken by another request just as it is to be used again.
/// It makes a new one, and nobody has to do anything.
const HARMLESS: &str = "failed to acquire reusable stream";

/// Starts to log, up to this level unless `RUST_LOG` says otherwise.
///
/// # Errors
/// When someone has done so before.
pub fn start(level: LevelFilter) -> Result<(), SetLoggerError> {
    let logger = Builder::from_env(Env::default().default_filter_or(LOG_FILTER)).build();
    if std::env::var_os(env_logger::DEFAULT_FILTER_ENV).is_some() {
        IS_LEFT_TO_ENVIRONMENT.store(true, Ordering::Relaxed);
        log::set_max_level(logger.filter());
    } else {
        log::set_max_level(level);
    }
    log::set_boxed_logger(Box::new(WithoutQuotes(logger)))
}

/// Whether the environment says what is logged. Relaxed: set once, before there is a second thread.
static IS_LEFT_TO_ENVIRONMENT: AtomicBool = AtomicBool::new(false);

/// Logs up to this level from now on, unless `RUST_LOG` says what is logged.
pub fn set_level(level: LevelFilter) {
    if !IS_LEFT_TO_ENVIRONMENT.load(Ordering::Relaxed) {
        log::set_max_level(level);
    }
}

struct WithoutQuotes(Logger);

impl Log for WithoutQuotes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !may_quote(metadata) && self.0.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !may_quote(record.metadata()) && record.args().as_str() != Some(HARMLESS) {
            self.0.log(record);
        }
    }

    fn flush(&self) {
        self.0.flush();
    }
}

fn may_quote(metadata: &Metadata<'_>) -> bool {
    metadata.level() > Level::Info && QUOTING.iter().any(|crates| metadata.target().starts_with(crates))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fine_messages_of_crates_that_quote_headers_are_left_out() {
        let quotes = |target: &str, level| may_quote(&Metadata::builder().target(target).level(level).build());
        for target in ["pingora_proxy", "pingora_core::protocols::http::v1::server", "h2::codec", "h2"] {
            assert!(quotes(target, Level::Debug) && quotes(target, Level::Trace), "{target}");
            assert!(!quotes(target, Level::Info) && !quotes(target, Level::Error), "{target}");
        }
        assert!(!quotes("tidegate::proxy", Level::Debug) && !quotes("tidegate", Level::Trace));
    }
}
