//! File operations that tell of each sync: one that fails, in whichever thread, may have dropped what others have written.

use std::ffi::{CStr, c_int};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, OnceLock, Weak};

use super::FileOperations;

/// Told of the syncs that no engine does.
pub(crate) trait SyncListener: Send + Sync {
    /// One begins. Returns its number.
    fn note_begun(&self) -> u64;
    /// The one with this number has come back.
    fn note_ended(&self, number: u64, outcome: &io::Result<()>);
}

/// The operations on the files of one path.
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

    fn remove(&self, directory: &File, name: &CStr) -> io::Result<()> {
        self.files.remove(directory, name)
    }
}
