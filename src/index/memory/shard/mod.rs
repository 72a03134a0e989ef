//! One shard of the map: entries by digest, and the queue behind each key that is being written.

pub(crate) mod entries;
pub(crate) mod ghosts;
pub(crate) mod lookup;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashTable;

use crate::base::block::Extent;
use crate::index::memory::shard::entries::Entries;
use crate::index::memory::shard::ghosts::Ghosts;
use crate::index::memory::shard::lookup::{Located, Lookup};
use crate::key::Digest;

// In this order: the fields that a lookup needs share a cache line with the lock.
#[repr(C)]
pub(crate) struct Shard<S> {
    pub(crate) lookup: Lookup,
    pub(crate) entries: Entries,
    pub(crate) pending: HashTable<Pending<S>>,
    pub(crate) ghosts: Ghosts,
    /// Entries with uses that are not in their records yet.
    pub(crate) used: Vec<u32>,
    /// Entries whose chunks are not told yet to whoever watches keys; none if nobody does.
    pub(crate) untold: Option<HashSet<u32>>,
}

/// The right to read a chunk; its extent stays allocated until [`Index::unpin`](super::map::Index::unpin).
#[derive(Debug)]
pub(crate) struct Pin {
    pub(crate) digest: Digest,
    pub(crate) entry: u32,
    pub(crate) extent: Extent,
    pub(crate) length_bytes: u64,
    pub(crate) checksum: Option<u64>,
}

/// One version of a chunk: that which is verified, as an owner that did not close wrote it, or as it could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkVersion {
    pub(crate) digest: Digest,
    pub(crate) generation: u64,
}

/// A key that is being written, and the SETs that wait for that.
pub(crate) struct Pending<S> {
    pub(crate) digest: Digest,
    pub(crate) key: Arc<str>,
    /// Number of the SET that is being written: those that wait have the numbers after it.
    pub(crate) set: u64,
    pub(crate) sets: VecDeque<S>,
    /// Number of the SET behind which the key was deleted last. That DELETE is answered already.
    pub(crate) deleted_behind: Option<u64>,
    /// Slot of its record, if that is in the index file already.
    pub(crate) written: Option<u32>,
}

impl<S> Pending<S> {
    pub(crate) fn new(digest: Digest, key: Arc<str>) -> Self {
        Self { digest, key, set: 0, sets: VecDeque::new(), deleted_behind: None, written: None }
    }

    /// Number of the SET behind which an operation that comes now waits.
    pub(crate) fn last_set(&self) -> u64 {
        self.set + self.sets.len() as u64
    }

    /// Whether a DELETE follows, directly or behind further SETs: it is answered, so the chunk must not be stored.
    pub(crate) fn is_deleted(&self) -> bool {
        self.deleted_behind.is_some()
    }
}

impl<S> Shard<S> {
    pub(crate) fn new() -> Self {
        Self {
            lookup: Lookup::default(),
            entries: Entries::default(),
            pending: HashTable::new(),
            ghosts: Ghosts::default(),
            used: Vec::new(),
            untold: None,
        }
    }

    pub(crate) fn find(&self, digest: Digest) -> Option<Located> {
        let same = |found: Located| { self.entries[found.entry].digest } == digest;
        self.lookup.find(digest.tag(), same)
    }

    pub(crate) fn insert_pending(&mut self, pending: Pending<S>) {
        let hash = |pending: &Pending<S>| pending.digest.table_hash();
        self.pending.insert_unique(hash(&pending), pending, hash);
    }

    pub(crate) fn pending_mut(&mut self, digest: Digest) -> Option<&mut Pending<S>> {
        if self.pending.is_empty() {
            return None;
        }
        self.pending.find_mut(digest.table_hash(), |pending| pending.digest == digest)
    }

    /// Pins a chunk, if it has this length.
    pub(crate) fn pin(&mut self, entry: u32, length_bytes: u64) -> Option<Pin> {
        let pinned = &mut self.entries[entry];
        if u64::from(pinned.length_bytes) != length_bytes || !pinned.add_reader() {
            return None;
        }
        let (digest, extent, checksum) = (pinned.digest, pinned.extent(), pinned.checksum());
        Some(Pin { digest, entry, extent, length_bytes, checksum })
    }

    pub(crate) fn link(&mut self, found: Located) {
        let digest = self.entries[found.entry].digest;
        self.lookup.insert(digest.tag(), found);
    }

    /// Returns the slot of the entry's record; none if it was not linked.
    pub(crate) fn unlink(&mut self, entry: u32) -> Option<u32> {
        let digest = self.entries[entry].digest;
        self.lookup.remove(digest.tag(), entry)
    }
}
