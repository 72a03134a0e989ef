//! The first page of the index file: header, session, and the length of an index on a device. docs/explanation/format.md draws them byte
//! by byte.

use std::fmt;

use bytemuck::{Pod, Zeroable};

use super::names::StoreId;
use super::record::{GENERATIONS_END, RECORD_BYTES};
use super::{is_sealed, sealed};
use crate::base::block::BLOCK_BYTES;

/// Version of the format of a store in a directory (docs/explanation/format.md).
pub const FORMAT_VERSION: u32 = 1;
pub(crate) const MAGIC: [u8; 8] = *b"KVRINGIX";
/// Bytes before the first record, with all blocks that follow here.
pub(crate) const HEADER_BYTES: u64 = 4096;
/// Behind the header the index grows by whole multiples of this.
pub(crate) const GROWTH_BYTES: u64 = 1 << 20;
/// Where the session block starts: a sector of its own.
pub(crate) const SESSION_OFFSET: u64 = 512;
/// Where the set of stores that share keys is kept: a sector of its own, and their paths behind it.
pub(crate) const MEMBERSHIP_OFFSET: u64 = 2048;
/// Where these paths begin: up to the end of the header.
pub(crate) const MEMBER_PATHS_OFFSET: u64 = MEMBERSHIP_OFFSET + 512;
/// Where the length block starts, also a sector of its own; only on a block device.
pub(crate) const LENGTH_OFFSET: u64 = 1024;
pub(crate) const HOST_BYTES: usize = 64;

/// Who has a store open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) process_id: u32,
    pub(crate) host: String,
    pub(crate) store_id: Option<StoreId>,
}

impl fmt::Display for Owner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "process {} on host {}", self.process_id, self.host)
    }
}

/// What never changes after the store is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) magic: [u8; 8],
    pub(crate) version: u32,
    pub(crate) record_bytes: u32,
    pub(crate) store_id: StoreId,
    pub(crate) created_ms: u64,
    pub(crate) block_bytes: u32,
    /// CRC-32C of everything before it.
    pub(crate) checksum: u32,
}

impl Header {
    pub(crate) fn new(store_id: StoreId, created_ms: u64) -> Self {
        sealed(Self {
            magic: MAGIC,
            version: FORMAT_VERSION,
            record_bytes: RECORD_BYTES as u32,
            store_id,
            created_ms,
            block_bytes: BLOCK_BYTES as u32,
            checksum: 0,
        })
    }

    /// Whether it is as [`Header::new`] makes it.
    pub(crate) fn is_whole(&self) -> bool {
        *self == Self::new(self.store_id, self.created_ms)
    }
}

/// How much of its part of a block device the index uses.
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
        sealed(Self { bytes, reserved: 0, checksum: 0 })
    }

    /// Whether it is whole, and what it says can be: the index grows by whole steps.
    pub(crate) fn is_sensible(&self) -> bool {
        is_sealed(self)
            && self.bytes >= HEADER_BYTES
            && (self.bytes - HEADER_BYTES).is_multiple_of(GROWTH_BYTES)
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
    pub(crate) untrusted_before: u64,
    pub(crate) host: [u8; HOST_BYTES],
    /// Which boot of the machine the owner runs in.
    pub(crate) boot: u32,
    /// CRC-32C of everything before it.
    pub(crate) checksum: u32,
}

impl Session {
    /// That of an owner who has the store open. [`sealed`] is to follow.
    pub(crate) fn of(owner: &Owner, opened_ms: u64) -> Self {
        let mut session = Self { process_id: owner.process_id, opened_ms, ..Self::zeroed() };
        session.host[..owner.host.len()].copy_from_slice(owner.host.as_bytes());
        session
    }

    /// Whether it is whole, and what it says can be.
    pub(crate) fn is_sensible(&self) -> bool {
        is_sealed(self) && self.generation < GENERATIONS_END
    }

    pub(crate) fn owner(&self) -> Owner {
        let length = self.host.iter().position(|byte| *byte == 0).unwrap_or(HOST_BYTES);
        Owner {
            process_id: self.process_id,
            host: String::from_utf8_lossy(&self.host[..length]).into_owned(),
            store_id: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_keeps_its_owner() {
        let owner = Owner { process_id: 77, host: "h".repeat(HOST_BYTES), store_id: None };
        let session = sealed(Session { generation: 2, boot: 5, ..Session::of(&owner, 1) });
        assert!(session.is_sensible());
        assert_eq!((session.owner(), session.opened_ms), (owner.clone(), 1));
        assert_eq!(owner.to_string(), format!("process 77 on host {}", owner.host));
        let last = sealed(Session { generation: GENERATIONS_END - 1, ..session });
        let none = sealed(Session { generation: GENERATIONS_END, ..session });
        assert_eq!([last.is_sensible(), none.is_sensible()], [true, false]);
        assert!(!Session { generation: 3, ..session }.is_sensible(), "of another checksum");
    }

    #[test]
    fn a_header_is_whole_as_it_is_made_alone() {
        let header = Header::new([7; 16], 5);
        assert!(header.is_whole());
        let others = [
            Header { magic: *b"KVRINGIY", ..header },
            Header { version: FORMAT_VERSION + 1, ..header },
            Header { block_bytes: 512, ..header },
        ];
        assert!(others.iter().all(|other| !sealed(*other).is_whole()));
        assert!(!Header { created_ms: 6, ..header }.is_whole(), "of another checksum");
    }

    #[test]
    fn an_index_is_a_header_and_whole_steps_long() {
        let sensible = [HEADER_BYTES, HEADER_BYTES + GROWTH_BYTES, HEADER_BYTES + 5 * GROWTH_BYTES];
        assert!(sensible.iter().all(|bytes| Length::new(*bytes).is_sensible()));
        let others = [0, HEADER_BYTES - 1, HEADER_BYTES + 1, GROWTH_BYTES];
        assert!(others.iter().all(|bytes| !Length::new(*bytes).is_sensible()));
        let of_another_checksum = Length { bytes: HEADER_BYTES, ..Length::new(0) };
        assert!(!of_another_checksum.is_sensible());
    }
}
