//! Stores: where the bytes of chunks are. A store gives out extents; it knows nothing of keys.

pub(crate) mod allocator;
pub(crate) mod chunk_files;
pub(crate) mod data_files;
pub(crate) mod device;
mod drives;
pub(crate) mod geometry;
mod runs;
mod sizes;

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

pub(crate) use drives::DRIVE_DEPTH;
pub use geometry::Geometry;
pub(crate) use sizes::{IndexShare, index_share_bytes};

use crate::base::block::Extent;
use crate::base::log_limit::LogLimit;
use crate::directory::Directory;
use crate::error::StoreError;
use crate::key::Digest;

/// Where the bytes of a chunk are.
#[derive(Debug)]
pub(crate) enum Location {
    /// In a file that stays open as long as the store.
    Shared {
        file: RawFd,
        /// Where in it the chunk starts.
        offset_bytes: u64,
        is_device: bool,
    },
    /// In a file of its own, from its first byte to its last one.
    Own {
        /// The directory it is in.
        directory: Arc<Directory>,
        name: CString,
    },
}

/// Space taken by a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreUsage {
    /// Bytes of extents given out, and of those that are still on their way out.
    pub allocated_bytes: u64,
    /// Files with data in them.
    pub data_files: u64,
}

/// How full a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fill {
    /// Bytes of what was given out.
    pub allocated_bytes: u64,
    /// Bytes that can be given out in all.
    pub total_bytes: u64,
    /// Whether these may become more.
    pub can_grow: bool,
    /// The last time that they were to become more, the file system refused.
    pub was_refused: bool,
}

/// How the chunks of a data file are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileUse {
    /// When they were used last, on average: Unix time in ms.
    pub(crate) mean_ms: u64,
    /// Blocks up to the end of the last one.
    pub(crate) end_blocks: u32,
}

/// How each data file is used, by the extents of all chunks and when they were used last.
pub(crate) fn file_uses(chunks: impl Iterator<Item = (Extent, u64)>) -> HashMap<u32, FileUse> {
    let mut sums: HashMap<u32, (u128, u128, u32)> = HashMap::new();
    for (extent, used_ms) in chunks {
        let (sum, count, end_blocks) = sums.entry(extent.file).or_default();
        (*sum, *count) = (*sum + u128::from(used_ms), *count + 1);
        *end_blocks = (*end_blocks).max(u32::try_from(extent.end_block()).unwrap_or(u32::MAX));
    }
    let one = |(file, (sum, count, end_blocks))| {
        (file, FileUse { mean_ms: (sum / count) as u64, end_blocks })
    };
    sums.into_iter().map(one).collect()
}

/// Free space: beside an extent, or anywhere.
pub(crate) trait FreeSpace {
    /// Blocks that have to go, wherever they are, so that a chunk of `blocks` can be placed; `None` where they have to be
    /// neighbours.
    fn missing_blocks(&self, _blocks: u32) -> Option<u64> {
        None
    }
    /// Free blocks that end where `block` begins; 0 where they need not be neighbours, here and below.
    fn free_before(&self, _file: u32, _block: u32) -> u32 {
        0
    }
    /// Free blocks from `block` on.
    fn free_from(&self, _file: u32, _block: u32) -> u32 {
        0
    }
}

/// Called before a freed extent is discarded or a freed file removed: waits until no record names any that was freed so far,
/// and returns whether that is so.
pub(crate) type RecordsAreCleared = Box<dyn Fn() -> bool + Send + Sync>;

/// Gives out extents for chunks and says where they are.
pub(crate) trait Store: FreeSpace + Send + Sync {
    /// An extent for `size_bytes` bytes of the chunk with this digest. It waits for nothing. Where there is none and
    /// [`Store::grow`] may make one, the error is [`StoreError::Growing`].
    fn allocate(&self, size_bytes: u64, digest: Digest) -> Result<Extent, StoreError>;

    /// Makes sure, at open, that the index has its share and that there is room for a first chunk.
    fn prepare(&self, _index: &dyn IndexShare) -> Result<(), StoreError> {
        Ok(())
    }

    /// Whether the store can grow and should: soon there will not be much room, or there is none for `needed_bytes`.
    fn is_growth_due(&self, _needed_bytes: u64) -> bool {
        false
    }

