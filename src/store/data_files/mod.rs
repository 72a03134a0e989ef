//! Layout `extents`: chunks as raw bytes in extents of preallocated data files, which grow in number; or of the data part of a
//! block device, which does not grow.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::allocator::Allocator;
use super::device::BlockDevice;
use super::sizes::{
    IndexShare, SMALLEST_FILE_BYTES, assured_file_bytes, file_bytes_within, index_share_bytes,
    longest_chunk_bytes, next_file_bytes, on_disk_bytes,
};
use super::{FileUse, Fill, FreeSpace, Geometry, Location, RecordsAreCleared, Store, StoreUsage};
use crate::base::block::{BLOCK_BYTES, Extent, MIB};
use crate::base::log_limit::LogLimit;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::base::sync::{Mutex, RwLock};
use crate::config::Discard;
use crate::directory::Directory;
use crate::error::{OpenError, StoreError};
use crate::format::header::HEADER_BYTES;
use crate::format::names::{PART_BLOCKS, data_file_name};
use crate::key::Digest;
use crate::space_account::SpaceAccount;

mod data_file;
mod discards;
mod found_files;
mod growth;
mod resizing;

pub(crate) use data_file::{list_data_files, make_home_private, probe, warn_if_buffered};
pub(crate) use found_files::{FoundFile, blocks_left_by_open, find_files};

use data_file::{DataFile, DataFiles, remove_file};
use discards::Discards;
use found_files::fit_files;

/// The data files of a directory, or the parts of a device, and which of their blocks are free.
///
/// Locks are taken in the order `files`, `allocator`, `refusal`, and after them those of [`Discards`], `next` before `freed`. No statement takes two (`tests/python/test_locks.py`): the first one's guard lives to the end of the statement.
pub(crate) struct ExtentStore {
    /// Where more data files can be made; none on a device.
    directory: Option<Arc<Directory>>,
    space: Arc<SpaceAccount>,
    geometry: Geometry,
    max_chunk_bytes: AtomicU64,
    /// By number.
    files: RwLock<DataFiles>,
    allocator: Mutex<Allocator>,
    /// After the file system has refused to grow: when to ask it again, and its error.
    refusal: Mutex<Option<(Instant, StoreError)>>,
    refusal_log: LogLimit,
    discards: Option<Discards>,
    /// A data file is being made: it is in the space, and its blocks cannot be given out yet.
    is_growing: AtomicBool,
}

/// Files of others with names of data files that are passed over when one is made.
const OTHERS_FILES: u32 = 16;

/// Pause after the file system has refused to grow: asking it costs time in which chunks can be evicted instead.
const GROWTH_PAUSE: Duration = Duration::from_secs(1);

/// The next data file is made when less than this part of its length is free in the others.
const AHEAD_PART: u64 = 4;

impl ExtentStore {
    /// Takes over the data files that were found. All of their space is unwritten until [`Store::rebuild`]. Where they no
    /// longer fit the capacity, the least recently used are removed, by `file_uses`.
    pub(crate) fn open(
        directory: &Arc<Directory>,
        found: Vec<FoundFile>,
        space: Arc<SpaceAccount>,
        file_uses: impl FnOnce() -> HashMap<u32, FileUse>,
    ) -> Result<Self, OpenError> {
        make_home_private(directory)?;
        let found = fit_files(found, directory, &space, file_uses)?;
        let geometry = match found.first() {
            Some(found) => found.file.geometry,
            None => probe(directory)?.0,
        };
        warn_if_buffered(geometry, directory);
        let assured_bytes = assured_file_bytes(&space);
        let files = found.into_iter().map(|found| (found.number, found.file, found.blocks));
        let mut store = Self::new(space, geometry, assured_bytes, files);
        store.directory = Some(Arc::clone(directory));
        Ok(store)
    }

    /// The data part of a device, as much of it as `space` allows. All of it is unwritten until [`Store::rebuild`].
    pub(crate) fn on_device(
        device: &Arc<BlockDevice>,
        space: Arc<SpaceAccount>,
        discard: Discard,
        are_cleared: RecordsAreCleared,
    ) -> Self {
        let data_blocks = device_blocks(&space, device.data_bytes(), device.marks_bytes());
        space.add(device.marks_bytes());
        let fits = space.reserve(data_blocks * BLOCK_BYTES, 0);
        debug_assert!(fits, "it is no more than was left");
        let offset = device.superblock().data_offset;
        let files = (0..).zip(parts(data_blocks)).map(|(number, (start, blocks))| {
            (number, DataFile::of_device(device, offset + start), blocks)
        });
        let mut store = Self::new(space, device.geometry, 0, files);
        store.discards =
            (discard == Discard::Free).then(|| Discards::new(Arc::clone(device), are_cleared));
        store
    }

