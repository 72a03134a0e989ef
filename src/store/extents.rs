//! Layout `extents`: chunks as raw bytes at block-aligned places in preallocated data files, grown one file at a time; or in
//! the data part of a block device, which does not grow.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::allocator::Allocator;
use super::data_file::{DataFile, data_file_name, make_home_private, probe, remove_file};
use super::device::Device;
use super::discards::Discards;
use super::files::CHUNKS_NAME;
pub(crate) use super::found_files::FoundFile;
use super::found_files::{find_files, fit_files};
use super::growth::{
    SMALLEST_FILE_BYTES, index_spare_bytes, longest_chunk_bytes, next_file_bytes, on_disk_bytes,
};
use super::set_aside::SetAside;
use super::{Extent, Fill, FreeSpace, Geometry, Location, Store, StoreUsage};
use crate::budget::Budget;
use crate::config::{BLOCK_BYTES, Discard, Layout};
use crate::directory::Directory;
use crate::error::{OpenError, StoreError};
use crate::index::HEADER_BYTES;
use crate::key::Digest;
use crate::lock::Owner;
use crate::sync::{Mutex, RwLock};

const MIB: u64 = 1 << 20;

/// Data files of one directory, or parts of one device, and who owns which of their blocks.
pub(crate) struct ExtentStore {
    /// Where more data files can be made; none on a device.
    directory: Option<Arc<Directory>>,
    budget: Arc<Budget>,
    geometry: Geometry,
    max_chunk_bytes: u64,
    files: RwLock<Vec<Option<DataFile>>>,
    allocator: Mutex<Allocator>,
    /// After the file system has refused to grow: when to ask it again, and what it said.
    refusal: Mutex<Option<(Instant, StoreError)>>,
    discards: Option<Discards>,
    set_aside: Mutex<SetAside>,
}

/// Blocks of a part of a device; most devices have one. Its blocks are counted in 32 bits: these are 8 TiB.
pub(crate) const PART_BLOCKS: u64 = 1 << 31;

/// Data files of others that are passed over when one is made.
const OTHERS_FILES: usize = 16;

/// Pause after the file system has refused to grow: asking it costs time in which chunks can go instead.
const GROWTH_PAUSE: Duration = Duration::from_secs(1);

impl ExtentStore {
    /// Opens and locks the data files in `directory`; nothing of them is changed.
    ///
    /// # Errors
    /// Somebody has them, or the store is one of layout `files`.
    pub(crate) fn look(
        directory: &Directory,
        owner: impl Fn() -> Option<Owner>,
    ) -> Result<Vec<FoundFile>, OpenError> {
        if directory.contains(CHUNKS_NAME).map_err(directory.error("look for", CHUNKS_NAME))? {
            return Err(OpenError::OtherLayout {
                path: directory.path().to_owned(),
                found: Layout::Files.name(),
                wanted: Layout::Extents.name(),
            });
        }
        find_files(directory, owner)
    }

    /// Takes over the data files that were found. All of their space is unwritten until [`Store::rebuild`]. Where they no
    /// longer fit the capacity, those go whose chunks were used the longest time ago, by `mean_use_by_file`.
    pub(crate) fn open(
        directory: &Arc<Directory>,
        found: Vec<FoundFile>,
        budget: Arc<Budget>,
        mean_use_by_file: impl FnOnce() -> HashMap<u32, u64>,
    ) -> Result<Self, OpenError> {
        make_home_private(directory)?;
        let mut files: Vec<Option<DataFile>> = Vec::new();
        let mut allocator = Allocator::default();
        let mut longest = 0;
        for found in fit_files(found, directory, &budget, mean_use_by_file)? {
            while files.len() <= found.number as usize {
                files.push(None);
                allocator.add_file(0);
            }
            longest = longest.max(u64::from(found.blocks) * BLOCK_BYTES);
            allocator.extend_file(found.number, found.blocks);
            files[found.number as usize] = Some(found.file);
        }
        let geometry = match files.iter().flatten().next() {
            Some(file) => file.geometry(),
            None => probe(directory)?.0,
        };
        if !geometry.direct {
            log::warn!(
                "{} has no O_DIRECT: transfers go through the page cache",
                directory.path().display()
            );
        }
        let max_chunk_bytes =
            longest.max(next_file_bytes(&budget)).min(longest_chunk_bytes(budget.capacity_bytes()));
        Ok(Self {
            directory: Some(Arc::clone(directory)),
            budget,
            geometry,
            max_chunk_bytes,
            files: RwLock::new(files),
            allocator: Mutex::new(allocator),
            refusal: Mutex::new(None),
            discards: None,
            set_aside: Mutex::default(),
        })
    }

