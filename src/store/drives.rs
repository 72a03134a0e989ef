//! The drives below a block device, as sysfs tells of them, and how many transfers they take at a time.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Transfers that one drive is given at a time: small chunks need so many to hide its latency, more gain nothing.
pub(crate) const DRIVE_DEPTH: usize = 128;

/// The same of a rotating disk, which reorders no more.
const ROTATING_DEPTH: usize = 32;

/// Devices below devices are followed as deep as this.
const MAX_LEVELS: u32 = 8;

/// Transfers that all drives below the device take at a time, whose directory in sysfs this is; that of one drive where nothing is
/// known.
pub(super) fn queue_depth(device: &Path) -> usize {
    let mut drives = HashMap::new();
    add_drives(device, &mut drives, MAX_LEVELS);
    let is_rotating = !drives.is_empty() && drives.values().all(|drive| drive.rotates);
    let sum = drives.values().map(|drive| drive.depth).sum();
    if is_rotating { sum } else { DRIVE_DEPTH.max(sum) }
}

struct Drive {
    rotates: bool,
    depth: usize,
}

/// Adds the drives that a device is made of, each once; the disk of a partition is its drive.
fn add_drives(device: &Path, drives: &mut HashMap<PathBuf, Drive>, levels: u32) {
    let Ok(mut device) = device.canonicalize() else { return };
    if device.join("partition").exists() {
        device.pop();
    }
    let text = |name: &str| fs::read_to_string(device.join(name)).unwrap_or_default();
    let slaves: Vec<_> =
        fs::read_dir(device.join("slaves")).into_iter().flatten().flatten().collect();
    // The slaves of a multipath device are several ways to one drive.
    if slaves.is_empty() || levels == 0 || text("dm/uuid").starts_with("mpath-") {
        let requests = text("queue/nr_requests").trim().parse().unwrap_or(DRIVE_DEPTH);
        let rotates = text("queue/rotational").trim() == "1" && is_ata_disk(&text);
        let most = if rotates { ROTATING_DEPTH } else { DRIVE_DEPTH };
        drives.insert(device, Drive { rotates, depth: requests.clamp(1, most) });
        return;
    }
    slaves.iter().for_each(|slave| add_drives(&slave.path(), drives, levels - 1));
}

/// Virtual disks and those of RAID controllers often call themselves rotating and are not: only an ATA disk is believed.
fn is_ata_disk(text: &impl Fn(&str) -> String) -> bool {
    text("device/vendor").trim() == "ATA" && !text("device/model").contains("HARDDISK")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory that looks like a part of sysfs.
    struct Sysfs(tempfile::TempDir);

    impl Sysfs {
        fn device(&self, name: &str, files: &[(&str, &str)], slaves: &[&str]) -> PathBuf {
            let device = self.0.path().join(name);
            for (file, content) in files {
                let file = device.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, content).unwrap();
            }
            fs::create_dir_all(device.join("slaves")).unwrap();
            for slave in slaves {
                let name = slave.replace('/', "-");
                symlink(self.0.path().join(slave), device.join("slaves").join(name)).unwrap();
            }
            device
        }
    }

    #[test]
    fn drives_are_counted_once_and_believed_with_care() {
        let sysfs = Sysfs(tempfile::tempdir().unwrap());
        let rotating = ("queue/rotational", "1\n");
        let requests = |count| ("queue/nr_requests", count);
        let nvme = sysfs.device("nvme0n1", &[requests("1023\n")], &[]);
        sysfs.device("nvme1n1", &[requests("1023\n")], &[]);
        let sata = sysfs.device("sda", &[requests("64\n")], &[]);
        let ata = [rotating, ("device/vendor", "ATA     \n"), ("device/model", "ST8000\n")];
        let disk = sysfs.device("sdb", &ata, &[]);
        let virtual_disk = sysfs.device("vda", &[rotating, requests("256\n")], &[]);
        let part = sysfs.device("nvme0n1/nvme0n1p1", &[("partition", "1\n")], &[]);
        sysfs.device("nvme0n1/nvme0n1p2", &[("partition", "2\n")], &[]);
        let raid = sysfs.device("md0", &[], &["nvme0n1/nvme0n1p1", "nvme1n1"]);
        let crypt = sysfs.device("dm-0", &[("dm/uuid", "CRYPT-LUKS2\n")], &["md0"]);
        let volume = sysfs.device("dm-1", &[], &["nvme0n1/nvme0n1p1", "nvme0n1/nvme0n1p2"]);
        let ways = sysfs.device("dm-2", &[("dm/uuid", "mpath-1\n")], &["nvme0n1", "nvme1n1"]);
        let disks = sysfs.device("md1", &[], &["sdb"]);
        for (device, expected) in [
            (nvme, 128),
            (sata, 128),
            (disk, 32),
            (virtual_disk, 128),
            (part, 128),
            (raid, 256),
            (crypt, 256),
            (volume, 128),
            (ways, 128),
            (disks, 32),
            (PathBuf::from("/nowhere"), 128),
        ] {
            assert_eq!(queue_depth(&device), expected, "{}", device.display());
        }
    }
}
