//! Layout `files`: each chunk in a file of its own, with nothing but its bytes in it, spread over 256 directories.
//!
//! A file belongs to the store once its record is published. It is removed after its record was cleared, by a thread for that.
//! So a file without a record belongs to no chunk, and recovery removes it.

mod account;
mod files;
mod opening;

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::statfs::XFS_SUPER_MAGIC;

use self::account::{Account, cost_bytes};
use self::files::{FileState, Files, remove_file};
pub(crate) use self::opening::evicted_by_open;
use self::opening::{longest_beside, raise_open_files, scan};
use super::data_files::{list_data_files, make_home_private, probe, warn_if_buffered};
use super::{FileUse, Fill, FreeSpace, Geometry, Location, RecordsAreCleared, Store, StoreUsage};
use crate::base::block::{BLOCK_BYTES, Extent};
use crate::base::log_limit::LogLimit;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::base::sync::thread::JoinHandle;
use crate::base::sync::{Condvar, Mutex};
use crate::config::Layout;
use crate::directory::Directory;
use crate::engine::Waker;
use crate::error::{OpenError, StoreError};
use crate::format::names::{
    CHUNKS_NAME, DIRECTORIES, chunk_path, directory_name, directory_of, file_c_name,
};
use crate::key::Digest;
use crate::space_account::SpaceAccount;

/// Pause after the file system had no space: until then only the space of removed chunks is given out.
const GROWTH_PAUSE: Duration = Duration::from_secs(1);

/// How long `release` waits for files to be removed; the rest is left to the next open.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);

/// The files of one directory, and the chunks they belong to.
pub(crate) struct FileStore {
    files: Arc<Files>,
    geometry: Geometry,
    max_chunk_bytes: AtomicU64,
    remover: Mutex<Option<JoinHandle<()>>>,
    /// A chunk was written since the last flush began.
    is_unsynced: AtomicBool,
}

impl FileStore {
    /// Looks at what is in `directory`.
    ///
    /// # Errors
    /// The store is one of layout `extents`.
    pub(crate) fn look(directory: &Directory) -> Result<(), OpenError> {
        if list_data_files(directory).map_err(directory.error("list", ""))?.is_empty() {
            let checked = directory.check_directory(CHUNKS_NAME);
            return checked.map_err(directory.error("open the directory", CHUNKS_NAME));
        }
        Err(OpenError::OtherLayout {
            path: directory.path().to_owned(),
            found: Layout::Extents.name(),
            wanted: Layout::Files.name(),
        })
    }

    /// Opens the directories below `directory`, making them if there are none, and looks which files there are.
    /// [`Store::rebuild`] decides which of them stay. `wakers` ring when what was given out becomes clear.
    pub(crate) fn open(
        directory: &Arc<Directory>,
        space: Arc<SpaceAccount>,
        wakers: Vec<Arc<Waker>>,
        are_cleared: RecordsAreCleared,
    ) -> Result<Self, OpenError> {
        make_home_private(directory)?;
        let (geometry, unit_bytes) = probe(directory)?;
        warn_if_buffered(geometry, directory);
        raise_open_files();
        let (chunks, mut is_new) = directory
            .open_or_make_in(CHUNKS_NAME)
            .map_err(directory.error("make the directory", CHUNKS_NAME))?;
        chunks.close_to_others();
        let mut account = Account::new(unit_bytes);
        let what = "files of chunks that are gone could not be removed";
        let removal_log = LogLimit::new(log::Level::Error, what);
        space.add(chunks.own_bytes().unwrap_or(0).max(BLOCK_BYTES));
        let mut directories = Vec::with_capacity(DIRECTORIES);
        for number in 0..DIRECTORIES {
            let name = directory_name(number);
            let (opened, made) =
                chunks.open_or_make_in(&name).map_err(chunks.error("make the directory", &name))?;
            is_new |= made;
            let own_bytes = opened.own_bytes().map_err(opened.error("look at", ""))?;
            account.note_directory(number, own_bytes, &space);
            let remove = |name: &CStr| remove_file((directory, &removal_log), &opened, name);
            scan(&opened, number, &mut account, &space, remove)
                .map_err(opened.error("list", ""))?;
            // Behind its files: whatever comes in between, they are not forgotten.
            opened.close_to_others();
            directories.push(Arc::new(opened));
        }
        // Their names: without them a sync of what is in them is worth nothing after power loss.
        if is_new {
            chunks
                .sync()
                .and_then(|()| directory.sync())
                .map_err(directory.error("sync", CHUNKS_NAME))?;
        }
        let max_chunk_bytes = longest_beside(space.left_bytes(), &space, unit_bytes);
        let state = FileState { account, refusal: None, deferrals: 0, ends: None };
        let files = Arc::new(Files {
            directory: Arc::clone(directory),
            space,
            chunks,
            directories,
            frees_late: directory.is_on(XFS_SUPER_MAGIC),
            state: Mutex::new(state),
            work: Condvar::new(),
            removed: Condvar::new(),
            wakers,
            are_cleared,
            refusal_log: LogLimit::of_lasting("files of chunks could not be made"),
            removal_log,
        });
        let remover = files.start_removals().map_err(directory.error("start a thread for", ""))?;
        let (remover, is_unsynced) = (Mutex::new(Some(remover)), AtomicBool::new(false));
        let max_chunk_bytes = AtomicU64::new(max_chunk_bytes);
        Ok(Self { files, geometry, max_chunk_bytes, remover, is_unsynced })
    }
}

