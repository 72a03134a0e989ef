//! What a path names: a directory or a block device.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

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
        _ if KERNEL_DIRECTORIES.iter().any(|one| existing_part(path).starts_with(one)) => {
            let reason = "the kernel keeps no files there; give a directory of a drive";
            Err(OpenError::unsuitable(path, reason))
        }
        _ => Ok(false),
    }
}

const KERNEL_DIRECTORIES: [&str; 2] = ["/proc", "/sys"];

fn is_below_dev(path: &Path) -> bool {
    let existing = existing_part(path);
    // Shared memory is a file system like others.
    existing.starts_with("/dev") && !existing.starts_with("/dev/shm")
}

/// The path, or the nearest directory above it that is there, without symlinks; empty where none can be told.
fn existing_part(path: &Path) -> PathBuf {
    let existing = path.ancestors().find_map(|ancestor| match ancestor.as_os_str() {
        name if name.is_empty() => std::env::current_dir().ok(),
        _ => ancestor.canonicalize().ok(),
    });
    existing.unwrap_or_default()
}
