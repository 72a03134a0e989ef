//! Where bytes live. A layout places chunks; it knows nothing of keys.

pub(crate) mod allocator;
mod block_set;
pub(crate) mod data_file;
pub(crate) mod device;
mod discards;
pub(crate) mod extents;
pub(crate) mod fiemap;
pub(crate) mod files;
mod found_files;
mod geometry;
mod growth;
mod set_aside;
mod unreserved;

use std::ffi::CString;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

pub use geometry::Geometry;
pub(crate) use growth::{IndexShare, index_share_bytes};

use crate::block::Extent;
use crate::error::StoreError;
use crate::key::Digest;

/// Where the bytes of a chunk are.
#[derive(Debug)]
pub enum Location {
    /// In a file that stays open as long as the store.
    Shared {
        /// The file.
        file: RawFd,
        /// Where in it the chunk starts.
        offset_bytes: u64,
        /// It is a block device.
        is_device: bool,
    },
    /// In a file of its own, from its first byte to its last one.
    Own {
        /// The directory it is in, open as long as the store.
        directory: RawFd,
        /// Its name there.
        name: CString,
    },
}

/// Space taken by a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Bytes of extents given out, and of those that are still on their way out.
    pub allocated_bytes: u64,
    /// Files with data in them.
    pub data_files: u64,
    /// Bytes of them that share their blocks with a copy, or have none, when they were looked at last.
    pub shared_bytes: u64,
}

/// How full a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Bytes of what was given out.
    pub allocated_bytes: u64,
    /// Bytes that can be given out in all.
    pub total_bytes: u64,
    /// Whether these may become more.
    pub can_grow: bool,
}

/// Free space: beside a place, or anywhere.
pub trait FreeSpace {
    /// Blocks that have to go, wherever they are, so that a chunk of `blocks` can be placed; `None` where they have to be
    /// neighbours.
    fn missing_blocks(&self, blocks: u32) -> Option<u64>;
    /// Free blocks that end where `block` begins.
    fn free_before(&self, file: u32, block: u32) -> u32;
    /// Free blocks from `block` on.
    fn free_from(&self, file: u32, block: u32) -> u32;
    /// Whether there is room at a place when its chunk goes.
    fn makes_room(&self, extent: Extent) -> bool {
        let _ = extent;
        true
    }
}

/// Waits until the records of what was freed are cleared, and says whether they are.
pub type RecordsAreCleared = Arc<dyn Fn() -> bool + Send + Sync>;

/// Gives out places for chunks and says where they are.
pub trait Store: FreeSpace + Send + Sync {
    /// A place for `size_bytes` bytes of the chunk with this digest. It waits for nothing.
    ///
    /// # Errors
    /// `StoreError` when there is none: [`StoreError::Growing`] where [`Store::grow`] may make one.
    fn allocate(&self, size_bytes: u64, digest: Digest) -> Result<Extent, StoreError>;

    /// Makes sure, at open, that the index has its share and that there is room for a first chunk.
    ///
    /// # Errors
    /// `StoreError` when the capacity or the file system is in the way.
    fn prepare(&self, index: &dyn IndexShare) -> Result<(), StoreError> {
        let _ = index;
        Ok(())
    }

    /// Whether the store can grow and should: soon there will not be much room, or there is none for `needed_bytes`.
    fn is_growth_due(&self, needed_bytes: u64) -> bool {
        let _ = needed_bytes;
        false
    }

    /// Grows by one step, in which there is room for `needed_bytes`, after the index has got its share. It waits for the
    /// file system; places are given out and located meanwhile.
    ///
    /// # Errors
    /// `StoreError` when the capacity or the file system is in the way.
    fn grow(&self, needed_bytes: u64, index: &dyn IndexShare) -> Result<(), StoreError> {
        let _ = (needed_bytes, index);
        Ok(())
    }

    /// Takes a place back. Nothing may be under way there.
    fn free(&self, extent: Extent);

    /// While it `holds`, what is freed stays for who frees it to make room: removing it would let the file system have it
    /// meanwhile. To be ended as often as begun.
    fn hold_freed(&self, holds: bool) {
        let _ = holds;
    }

    /// Takes a place back that could not be written.
    fn free_unwritable(&self, extent: Extent) {
        self.free(extent);
    }

    /// Notes that a write found no space for its blocks: the data files are to be looked at.
    fn note_no_blocks(&self) {}

    /// Whether it is time for [`Store::look_at_blocks`]; `is_refused`: after [`Store::note_no_blocks`] only.
    fn is_look_due(&self, is_refused: bool) -> bool {
        let _ = is_refused;
        false
    }

    /// Looks which blocks of its files are not reserved, and gives out no more places than the file system has space for. It
    /// waits for the file system.
    fn look_at_blocks(&self) {}

    /// Gives out again what was taken back that way: it was not those places that could not be written.
    fn put_back_set_aside(&self) {}

    /// What to call, at open, before a freed place is discarded or removed: it waits until no record in the file names any, and
    /// says whether that is so.
    fn follow_records(&self, are_cleared: RecordsAreCleared) {
        let _ = are_cleared;
    }

    /// Tells the device of some of the places that were freed, if it is to know; says whether there may be more.
    fn discard_freed(&self) -> bool {
        false
    }

    /// Where a place given out is.
    fn locate(&self, extent: Extent) -> Location;

    /// Where a place of the chunk with this digest is, in words.
    fn place_text(&self, extent: Extent, digest: Digest) -> String;

    /// Waits until what was taken back is off the disk.
    fn settle(&self);

    /// Whether the space of a place given out is there yet: what made room for it may still be on its way out. Who waits
    /// for it is woken.
    ///
    /// # Errors
    /// `StoreError` when it will not come; the place is to be freed.
    fn is_clear(&self, extent: Extent) -> Result<bool, StoreError>;

    /// The file of a chunk's own was made with all of its space, or the file system refused; then the error to answer with.
    fn note_made(&self, extent: Extent, outcome: io::Result<()>) -> Result<(), StoreError>;

    /// Whether the place is there and can be that of the chunk with this digest: as opening asks for each record.
    fn contains(&self, extent: Extent, digest: Digest) -> bool;

    /// Makes `held` (sorted by place, free of overlaps, each contained) the only places given out. Returns how many files
    /// were removed because no chunk is theirs.
    ///
    /// # Errors
    /// What the file system says.
    fn rebuild(&self, held: &[Extent]) -> io::Result<u64>;

    /// What the target asks of a transfer.
    fn geometry(&self) -> Geometry;

    /// Longest chunk that can be placed when everything is free.
    fn max_chunk_bytes(&self) -> u64;

    /// How full it is.
    fn fill(&self) -> Fill;

    /// Space taken now.
    fn usage(&self) -> StoreUsage;

    /// Why the next open would not find its files, if so.
    fn missed(&self) -> Option<String> {
        None
    }

    /// Gives up the files, and their locks with them: another process may own them from here on.
    ///
    /// # Errors
    /// What flock(2) says.
    fn give_up(&self) -> io::Result<()>;

    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// What the system says; then nothing may be taken as durable.
    fn sync(&self) -> io::Result<()>;
}
