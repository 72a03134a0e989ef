//! One shard of the map: entries by digest, and the queue behind each key that is being written.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashTable;
use slab::Slab;

use super::map::Pin;
use crate::key::Digest;
use crate::store::Extent;

/// Keys of one shard, behind one lock.
pub(super) struct Shard<G, S> {
    held: HashTable<u32>,
    pub(super) entries: Slab<Entry>,
    pub(super) pending: HashTable<Pending<G, S>>,
}

/// One stored chunk. Detached: no longer found by its key, kept for its readers.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) digest: Digest,
    pub(super) generation: u64,
    pub(super) extent: Extent,
    pub(super) length_bytes: u32,
    pub(super) checksum: u32,
    pub(super) slot: u32,
    pub(super) readers: u32,
    pub(super) has_checksum: bool,
    pub(super) detached: bool,
}

/// A key that is being written, and what waits for that.
pub(super) struct Pending<G, S> {
    pub(super) digest: Digest,
    pub(super) key: Arc<str>,
    pub(super) waiting: VecDeque<Waiting<G, S>>,
    /// Slot of its record, if that is in the sidecar before the key is found by it.
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
        Self { held: HashTable::new(), entries: Slab::new(), pending: HashTable::new() }
    }

    /// Number of the entry found by `digest`.
    pub(super) fn find(&self, digest: Digest) -> Option<u32> {
        let same = |entry: &u32| self.entries[*entry as usize].digest == digest;
        self.held.find(digest.table_hash(), same).copied()
    }

    /// Whether the entry is kept for its readers alone.
    pub(super) fn is_detached(&self, entry: u32) -> bool {
        self.entries[entry as usize].detached
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
        let held = &mut self.entries[entry as usize];
        if u64::from(held.length_bytes) != length_bytes {
            return None;
        }
        held.readers += 1;
        Some(Pin { shard, entry, extent: held.extent, length_bytes, checksum: held.checksum() })
    }

    /// Makes an entry found by its digest.
    pub(super) fn link(&mut self, entry: u32) {
        let entries = &self.entries;
        let hash = |number: &u32| entries[*number as usize].digest.table_hash();
        self.held.insert_unique(hash(&entry), entry, hash);
    }

    /// Makes an entry not found any more.
    pub(super) fn unlink(&mut self, entry: u32) {
        let hash = self.entries[entry as usize].digest.table_hash();
        if let Ok(found) = self.held.find_entry(hash, |number| *number == entry) {
            found.remove();
        }
    }
}

impl Entry {
    /// Whether the key with this digest leads here.
    pub(super) fn is_found_by(&self, digest: Digest) -> bool {
        self.digest == digest && !self.detached
    }

    /// CRC-32C of the payload, if one was kept.
    pub(super) fn checksum(&self) -> Option<u32> {
        self.has_checksum.then_some(self.checksum)
    }
}
