//! Chained hashes of the blocks of a content, by which requests that begin alike are known.

/// Bytes of content in one block of a prefix: about 512 tokens of English text. A token id counts as four bytes.
pub const PREFIX_BLOCK_BYTES: usize = 2_048;

/// The most blocks that are hashed, so that a request's prefix takes at most 16 KiB.
pub const MAX_PREFIX_BLOCKS: usize = 2_048;

/// Odd numbers with about as many ones as zeros: digits of the golden ratio and of the roots of small primes.
const KEYS: [u64; 4] = [0x9e37_79b9_7f4a_7c15, 0xbb67_ae85_84ca_a73b, 0x3c6e_f372_fe94_f82b, 0xa54f_f53a_5f1d_36f1];

/// Blocks are hashed in parts of this length, in bytes, so that what has less than a part is not hashed.
pub(super) const PART_BYTES: usize = PREFIX_BLOCK_BYTES / PARTS;

/// Parts of a block.
pub(super) const PARTS: usize = 4;

/// The hash of a part of a block that follows what `before` stands for.
pub(super) fn chained(before: u64, part: &[u8; PART_BYTES]) -> u64 {
    // Four at a time, none of which waits for another.
    let mut hashes = KEYS;
    let (words, _) = part.as_chunks::<8>();
    let (groups, _) = words.as_chunks::<8>();
    for group in groups {
        let group = group.map(u64::from_le_bytes);
        for (place, hash) in hashes.iter_mut().enumerate() {
            *hash = mixed(*hash ^ group[2 * place], KEYS[place] ^ group[2 * place + 1]);
        }
    }
    let [first, second, third, fourth] = hashes;
    mixed(before ^ mixed(first ^ KEYS[1], second ^ KEYS[2]), KEYS[3] ^ mixed(third ^ KEYS[0], fourth ^ KEYS[3]))
}

/// Numbers that stand for the blocks of a conversation that has a name, for so many of them (at most
/// [`MAX_PREFIX_BLOCKS`]). What tells conversations of the same name apart goes into the name.
#[must_use]
pub fn session_blocks<'a>(name: impl IntoIterator<Item = &'a [u8]>, blocks: u64) -> Vec<u64> {
    let named = name.into_iter().fold(KEYS[2], |before, part| mixed(before ^ hash(part), KEYS[3]));
    let blocks = usize::try_from(blocks).unwrap_or(usize::MAX).min(MAX_PREFIX_BLOCKS);
    std::iter::successors(Some(mixed(named, KEYS[1])), |before| Some(mixed(before ^ named, KEYS[0])))
        .take(blocks)
        .collect()
}

/// Hashes bytes. Not against somebody who looks for collisions: two requests with equal hashes are only taken to share
/// a prefix that they do not share.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let word = |place: usize, bytes: &[u8; 32]| {
        let (words, _) = bytes.as_chunks::<8>();
        u64::from_le_bytes(words[place])
    };
    let (mut left, mut right) = (KEYS[0], KEYS[1] ^ bytes.len() as u64);
    let (pieces, rest) = bytes.as_chunks::<32>();
    let mut last = [0; 32];
    last[..rest.len()].copy_from_slice(rest);
    for piece in pieces.iter().chain([&last]) {
        left = mixed(left ^ word(0, piece), KEYS[2] ^ word(1, piece));
        right = mixed(right ^ word(2, piece), KEYS[3] ^ word(3, piece));
    }
    mixed(left ^ KEYS[1], right ^ KEYS[2])
}

/// Both halves of a product: each bit of the factors reaches most bits of the result.
pub(super) fn mixed(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    let high = (product >> 64) as u64;
    #[expect(clippy::cast_possible_truncation, reason = "the low half")]
    let low = product as u64;
    high ^ low
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_bit_and_the_length_matter() {
        let block = [7; 100];
        let mut seen = HashSet::from([hash(&block)]);
        for byte in 0..block.len() {
            for bit in 0..8 {
                let mut changed = block;
                changed[byte] ^= 1 << bit;
                assert!(seen.insert(hash(&changed)), "bit {bit} of byte {byte}");
            }
        }
        for length in 0..block.len() {
            assert!(seen.insert(hash(&block[..length])), "{length}");
            assert!(seen.insert(hash(&vec![0; length + 1])), "{length} zeros and one");
        }
    }

    #[test]
    fn every_bit_of_a_part_and_of_what_is_before_it_matters() {
        let part = std::array::from_fn(|byte| byte.to_le_bytes()[0]);
        let mut seen = HashSet::from([chained(5, &part)]);
        for bit in 0..64 {
            assert!(seen.insert(chained(5 ^ 1 << bit, &part)), "bit {bit} of what is before");
        }
        for byte in 0..part.len() {
            for bit in 0..8 {
                let mut changed = part;
                changed[byte] ^= 1 << bit;
                assert!(seen.insert(chained(5, &changed)), "bit {bit} of byte {byte}");
            }
        }
    }

    #[test]
    fn conversations_have_blocks_of_their_own_and_longer_ones_begin_like_shorter_ones() {
        let blocks = |name: [&str; 2], count| session_blocks(name.map(str::as_bytes), count);
        let one = blocks(["a", "bc"], 1_000);
        assert_eq!(one.iter().collect::<HashSet<_>>().len(), 1_000);
        assert_eq!(blocks(["a", "bc"], 7), one[..7]);
        assert_eq!(blocks(["a", "bc"], u64::MAX).len(), MAX_PREFIX_BLOCKS);
        for other in [["ab", "c"], ["a", "b"], ["bc", "a"]] {
            assert!(blocks(other, 1_000).iter().all(|block| !one.contains(block)));
        }
    }

    #[test]
    fn a_chained_hash_stands_for_all_before_it() {
        let (one, other) = ([1; PART_BYTES], [2; PART_BYTES]);
        assert_ne!(chained(0, &one), chained(0, &other));
        assert_ne!(chained(chained(0, &one), &other), chained(chained(0, &other), &one));
        assert_ne!(chained(chained(0, &one), &one), chained(0, &one));
    }
}
