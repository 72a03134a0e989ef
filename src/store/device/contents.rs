//! What is on a block device before kvring writes to it.

use std::process::Command;

use crate::block::BLOCK_BYTES;
use crate::format::superblock::{HEAD_BYTES, Superblock, SuperblockCopy, is_zero};

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
pub(super) type Blocks = Vec<Option<Vec<u8>>>;

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
    let intact = copies.into_iter().find_map(SuperblockCopy::intact);
    let newer = copies.iter().find_map(|copy| match copy {
        SuperblockCopy::Newer(version) => Some(*version),
        _ => None,
    });
    if let (None, Some(version)) = (intact, newer) {
        return DeviceContent::Newer(version);
    }
    // Of a device that has got another length the tail is not where it was.
    let is_moved = intact.is_some_and(|superblock| superblock.device_bytes != device_bytes);
    let tail = if is_moved { &[] } else { tail };
    let written = |block: &Option<Vec<u8>>| block.as_deref().is_some_and(|block| !is_zero(block));
    if copies.contains(&SuperblockCopy::Foreign) || between.iter().chain(tail).any(written) {
        return DeviceContent::Foreign;
    }
    match intact {
        Some(superblock) => {
            let is_whole = copies.iter().all(|copy| *copy == SuperblockCopy::Intact(superblock));
            DeviceContent::Store { superblock, is_whole }
        }
        None if copies.contains(&SuperblockCopy::Damaged) => DeviceContent::Damaged,
        None if head.iter().chain(tail).any(Option::is_none) => DeviceContent::Unreadable,
        None => DeviceContent::Blank,
    }
}

/// What blkid(8) finds: a file system, RAID, partition table or the like, in words. Its low-level probe looks at the device and at
/// no cache. An error says why it cannot be asked.
pub(super) fn signature(path: &std::path::Path) -> Result<Option<String>, String> {
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
