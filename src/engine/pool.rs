//! Threads that do transfers, one at a time each, in the order in which they come.
//!
//! All threads are started with the pool: none has to be had while the store works. One that has nothing to do sleeps.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{Reaped, Transfer, Waker};
use crate::base::sync::SegQueue;
use crate::base::sync::thread::{self, Builder, JoinHandle};
use crate::base::sync::{Condvar, Mutex};

/// Does a transfer, as [`super::Engine::submit`] says, and returns what [`Reaped::result`] is to be.
pub(super) type Perform = unsafe fn(Transfer) -> i32;

/// Finished transfers, and the waker of the thread that reaps them.
pub(super) struct Done {
    pub(super) reaped: SegQueue<Reaped>,
    pub(super) waker: Arc<Waker>,
}

/// Some threads and the transfers that wait for them. Dropping it waits for what they have begun.
pub(super) struct Pool {
    shared: Arc<PoolShared>,
    threads: Vec<JoinHandle<()>>,
}

struct PoolShared {
    /// None once the threads are to end.
    queue: Mutex<Option<VecDeque<Transfer>>>,
    filled: Condvar,
    done: Arc<Done>,
    perform: Perform,
}

impl Pool {
    /// Starts `count` threads, or as many of them as the system allows, but at least one.
    pub(super) fn start(
        count: usize,
        name: &str,
        done: &Arc<Done>,
        perform: Perform,
    ) -> io::Result<Self> {
        let queue = Mutex::new(Some(VecDeque::new()));
        let (filled, done) = (Condvar::new(), Arc::clone(done));
        let shared = Arc::new(PoolShared { queue, filled, done, perform });
        let mut pool = Self { shared, threads: Vec::new() };
        let reactor = thread::current().name().unwrap_or("kvring").to_owned();
        for number in 0..count {
            let shared = Arc::clone(&pool.shared);
            let builder = Builder::new().name(format!("{reactor}-{name}{number}"));
            match builder.spawn(move || shared.work()) {
                Ok(thread) => pool.threads.push(thread),
                Err(error) if pool.threads.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(pool)
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// # Safety
    /// As [`super::Engine::submit`].
    pub(super) unsafe fn submit(&self, transfer: Transfer) {
        if let Some(queue) = &mut *self.shared.queue.lock() {
            queue.push_back(transfer);
        }
        self.shared.filled.notify_one();
    }

    /// Answers what no thread has begun, and ends each thread after what it is at.
    pub(super) fn cancel_all(&self) {
        for transfer in self.shared.end() {
            self.shared.done.add(Reaped { token: transfer.token, result: -libc::ECANCELED });
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.end();
        for thread in self.threads.drain(..) {
            // It ends in no panic: the one place for it is caught.
            let _ = thread.join();
        }
    }
}

impl PoolShared {
    fn work(&self) {
        while let Some(transfer) = self.next() {
            // SAFETY: it was submitted, and is reaped only from here on.
            let perform = || unsafe { (self.perform)(transfer) };
            // Whatever happens, it is answered: its owner waits for it.
            let result = catch_unwind(AssertUnwindSafe(perform)).unwrap_or(-libc::EIO);
            self.done.add(Reaped { token: transfer.token, result });
        }
    }

    /// Waits for a transfer; none when the pool ends.
    fn next(&self) -> Option<Transfer> {
        let mut queue = self.queue.lock();
        loop {
            match queue.as_mut()?.pop_front() {
                Some(transfer) => return Some(transfer),
                None => queue = self.filled.wait(queue),
            }
        }
    }

    /// Ends the threads; returns what they will not begin any more.
    fn end(&self) -> VecDeque<Transfer> {
        let left = self.queue.lock().take();
        self.filled.notify_all();
        left.unwrap_or_default()
    }
}

impl Done {
    fn add(&self, reaped: Reaped) {
        self.reaped.push(reaped);
        self.waker.wake();
    }
}
