//! Work stealing of checksums: pieces that come back faster than their reactor can sum them up are offered to reactors that are free.
//! Each comes back to its owner, which alone knows its operation.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::Shared;
use super::lanes::Offered;
use super::operations::{CHECKSUM_TURN_BYTES, Operations};
use crate::sync::thread::sleep;

/// A reactor keeps so much to do itself: others are woken for more only.
const KEPT_BYTES: u64 = 2 * CHECKSUM_TURN_BYTES;

/// Most bytes of one reactor that others have. They may hold bounce memory.
const MOST_OFFERED_BYTES: u64 = 16 * CHECKSUM_TURN_BYTES;

/// How often a reactor that ends looks whether its pieces are back.
const LOOK: Duration = Duration::from_micros(50);

impl Shared {
    /// Copies and sums up a piece of any reactor, and gives it back. Returns its length, or `None` if none is offered.
    fn steal(&self) -> Option<u64> {
        let Offered { mut piece, owner } = self.offered.pop()?;
        // After a panic too: its owner must not wait for it. It does again what is not done.
        let outcome = catch_unwind(AssertUnwindSafe(|| piece.process()));
        let length_bytes = piece.grant.length_bytes;
        self.lanes[owner].returned.push(piece);
        self.lanes[owner].waker.wake();
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
        Some(length_bytes)
    }
}

impl Operations {
    /// Takes up what others have done, and offers them what is too much for this reactor, if one of them sleeps.
    pub(super) fn share_checksums(&mut self) {
        let shared = &self.shared;
        if shared.lanes.len() == 1 {
            return;
        }
        while let Some(piece) = shared.lanes[self.number].returned.pop() {
            self.device.offered_bytes -= piece.grant.length_bytes;
            self.device.put_moved(piece, 0);
        }
        if self.device.moved_bytes <= KEPT_BYTES {
            return;
        }
        let sleeping = || shared.running().filter(|lane| lane.waker.sleeps());
        if sleeping().next().is_none() {
            return;
        }
        let before_bytes = self.device.offered_bytes;
        while self.device.moved_bytes > KEPT_BYTES
            && self.device.offered_bytes < MOST_OFFERED_BYTES
            && let Some(piece) = self.device.take_last_unsummed()
        {
            self.device.offered_bytes += piece.grant.length_bytes;
            shared.offered.push(Offered { piece, owner: self.number });
        }
        // A turn of work for each.
        let turns = (self.device.offered_bytes - before_bytes).div_ceil(CHECKSUM_TURN_BYTES);
        sleeping().take(turns as usize).for_each(|lane| lane.waker.wake());
    }

    /// Sums up what others have offered, where this reactor has nothing of its own to sum up.
    pub(super) fn steal_checksums(&mut self, limit_bytes: u64) {
        let mut stolen_bytes = 0;
        while stolen_bytes < limit_bytes
            && self.device.moved_bytes == 0
            && let Some(length_bytes) = self.shared.steal()
        {
            stolen_bytes += length_bytes;
        }
        self.shared.cache.counters.checksums_stolen_bytes.add(stolen_bytes);
    }

    /// Waits until every piece that was offered is back.
    pub(super) fn await_returned(&mut self) {
        self.share_checksums();
        while self.device.offered_bytes > 0 {
            if self.shared.steal().is_none() {
                sleep(LOOK);
            }
            self.share_checksums();
        }
    }
}
