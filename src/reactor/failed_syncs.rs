//! How the syncs of a store end, in all reactors and in all other threads.
//!
//! A sync that fails may have dropped whatever was written before it ended, in other files too where it was the device
//! that could not flush; the next sync, by whichever reactor, reports success for it. So a chunk is durable only if no
//! sync of the store failed between the start of its write and its own last sync, and that is known only when all those
//! have come back that were under way when that last one did.

use std::io;
use std::time::Instant;

use super::ReactorGroup;
use super::io_error_policy::Direction;
use crate::base::sync::atomic::Ordering;
use crate::config::Durability;
use crate::engine::SyncListener;

/// For each reactor, how many of its syncs have to have come back, and the number from which on those of other threads need not.
pub(super) struct SyncsUnderWay {
    of_lanes: Vec<u64>,
    of_threads: u64,
}

fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl SyncListener for ReactorGroup {
    fn note_begun(&self) -> u64 {
        let mut syncs = self.thread_syncs.lock();
        let number = syncs.begun;
        syncs.begun += 1;
        syncs.under_way.insert(number);
        number
    }

    fn note_ended(&self, number: u64, outcome: &io::Result<()>) {
        if let Err(error) = outcome {
            self.note_failed_sync(errno_of(error), true);
            if self.cache.config.durability == Durability::BestEffort {
                self.cache.note_failed_flush();
            }
        }
        self.thread_syncs.lock().under_way.remove(&number);
        self.wake_awaiting_syncs();
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

    /// A sync of reactor `number` has come back, with this errno, or 0; `is_first` is the first one of its group that failed.
    pub(super) fn note_sync_ended(&self, number: usize, errno: i32, is_first: bool) {
        if errno != 0 {
            self.note_failed_sync(errno, is_first);
        }
        self.lanes[number].syncs_ended.fetch_add(1, Ordering::SeqCst);
        self.wake_awaiting_syncs();
    }

    /// Before it counts as having come back.
    fn note_failed_sync(&self, errno: i32, is_first: bool) {
        self.sync_errno.store(errno, Ordering::SeqCst);
        // Records that others cleared were dropped as well, and nobody else writes those again.
        if is_first {
            self.cache.index.write_anew_later();
        }
        self.failed_syncs.fetch_add(1, Ordering::SeqCst);
    }

    fn wake_awaiting_syncs(&self) {
        let lanes = self.lanes.iter();
        lanes
            .filter(|lane| lane.awaits_syncs.load(Ordering::SeqCst))
            .for_each(|lane| lane.waker.wake());
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

    /// What all but reactor `number` have in flight. `number` is woken whenever some of it comes back, until
    /// [`ReactorGroup::have_ended`].
    pub(super) fn syncs_under_way(&self, number: usize) -> SyncsUnderWay {
        self.lanes[number].awaits_syncs.store(true, Ordering::SeqCst);
        let begun = |(other, lane): (usize, &super::group::Lane)| match other == number {
            true => 0,
            false => lane.syncs_begun.load(Ordering::SeqCst),
        };
        let of_lanes = self.lanes.iter().enumerate().map(begun).collect();
        SyncsUnderWay { of_lanes, of_threads: self.thread_syncs.lock().begun }
    }

    pub(super) fn have_ended(&self, number: usize, awaited: &SyncsUnderWay) -> bool {
        let mut lanes = self.lanes.iter().zip(&awaited.of_lanes);
        let first_of_threads = self.thread_syncs.lock().under_way.first().copied();
        let have_ended = first_of_threads.is_none_or(|first| first >= awaited.of_threads)
            && lanes.all(|(lane, begun)| lane.syncs_ended.load(Ordering::SeqCst) >= *begun);
        if have_ended {
            self.lanes[number].awaits_syncs.store(false, Ordering::SeqCst);
        }
        have_ended
    }
}
