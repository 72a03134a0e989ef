//! Operations of a path that no reactor has taken up: loads, and SETs. Whichever reactor has room for one takes it up.

use std::collections::VecDeque;
use std::time::Instant;

use super::operation::Operation;
use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicUsize, Ordering};
use crate::schedule::Class;

/// Operations that are queued, or taken out, under one lock: some ten microseconds.
const MOST_AT_A_TIME: usize = 256;

/// A reactor takes up so many bytes at once, or one operation: small ones cost less together.
const TAKEN_BYTES: u64 = 128 << 10;

/// In the order in which they came, by class. How many there are is read without a lock.
#[derive(Default)]
pub(super) struct Pending {
    queues: Mutex<[VecDeque<Operation>; 3]>,
    counts: [AtomicUsize; 3],
}

impl Pending {
    pub(super) fn push(&self, operations: Vec<Operation>) {
        let mut rest = operations.into_iter().peekable();
        while rest.peek().is_some() {
            let mut queues = self.queues.lock();
            for operation in rest.by_ref().take(MOST_AT_A_TIME) {
                queues[operation.class() as usize].push_back(operation);
            }
            self.note_counts(&queues);
        }
    }

    fn note_counts(&self, queues: &[VecDeque<Operation>; 3]) {
        let counted = self.counts.iter().zip(queues);
        counted.for_each(|(count, queue)| count.store(queue.len(), Ordering::SeqCst));
    }

    pub(super) fn count(&self, class: Class) -> usize {
        self.counts[class as usize].load(Ordering::SeqCst)
    }

    pub(super) fn has_loads(&self) -> bool {
        self.count(Class::Get) > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.has_loads() && self.count(Class::Set) == 0
    }

    /// The next one of a class, or several small ones.
    pub(super) fn take(&self, class: Class) -> Vec<Operation> {
        let mut taken = Vec::new();
        if self.count(class) == 0 {
            return taken;
        }
        let mut queues = self.queues.lock();
        let mut bytes = 0;
        while bytes < TAKEN_BYTES
            && let Some(operation) = queues[class as usize].pop_front()
        {
            bytes += operation.cost_bytes();
            taken.push(operation);
        }
        self.note_counts(&queues);
        taken
    }

    /// Some of whatever is left.
    pub(super) fn drain_some(&self) -> Vec<Operation> {
        let mut queues = self.queues.lock();
        let mut taken = Vec::new();
        for queue in queues.iter_mut() {
            let most = queue.len().min(MOST_AT_A_TIME - taken.len());
            taken.extend(queue.drain(..most));
        }
        self.note_counts(&queues);
        taken
    }

    /// When the first load came.
    pub(super) fn oldest_load(&self) -> Option<Instant> {
        if !self.has_loads() {
            return None;
        }
        self.queues.lock()[Class::Get as usize].front().and_then(Operation::submitted)
    }

    /// Loads that came by `latest`, some of them if they are many.
    pub(super) fn take_late_loads(&self, latest: Instant) -> Vec<Operation> {
        if !self.has_loads() {
            return Vec::new();
        }
        let mut queues = self.queues.lock();
        let loads = &mut queues[Class::Get as usize];
        let is_late = |load: &Operation| load.submitted().is_some_and(|since| since <= latest);
        let late = loads.iter().take(MOST_AT_A_TIME).take_while(|load| is_late(load)).count();
        let late = loads.drain(..late).collect();
        self.note_counts(&queues);
        late
    }
}
