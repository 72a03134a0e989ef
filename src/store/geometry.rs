//! What a target asks of transfers, and what the device below it is made of: read when it is opened.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::drives::queue_depth;
use crate::base::block::BLOCK_BYTES;
use crate::base::system::{block_device, files};
use crate::directory::set_flags;

/// Alignment taken where the kernel does not tell: no device in use asks for more.
const DEFAULT_ALIGNMENT_BYTES: u64 = 4096;

/// What the target asks of a transfer, and what it would like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Geometry {
    /// Whether transfers bypass the page cache (O_DIRECT).
    pub direct: bool,
    /// Alignment of memory for transfers without a copy.
    pub memory_alignment_bytes: usize,
    /// Alignment of offsets and lengths; those of kvring are multiples of 4096.
    pub offset_alignment_bytes: u64,
    /// Smallest unit that the block device addresses.
    pub logical_block_bytes: Option<u64>,
    /// Smallest unit that it writes without read-modify-write.
    pub physical_block_bytes: Option<u64>,
    /// Preferred length of transfers.
    pub optimal_io_bytes: Option<u64>,
    /// Smallest unit that it discards.
    pub discard_granularity_bytes: Option<u64>,
    /// Write streams of the block device (NVMe FDP); none before Linux 6.16.
    pub write_streams: Option<u8>,
    /// Reclaim unit of these.
    pub write_stream_bytes: Option<u64>,
    /// Transfers that the drives below take at a time.
    pub queue_depth: usize,
}

impl Geometry {
    /// Of transfers on `file`, past the page cache if its file system can, and sets the status flags that make them so.
    pub(super) fn best(file: &File) -> io::Result<Self> {
        match set_flags(file.as_fd(), libc::O_DIRECT) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                return Self::new(file, false, 1, 1);
            }
            Err(error) => return Err(error),
        }
        match Self::direct(file)? {
            Some(geometry) => Ok(geometry),
            None => {
                set_flags(file.as_fd(), 0)?;
                Self::new(file, false, 1, 1)
            }
        }
    }

    /// Of direct transfers of whole blocks on `file`; `None` if it has no such transfers.
    pub(super) fn direct(file: &File) -> io::Result<Option<Self>> {
        let (memory_bytes, offset_bytes) = direct_alignment(file);
        let fits = offset_bytes != 0 && BLOCK_BYTES.is_multiple_of(offset_bytes);
        fits.then(|| Self::new(file, true, memory_bytes.max(1) as usize, offset_bytes)).transpose()
    }

    fn new(
        file: &File,
        direct: bool,
        memory_alignment_bytes: usize,
        offset_alignment_bytes: u64,
    ) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let is_device = metadata.file_type().is_block_device();
        let number = if is_device { metadata.rdev() } else { metadata.dev() };
        let directory = PathBuf::from(sysfs_directory(number));
        let queue = |name| queue_attribute(&directory, name)?.parse().ok();
        let ask = |request, name| match is_device {
            true => block_device::ask(file, request).map(Some),
            false => Ok(queue(name)),
        };
        let optimal =
            ask(block_device::OPTIMAL_IO_BYTES, "optimal_io_size")?.filter(|bytes| *bytes > 0);
        // Never found out by trying: older kernels ignore the stream of a write.
        let streams = is_device.then(|| write_streams(&directory)).flatten();
        Ok(Self {
            direct,
            memory_alignment_bytes,
            offset_alignment_bytes,
            logical_block_bytes: ask(block_device::LOGICAL_BLOCK_BYTES, "logical_block_size")?,
            physical_block_bytes: ask(block_device::PHYSICAL_BLOCK_BYTES, "physical_block_size")?,
            optimal_io_bytes: optimal.or((!is_device).then(|| metadata.blksize())),
            discard_granularity_bytes: queue("discard_max_bytes")
                .filter(|most| *most > 0)
                .and_then(|_| queue("discard_granularity")),
            write_streams: streams.map(|count| count.min(u8::MAX.into()) as u8),
            write_stream_bytes: streams
                .filter(|count| *count > 0)
                .and_then(|_| queue("write_stream_granularity")),
            queue_depth: queue_depth(&directory),
        })
    }
}

/// An attribute of the request queue of the block device that sysfs describes there; partitions have that of their disk.
fn queue_attribute(directory: &Path, name: &str) -> Option<String> {
    let read = |queue| fs::read_to_string(directory.join(queue).join(name)).ok();
    ["queue", "../queue"].into_iter().find_map(read).map(|text| text.trim().to_owned())
}

/// How many write streams the block device takes that sysfs describes there. To a partition the kernel gives none of those of its disk.
fn write_streams(directory: &Path) -> Option<u64> {
    fs::read_to_string(directory.join("queue/max_write_streams")).ok()?.trim().parse().ok()
}

/// Whether the block device that sysfs describes there has zones that are written in order only.
pub(super) fn is_host_managed(directory: &Path) -> bool {
    queue_attribute(directory, "zoned").is_some_and(|model| model == "host-managed")
}

/// Where sysfs describes the block device with this number.
pub(super) fn sysfs_directory(device_number: u64) -> String {
    format!("/sys/dev/block/{}:{}", libc::major(device_number), libc::minor(device_number))
}

/// Alignment of memory and of offsets for direct transfers on `file`; 0 if it has none.
fn direct_alignment(file: &File) -> (u64, u64) {
    let unknown = block_device::ask(file, block_device::LOGICAL_BLOCK_BYTES)
        .unwrap_or(DEFAULT_ALIGNMENT_BYTES);
    files::direct_alignment(file).unwrap_or((unknown, unknown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_has_none_of_the_write_streams_of_its_disk() {
        let disk = tempfile::tempdir().unwrap();
        let partition = disk.path().join("partition");
        fs::create_dir_all(disk.path().join("queue")).unwrap();
        fs::create_dir(&partition).unwrap();
        fs::write(disk.path().join("queue/max_write_streams"), "4\n").unwrap();
        assert_eq!(write_streams(disk.path()), Some(4));
        assert_eq!(queue_attribute(&partition, "max_write_streams").as_deref(), Some("4"));
        assert_eq!(write_streams(&partition), None);
    }

    #[test]
    fn zones_are_those_of_the_disk() {
        let sysfs = tempfile::tempdir().unwrap();
        for (disk, model, expected) in [
            ("sda", "host-managed\n", true),
            ("sdb", "host-aware\n", false),
            ("sdc", "none\n", false),
            ("sdd", "", false),
        ] {
            let disk = sysfs.path().join(disk);
            let partition = disk.join("partition-1");
            [&disk.join("queue"), &partition]
                .into_iter()
                .for_each(|path| fs::create_dir_all(path).unwrap());
            fs::write(disk.join("queue/zoned"), model).unwrap();
            assert_eq!([disk, partition].map(|path| is_host_managed(&path)), [expected; 2]);
        }
        assert!(!is_host_managed(Path::new("/nowhere")));
    }
}
