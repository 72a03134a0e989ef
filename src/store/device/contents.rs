//! What is on a block device before kvring writes to it, and whether it may.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use crate::base::block::BLOCK_BYTES;
use crate::base::buffer::AlignedBlock;
use crate::base::system::block_device;
use crate::config::Config;
use crate::error::{ConfigError, OpenError};
use crate::format::superblock::{
    DEVICE_FORMAT_VERSION, HEAD_BYTES, MIN_DEVICE_BYTES, Superblock, SuperblockCopy, is_zero,
};
use crate::store::geometry::{is_host_managed, sysfs_directory};

/// Where blkid(8) is looked for: an ordinary user's PATH lacks the directories of administration.
const BLKID: [&str; 3] = ["blkid", "/usr/sbin/blkid", "/sbin/blkid"];

/// What a device holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DeviceContent {
    /// A store. Its superblock is there twice, or once and has to be written again.
    Store { superblock: Superblock, is_whole: bool },
    /// A store of a newer kvring.
    Newer(u32),
    /// Nothing: its first and last MiB are zeros.
    Blank,
    /// A store whose superblock is damaged, twice.
    Damaged,
    /// Something else.
    Foreign,
    /// Nobody knows: some of it cannot be read, and what can is zeros.
    Unreadable,
}

/// Blocks of 4096 bytes one after the other; `None` for each that cannot be read.
type Blocks = Vec<Option<Vec<u8>>>;

/// Judges by the blocks of head and tail.
pub(super) fn content(
    head: &[Option<Vec<u8>>],
    tail: &[Option<Vec<u8>>],
    device_bytes: u64,
) -> DeviceContent {
    debug_assert_eq!(head.len() as u64, HEAD_BYTES / BLOCK_BYTES);
    let (Some((first, rest)), Some(last)) = (head.split_first(), head.last()) else {
        return DeviceContent::Foreign;
    };
    let copies = [SuperblockCopy::of(first.as_deref()), SuperblockCopy::of(last.as_deref())];
    let between = &rest[..rest.len() - 1];
    let intact = match SuperblockCopy::judge(copies) {
        Ok(intact) => intact,
        Err(version) => return DeviceContent::Newer(version),
    };
    // Of a device that has got another length the tail is not where it was.
    let is_moved = intact.is_some_and(|(superblock, _)| superblock.device_bytes != device_bytes);
    let tail = if is_moved { &[] } else { tail };
    let written = |block: &Option<Vec<u8>>| block.as_deref().is_some_and(|block| !is_zero(block));
    if copies.contains(&SuperblockCopy::Foreign) || between.iter().chain(tail).any(written) {
        return DeviceContent::Foreign;
    }
    match intact {
        Some((superblock, is_whole)) => DeviceContent::Store { superblock, is_whole },
        None if copies.contains(&SuperblockCopy::Damaged) => DeviceContent::Damaged,
        None if head.iter().chain(tail).any(Option::is_none) => DeviceContent::Unreadable,
        None => DeviceContent::Blank,
    }
}

/// What blkid(8) finds: a file system, RAID, partition table or the like, in words. Its low-level probe looks at the device and at
/// no cache. An error says why it cannot be asked.
pub(super) fn signature(path: &Path) -> Result<Option<String>, String> {
    let ask =
        |program| Command::new(program).args(["-p", "-o", "export", "--"]).arg(path).output().ok();
    let answer = BLKID.into_iter().find_map(ask).ok_or("blkid (util-linux) is not installed")?;
    match answer.status.code() {
        Some(0) => Ok(described(&String::from_utf8_lossy(&answer.stdout))),
        Some(2) => Ok(None),
        Some(8) => Ok(Some("more than one signature that blkid knows".into())),
        _ => Err(format!("blkid failed: {}", answer.status)),
    }
}

/// Of a partition blkid also tells its entry in the table of its disk, which is nothing on it.
fn described(export: &str) -> Option<String> {
    let value = |name: &str| {
        export.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or("")
    };
    let what = match (value("TYPE"), value("PTTYPE")) {
        ("", "") => return None,
        ("", table) => format!("a partition table ({table})"),
        (kind, _) => kind.to_owned(),
    };
    let named = |name| Some(value(name)).filter(|text| !text.is_empty());
    let label = named("LABEL").map(|label| format!(" '{label}'")).unwrap_or_default();
    let uuid = named("UUID").map(|uuid| format!(" (UUID {uuid})")).unwrap_or_default();
    Some(format!("{what}{label}{uuid}"))
}

