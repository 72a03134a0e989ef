//! Which reactor gets an operation: the one with the least to do before it.
//!
//! Any reactor may get any operation. A SET has claimed its key in the index, where later operations on the key wait until
//! it is done, a GET has pinned its chunk, and a place that is to be freed is nobody's.

use std::sync::atomic::{AtomicU64, Ordering};

use super::operation::Operation;
use super::shared::{Lane, Shared};
use super::work::Work;
use crate::schedule::Class;

/// A batch stays with a reactor until that has so much more to do than the least busy one: small chunks cost less where
/// few reactors are woken for them, and count down one batch in turns.
const RUN_BYTES: u64 = 256 << 10;

/// What a reactor has to do, in bytes of each class. Read without a lock, so it may be a little old.
#[derive(Default)]
pub(super) struct Load {
    /// Pushed, and not taken up yet.
    queued: [AtomicU64; 3],
    /// Taken up, and not answered yet.
    in_hand: [AtomicU64; 3],
}

impl Load {
    pub(super) fn add_queued(&self, class: Class, bytes: u64) {
        self.queued[class as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn set_in_hand(&self, bytes: &[u64; 3]) {
        for (in_hand, bytes) in self.in_hand.iter().zip(bytes) {
            in_hand.store(*bytes, Ordering::Relaxed);
        }
    }

    /// What was queued is in hand. To be called when it counts there, so that it is never missing.
    pub(super) fn remove_queued(&self, bytes: &[u64; 3]) {
        for (queued, bytes) in self.queued.iter().zip(bytes).filter(|(_, bytes)| **bytes > 0) {
            queued.fetch_sub(*bytes, Ordering::Relaxed);
        }
    }

    /// Bytes that go before an operation of `class`: of classes that are served before it and of its own; then all bytes,
    /// as those behind it take processor time too.
    fn before(&self, class: Class) -> (u64, u64) {
        let of = |class: usize| {
            let (queued, in_hand) = (&self.queued[class], &self.in_hand[class]);
            queued.load(Ordering::Relaxed) + in_hand.load(Ordering::Relaxed)
        };
        let all: [u64; 3] = std::array::from_fn(of);
        (all[..=class as usize].iter().sum(), all.iter().sum())
    }
}

/// Operations of one batch, spread over the reactors.
pub(crate) struct Spread {
    pub(super) class: Class,
    pub(super) parts: Vec<Part>,
    /// Who got the last operation.
    current: usize,
}

/// What one reactor gets.
pub(super) struct Part {
    /// What it has to do before the next operation.
    before: (u64, u64),
    pub(super) bytes: u64,
    pub(super) operations: Vec<Operation>,
}

impl Spread {
    /// Nothing yet, of a batch of `expected` operations of `class`.
    pub(crate) fn new(shared: &Shared, class: Class, expected: usize) -> Self {
        let share = if shared.lanes.len() == 1 { expected } else { 0 };
        let part = |lane: &Lane| Part {
            before: lane.load.before(class),
            bytes: 0,
            operations: Vec::with_capacity(share),
        };
        let mut spread = Self { class, parts: shared.lanes.iter().map(part).collect(), current: 0 };
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

impl Work {
    /// Takes up what was pushed.
    pub(super) fn take_up(&mut self, shared: &Shared) {
        let lane = &shared.lanes[self.number];
        let mut taken_bytes = [0; 3];
        while let Some(operations) = lane.intake.pop() {
            for operation in operations {
                taken_bytes[operation.class() as usize] += operation.cost_bytes();
                self.accept(operation, shared);
            }
        }
        // After the SETs: what comes later than its SET is found.
        while let Some(digest) = lane.intake.pop_awaited() {
            if let Some(id) = self.set_of(digest) {
                self.promote(id);
            }
        }
        lane.load.set_in_hand(&self.in_hand_bytes);
        lane.load.remove_queued(&taken_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_served_later_only_breaks_ties() {
        let [idle, loading, storing] = [[0; 3], [10, 0, 0], [0, 0, 1000]].map(|in_hand| {
            let load = Load::default();
            load.set_in_hand(&in_hand);
            load
        });
        storing.add_queued(Class::Set, 24);
        assert_eq!(storing.before(Class::Get), (0, 1024));
        assert!(storing.before(Class::Get) < loading.before(Class::Get));
        assert!(idle.before(Class::Get) < storing.before(Class::Get));
        assert!(loading.before(Class::Set) < storing.before(Class::Set));
        storing.remove_queued(&[0, 0, 24]);
        assert_eq!(storing.before(Class::Set), (1000, 1000));
    }
}
