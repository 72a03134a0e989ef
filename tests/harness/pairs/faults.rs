//! Faults by a seed, of each path alone: in its engine, and in what the store asks of files without one.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use kvring::testing::{Action, FileOperations, SystemFiles};
use libc::{EAGAIN, EDQUOT, EINTR, EIO, EMFILE, ENODEV, ENOSPC, EROFS};
use parking_lot::Mutex;

use crate::common::faults::Fault;
use crate::common::random::Random;

/// Where in an index a path notes which are in use, and where its records begin.
const MEMBERSHIP_OFFSET: u64 = 2048;
const FIRST_RECORD_OFFSET: u64 = 4096;

/// What befalls a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// One in so many transfers fails, or is short; 0 for none.
    pub(crate) one_in: u64,
    /// Reads may fail as well: a load may be a miss, and what fails twice is dropped.
    pub(crate) reads_fail: bool,
    /// One in so many syncs fails; 0 for none.
    pub(crate) syncs_one_in: u64,
    /// The device is not there any more.
    pub(crate) is_gone: bool,
    pub(crate) is_read_only: bool,
    /// This process has no descriptor for what the path notes of others.
    pub(crate) cannot_note: bool,
}

struct PathFaults {
    directory: PathBuf,
    trouble: Trouble,
    random: Random,
    notes_refused: u64,
}

/// The faults of all paths of a store.
pub(crate) struct Faults(Mutex<Vec<PathFaults>>);

impl Faults {
    pub(crate) fn new(directories: &[PathBuf], seed: u64) -> Arc<Self> {
        let of = |(number, directory): (u64, &PathBuf)| PathFaults {
            directory: directory.clone(),
            trouble: Trouble::default(),
            random: Random::new(seed.wrapping_add(number)),
            notes_refused: 0,
        };
        Arc::new(Self(Mutex::new((0..).zip(directories).map(of).collect())))
    }

    pub(crate) fn set(&self, path: usize, trouble: Trouble) {
        self.0.lock()[path].trouble = trouble;
    }

    pub(crate) fn set_all(&self, trouble: Trouble) {
        self.0.lock().iter_mut().for_each(|path| path.trouble = trouble);
    }

    /// How often a path could not note which are in use.
    pub(crate) fn notes_refused(&self) -> u64 {
        self.0.lock().iter().map(|path| path.notes_refused).sum()
    }

    /// What befalls a transfer of a path.
    pub(crate) fn of_transfer(&self, path: usize, action: Action, length: usize) -> Fault {
        let fault = self.0.lock()[path].of_transfer(action, length);
        fault.unwrap_or(Fault::None)
    }

    fn of_call(
        &self,
        file: &File,
        errnos: &[i32],
        is_meant: fn(&Trouble) -> bool,
    ) -> io::Result<()> {
        let place = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let place = place.unwrap_or_default();
        let mut all = self.0.lock();
        let Some(path) = all.iter_mut().find(|path| place.starts_with(&path.directory)) else {
            return Ok(());
        };
        if !is_meant(&path.trouble) && !path.comes() {
            return Ok(());
        }
        path.notes_refused += u64::from(path.trouble.cannot_note);
        Err(io::Error::from_raw_os_error(path.random.choose(errnos)))
    }
}

impl PathFaults {
    fn comes(&mut self) -> bool {
        self.trouble.one_in > 0 && self.random.one_of(self.trouble.one_in)
    }

    fn of_transfer(&mut self, action: Action, length: usize) -> Option<Fault> {
        let makes = matches!(action, Action::Open(flags) if flags & libc::O_CREAT != 0);
        let changes =
            makes || matches!(action, Action::Write | Action::Preallocate | Action::Truncate);
        if self.trouble.is_gone || self.trouble.is_read_only && changes {
            return Some(Fault::Errno(if self.trouble.is_gone { ENODEV } else { EROFS }));
        }
        let is_sync = matches!(action, Action::Sync | Action::SyncDirectory);
        let one_in = if is_sync { self.trouble.syncs_one_in } else { self.trouble.one_in };
        if one_in == 0 || !self.random.one_of(one_in) {
            return None;
        }
        let errnos: &[i32] = match action {
            Action::Read if self.trouble.reads_fail => &[EIO, EINTR, EAGAIN],
            Action::Read => &[EINTR, EAGAIN],
            Action::Write => &[EIO, ENOSPC, EDQUOT, EINTR, EAGAIN],
            Action::Open(_) if makes => &[EMFILE, ENOSPC, EDQUOT, EIO],
            Action::Open(_) if self.trouble.reads_fail => &[EMFILE, EIO],
            Action::Open(_) => return None,
            Action::Preallocate => &[ENOSPC, EDQUOT, EIO],
            Action::Truncate => &[EIO, ENOSPC],
            Action::Sync | Action::SyncDirectory => &[EIO],
        };
        let moves = matches!(action, Action::Read | Action::Write);
        if moves && length > 512 && self.random.one_of(2) {
            let blocks = (length as u64).div_ceil(512) - 1;
            return Some(Fault::Short(512 * (1 + self.random.below(blocks)) as usize));
        }
        Some(Fault::Errno(self.random.choose(errnos)))
    }
}

/// The calls of the system, with the faults of the paths.
pub(crate) struct FaultyFiles {
    pub(crate) faults: Arc<Faults>,
    /// The file system has no longer run for a data file: they are many and short. They are sparse, so that many cost little.
    pub(crate) longest_run_bytes: Option<u64>,
}

impl std::fmt::Debug for FaultyFiles {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("FaultyFiles")
    }
}

impl FileOperations for FaultyFiles {
    fn preallocate(&self, file: &File, bytes: Range<u64>, flags: libc::c_int) -> io::Result<()> {
        self.faults.of_call(file, &[ENOSPC, EDQUOT], |trouble| trouble.is_gone)?;
        match self.longest_run_bytes {
            Some(run_bytes) if flags == 0 && bytes.end - bytes.start > run_bytes => {
                Err(io::Error::from_raw_os_error(ENOSPC))
            }
            Some(_) if flags == 0 => file.set_len(bytes.end),
            Some(_) => Ok(()),
            None => SystemFiles.preallocate(file, bytes, flags),
        }
    }

    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        match offset {
            MEMBERSHIP_OFFSET => {
                self.faults.of_call(file, &[EMFILE], |trouble| trouble.cannot_note)?
            }
            FIRST_RECORD_OFFSET.. => self.faults.of_call(file, &[ENOSPC, EDQUOT], |_| false)?,
            _ => {}
        }
        SystemFiles.write_at(file, bytes, offset)
    }
}
