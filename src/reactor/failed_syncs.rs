//! How the syncs of a store end, in all reactors and in all other threads.
//!
//! A sync that fails may have dropped whatever was written before it ended, in other files too where it was the device
//! that could not flush; the next sync, by whichever reactor, reports success for it. So a chunk is durable only if no
//! sync of the store failed between the start of its write and its own last sync, and that is known only when all those
//! have come back that were under way when that last one did.

use std::io;
use std::time::Instant;

use super::ReactorGroup;
use super::group::Lane;
use super::io_error_policy::Direction;
use crate::base::sync::atomic::Ordering;
use crate::config::Durability;
use crate::engine::SyncListener;

fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl SyncListener for ReactorGroup {
    fn note_begun(&self) -> u64 {
        self.begin_syncs()
    }

    fn note_ended(&self, number: u64, outcome: &io::Result<()>) {
        if let Err(error) = outcome {
            self.note_failed_sync(errno_of(error), true);
            if self.cache.config.durability == Durability::BestEffort {
                self.cache.note_failed_flush();
            }
        }
        self.end_syncs(number);
    }
}

impl ReactorGroup {
    pub(super) fn failed_syncs(&self) -> u64 {
        self.failed_syncs.load(Ordering::SeqCst)
    }

    /// That of the last failed sync.
    pub(super) fn sync_errno(&self) -> i32 {
        self.sync_errno.load(Ordering::SeqCst)
    }

    /// Syncs begin. Returns their number.
    pub(super) fn begin_syncs(&self) -> u64 {
        let mut syncs = self.syncs.lock();
        let number = syncs.begun;
        syncs.begun += 1;
        syncs.under_way.insert(number);
        number
    }

    /// All syncs of this number have come back.
    pub(super) fn end_syncs(&self, number: u64) {
        self.syncs.lock().under_way.remove(&number);
        let awaiting = |lane: &&Lane| lane.awaits_syncs.load(Ordering::SeqCst);
        self.lanes.iter().filter(awaiting).for_each(|lane| lane.waker.wake());
    }

    /// Before it counts as having come back.
    pub(super) fn note_failed_sync(&self, errno: i32, is_first: bool) {
        self.sync_errno.store(errno, Ordering::SeqCst);
        // Records that others cleared were dropped as well, and nobody else writes those again.
        if is_first {
            self.cache.index.write_anew_later();
        }
        self.failed_syncs.fetch_add(1, Ordering::SeqCst);
    }

    /// A flush in the background has come back.
    pub(crate) fn note_flush(&self, outcome: &io::Result<()>) {
        let counters = &self.cache.counters;
        counters.syncs.add(1);
        let Err(error) = outcome else {
            self.health.note_success(Direction::Sync);
            return;
        };
        counters.sync_errors.add(1);
        let path = self.cache.config.path();
        self.cache.log_limits.flushes.log(path, 1, || {
            let path = path.display();
            format!("{path}: cannot make durable what was stored: {error}; power loss may take it")
        });
        self.health.note_failed_flush(errno_of(error), Instant::now());
    }

    /// Reactor `number`, which has none under way, awaits all syncs that are. It is woken whenever some come back, until
    /// [`ReactorGroup::have_ended`] says that those below the number that this returns have.
    pub(super) fn await_syncs(&self, number: usize) -> u64 {
        self.lanes[number].awaits_syncs.store(true, Ordering::SeqCst);
        self.syncs.lock().begun
    }

    pub(super) fn have_ended(&self, number: usize, awaited: u64) -> bool {
        let first = self.syncs.lock().under_way.first().copied();
        let have_ended = first.is_none_or(|first| first >= awaited);
        if have_ended {
            self.lanes[number].awaits_syncs.store(false, Ordering::SeqCst);
        }
        have_ended
    }
}
