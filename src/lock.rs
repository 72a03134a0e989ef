//! One live owner per store. The lock is an flock(2) on the very files that transfers use: a request that a killed process
//! left in the kernel keeps its file open, and so the lock, until the kernel is done with it.
//!
//! Also which stores this process has open, by id: a store that was closed while its device failed does not say so itself, as its
//! session block still names this process. Atomics, and no lock: a fork could wait for ever for one that another thread held.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{Pid, gethostname};

use crate::base::checksum::crc32c;
use crate::error::OpenError;
use crate::format::header::{HOST_BYTES, Owner};

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How long the last requests of a dead process are waited for.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

impl Owner {
    pub(crate) fn current() -> Self {
        let mut host =
            gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        while host.len() > HOST_BYTES {
            host.pop();
        }
        Self { process_id: std::process::id(), host, store_id: None }
    }

    /// This process, by the number and the host that are noted. Another one may have had the same number.
    fn is_this_process(&self) -> bool {
        self.process_id == std::process::id() && self.host == Self::current().host
    }

    /// How this process has the store, if that is noted as its own.
    fn own_hold(&self) -> Option<Hold> {
        match self.store_id {
            Some(id) => hold_on(id),
            None => Some(Hold::Open),
        }
    }

    /// Whether that process runs on this host, as far as this process can see. One that has ended and was not waited for
    /// by its parent (a zombie) does not.
    pub(crate) fn is_alive_here(&self) -> bool {
        if self.host != Self::current().host {
            return false;
        }
        if self.is_this_process() {
            return self.own_hold().is_some();
        }
        let exists = i32::try_from(self.process_id)
            .is_ok_and(|pid| kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH));
        exists && !matches!(state_of(self.process_id), Some('Z' | 'X'))
    }
}

