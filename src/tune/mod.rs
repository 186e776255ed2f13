//! `tidegate tune`: which policy, lanes, threshold and groups suit this traffic, what they gain, and how sure that is.
//!
//! ```text
//! Traffic -> candidates --search: little traffic for all, more for the better third, and so on--> finalists
//!            finalists --fresh seeds, all of the traffic--> Advice (changes with intervals) -> text, YAML
//! ```
//!
//! The finalists are compared on seeds that had no part in choosing them, so that luck in the search is not taken for a
//! gain; and what is no better than something simpler by more than chance is not recommended.

mod advice;
mod candidates;
mod search;
mod speeds;

#[cfg(test)]
mod tests;

pub use advice::Advice;
pub use candidates::{Candidate, Pins};
pub use search::{Question, advise};
pub use speeds::{Speed, speeds};
