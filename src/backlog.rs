//! SETs that are not answered yet, within bounds: past them a batch is refused, or waits for room for a bounded time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// The account of SETs under way.
pub(crate) struct Backlog {
    limit: Amount,
    queued: Mutex<Amount>,
    shrunk: Condvar,
}

/// Operations and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
}

/// One operation's part of the account, given back when dropped.
pub(crate) struct QueueShare {
    backlog: Arc<Backlog>,
    bytes: u64,
}

impl Backlog {
    pub(crate) fn new(limit: Amount) -> Arc<Self> {
        Arc::new(Self { limit, queued: Mutex::default(), shrunk: Condvar::new() })
    }

    /// What is under way.
    pub(crate) fn queued(&self) -> Amount {
        *self.queued.lock()
    }

    /// Takes a batch whose SETs have these lengths, as one, or refuses it if there is still no room after `patience`.
    /// Where nothing is under way any batch is taken, so that none is too large for good.
    pub(crate) fn admit(
        self: &Arc<Self>,
        lengths_bytes: impl ExactSizeIterator<Item = u64> + Clone,
        patience: Duration,
    ) -> Option<impl Iterator<Item = QueueShare>> {
        let wanted =
            Amount { operations: lengths_bytes.len() as u64, bytes: lengths_bytes.clone().sum() };
        let deadline = (patience > Duration::ZERO).then(|| Instant::now() + patience);
        let mut queued = self.queued.lock();
        while !self.has_room(*queued, wanted) {
            let deadline = deadline?;
            if self.shrunk.wait_until(&mut queued, deadline).timed_out()
                && !self.has_room(*queued, wanted)
            {
                return None;
            }
        }
        queued.operations += wanted.operations;
        queued.bytes += wanted.bytes;
        let share = |bytes| QueueShare { backlog: Arc::clone(self), bytes };
        // Each is made here and now: an iterator that is dropped half-way must not lose the rest.
        Some(lengths_bytes.map(share).collect::<Vec<_>>().into_iter())
    }

    fn has_room(&self, queued: Amount, wanted: Amount) -> bool {
        queued.operations == 0
            || queued.operations + wanted.operations <= self.limit.operations
                && queued.bytes + wanted.bytes <= self.limit.bytes
    }
}

impl Drop for QueueShare {
    fn drop(&mut self) {
        let mut queued = self.backlog.queued.lock();
        queued.operations -= 1;
        queued.bytes -= self.bytes;
        drop(queued);
        // Costs nothing while nobody waits.
        self.backlog.shrunk.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Amount = Amount { operations: 3, bytes: 100 };

    fn admit(backlog: &Arc<Backlog>, lengths: &[u64]) -> Option<Vec<QueueShare>> {
        let admitted = backlog.admit(lengths.iter().copied(), Duration::ZERO);
        admitted.map(Iterator::collect)
    }

    #[test]
    fn operations_and_bytes_are_bounded_and_come_back() {
        let backlog = Backlog::new(LIMIT);
        let first = admit(&backlog, &[40, 50]).unwrap();
        assert!(admit(&backlog, &[11]).is_none(), "too many bytes");
        assert!(admit(&backlog, &[1, 1]).is_none(), "too many operations");
        let second = admit(&backlog, &[10]).unwrap();
        assert_eq!(backlog.queued(), Amount { operations: 3, bytes: 100 });
        drop(first);
        assert_eq!(backlog.queued(), Amount { operations: 1, bytes: 10 });
        assert!(admit(&backlog, &[90, 0]).is_some());
        drop(second);
        assert_eq!(backlog.queued(), Amount::default());
    }

    #[test]
    fn a_batch_larger_than_the_bounds_goes_alone() {
        let backlog = Backlog::new(LIMIT);
        let large = admit(&backlog, &[500; 9]).unwrap();
        assert!(admit(&backlog, &[1]).is_none());
        drop(large);
        assert!(admit(&backlog, &[1]).is_some());
    }

    #[test]
    fn who_waits_is_let_in_by_what_ends() {
        let backlog = Backlog::new(LIMIT);
        let held = admit(&backlog, &[100]).unwrap();
        let waiter = std::thread::spawn({
            let backlog = Arc::clone(&backlog);
            move || backlog.admit([60].into_iter(), Duration::from_secs(60)).is_some()
        });
        drop(held);
        assert!(waiter.join().unwrap());
    }

    #[test]
    fn patience_ends() {
        let backlog = Backlog::new(LIMIT);
        let _held = admit(&backlog, &[100]).unwrap();
        assert!(backlog.admit([1].into_iter(), Duration::from_millis(5)).is_none());
    }
}