/// The state of a process that can be seen: the first word behind the name in parentheses in /proc/PID/stat (proc(5)).
fn state_of(process_id: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{process_id}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Tells this boot of the machine from others: made of the kernel's random boot id (random(4)); 0 where there is none.
pub(crate) fn current_boot() -> u32 {
    std::fs::read("/proc/sys/kernel/random/boot_id").map_or(0, |id| crc32c(&id))
}

fn describe_holder(owner: Option<&Owner>) -> String {
    match owner {
        None => "an unknown process".into(),
        Some(owner) if owner.is_this_process() => match owner.own_hold() {
            Some(Hold::Open) => owner.to_string(),
            Some(Hold::Closing) => format!(
                "this process ({owner}), which has closed it: its I/O is still in flight, and may write to the store until it \
                 completes or the process ends"
            ),
            None => format!(
                "this process ({owner}), which has closed it: the kernel, a fork, or a process with the same id in \
                 another container still has its files open"
            ),
        },
        Some(owner) if owner.host == Owner::current().host && !owner.is_alive_here() => {
            format!("{owner}, which has ended: a fork of it or the kernel still has its files open")
        }
        Some(owner)
            if owner.host == Owner::current().host
                && matches!(state_of(owner.process_id), Some('T' | 't')) =>
        {
            format!("{owner}, which is stopped (SIGSTOP, or a debugger)")
        }
        Some(owner) => owner.to_string(),
    }
}

/// Why a lock was not had.
pub(crate) enum LockRefusal {
    Held(Option<Owner>),
    Io(io::Error),
}

impl LockRefusal {
    /// The error of an open of the store at `store`; `error` makes that of a lock that the system refused.
    pub(crate) fn error(
        self,
        store: &Path,
        error: impl FnOnce(io::Error) -> OpenError,
    ) -> OpenError {
        match self {
            Self::Io(source) => error(source),
            Self::Held(owner) => {
                OpenError::InUse { path: store.to_owned(), holder: describe_holder(owner.as_ref()) }
            }
        }
    }
}

/// Locks `file` against every other opener. At once, if `owner` (asked again on every try, as it may be just writing
/// itself down) is a live process; else it waits a bounded time for what a dead one left in the kernel.
pub(crate) fn lock_exclusively(
    file: &File,
    owner: impl Fn() -> Option<Owner>,
) -> Result<(), LockRefusal> {
    let attempt = || match file.try_lock() {
        Ok(()) => Ok(Some(())),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    };
    wait_for_owner(attempt, owner).map_err(|refusal| match refusal {
        LockRefusal::Held(owner) => LockRefusal::Held(owner.or_else(|| holder_of(file))),
        refusal => refusal,
    })
}

/// The process that has taken the lock of `file`, as the kernel lists it (proc_locks(5)); one of this host. `None` where it
/// cannot be seen: in another PID namespace, or on a file system that numbers its files in two ways.
pub(crate) fn holder_of(file: &File) -> Option<Owner> {
    let found = file.metadata().ok()?;
    let (major, minor) = (libc::major(found.dev()), libc::minor(found.dev()));
    let place = format!("{major:02x}:{minor:02x}:{}", found.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let holders =
        locks.lines().filter_map(|line| match *line.split_whitespace().collect::<Vec<_>>() {
            [_, "FLOCK", _, "WRITE", holder, at, ..] if at == place => holder.parse::<i32>().ok(),
            _ => None,
        });
    let process_id = holders.into_iter().find(|holder| *holder > 0)? as u32;
    Some(Owner { process_id, ..Owner::current() })
}

/// Locks `file` as [`lock_exclusively`] does, for the store at `store`; `error` makes the error of one that cannot be locked.
pub(crate) fn lock_for(
    file: &File,
    store: &Path,
    owner: impl Fn() -> Option<Owner>,
    error: impl FnOnce(io::Error) -> OpenError,
) -> Result<(), OpenError> {
    lock_exclusively(file, owner).map_err(|refusal| refusal.error(store, error))
}

/// The same for any kind of lock: `attempt` returns it, or `None` while somebody has it.
pub(crate) fn wait_for_owner<T>(
    mut attempt: impl FnMut() -> io::Result<Option<T>>,
    owner: impl Fn() -> Option<Owner>,
) -> Result<T, LockRefusal> {
    let deadline = Instant::now() + TAKEOVER_TIMEOUT;
    loop {
        match attempt() {
            Ok(Some(lock)) => return Ok(lock),
            Err(error) => return Err(LockRefusal::Io(error)),
            Ok(None) => {
                let owner = owner();
                if owner.as_ref().is_some_and(Owner::is_alive_here) || Instant::now() >= deadline {
                    return Err(LockRefusal::Held(owner));
                }
                std::thread::sleep(RETRY_INTERVAL);
            }
        }
    }
}

/// More than any process has; those past it count as open nowhere.
const MOST_STORES: usize = 1024;

const NONE: u64 = 0;
const OPEN: u64 = 1;
const CLOSING: u64 = 2;
const STATE_BITS: u64 = 3;

/// In each cell the first half of an id, with a state in its lowest bits.
static STORES: [AtomicU64; MOST_STORES] = [const { AtomicU64::new(NONE) }; MOST_STORES];

/// How this process has a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    Open,
    /// It was closed, and something that was asked of its device has not come back.
    Closing,
}

/// A store that this process has open, until it is closed or dropped.
#[derive(Debug)]
pub(crate) struct OpenStore {
    cell: Option<&'static AtomicU64>,
    id: u64,
    /// The cell may be another's.
    is_closed: AtomicBool,
}

impl OpenStore {
    pub(crate) fn new(id: [u8; 16]) -> Self {
        let id = key_of(id);
        let take = |cell: &&AtomicU64| {
            cell.compare_exchange(NONE, id | OPEN, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        Self { cell: STORES.iter().find(take), id, is_closed: AtomicBool::new(false) }
    }

    /// Its files are about to be given up.
    pub(crate) fn note_closing(&self) {
        if let Some(cell) = self.cell
            && !self.is_closed.load(Ordering::SeqCst)
        {
            cell.store(self.id | CLOSING, Ordering::SeqCst);
        }
    }

    /// Its files are given up.
    pub(crate) fn note_closed(&self) {
        if let Some(cell) = self.cell
            && !self.is_closed.swap(true, Ordering::SeqCst)
        {
            cell.store(NONE, Ordering::SeqCst);
        }
    }
}

impl Drop for OpenStore {
    fn drop(&mut self) {
        self.note_closed();
    }
}

/// How this process has the store with this id, if it has it.
pub(crate) fn hold_on(id: [u8; 16]) -> Option<Hold> {
    let found = STORES.iter().map(|cell| cell.load(Ordering::SeqCst));
    let states = found.filter(|found| found & !STATE_BITS == key_of(id) && *found != NONE);
    states.map(|found| found & STATE_BITS).min().map(|state| match state {
        OPEN => Hold::Open,
        _ => Hold::Closing,
    })
}

/// Ids are random: half of one tells them apart.
fn key_of(id: [u8; 16]) -> u64 {
    let mut half = [0; 8];
    half.copy_from_slice(&id[..8]);
    u64::from_le_bytes(half) & !STATE_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_owner_is_named_at_once_and_a_dead_one_waited_for() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(path.path()).unwrap();
        let holder = open();
        assert!(lock_exclusively(&holder, || None).is_ok());
        let refusal = lock_exclusively(&open(), || Some(Owner::current()));
        assert!(
            matches!(refusal, Err(LockRefusal::Held(Some(owner))) if owner == Owner::current())
        );

        let dead = Owner { process_id: i32::MAX as u32, ..Owner::current() };
        let second = open();
        let releaser = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(holder);
        });
        assert!(lock_exclusively(&second, || Some(dead.clone())).is_ok());
        releaser.join().unwrap();

        // A store that this process has closed, or that another one of its number had.
        let closed = Owner { store_id: Some([5; 16]), ..Owner::current() };
        let third = open();
        let releaser = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(second);
        });
        assert!(lock_exclusively(&third, || Some(closed.clone())).is_ok());
        releaser.join().unwrap();
    }

    #[test]
    fn a_store_is_open_until_it_is_closed() {
        let (id, other) = ([7; 16], [9; 16]);
        let store = OpenStore::new(id);
        assert_eq!((hold_on(id), hold_on(other)), (Some(Hold::Open), None));
        store.note_closing();
        assert_eq!(hold_on(id), Some(Hold::Closing));
        store.note_closed();
        assert_eq!(hold_on(id), None);
        let again = OpenStore::new(id);
        drop(store);
        assert_eq!(hold_on(id), Some(Hold::Open), "it is the other's by now");
        drop(again);
        assert_eq!(hold_on(id), None);
    }
}
