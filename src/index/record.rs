//! The Pod structures of the sidecar file. docs/format.md draws them byte by byte.

use bytemuck::{Pod, Zeroable};

use crate::checksum::{ChecksumKind, PayloadChecksum, crc32c};
use crate::config::MAX_CHUNK_BYTES;
use crate::key::{Digest, MAX_KEY_BYTES};
use crate::lock::{HOST_BYTES, Owner};
use crate::store::Extent;

/// Version of the format described here.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// First bytes of the sidecar.
pub(crate) const MAGIC: [u8; 8] = *b"KVRINGIX";
/// Bytes before the first record; also the place of header and session.
pub(crate) const HEADER_BYTES: u64 = 4096;
/// Where the session block starts: a sector of its own.
pub(crate) const SESSION_OFFSET: u64 = 512;
/// Where the set of stores that share keys is kept: a sector of its own.
pub(crate) const MEMBERSHIP_OFFSET: u64 = 2048;
/// Where the length block starts, also a sector of its own; only on a block device.
pub(crate) const LENGTH_OFFSET: u64 = 1024;
/// Bytes of a record. Two fill a sector, so that none ever straddles one.
pub(crate) const RECORD_BYTES: usize = 256;
/// Key bytes that fit into one record.
pub(crate) const KEY_PART_BYTES: usize = 168;
/// `next_slot` of a record that has no continuation.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// No generation reaches it: there are 2^31 sessions of 2^32 before.
pub(crate) const GENERATIONS_END: u64 = 1 << 63;

/// State of a free record.
pub(crate) const STATE_FREE: u8 = 0;
/// State of a record that holds a chunk.
pub(crate) const STATE_CHUNK: u8 = 1;
/// State of a record that holds a further part of a long key.
pub(crate) const STATE_KEY_PART: u8 = 2;

/// `payload_checksum` holds nothing.
const PAYLOAD_UNCHECKED: u8 = 0;
/// `payload_checksum` holds a CRC-32C.
const PAYLOAD_CRC32C: u8 = 1;
/// `payload_checksum` holds a CRC-64/NVME.
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

    /// Whether the record is whole.
    pub(crate) fn is_intact(&self) -> bool {
        self.checksum == self.computed_checksum()
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

    /// Notes the checksum of the chunk.
    pub(crate) fn set_chunk_checksum(&mut self, checksum: Option<PayloadChecksum>) {
        self.payload_checksum_kind = match checksum.map(|checksum| checksum.kind) {
            None => PAYLOAD_UNCHECKED,
            Some(ChecksumKind::Crc32c) => PAYLOAD_CRC32C,
            Some(ChecksumKind::Crc64Nvme) => PAYLOAD_CRC64NVME,
        };
        self.payload_checksum = checksum.map_or(0, |checksum| checksum.value);
    }

    /// Place of the chunk.
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

/// What never changes after the store is made.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) magic: [u8; 8],
    pub(crate) version: u32,
    pub(crate) record_bytes: u32,
    pub(crate) store_id: [u8; 16],
    pub(crate) created_ms: u64,
    pub(crate) block_bytes: u32,
    /// CRC-32C of everything before it.
    pub(crate) checksum: u32,
}

impl Header {
    pub(crate) fn new(store_id: [u8; 16], created_ms: u64, block_bytes: u32) -> Self {
        let mut header = Self {
            magic: MAGIC,
            version: FORMAT_VERSION,
            record_bytes: RECORD_BYTES as u32,
            store_id,
            created_ms,
            block_bytes,
            checksum: 0,
        };
        header.checksum = header.computed_checksum();
        header
    }

    pub(crate) fn computed_checksum(&self) -> u32 {
        let bytes = bytemuck::bytes_of(self);
        crc32c(&bytes[..bytes.len() - size_of::<u32>()])
    }
}

/// How much of a part of a block device the sidecar uses.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Length {
    pub(crate) bytes: u64,
    reserved: u32,
    /// CRC-32C of everything before it.
    checksum: u32,
}

impl Length {
    pub(crate) fn new(bytes: u64) -> Self {
        let mut length = Self { bytes, reserved: 0, checksum: 0 };
        length.checksum = length.computed_checksum();
        length
    }

    pub(crate) fn is_intact(&self) -> bool {
        self.checksum == self.computed_checksum()
    }

    fn computed_checksum(&self) -> u32 {
        let bytes = bytemuck::bytes_of(self);
        crc32c(&bytes[..bytes.len() - size_of::<u32>()])
    }
}

/// Who has the store open, and whether it was closed in order.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Session {
    /// 1 after close(), 0 while the store is open.
    pub(crate) clean: u32,
    pub(crate) process_id: u32,
    pub(crate) opened_ms: u64,
    /// Generations below it have been given out.
    pub(crate) generation: u64,
    /// Chunks from this generation on are still to be verified after a crash; none if it is 2^64-1.
    pub(crate) verify_from: u64,
    /// Chunks below this generation were there when the machine went down: until they are read, nothing tells whether they
    /// are what their records say. 0 for none.
    pub(crate) distrust_below: u64,
    pub(crate) host: [u8; HOST_BYTES],
    /// Which boot of the machine the owner runs in.
    pub(crate) boot: u32,
    /// CRC-32C of everything before it.
    pub(crate) checksum: u32,
}

/// Generations that mean something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    pub(crate) generation: u64,
    pub(crate) verify_from: u64,
    pub(crate) distrust_below: u64,
}

impl Session {
    pub(crate) fn new(
        owner: &Owner,
        opened_ms: u64,
        boot: u32,
        marks: &Marks,
        clean: bool,
    ) -> Self {
        let Marks { generation, verify_from, distrust_below } = *marks;
        let mut host = [0; HOST_BYTES];
        host[..owner.host.len()].copy_from_slice(owner.host.as_bytes());
        let process_id = owner.process_id;
        let mut session = Self {
            clean: clean.into(),
            process_id,
            opened_ms,
            generation,
            verify_from,
            distrust_below,
            host,
            boot,
            checksum: 0,
        };
        session.checksum = session.computed_checksum();
        session
    }

    /// Whether it is whole, and what it says can be.
    pub(crate) fn is_sensible(&self) -> bool {
        self.checksum == self.computed_checksum() && self.generation < GENERATIONS_END
    }

    pub(crate) fn owner(&self) -> Owner {
        let length = self.host.iter().position(|byte| *byte == 0).unwrap_or(HOST_BYTES);
        Owner {
            process_id: self.process_id,
            host: String::from_utf8_lossy(&self.host[..length]).into_owned(),
            store_id: None,
        }
    }

    fn computed_checksum(&self) -> u32 {
        let bytes = bytemuck::bytes_of(self);
        crc32c(&bytes[..bytes.len() - size_of::<u32>()])
    }
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

    #[test]
    fn session_keeps_its_owner() {
        let owner = Owner { process_id: 77, host: "h".repeat(HOST_BYTES), store_id: None };
        let marks = Marks { generation: 2, verify_from: 3, distrust_below: 4 };
        let session = Session::new(&owner, 1, 5, &marks, false);
        assert!(session.is_sensible());
        assert_eq!(session.owner(), owner);
    }
}
