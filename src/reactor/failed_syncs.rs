//! How the syncs of all reactors of a store end.
//!
//! A sync that fails may have dropped whatever was written before it ended, in other files too where it was the device
//! that could not flush; the next sync, by whichever reactor, reports success for it. So a chunk is durable only if no
//! sync of the store failed between the start of its write and its own last sync, and that is known only when all those
//! have come back that were under way when that last one did.

use std::io;
use std::time::Instant;

use super::Shared;
use super::health::Direction;
use crate::sync::atomic::Ordering;

/// For each reactor, how many of its syncs have to have come back.
pub(super) struct SyncsUnderWay(Vec<u64>);

impl Shared {
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
            self.sync_errno.store(errno, Ordering::SeqCst);
            // Records that others cleared were dropped as well, and nobody else writes those again.
            if is_first {
                self.cache.index.table.write_anew_later();
            }
            self.failed_syncs.fetch_add(1, Ordering::SeqCst);
        }
        self.lanes[number].syncs_ended.fetch_add(1, Ordering::SeqCst);
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
        if self.health.may_log(Direction::Sync, path) {
            log::error!(
                "{}: cannot make durable what was stored: {error}; power loss may take it",
                path.display()
            );
        }
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        self.health.note_failed_flush(errno, Instant::now());
    }

    /// What reactors other than `number` have in flight. `number` is woken whenever some of it comes back, until
    /// [`Shared::have_ended`].
    pub(super) fn syncs_under_way(&self, number: usize) -> SyncsUnderWay {
        self.lanes[number].awaits_syncs.store(true, Ordering::SeqCst);
        let begun = |(other, lane): (usize, &super::lanes::Lane)| match other == number {
            true => 0,
            false => lane.syncs_begun.load(Ordering::SeqCst),
        };
        SyncsUnderWay(self.lanes.iter().enumerate().map(begun).collect())
    }

    pub(super) fn have_ended(&self, number: usize, awaited: &SyncsUnderWay) -> bool {
        let mut lanes = self.lanes.iter().zip(&awaited.0);
        let have_ended =
            lanes.all(|(lane, begun)| lane.syncs_ended.load(Ordering::SeqCst) >= *begun);
        if have_ended {
            self.lanes[number].awaits_syncs.store(false, Ordering::SeqCst);
        }
        have_ended
    }
}
