//! `tidegate simulate`: traffic replayed against modelled engines under one policy after the other.
//!
//! ```text
//! CSV, access log or mix -> Traffic --seed--> Jobs --load--> World: arrivals -> work::Dispatcher -> Engine -> first tokens, ends
//!                                                             ^------------------- events ---------------------'
//! Study (policies x loads x seeds, on all cores) -> table, overview, report (HTML)
//! ```
//!
//! The policies are the product's own, through the same dispatcher that everything else uses. The engines are a model of
//! vLLM's V1 engine ([`Engine`]), with the coefficients of a [`Profile`](crate::work::Profile).

mod baseline;
mod compare;
mod contender;
mod engine;
mod log;
mod mix;
mod outcome;
mod overview;
mod parallel;
mod report;
mod slo;
mod study;
mod table;
mod text;
mod timeline;
mod trace;
mod traffic;
mod world;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use compare::{Change, Figure, change};
pub use contender::{ALL_POLICIES, Contender};
pub use engine::{Activity, Engine, Progress};
pub use log::{FirstToken, LogNotes};
pub use mix::Mix;
pub use outcome::{Distribution, LONG_FROM_TOKENS, Summary, Timing};
pub use overview::Overview;
pub(crate) use overview::percent;
pub use parallel::{Observer, cores};
pub use report::html;
pub use slo::{Slo, SloText};
pub use study::{Load, Plan, Run, Study};
pub use table::{describe, write as write_table};
pub use timeline::{BalancerState, ServerState, Timeline, Window};
pub use trace::TraceError;
pub(crate) use traffic::as_f64;
pub use traffic::{Job, Traffic, natural_load};
pub use world::World;

use crate::drive::SetupError;

/// Where the traffic comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// A CSV file.
    Trace(PathBuf),
    /// All CSV files of a folder.
    Traces(PathBuf),
    /// An access log; `-` is the standard input.
    Log(PathBuf),
    /// Made up.
    Mix(String),
}

/// Why nothing can be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The traffic cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A policy cannot be run over so many servers.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// There is no such policy.
    #[error("there is no policy {name:?}, expected some of {}, or all", ALL_POLICIES.join(", "))]
    UnknownPolicy {
        /// What was asked for.
        name: String,
    },
    /// There is no such traffic.
    #[error("there is no mix {name:?}, expected synthetic or synthetic-burst")]
    UnknownMix {
        /// What was asked for.
        name: String,
    },
    /// Every request is too large.
    #[error("{traffic}: no request fits into the KV cache of {tokens} tokens")]
    NothingFits {
        /// The traffic.
        traffic: String,
        /// What an engine holds.
        tokens: u64,
    },
}

impl Source {
    /// Reads it, at most so many requests of each traffic; of a log also says what was found in it.
    ///
    /// # Errors
    /// When there is no such traffic, or it cannot be read.
    pub fn read(&self, most: usize) -> Result<(Vec<Traffic>, LogNotes), SimulateError> {
        let no_notes = LogNotes::default();
        Ok(match self {
            Self::Trace(file) => (vec![trace::read(file, most)?], no_notes),
            Self::Traces(folder) => (trace::read_all(folder, most)?, no_notes),
            Self::Log(file) => {
                let (traffic, notes) = log::read(Path::new(file), most)?;
                (vec![traffic], notes)
            }
            Self::Mix(name) => {
                let mix = Mix::named(name).ok_or_else(|| SimulateError::UnknownMix { name: name.clone() })?;
                (vec![Traffic::made_up(mix, most)], no_notes)
            }
        })
    }
}
