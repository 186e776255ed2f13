//! Where the parts of a prompt go while a body is read.

use super::prefix::{MAX_PREFIX_BLOCKS, PART_BYTES, PARTS, chained, hash, mixed};
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

/// Counts text, and hashes everything in blocks, part by part.
///
/// Escapes are decoded by then, so that both spellings of a character are one.
pub(super) struct Tally {
    /// The beginning of a part of a block.
    part: [u8; PART_BYTES],
    filled: usize,
    blocks: Blocks,
    counter: Counter,
    /// Counts what is of the query, of which most requests have none.
    query: Option<Box<Counter>>,
    is_query: bool,
    pub(super) token_ids: u64,
    pub(super) images: u32,
    pub(super) audios: u32,
    pub(super) videos: u32,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self {
            part: [0; PART_BYTES],
            filled: 0,
            blocks: Blocks { hash: 0, parts: 0, hashes: Vec::new() },
            counter: Counter::new(),
            query: None,
            is_query: false,
            token_ids: 0,
            images: 0,
            audios: 0,
            videos: 0,
        }
    }

    /// The counts of all text, that of the query so many times.
    pub(super) fn counts(&mut self, queries: u64) -> TextCounts {
        let mut counts = self.counter.counts();
        if let Some(query) = &mut self.query {
            counts.add(&query.counts(), queries);
        }
        counts
    }

    /// The hashes of the whole blocks, made different for each of the worlds that share no cache.
    pub(super) fn prefix(self, world: u64) -> Vec<u64> {
        let mut prefix = self.blocks.hashes;
        for hash in &mut prefix {
            *hash = mixed(*hash, world | 1);
        }
        prefix
    }

    fn append_text(&mut self, bytes: &[u8]) {
        let counter = match &mut self.query {
            Some(query) if self.is_query => query,
            _ => &mut self.counter,
        };
        counter.count(bytes);
        self.append(bytes);
    }

    /// Appends what counts in the prefix.
    fn append(&mut self, mut bytes: &[u8]) {
        // The end of a text or of a role.
        if let [byte] = *bytes
            && self.filled < PART_BYTES - 1
        {
            self.part[self.filled] = byte;
            self.filled += 1;
            return;
        }
        if self.filled > 0 {
            let taken = bytes.len().min(PART_BYTES - self.filled);
            self.part[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled < PART_BYTES {
                return;
            }
            self.blocks.chain(&self.part);
        }
        let (parts, begun) = bytes.as_chunks();
        for part in parts {
            self.blocks.chain(part);
        }
        self.part[..begun.len()].copy_from_slice(begun);
        self.filled = begun.len();
    }
}

/// Hashes of blocks, each of which stands for its block and all before it.
struct Blocks {
    /// The hash of all whole parts so far.
    hash: u64,
    /// How many of them are of a block that is not whole yet.
    parts: usize,
    hashes: Vec<u64>,
}

impl Blocks {
    /// Takes a part into the hash, unless there are enough blocks.
    fn chain(&mut self, part: &[u8; PART_BYTES]) {
        if self.hashes.len() == MAX_PREFIX_BLOCKS {
            return;
        }
        self.hash = chained(self.hash, part);
        self.parts += 1;
        if self.parts == PARTS {
            self.parts = 0;
            self.hashes.push(self.hash);
        }
    }
}

impl Sink for Tally {
    fn text(&mut self, piece: &[u8]) {
        self.append_text(piece);
    }

    fn end_text(&mut self) {
        // Counts as a break between words, and tells ["ab", "c"] from ["a", "bc"].
        self.append_text(&[0]);
    }

    fn role(&mut self, role: &[u8]) {
        self.append(role);
        self.append(&[0]);
    }

    fn token_id(&mut self, id: u32) {
        self.token_ids += 1;
        self.append(&id.to_le_bytes());
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
        self.append(&identity.to_le_bytes());
    }

    fn query(&mut self, is_query: bool) {
        self.is_query = is_query;
        if is_query && self.query.is_none() {
            self.query = Some(Box::new(Counter::new()));
        }
    }
}
