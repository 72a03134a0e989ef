//! One shard of the map: entries by digest, and the queue behind each key that is being written.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashTable;

use super::entries::Entries;
use super::ghosts::Ghosts;
use super::lookup::{Found, Lookup};
use crate::block::Extent;
use crate::checksum::PayloadChecksum;
use crate::key::Digest;

/// Keys of one shard, behind one lock.
// In this order: what a lookup needs of it comes with the lock, in one cache line.
#[repr(C)]
pub(super) struct Shard<G, S> {
    pub(super) lookup: Lookup,
    pub(super) entries: Entries,
    pub(super) pending: HashTable<Pending<G, S>>,
    pub(super) ghosts: Ghosts,
    /// Entries with uses that their records do not know of.
    pub(super) used: Vec<u32>,
}

/// The right to read a chunk; its extent is not given away before it is returned by [`Index::unpin`].
#[derive(Debug)]
pub(crate) struct Pin {
    pub(super) shard: u32,
    pub(super) entry: u32,
    pub(crate) extent: Extent,
    pub(crate) length_bytes: u64,
    /// Checksum of the payload, if one was kept.
    pub(crate) checksum: Option<PayloadChecksum>,
}

/// A chunk whose record is whole and whose data may not be: an owner who did not close wrote it, or it could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub(crate) digest: Digest,
    pub(crate) generation: u64,
}

/// A key that is being written, and what waits for that.
pub(super) struct Pending<G, S> {
    pub(super) digest: Digest,
    pub(super) key: Arc<str>,
    pub(super) waiting: VecDeque<Waiting<G, S>>,
    /// GETs among these.
    pub(super) waiting_gets: usize,
    /// Slot of its record, if that is in the index file before the key is found by it.
    pub(super) written: Option<u32>,
}

impl<G, S> Pending<G, S> {
    /// Whether a DELETE follows, directly or behind further SETs: it is answered, so what is written now must not be held.
    pub(super) fn is_deleted(&self) -> bool {
        self.waiting.iter().any(|other| matches!(other, Waiting::Delete))
    }
}

/// An operation that waits; a DELETE is answered already.
pub(super) enum Waiting<G, S> {
    Get { length_bytes: u64, request: G },
    Set(S),
    Delete,
}

impl<G, S> Shard<G, S> {
    pub(super) fn new() -> Self {
        Self {
            lookup: Lookup::default(),
            entries: Entries::default(),
            pending: HashTable::new(),
            ghosts: Ghosts::default(),
            used: Vec::new(),
        }
    }

    /// The entry found by `digest`, and its record.
    pub(super) fn find(&self, digest: Digest) -> Option<Found> {
        let same = |found: Found| self.entries[found.entry].digest == digest;
        self.lookup.find(digest.tag(), same)
    }

    /// Whether the entry is kept for its readers alone.
    pub(super) fn is_detached(&self, entry: u32) -> bool {
        self.entries[entry].detached
    }

    /// What waits behind the key that is being written under `digest`.
    pub(super) fn pending_mut(&mut self, digest: Digest) -> Option<&mut Pending<G, S>> {
        if self.pending.is_empty() {
            return None;
        }
        self.pending.find_mut(digest.table_hash(), |pending| pending.digest == digest)
    }

    /// Pins an entry if it is of exactly this length.
    pub(super) fn pin(&mut self, shard: u32, entry: u32, length_bytes: u64) -> Option<Pin> {
        let held = &mut self.entries[entry];
        if u64::from(held.length_bytes) != length_bytes {
            return None;
        }
        held.readers += 1;
        Some(Pin { shard, entry, extent: held.extent(), length_bytes, checksum: held.checksum() })
    }

    /// Makes an entry found by its digest.
    pub(super) fn link(&mut self, found: Found) {
        let digest = self.entries[found.entry].digest;
        self.lookup.insert(digest.tag(), found);
    }

    /// Makes an entry not found any more. Returns the slot of its record; none if it was not found before.
    pub(super) fn unlink(&mut self, entry: u32) -> Option<u32> {
        let digest = self.entries[entry].digest;
        self.lookup.remove(digest.tag(), entry)
    }
}
