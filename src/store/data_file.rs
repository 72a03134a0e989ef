//! One preallocated data file: how it is made, opened and locked, and what transfers on it must look like.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use super::Geometry;
use crate::config::BLOCK_BYTES;
use crate::error::OpenError;
use crate::fork::{GivenUpInForks, close_file_behind};
use crate::lock::{LockRefusal, Owner, describe_holder, lock_exclusively};

/// Alignment taken where the kernel does not tell: no device in use asks for more.
const DEFAULT_ALIGNMENT_BYTES: usize = 4096;

/// More than any capacity makes; a file with a higher number is nobody's.
const MAX_DATA_FILES: u32 = 1 << 20;

/// An open, locked data file.
#[derive(Debug)]
pub(crate) struct DataFile {
    _given_up_in_forks: GivenUpInForks,
    file: File,
    geometry: Geometry,
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
            Ok(()) => Ok(Self { _given_up_in_forks: given_up_in_forks, file, geometry }),
            Err(LockRefusal::Io(error)) => Err(io_error("lock")(error)),
            Err(LockRefusal::Held(owner)) => {
                let holder = describe_holder(owner.as_ref());
                let store = path.parent().unwrap_or(path);
                Err(OpenError::InUse { path: store.to_owned(), holder })
            }
        }
    }

    /// Reserves `size_bytes` on the file system, so that no later write can run out of space.
    pub(crate) fn preallocate(&self, size_bytes: u64) -> io::Result<()> {
        match fallocate(&self.file, FallocateFlags::empty(), 0, size_bytes as i64) {
            Err(Errno::EOPNOTSUPP) => {
                log::warn!("the file system cannot preallocate: writes may find it full later");
                self.file.set_len(size_bytes)
            }
            other => Ok(other?),
        }
    }

    /// Gives back what lies behind `size_bytes`, durably: a later owner must not count on it.
    pub(crate) fn shorten(&self, size_bytes: u64) -> io::Result<()> {
        self.file.set_len(size_bytes)?;
        self.file.sync_all()
    }

    /// Whole blocks in it.
    pub(crate) fn blocks(&self) -> io::Result<u32> {
        Ok(u32::try_from(self.file.metadata()?.len() / BLOCK_BYTES).unwrap_or(u32::MAX))
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Gives up the file, and the lock with it. Nothing may be under way on it.
    pub(crate) fn give_up(&self) -> io::Result<()> {
        self.file.unlock()?;
        close_file_behind(self.descriptor());
        Ok(())
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
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

fn open_with_best_geometry(path: &Path, create: bool) -> io::Result<(File, Geometry)> {
    let open = |flags| {
        OpenOptions::new().read(true).write(true).create(create).custom_flags(flags).open(path)
    };
    let buffered = Geometry { direct: false, memory_alignment_bytes: 1 };
    match open(libc::O_DIRECT) {
        Ok(file) => match direct_alignment(&file)? {
            Some(memory_alignment_bytes) => {
                Ok((file, Geometry { direct: true, memory_alignment_bytes }))
            }
            None => Ok((open(0)?, buffered)),
        },
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok((open(0)?, buffered)),
        Err(error) => Err(error),
    }
}

/// Memory alignment for direct transfers of whole blocks on `file`; `None` if it has no such transfers.
/// statx(2) fills the STATX_DIOALIGN fields since Linux 6.1; both are 0 for a file without direct I/O.
fn direct_alignment(file: &File) -> io::Result<Option<usize>> {
    let mut answer = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is an empty C string and AT_EMPTY_PATH makes the descriptor the subject; `answer` has room for
    // one struct statx.
    let status = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            answer.as_mut_ptr(),
        )
    };
    if status != 0 {
        return Ok(Some(DEFAULT_ALIGNMENT_BYTES));
    }
    // SAFETY: zeroed before the call, so that every field is initialised whatever the kernel filled.
    let answer = unsafe { answer.assume_init() };
    if answer.stx_mask & libc::STATX_DIOALIGN == 0 {
        return Ok(Some(DEFAULT_ALIGNMENT_BYTES));
    }
    let offset_alignment = u64::from(answer.stx_dio_offset_align);
    let fits = offset_alignment != 0 && BLOCK_BYTES.is_multiple_of(offset_alignment);
    Ok(fits.then_some(answer.stx_dio_mem_align.max(1) as usize))
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