    /// Of data files by number, with their blocks. Chunks of `assured_bytes` can be placed whatever these are.
    fn new(
        space: Arc<SpaceAccount>,
        geometry: Geometry,
        assured_bytes: u64,
        found: impl Iterator<Item = (u32, DataFile, u32)>,
    ) -> Self {
        let (mut files, mut allocator) = (DataFiles::new(), Allocator::default());
        let mut longest = assured_bytes;
        for (number, file, blocks) in found {
            longest = longest.max(u64::from(blocks) * BLOCK_BYTES);
            allocator.add_file(number, blocks);
            files.insert(number, Arc::new(file));
        }
        let max_chunk_bytes = longest.min(longest_chunk_bytes(space.capacity_bytes()));
        Self {
            directory: None,
            space,
            geometry,
            max_chunk_bytes: AtomicU64::new(max_chunk_bytes),
            files: RwLock::new(files),
            allocator: Mutex::new(allocator),
            refusal: Mutex::default(),
            refusal_log: LogLimit::of_lasting("attempts to grow failed"),
            discards: None,
            is_growing: AtomicBool::new(false),
        }
    }

    /// The data files as they are now, for I/O without the lock, which GETs need.
    fn all_files(&self) -> DataFiles {
        self.files.read().clone()
    }

    /// Syncs the files that are `due`, all of them whether one fails or not.
    fn sync_each(&self, is_due: impl Fn(&DataFile) -> bool) -> io::Result<()> {
        let mut due: Vec<_> = self.all_files().into_values().filter(|file| is_due(file)).collect();
        // The parts of a device are one file.
        due.dedup_by_key(|file| Arc::as_ptr(&file.file));
        due.iter().map(|file| file.files.sync_data(&file.file)).fold(Ok(()), Result::and)
    }
}

impl FreeSpace for ExtentStore {
    fn free_before(&self, file: u32, block: u32) -> u32 {
        self.allocator.lock().free_before(file, block)
    }

    fn free_from(&self, file: u32, block: u32) -> u32 {
        self.allocator.lock().free_from(file, block)
    }
}

impl Store for ExtentStore {
    fn allocate(&self, size_bytes: u64, _digest: Digest) -> Result<Extent, StoreError> {
        let blocks = Extent::blocks_for(size_bytes);
        let attempt = || self.allocator.lock().allocate(blocks);
        if let Some(extent) = attempt() {
            return Ok(extent);
        }
        match self.why_full(u64::from(blocks) * BLOCK_BYTES) {
            growing @ StoreError::Growing { .. } => Err(growing),
            // The data file that was being made may have come since.
            error => attempt().ok_or(error),
        }
    }

    fn prepare(&self, index: &dyn IndexShare) -> Result<(), StoreError> {
        let Fill { allocated_bytes, total_bytes, .. } = self.fill();
        match (&self.directory, total_bytes) {
            (None, _) => Ok(()),
            (Some(_), 0) => self.grow(0, index),
            (Some(_), _) => index.preallocate(index.missing_bytes(total_bytes, allocated_bytes)),
        }
    }

    fn is_growth_due(&self, needed_bytes: u64) -> bool {
        let Fill { allocated_bytes, total_bytes, can_grow, .. } = self.fill();
        let ahead_bytes = next_file_bytes(&self.space) / AHEAD_PART;
        let has_room = || match Extent::blocks_for(needed_bytes) {
            0 => true,
            blocks => self.allocator.lock().has_room(blocks),
        };
        can_grow && (total_bytes.saturating_sub(allocated_bytes) < ahead_bytes || !has_room())
    }

    fn grow(&self, needed_bytes: u64, index: &dyn IndexShare) -> Result<(), StoreError> {
        self.is_growing.store(true, Ordering::SeqCst);
        let outcome = self.try_to_grow(needed_bytes, index);
        if let (Err(error), Some(directory)) = (&outcome, &self.directory)
            // Within the capacity that is how it is meant to be.
            && !matches!(error, StoreError::Full { .. })
        {
            let path = directory.path();
            self.refusal_log.log(path, 1, || format!("{}: {error}", path.display()));
        }
        let refused = outcome.as_ref().err();
        *self.refusal.lock() = refused.map(|error| (Instant::now() + GROWTH_PAUSE, error.clone()));
        // Behind what it led to: its blocks, or the refusal.
        self.is_growing.store(false, Ordering::SeqCst);
        outcome
    }

    fn free(&self, extent: Extent) {
        self.allocator.lock().free(extent);
        if let Some(discards) = &self.discards {
            discards.note(extent);
        }
    }

    fn free_unwritable(&self, extent: Extent) {
        self.allocator.lock().free_bad(extent);
    }

    fn retry_bad_extents(&self) {
        self.allocator.lock().retry_bad();
    }

