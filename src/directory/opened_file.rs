//! What a file must be that was opened by name: regular, and of the right user.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix::fcntl::{AtFlags, FcntlArg, OFlag, fcntl};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat};
use nix::unistd::Uid;

use crate::format::names::FILE_MODE;

pub(super) const OTHERS: libc::mode_t = 0o077;

/// Takes the permissions of others from a file. One whose file system has none, or whose owner may not, stays as it is.
pub(crate) fn make_private(file: BorrowedFd<'_>) {
    let Ok(found) = fstat(file) else { return };
    if found.st_mode & (OTHERS | FILE_MODE) != FILE_MODE
        && let Err(errno) = fchmod(file, Mode::from_bits_truncate(FILE_MODE))
    {
        log::debug!("cannot set the permissions of a file: {errno}");
    }
}

/// Checks a file that was opened by name with O_NONBLOCK. It must be a regular one, of this process's user or of the user who
/// owns the directory. Its status flags become `flags`: io_uring fails transfers of a file with O_NONBLOCK that would wait.
/// Returns its length.
pub(crate) fn check_opened(
    file: &OwnedFd,
    directory: BorrowedFd<'_>,
    flags: libc::c_int,
) -> io::Result<u64> {
    let found = fstat(file)?;
    check_regular(&found)?;
    check_owner(&found, directory)?;
    set_flags(file.as_fd(), flags)?;
    Ok(found.st_size as u64)
}

/// Why a file cannot be opened: what it is, if it is none, else what the system says.
pub(crate) fn refusal_of<N: ?Sized + nix::NixPath>(
    directory: BorrowedFd<'_>,
    name: &N,
    error: io::Error,
) -> io::Error {
    // A socket answers as a device does that is gone.
    let odd = [libc::ENXIO, libc::ENODEV, libc::ELOOP, libc::EISDIR, libc::EINVAL];
    if !error.raw_os_error().is_some_and(|errno| odd.contains(&errno)) {
        return error;
    }
    let found = fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW);
    found.map_or(Ok(()), |found| check_regular(&found)).err().unwrap_or(error)
}

/// Sets the status flags of an open file: O_DIRECT or none.
pub(crate) fn set_flags(file: BorrowedFd<'_>, flags: libc::c_int) -> io::Result<()> {
    fcntl(file, FcntlArg::F_SETFL(OFlag::from_bits_retain(flags)))?;
    Ok(())
}

pub(super) fn is_regular(found: &FileStat) -> bool {
    found.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits()
}

pub(super) fn check_regular(found: &FileStat) -> io::Result<()> {
    if is_regular(found) {
        return Ok(());
    }
    Err(io::Error::other(format!("it is {}, not a regular file; move it away", kind_of(found))))
}

/// Why what is called `name` cannot be opened as a directory.
pub(super) fn directory_refusal(
    directory: BorrowedFd<'_>,
    name: &str,
    error: io::Error,
) -> io::Error {
    let found = fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW);
    match (error.raw_os_error(), found) {
        (Some(libc::ENOTDIR | libc::ELOOP), Ok(found)) => io::Error::other(format!(
            "it is {}, not a directory of the store; move it away",
            kind_of(&found)
        )),
        _ => error,
    }
}

fn kind_of(found: &FileStat) -> &'static str {
    match SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => "a regular file",
        SFlag::S_IFLNK => "a symbolic link",
        SFlag::S_IFDIR => "a directory",
        SFlag::S_IFIFO => "a FIFO",
        SFlag::S_IFSOCK => "a socket",
        _ => "a device",
    }
}

/// What is written to a file goes to all of its names. One of them may be a backup's (`cp -al`), or a stranger's.
pub(super) fn check_one_name(file: &File) -> io::Result<()> {
    let names = file.metadata()?.nlink();
    if names <= 1 {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "it has {names} names (hard links), and would be written under all of them; put a copy in its place (cp, then mv), or \
         remove the other names"
    )))
}

/// Who owns the directory could have put any file there. Some file systems give all files to one user (NFS, vfat), and some
/// containers all of a volume to a group.
fn check_owner(found: &FileStat, directory: BorrowedFd<'_>) -> io::Result<()> {
    let (owner, own) = (found.st_uid, Uid::effective().as_raw());
    if owner == own || fstat(directory).is_ok_and(|directory| directory.st_uid == owner) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "it belongs to user {owner} and this process runs as user {own}; give the store to that user (chown -R) or choose \
             another path"
        ),
    ))
}
