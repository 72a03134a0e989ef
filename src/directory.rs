//! A directory that is held open. Everything in it goes by its descriptor: its path is for messages, and may lead elsewhere
//! by now.
//!
//! A file that is made did not exist before, and is readable by its owner alone. A file that exists is opened without
//! following a link and without waiting for anybody, and is refused unless it is a regular one of this process's user. One that
//! is to be written must have no second name.

mod opened_file;

use std::ffi::{CStr, CString};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, fchmodat, fstat, fstatat, mkdirat, stat};
use nix::sys::statfs::{FsType, fstatfs};
use nix::sys::statvfs::{Statvfs, fstatvfs};
use nix::unistd::Uid;

use opened_file::{OTHERS, check_one_name, check_regular, directory_refusal, is_regular};
pub(crate) use opened_file::{check_opened, make_private, refusal_of, set_flags};

use crate::base::system::fork::ClosedOnFork;
use crate::engine::{FileOperations, SystemFiles};
use crate::error::OpenError;
use crate::format::header::Owner;
use crate::lock::{LockRefusal, lock_exclusively};

const DIRECTORY_MODE: libc::mode_t = 0o700;

#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) file: ClosedOnFork,
    pub(crate) files: Arc<dyn FileOperations>,
    path: PathBuf,
    /// The same wherever the process works.
    full_path: PathBuf,
}

pub(crate) struct DirectoryEntry {
    pub(crate) name: CString,
    pub(crate) is_file: bool,
}