    /// Grows by one step, in which there is room for `needed_bytes`, after the index has got its share. It waits for the
    /// file system; extents are given out and located meanwhile.
    fn grow(&self, _needed_bytes: u64, _index: &dyn IndexShare) -> Result<(), StoreError> {
        Ok(())
    }

    /// The capacity is another one: no more is given out than fits it. Of data files those stay that were used last, by
    /// `file_uses`. Says whether it was done: not while one is being made.
    fn fit_capacity(&self, file_uses: &dyn Fn() -> HashMap<u32, FileUse>) -> bool;

    /// Whether its space is a part of a block device, and stays what it is.
    fn is_on_device(&self) -> bool {
        false
    }

    /// Data files behind whose blocks from a number on everything has to go, for the capacity.
    fn limits(&self) -> Vec<(u32, u32)> {
        Vec::new()
    }

    /// Gives back what nothing lies in any more of the space beyond the capacity. No record names it. It waits for the file system.
    fn give_back(&self) -> io::Result<()> {
        Ok(())
    }

    /// Takes an extent back, on which no transfer may be under way.
    fn free(&self, extent: Extent);

    /// Begins or ends a time in which freed files are not removed: the chunk that they were evicted for takes their space,
    /// and removal would give it to the file system. To be ended as often as begun.
    fn defer_reclaim(&self, _defers: bool) {}

    /// Takes an extent back that could not be written, and notes it as bad.
    fn free_unwritable(&self, extent: Extent) {
        self.free(extent);
    }

    /// Gives out bad extents again: the device can be written.
    fn retry_bad_extents(&self) {}

    /// Discards some of the extents that were freed, if that is configured. Returns whether there may be more.
    fn discard_freed(&self) -> bool {
        false
    }

    fn locate(&self, extent: Extent) -> Location;

    /// Where an extent of the chunk with this digest is, for messages.
    fn extent_text(&self, extent: Extent, digest: Digest) -> String;

    /// Waits until freed files are removed.
    fn drain_removals(&self) {}

    /// Whether the space of an extent is there: files that made room for it may not be removed yet. The reactors are woken
    /// when they are.
    ///
    /// # Errors
    /// `StoreError` when it will not come, as such a file cannot be removed; the extent is to be freed, and another may do.
    fn space_ready(&self, _extent: Extent) -> Result<bool, StoreError> {
        Ok(true)
    }

    /// The chunk's own file was made with all of its space, or the file system refused that: returns what to answer then.
    fn creation_done(&self, _extent: Extent, _outcome: io::Result<()>) -> Result<(), StoreError> {
        Ok(())
    }

    /// Whether each of the extents exists and can be that of the chunk with the digest beside it. Recovery asks for all records,
    /// on several threads.
    fn contains_each(&self, chunks: &[(Extent, Digest)]) -> Vec<bool>;

    /// Makes `stored` (sorted, without overlaps, each contained) the only extents given out. Returns how many files without
    /// a chunk were removed.
    fn rebuild(&self, stored: &[Extent]) -> u64;

    fn geometry(&self) -> Geometry;

    /// Longest chunk that can be placed when everything is free.
    fn max_chunk_bytes(&self) -> u64;

    fn fill(&self) -> Fill;

    /// Whether the store can give out the space of chunks that go. If not, evicting ahead of need gains nothing.
    fn keeps_freed_space(&self) -> bool {
        true
    }

    fn usage(&self) -> StoreUsage;

    /// Its own, one for each reason.
    fn log_limits(&self) -> Vec<&LogLimit>;

    /// Why the next open would not find its files, if so.
    fn missed(&self) -> Option<String> {
        None
    }

    /// Releases the files and their locks: another process may own them from here on.
    fn release(&self) -> io::Result<()>;

    /// Makes everything written so far durable. After an error nothing may be taken as durable.
    fn sync(&self) -> io::Result<()>;

    /// The next [`Store::flush`] is to make this extent durable, which is written.
    fn note_written(&self, extent: Extent);

    /// The same as [`Store::sync`] of what was noted as written since the last one.
    fn flush(&self) -> io::Result<()>;
}
