//! Where the parts of a prompt go while a body is read.

use super::prefix::{MAX_PREFIX_BLOCKS, PREFIX_BLOCK_BYTES, chained, hash, mixed};
use crate::prompt::text::{Counter, TextCounts};

/// What kind of medium a part holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::prompt) enum Medium {
    Image,
    Audio,
    Video,
}

/// Takes the parts of a prompt in their order.
pub(in crate::prompt) trait Sink {
    /// A piece of text, decoded. Pieces follow each other without a gap until [`end_text`](Self::end_text).
    fn text(&mut self, piece: &[u8]);
    /// The end of a text.
    fn end_text(&mut self);
    /// Who speaks what follows: part of the prefix, but its tokens are counted as those of the chat template.
    fn role(&mut self, role: &[u8]);
    /// A token id.
    fn token_id(&mut self, id: u32);
    /// An image, a sound or a film, given as anything.
    fn medium(&mut self, medium: Medium, source: &[u8]);
    /// Whether what follows is of the query that goes with each of the documents.
    fn query(&mut self, is_query: bool);
}

/// Counts text, and hashes everything in blocks.
///
/// Text is collected into a block first. Escapes are decoded by then, so that both spellings of a character are one.
pub(super) struct Tally {
    block: [u8; PREFIX_BLOCK_BYTES],
    filled: usize,
    /// Up to where the block is counted or holds no text.
    counted: usize,
    counter: Counter,
    /// The one of the two counters, for queries and all else, that is not in use.
    aside: Counter,
    is_query: bool,
    prefix: Vec<u64>,
    pub(super) token_ids: u64,
    pub(super) images: u32,
    pub(super) audios: u32,
    pub(super) videos: u32,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self {
            block: [0; PREFIX_BLOCK_BYTES],
            filled: 0,
            counted: 0,
            counter: Counter::new(),
            aside: Counter::new(),
            is_query: false,
            prefix: Vec::new(),
            token_ids: 0,
            images: 0,
            audios: 0,
            videos: 0,
        }
    }

    /// The counts of all text, that of the query so many times.
    pub(super) fn counts(&mut self, queries: u64) -> TextCounts {
        self.count();
        self.query(false);
        let mut counts = self.counter.counts();
        counts.add(&self.aside.counts(), queries);
        counts
    }

    /// The hashes of the whole blocks, made different for each of the worlds that share no cache.
    pub(super) fn prefix(self, world: u64) -> Vec<u64> {
        let mut prefix = self.prefix;
        for hash in &mut prefix {
            *hash = mixed(*hash, world | 1);
        }
        prefix
    }

    fn count(&mut self) {
        self.counter.count(&self.block[self.counted..self.filled]);
        self.counted = self.filled;
    }

    fn append(&mut self, mut bytes: &[u8]) {
        if let Some(room) = self.block.get_mut(self.filled..self.filled + bytes.len())
            && self.filled + bytes.len() < PREFIX_BLOCK_BYTES
        {
            room.copy_from_slice(bytes);
            self.filled += bytes.len();
            return;
        }
        while !bytes.is_empty() {
            let room = PREFIX_BLOCK_BYTES - self.filled;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.block[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == PREFIX_BLOCK_BYTES {
                self.end_block();
            }
        }
    }

    fn end_block(&mut self) {
        self.count();
        if self.prefix.len() < MAX_PREFIX_BLOCKS {
            let before = self.prefix.last().copied().unwrap_or_default();
            self.prefix.push(chained(before, &self.block));
        }
        self.filled = 0;
        self.counted = 0;
    }

    /// Appends what counts in the prefix and not as text.
    fn append_uncounted(&mut self, bytes: &[u8]) {
        if self.counted < self.filled {
            self.count();
        }
        for piece in bytes.chunks(PREFIX_BLOCK_BYTES) {
            let room = PREFIX_BLOCK_BYTES - self.filled;
            let (now, later) = piece.split_at(room.min(piece.len()));
            for part in [now, later] {
                self.block[self.filled..self.filled + part.len()].copy_from_slice(part);
                self.filled += part.len();
                self.counted = self.filled;
                if self.filled == PREFIX_BLOCK_BYTES {
                    self.end_block();
                }
            }
        }
    }
}

impl Sink for Tally {
    fn text(&mut self, piece: &[u8]) {
        self.append(piece);
    }

    fn end_text(&mut self) {
        // Counts as a break between words, and tells ["ab", "c"] from ["a", "bc"].
        self.append(&[0]);
    }

    fn role(&mut self, role: &[u8]) {
        self.append_uncounted(role);
        self.append_uncounted(&[0]);
    }

    fn token_id(&mut self, id: u32) {
        self.token_ids += 1;
        self.append_uncounted(&id.to_le_bytes());
    }

    fn medium(&mut self, medium: Medium, source: &[u8]) {
        let count = match medium {
            Medium::Image => &mut self.images,
            Medium::Audio => &mut self.audios,
            Medium::Video => &mut self.videos,
        };
        *count = count.saturating_add(1);
        // Compressed media differ from the beginning on, and megabytes of base64 are not worth reading for this.
        const ENDS: usize = 2_048;
        let first = &source[..ENDS.min(source.len())];
        let last = &source[source.len().saturating_sub(ENDS)..];
        let identity = mixed(hash(first) ^ source.len() as u64, hash(last) | 1);
        self.append_uncounted(&identity.to_le_bytes());
    }

    fn query(&mut self, is_query: bool) {
        if self.is_query != is_query {
            self.count();
            std::mem::swap(&mut self.counter, &mut self.aside);
            self.is_query = is_query;
        }
    }
}
