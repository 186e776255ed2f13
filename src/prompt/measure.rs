//! Reads the few fields of a request body that the policies use.

use super::Demand;

/// Measures a request body.
#[must_use]
pub fn measure(body: &[u8]) -> Demand {
    Demand::of_bytes(body.len() as u64)
}
