//! The entries of a shard, by number.

use std::ops::{Index, IndexMut};

use crate::base::block::Extent;
use crate::base::buffer::Variant;
use crate::base::segmented_vec::SegmentedVec;
use crate::base::system::prefetch_line;
use crate::evict::{Footprint, NamespaceId, NodeId, UNTIL_RELEASED_S};
use crate::format::record::{KEY_PART_BYTES, slots_for};
use crate::key::{AskedVariant, Digest, MAX_KEY_BYTES};

/// Short segments, since half of one is unused on average.
const SEGMENT: usize = 32;

/// Entries by number. A number is an entry's until that is removed.
#[derive(Default)]
pub(crate) struct Entries {
    all: SegmentedVec<ChunkEntry, SEGMENT>,
    free: Vec<u32>,
}

impl Entries {
    pub(crate) fn insert(&mut self, entry: ChunkEntry) -> u32 {
        if let Some(number) = self.free.pop() {
            self[number] = entry;
            return number;
        }
        self.all.push(entry) as u32
    }

    pub(crate) fn end(&self) -> u32 {
        self.all.len() as u32
    }

    pub(crate) fn prefetch(&self, number: u32) {
        prefetch_line((&raw const self[number]).cast());
    }

    pub(crate) fn remove(&mut self, number: u32) -> ChunkEntry {
        let entry = self[number];
        debug_assert!({ entry.state } != REMOVED, "entry {number} is removed twice");
        self.free.push(number);
        self[number].state = REMOVED;
        entry
    }
}

impl Index<u32> for Entries {
    type Output = ChunkEntry;

    fn index(&self, number: u32) -> &ChunkEntry {
        &self.all[number as usize]
    }
}

impl IndexMut<u32> for Entries {
    fn index_mut(&mut self, number: u32) -> &mut ChunkEntry {
        &mut self.all[number as usize]
    }
}

/// What is so of a chunk, or not: a bit of `ChunkEntry::state`.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Flag {
    /// It is no longer found by its key, and kept for its readers.
    Detached = 1 << 20,
    Pinned = 1 << 21,
    /// It was read and matched its checksum, since the store was opened.
    WasRead = 1 << 22,
    /// Its last use is not in its record yet.
    IsBehind = 1 << 23,
    /// It had to stay and left the eviction index, to be entered again when it is neither pinned nor read.
    Excluded = 1 << 24,
    /// Its checksum is known.
    HasChecksum = 1 << 25,
}

/// Readers of one chunk at a time, in the lowest bits of `ChunkEntry::state`. One more finds it missing.
const MOST_READERS: u32 = (1 << 20) - 1;
/// `state` of an entry whose number is nobody's: like one that is detached, it is not looked at.
const REMOVED: u32 = u32::MAX;
/// Slots of its record, at most 25, in the highest bits.
const SLOTS_SHIFT: u32 = 27;

/// One stored chunk. Packed: there may be tens of millions.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed(4))]
pub(crate) struct ChunkEntry {
    pub(crate) digest: Digest,
    /// See [`use_word`](crate::format::record::use_word).
    pub(crate) last_use: u64,
    checksum: u64,
    data_file: u32,
    first_block: u32,
    pub(crate) length_bytes: u32,
    /// In the eviction index, and its namespace; meaningless once it is detached.
    pub(crate) node: Option<NodeId>,
    pub(crate) namespace: NamespaceId,
    /// It is not evicted before this second; see [`crate::index::memory::map::Index::now_s`].
    pub(crate) leased_until_s: u32,
    state: u32,
    variant: Variant,
}

const _: () = assert!(size_of::<ChunkEntry>() == 64);
const _: () = assert!((MAX_KEY_BYTES / KEY_PART_BYTES + 1) >> (u32::BITS - SLOTS_SHIFT) == 0);

impl ChunkEntry {
    /// Without readers, and not in the eviction index. Its record takes the slots of a key of `key_bytes`.
    pub(crate) fn new(
        digest: Digest,
        extent: Extent,
        length_bytes: u64,
        (checksum, variant): (Option<u64>, Variant),
        key_bytes: usize,
    ) -> Self {
        let mut entry = Self {
            digest,
            data_file: extent.file,
            first_block: extent.first_block,
            checksum: checksum.unwrap_or(0),
            length_bytes: length_bytes as u32,
            state: (slots_for(key_bytes) as u32) << SLOTS_SHIFT,
            variant,
            ..Self::default()
        };
        entry.set(Flag::HasChecksum, checksum.is_some());
        entry
    }

    pub(crate) fn is(&self, flag: Flag) -> bool {
        self.state & flag as u32 != 0
    }

    /// Sets a flag, and returns what it was.
    pub(crate) fn set(&mut self, flag: Flag, value: bool) -> bool {
        let before = self.is(flag);
        self.state = (self.state & !(flag as u32)) | (u32::from(value) * flag as u32);
        before
    }

