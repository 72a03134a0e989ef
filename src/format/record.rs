//! A record of the index file. docs/explanation/format.md draws it byte by byte.

use bytemuck::{Pod, Zeroable};

use crate::base::block::Extent;
use crate::base::buffer::Variant;
use crate::base::checksum::crc32c;
use crate::key::{Digest, MAX_KEY_BYTES};

/// Longest chunk that any store takes; an eighth of the capacity bounds it as well.
pub const MAX_CHUNK_BYTES: u64 = 2 << 30;

/// Bytes of a record. Two fill a sector, so that none ever straddles one.
pub(crate) const RECORD_BYTES: usize = 256;
pub(crate) const KEY_PART_BYTES: usize = 168;
/// `next_slot` of a record that has no continuation.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// No generation reaches it: there are 2^31 sessions of 2^32 before.
pub(crate) const GENERATIONS_END: u64 = 1 << 63;

pub(crate) const STATE_FREE: u8 = 0;
pub(crate) const STATE_CHUNK: u8 = 1;
/// A further part of a long key.
pub(crate) const STATE_KEY_PART: u8 = 2;
/// Ghosts: see [`GhostRecord`](super::ghost_record::GhostRecord).
pub(crate) const STATE_GHOSTS: u8 = 3;

const PAYLOAD_UNCHECKED: u8 = 0;
const PAYLOAD_CRC64NVME: u8 = 1;

/// One chunk, or a further part of the key of one.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Record {
    /// Unix time in ms in the lower 48 bits, number of uses in the upper 16. Outside the checksum: it changes by a plain
    /// store on every use.
    pub(crate) last_use: u64,
    /// CRC-32C of everything behind it.
    pub(crate) checksum: u32,
    pub(crate) state: u8,
    pub(crate) payload_checksum_kind: u8,
    /// Length of the whole key in bytes.
    pub(crate) key_length: u16,
    pub(crate) digest: [u64; 2],
    pub(crate) generation: u64,
    /// Length of the chunk; in a key part its number, from 1.
    pub(crate) length_bytes: u64,
    pub(crate) created_ms: u64,
    pub(crate) data_file: u32,
    pub(crate) first_block: u32,
    pub(crate) payload_checksum: u64,
    pub(crate) namespace: u64,
    /// Record with the next part of the key.
    pub(crate) next_slot: u32,
    pub(crate) variant: Variant,
    pub(crate) key: [u8; KEY_PART_BYTES],
}

const _: () = assert!(size_of::<Record>() == RECORD_BYTES);

const CHECKED_FROM: usize = 12;

/// Slots that the record of a chunk takes whose key has so many bytes.
pub(crate) fn slots_for(key_bytes: usize) -> usize {
    key_bytes.div_ceil(KEY_PART_BYTES).max(1)
}

impl Record {
    /// CRC-32C of the part that the checksum covers.
    pub(crate) fn computed_checksum(&self) -> u32 {
        crc32c(&bytemuck::bytes_of(self)[CHECKED_FROM..])
    }

    pub(crate) fn is_intact(&self) -> bool {
        self.checksum == self.computed_checksum()
    }

    /// Calls `visit` with the slot and the bytes of each part of the key; the first is in this record, in `slot`, and `read` gives
    /// the records of the others. False if a part is missing or damaged.
    pub(crate) fn visit_key(
        &self,
        slot: u32,
        read: impl Fn(u32) -> Option<Self>,
        mut visit: impl FnMut(u32, &[u8]),
    ) -> bool {
        let mut missing = usize::from(self.key_length);
        let mut visit_part = |slot, part: &Self| {
            let length = missing.min(KEY_PART_BYTES);
            visit(slot, &part.key[..length]);
            missing -= length;
        };
        visit_part(slot, self);
        let mut next = self.next_slot;
        for number in 1..slots_for(self.key_length.into()) {
            let Some(part) = read(next) else { return false };
            let belongs = part.state == STATE_KEY_PART
                && part.is_intact()
                && part.digest == self.digest
                && part.generation == self.generation
                && part.length_bytes == number as u64;
            if !belongs {
                return false;
            }
            visit_part(next, &part);
            next = part.next_slot;
        }
        next == NO_SLOT
    }

    /// The whole key, as [`Record::visit_key`] finds it.
    pub(crate) fn read_key(&self, read: impl Fn(u32) -> Option<Self>) -> Option<String> {
        let mut key = Vec::with_capacity(self.key_length.into());
        let is_whole = self.visit_key(NO_SLOT, read, |_, part| key.extend_from_slice(part));
        String::from_utf8(key).ok().filter(|_| is_whole)
    }

