//! What chunks consist of.

use std::cell::RefCell;
use std::sync::Arc;

use kvring::{AlignedBlock, BLOCK_BYTES, CallerBuffer};

use super::disk::TAG_BYTES;
use super::session::LONGEST;
use crate::common::random::Random;
use crate::plan::Chunk;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Memory that a step's chunks share, block by block; zeros but for what chunks left in it.
pub(crate) struct Arena {
    block: Arc<AlignedBlock>,
    used: usize,
}

/// A chunk's memory in the arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    start: usize,
    pub(crate) length: usize,
}

impl Arena {
    pub(crate) fn new(size_bytes: usize) -> Self {
        Self { block: Arc::new(AlignedBlock::zeroed(size_bytes)), used: 0 }
    }

    /// Everything may be used again; nothing is in flight.
    pub(crate) fn reset(&mut self) {
        self.used = 0;
    }

    pub(crate) fn take(&mut self, length: usize) -> Option<Span> {
        let span = Span { start: self.used, length };
        let end = (span.start + span.length).next_multiple_of(BLOCK);
        if end > self.block.size_bytes() {
            return None;
        }
        self.used = end;
        Some(span)
    }

    pub(crate) fn buffer(&self, span: Span) -> CallerBuffer {
        // SAFETY: in bounds; the arena is kept with the batch, and left alone until its completion.
        unsafe { CallerBuffer::new(self.block.as_ptr().add(span.start), span.length) }
    }

    pub(crate) fn keep(&self) -> kvring::KeepAlive {
        Box::new(Arc::clone(&self.block))
    }

    #[allow(clippy::mut_from_ref, reason = "spans of one step do not overlap")]
    fn bytes(&self, span: Span) -> &mut [u8] {
        // SAFETY: in bounds; looked at only while nothing is in flight on it, by this thread alone.
        unsafe { std::slice::from_raw_parts_mut(self.block.as_ptr().add(span.start), span.length) }
    }
}

/// Chunks of random bytes, or of zeros, and in either case with the start of each block saying what it is.
pub(crate) struct Contents {
    random_bytes: Option<Vec<u8>>,
    scratch: RefCell<Vec<u8>>,
}

impl Contents {
    pub(crate) fn new(is_full: bool) -> Self {
        let mut random = Random::new(1);
        let random_bytes = is_full.then(|| {
            let words =
                (0..2 * LONGEST / 8).map(|_| random.below(1 << 53) | random.below(1 << 11) << 53);
            words.flat_map(u64::to_le_bytes).collect()
        });
        Self { random_bytes, scratch: RefCell::default() }
    }

    pub(crate) fn fill(&self, arena: &Arena, span: Span, key: u64, chunk: Chunk) {
        self.write(arena.bytes(span), key, chunk);
    }

    fn write(&self, bytes: &mut [u8], key: u64, chunk: Chunk) {
        if let Some(random_bytes) = &self.random_bytes {
            let start = (key * 2_654_435_761 + chunk.version * 40_503) % LONGEST;
            let start = start as usize;
            bytes.copy_from_slice(&random_bytes[start..start + bytes.len()]);
        }
        for (number, block) in bytes.chunks_mut(BLOCK).enumerate() {
            let tag = tag(key, chunk, number);
            let length = block.len().min(TAG_BYTES);
            block[..length].copy_from_slice(&tag[..length]);
        }
    }

    /// Whether these are the bytes of a chunk.
    pub(crate) fn is(&self, arena: &Arena, span: Span, key: u64, chunk: Chunk) -> bool {
        if chunk.length != span.length {
            return false;
        }
        let bytes = arena.bytes(span);
        if self.random_bytes.is_some() {
            let mut scratch = self.scratch.borrow_mut();
            scratch.resize(bytes.len(), 0);
            self.write(&mut scratch, key, chunk);
            return **scratch == *bytes;
        }
        bytes.chunks(BLOCK).enumerate().all(|(number, block)| {
            let length = block.len().min(TAG_BYTES);
            block[..length] == tag(key, chunk, number)[..length]
        })
    }
}

fn tag(key: u64, chunk: Chunk, block: usize) -> [u8; TAG_BYTES] {
    let mut tag = [0; TAG_BYTES];
    tag[..8].copy_from_slice(&(chunk.version << 12 | block as u64).to_le_bytes());
    tag[8..12].copy_from_slice(&(key as u32).to_le_bytes());
    tag[12..].copy_from_slice(&(chunk.length as u32).to_le_bytes());
    tag
}
