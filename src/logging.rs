//! The log: standard error, by the level in `RUST_LOG`.
//!
//! Below `info`, Pingora and the HTTP/2 library write out whole request headers, keys included. Whatever level is asked
//! for, those lines are left out.

use env_logger::{Builder, Env, Logger};
use log::{Level, Log, Metadata, Record, SetLoggerError};

/// What is logged unless RUST_LOG says otherwise. Below TLS every scanner and every client that leaves is a warning.
const LOG_FILTER: &str = "info,pingora_core=warn,pingora_core::protocols::tls=error,rustls=error";

/// The crates whose fine messages quote what clients send.
const QUOTING: [&str; 3] = ["pingora", "h2", "hyper"];

/// Pingora calls it an error when a kept connection is closed or taken by another request just as it is to be used again.
/// It makes a new one, and nobody has to do anything.
const HARMLESS: &str = "failed to acquire reusable stream";

/// Starts to log.
///
/// # Errors
/// When someone has done so before.
pub fn start() -> Result<(), SetLoggerError> {
    let logger = Builder::from_env(Env::default().default_filter_or(LOG_FILTER)).build();
    log::set_max_level(logger.filter());
    log::set_boxed_logger(Box::new(WithoutQuotes(logger)))
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
