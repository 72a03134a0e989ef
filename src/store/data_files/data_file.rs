//! One preallocated data file: how it is made, opened and locked. A part of a block device is one as well, of a length that
//! does not change.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use crate::base::block::BLOCK_BYTES;
use crate::base::sync::atomic::AtomicBool;
use crate::base::system::fork::ClosedOnFork;
use crate::directory::Directory;
use crate::engine::FileOperations;
use crate::error::OpenError;
use crate::format::header::Owner;
use crate::format::names::{
    CHUNKS_NAME, INDEX_NAME, OWNER_SOCKET_NAME, PROBE_NAME, data_file_number,
};
use crate::lock::lock_for;
use crate::store::Geometry;
use crate::store::device::BlockDevice;

/// Data files by number.
pub(super) type DataFiles = BTreeMap<u32, Arc<DataFile>>;

/// An open data file that is nobody else's.
#[derive(Debug)]
pub(crate) struct DataFile {
    /// Parts of a device share one.
    pub(super) file: Arc<ClosedOnFork>,
    pub(super) files: Arc<dyn FileOperations>,
    pub(super) geometry: Geometry,
    /// Where in `file` it begins.
    offset: u64,
    /// A chunk was written there since the last flush began.
    pub(super) is_unsynced: AtomicBool,
}

impl DataFile {
    /// Locks a file that is open, and called `name`.
    pub(super) fn lock(
        directory: &Directory,
        name: &str,
        file: File,
        owner: impl Fn() -> Option<Owner>,
    ) -> Result<Self, OpenError> {
        let file = Arc::new(ClosedOnFork::new(file));
        lock_for(&file, directory.path(), owner, directory.error("lock", name))?;
        let geometry = Geometry::best(&file).map_err(directory.error("open", name))?;
        let files = Arc::clone(&directory.files);
        Ok(Self { file, files, geometry, offset: 0, is_unsynced: AtomicBool::new(false) })
    }

    /// The part of a claimed device that begins at `offset`.
    pub(crate) fn of_device(device: &BlockDevice, offset: u64) -> Self {
        let (file, files) = (Arc::clone(&device.file), Arc::clone(&device.files));
        let is_unsynced = AtomicBool::new(false);
        Self { file, files, geometry: device.geometry, offset, is_unsynced }
    }

    /// Reserves `size_bytes` on the file system, so that no later write can run out of space.
    pub(crate) fn preallocate(&self, size_bytes: u64) -> io::Result<()> {
        match self.files.preallocate(&self.file, 0..size_bytes, 0) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                log::warn!("the file system cannot preallocate: writes may find it full later");
                self.files.truncate(&self.file, size_bytes)
            }
            outcome => outcome,
        }
    }

    /// Gives back what lies behind `size_bytes`, durably: a later owner must not count on it.
    pub(crate) fn truncate(&self, size_bytes: u64) -> io::Result<()> {
        self.files.truncate(&self.file, size_bytes)?;
        self.files.sync_all(&self.file)
    }

    /// Descriptor for transfers, and where the block with this number begins.
    pub(crate) fn locate(&self, block: u32) -> (RawFd, u64) {
        (self.file.as_raw_fd(), self.offset + u64::from(block) * BLOCK_BYTES)
    }
}

/// Numbers of the data files in `directory`, in order.
pub(crate) fn list_data_files(directory: &Directory) -> io::Result<Vec<u32>> {
    let entries = directory.entries()?;
    let number = |name: &CStr| data_file_number(name.to_str().ok()?);
    let mut found: Vec<u32> = entries.iter().filter_map(|entry| number(&entry.name)).collect();
    found.sort_unstable();
    Ok(found)
}

/// Whether a name in the store's directory is one that stores give out.
fn is_own_name(name: &str) -> bool {
    [INDEX_NAME, CHUNKS_NAME, PROBE_NAME, OWNER_SOCKET_NAME].contains(&name)
        || data_file_number(name).is_some()
}

/// Takes the permissions of others from the directory of a store, if it is the store's alone.
pub(crate) fn make_home_private(directory: &Directory) -> Result<(), OpenError> {
    directory.make_private(is_own_name).map_err(directory.error("look into", ""))
}

pub(super) fn remove_file(directory: &Directory, name: &str) -> io::Result<()> {
    directory.remove(&CString::new(name)?)
}

/// What transfers on new files in `directory` must look like, and how many bytes the file system gives out at least for a
/// file with one byte: a block, or several; a block where it does not tell.
pub(crate) fn probe(directory: &Directory) -> Result<(Geometry, u64), OpenError> {
    // One that somebody was killed with.
    let _ = remove_file(directory, PROBE_NAME);
    let made = directory.create(PROBE_NAME).and_then(|file| {
        let preallocated = directory.files.preallocate(&file, 0..1, 0);
        let taken_bytes = preallocated.and_then(|()| Ok(file.metadata()?.blocks() * 512));
        Ok((Geometry::best(&file)?, taken_bytes.unwrap_or(0)))
    });
    let _ = remove_file(directory, PROBE_NAME);
    let found = made.or_else(|error| {
        // A full file system may have no room for one more file; the index is there.
        let index = directory.open_file(INDEX_NAME);
        index.and_then(|index| Ok((Geometry::best(&index)?, 0))).map_err(|_| error)
    });
    let (geometry, unit_bytes) = found.map_err(directory.error("make", PROBE_NAME))?;
    Ok((geometry, unit_bytes.max(BLOCK_BYTES).next_multiple_of(BLOCK_BYTES)))
}

/// Warns where transfers are not direct.
pub(crate) fn warn_if_buffered(geometry: Geometry, directory: &Directory) {
    if !geometry.direct {
        let path = directory.path().display();
        log::warn!("{path} has no O_DIRECT: transfers go through the page cache");
    }
}
