//! A lane hands operations to one reactor. An operation goes to the reactor with the least to do before it.
//!
//! Any reactor may get any operation. A SET has claimed its key, where later operations on the key wait until it is done, and a
//! GET has opened its chunk.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{iter, mem};

use super::bytes_bound::{OfLoadsAndStores, Saturated};
use super::latency::Latencies;
use super::operation::Operation;
use super::piece::Piece;
use crate::engine::Waker;
use crate::key::Digest;
use crate::schedule::Class;
use crate::sync::Mutex;
use crate::sync::SegQueue;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// What submitting threads and other reactors need to know of one reactor.
pub(super) struct Lane {
    /// Submitted batches of loads and of the rest, in parts of [`MOST_IN_A_TURN`]: loads overtake what came before.
    pub(super) intake: OfLoadsAndStores<SegQueue<Vec<Operation>>>,
    /// Keys whose SETs are to be promoted, as GETs wait for them.
    pub(super) awaited: SegQueue<Digest>,
    /// Pieces of it that others have summed up.
    pub(super) returned: SegQueue<Piece>,
    pub(super) waker: Arc<Waker>,
    pub(super) latencies: Mutex<Latencies>,
    pub(super) load: Load,
    /// Its syncs. All that it has in flight come back before it begins further ones.
    pub(super) syncs_begun: AtomicU64,
    pub(super) syncs_ended: AtomicU64,
    /// It waits for syncs of others.
    pub(super) awaits_syncs: AtomicBool,
    /// It waits for changes of records to be made.
    pub(super) awaits_records: AtomicBool,
    /// GETs that wait or are in flight here.
    pub(super) loads: AtomicUsize,
    /// SETs wait here for the loads of others to end.
    pub(super) sets_wait: AtomicBool,
    /// Describes its engine, once it runs.
    pub(super) engine: OnceLock<String>,
    /// Processor time that it has taken, and bytes that it has moved.
    pub(super) processor_ns: AtomicU64,
    pub(super) moved_bytes: OfLoadsAndStores<AtomicU64>,
    /// Time in which its part of the bytes in the device held loads or stores back, and what moved of them in it.
    saturated_ns: OfLoadsAndStores<AtomicU64>,
    saturated_bytes: OfLoadsAndStores<AtomicU64>,
}

/// Syncs of threads that are no reactors, by number.
#[derive(Default)]
pub(super) struct ThreadSyncs {
    pub(super) begun: u64,
    pub(super) under_way: BTreeSet<u64>,
}

/// A piece that the kernel is done with, of reactor `owner`, to be summed up by any.
pub(super) struct Offered {
    pub(super) piece: Piece,
    pub(super) owner: usize,
}

/// Operations of one kind that a turn takes up, or answers without a transfer: some tenth of a millisecond.
pub(super) const MOST_IN_A_TURN: usize = 256;

/// A batch stays with a reactor until that has so much more to do than the least busy one: small chunks cost less where
/// few reactors are woken for them, and count down one batch in turns.
const RUN_BYTES: u64 = 256 << 10;

/// What a reactor has to do, in bytes of each class: pushed or taken up, and not answered yet. Read without a lock, so it may be a
/// little old.
#[derive(Default)]
pub(super) struct Load([AtomicU64; 3]);

