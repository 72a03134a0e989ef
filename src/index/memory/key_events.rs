//! What is told of keys that come and go, and which chunks are still to be told.

use crate::base::sync::SegQueue;

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// It is stored now. One that is replaced is gone before.
    Stored,
    /// It was to be stored again with the same bytes.
    StoredAgain,
    /// It is not stored any more.
    Gone,
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEvent {
    /// The key.
    pub key: String,
    /// Length of its chunk.
    pub length_bytes: u64,
    /// What became of it.
    pub change: KeyChange,
}

/// Changes that nobody has taken yet.
pub(crate) type KeyEvents = SegQueue<KeyEvent>;

/// A chunk that was stored when telling began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UntoldChunk {
    pub(crate) last_used_ms: u64,
    pub(crate) shard: u32,
    pub(crate) entry: u32,
}

/// Entries of a shard whose chunks are not told yet, a bit for each number.
pub(crate) struct Untold(Vec<u64>);

impl Untold {
    pub(crate) fn new(entries: u32) -> Self {
        Self(vec![0; entries.div_ceil(u64::BITS) as usize])
    }

    pub(crate) fn add(&mut self, entry: u32) {
        self.0[(entry / u64::BITS) as usize] |= 1 << (entry % u64::BITS);
    }

    pub(crate) fn has(&self, entry: u32) -> bool {
        let word = self.0.get((entry / u64::BITS) as usize);
        word.is_some_and(|word| word >> (entry % u64::BITS) & 1 == 1)
    }

    /// Says whether it was there.
    pub(crate) fn take(&mut self, entry: u32) -> bool {
        let was_there = self.has(entry);
        if was_there {
            self.0[(entry / u64::BITS) as usize] &= !(1 << (entry % u64::BITS));
        }
        was_there
    }
}