/// Whether the device can hold a store at all. Returns its length.
pub(super) fn check_device(probe: &File, path: &Path) -> Result<u64, OpenError> {
    let error = || OpenError::io("read the geometry of", path);
    if block_device::ask(probe, block_device::IS_READ_ONLY).map_err(error())? != 0 {
        return Err(OpenError::ReadOnlyDevice { path: path.to_owned() });
    }
    let block_bytes =
        block_device::ask(probe, block_device::LOGICAL_BLOCK_BYTES).map_err(error())?;
    let size_bytes = io::Seek::seek(&mut &*probe, io::SeekFrom::End(0)).map_err(error())?;
    let number = probe.metadata().map_err(error())?.rdev();
    let reason = if is_host_managed(Path::new(&sysfs_directory(number))) {
        "it is a host-managed zoned device, whose zones are written in order only; choose another one, or a directory on a \
         file system that has such zones"
            .to_owned()
    } else if block_bytes > BLOCK_BYTES {
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

/// What a device holds that is to be formatted because it is opened, or else to be erased; `None` of a store that is opened.
///
/// # Errors
/// It must not be written to.
pub(super) fn erasable(
    found: &DeviceContent,
    path: &Path,
    is_opened: bool,
) -> Result<Option<String>, OpenError> {
    let path = path.to_owned();
    let found = match found {
        DeviceContent::Store { .. } if !is_opened => {
            let source = io::Error::other(
                "it holds a kvring store, which this command never erases; to erase it, zero its first MiB",
            );
            return Err(OpenError::Io { action: "format", path, source });
        }
        DeviceContent::Store { .. } => return Ok(None),
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
            _ => return Ok(Some("nothing: its first and last MiB are zeros".into())),
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
    Ok(Some(found))
}

/// The blocks from `start` to `end`, the last one perhaps in part.
pub(super) fn read_blocks(file: &File, start: u64, end: u64) -> Blocks {
    let mut memory = AlignedBlock::zeroed((end - start) as usize);
    let bytes = &mut memory.bytes_mut()[..(end - start) as usize];
    let block = BLOCK_BYTES as usize;
    let is_read = file.read_exact_at(bytes, start).is_ok();
    let read = |(bytes, offset): (&mut [u8], u64)| {
        (is_read || file.read_exact_at(bytes, offset).is_ok()).then(|| bytes.to_vec())
    };
    bytes.chunks_mut(block).zip((start..).step_by(block)).map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE_BYTES: u64 = 1 << 30;

    fn blank() -> (Blocks, Blocks) {
        (vec![Some(vec![0; 4096]); 256], vec![Some(vec![0; 4096]); 256])
    }

    fn with(superblock: &Superblock) -> Option<Vec<u8>> {
        let mut block = vec![0; 4096];
        block[..size_of::<Superblock>()].copy_from_slice(bytemuck::bytes_of(superblock));
        Some(block)
    }

    #[test]
    fn zeros_are_nothing_and_one_bit_is_something() {
        let (head, tail) = blank();
        assert_eq!(content(&head, &tail, DEVICE_BYTES), DeviceContent::Blank);
        for (is_head, block) in [(true, 0), (true, 1), (true, 255), (false, 0), (false, 255)] {
            let (mut head, mut tail) = blank();
            let block = if is_head { &mut head[block] } else { &mut tail[block] };
            block.as_mut().unwrap()[4095] = 1;
            assert_eq!(content(&head, &tail, DEVICE_BYTES), DeviceContent::Foreign);
        }
        let (mut head, tail) = blank();
        head[7] = None;
        assert_eq!(content(&head, &tail, DEVICE_BYTES), DeviceContent::Unreadable);
        (head[0], head[255]) = (None, None);
        assert_eq!(content(&head, &tail, DEVICE_BYTES), DeviceContent::Unreadable);
    }

    #[test]
    fn one_superblock_of_two_will_do_if_nobody_else_was_there() {
        let superblock = Superblock::new([7; 16], 5, DEVICE_BYTES, false);
        let broken = || {
            let mut block = with(&superblock);
            block.as_mut().unwrap()[20] ^= 1;
            block
        };
        for place in [0, 255] {
            for bad in [None, Some(vec![0; 4096]), broken()] {
                let (mut head, tail) = blank();
                (head[0], head[255]) = (with(&superblock), with(&superblock));
                let store = |is_whole| DeviceContent::Store { superblock, is_whole };
                assert_eq!(content(&head, &tail, DEVICE_BYTES), store(true));
                head[place] = bad;
                assert_eq!(content(&head, &tail, DEVICE_BYTES), store(false));
                // As RAID and partition tables do.
                head[1].as_mut().unwrap()[0] = 1;
                assert_eq!(content(&head, &tail, DEVICE_BYTES), DeviceContent::Foreign);
            }
        }
        let (mut head, mut tail) = blank();
        (head[0], tail[9]) = (with(&superblock), Some(vec![1; 4096]));
        assert_eq!(content(&head, &tail, DEVICE_BYTES), DeviceContent::Foreign);
        let grown = content(&head, &tail, 2 * DEVICE_BYTES);
        assert_eq!(grown, DeviceContent::Store { superblock, is_whole: false });
        let (mut head, tail) = blank();
        (head[0], head[255]) = (broken(), broken());
        assert_eq!(content(&head, &tail, DEVICE_BYTES), DeviceContent::Damaged);
    }

    #[test]
    fn what_blkid_says() {
        let found = |text: &str| Some(text.to_owned());
        assert_eq!(
            described("DEVNAME=/dev/a\nLABEL=home\nUUID=1-2\nTYPE=ext4\n"),
            found("ext4 'home' (UUID 1-2)")
        );
        assert_eq!(described("DEVNAME=/dev/a\nPTTYPE=gpt\n"), found("a partition table (gpt)"));
        assert_eq!(
            described("PART_ENTRY_TYPE=0x83\nPART_ENTRY_SCHEME=dos\n"),
            None,
            "of the table that the partition is in"
        );
    }
}
