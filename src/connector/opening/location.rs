//! Where a store lives: in a directory, or on a block device, which is formatted here.

use std::io::ErrorKind::{NotADirectory, NotFound};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use bytesize::ByteSize;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat};

use crate::base::mounts::Mount;
use crate::config::{Config, Layout};
use crate::directory::Directory;
use crate::engine::Waker;
use crate::error::OpenError;
use crate::index::{IndexPlace, LockedIndex, UnreadIndex, owner_in_directory, owner_on_device};
use crate::space_account::SpaceAccount;
use crate::store::Store;
use crate::store::chunk_files::FileStore;
use crate::store::data_files::{ExtentStore, FoundFile, find_files};
use crate::store::device::{BlockDevice, is_device};

pub(crate) enum Location {
    Directory(Arc<Directory>),
    Device(Arc<BlockDevice>),
}

/// A directory or device that was looked at and locked, and is not changed yet.
pub(crate) struct LockedStore {
    pub(crate) location: Location,
    pub(crate) index: LockedIndex,
    /// Data files; `None` on a device and in layout `files`.
    pub(crate) files: Option<Vec<FoundFile>>,
}

impl LockedStore {
    /// Looks at what `config` names, and locks it. Nothing is changed. `None` for a directory that can be made.
    pub(super) fn look(config: &Config, now_ms: u64) -> Result<Option<Self>, OpenError> {
        if is_device(config.path())? {
            return Self::on_device(config, now_ms).map(Some);
        }
        config.check_for_directory()?;
        match Directory::open(config.path()) {
            Ok(directory) => Self::in_directory(directory, config).map(Some),
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => {
                check_can_be_made(config.path())?;
                Ok(None)
            }
            Err(error) => Err(OpenError::io("open the directory", config.path())(error)),
        }
    }

    fn on_device(config: &Config, now_ms: u64) -> Result<Self, OpenError> {
        config.check_for_device()?;
        let index_path = config.index_path.as_deref();
        let owner = |device: &_, superblock: &_| owner_on_device(device, superblock, index_path);
        let device = Arc::new(BlockDevice::look(config, now_ms, owner, true)?);
        let place = match index_path {
            None => IndexPlace::Device(Arc::clone(&device)),
            Some(path) => IndexPlace::Beside(path.to_owned(), Arc::clone(&device)),
        };
        let index = LockedIndex::look(place)?;
        if let (Some(path), false) = (index_path, index.is_there()) {
            check_can_be_made(path)?;
        }
        Ok(Self { location: Location::Device(device), index, files: None })
    }

    fn in_directory(directory: Directory, config: &Config) -> Result<Self, OpenError> {
        let directory = Arc::new(directory.with_files(&config.files));
        directory.lock(|| owner_in_directory(&directory))?;
        let index = LockedIndex::look(IndexPlace::Directory(Arc::clone(&directory)))?;
        if !index.is_there() {
            check_can_be_made(config.path())?;
        }
        let files = match config.layout {
            Layout::Extents => Some(find_files(&directory, || index.owner())?),
            Layout::Files => {
                FileStore::look(&directory)?;
                None
            }
        };
        Ok(Self { location: Location::Directory(directory), index, files })
    }

    /// What the store may take: `wanted_bytes`, or all of the device.
    pub(super) fn capacity_bytes(&self, wanted_bytes: u64) -> u64 {
        match &self.location {
            Location::Device(device) if wanted_bytes == Config::WHOLE_DEVICE => device.size_bytes,
            _ => wanted_bytes,
        }
    }

    /// Makes the directory that is missing, or formats the device if it needs that.
    pub(crate) fn prepare(found: Option<Self>, config: &Config) -> Result<Self, OpenError> {
        let Some(found) = found else {
            let error = OpenError::io("make the directory", config.path());
            let directory = Directory::open_or_make(config.path()).map_err(error)?;
            return Self::in_directory(directory, config);
        };
        if let Location::Device(device) = &found.location {
            device.prepare(config.discard)?;
        }
        Ok(found)
    }
}