    fn discard_freed(&self) -> bool {
        let Some(discards) = &self.discards else { return false };
        discards.discard_next(&self.allocator, &self.all_files())
    }

    fn locate(&self, extent: Extent) -> Location {
        let files = self.files.read();
        // Extents are only ever given out in files that exist; a missing one would be a bug, answered by EBADF.
        let file = files.get(&extent.file);
        let (file, offset_bytes) = file.map_or((-1, 0), |file| file.locate(extent.first_block));
        Location::Shared { file, offset_bytes, is_device: self.directory.is_none() }
    }

    fn extent_text(&self, extent: Extent, _digest: Digest) -> String {
        let offset_bytes = match self.locate(extent) {
            Location::Shared { offset_bytes, .. } => offset_bytes,
            Location::Own { .. } => 0,
        };
        match &self.directory {
            Some(_) => format!("byte {offset_bytes} of {}", data_file_name(extent.file)),
            None => format!("byte {offset_bytes}"),
        }
    }

    fn contains_each(&self, chunks: &[(Extent, Digest)]) -> Vec<bool> {
        let allocator = self.allocator.lock();
        let contains = |extent: Extent| extent.end_block() <= allocator.blocks_of(extent.file);
        chunks.iter().map(|(extent, _)| contains(*extent)).collect()
    }

    fn rebuild(&self, stored: &[Extent]) -> u64 {
        self.allocator.lock().rebuild(stored);
        0
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn max_chunk_bytes(&self) -> u64 {
        self.max_chunk_bytes.load(Ordering::Relaxed)
    }

    fn fill(&self) -> Fill {
        let allocator = self.allocator.lock();
        Fill {
            allocated_bytes: allocator.allocated * BLOCK_BYTES,
            total_bytes: allocator.total() * BLOCK_BYTES,
            can_grow: self.directory.is_some()
                && !self.is_refused()
                && (self.is_growing.load(Ordering::SeqCst) || next_file_bytes(&self.space) > 0),
            was_refused: self.refusal.lock().is_some(),
        }
    }

    fn log_limits(&self) -> Vec<&LogLimit> {
        vec![&self.refusal_log]
    }

    fn fit_capacity(&self, file_uses: &dyn Fn() -> HashMap<u32, FileUse>) -> bool {
        self.limit_files(file_uses)
    }

    fn is_on_device(&self) -> bool {
        self.directory.is_none()
    }

    fn limits(&self) -> Vec<(u32, u32)> {
        let limited = self.allocator.lock().limited();
        limited.into_iter().map(|(file, limit, _)| (file, limit)).collect()
    }

    fn give_back(&self) -> io::Result<()> {
        self.cut_files()
    }

    fn usage(&self) -> StoreUsage {
        let allocated_bytes = self.allocator.lock().allocated * BLOCK_BYTES;
        let data_files = self.files.read().len() as u64;
        StoreUsage { allocated_bytes, data_files }
    }

    fn missed(&self) -> Option<String> {
        let directory = self.directory.as_ref()?;
        // Without the lock while the file system is asked: loads need it.
        let files = self.all_files();
        files.iter().find_map(|(number, file)| {
            directory.missed_in(&data_file_name(*number), file.file.as_fd())
        })
    }

    fn release(&self) -> io::Result<()> {
        self.all_files().values().try_for_each(|file| file.file.release())
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_each(|_| true)
    }

    fn note_written(&self, extent: Extent) {
        if let Some(file) = self.files.read().get(&extent.file) {
            file.is_unsynced.store(true, Ordering::SeqCst);
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.sync_each(|file| file.is_unsynced.swap(false, Ordering::SeqCst))
    }
}

/// Blocks of a device's data that `space`, in which its index is already, leaves to chunks.
pub(crate) fn device_blocks(space: &SpaceAccount, data_bytes: u64, marks_bytes: u64) -> u64 {
    let capacity_bytes = space.capacity_bytes();
    // The index keeps its share although it may not use it: else the data would be shorter with each open.
    let spare_bytes = index_share_bytes(capacity_bytes).next_multiple_of(MIB);
    let for_index = space.used_bytes().max(HEADER_BYTES + spare_bytes);
    let left_bytes = capacity_bytes.saturating_sub(for_index + marks_bytes);
    data_bytes.min(left_bytes) / BLOCK_BYTES
}

/// Where each part of so many blocks begins, in bytes, and how many it has.
pub(crate) fn parts(blocks: u64) -> impl Iterator<Item = (u64, u32)> {
    let starts = (0..blocks).step_by(PART_BLOCKS as usize);
    starts.map(move |start| (start * BLOCK_BYTES, PART_BLOCKS.min(blocks - start) as u32))
}

#[cfg(test)]
mod tests;