    /// Whether it is a chunk's, whole, and all that it says can be.
    pub(crate) fn is_sensible(&self) -> bool {
        self.state == STATE_CHUNK
            && (1..=MAX_CHUNK_BYTES).contains(&self.length_bytes)
            && usize::from(self.key_length) <= MAX_KEY_BYTES
            && self.payload_checksum_kind <= PAYLOAD_CRC64NVME
            && self.generation < GENERATIONS_END
            && self.is_intact()
    }

    /// Whether kvring does not write such a record: it is neither free, nor the whole record of a chunk, of a part of a key, or of
    /// ghosts.
    pub(crate) fn is_torn(&self) -> bool {
        match self.state {
            STATE_FREE => false,
            STATE_KEY_PART | STATE_GHOSTS => !self.is_intact(),
            _ => !self.is_sensible(),
        }
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest(self.digest)
    }

    /// Unix time in ms of its last use.
    pub(crate) fn last_used_ms(&self) -> u64 {
        use_parts(self.last_use).0
    }

    /// Times it was used, up to 65,535.
    pub(crate) fn uses(&self) -> u16 {
        use_parts(self.last_use).1
    }

    /// Checksum of the chunk, if one was kept.
    pub(crate) fn chunk_checksum(&self) -> Option<u64> {
        (self.payload_checksum_kind == PAYLOAD_CRC64NVME).then_some(self.payload_checksum)
    }

    pub(crate) fn set_chunk_checksum(&mut self, checksum: Option<u64>) {
        self.payload_checksum_kind =
            if checksum.is_some() { PAYLOAD_CRC64NVME } else { PAYLOAD_UNCHECKED };
        self.payload_checksum = checksum.unwrap_or(0);
    }

    pub(crate) fn extent(&self) -> Extent {
        Extent {
            file: self.data_file,
            first_block: self.first_block,
            blocks: Extent::blocks_for(self.length_bytes),
        }
    }
}

const LAST_USED_BITS: u32 = 48;

/// The word that says when, and how often, a chunk was used.
pub(crate) fn use_word(last_used_ms: u64, uses: u16) -> u64 {
    u64::from(uses) << LAST_USED_BITS | last_used_ms & ((1 << LAST_USED_BITS) - 1)
}