impl FreeSpace for FileStore {
    fn missing_blocks(&self, blocks: u32) -> Option<u64> {
        let state = self.files.state.lock();
        let needed = cost_bytes(blocks, state.account.unit_bytes);
        let free = self.files.available_bytes(&state) + self.files.promisable_bytes(&state);
        // In proportion: what goes gives back more than its blocks, too.
        Some((u64::from(blocks) * needed.saturating_sub(free)).div_ceil(needed))
    }
}

impl Store for FileStore {
    fn allocate(&self, size_bytes: u64, digest: Digest) -> Result<Extent, StoreError> {
        let blocks = Extent::blocks_for(size_bytes);
        let mut state = self.files.state.lock();
        let needed_bytes = state.account.needed_bytes(blocks, digest);
        let space = &self.files.space;
        let now_bytes = needed_bytes.min(self.files.available_bytes(&state));
        let promised_bytes = needed_bytes - now_bytes;
        // The index may take the same meanwhile.
        let is_reserved = || now_bytes == 0 || space.reserve(now_bytes, 0);
        if promised_bytes > self.files.promisable_bytes(&state) || !is_reserved() {
            return Err(self.files.refusal(&state, needed_bytes));
        }
        Ok(state.account.give_out(blocks, digest, promised_bytes))
    }

    fn free(&self, extent: Extent) {
        self.files.state.lock().account.begin_removal(extent);
        self.files.work.notify_one();
    }

    fn defer_reclaim(&self, defers: bool) {
        let mut state = self.files.state.lock();
        match defers {
            true => state.deferrals += 1,
            false => state.deferrals -= 1,
        }
        if state.deferrals == 0 && state.account.is_leaving() {
            self.files.work.notify_one();
        }
    }

    fn locate(&self, extent: Extent) -> Location {
        let digest = self.files.state.lock().account.digest_of(extent.file);
        // A file that was not given out would be a bug; nothing has the name that it gets.
        let digest = digest.unwrap_or(Digest([0; 2]));
        let directory = &self.files.directories[directory_of(digest)];
        Location::Own { directory: Arc::clone(directory), name: file_c_name(digest, extent.file) }
    }

    fn extent_text(&self, extent: Extent, digest: Digest) -> String {
        format!("file {}", chunk_path(digest, extent.file).display())
    }

    fn drain_removals(&self) {
        let mut state = self.files.state.lock();
        while state.account.is_leaving() {
            state = self.files.removed.wait(state);
        }
    }

    fn space_ready(&self, extent: Extent) -> Result<bool, StoreError> {
        let is_ready = self.files.state.lock().account.space_ready(extent.file);
        is_ready.ok_or_else(|| self.files.space.full(extent.size_bytes()))
    }

    fn creation_done(&self, extent: Extent, outcome: io::Result<()>) -> Result<(), StoreError> {
        let mut state = self.files.state.lock();
        state.account.creation_done(extent.file);
        let Err(source) = outcome else { return Ok(()) };
        state.account.note_refused(extent.file);
        let digest = state.account.digest_of(extent.file);
        let name = digest.map_or_else(Default::default, |digest| chunk_path(digest, extent.file));
        let error = StoreError::Grow {
            path: self.files.directory.path().join(name),
            bytes: extent.size_bytes(),
            source: Arc::new(source),
        };
        state.refusal = Some((Instant::now() + GROWTH_PAUSE, error.clone()));
        drop(state);
        let line = || error.to_string();
        self.files.refusal_log.log(self.files.directory.path(), 1, line);
        Err(error)
    }

