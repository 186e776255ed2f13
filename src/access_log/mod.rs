//! The access log: one line for each request that has ended.
//!
//! [`Record`] is what a line says. Whoever writes the log and whoever reads it (`tidegate simulate --log`, `tidegate tune
//! --log`) use this type, so there is one place that says what a field is called and means. [`Writer`] makes lines of
//! records on a thread of its own.
//!
//! Prompts, answers, keys and addresses of clients never stand in it.

mod record;
mod text;
mod writer;

pub use record::{End, Record, RecordError, VERSION};
pub use writer::{Counts, Format, Writer};
