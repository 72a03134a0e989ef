//! One preallocated data file: how it is made, opened and locked. A part of a block device is one as well, of a length that
//! does not change.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use super::Geometry;
use super::device::Device;
use crate::config::BLOCK_BYTES;
use crate::error::OpenError;
use crate::fork::{GivenUpInForks, close_file_behind};
use crate::index::table::INDEX_NAME;
use crate::lock::{LockRefusal, Owner, describe_holder, lock_exclusively};

/// More than any capacity makes; a file with a higher number is nobody's.
const MAX_DATA_FILES: u32 = 1 << 20;

/// A file that exists for a moment while a store is opened.
pub(super) const PROBE_NAME: &str = "geometry-probe.kvring";

/// An open data file that is nobody else's.
#[derive(Debug)]
pub(crate) struct DataFile {
    home: Home,
    geometry: Geometry,
    /// Where in what `descriptor` names it begins.
    offset: u64,
}

#[derive(Debug)]
enum Home {
    File { _given_up_in_forks: GivenUpInForks, file: File },
    Device(Arc<Device>),
}

/// Name of data file `number` inside the store's directory.
pub(crate) fn data_file_name(number: u32) -> String {
    format!("data-{number:05}.kvring")
}

/// Number of the data file called `name`, if it is one.
pub(crate) fn data_file_number(name: &str) -> Option<u32> {
    let number = name.strip_prefix("data-")?.strip_suffix(".kvring")?.parse().ok()?;
    (number < MAX_DATA_FILES && data_file_name(number) == name).then_some(number)
}

impl DataFile {
    /// Opens `path`, making it if `create`, with O_DIRECT where the file system can, and locks it.
    pub(crate) fn open(
        path: &Path,
        create: bool,
        owner: impl Fn() -> Option<Owner>,
    ) -> Result<Self, OpenError> {
        let io_error =
            |action| move |source| OpenError::Io { action, path: path.to_owned(), source };
        let (file, geometry) = open_with_best_geometry(path, create).map_err(io_error("open"))?;
        let given_up_in_forks = GivenUpInForks::new(file.as_raw_fd());
        match lock_exclusively(&file, owner) {
            Ok(()) => Ok(Self {
                home: Home::File { _given_up_in_forks: given_up_in_forks, file },
                geometry,
                offset: 0,
            }),
            Err(LockRefusal::Io(error)) => Err(io_error("lock")(error)),
            Err(LockRefusal::Held(owner)) => {
                let holder = describe_holder(owner.as_ref());
                let store = path.parent().unwrap_or(path);
                Err(OpenError::InUse { path: store.to_owned(), holder })
            }
        }
    }

    /// The part of a claimed device that begins at `offset`.
    pub(crate) fn of_device(device: &Arc<Device>, offset: u64) -> Self {
        Self { geometry: device.geometry(), home: Home::Device(Arc::clone(device)), offset }
    }

    /// Reserves `size_bytes` on the file system, so that no later write can run out of space.
    pub(crate) fn preallocate(&self, size_bytes: u64) -> io::Result<()> {
        let file = self.growing_file()?;
        match fallocate(file, FallocateFlags::empty(), 0, size_bytes as i64) {
            Err(Errno::EOPNOTSUPP) => {
                log::warn!("the file system cannot preallocate: writes may find it full later");
                file.set_len(size_bytes)
            }
            other => Ok(other?),
        }
    }

    /// Gives back what lies behind `size_bytes`, durably: a later owner must not count on it.
    pub(crate) fn shorten(&self, size_bytes: u64) -> io::Result<()> {
        let file = self.growing_file()?;
        file.set_len(size_bytes)?;
        file.sync_all()
    }

    /// Whole blocks in it.
    pub(crate) fn blocks(&self) -> io::Result<u32> {
        let length = self.growing_file()?.metadata()?.len();
        Ok(u32::try_from(length / BLOCK_BYTES).unwrap_or(u32::MAX))
    }

    /// The length of a part of a device never changes.
    fn growing_file(&self) -> io::Result<&File> {
        match &self.home {
            Home::File { file, .. } => Ok(file),
            Home::Device(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Gives up the file, and the lock with it. Nothing may be under way on it.
    pub(crate) fn give_up(&self) -> io::Result<()> {
        match &self.home {
            Home::File { file, .. } => {
                file.unlock()?;
                close_file_behind(file.as_raw_fd());
            }
            Home::Device(device) => device.give_up(),
        }
        Ok(())
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        match &self.home {
            Home::File { file, .. } => file.sync_data(),
            Home::Device(device) => device.sync(),
        }
    }

    /// Descriptor for transfers, and where the block with this number begins.
    pub(crate) fn locate(&self, block: u32) -> (RawFd, u64) {
        let descriptor = match &self.home {
            Home::File { file, .. } => file.as_raw_fd(),
            Home::Device(device) => device.descriptor(),
        };
        (descriptor, self.offset + u64::from(block) * BLOCK_BYTES)
    }
}

/// Which data files there are in `directory`, by number.
pub(crate) fn list_data_files(directory: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut found = Vec::new();
    for entry in directory.read_dir()? {
        let entry = entry?;
        if let Some(number) = entry.file_name().to_str().and_then(data_file_number) {
            found.push((number, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// What transfers on the file at `path` must look like; it is neither made nor locked.
pub(crate) fn geometry_of(path: &Path) -> io::Result<Geometry> {
    Ok(open_with_best_geometry(path, false)?.1)
}

/// What transfers on new files in `directory` must look like.
pub(super) fn probe_geometry(directory: &Path) -> Result<Geometry, OpenError> {
    let path = directory.join(PROBE_NAME);
    let file = DataFile::open(&path, true, || None);
    let _ = fs::remove_file(&path);
    file.map(|file| file.geometry()).or_else(|error| {
        // A full file system may have no room for one more file; the index is there.
        geometry_of(&directory.join(INDEX_NAME)).map_err(|_| error)
    })
}

fn open_with_best_geometry(path: &Path, create: bool) -> io::Result<(File, Geometry)> {
    let open = |flags| {
        OpenOptions::new().read(true).write(true).create(create).custom_flags(flags).open(path)
    };
    let buffered = || {
        let file = open(0)?;
        let geometry = Geometry::buffered(&file)?;
        Ok((file, geometry))
    };
    match open(libc::O_DIRECT) {
        Ok(file) => match Geometry::direct(&file)? {
            Some(geometry) => Ok((file, geometry)),
            None => buffered(),
        },
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => buffered(),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for number in [0, 7, 99_999, 100_000] {
            assert_eq!(data_file_number(&data_file_name(number)), Some(number));
        }
        for other in [
            "data-1.kvring",
            "data-00001",
            "index.kvring",
            "data--0001.kvring",
            "data-00001.kvring.bak",
            "data-4294967295.kvring",
        ] {
            assert_eq!(data_file_number(other), None, "{other}");
        }
    }
}