impl Directory {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = libc::O_DIRECTORY | libc::O_NONBLOCK;
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        Ok(Self::of(file, path.to_owned()))
    }

    /// The same, making it and those above it if they are not there.
    pub(crate) fn open_or_make(path: &Path) -> io::Result<Self> {
        match Self::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        above.map_or(Ok(()), fs::create_dir_all)?;
        match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
            // A umask may have taken bits of the owner, too. Some file systems have no permissions: what was made is used.
            Ok(()) => drop(fs::set_permissions(path, Permissions::from_mode(DIRECTORY_MODE))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        Self::open(path)
    }

    /// Opens the directory `name` in it, making it if it is not there; says whether it was made.
    pub(crate) fn open_or_make_in(&self, name: &str) -> io::Result<(Self, bool)> {
        let mode = Mode::from_bits_truncate(DIRECTORY_MODE);
        let made = match mkdirat(&self.file, name, mode) {
            Ok(()) => {
                let _ = fchmodat(&self.file, name, mode, FchmodatFlags::FollowSymlink);
                true
            }
            Err(Errno::EEXIST) => false,
            Err(errno) => return Err(errno.into()),
        };
        let file = self.open_directory_in(name)?;
        let directory = Self::of(file.into(), self.path.join(name));
        Ok((directory.with_files(&self.files), made))
    }

    /// Whether what is called `name` in it, if there is anything, is a directory itself.
    ///
    /// # Errors
    /// It is not, or cannot be opened.
    pub(crate) fn check_directory(&self, name: &str) -> io::Result<()> {
        match self.open_directory_in(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn open_directory_in(&self, name: &str) -> io::Result<OwnedFd> {
        let opened = self.open_at(name, OFlag::O_RDONLY | OFlag::O_DIRECTORY);
        opened.map_err(|error| directory_refusal(self.file.as_fd(), name, error))
    }

    fn of(file: File, path: PathBuf) -> Self {
        let full_path = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
        Self { file: ClosedOnFork::new(file), files: Arc::new(SystemFiles), path, full_path }
    }

    /// The same with calls on its files as `files` does them.
    pub(crate) fn with_files(self, files: &Arc<dyn FileOperations>) -> Self {
        Self { files: Arc::clone(files), ..self }
    }

    fn open_at(&self, name: &str, flags: OFlag) -> io::Result<OwnedFd> {
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        self.files.open(&self.file, &CString::new(name)?, flags.bits())
    }

    /// Why its path does not lead to it, if so.
    pub(crate) fn missed(&self) -> Option<String> {
        let own = fstat(&self.file).ok()?;
        if own.st_nlink == 0 {
            return Some("its directory was removed".into());
        }
        match stat(&self.full_path) {
            Ok(found) if is_same(&found, &own) => None,
            Ok(_) => Some(
                "its path leads to another directory: its own was renamed or is covered by a mount"
                    .into(),
            ),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {
                Some("its path leads nowhere: its directory was renamed".into())
            }
            // That says nothing.
            Err(_) => None,
        }
    }

    /// Why `name` in it does not lead to the open file `own`, if so.
    pub(crate) fn missed_in(&self, name: &str, own: BorrowedFd<'_>) -> Option<String> {
        let own = fstat(own).ok()?;
        match fstatat(&self.file, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) if is_same(&found, &own) && own.st_nlink > 0 => None,
            Ok(_) => Some(format!("its {name} was replaced by another one")),
            Err(Errno::ENOENT) => Some(format!("its {name} was removed")),
            Err(_) => None,
        }
    }

    /// As it was named. For messages alone.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The error of an open that could not do `action` to what is called `name`.
    pub(crate) fn error(
        &self,
        action: &'static str,
        name: &str,
    ) -> impl FnOnce(io::Error) -> OpenError + use<> {
        // Not with a slash at its end where it is the directory itself.
        match name {
            "" => OpenError::io(action, &self.path),
            name => OpenError::io(action, &self.path.join(name)),
        }
    }

    /// Takes its permissions from others, if it is this process's and has nothing in it but what `is_own` by its name: one that is
    /// shared, or a whole file system, stays as it is.
    pub(crate) fn make_private(&self, is_own: impl Fn(&str) -> bool) -> io::Result<()> {
        let found = fstat(&self.file)?;
        let is_mount_point = fstatat(&self.file, "..", AtFlags::AT_SYMLINK_NOFOLLOW)
            .is_ok_and(|above| above.st_dev != found.st_dev);
        let is_shared = found.st_mode & (libc::S_ISVTX | libc::S_ISGID) != 0 || is_mount_point;
        let is_others = |entry: &DirectoryEntry| !entry.name.to_str().is_ok_and(&is_own);
        if !self.is_open_to_others() || is_shared || self.entries()?.iter().any(is_others) {
            return Ok(());
        }
        let (path, mode) = (self.path.display(), found.st_mode & 0o777);
        match self.set_private() {
            Ok(()) => {
                log::info!("{path} had mode {mode:04o}: the rights of other users are removed")
            }
            Err(error) => {
                log::warn!("{path} has mode {mode:04o}, which cannot be changed: {error}")
            }
        }
        Ok(())
    }

    /// Takes the permissions of a file in it from others. One that cannot be opened stays as it is.
    pub(crate) fn make_file_private(&self, name: &CStr) {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        match self.files.open(&self.file, name, flags.bits()) {
            Ok(file) => make_private(file.as_fd()),
            Err(errno) => log::debug!("{}: cannot look at a file: {errno}", self.path.display()),
        }
    }

    /// Whether others may look into it, which this process can change.
    pub(crate) fn is_open_to_others(&self) -> bool {
        let own = Uid::effective().as_raw();
        fstat(&self.file).is_ok_and(|found| found.st_mode & OTHERS != 0 && found.st_uid == own)
    }

    /// Takes its permissions from others, whatever is in it.
    pub(crate) fn close_to_others(&self) {
        if self.is_open_to_others()
            && let Err(error) = self.set_private()
        {
            log::debug!("{}: cannot set its permissions: {error}", self.path.display());
        }
    }

    /// Makes a file that is not there, to be read and written.
    ///
    /// # Errors
    /// EEXIST where there is something of that name, whatever it is.
    pub(crate) fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL;
        let file = File::from(self.open_at(name, flags)?);
        // A umask may have taken bits of the owner, too.
        make_private(file.as_fd());
        Ok(file)
    }

    /// Opens a file that is there, to be read and written. Nothing of it is changed.
    ///
    /// # Errors
    /// What the system says, or that it is no regular file, another user's, or has a second name.
    pub(crate) fn open_file(&self, name: &str) -> io::Result<File> {
        let file = self.open_again(name)?;
        check_one_name(&file)?;
        Ok(file)
    }

    /// The same for a file that is open already: it may have got a second name since.
    pub(crate) fn open_again(&self, name: &str) -> io::Result<File> {
        let file = self.open_existing(name, OFlag::O_RDWR)?;
        check_opened(&file, self.file.as_fd(), 0)?;
        Ok(file.into())
    }

    /// Opens a file that is there, to be read, whoever it belongs to.
    ///
    /// # Errors
    /// What the system says, or that it is no regular file.
    pub(crate) fn open_to_read(&self, name: &str) -> io::Result<File> {
        let file = self.open_existing(name, OFlag::O_RDONLY)?;
        check_regular(&fstat(&file)?)?;
        Ok(file.into())
    }

    fn open_existing(&self, name: &str, access: OFlag) -> io::Result<OwnedFd> {
        let opened = self.open_at(name, access | OFlag::O_NONBLOCK);
        opened.map_err(|error| refusal_of(self.file.as_fd(), name, error))
    }

    pub(crate) fn contains(&self, name: &str) -> io::Result<bool> {
        match fstatat(&self.file, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Bytes that `name` in it takes on disk; 0 if that cannot be told.
    pub(crate) fn bytes_of(&self, name: &CStr) -> u64 {
        let found = fstatat(&self.file, name, AtFlags::AT_SYMLINK_NOFOLLOW);
        found.map_or(0, |found| found.st_blocks as u64 * 512)
    }

    pub(crate) fn remove(&self, name: &CStr) -> io::Result<()> {
        self.files.remove(&self.file, name)
    }

    pub(crate) fn entries(&self) -> io::Result<Vec<DirectoryEntry>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        // Opened again: two lists through one descriptor would share their place in it.
        let mut listing = Dir::openat(&self.file, ".", flags, Mode::empty())?;
        let mut entries = Vec::new();
        for entry in listing.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let is_file = match entry.file_type() {
                Some(kind) => kind == Type::File,
                None => fstatat(&self.file, name, AtFlags::AT_SYMLINK_NOFOLLOW)
                    .is_ok_and(|found| is_regular(&found)),
            };
            entries.push(DirectoryEntry { name: name.to_owned(), is_file });
        }
        Ok(entries)
    }

    /// Makes durable which names are in it.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.files.sync_all(&self.file)
    }

    pub(crate) fn own_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }

    pub(crate) fn file_system(&self) -> io::Result<Statvfs> {
        Ok(fstatvfs(&self.file)?)
    }

    /// Whether its file system is of that kind.
    pub(crate) fn is_on(&self, kind: FsType) -> bool {
        fstatfs(&self.file).is_ok_and(|answer| answer.filesystem_type() == kind)
    }

    fn set_private(&self) -> io::Result<()> {
        self.file.set_permissions(Permissions::from_mode(DIRECTORY_MODE))
    }

    /// Locks it against every other opener: who has it locked owns the store in it, whatever files are there or not.
    ///
    /// # Errors
    /// `OpenError::InUse`.
    pub(crate) fn lock(&self, owner: impl Fn() -> Option<Owner>) -> Result<(), OpenError> {
        match lock_exclusively(&self.file, owner) {
            Ok(()) => Ok(()),
            Err(LockRefusal::Io(error)) => {
                let path = self.path.display();
                log::warn!("{path} cannot be locked, only its files are: {error}");
                Ok(())
            }
            Err(held) => Err(held.error(&self.path, self.error("lock", ""))),
        }
    }

    /// Closes it, and gives up its lock: nothing in it can be reached any more.
    pub(crate) fn release(&self) {
        if let Err(error) = self.file.release() {
            log::debug!("{}: {error}", self.path.display());
        }
    }
}

fn is_same(left: &FileStat, right: &FileStat) -> bool {
    (left.st_dev, left.st_ino) == (right.st_dev, right.st_ino)
}
