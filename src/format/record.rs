//! A record of the index file. docs/format.md draws it byte by byte.

use bytemuck::{Pod, Zeroable};

use crate::block::Extent;
use crate::checksum::{ChecksumKind, PayloadChecksum, crc32c};
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

const PAYLOAD_UNCHECKED: u8 = 0;
const PAYLOAD_CRC32C: u8 = 1;
const PAYLOAD_CRC64NVME: u8 = 2;

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
    pub(crate) reserved: u32,
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
    pub(crate) fn chunk_checksum(&self) -> Option<PayloadChecksum> {
        let kind = match self.payload_checksum_kind {
            PAYLOAD_CRC32C => ChecksumKind::Crc32c,
            PAYLOAD_CRC64NVME => ChecksumKind::Crc64Nvme,
            _ => return None,
        };
        Some(PayloadChecksum { kind, value: self.payload_checksum })
    }

    pub(crate) fn set_chunk_checksum(&mut self, checksum: Option<PayloadChecksum>) {
        self.payload_checksum_kind = match checksum.map(|checksum| checksum.kind) {
            None => PAYLOAD_UNCHECKED,
            Some(ChecksumKind::Crc32c) => PAYLOAD_CRC32C,
            Some(ChecksumKind::Crc64Nvme) => PAYLOAD_CRC64NVME,
        };
        self.payload_checksum = checksum.map_or(0, |checksum| checksum.value);
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
}