impl Location {
    /// The account of what the store takes. What is free on a device is nobody else's: it needs no floor.
    pub(crate) fn space(&self, config: &Config) -> SpaceAccount {
        let space = SpaceAccount::new(config.capacity_bytes());
        match self {
            Self::Directory(directory) => space.with_floor(directory, config.min_free_bytes),
            Self::Device(_) => space,
        }
    }

    /// Its file system and device, for the log.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Directory(directory) => Mount::of(directory.file.as_fd())
                .map_or_else(|_| "unknown file system".into(), |mount| mount.to_string()),
            Self::Device(device) => format!("block device of {}", ByteSize(device.size_bytes)),
        }
    }

    pub(crate) fn open_store(
        &self,
        config: &Config,
        files: Option<Vec<FoundFile>>,
        space: &Arc<SpaceAccount>,
        index: &UnreadIndex,
        wakers: &[Arc<Waker>],
    ) -> Result<Box<dyn Store>, OpenError> {
        let (space, progress) = (Arc::clone(space), index.sequencer());
        Ok(match (self, files) {
            (Self::Directory(directory), Some(files)) => {
                Box::new(ExtentStore::open(directory, files, space, || index.file_uses())?)
            }
            (Self::Directory(directory), None) => {
                // Its thread does nothing else.
                let are_cleared = Box::new(move || progress.wait_out(progress.ticket()));
                Box::new(FileStore::open(directory, space, wakers.to_vec(), are_cleared)?)
            }
            (Self::Device(device), _) => {
                let are_cleared = Box::new(move || progress.wait(progress.ticket(), None));
                Box::new(ExtentStore::on_device(device, space, config.discard, are_cleared))
            }
        })
    }
}

/// Checks that files can be made in the directory, or that it can be made itself.
fn check_can_be_made(directory: &Path) -> Result<(), OpenError> {
    let existing = directory
        .ancestors()
        .map(|above| if above.as_os_str().is_empty() { Path::new(".") } else { above })
        .find(|above| above.symlink_metadata().is_ok())
        .unwrap_or(Path::new("/"));
    if existing.metadata().is_ok_and(|found| !found.is_dir()) {
        let existing = existing.display();
        let reason =
            format!("{existing} is a file, not a directory; give a path below a directory");
        return Err(OpenError::unsuitable(directory, reason));
    }
    let needed = AccessFlags::W_OK | AccessFlags::X_OK;
    // Other errors speak of the call, which some containers deny, or are seen when it is made.
    if let Err(errno @ (Errno::EACCES | Errno::EROFS)) =
        faccessat(AT_FDCWD, existing, needed, AtFlags::AT_EACCESS)
    {
        return Err(OpenError::io("write to", existing)(errno.into()));
    }
    Ok(())
}

/// Erases the head and the tail of the block device at `path`, and all of it where it can be discarded and `discards`: the next
/// open formats it. `agree` gets what the device holds, while it is locked; nothing is written if it returns false.
/// Returns what it returned.
///
/// # Errors
/// `OpenError`: it is no block device, is in use, is read-only or too short, holds a store (which is never erased), cannot be
/// read or written, or holds something that is not at its ends.
pub fn format_device(
    path: &Path,
    discards: bool,
    agree: impl FnOnce(&str) -> bool,
) -> Result<bool, OpenError> {
    if !is_device(path)? {
        let reason = "it is no block device, and only those are formatted";
        return Err(OpenError::unsuitable(path, reason));
    }
    let config = Config::of_device(path);
    let owner = |file: &_, superblock: &_| owner_on_device(file, superblock, None);
    let device = BlockDevice::look(&config, 0, owner, false)?;
    let agreed = agree(device.holds());
    if agreed {
        device.erase(discards)?;
    }
    Ok(agreed)
}
