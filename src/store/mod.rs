//! Where bytes live. A layout places chunks; it knows nothing of keys.

pub(crate) mod allocator;
pub(crate) mod data_file;
pub(crate) mod device;
mod discards;
pub(crate) mod extents;
mod geometry;

use std::os::fd::RawFd;

pub use geometry::Geometry;

use crate::config::BLOCK_BYTES;
use crate::error::StoreError;

/// A run of blocks of one data file: the place of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Number of the data file.
    pub file: u32,
    /// First block in it.
    pub first_block: u32,
    /// Number of blocks.
    pub blocks: u32,
}

impl Extent {
    /// Blocks that `bytes` take.
    pub fn blocks_for(bytes: u64) -> u32 {
        bytes.div_ceil(BLOCK_BYTES) as u32
    }

    /// The block after its last one.
    pub fn end_block(self) -> u64 {
        u64::from(self.first_block) + u64::from(self.blocks)
    }

    /// Bytes it takes.
    pub fn size_bytes(self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES
    }
}

/// Space taken by a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Bytes of extents given out.
    pub allocated_bytes: u64,
    /// Data files.
    pub data_files: u64,
}

/// How full a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Bytes of extents given out.
    pub allocated_bytes: u64,
    /// Bytes of all data files.
    pub total_bytes: u64,
    /// Whether there may be more data files.
    pub can_grow: bool,
}

/// Free space beside a place.
pub trait FreeSpace {
    /// Free blocks that end where `block` begins.
    fn free_before(&self, file: u32, block: u32) -> u32;
    /// Free blocks from `block` on.
    fn free_from(&self, file: u32, block: u32) -> u32;
}

/// Gives out places for chunks and says where they are.
pub trait Store: FreeSpace + Send + Sync {
    /// A place for `size_bytes` bytes.
    ///
    /// # Errors
    /// `StoreError` when there is none within the capacity or the file system refuses to grow.
    fn allocate(&self, size_bytes: u64) -> Result<Extent, StoreError>;

    /// Takes a place back. Nothing may be under way there.
    fn free(&self, extent: Extent);

    /// Tells the device of some of the places that were freed, if it is to know; says whether there may be more.
    fn discard_freed(&self) -> bool {
        false
    }

    /// Descriptor and byte offset of a place given out.
    fn locate(&self, extent: Extent) -> (RawFd, u64);

    /// Length in blocks of each data file, by its number; 0 where the file is missing.
    fn file_blocks(&self) -> Vec<u64>;

    /// Makes `held` (sorted by place, free of overlaps, inside the files) the only places given out.
    fn rebuild(&self, held: &[Extent]);

    /// What the target asks of a transfer.
    fn geometry(&self) -> Geometry;

    /// Longest chunk that can be placed when everything is free.
    fn max_chunk_bytes(&self) -> u64;

    /// How full it is.
    fn fill(&self) -> Fill;

    /// Space taken now.
    fn usage(&self) -> StoreUsage;

    /// Gives up the files, and their locks with them: another process may own them from here on.
    ///
    /// # Errors
    /// What flock(2) says.
    fn give_up(&self) -> std::io::Result<()>;

    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// What fdatasync(2) says; then nothing may be taken as durable.
    fn sync(&self) -> std::io::Result<()>;
}