    /// The data part of a device, as much of it as `budget` allows. All of it is unwritten until [`Store::rebuild`].
    pub(crate) fn on_device(device: &Arc<Device>, budget: Arc<Budget>, discard: Discard) -> Self {
        let capacity_bytes = budget.capacity_bytes();
        // The index has its share whether it uses it or not: else the data would be shorter with each start.
        let spare_bytes = index_spare_bytes(capacity_bytes).next_multiple_of(MIB);
        let for_index = budget.used_bytes().max(HEADER_BYTES + spare_bytes);
        let for_others = for_index + device.marks_bytes();
        budget.add(device.marks_bytes());
        let data_bytes = device.data_bytes().min(capacity_bytes.saturating_sub(for_others));
        let mut allocator = Allocator::default();
        let mut files = Vec::new();
        let mut longest = 0;
        for (offset, blocks) in parts(data_bytes / BLOCK_BYTES) {
            let fits = budget.reserve(u64::from(blocks) * BLOCK_BYTES, 0);
            debug_assert!(fits, "it is no more than was left");
            longest = longest.max(u64::from(blocks) * BLOCK_BYTES);
            allocator.add_file(blocks);
            files.push(Some(DataFile::of_device(device, device.data_offset() + offset)));
        }
        Self {
            directory: None,
            budget,
            geometry: device.geometry(),
            max_chunk_bytes: longest.min(longest_chunk_bytes(capacity_bytes)),
            files: RwLock::new(files),
            allocator: Mutex::new(allocator),
            refusal: Mutex::new(None),
            discards: (discard == Discard::Free).then(|| Discards::new(Arc::clone(device))),
            set_aside: Mutex::default(),
        }
    }

    /// Adds a data file that has room for `needed_bytes`.
    fn grow(&self, allocator: &mut Allocator, needed_bytes: u64) -> Result<(), StoreError> {
        let full =
            || StoreError::Full { needed_bytes, capacity_bytes: self.budget.capacity_bytes() };
        let Some(directory) = &self.directory else { return Err(full()) };
        let now = Instant::now();
        if let Some((again, error)) = &*self.refusal.lock()
            && now < *again
        {
            return Err(error.clone());
        }
        let wanted_bytes = next_file_bytes(&self.budget);
        if wanted_bytes < needed_bytes {
            return Err(full());
        }
        let free_bytes = self.budget.free_above_floor_bytes();
        let affordable_bytes =
            free_bytes.saturating_sub(on_disk_bytes(wanted_bytes) - wanted_bytes) / MIB * MIB;
        let mut size_bytes = wanted_bytes.min(affordable_bytes);
        let outcome = loop {
            if size_bytes < needed_bytes {
                break Err(StoreError::Floor { needed_bytes, free_bytes });
            }
            match self.add_file(directory, allocator, size_bytes) {
                Err(StoreError::Grow { .. })
                    if size_bytes / 2 >= needed_bytes.max(SMALLEST_FILE_BYTES) =>
                {
                    size_bytes = size_bytes / 2 / MIB * MIB;
                }
                outcome => break outcome,
            }
        };
        if let Err(error) = &outcome {
            log::warn!("{}: {error}", directory.path().display());
            *self.refusal.lock() = Some((now + GROWTH_PAUSE, error.clone()));
        }
        outcome
    }

    fn add_file(
        &self,
        directory: &Directory,
        allocator: &mut Allocator,
        size_bytes: u64,
    ) -> Result<(), StoreError> {
        let spare_bytes = index_spare_bytes(self.budget.capacity_bytes());
        self.budget.reserve_growth(on_disk_bytes(size_bytes), spare_bytes)?;
        let mut files = self.files.write();
        match make_file(directory, &files, size_bytes) {
            Ok((number, file)) => {
                while files.len() <= number {
                    files.push(None);
                    allocator.add_file(0);
                }
                files[number] = Some(file);
                allocator.extend_file(number as u32, (size_bytes / BLOCK_BYTES) as u32);
                Ok(())
            }
            Err((name, source)) => {
                self.budget.release(on_disk_bytes(size_bytes));
                let path = directory.path_of(&name);
                Err(StoreError::Grow { path, bytes: size_bytes, source: Arc::new(source) })
            }
        }
    }
}

