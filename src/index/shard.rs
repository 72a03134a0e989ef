//! One shard of the map: entries by digest, and the queue behind each key that is being written.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashTable;

use super::entries::Entries;
use super::ghosts::Ghosts;
use super::leases::Guarded;
use super::lookup::{Found, Lookup};
use super::map::Pin;
use crate::block::Extent;
use crate::checksum::{ChecksumKind, PayloadChecksum};
use crate::evict::{NamespaceId, NodeId, UNTIL_RELEASED_S};
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

/// One stored chunk. Detached: no longer found by its key, kept for its readers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) digest: Digest,
    pub(super) data_file: u32,
    pub(super) first_block: u32,
    checksum: u64,
    pub(super) length_bytes: u32,
    pub(super) readers: u32,
    /// Its number in the order of eviction, and its namespace; meaningless once it is detached.
    pub(super) node: Option<NodeId>,
    pub(super) namespace: NamespaceId,
    /// Until which second it is not evicted; see [`super::map::Index::now_s`].
    pub(super) leased_until_s: u32,
    checksum_kind: Option<ChecksumKind>,
    pub(super) detached: bool,
    /// Neither evicted nor expired.
    pub(super) pinned: bool,
    /// It was read and matched its checksum, since the store was opened.
    pub(super) was_read: bool,
    /// When it was used last, and how often; see [`super::record::use_word`].
    pub(super) last_use: u64,
    /// Its record does not know of its last use.
    pub(super) is_behind: bool,
    /// Slots of the sidecar that its record takes.
    pub(super) slots: u8,
    /// It had to stay and left the order of eviction, to be released when it is neither pinned nor read.
    pub(super) excluded: bool,
}

/// A key that is being written, and what waits for that.
pub(super) struct Pending<G, S> {
    pub(super) digest: Digest,
    pub(super) key: Arc<str>,
    pub(super) waiting: VecDeque<Waiting<G, S>>,
    /// GETs among these.
    pub(super) waiting_gets: usize,
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

impl Entry {
    /// A chunk that nobody uses yet; it has no place in the order of eviction.
    pub(super) fn new(
        digest: Digest,
        extent: Extent,
        length_bytes: u64,
        checksum: Option<PayloadChecksum>,
    ) -> Self {
        Self {
            digest,
            data_file: extent.file,
            first_block: extent.first_block,
            checksum: checksum.map_or(0, |checksum| checksum.value),
            length_bytes: length_bytes as u32,
            readers: 0,
            node: None,
            namespace: 0,
            leased_until_s: 0,
            checksum_kind: checksum.map(|checksum| checksum.kind),
            detached: false,
            pinned: false,
            was_read: false,
            last_use: 0,
            is_behind: false,
            slots: 1,
            excluded: false,
        }
    }

    /// Place of the chunk.
    pub(super) fn extent(&self) -> Extent {
        Extent {
            file: self.data_file,
            first_block: self.first_block,
            blocks: Extent::blocks_for(u64::from(self.length_bytes)),
        }
    }

    /// Whether it may be given up now: found by its key, and nobody relies on it.
    pub(super) fn can_go(&self, now_s: u32) -> bool {
        !self.detached && self.stays_until_s() <= now_s
    }

    /// What it takes from others as long as it must stay.
    pub(super) fn guarded(&self) -> Guarded {
        Guarded { bytes: self.extent().size_bytes(), slots: self.slots.into() }
    }

    /// Until which second it must stay.
    pub(super) fn stays_until_s(&self) -> u32 {
        if self.pinned || self.readers > 0 { UNTIL_RELEASED_S } else { self.leased_until_s }
    }

    /// Checksum of the payload, if one was kept.
    pub(super) fn checksum(&self) -> Option<PayloadChecksum> {
        self.checksum_kind.map(|kind| PayloadChecksum { kind, value: self.checksum })
    }
}
