//! Finding the index file of a store, opening and locking it, and making one where there is none.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{IndexFile, IndexParent};
use crate::base::sync::atomic::AtomicBool;
use crate::base::system::fork::ClosedOnFork;
use crate::directory::Directory;
use crate::error::OpenError;
use crate::format::header::Owner;
use crate::format::names::{INDEX_NAME, device_index_name};
use crate::format::superblock::Superblock;
use crate::index::file::index_bytes::{IndexBytes, read_owner};
use crate::lock::{holder_of, lock_for};
use crate::store::device::BlockDevice;

#[derive(Clone, Debug)]
pub(crate) enum IndexPlace {
    /// A file in the store's directory.
    Directory(Arc<Directory>),
    /// The part of this device that is reserved for it.
    Device(Arc<BlockDevice>),
    /// A file in a directory, for the store on this device.
    Beside(PathBuf, Arc<BlockDevice>),
}

impl IndexPlace {
    /// Whether this open has formatted the device of the store.
    pub(crate) fn is_new(&self) -> bool {
        match self {
            Self::Directory(_) => false,
            Self::Device(device) | Self::Beside(_, device) => device.is_new(),
        }
    }
}

/// Who has, or had, the store open that this superblock describes.
pub(crate) fn owner_on_device(
    device: &File,
    superblock: &Superblock,
    index_path: Option<&Path>,
) -> Option<Owner> {
    match index_path {
        Some(directory) => {
            let directory = Directory::open(directory).ok()?;
            read_owner(&directory.open_to_read(&device_index_name(superblock.store_id)).ok()?, 0)
        }
        None => read_owner(device, superblock.index_offset),
    }
}

/// Who has, or had, the store in `directory` open.
pub(crate) fn owner_in_directory(directory: &Directory) -> Option<Owner> {
    match directory.open_to_read(INDEX_NAME) {
        Ok(index) => read_owner(&index, 0),
        // Somebody has removed it; the lock is there all the same.
        Err(_) => holder_of(&directory.file),
    }
}

fn file_name(device: Option<&BlockDevice>) -> String {
    let of_device = |device: &BlockDevice| device_index_name(device.superblock().store_id);
    device.map_or_else(|| INDEX_NAME.to_owned(), of_device)
}

impl IndexFile {
    /// Opens and locks what is there, and changes nothing. None where there is nothing yet.
    pub(crate) fn find(place: &IndexPlace) -> Result<Option<Self>, OpenError> {
        let open = Directory::open_file;
        let found = match place {
            place if place.is_new() => return Ok(None),
            IndexPlace::Directory(directory) => Self::in_directory(directory, None, "open", open),
            IndexPlace::Device(device) => Self::of_device(device),
            IndexPlace::Beside(path, device) => Directory::open(path)
                .map_err(OpenError::io("open the directory", path))
                .and_then(|directory| {
                    let directory = Arc::new(directory.with_files(&device.files));
                    Self::in_directory(&directory, Some(device.as_ref()), "open", open)
                }),
        };
        match found {
            Err(OpenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    /// Makes and locks one where [`IndexFile::find`] found none. Also says what was missing, if the store is not new.
    pub(crate) fn make(place: &IndexPlace) -> Result<(Self, Option<String>), OpenError> {
        let create = Directory::create;
        match place {
            IndexPlace::Directory(directory) => {
                Ok((Self::in_directory(directory, None, "make", create)?, None))
            }
            IndexPlace::Device(device) => Ok((Self::of_device(device)?, None)),
            IndexPlace::Beside(path, device) => {
                let directory = Directory::open_or_make(path)
                    .map_err(OpenError::io("make the directory", path))?;
                let directory = Arc::new(directory.with_files(&device.files));
                let expected = directory.path().join(file_name(Some(device)));
                if !device.is_new() {
                    // The file may come back, or be in another directory: from here on it is of another store.
                    device.renew_id().map_err(OpenError::io("write", &device.path))?;
                }
                let made = Self::in_directory(&directory, Some(device), "make", create)?;
                let missing = format!("{} was missing", expected.display());
                Ok((made, (!device.is_new()).then_some(missing)))
            }
        }
    }

    fn of_device(device: &Arc<BlockDevice>) -> Result<Self, OpenError> {
        let file = device.open_beside().map_err(OpenError::io("open", &device.path))?;
        Ok(Self {
            closed_on_fork: ClosedOnFork::new(file.as_raw_fd()),
            bytes: IndexBytes::of_device(file, &device.path, &device.superblock()),
            parent: IndexParent::Device(Arc::clone(device)),
            files: Arc::clone(&device.files),
            cannot_reserve: AtomicBool::new(false),
        })
    }

    /// The file of the store in the directory, or on `device`, as `open` opens or makes it; locked.
    fn in_directory(
        directory: &Arc<Directory>,
        device: Option<&BlockDevice>,
        action: &'static str,
        open: impl FnOnce(&Directory, &str) -> io::Result<File>,
    ) -> Result<Self, OpenError> {
        let name = file_name(device);
        let file = open(directory, &name).map_err(directory.error(action, &name))?;
        let closed_on_fork = ClosedOnFork::new(file.as_raw_fd());
        let store = device.map_or_else(|| directory.path(), |device| device.path.as_path());
        lock_for(&file, store, || read_owner(&file, 0), directory.error("lock", &name))?;
        let store_id = device.map(|device| device.superblock().store_id);
        Ok(Self {
            closed_on_fork,
            bytes: IndexBytes::of_file(file, directory.path().join(&name), store_id),
            parent: IndexParent::Directory(Arc::clone(directory), name),
            files: Arc::clone(&directory.files),
            cannot_reserve: AtomicBool::new(false),
        })
    }
}