/// Unix time in ms and number of uses out of [`use_word`].
pub(crate) fn use_parts(word: u64) -> (u64, u16) {
    (word & ((1 << LAST_USED_BITS) - 1), (word >> LAST_USED_BITS) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_flipped_bit_behind_the_checksum_is_seen() {
        let mut record = Record::zeroed();
        record.state = STATE_CHUNK;
        record.length_bytes = 4096;
        record.checksum = record.computed_checksum();
        assert!(record.is_intact());
        for bit in CHECKED_FROM * 8..RECORD_BYTES * 8 {
            let mut damaged = record;
            bytemuck::bytes_of_mut(&mut damaged)[bit / 8] ^= 1 << (bit % 8);
            assert!(!damaged.is_intact(), "bit {bit}");
        }
        record.last_use = 5;
        assert!(record.is_intact(), "a use is no damage");
    }

    fn sealed(mut record: Record) -> Record {
        record.checksum = record.computed_checksum();
        record
    }

    #[test]
    fn a_record_that_says_what_cannot_be_is_not_sensible() {
        let mut good = Record::zeroed();
        (good.state, good.length_bytes) = (STATE_CHUNK, 4096);
        let is_sensible = |change: &dyn Fn(&mut Record)| {
            let mut record = good;
            change(&mut record);
            sealed(record).is_sensible()
        };
        assert!(is_sensible(&|_| ()));
        assert!(!good.is_sensible(), "without its checksum");
        assert!(is_sensible(&|one| one.length_bytes = 1));
        assert!(is_sensible(&|one| one.length_bytes = MAX_CHUNK_BYTES));
        assert!(is_sensible(&|one| one.key_length = MAX_KEY_BYTES as u16));
        assert!(is_sensible(&|one| one.payload_checksum_kind = PAYLOAD_CRC64NVME));
        assert!(is_sensible(&|one| one.generation = GENERATIONS_END - 1));
        assert!(!is_sensible(&|one| one.state = STATE_KEY_PART));
        assert!(!is_sensible(&|one| one.length_bytes = 0));
        assert!(!is_sensible(&|one| one.length_bytes = MAX_CHUNK_BYTES + 1));
        assert!(!is_sensible(&|one| one.key_length = MAX_KEY_BYTES as u16 + 1));
        assert!(!is_sensible(&|one| one.payload_checksum_kind = PAYLOAD_CRC64NVME + 1));
        assert!(!is_sensible(&|one| one.generation = GENERATIONS_END));
    }

    #[test]
    fn a_record_in_any_state_but_free_is_torn_unless_it_is_whole() {
        let in_state = |state| Record { state, length_bytes: 1, ..Record::zeroed() };
        for state in 0..=u8::MAX {
            let is_known = state <= STATE_GHOSTS;
            assert_eq!(sealed(in_state(state)).is_torn(), !is_known, "{state}");
            assert_eq!(in_state(state).is_torn(), state != STATE_FREE, "{state}");
        }
    }

    /// A key of three parts, in the slots 10, 11 and 12.
    fn long_key() -> (String, [Record; 3]) {
        let key: String = ('a'..='z').cycle().take(2 * KEY_PART_BYTES + 5).collect();
        let mut number = 0;
        let records = [STATE_CHUNK, STATE_KEY_PART, STATE_KEY_PART].map(|state| {
            let mut record = Record::zeroed();
            (record.state, record.digest, record.generation) = (state, [1, 2], 3);
            record.length_bytes = if number == 0 { 4096 } else { number };
            record.next_slot = [11, 12, NO_SLOT][number as usize];
            record.key_length = if number == 0 { key.len() as u16 } else { 0 };
            let part = key.as_bytes().chunks(KEY_PART_BYTES).nth(number as usize).unwrap();
            record.key[..part.len()].copy_from_slice(part);
            number += 1;
            sealed(record)
        });
        (key, records)
    }

    #[test]
    fn a_long_key_is_read_only_from_parts_that_are_its_own() {
        let (key, records) = long_key();
        let read = |records: [Record; 3]| {
            records[0].read_key(|slot| records.get(slot.checked_sub(10)? as usize).copied())
        };
        assert_eq!(read(records).as_deref(), Some(&*key));
        let mut slots = Vec::new();
        let get = |slot: u32| records.get(slot as usize - 10).copied();
        assert!(records[0].visit_key(10, get, |slot, part| slots.push((slot, part.len()))));
        assert_eq!(slots, [(10, KEY_PART_BYTES), (11, KEY_PART_BYTES), (12, 5)]);
        let changed = |number: usize, change: &dyn Fn(&mut Record)| {
            let mut damaged = records;
            change(&mut damaged[number]);
            damaged[number] = sealed(damaged[number]);
            read(damaged)
        };
        assert_eq!(changed(1, &|_| ()).as_deref(), Some(&*key));
        assert_eq!(changed(1, &|part| part.state = STATE_CHUNK), None);
        assert_eq!(changed(1, &|part| part.digest[1] += 1), None);
        assert_eq!(changed(2, &|part| part.generation += 1), None);
        assert_eq!(changed(2, &|part| part.length_bytes = 1), None);
        assert_eq!(changed(1, &|part| part.next_slot = 99), None, "nothing is there");
        assert_eq!(changed(2, &|part| part.next_slot = 11), None, "it goes on behind its end");
        assert_eq!(changed(0, &|head| head.key_length = 3), None, "it has parts too many");
        let mut torn = records;
        torn[1].key[0] ^= 1;
        assert_eq!(read(torn), None, "its part is damaged");
    }

    #[test]
    fn keys_take_a_slot_for_each_part_and_at_least_one() {
        let slots = [0, 1, KEY_PART_BYTES, KEY_PART_BYTES + 1, 2 * KEY_PART_BYTES + 1];
        assert_eq!(slots.map(slots_for), [1, 1, 1, 2, 3]);
    }

    #[test]
    fn a_use_is_a_moment_and_a_count() {
        let latest_ms = (1 << LAST_USED_BITS) - 1;
        for (used_ms, uses) in [(0, 0), (1, 0), (0, 1), (latest_ms, u16::MAX), (latest_ms - 1, 3)] {
            let record = Record { last_use: use_word(used_ms, uses), ..Record::zeroed() };
            assert_eq!((record.last_used_ms(), record.uses()), (used_ms, uses));
        }
        assert_eq!(
            use_parts(use_word(latest_ms + 6, 2)),
            (5, 2),
            "the moment does not reach the count"
        );
    }

    #[test]
    fn checksums_of_chunks_come_back() {
        let mut record = Record::zeroed();
        for checksum in [Some(77), None, Some(0)] {
            record.set_chunk_checksum(checksum);
            assert_eq!(record.chunk_checksum(), checksum);
            assert_eq!(record.payload_checksum, checksum.unwrap_or(0));
        }
    }
}
