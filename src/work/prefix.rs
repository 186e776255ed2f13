//! Which prompt blocks a server is believed to still hold in its KV cache.
//!
//! A belief, because engines do not tell: each server is taken to keep what was last computed on it, up to the size of its
//! KV cache, and to forget the least recently used block first, as vLLM does.

use std::collections::{HashMap, VecDeque};

use super::request::{BLOCK_TOKENS, Request};

/// Memory that a block takes at most: 17 bytes in a table that is half empty, and twice 16 in a queue that is, too.
const BLOCK_BYTES: u64 = 98;

/// Memory for what all servers are believed to hold, unless another amount is set, in bytes.
pub const DEFAULT_PREFIX_BYTES: u64 = 64 << 20;

/// The blocks of one server.
#[derive(Debug)]
pub struct PrefixCache {
    /// When each block was last used, in uses.
    last_use: HashMap<u64, u64>,
    /// Uses in order; what was used again later is skipped.
    uses: VecDeque<(u64, u64)>,
    next_use: u64,
    /// As many as the engine's cache holds.
    engine_blocks: usize,
    /// As many as there is memory for.
    memory_blocks: usize,
}

impl PrefixCache {
    /// The cache of a server that holds so many tokens.
    #[must_use]
    pub fn new(kv_tokens: u64) -> Self {
        let engine_blocks = usize::try_from(kv_tokens / BLOCK_TOKENS).unwrap_or(usize::MAX);
        let (last_use, uses) = (HashMap::new(), VecDeque::new());
        Self { last_use, uses, next_use: 0, engine_blocks, memory_blocks: usize::MAX }
    }

    /// Takes at most so much memory from now on.
    pub fn limit_memory(&mut self, most_bytes: u64) {
        self.memory_blocks = usize::try_from(most_bytes / BLOCK_BYTES).unwrap_or(usize::MAX);
        self.forget();
    }

    /// Holds so many tokens from now on.
    pub fn resize(&mut self, kv_tokens: u64) {
        self.engine_blocks = usize::try_from(kv_tokens / BLOCK_TOKENS).unwrap_or(usize::MAX);
        self.forget();
    }

    /// Tokens at the beginning of a prompt that need not be computed again. Always less than the whole prompt.
    #[must_use]
    pub fn cached_tokens(&self, request: &Request) -> u64 {
        if self.last_use.is_empty() {
            return 0;
        }
        let known = |blocks: &[u64]| blocks.iter().take_while(|block| self.last_use.contains_key(block)).count();
        let blocks = known(&request.prefix).max(known(&request.session));
        (blocks as u64 * BLOCK_TOKENS).min(request.prompt_tokens.saturating_sub(1))
    }

    /// Notes that a prompt's blocks are used now.
    pub fn touch(&mut self, prefix: &[u64]) {
        // From the end, so that of one prompt the blocks at its end are forgotten first: the beginning is shared more.
        for &block in prefix.iter().rev() {
            self.last_use.insert(block, self.next_use);
            self.uses.push_back((self.next_use, block));
            self.next_use += 1;
        }
        self.forget();
    }

    fn forget(&mut self) {
        let most_blocks = self.engine_blocks.min(self.memory_blocks);
        let most_uses = most_blocks.saturating_mul(2).saturating_add(64);
        while self.last_use.len() > most_blocks || self.uses.len() > most_uses {
            let Some((used, block)) = self.uses.pop_front() else { return };
            if self.last_use.get(&block) == Some(&used) {
                self.last_use.remove(&block);
            }
        }
    }

    /// Forgets everything: the engine may have been started anew.
    pub fn clear(&mut self) {
        self.last_use.clear();
        self.uses.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(prompt_tokens: u64, prefix: &[u64]) -> Request {
        Request { prefix: prefix.to_vec(), ..Request::of_tokens(0, prompt_tokens) }
    }

    #[test]
    fn only_a_common_beginning_counts_and_never_the_whole_prompt() {
        let mut cache = PrefixCache::new(100 * BLOCK_TOKENS);
        assert_eq!(cache.cached_tokens(&request(2_000, &[1, 2, 3])), 0);
        cache.touch(&[1, 2, 3]);
        assert_eq!(cache.cached_tokens(&request(2_000, &[1, 2, 9])), 1_024);
        assert_eq!(cache.cached_tokens(&request(2_000, &[9, 2, 3])), 0);
        assert_eq!(cache.cached_tokens(&request(1_536, &[1, 2, 3])), 1_535);
        cache.clear();
        assert_eq!(cache.cached_tokens(&request(2_000, &[1])), 0);
    }

    #[test]
    fn a_named_conversation_is_known_by_its_name() {
        let mut cache = PrefixCache::new(100 * BLOCK_TOKENS);
        cache.touch(&[1]);
        cache.touch(&[71, 72, 73]);
        let request = |prefix: &[u64]| Request { session: vec![71, 72, 73, 74], ..request(9_999, prefix) };
        assert_eq!(cache.cached_tokens(&request(&[])), 3 * BLOCK_TOKENS);
        assert_eq!(cache.cached_tokens(&request(&[1, 9])), 3 * BLOCK_TOKENS);
        cache.touch(&[1, 2, 3, 4]);
        assert_eq!(cache.cached_tokens(&request(&[1, 2, 3, 4])), 4 * BLOCK_TOKENS);
    }

    #[test]
    fn what_was_used_longest_ago_is_forgotten_first_the_end_of_a_prompt_before_its_beginning() {
        let mut cache = PrefixCache::new(3 * BLOCK_TOKENS);
        cache.touch(&[1, 2]);
        cache.touch(&[3, 4]);
        let cached = |cache: &PrefixCache, prefix: &[u64]| cache.cached_tokens(&request(9_999, prefix)) / BLOCK_TOKENS;
        assert_eq!([cached(&cache, &[1, 2]), cached(&cache, &[3, 4])], [1, 2]);
    }

    #[test]
    fn a_smaller_cache_keeps_what_was_used_last() {
        let mut cache = PrefixCache::new(10 * BLOCK_TOKENS);
        cache.touch(&[1, 2]);
        cache.touch(&[3, 4]);
        cache.resize(2 * BLOCK_TOKENS);
        let cached = |prefix: &[u64]| cache.cached_tokens(&request(9_999, prefix)) / BLOCK_TOKENS;
        assert_eq!([cached(&[1, 2]), cached(&[3, 4])], [0, 2]);
    }

    #[test]
    fn with_less_memory_the_latest_blocks_stay() {
        let mut cache = PrefixCache::new(1_000 * BLOCK_TOKENS);
        cache.touch(&[1, 2]);
        cache.touch(&[3, 4]);
        cache.limit_memory(2 * BLOCK_BYTES + 1);
        let cached = |cache: &PrefixCache, prefix: &[u64]| cache.cached_tokens(&request(9_999, prefix)) / BLOCK_TOKENS;
        assert_eq!([cached(&cache, &[1, 2]), cached(&cache, &[3, 4])], [0, 2]);
        cache.limit_memory(0);
        cache.touch(&[5]);
        assert_eq!(cached(&cache, &[5]), 0);
    }

    #[test]
    fn memory_is_bounded_also_when_the_same_blocks_come_again_and_again() {
        let mut cache = PrefixCache::new(10 * BLOCK_TOKENS);
        (0..10_000).for_each(|round| cache.touch(&[1, 2, 3, round % 50]));
        assert!(cache.last_use.len() <= 10 && cache.uses.len() <= 84);
        assert!(cache.last_use.contains_key(&1));
    }
}
