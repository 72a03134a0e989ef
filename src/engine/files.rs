//! What is asked of files without an engine: opening, preallocating, truncating, syncing and removing them, and writing to the
//! index. The trait is the seam for faults in tests.

use std::ffi::{CStr, c_int};
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, OnceLock, Weak};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, syncfs, unlinkat};

use crate::base::system::block_device;
use crate::format::names::FILE_MODE;

/// Calls of the system on the files of a store, each named behind what it does. Each may wait for the file system. What an
/// implementation leaves out does what the system does; every error is what the system says.
pub trait FileOperations: Debug + Send + Sync {
    /// Opens what is called `name` in `directory` with these flags of openat(2). A file that they make is its owner's alone.
    fn open(&self, directory: &File, name: &CStr, flags: c_int) -> io::Result<OwnedFd> {
        let mode = Mode::from_bits_truncate(FILE_MODE);
        Ok(openat(directory, name, OFlag::from_bits_retain(flags), mode)?)
    }

    /// Gives these bytes of the file blocks of its own, with these flags of fallocate(2): EOPNOTSUPP where that cannot.
    fn preallocate(&self, file: &File, bytes: Range<u64>, flags: c_int) -> io::Result<()> {
        let (start, length) = (bytes.start as i64, (bytes.end - bytes.start) as i64);
        Ok(fallocate(file, FallocateFlags::from_bits_retain(flags), start, length)?)
    }

    /// Makes the file `length_bytes` long: ftruncate(2).
    fn truncate(&self, file: &File, length_bytes: u64) -> io::Result<()> {
        file.set_len(length_bytes)
    }

    /// Writes all of `bytes` to the file at `offset`: pwrite(2). Some of them may be written where it fails.
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    /// Has the next sync of the file write `mapped` again, which is mapped from its `offset` on. No byte changes:
    /// madvise(2) with MADV_POPULATE_WRITE, EINVAL before Linux 5.14.
    fn mark_changed(&self, file: &File, offset: u64, mapped: &[AtomicU8]) -> io::Result<()> {
        let _ = (file, offset);
        let start = mapped.as_ptr().cast_mut().cast();
        // SAFETY: the range is memory of this process. The call raises the page faults of writes, without a write.
        let result = unsafe { libc::madvise(start, mapped.len(), libc::MADV_POPULATE_WRITE) };
        Ok(Errno::result(result).map(drop)?)
    }

    /// Makes durable what was written to the file: fdatasync(2). Where it fails, nothing that was written counts as durable.
    fn sync_data(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    /// The same with the length of the file; of a directory, which names are in it: fsync(2).
    fn sync_all(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    /// Makes durable all that is on the file system of the directory: syncfs(2).
    fn sync_file_system(&self, directory: &File) -> io::Result<()> {
        Ok(syncfs(directory)?)
    }

    /// Tells a block device that nothing in the range is needed any more: BLKDISCARD.
    fn discard(&self, device: &File, bytes: Range<u64>) -> io::Result<()> {
        block_device::discard(device, bytes.start, bytes.end - bytes.start)
    }

    /// Removes what is called `name` in `directory`, and is no directory: unlinkat(2).
    fn remove(&self, directory: &File, name: &CStr) -> io::Result<()> {
        Ok(unlinkat(directory, name, UnlinkatFlags::NoRemoveDir)?)
    }
}

/// The calls of the system as they are.
#[derive(Debug)]
pub struct SystemFiles;

impl FileOperations for SystemFiles {}

/// Told of the syncs that no engine does.
pub(crate) trait SyncListener: Send + Sync {
    /// One begins. Returns its number.
    fn note_begun(&self) -> u64;
    /// The one with this number has come back.
    fn note_ended(&self, number: u64, outcome: &io::Result<()>);
}

/// The operations on the files of one path, which tell of each sync: one that fails, in whichever thread, may have dropped what
/// others have written.
#[derive(Debug)]
pub(crate) struct WatchedFiles {
    files: Arc<dyn FileOperations>,
    listener: OnceLock<Weak<dyn SyncListener>>,
}

impl WatchedFiles {
    /// The same operations, with nobody to tell yet.
    pub(crate) fn new(files: &Arc<dyn FileOperations>) -> Arc<Self> {
        Arc::new(Self { files: Arc::clone(files), listener: OnceLock::new() })
    }

    /// Tells `listener` of all syncs from here on, as long as it lives.
    pub(crate) fn tell(&self, listener: Weak<dyn SyncListener>) {
        let _ = self.listener.set(listener);
    }

    fn watch(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let Some(listener) = self.listener.get().and_then(Weak::upgrade) else { return sync() };
        let number = listener.note_begun();
        let outcome = sync();
        listener.note_ended(number, &outcome);
        outcome
    }
}

impl FileOperations for WatchedFiles {
    fn open(&self, directory: &File, name: &CStr, flags: c_int) -> io::Result<OwnedFd> {
        self.files.open(directory, name, flags)
    }

    fn preallocate(&self, file: &File, bytes: Range<u64>, flags: c_int) -> io::Result<()> {
        self.files.preallocate(file, bytes, flags)
    }

    fn truncate(&self, file: &File, length_bytes: u64) -> io::Result<()> {
        self.files.truncate(file, length_bytes)
    }

    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.files.write_at(file, bytes, offset)
    }

    fn mark_changed(&self, file: &File, offset: u64, mapped: &[AtomicU8]) -> io::Result<()> {
        self.files.mark_changed(file, offset, mapped)
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        self.watch(|| self.files.sync_data(file))
    }

    fn sync_all(&self, file: &File) -> io::Result<()> {
        self.watch(|| self.files.sync_all(file))
    }

    fn sync_file_system(&self, directory: &File) -> io::Result<()> {
        self.watch(|| self.files.sync_file_system(directory))
    }

    fn discard(&self, device: &File, bytes: Range<u64>) -> io::Result<()> {
        self.files.discard(device, bytes)
    }

    fn remove(&self, directory: &File, name: &CStr) -> io::Result<()> {
        self.files.remove(directory, name)
    }
}