/// Makes a data file of `size_bytes`, durably. Its number is the lowest that neither one of `files` has nor anything else in
/// the directory: what is there was put there by somebody else.
fn make_file(
    directory: &Directory,
    files: &[Option<DataFile>],
    size_bytes: u64,
) -> Result<(usize, DataFile), (String, io::Error)> {
    let is_free = |number: &usize| files.get(*number).is_none_or(Option::is_none);
    let mut numbers = (0..files.len() + OTHERS_FILES).filter(is_free).peekable();
    while let Some(number) = numbers.next() {
        let name = data_file_name(number as u32);
        let file = match DataFile::create(directory, &name) {
            Ok(file) => file,
            Err(OpenError::Io { source, .. })
                if source.kind() == io::ErrorKind::AlreadyExists && numbers.peek().is_some() =>
            {
                continue;
            }
            Err(OpenError::Io { source, .. }) => return Err((name, source)),
            Err(error) => return Err((name, io::Error::other(error.to_string()))),
        };
        // The file's name too: without it a sync of the file is worth nothing after power loss.
        let made = file.preallocate(size_bytes).and_then(|()| directory.sync());
        return match made {
            Ok(()) => Ok((number, file)),
            Err(source) => {
                // What fallocate had reserved before it failed goes back with the file.
                let _ = remove_file(directory, &name);
                Err((name, source))
            }
        };
    }
    Err((data_file_name(files.len() as u32), io::Error::from_raw_os_error(libc::EEXIST)))
}

impl FreeSpace for ExtentStore {
    fn missing_blocks(&self, _blocks: u32) -> Option<u64> {
        None
    }

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
        let mut allocator = self.allocator.lock();
        if let Some(extent) = allocator.allocate(blocks) {
            return Ok(extent);
        }
        let needed_bytes = u64::from(blocks) * BLOCK_BYTES;
        self.grow(&mut allocator, needed_bytes)?;
        let capacity_bytes = self.budget.capacity_bytes();
        allocator.allocate(blocks).ok_or(StoreError::Full { needed_bytes, capacity_bytes })
    }

    fn free(&self, extent: Extent) {
        self.allocator.lock().free(extent);
        if let Some(discards) = &self.discards {
            discards.note(extent);
        }
    }

    fn free_unwritable(&self, extent: Extent) {
        let mut allocator = self.allocator.lock();
        allocator.free(extent);
        self.set_aside.lock().add(&mut allocator, extent);
    }

    fn put_back_set_aside(&self) {
        let mut allocator = self.allocator.lock();
        self.set_aside.lock().put_back(&mut allocator);
    }

    fn discard_freed(&self) -> bool {
        let Some(discards) = &self.discards else { return false };
        discards.discard_next(&self.allocator, &self.files.read())
    }

    fn locate(&self, extent: Extent) -> Location {
        let files = self.files.read();
        // Extents are only ever given out in files that exist; a missing one would be a bug, answered by EBADF.
        let file = files.get(extent.file as usize).and_then(Option::as_ref);
        let (file, offset_bytes) = file.map_or((-1, 0), |file| file.locate(extent.first_block));
        Location::Shared { file, offset_bytes }
    }

    /// Data files stay.
    fn settle(&self) {}

    fn is_clear(&self, _extent: Extent) -> Result<bool, StoreError> {
        Ok(true)
    }

    fn note_made(&self, _extent: Extent, _outcome: io::Result<()>) -> Result<(), StoreError> {
        Ok(())
    }

    fn contains(&self, extent: Extent, _digest: Digest) -> bool {
        extent.end_block() <= self.allocator.lock().blocks_of(extent.file)
    }

    fn rebuild(&self, held: &[Extent]) -> io::Result<u64> {
        self.allocator.lock().rebuild(held);
        Ok(0)
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn max_chunk_bytes(&self) -> u64 {
        self.max_chunk_bytes
    }

    fn fill(&self) -> Fill {
        let allocator = self.allocator.lock();
        let refused =
            self.refusal.lock().as_ref().is_some_and(|(again, _)| Instant::now() < *again);
        Fill {
            allocated_bytes: allocator.allocated() * BLOCK_BYTES,
            total_bytes: allocator.total() * BLOCK_BYTES,
            can_grow: self.directory.is_some()
                && !refused
                && next_file_bytes(&self.budget) >= self.budget.capacity_bytes() / 64,
        }
    }

    fn usage(&self) -> StoreUsage {
        StoreUsage {
            allocated_bytes: self.allocator.lock().allocated() * BLOCK_BYTES,
            data_files: self.files.read().iter().flatten().count() as u64,
        }
    }

    fn missed(&self) -> Option<String> {
        let directory = self.directory.as_ref()?;
        // Without the lock while the file system is asked: loads need it.
        let files: Vec<(u32, RawFd)> = (0..)
            .zip(self.files.read().iter())
            .filter_map(|(number, file)| Some((number, file.as_ref()?.locate(0).0)))
            .collect();
        files.into_iter().find_map(|(number, file)| {
            // SAFETY: data files stay open until they are given up, which is after the last look at them.
            let file = unsafe { BorrowedFd::borrow_raw(file) };
            directory.missed_in(&data_file_name(number), file)
        })
    }

    fn give_up(&self) -> io::Result<()> {
        self.files.read().iter().flatten().try_for_each(DataFile::give_up)
    }

    fn sync(&self) -> io::Result<()> {
        self.files.read().iter().flatten().try_for_each(DataFile::sync)
    }
}

