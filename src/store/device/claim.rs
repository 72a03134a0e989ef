//! One owner of a block device: the claim that open(2) with O_EXCL makes. It belongs to the open file that transfers use, so
//! that a request which a killed process left in the kernel keeps it until the kernel is done; mounting, swap, RAID and
//! device mapper make the same claim.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::super::geometry::sysfs_directory;
use crate::error::OpenError;
use crate::format::header::Owner;
use crate::lock::wait_for_owner;

/// Opens the device for transfers, and for nobody else. At once refused if a live kvring, or something that is no kvring,
/// has it; what a dead one left in the kernel is waited for.
pub(super) fn claim(
    path: &Path,
    device_number: u64,
    owner: impl Fn() -> Option<Owner>,
) -> Result<File, OpenError> {
    let mut user = None;
    let attempt = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_EXCL | libc::O_DIRECT);
        match options.open(path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                user = user_of(device_number);
                if user.is_some() { Err(error) } else { Ok(None) }
            }
            Err(error) => Err(error),
        }
    };
    wait_for_owner(attempt, owner).map_err(|refusal| match (user, refusal) {
        (Some(user), _) => OpenError::Claimed { path: path.to_owned(), user },
        (None, refusal) => refusal.error(path, OpenError::io("open", path)),
    })
}

/// What has the device, or a part of it, or the disk that it is a part of: as far as this process can see.
fn user_of(device_number: u64) -> Option<String> {
    let numbers = family(device_number);
    let is_ours = |path: &str| fs::metadata(path).is_ok_and(|it| numbers.contains(&it.rdev()));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in mounts.lines() {
        // proc(5): the device's number is field 3, the mount point field 5; behind " - " follow type and source.
        let fields: Vec<&str> = line.split(' ').collect();
        let source = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').nth(1));
        let number = fields.get(2).and_then(|text| parsed(text));
        if number.is_some_and(|number| numbers.contains(&number)) || source.is_some_and(is_ours) {
            let mount_point = fields.get(4).copied().unwrap_or("an unknown place");
            return Some(format!("a file system mounted at {mount_point}"));
        }
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().filter_map(|line| line.split_whitespace().next()).any(is_ours) {
        return Some("swap".into());
    }
    let holder = numbers.iter().find_map(|number| {
        let holders = format!("{}/holders", sysfs_directory(*number));
        fs::read_dir(holders).ok()?.flatten().next()
    })?;
    Some(format!("{}, which is built on it", holder.file_name().to_string_lossy()))
}

/// Numbers of the device, its partitions, and its disk if it is a partition.
fn family(device_number: u64) -> Vec<u64> {
    let directory = sysfs_directory(device_number);
    let number = |directory: &Path| parsed(fs::read_to_string(directory.join("dev")).ok()?.trim());
    let mut numbers = vec![device_number];
    for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists() {
            numbers.extend(number(&entry.path()));
        }
    }
    if Path::new(&directory).join("partition").exists() {
        numbers.extend(number(&Path::new(&directory).join("..")));
    }
    numbers
}

/// The number of a device out of "major:minor".
fn parsed(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}
