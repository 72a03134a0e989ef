//! Changes of records, on their way into the index file.
//!
//! Who writes to a file may wait for its file system: for the journal, and for ever while it is frozen. So nobody does whom
//! others wait for. While a store is open, changes are queued, under the lock of the shard that they belong to, and a thread of
//! its own ([`record_writer`](crate::reactor)) makes them in that order, with no lock held: a kill leaves what the first of
//! them make. Until it has, what a record says is kept here.
//!
//! By write(2), not through the mapping: a page fault that waits for the file system holds the lock of the address space, before
//! Linux 6.7, and with it everybody who maps memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant};

use crossbeam_queue::SegQueue;
use hashbrown::HashTable;

use crate::format::record::Record;
use crate::progress::Progress;
use crate::sync::{Condvar, Mutex};

/// Parts of what is not written yet, each behind a lock.
const PARTS: usize = 64;

/// So many changes are not left to wait for [`Changes::announce`].
const MANY: u64 = 64;

/// Most changes that are made between two looks at who waits for them.
const MOST_AT_ONCE: usize = 256;

/// What is to be done to a record in the file.
#[derive(Clone)]
pub(crate) enum Change {
    /// It is this one now.
    Write(u32, Arc<Record>),
    /// It is none that a start would find.
    Invalidate(u32),
    /// When its chunk was used, and how often.
    Use(u32, u64),
    /// The next sync writes all of the file.
    MarkAll,
}

/// The queue, and what records say that are not written yet.
#[derive(Default)]
pub(super) struct Changes {
    /// There is a thread that makes them.
    is_deferred: AtomicBool,
    queue: SegQueue<Change>,
    /// The thread sleeps, or is about to, and has not been woken.
    is_asleep: AtomicBool,
    /// Whether it is to end when there is nothing more.
    ends: Mutex<bool>,
    told: Condvar,
    unwritten: Unwritten,
    progress: Arc<Progress>,
    /// Ticket behind the last change that left a place free.
    freed: AtomicU64,
    lost: Lost,
}

impl Changes {
    /// Whether changes are queued; if not, who makes one writes it.
    pub(super) fn are_deferred(&self) -> bool {
        self.is_deferred.load(Ordering::SeqCst)
    }

    pub(super) fn defer(&self, is_deferred: bool) {
        self.is_deferred.store(is_deferred, Ordering::SeqCst);
    }

    pub(super) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    pub(super) fn lost(&self) -> &Lost {
        &self.lost
    }

    /// Done when every change is made that has left a place free by now.
    pub(super) fn freed(&self) -> u64 {
        self.freed.load(Ordering::SeqCst)
    }

    /// Queues a change.
    pub(super) fn push(&self, change: Change) {
        let frees = matches!(change, Change::Invalidate(_));
        if let Change::Write(slot, record) = &change {
            // First: the thread takes it out again.
            self.unwritten.insert(*slot, Arc::clone(record));
        }
        // Before it is there: a ticket taken afterwards is behind it, whoever queues others meanwhile.
        let number = self.progress.note_queued();
        self.queue.push(change);
        if frees {
            self.freed.fetch_max(self.progress.ticket(), Ordering::SeqCst);
        }
        if number.is_multiple_of(MANY) {
            self.announce();
        }
    }

