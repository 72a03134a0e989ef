//! Removing the files of chunks that are gone.

use std::ffi::{CStr, OsStr};
use std::io::ErrorKind::{IsADirectory, NotFound};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use crate::base::log_limit::LogLimit;
use crate::directory::Directory;

pub(super) struct Removals {
    store: Arc<Directory>,
    pub(super) log_limit: LogLimit,
}

impl Removals {
    pub(super) fn new(store: &Arc<Directory>) -> Self {
        let what = "files of chunks that are gone could not be removed";
        Self { store: Arc::clone(store), log_limit: LogLimit::new(log::Level::Error, what) }
    }

    /// Removes the file of a chunk that is gone; one that is not there is removed.
    ///
    /// # Errors
    /// The bytes that the file goes on to take; the log has its path and the reason, or counts it.
    pub(super) fn remove_file(&self, directory: &Directory, name: &CStr) -> Result<(), u64> {
        let Err(error) = directory.remove(name) else { return Ok(()) };
        // Nor is it there if a directory has its name.
        if matches!(error.kind(), NotFound | IsADirectory) {
            return Ok(());
        }
        let bytes = directory.bytes_of(name);
        self.log_limit.log(self.store.path(), 1, || {
            let path = directory.path().join(OsStr::from_bytes(name.to_bytes()));
            format!(
                "cannot remove {}: {error}; its chunk is gone, and {bytes} bytes of the capacity stay taken: make it removable \
                 (lsattr tells of an immutable file), and open the store again",
                path.display()
            )
        });
        Err(bytes)
    }
}