    fn contains_each(&self, chunks: &[(Extent, Digest)]) -> Vec<bool> {
        let account = &self.files.state.lock().account;
        let found = |extent: Extent| account.digest_of(extent.file);
        let is_there = |(extent, digest): &(Extent, Digest)| {
            extent.first_block == 0 && found(*extent) == Some(*digest)
        };
        chunks.iter().map(is_there).collect()
    }

    fn rebuild(&self, stored: &[Extent]) -> u64 {
        let mut state = self.files.state.lock();
        let mut removed = 0;
        for (number, digest) in state.account.keep_only(stored, &self.files.space) {
            match self.files.remove(digest, number) {
                Ok(()) => removed += 1,
                Err(bytes) => state.account.keep(digest, number, bytes, &self.files.space),
            }
        }
        removed
    }

    fn fit_capacity(&self, _file_uses: &dyn Fn() -> HashMap<u32, FileUse>) -> bool {
        let space = &self.files.space;
        let (unit_bytes, held_bytes) = {
            let account = &self.files.state.lock().account;
            (account.unit_bytes, account.held_bytes())
        };
        // As at an open: of the files only their directories count.
        let others_bytes = space.used_bytes().saturating_sub(held_bytes);
        let left_bytes = space.capacity_bytes().saturating_sub(others_bytes);
        let longest_bytes = longest_beside(left_bytes, space, unit_bytes);
        self.max_chunk_bytes.store(longest_bytes, Ordering::Relaxed);
        true
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn max_chunk_bytes(&self) -> u64 {
        self.max_chunk_bytes.load(Ordering::Relaxed)
    }

    fn fill(&self) -> Fill {
        let state = self.files.state.lock();
        let allocated_bytes = state.account.live_bytes;
        // Also after a refusal: with nothing free, everything would be evicted for the sake of the watermarks.
        let free_bytes = self.files.free_bytes(&state) + self.files.promisable_bytes(&state);
        let over_bytes =
            self.files.space.used_bytes().saturating_sub(self.files.space.capacity_bytes());
        // Opened with a smaller capacity, it can be over it.
        let total_bytes = match over_bytes.saturating_sub(state.account.unpromised_bytes()) {
            0 => allocated_bytes + free_bytes,
            over_bytes => allocated_bytes.saturating_sub(over_bytes),
        };
        let was_refused = self.files.space.is_below_floor();
        Fill { allocated_bytes, total_bytes, can_grow: false, was_refused }
    }

    /// Below the floor, the file system has the space of removed files.
    fn keeps_freed_space(&self) -> bool {
        !self.files.space.is_below_floor()
    }

    fn log_limits(&self) -> Vec<&LogLimit> {
        vec![&self.files.refusal_log, &self.files.removal_log]
    }

    fn usage(&self) -> StoreUsage {
        let state = self.files.state.lock();
        StoreUsage {
            allocated_bytes: state.account.allocated_blocks * BLOCK_BYTES,
            data_files: state.account.files.len() as u64,
        }
    }

    fn missed(&self) -> Option<String> {
        let Files { directory, chunks, directories, .. } = &*self.files;
        directory.missed_in(CHUNKS_NAME, chunks.file.as_fd()).or_else(|| {
            let mut each = (0..).zip(directories);
            each.find_map(|(number, one)| {
                chunks.missed_in(&directory_name(number), one.file.as_fd())
            })
        })
    }

    fn release(&self) -> io::Result<()> {
        if let Some(remover) = { self.remover.lock().take() } {
            self.files.end_removals(remover, REMOVAL_TIMEOUT);
        }
        self.files.chunks.release();
        self.files.directories.iter().for_each(|directory| directory.release());
        Ok(())
    }

    /// The whole file system: it is the one call that covers files which are closed.
    fn sync(&self) -> io::Result<()> {
        match self.files.directories.first() {
            Some(directory) => directory.files.sync_file_system(&directory.file),
            None => Ok(()),
        }
    }

    fn note_written(&self, _extent: Extent) {
        self.is_unsynced.store(true, Ordering::SeqCst);
    }

    fn flush(&self) -> io::Result<()> {
        match self.is_unsynced.swap(false, Ordering::SeqCst) {
            true => self.sync(),
            false => Ok(()),
        }
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        // Not in a fork, where the thread is not; nobody drops a store there.
        if let Some(remover) = self.remover.lock().take() {
            self.files.end_removals(remover, Duration::ZERO);
        }
    }
}