    /// Wakes the thread if there is something for it. Once for many changes: each time costs a system call.
    pub(super) fn announce(&self) {
        // Either this sees that it sleeps, or that has seen what was queued before.
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::SeqCst)
            && !self.queue.is_empty()
            && self.is_asleep.swap(false, Ordering::SeqCst)
        {
            drop(self.ends.lock());
            self.told.notify_one();
        }
    }

    /// Adds the next changes, in order; waits for them. False when there are no more and it is to end.
    pub(super) fn take(&self, into: &mut Vec<Change>) -> bool {
        loop {
            into.extend(std::iter::from_fn(|| self.queue.pop()).take(MOST_AT_ONCE));
            if !into.is_empty() {
                return true;
            }
            let mut ends = self.ends.lock();
            loop {
                // Each time: who woke it may have been late, and meant the time before.
                self.is_asleep.store(true, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                if !self.queue.is_empty() {
                    break;
                }
                if *ends {
                    return false;
                }
                ends = self.told.wait(ends);
            }
            self.is_asleep.store(false, Ordering::SeqCst);
        }
    }

    /// Has the thread end behind what is queued.
    pub(super) fn end(&self) {
        *self.ends.lock() = true;
        self.told.notify_one();
    }

    /// Whether the thread is to end.
    pub(super) fn are_to_end(&self) -> bool {
        *self.ends.lock()
    }

    /// Waits for so long; false if the thread is to end instead.
    pub(super) fn pause(&self, pause: Duration) -> bool {
        let (deadline, mut ends) = (Instant::now() + pause, self.ends.lock());
        let mut is_over = false;
        while !*ends && !is_over {
            (ends, is_over) = self.told.wait_until(ends, deadline);
        }
        !*ends
    }

    /// It is in the file, or never will be.
    pub(super) fn note_made(&self, change: &Change) {
        if let Change::Write(slot, record) = change {
            self.unwritten.remove(*slot, record);
        }
    }

    /// What the record in `slot` says, if that is not in the file yet.
    pub(super) fn unwritten(&self, slot: u32) -> Option<Arc<Record>> {
        self.unwritten.get(slot)
    }
}

/// Records by slot. Who looks for one holds the lock under which it was queued, if there is one.
struct Unwritten([Part; PARTS]);

/// In a cache line that it shares with no other.
#[derive(Default)]
#[repr(align(64))]
struct Part {
    count: AtomicUsize,
    records: Mutex<HashTable<(u32, Arc<Record>)>>,
}

impl Default for Unwritten {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Part::default()))
    }
}

fn hash(slot: u32) -> u64 {
    u64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Unwritten {
    fn part(&self, slot: u32) -> &Part {
        &self.0[slot as usize % PARTS]
    }

    fn insert(&self, slot: u32, record: Arc<Record>) {
        let part = self.part(slot);
        let mut records = part.records.lock();
        match records.find_mut(hash(slot), |(other, _)| *other == slot) {
            Some((_, older)) => *older = record,
            None => {
                records.insert_unique(hash(slot), (slot, record), |(slot, _)| hash(*slot));
                part.count.store(records.len(), Ordering::Release);
            }
        }
    }

    /// Unless there is a younger one by now.
    fn remove(&self, slot: u32, record: &Arc<Record>) {
        let part = self.part(slot);
        let mut records = part.records.lock();
        let is_it =
            |(other, held): &(u32, Arc<Record>)| *other == slot && Arc::ptr_eq(held, record);
        if let Ok(found) = records.find_entry(hash(slot), is_it) {
            found.remove();
            // Who sees nothing here sees what was written.
            part.count.store(records.len(), Ordering::Release);
        }
    }

    fn get(&self, slot: u32) -> Option<Arc<Record>> {
        let part = self.part(slot);
        // The usual case costs one load.
        if part.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let records = part.records.lock();
        records.find(hash(slot), |(other, _)| *other == slot).map(|(_, record)| Arc::clone(record))
    }
}

/// Generations of chunks whose records could not be written.
#[derive(Default)]
pub(super) struct Lost {
    any: AtomicBool,
    generations: Mutex<Vec<u64>>,
}

impl Lost {
    pub(super) fn add(&self, generation: u64) {
        self.generations.lock().push(generation);
        self.any.store(true, Ordering::SeqCst);
    }

    /// Says whether it was one of them, and forgets it.
    pub(super) fn take(&self, generation: u64) -> bool {
        if !self.any.load(Ordering::SeqCst) {
            return false;
        }
        let mut generations = self.generations.lock();
        let before = generations.len();
        generations.retain(|other| *other != generation);
        before > generations.len()
    }
}
