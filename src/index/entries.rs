//! The entries of a shard, by number.

use std::ops::{Index, IndexMut};

use super::leases::Footprint;
use super::lookup::prefetch_line;
use crate::block::Extent;
use crate::checksum::{ChecksumKind, PayloadChecksum};
use crate::evict::{NamespaceId, NodeId, UNTIL_RELEASED_S};
use crate::key::Digest;

/// Entries in a piece. Pieces, since adding one to many must neither copy them nor leave a gap of their size behind.
const PIECE: usize = 64;

/// Entries in pieces that never move. A number is an entry's until that is removed.
#[derive(Default)]
pub(super) struct Entries {
    pieces: Vec<Vec<ChunkEntry>>,
    free: Vec<u32>,
}

impl Entries {
    pub(super) fn insert(&mut self, entry: ChunkEntry) -> u32 {
        if let Some(number) = self.free.pop() {
            self[number] = entry;
            return number;
        }
        if self.pieces.last().is_none_or(|piece| piece.len() == PIECE) {
            // The first one grows with its entries: shards of a small store have few.
            let first = self.pieces.is_empty();
            self.pieces.push(if first { Vec::new() } else { Vec::with_capacity(PIECE) });
        }
        let piece = self.pieces.len() - 1;
        let number = piece * PIECE + self.pieces[piece].len();
        self.pieces[piece].push(entry);
        number as u32
    }

    pub(super) fn end(&self) -> u32 {
        let full = self.pieces.len().saturating_sub(1) * PIECE;
        (full + self.pieces.last().map_or(0, Vec::len)) as u32
    }

    pub(super) fn prefetch(&self, number: u32) {
        prefetch_line((&raw const self[number]).cast());
    }

    pub(super) fn remove(&mut self, number: u32) -> ChunkEntry {
        debug_assert!(!self.free.contains(&number), "entry {number} is removed twice");
        self.free.push(number);
        self[number]
    }
}

impl Index<u32> for Entries {
    type Output = ChunkEntry;

    fn index(&self, number: u32) -> &ChunkEntry {
        &self.pieces[number as usize / PIECE][number as usize % PIECE]
    }
}

impl IndexMut<u32> for Entries {
    fn index_mut(&mut self, number: u32) -> &mut ChunkEntry {
        &mut self.pieces[number as usize / PIECE][number as usize % PIECE]
    }
}

/// One stored chunk. Detached: no longer found by its key, kept for its readers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChunkEntry {
    pub(super) digest: Digest,
    pub(super) data_file: u32,
    pub(super) first_block: u32,
    checksum: u64,
    pub(super) length_bytes: u32,
    pub(super) readers: u32,
    /// In the eviction index, and its namespace; meaningless once it is detached.
    pub(super) node: Option<NodeId>,
    pub(super) namespace: NamespaceId,
    /// It is not evicted before this second; see [`super::map::Index::now_s`].
    pub(super) leased_until_s: u32,
    checksum_kind: Option<ChecksumKind>,
    pub(super) detached: bool,
    pub(super) pinned: bool,
    /// It was read and matched its checksum, since the store was opened.
    pub(super) was_read: bool,
    /// See [`use_word`](crate::format::record::use_word).
    pub(super) last_use: u64,
    /// Its last use is not in its record yet.
    pub(super) is_behind: bool,
    pub(super) slots: u8,
    /// It had to stay and left the eviction index, to be entered again when it is neither pinned nor read.
    pub(super) excluded: bool,
}

impl ChunkEntry {
    /// Without readers, and not in the eviction index.
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
            checksum_kind: checksum.map(|checksum| checksum.kind),
            slots: 1,
            ..Self::default()
        }
    }

    pub(super) fn extent(&self) -> Extent {
        Extent {
            file: self.data_file,
            first_block: self.first_block,
            blocks: Extent::blocks_for(u64::from(self.length_bytes)),
        }
    }

    /// Whether it may be taken out now: stored, and not in use.
    pub(super) fn can_go(&self, now_s: u32) -> bool {
        !self.detached && self.stays_until_s() <= now_s
    }

    pub(super) fn footprint(&self) -> Footprint {
        Footprint { bytes: self.extent().size_bytes(), slots: self.slots.into() }
    }

    /// The second until which it must stay.
    pub(super) fn stays_until_s(&self) -> u32 {
        if self.pinned || self.readers > 0 { UNTIL_RELEASED_S } else { self.leased_until_s }
    }

    pub(super) fn checksum(&self) -> Option<PayloadChecksum> {
        self.checksum_kind.map(|kind| PayloadChecksum { kind, value: self.checksum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Extent;
    use crate::key::Digest;

    fn entry(first_block: u32) -> ChunkEntry {
        let extent = Extent { file: 0, first_block, blocks: 1 };
        ChunkEntry::new(Digest::of("key"), extent, 1, None)
    }

    #[test]
    fn numbers_are_used_again_and_the_others_stay() {
        let mut entries = Entries::default();
        let count = 2 * PIECE as u32 + 1;
        let numbers: Vec<u32> = (0..count).map(|number| entries.insert(entry(number))).collect();
        assert_eq!(numbers, (0..count).collect::<Vec<_>>());
        for number in (0..count).step_by(3) {
            assert_eq!(entries.remove(number).first_block, number);
        }
        let again: Vec<u32> = (0..count).step_by(3).map(|_| entries.insert(entry(count))).collect();
        assert!(again.iter().all(|number| number % 3 == 0), "{again:?}");
        assert_eq!(entries.insert(entry(0)), count);
        assert!((0..count).all(|number| {
            let expected = if number % 3 == 0 { count } else { number };
            entries[number].first_block == expected
        }));
    }
}
