//! Requests, each the chunks of its prompt in their order.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use kvring::BLOCK_BYTES;

use crate::random::mix;

/// How long chunks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// All have 1 MiB, as those of one model do.
    One,
    /// 64 KiB to 8 MiB, each power of two for an eighth of the chunks.
    Eight,
}

impl Sizes {
    pub(crate) const ALL: [Self; 2] = [Self::One, Self::Eight];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Eight => "eight",
        }
    }

    /// Length of a chunk in blocks.
    pub(crate) fn blocks(self, chunk: u32) -> u32 {
        let bytes = match self {
            Self::One => 1 << 20,
            Self::Eight => 1 << (16 + mix(u64::from(chunk) + 1) % 8),
        };
        (bytes / BLOCK_BYTES) as u32
    }
}

/// A trace. Chunks are numbered from 0 on.
pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) requests: Vec<Vec<u32>>,
    /// Different chunks.
    pub(crate) chunks: u32,
}

impl Trace {
    /// Chunks are numbered anew, in the order in which they come.
    pub(crate) fn new(name: &str, about: String, mut requests: Vec<Vec<u32>>) -> Self {
        let mut numbers = HashMap::new();
        for chunk in requests.iter_mut().flatten() {
            let next = numbers.len() as u32;
            *chunk = *numbers.entry(*chunk).or_insert(next);
        }
        Self { name: name.to_owned(), about, requests, chunks: numbers.len() as u32 }
    }

    /// Reads a file with a line for each request: the numbers of its chunks, with spaces between them.
    pub(crate) fn read(name: &str, path: &Path) -> io::Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let chunk = |word: &str| word.parse::<u32>().map_err(io::Error::other);
        let request = |line: &str| line.split_whitespace().map(chunk).collect();
        let requests = text.lines().map(request).collect::<io::Result<_>>()?;
        Ok(Self::new(name, String::new(), requests))
    }

    /// Chunks of all requests.
    pub(crate) fn lookups(&self) -> u64 {
        self.requests.iter().map(|request| request.len() as u64).sum()
    }

    /// Blocks of all chunks.
    pub(crate) fn footprint_blocks(&self, sizes: Sizes) -> u64 {
        (0..self.chunks).map(|chunk| u64::from(sizes.blocks(chunk))).sum()
    }
}
