//! Finding the index file of a store, opening and locking it, and making one where there is none.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{IndexFile, Region};
use crate::directory::Directory;
use crate::error::OpenError;
use crate::fork::ClosedOnFork;
use crate::format::header::Owner;
use crate::format::names::{INDEX_NAME, device_index_name};
use crate::format::superblock::Superblock;
use crate::index::owner::read_owner;
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
    pub(in crate::index) fn is_new(&self) -> bool {
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
        Err(_) => holder_of(directory.file()),
    }
}

fn file_name(device: Option<&BlockDevice>) -> String {
    let of_device = |device: &BlockDevice| device_index_name(device.superblock().store_id);
    device.map_or_else(|| INDEX_NAME.to_owned(), of_device)
}

impl IndexFile {
    /// Opens and locks what is there, and changes nothing. None where there is nothing yet.
    pub(in crate::index) fn find(place: &IndexPlace) -> Result<Option<Self>, OpenError> {
        if place.is_new() {
            return Ok(None);
        }
        match place {
            IndexPlace::Directory(directory) => Self::find_file(directory, None),
            IndexPlace::Device(device) => Self::of_device(device).map(Some),
            IndexPlace::Beside(path, device) => {
                let directory = match Directory::open(path) {
                    Ok(directory) => Arc::new(directory.with_files(device.files())),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                    Err(error) => return Err(OpenError::io("open the directory", path)(error)),
                };
                Self::find_file(&directory, Some(device.as_ref()))
            }
        }
    }

    /// Makes and locks one where [`IndexFile::find`] found none.
    pub(in crate::index) fn make(place: &IndexPlace) -> Result<Self, OpenError> {
        match place {
            IndexPlace::Directory(directory) => Self::make_file(directory, None),
            IndexPlace::Device(device) => Self::of_device(device),
            IndexPlace::Beside(path, device) => Self::make_beside(path, device),
        }
    }

    fn of_device(device: &Arc<BlockDevice>) -> Result<Self, OpenError> {
        let file = device.open_beside().map_err(OpenError::io("open", device.path()))?;
        let superblock = device.superblock();
        Ok(Self {
            path: device.path().to_owned(),
            home: None,
            _closed_on_fork: ClosedOnFork::new(file.as_raw_fd()),
            file,
            offset: superblock.index_offset,
            files: Arc::clone(device.files()),
            region: Some(Region { device: Arc::clone(device), most_bytes: superblock.index_bytes }),
            cannot_reserve: AtomicBool::new(false),
            store_id: Some(superblock.store_id),
            missing: None,
        })
    }

    fn make_beside(path: &Path, device: &BlockDevice) -> Result<Self, OpenError> {
        let directory =
            Directory::open_or_make(path).map_err(OpenError::io("make the directory", path))?;
        let directory = Arc::new(directory.with_files(device.files()));
        let expected = directory.path_of(&file_name(Some(device)));
        if !device.is_new() {
            // The file may come back, or be in another directory: from here on it is of another store.
            device.renew_id().map_err(OpenError::io("write", device.path()))?;
        }
        let mut index_file = Self::make_file(&directory, Some(device))?;
        index_file.missing =
            (!device.is_new()).then(|| format!("{} was missing", expected.display()));
        Ok(index_file)
    }

    /// Of the store in the directory, or on `device`.
    fn find_file(
        directory: &Arc<Directory>,
        device: Option<&BlockDevice>,
    ) -> Result<Option<Self>, OpenError> {
        let name = file_name(device);
        match directory.open_file(&name) {
            Ok(file) => Self::of_file(file, directory, name, device).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(directory.error("open", &name)(error)),
        }
    }

    fn make_file(
        directory: &Arc<Directory>,
        device: Option<&BlockDevice>,
    ) -> Result<Self, OpenError> {
        let name = file_name(device);
        let file = directory.create(&name).map_err(directory.error("make", &name))?;
        Self::of_file(file, directory, name, device)
    }

    fn of_file(
        file: File,
        directory: &Arc<Directory>,
        name: String,
        device: Option<&BlockDevice>,
    ) -> Result<Self, OpenError> {
        let closed_on_fork = ClosedOnFork::new(file.as_raw_fd());
        let store = device.map_or_else(|| directory.path(), BlockDevice::path);
        lock_for(&file, store, || read_owner(&file, 0), directory.error("lock", &name))?;
        Ok(Self {
            path: directory.path_of(&name),
            home: Some((Arc::clone(directory), name)),
            _closed_on_fork: closed_on_fork,
            file,
            offset: 0,
            files: Arc::clone(directory.files()),
            region: None,
            cannot_reserve: AtomicBool::new(false),
            store_id: device.map(|device| device.superblock().store_id),
            missing: None,
        })
    }
}
