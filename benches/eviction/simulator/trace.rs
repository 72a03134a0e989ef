//! Requests, each the chunks of its prompt in their order.

use std::collections::HashMap;
use std::io;
use std::path::Path;

/// A trace. Chunks are numbered from 0 on.
pub(crate) struct Trace {
    pub(crate) name: String,
    /// Of which traces it is one: public, made, or adversarial ones.
    pub(crate) set: &'static str,
    pub(crate) requests: Vec<Vec<u32>>,
    /// Different chunks.
    pub(crate) chunks: u32,
}

impl Trace {
    /// Chunks are numbered anew, in the order in which they come.
    pub(crate) fn new(name: &str, set: &'static str, mut requests: Vec<Vec<u32>>) -> Self {
        let mut numbers = HashMap::new();
        for chunk in requests.iter_mut().flatten() {
            let next = numbers.len() as u32;
            *chunk = *numbers.entry(*chunk).or_insert(next);
        }
        Self { name: name.to_owned(), set, requests, chunks: numbers.len() as u32 }
    }

    /// Reads a file with a line for each request: the numbers of its chunks, with spaces between them.
    pub(crate) fn read(name: &str, path: &Path) -> io::Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let chunk = |word: &str| word.parse::<u32>().map_err(io::Error::other);
        let request = |line: &str| line.split_whitespace().map(chunk).collect();
        let requests = text.lines().map(request).collect::<io::Result<_>>()?;
        Ok(Self::new(name, "public", requests))
    }

    /// Chunks of all requests.
    pub(crate) fn lookups(&self) -> usize {
        self.requests.iter().map(Vec::len).sum()
    }

    /// Chunks of a cache that has room for one of so many, but at least for one.
    pub(crate) fn room(&self, fraction: usize) -> usize {
        (self.chunks as usize / fraction).max(1)
    }
}
