//! The files of chunks, their account, and what may be given out of the space that is left. A thread removes those of freed chunks:
//! a DELETE is answered long before.

use std::ffi::{CStr, OsStr};
use std::io;
use std::io::ErrorKind::{IsADirectory, NotFound};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::account::Account;
use crate::base::log_limit::LogLimit;
use crate::base::sync::thread::{Builder, JoinHandle};
use crate::base::sync::{Condvar, Mutex};
use crate::base::thread::join;
use crate::directory::Directory;
use crate::engine::Waker;
use crate::error::StoreError;
use crate::format::names::{directory_of, file_c_name, file_name};
use crate::key::Digest;
use crate::space_account::SpaceAccount;
use crate::store::RecordsAreCleared;
use crate::store::sizes::index_share_bytes;

/// What the store and the thread that removes files have in common.
pub(super) struct Files {
    /// The store's directory.
    pub(super) directory: Arc<Directory>,
    pub(super) space: Arc<SpaceAccount>,
    /// `chunks`.
    pub(super) chunks: Directory,
    /// Those in it, by number.
    pub(super) directories: Vec<Arc<Directory>>,
    /// The file system gives the blocks of a removed file back some time later.
    pub(super) frees_late: bool,
    pub(super) state: Mutex<FileState>,
    /// There is something to remove, or the thread is to end.
    pub(super) work: Condvar,
    /// Something was removed.
    pub(super) removed: Condvar,
    /// Woken when a file may be made for which others had to be removed.
    pub(super) wakers: Vec<Arc<Waker>>,
    pub(super) are_cleared: RecordsAreCleared,
    pub(super) refusal_log: LogLimit,
    pub(super) removal_log: LogLimit,
}

pub(super) struct FileState {
    pub(super) account: Account,
    /// After the file system had no space: when to ask it again, and its error.
    pub(super) refusal: Option<(Instant, StoreError)>,
    /// Threads that free files to have their space themselves. Nothing is removed until there are none.
    pub(super) deferrals: usize,
    /// When to leave the rest to the next open.
    pub(super) ends: Option<Instant>,
}

impl Files {
    /// What can be reserved now: nothing for a while after the file system has refused some.
    pub(super) fn available_bytes(&self, state: &FileState) -> u64 {
        match &state.refusal {
            Some((again, _)) if Instant::now() < *again => 0,
            _ => self.free_bytes(state),
        }
    }

    /// What is free, with regard to who is about to take it. The index has its share first, whether it is the capacity or the
    /// file system that bounds the store.
    pub(super) fn free_bytes(&self, state: &FileState) -> u64 {
        let above_floor_bytes =
            self.space.free_above_floor_bytes().saturating_sub(state.account.unmade_bytes);
        let room_bytes = self.space.left_bytes().min(above_floor_bytes);
        let used_bytes = self.space.used_bytes();
        let others_bytes = used_bytes.saturating_sub(state.account.live_bytes);
        let share_bytes = index_share_bytes(used_bytes + room_bytes);
        room_bytes.saturating_sub(share_bytes.saturating_sub(others_bytes))
    }

    /// Bytes being removed that can be promised to new files: not those by which the store is beyond a smaller capacity.
    pub(super) fn promisable_bytes(&self, state: &FileState) -> u64 {
        let over_bytes = self.space.used_bytes().saturating_sub(self.space.capacity_bytes());
        state.account.unpromised_bytes().saturating_sub(over_bytes)
    }

    /// Why `needed_bytes` cannot be had.
    pub(super) fn refusal(&self, state: &FileState, needed_bytes: u64) -> StoreError {
        if let Some((again, error)) = &state.refusal
            && Instant::now() < *again
        {
            return error.clone();
        }
        let free_bytes = self.space.free_above_floor_bytes();
        if free_bytes.saturating_sub(state.account.unmade_bytes) < needed_bytes
            && self.space.left_bytes() >= needed_bytes
        {
            return StoreError::Floor { needed_bytes, free_bytes };
        }
        self.space.full(needed_bytes)
    }

    /// Removes the file of a chunk that is gone, as [`remove_file`] does.
    pub(super) fn remove(&self, digest: Digest, number: u32) -> Result<(), u64> {
        let (directory, name) =
            (&self.directories[directory_of(digest)], file_c_name(digest, number));
        // XFS frees the blocks of a removed file in the background, up to 0.2 s later on Linux 6.18, those of one that is cut at
        // once; what is stored in their place would find no space. An error is one of the removal, too.
        if self.frees_late {
            let _ =
                directory.open_file(&file_name(digest, number)).and_then(|file| file.set_len(0));
        }
        remove_file((&self.directory, &self.removal_log), directory, &name)
    }

    pub(super) fn start_removals(self: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        let files = Arc::clone(self);
        Builder::new().name("kvring-remover".into()).spawn(move || files.remove_leaving())
    }

    /// Ends the thread when everything is removed, or after `timeout` and the removal that is under way then: the next open removes
    /// the rest.
    pub(super) fn end_removals(&self, thread: JoinHandle<()>, timeout: Duration) {
        self.state.lock().ends = Some(Instant::now() + timeout);
        self.work.notify_all();
        join(thread, "what it left is removed at open");
    }

    fn remove_leaving(&self) {
        let mut state = self.state.lock();
        loop {
            let is_over = |ends| state.account.leaving.is_empty() || Instant::now() >= ends;
            if state.ends.is_some_and(is_over) {
                return;
            }
            let next = if state.deferrals == 0 { state.account.leaving.pop_front() } else { None };
            let Some(extent) = next else {
                state = self.work.wait(state);
                continue;
            };
            let Some(digest) = state.account.digest_of(extent.file) else { continue };
            drop(state);
            // What replaces it may not be found by a start yet.
            if !(self.are_cleared)() {
                return;
            }
            let outcome = self.remove(digest, extent.file);
            state = self.state.lock();
            let were_awaited = state.account.is_awaited();
            state.account.end_removal(extent, outcome.is_ok(), &self.space);
            self.removed.notify_all();
            if were_awaited {
                self.wakers.iter().for_each(|waker| waker.wake());
            }
        }
    }
}

/// Removes the file of a chunk that is gone from one of the directories of `store`; one that is not there is removed.
///
/// # Errors
/// The bytes that the file goes on to take; the log has its path and the reason, or counts it.
pub(super) fn remove_file(
    (store, log_limit): (&Directory, &LogLimit),
    directory: &Directory,
    name: &CStr,
) -> Result<(), u64> {
    let Err(error) = directory.remove(name) else { return Ok(()) };
    // Nor is it there if a directory has its name.
    if matches!(error.kind(), NotFound | IsADirectory) {
        return Ok(());
    }
    let bytes = directory.bytes_of(name);
    log_limit.log(store.path(), 1, || {
        let path = directory.path().join(OsStr::from_bytes(name.to_bytes()));
        format!(
            "cannot remove {}: {error}; its chunk is gone, and {bytes} bytes of the capacity stay taken: make it removable \
             (lsattr tells of an immutable file), and open the store again",
            path.display()
        )
    });
    Err(bytes)
}
