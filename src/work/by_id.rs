//! Requests by their number.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::request::RequestId;

/// A map from requests. Each event of each request looks one up.
pub type ById<V> = HashMap<RequestId, V, BuildHasherDefault<IdHasher>>;

/// Hashes the number of a request. Numbers are given in order and by ourselves, so that nobody can make them collide: one
/// multiplication spreads them well enough (Fibonacci hashing; Knuth, The Art of Computer Programming, 6.4).
#[derive(Debug, Default, Clone, Copy)]
pub struct IdHasher(u64);

/// 2^64 divided by the golden ratio.
const GOLDEN: u128 = 0x9E37_79B9_7F4A_7C15;

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a product")]
    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number) * GOLDEN;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher, Hash};

    use super::*;

    #[test]
    fn numbers_in_a_row_are_spread_over_low_and_high_bits() {
        let build = BuildHasherDefault::<IdHasher>::default();
        for step in [1, 2, 64, 1 << 32] {
            let hashes: Vec<u64> = (0..1_024).map(|id| build.hash_one(RequestId(id * step))).collect();
            let low: HashSet<u64> = hashes.iter().map(|hash| hash % 1_024).collect();
            let high: HashSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
            assert!(low.len() > 500 && high.len() == 128, "{step}: {} {}", low.len(), high.len());
        }
        let mut bytes = IdHasher::default();
        b"ab".hash(&mut bytes);
        assert_ne!(bytes.finish(), 0);
    }
}
