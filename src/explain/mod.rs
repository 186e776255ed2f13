//! Why a request would go where it would go: `POST /explain` on the admin listener, and `tidegate explain`.
//!
//! ```text
//! body -> Asked (a demand, as the proxy would measure it) -> Balancer::explain -> Answer: figures by name, and words
//! ```
//!
//! Nothing is sent and nothing is counted.

mod answer;
mod asked;
mod words;

#[cfg(test)]
mod tests;

pub use answer::Answer;
pub use asked::{Asked, AskedError};

use crate::balance::Tried;
use crate::prompt::{Demand, Endpoint};
use crate::upstream::Live;

/// Explains a request that the proxy is about to ask a place for.
#[must_use]
pub fn explain_demand(live: &Live, endpoint: Endpoint, demand: Demand, tried: &Tried) -> Answer {
    let explanation = live.balancer().explain(&demand, tried);
    Answer::new(&live.get(), &Asked { demand, endpoint, is_estimated: true }, &explanation)
}

/// Explains a request of this body, sent to this path if it is known.
///
/// # Errors
/// When the body says nothing that could be asked.
pub fn explain(live: &Live, path: Option<&str>, body: &[u8]) -> Result<Answer, AskedError> {
    let asked = Asked::read(live, path, body)?;
    let moment = live.get();
    Ok(Answer::new(&moment, &asked, &live.balancer().explain(&asked.demand, &Tried::default())))
}
