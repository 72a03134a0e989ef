//! Making a block device blank, so that the next open makes a store there.

use std::path::Path;

use crate::config::Config;
use crate::error::OpenError;
use crate::index::owner_on_device;
use crate::store::device::{BlockDevice, is_device};

/// Erases the head and the tail of the block device at `path`, and all of it where it can be discarded and `discards`: the next
/// open formats it. `agree` gets what the device holds, while it is locked; nothing is written if it returns false.
/// Returns what it returned.
///
/// # Errors
/// `OpenError`: it is no block device, is in use, is read-only or too short, holds a store (which is never erased), cannot be
/// read or written, or holds something that is not at its ends.
pub fn format_device(
    path: &Path,
    discards: bool,
    agree: impl FnOnce(&str) -> bool,
) -> Result<bool, OpenError> {
    if !is_device(path)? {
        let reason = "it is no block device, and only those are formatted";
        return Err(OpenError::unsuitable(path, reason));
    }
    let config = Config::of_device(path);
    let owner = |file: &_, superblock: &_| owner_on_device(file, superblock, None);
    let device = BlockDevice::look(&config, 0, owner, false)?;
    let agreed = agree(device.holds());
    if agreed {
        device.erase(discards)?;
    }
    Ok(agreed)
}
