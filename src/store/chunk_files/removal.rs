//! Removing the file of a chunk that is gone.

use std::ffi::{CStr, OsStr};
use std::io::ErrorKind::{IsADirectory, NotFound};
use std::os::unix::ffi::OsStrExt;

use crate::directory::Directory;

/// Removes the file of a chunk that is gone; one that is not there is removed.
///
/// # Errors
/// The bytes that the file goes on to take; the log has its path and the reason.
pub(super) fn remove_file(directory: &Directory, name: &CStr) -> Result<(), u64> {
    let Err(error) = directory.remove(name) else { return Ok(()) };
    // Nor is it there if a directory has its name.
    if matches!(error.kind(), NotFound | IsADirectory) {
        return Ok(());
    }
    let bytes = directory.bytes_of(name);
    let path = directory.path().join(OsStr::from_bytes(name.to_bytes()));
    log::error!(
        "cannot remove {}: {error}; its chunk is gone, and {bytes} bytes of the capacity stay taken: make it removable (lsattr \
         tells of an immutable file), and open the store again",
        path.display()
    );
    Err(bytes)
}
