//! Seeded mutations of a corpus.

use rand::rngs::StdRng;
use rand::{Rng, RngExt};

/// Bytes that mean something in JSON, YAML or HTTP.
const MEANINGFUL: &[u8] = b"\r\n\t \0\"\\'{}[]:,;-+.eE019/%#&*!|>?@=~\x7f\x80\xff";

/// One of the inputs with a few changes.
pub(crate) fn mutate(corpus: &[Vec<u8>], random: &mut StdRng) -> Vec<u8> {
    let mut input = pick(corpus, random).to_vec();
    for _ in 0..random.random_range(1..=4) {
        let at = random.random_range(0..=input.len());
        let end = at + random.random_range(0..=(input.len() - at).min(24));
        match random.random_range(0..6) {
            0 => drop(input.splice(at..end, [])),
            1 => input.insert(at, MEANINGFUL[random.random_range(0..MEANINGFUL.len())]),
            2 => input.insert(at, random.random()),
            3 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << random.random_range(0..8);
                }
            }
            4 => {
                let again = input[at..end].to_vec();
                input.splice(at..at, again);
            }
            _ => {
                let other = pick(corpus, random);
                let from = random.random_range(0..=other.len());
                let piece = other[from..(from + random.random_range(0..=64)).min(other.len())].to_vec();
                input.splice(at..end, piece);
            }
        }
    }
    input
}

fn pick<'a>(corpus: &'a [Vec<u8>], random: &mut impl Rng) -> &'a [u8] {
    &corpus[random.random_range(0..corpus.len())]
}
