//! The files of chunks, their account, and what may be given out of the space that is left.

use std::sync::Arc;
use std::time::Instant;

use super::account::Account;
use super::removal::Removals;
use crate::base::log_limit::LogLimit;
use crate::base::sync::{Condvar, Mutex};
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
    pub(super) removals: Removals,
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

    /// See [`Removals::remove_file`].
    pub(super) fn remove(&self, digest: Digest, number: u32) -> Result<(), u64> {
        let (directory, name) =
            (&self.directories[directory_of(digest)], file_c_name(digest, number));
        // XFS frees the blocks of a removed file in the background, up to 0.2 s later on Linux 6.18, those of one that is cut at
        // once; what is stored in their place would find no space. An error is one of the removal, too.
        if self.frees_late {
            let _ =
                directory.open_file(&file_name(digest, number)).and_then(|file| file.set_len(0));
        }
        self.removals.remove_file(directory, &name)
    }
}
