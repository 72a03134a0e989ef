//! SETs that are not answered yet, within bounds: past them a batch is refused, or waits for room for a bounded time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::{Condvar, Mutex};

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

/// A batch's part of the account, given back when dropped.
pub(crate) struct QueueShare {
    backlog: Arc<Backlog>,
    amount: Amount,
}

impl Backlog {
    pub(crate) fn new(limit: Amount) -> Arc<Self> {
        Arc::new(Self { limit, queued: Mutex::default(), shrunk: Condvar::new() })
    }

    /// What is under way.
    pub(crate) fn queued(&self) -> Amount {
        *self.queued.lock()
    }

    /// Takes a batch, or refuses it if there is still no room after `patience`. Where nothing is under way any batch is
    /// taken, so that none is too large for good.
    pub(crate) fn admit(
        self: &Arc<Self>,
        wanted: Amount,
        patience: Duration,
    ) -> Option<QueueShare> {
        let deadline = (patience > Duration::ZERO).then(|| Instant::now() + patience);
        let mut queued = self.queued.lock();
        while !self.has_room(*queued, wanted) {
            let deadline = deadline?;
            let is_late;
            (queued, is_late) = self.shrunk.wait_until(queued, deadline);
            if is_late && !self.has_room(*queued, wanted) {
                return None;
            }
        }
        queued.operations += wanted.operations;
        queued.bytes += wanted.bytes;
        Some(QueueShare { backlog: Arc::clone(self), amount: wanted })
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
        queued.operations -= self.amount.operations;
        queued.bytes -= self.amount.bytes;
        drop(queued);
        // Costs nothing while nobody waits.
        self.backlog.shrunk.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const LIMIT: Amount = Amount { operations: 3, bytes: 100 };

    /// Nothing here takes as long.
    const HANG_TIMEOUT: Duration = Duration::from_secs(60);

    fn amount(operations: u64, bytes: u64) -> Amount {
        Amount { operations, bytes }
    }

    fn admit(backlog: &Arc<Backlog>, operations: u64, bytes: u64) -> Option<QueueShare> {
        backlog.admit(amount(operations, bytes), Duration::ZERO)
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

    /// Asks for one operation of `bytes` on another thread, with more patience than any test has.
    fn wait_for_room(backlog: &Arc<Backlog>, bytes: u64) -> Receiver<Option<QueueShare>> {
        let (sender, receiver) = channel();
        let backlog = Arc::clone(backlog);
        std::thread::spawn(move || {
            sender.send(backlog.admit(amount(1, bytes), Duration::from_secs(3600)))
        });
        receiver
    }

    /// Returns when as many threads wait for room.
    fn until_waiting(backlog: &Backlog, threads: usize) {
        let hangs = Instant::now() + HANG_TIMEOUT;
        loop {
            assert!(Instant::now() < hangs, "{threads} do not wait");
            if backlog.shrunk.waiting() == threads {
                return;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_waits_is_let_in_by_what_ends() {
        let backlog = Backlog::new(LIMIT);
        let held = admit(&backlog, 1, 100).unwrap();
        let waiters = [wait_for_room(&backlog, 60), wait_for_room(&backlog, 40)];
        until_waiting(&backlog, 2);
        assert!(admit(&backlog, 1, 1).is_none(), "nobody is let in before");
        drop(held);
        let shares = waiters.map(|waiter| waiter.recv_timeout(HANG_TIMEOUT).unwrap().unwrap());
        assert_eq!(backlog.queued(), amount(2, 100));
        drop(shares);
        assert_eq!(backlog.queued(), Amount::default());
    }

    #[test]
    fn who_waits_goes_on_waiting_while_there_is_too_little_room() {
        let backlog = Backlog::new(LIMIT);
        let held = [admit(&backlog, 1, 50).unwrap(), admit(&backlog, 1, 50).unwrap()];
        let waiter = wait_for_room(&backlog, 60);
        until_waiting(&backlog, 1);
        let [first, second] = held;
        drop(first);
        until_waiting(&backlog, 1);
        assert_eq!(backlog.queued(), amount(1, 50));
        drop(second);
        assert!(waiter.recv_timeout(HANG_TIMEOUT).unwrap().is_some());
    }

    #[test]
    fn patience_ends() {
        let backlog = Backlog::new(LIMIT);
        let _held = admit(&backlog, 1, 100).unwrap();
        assert!(backlog.admit(amount(1, 1), Duration::from_millis(5)).is_none());
    }

    /// However often it is woken for nothing.
    #[test]
    fn patience_does_not_start_anew() {
        let backlog = Backlog::new(LIMIT);
        let _held = admit(&backlog, 1, 100).unwrap();
        let (sender, receiver) = channel();
        std::thread::spawn({
            let backlog = Arc::clone(&backlog);
            move || sender.send(backlog.admit(amount(1, 1), Duration::from_millis(50)).is_none())
        });
        let hangs = Instant::now() + HANG_TIMEOUT;
        while receiver.try_recv() != Ok(true) {
            backlog.shrunk.notify_all();
            assert!(Instant::now() < hangs);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
