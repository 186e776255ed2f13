//! The access log: one line of JSON for each request that has ended.
//!
//! [`Record`] is the line. Whoever writes the log and whoever reads it (`tidegate simulate --log`, `tidegate tune --log`)
//! use this type, so there is one place that says what a field is called and means.
//!
//! Prompts, answers, keys and addresses of clients never stand in it.

mod record;

pub use record::{End, Record, RecordError, VERSION};