impl Load {
    pub(super) fn add(&self, class: Class, bytes: u64) {
        self.0[class as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds what has come since the last time less what was answered, and begins to count anew.
    pub(super) fn change(&self, changes_bytes: &mut [i64; 3]) {
        for (bytes, change) in self.0.iter().zip(changes_bytes).filter(|(_, change)| **change != 0)
        {
            bytes.fetch_add(mem::take(change) as u64, Ordering::Relaxed);
        }
    }

    /// Bytes that go before an operation of `class`: of classes that are served before it and of its own; then all bytes,
    /// as those behind it take processor time too.
    fn before(&self, class: Class) -> (u64, u64) {
        let all = self.0.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
        (all[..=class as usize].iter().sum(), all.iter().sum())
    }
}

/// Operations of one batch, spread over the reactors.
pub(crate) struct Spread {
    pub(super) class: Class,
    pub(super) parts: Vec<LanePart>,
    /// Who got the last operation.
    current: usize,
}

pub(super) struct LanePart {
    /// What it has to do before the next operation.
    before: (u64, u64),
    pub(super) bytes: u64,
    pub(super) operations: Vec<Operation>,
}

impl Lane {
    pub(super) fn new(waker: Arc<Waker>) -> Self {
        Self {
            intake: Default::default(),
            awaited: SegQueue::new(),
            returned: SegQueue::new(),
            waker,
            latencies: Mutex::new(Latencies::new()),
            load: Load::default(),
            syncs_begun: AtomicU64::new(0),
            syncs_ended: AtomicU64::new(0),
            awaits_syncs: AtomicBool::new(false),
            awaits_records: AtomicBool::new(false),
            loads: AtomicUsize::new(0),
            sets_wait: AtomicBool::new(false),
            engine: OnceLock::new(),
            processor_ns: AtomicU64::new(0),
            moved_bytes: Default::default(),
            saturated_ns: Default::default(),
            saturated_bytes: Default::default(),
        }
    }

    pub(super) fn tell_saturated(&self, totals: OfLoadsAndStores<Saturated>) {
        for (place, total) in totals.iter().enumerate() {
            self.saturated_ns[place].store(total.time.as_nanos() as u64, Ordering::Relaxed);
            self.saturated_bytes[place].store(total.moved_bytes, Ordering::Relaxed);
        }
    }

    /// What it has told.
    pub(super) fn saturated(&self, place: usize) -> Saturated {
        Saturated {
            time: Duration::from_nanos(self.saturated_ns[place].load(Ordering::Relaxed)),
            moved_bytes: self.saturated_bytes[place].load(Ordering::Relaxed),
        }
    }

    /// Whether it has operations that are not answered.
    pub(super) fn is_pending(&self) -> bool {
        self.load.before(Class::Set).1 > 0
    }
}

impl LanePart {
    /// Its operations in order, in parts of which a turn takes one or two.
    pub(super) fn into_turns(self) -> impl Iterator<Item = Vec<Operation>> {
        let mut rest = self.operations.into_iter();
        iter::from_fn(move || Some(rest.by_ref().take(MOST_IN_A_TURN).collect()))
            .take_while(|part: &Vec<Operation>| !part.is_empty())
    }
}

impl Spread {
    pub(super) fn new(lanes: &[Lane], class: Class, expected: usize) -> Self {
        let share = if lanes.len() == 1 { expected } else { 0 };
        let part = |lane: &Lane| LanePart {
            before: lane.load.before(class),
            bytes: 0,
            operations: Vec::with_capacity(share),
        };
        let mut spread = Self { class, parts: lanes.iter().map(part).collect(), current: 0 };
        spread.current = spread.least_busy();
        spread
    }

    fn least_busy(&self) -> usize {
        // The first one of several.
        (0..self.parts.len()).min_by_key(|number| self.parts[*number].before).unwrap_or(0)
    }

    /// Gives an operation to the reactor with the least to do, about.
    pub(crate) fn add(&mut self, operation: Operation) {
        let least = self.least_busy();
        if self.parts[self.current].before.0 >= self.parts[least].before.0 + RUN_BYTES {
            self.current = least;
        }
        let part = &mut self.parts[self.current];
        let bytes = operation.cost_bytes();
        part.before.0 += bytes;
        part.before.1 += bytes;
        part.bytes += bytes;
        part.operations.push(operation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_served_later_only_breaks_ties() {
        let [idle, loading, storing] = [[0; 3], [10, 0, 0], [0, 0, 1000]].map(|mut bytes| {
            let load = Load::default();
            load.change(&mut bytes);
            assert_eq!(bytes, [0; 3], "each is counted once");
            load
        });
        storing.add(Class::Set, 24);
        assert_eq!(storing.before(Class::Get), (0, 1024));
        assert!(storing.before(Class::Get) < loading.before(Class::Get));
        assert!(idle.before(Class::Get) < storing.before(Class::Get));
        assert!(loading.before(Class::Set) < storing.before(Class::Set));
        storing.change(&mut [0, 0, -24]);
        assert_eq!(storing.before(Class::Set), (1000, 1000));
    }
}