    /// Notes the slot of its record, before its key leads there: while the store is opened it stands where a lease will.
    pub(crate) fn note_slot(&mut self, slot: u32) {
        self.leased_until_s = slot;
    }

    /// Takes the slot that was noted.
    pub(crate) fn take_slot(&mut self) -> u32 {
        std::mem::take(&mut self.leased_until_s)
    }

    pub(crate) fn readers(&self) -> u32 {
        self.state & MOST_READERS
    }

    /// Counts one reader more, unless there are too many.
    pub(crate) fn add_reader(&mut self) -> bool {
        let has_room = self.readers() < MOST_READERS;
        self.state += u32::from(has_room);
        has_room
    }

    pub(crate) fn remove_reader(&mut self) {
        debug_assert!(self.readers() > 0, "a chunk without readers was returned");
        self.state -= 1;
    }

    pub(crate) fn extent(&self) -> Extent {
        Extent {
            file: self.data_file,
            first_block: self.first_block,
            blocks: Extent::blocks_for(u64::from(self.length_bytes)),
        }
    }

    /// Whether it may be taken out now: stored, and not in use.
    pub(crate) fn can_go(&self, now_s: u32) -> bool {
        !self.is(Flag::Detached) && self.stays_until_s() <= now_s
    }

    pub(crate) fn footprint(&self) -> Footprint {
        let slots = u64::from(self.state >> SLOTS_SHIFT);
        Footprint { bytes: self.extent().size_bytes(), slots }
    }

    /// The second until which it must stay.
    pub(crate) fn stays_until_s(&self) -> u32 {
        let is_in_use = self.is(Flag::Pinned) || self.readers() > 0;
        if is_in_use { UNTIL_RELEASED_S } else { self.leased_until_s }
    }

    pub(crate) fn variant(&self) -> Variant {
        self.variant
    }

    /// Whether it is the chunk that is asked for.
    pub(crate) fn meets(&self, asked: Option<AskedVariant>) -> bool {
        asked.is_none_or(|asked| asked.is_met_by(self.variant))
    }

    pub(crate) fn checksum(&self) -> Option<u64> {
        self.is(Flag::HasChecksum).then_some(self.checksum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::block::Extent;
    use crate::key::Digest;

    fn entry(first_block: u32) -> ChunkEntry {
        let extent = Extent { file: 0, first_block, blocks: 1 };
        ChunkEntry::new(Digest::of("key"), extent, 1, (None, 0), 3)
    }

    #[test]
    fn flags_readers_slots_and_checksum_do_not_touch_each_other() {
        let extent = Extent { file: 7, first_block: u32::MAX, blocks: 1 << 19 };
        let digest = Digest::of("key");
        let content = (Some(u64::MAX), u32::MAX);
        let mut entry = ChunkEntry::new(digest, extent, 2 << 30, content, MAX_KEY_BYTES);
        let flags = [Flag::Detached, Flag::Pinned, Flag::WasRead, Flag::IsBehind, Flag::Excluded];
        for (number, flag) in flags.into_iter().enumerate() {
            assert!(!entry.set(flag, true) && entry.set(flag, true));
            assert_eq!(
                flags.map(|other| entry.is(other)).iter().filter(|set| **set).count(),
                number + 1
            );
            assert!(entry.add_reader());
            assert_eq!((entry.readers(), entry.footprint().slots), (number as u32 + 1, 25));
            assert_eq!((entry.extent(), entry.checksum()), (extent, Some(u64::MAX)));
            assert_eq!(entry.variant(), u32::MAX);
        }
        for flag in flags {
            entry.remove_reader();
            assert!(entry.set(flag, false) && !entry.is(flag));
        }
        assert_eq!((entry.readers(), entry.footprint().slots), (0, 25));
    }

    #[test]
    fn one_reader_too_many_finds_nothing() {
        let mut entry = entry(0);
        assert!((0..MOST_READERS).all(|_| entry.add_reader()) && !entry.add_reader());
        assert_eq!((entry.readers(), entry.is(Flag::Detached)), (MOST_READERS, false));
        entry.remove_reader();
        assert!(entry.add_reader());
    }

    #[test]
    fn numbers_are_used_again_and_the_others_stay() {
        let mut entries = Entries::default();
        let count = 2 * SEGMENT as u32 + 1;
        let numbers: Vec<u32> = (0..count).map(|number| entries.insert(entry(number))).collect();
        assert_eq!(numbers, (0..count).collect::<Vec<_>>());
        for number in (0..count).step_by(3) {
            assert_eq!(entries.remove(number).extent().first_block, number);
        }
        let again: Vec<u32> = (0..count).step_by(3).map(|_| entries.insert(entry(count))).collect();
        assert!(again.iter().all(|number| number % 3 == 0), "{again:?}");
        assert_eq!(entries.insert(entry(0)), count);
        assert!((0..count).all(|number| {
            let expected = if number % 3 == 0 { count } else { number };
            entries[number].extent().first_block == expected
        }));
    }
}
