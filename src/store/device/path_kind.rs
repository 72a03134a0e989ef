//! What a path names: a directory or a block device.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use crate::error::OpenError;

/// Whether `path` names a block device, also by a symlink, and not a directory, which may have to be made.
///
/// # Errors
/// A character device, or a file of another kind; a path below /dev that is not there: a directory made there because of a typo would take memory
/// instead of the drive.
pub(crate) fn is_device(path: &Path) -> Result<bool, OpenError> {
    match path.metadata() {
        Ok(metadata) if metadata.file_type().is_block_device() => Ok(true),
        Ok(metadata) if metadata.file_type().is_char_device() => Err(OpenError::unsuitable(
            path,
            "it is a character device; name a block device (of an NVMe drive /dev/nvme0n1, not /dev/nvme0) or a directory",
        )),
        Ok(metadata) if !metadata.is_dir() => {
            let kind = if metadata.is_file() { "a file" } else { "a FIFO or a socket" };
            let reason = format!(
                "it is {kind}; give a directory, which is made if it is missing, or a block device"
            );
            Err(OpenError::unsuitable(path, reason))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_below_dev(path) => {
            Err(OpenError::NoDevice { path: path.to_owned() })
        }
        _ => Ok(false),
    }
}

fn is_below_dev(path: &Path) -> bool {
    let existing = path.ancestors().skip(1).find_map(|ancestor| match ancestor.as_os_str() {
        name if name.is_empty() => std::env::current_dir().ok(),
        _ => ancestor.canonicalize().ok(),
    });
    // Shared memory is a file system like others.
    existing.is_some_and(|path| path.starts_with("/dev") && !path.starts_with("/dev/shm"))
}