/// Where each part of so many blocks begins, in bytes, and how many it has.
fn parts(blocks: u64) -> impl Iterator<Item = (u64, u32)> {
    let starts = (0..blocks).step_by(PART_BLOCKS as usize);
    starts.map(move |start| (start * BLOCK_BYTES, PART_BLOCKS.min(blocks - start) as u32))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::*;
    use crate::store::data_file::list_data_files;

    /// It does not matter here.
    const DIGEST: Digest = Digest([0; 2]);

    fn open(directory: &Path, capacity_bytes: u64) -> ExtentStore {
        let budget = Arc::new(Budget::new(capacity_bytes));
        let directory = Arc::new(Directory::open(directory).unwrap());
        let found = ExtentStore::look(&directory, || None).unwrap();
        ExtentStore::open(&directory, found, budget, HashMap::new).unwrap()
    }

    #[test]
    fn grows_file_by_file_up_to_the_capacity() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path(), 200 * MIB);
        let mut held = Vec::new();
        let error = loop {
            match store.allocate(MIB, DIGEST) {
                Ok(extent) => held.push(extent),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().starts_with("store full"), "{error}");
        assert!(held.len() >= 190, "{} MiB of 200", held.len());
        assert_eq!(store.usage().data_files, 4);
        let files = list_data_files(&Directory::open(directory.path()).unwrap()).unwrap();
        let path = |number| directory.path().join(data_file_name(number));
        let on_disk: u64 =
            files.into_iter().map(|number| path(number).metadata().unwrap().blocks() * 512).sum();
        assert!(on_disk <= 200 * MIB, "{on_disk}");
        store.free(held.remove(3));
        assert!(store.allocate(MIB, DIGEST).is_ok());
    }

    #[test]
    fn a_smaller_capacity_drops_the_last_files() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path(), 200 * MIB);
        while store.allocate(16 * MIB, DIGEST).is_ok() {}
        drop(store);
        let store = open(directory.path(), 100 * MIB);
        let blocks = [0, 1].map(|file| store.allocator.lock().blocks_of(file));
        assert_eq!(blocks[0], 64 * MIB / BLOCK_BYTES, "no file was used last, so the first stays");
        assert!((20 * MIB..36 * MIB).contains(&(blocks[1] * BLOCK_BYTES)), "{blocks:?}");
        assert_eq!(store.usage().data_files, 2);
        assert!(store.budget.used_bytes() <= 100 * MIB);
        assert_eq!(store.max_chunk_bytes(), 64 * MIB);
    }

    #[test]
    fn a_long_device_has_several_parts() {
        assert_eq!(parts(1000).collect::<Vec<_>>(), [(0, 1000)]);
        let eight_tib = PART_BLOCKS * BLOCK_BYTES;
        let found: Vec<(u64, u32)> = parts(2 * PART_BLOCKS + 5).collect();
        assert_eq!(found, [(0, 1 << 31), (eight_tib, 1 << 31), (2 * eight_tib, 5)]);
    }

    #[test]
    fn an_empty_file_that_a_dead_owner_left_goes() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::File::create(directory.path().join(data_file_name(0))).unwrap();
        let store = open(directory.path(), 64 * MIB);
        assert_eq!((store.usage().data_files, store.budget.used_bytes()), (0, 0));
        assert!(store.allocate(MIB, DIGEST).is_ok());
        let directory = Directory::open(directory.path()).unwrap();
        assert_eq!(list_data_files(&directory).unwrap().len(), 1);
    }

    #[test]
    fn longest_chunk_fits_the_smallest_capacity() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path(), crate::config::MIN_CAPACITY_BYTES);
        assert!(store.max_chunk_bytes() >= 12 * MIB, "{}", store.max_chunk_bytes());
        assert!(store.allocate(store.max_chunk_bytes(), DIGEST).is_ok());
    }
}
