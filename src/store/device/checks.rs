//! What is checked before a device is written to.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::contents::{Blocks, DeviceContent, signature};
use super::ioctl;
use crate::block::BLOCK_BYTES;
use crate::buffer::AlignedBlock;
use crate::config::Config;
use crate::error::{ConfigError, OpenError};
use crate::format::superblock::{DEVICE_FORMAT_VERSION, MIN_DEVICE_BYTES, TAIL_BYTES};

/// Where the part at the end begins that holds zeros.
pub(super) fn tail_offset(size_bytes: u64) -> u64 {
    size_bytes / BLOCK_BYTES * BLOCK_BYTES - TAIL_BYTES
}

/// Whether the device can hold a store at all. Returns its length.
pub(super) fn check_device(probe: &File, path: &Path) -> Result<u64, OpenError> {
    let error = || OpenError::io("read the geometry of", path);
    if ioctl::ask(probe, ioctl::IS_READ_ONLY).map_err(error())? != 0 {
        return Err(OpenError::ReadOnlyDevice { path: path.to_owned() });
    }
    let block_bytes = ioctl::ask(probe, ioctl::LOGICAL_BLOCK_BYTES).map_err(error())?;
    let size_bytes = io::Seek::seek(&mut &*probe, io::SeekFrom::End(0)).map_err(error())?;
    let reason = if block_bytes > BLOCK_BYTES {
        format!(
            "its logical blocks have {block_bytes} bytes, the most that kvring can use is {BLOCK_BYTES}; format the drive with \
             smaller ones (nvme format --lbaf), or choose a directory on it"
        )
    } else if size_bytes < MIN_DEVICE_BYTES {
        format!(
            "it has {size_bytes} bytes, at least {MIN_DEVICE_BYTES} are needed; choose a larger one"
        )
    } else {
        return Ok(size_bytes);
    };
    Err(OpenError::unsuitable(path, reason))
}

pub(super) fn check_capacity(config: &Config, size_bytes: u64) -> Result<(), ConfigError> {
    match config.capacity_bytes() {
        Config::WHOLE_DEVICE => Ok(()),
        bytes if bytes <= size_bytes => Ok(()),
        bytes => Err(ConfigError::unfitting(
            "capacity",
            bytes.to_string(),
            format!("{} has {size_bytes} bytes; lower it, or say 'all'", config.path().display()),
        )),
    }
}

/// What is to be done to a device before it is used.
#[derive(Debug)]
pub(super) enum Preparation {
    Nothing,
    /// One of the two superblocks is to be written again.
    Repair,
    /// It is to be formatted, or erased, and holds this.
    Format(String),
}

/// What is to be done to the device that is to be opened, or else to be erased; an error if it must not be written to.
pub(super) fn preparation(
    found: &DeviceContent,
    path: &Path,
    is_opened: bool,
) -> Result<Preparation, OpenError> {
    let path = path.to_owned();
    let found = match found {
        DeviceContent::Store { .. } if !is_opened => {
            let source = io::Error::other(
                "it holds a kvring store, which is opened as it is and never erased; if its chunks may go, zero its first MiB",
            );
            return Err(OpenError::Io { action: "format", path, source });
        }
        DeviceContent::Store { is_whole, .. } => {
            return Ok(if *is_whole { Preparation::Nothing } else { Preparation::Repair });
        }
        DeviceContent::Newer(found) => {
            let (found, supported) = (*found, DEVICE_FORMAT_VERSION);
            return Err(OpenError::NewerFormat { path, found, supported });
        }
        // It may be a store that can be read at another moment.
        DeviceContent::Unreadable => {
            let source = io::Error::from_raw_os_error(libc::EIO);
            return Err(OpenError::Io { action: "read both ends of", path, source });
        }
        DeviceContent::Damaged => {
            "a kvring store whose superblock is damaged, and its copy too".into()
        }
        DeviceContent::Blank => match signature(&path) {
            Ok(Some(what)) => what,
            // It is not there on every system; that both ends are zeros is told without it.
            _ => {
                return Ok(Preparation::Format("nothing: its first and last MiB are zeros".into()));
            }
        },
        DeviceContent::Foreign => match signature(&path) {
            Ok(Some(what)) => what,
            Ok(None) => "data of a kind that blkid does not know".into(),
            Err(why) => format!("data of unknown kind ({why})"),
        },
    };
    if is_opened {
        return Err(OpenError::NotFormatted { path, found });
    }
    Ok(Preparation::Format(found))
}

/// The blocks from `start` to `end`, the last one perhaps in part.
pub(super) fn read_blocks(file: &File, start: u64, end: u64) -> Blocks {
    let memory = AlignedBlock::zeroed((end - start) as usize);
    // SAFETY: initialised memory of this block, which nobody else has.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), (end - start) as usize) };
    let block = BLOCK_BYTES as usize;
    let is_read = file.read_exact_at(bytes, start).is_ok();
    let read = |(bytes, offset): (&mut [u8], u64)| {
        (is_read || file.read_exact_at(bytes, offset).is_ok()).then(|| bytes.to_vec())
    };
    bytes.chunks_mut(block).zip((start..).step_by(block)).map(read).collect()
}
