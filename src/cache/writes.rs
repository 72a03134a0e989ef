//! The chunks that are being written: their room cannot be taken, and comes back soon. A SET that finds no other room waits for it.

use crate::base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// One part in so many of the capacity is being written at a time: what is being written cannot make room for others.
const WRITTEN_PART: u64 = 4;

/// Whose room it is that has none: that of a namespace with a quota, by its fingerprint, or the store's.
pub(crate) type RoomOf = Option<u64>;

#[derive(Default)]
pub(crate) struct WritesInFlight {
    /// Chunks that have room, or are looking for it.
    count: AtomicUsize,
    bytes: AtomicU64,
    /// Times that room may have come.
    changes: AtomicU64,
    /// SETs of this path that wait for that.
    waiting: AtomicUsize,
}

impl WritesInFlight {
    pub(super) fn begin(&self, bytes: u64) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    pub(super) fn end(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn are_there(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Grows whenever room may have come for a SET that waits.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    pub(crate) fn add_waiting(&self, count: usize) {
        self.waiting.fetch_add(count, Ordering::SeqCst);
    }

    pub(crate) fn remove_waiting(&self, count: usize) {
        self.waiting.fetch_sub(count, Ordering::SeqCst);
    }

    /// Whether `bytes` more would be too much of `capacity_bytes` at a time.
    pub(super) fn is_too_much(&self, bytes: u64, capacity_bytes: u64) -> bool {
        let in_flight_bytes = self.bytes.load(Ordering::SeqCst);
        in_flight_bytes > 0 && in_flight_bytes + bytes > capacity_bytes / WRITTEN_PART
    }

    /// Room may have come. Says whether a SET waits for that.
    pub(super) fn note_room(&self) -> bool {
        // Before it is asked who waits: who begins to wait looks at the changes after it has said so.
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.waiting.load(Ordering::SeqCst) > 0
    }
}
