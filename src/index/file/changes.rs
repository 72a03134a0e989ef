//! Changes of records, on their way into the index file.
//!
//! A write to a file may wait for its file system: for the journal, and without end while it is frozen. While a store is open,
//! changes are queued under the lock of their shard, and one thread (`record_writer`) makes them in that order
//! with no lock held: a kill leaves a prefix of them. Until then the new records are kept here.
//!
//! By write(2), not through the mapping: before Linux 6.7 a page fault that waits for the file system holds the lock of the
//! address space.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::sequencer::Sequencer;
use crate::base::sync::SegQueue;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::base::sync::{Condvar, IS_MODELLED, Mutex};
use crate::format::record::Record;

/// Parts of [`Unwritten`], each behind a lock.
const PARTS: usize = if IS_MODELLED { 2 } else { 64 };

/// After so many changes the thread is woken without [`Changes::announce`].
const MANY: u64 = 64;

/// Most changes that are made before those that wait for them are notified.
const MOST_AT_ONCE: usize = 256;

#[derive(Clone)]
pub(crate) enum Change {
    Write(u32, Arc<Record>),
    /// The next open does not find the record.
    Invalidate(u32),
    Use(u32, u64),
    /// The next sync writes all of the file.
    MarkAll,
}

#[derive(Default)]
pub(crate) struct Changes {
    /// A thread makes them; else the caller of [`Table::change`](super::table::Table::change) does.
    pub(crate) is_deferred: AtomicBool,
    queue: SegQueue<Change>,
    /// The thread sleeps, or is about to, and has not been woken.
    is_asleep: AtomicBool,
    ends: Mutex<bool>,
    notified: Condvar,
    pub(crate) unwritten: Unwritten,
    pub(crate) sequencer: Arc<Sequencer>,
    /// Ticket behind the last change that freed an extent.
    freed: AtomicU64,
    /// Ticket behind the last change that is to be durable: uses alone are not.
    lasting: AtomicU64,
    any_lost: AtomicBool,
    lost: Mutex<Vec<u64>>,
}

impl Changes {
    /// From here on a thread makes the changes (see [`Table::make_changes`](super::table::Table::make_changes)), or no longer.
    pub(crate) fn defer(&self, is_deferred: bool) {
        self.is_deferred.store(is_deferred, Ordering::SeqCst);
    }

    /// When this ticket is done, no record in the file names an extent that is free now.
    pub(crate) fn freed_ticket(&self) -> u64 {
        self.freed.load(Ordering::SeqCst)
    }

    pub(crate) fn lasting_ticket(&self) -> u64 {
        self.lasting.load(Ordering::SeqCst)
    }

    pub(crate) fn note_lost(&self, generation: u64) {
        self.lost.lock().push(generation);
        self.any_lost.store(true, Ordering::SeqCst);
    }

    /// Whether the record of the chunk with this generation could not be written. It is forgotten then.
    pub(crate) fn has_lost(&self, generation: u64) -> bool {
        if !self.any_lost.load(Ordering::SeqCst) {
            return false;
        }
        let mut lost = self.lost.lock();
        let before = lost.len();
        lost.retain(|other| *other != generation);
        before > lost.len()
    }

    pub(crate) fn push(&self, change: Change) {
        let frees = matches!(change, Change::Invalidate(_));
        let is_lasting = !matches!(change, Change::Use(..));
        if let Change::Write(slot, record) = &change {
            // First: the thread takes it out again.
            self.unwritten.insert(*slot, Arc::clone(record));
        }
        // Before it is there: a ticket taken afterwards is behind it.
        let number = self.sequencer.note_queued();
        self.queue.push(change);
        if frees {
            self.freed.fetch_max(self.sequencer.ticket(), Ordering::SeqCst);
        }
        if is_lasting {
            self.lasting.fetch_max(number, Ordering::SeqCst);
        }
        if number.is_multiple_of(MANY) {
            self.announce();
        }
    }

    /// Wakes the thread if there is something for it. Callers do so once after many changes: each time costs a system call.
    pub(crate) fn announce(&self) {
        // Either this sees that it sleeps, or that has seen what was queued before.
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::SeqCst)
            && !self.queue.is_empty()
            && self.is_asleep.swap(false, Ordering::SeqCst)
        {
            drop(self.ends.lock());
            self.notified.notify_one();
        }
    }

    /// Adds the next changes, in order; waits for them. False when there are no more and it is to end.
    pub(crate) fn take(&self, into: &mut Vec<Change>) -> bool {
        loop {
            into.extend(std::iter::from_fn(|| self.queue.pop()).take(MOST_AT_ONCE));
            if !into.is_empty() {
                return true;
            }
            let mut ends = self.ends.lock();
            loop {
                // Each time: a late wake-up may have been meant for the time before.
                self.is_asleep.swap(true, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                if !self.queue.is_empty() {
                    break;
                }
                if *ends {
                    return false;
                }
                ends = self.notified.wait(ends);
            }
            self.is_asleep.swap(false, Ordering::SeqCst);
        }
    }

    pub(crate) fn end(&self) {
        *self.ends.lock() = true;
        self.notified.notify_one();
    }

    /// Waits for so long; false if the thread is to end instead.
    pub(crate) fn pause(&self, pause: Duration) -> bool {
        let (deadline, mut ends) = (Instant::now() + pause, self.ends.lock());
        let mut is_over = false;
        while !*ends && !is_over {
            (ends, is_over) = self.notified.wait_until(ends, deadline);
        }
        !*ends
    }
}

/// How far they are written.
impl Deref for Changes {
    type Target = Sequencer;

    fn deref(&self) -> &Sequencer {
        &self.sequencer
    }
}

/// Records by slot that are not in the file yet. A record is looked up under the lock under which it was queued, if there is one.
pub(crate) struct Unwritten([UnwrittenPart; PARTS]);

/// In a cache line that it shares with no other.
#[derive(Default)]
#[repr(align(64))]
struct UnwrittenPart {
    count: AtomicUsize,
    records: Mutex<BTreeMap<u32, Arc<Record>>>,
}

impl Default for Unwritten {
    fn default() -> Self {
        Self(std::array::from_fn(|_| UnwrittenPart::default()))
    }
}

impl Unwritten {
    fn part(&self, slot: u32) -> &UnwrittenPart {
        &self.0[slot as usize % PARTS]
    }

    fn insert(&self, slot: u32, record: Arc<Record>) {
        let part = self.part(slot);
        let mut records = part.records.lock();
        records.insert(slot, record);
        part.count.store(records.len(), Ordering::Release);
    }

    /// It is in the file, or never will be. A younger one for the slot stays.
    pub(crate) fn remove(&self, slot: u32, record: &Arc<Record>) {
        let part = self.part(slot);
        let mut records = part.records.lock();
        if records.get(&slot).is_some_and(|held| Arc::ptr_eq(held, record)) {
            records.remove(&slot);
            // After the write: a reader that sees none here reads the file.
            part.count.store(records.len(), Ordering::Release);
        }
    }

    pub(crate) fn get(&self, slot: u32) -> Option<Arc<Record>> {
        let part = self.part(slot);
        // The usual case costs one load.
        if part.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        part.records.lock().get(&slot).cloned()
    }
}

#[cfg(test)]
mod tests;
