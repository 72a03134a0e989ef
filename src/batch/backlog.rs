//! The bounded queue of SETs: a batch past `set_queue_bytes`, or the number of SETs, is refused ("queue full").

use std::sync::Arc;

use crate::base::sync::Mutex;

/// The account of SETs that are not answered yet, within bounds: a batch past them is refused.
pub(crate) struct Backlog {
    limit: Amount,
    queued: Mutex<Amount>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
}

/// A batch's part of the account, given back when dropped.
pub(crate) struct QueueShare {
    backlog: Arc<Backlog>,
    amount: Amount,
}

impl Backlog {
    pub(crate) fn new(limit: Amount) -> Arc<Self> {
        Arc::new(Self { limit, queued: Mutex::default() })
    }

    pub(crate) fn queued(&self) -> Amount {
        *self.queued.lock()
    }

    /// Takes a batch, or refuses it. Where nothing is under way any batch is taken, so that none is too large for good.
    pub(crate) fn admit(self: &Arc<Self>, wanted: Amount) -> Option<QueueShare> {
        let mut queued = self.queued.lock();
        let after = Amount {
            operations: queued.operations + wanted.operations,
            bytes: queued.bytes + wanted.bytes,
        };
        let fits = wanted.operations == 0
            || after.operations <= self.limit.operations && after.bytes <= self.limit.bytes;
        if queued.operations > 0 && !fits {
            return None;
        }
        *queued = after;
        Some(QueueShare { backlog: Arc::clone(self), amount: wanted })
    }
}

impl Drop for QueueShare {
    fn drop(&mut self) {
        let mut queued = self.backlog.queued.lock();
        queued.operations -= self.amount.operations;
        queued.bytes -= self.amount.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Amount = Amount { operations: 3, bytes: 100 };

    fn amount(operations: u64, bytes: u64) -> Amount {
        Amount { operations, bytes }
    }

    fn admit(backlog: &Arc<Backlog>, operations: u64, bytes: u64) -> Option<QueueShare> {
        backlog.admit(amount(operations, bytes))
    }

    #[test]
    fn operations_and_bytes_are_bounded_and_come_back() {
        let backlog = Backlog::new(LIMIT);
        let first = admit(&backlog, 2, 90).unwrap();
        assert!(admit(&backlog, 1, 11).is_none(), "too many bytes");
        assert!(admit(&backlog, 2, 2).is_none(), "too many operations");
        let second = admit(&backlog, 1, 10).unwrap();
        assert_eq!(backlog.queued(), amount(3, 100));
        drop(first);
        assert_eq!(backlog.queued(), amount(1, 10));
        assert!(admit(&backlog, 2, 90).is_some());
        drop(second);
        assert_eq!(backlog.queued(), Amount::default());
    }

    #[test]
    fn a_batch_larger_than_the_bounds_goes_alone() {
        let backlog = Backlog::new(LIMIT);
        let large = admit(&backlog, 9, 4500).unwrap();
        assert!(admit(&backlog, 1, 1).is_none());
        drop(large);
        assert!(admit(&backlog, 1, 1).is_some());
    }
}
