//! The posix engine, for where io_uring cannot be had: threads over preadv(2), pwritev(2), fdatasync(2) and the like.
//!
//! Life of a transfer: `submit` queues it, a thread does it, and its result waits for `reap`, which sleeps on the waker
//! alone: threads ring it as submitters do. Nothing spins.
//!
//! A transfer that a thread has begun cannot be cancelled; it is waited for, as with io_uring and a device.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::{Action, Engine, Reaped, Transfer, Waker};
use crate::base::sync::thread::{self, Builder, JoinHandle};
use crate::base::sync::{Condvar, Mutex, SegQueue};
use crate::engine::EngineError;
use crate::format::names::FILE_MODE;

/// Most threads that read and write. Half of them are for reads: enough to keep a drive busy with transfers of some
/// 100 KiB, and no more than a container's limit on processes has room for.
const MAX_THREADS: usize = 32;

/// Threads that sync: so many files at a time. Of their own, as a sync takes long and a read must not wait for it.
const SYNC_THREADS: usize = 4;

/// Threads behind the [`Engine`] trait.
pub struct PosixEngine {
    transfers: Pool,
    syncs: Pool,
    done: Arc<Done>,
}

impl PosixEngine {
    /// Threads for `queue_depth` transfers at a time, or for as many as `MAX_THREADS` can do.
    ///
    /// # Errors
    /// `EngineError::Failed` when the system gives not even one thread of each kind.
    pub fn new(queue_depth: usize, waker: Arc<Waker>) -> Result<Self, EngineError> {
        Self::with(queue_depth, waker, perform)
    }

    /// The same, with another way to do transfers.
    pub(super) fn with(
        queue_depth: usize,
        waker: Arc<Waker>,
        perform: Perform,
    ) -> Result<Self, EngineError> {
        let done = Arc::new(Done { reaped: SegQueue::new(), waker });
        let start = |count, name| {
            Pool::start(count, name, &done, perform)
                .map_err(|source| EngineError::Failed { operation: "starting a thread", source })
        };
        let transfers = start(queue_depth.clamp(1, MAX_THREADS), "io")?;
        let syncs = start(SYNC_THREADS, "sync")?;
        Ok(Self { transfers, syncs, done })
    }

    fn pool(&self, action: Action) -> &Pool {
        match action {
            Action::Sync | Action::SyncDirectory => &self.syncs,
            _ => &self.transfers,
        }
    }

    /// Waits until something is done, the waker rings, or `timeout` is over.
    fn wait(&self, timeout: Option<Duration>) -> Result<(), EngineError> {
        let waker = &self.done.waker;
        waker.prepare_sleep();
        let failed =
            |operation| move |errno: Errno| EngineError::Failed { operation, source: errno.into() };
        let outcome = if self.done.reaped.is_empty() {
            let mut events = [PollFd::new(waker.event.as_fd(), PollFlags::POLLIN)];
            match ppoll(&mut events, timeout.map(TimeSpec::from_duration), None) {
                // It is readable and nobody else reads it, so this does not block.
                Ok(1) => waker.event.read().map(drop).map_err(failed("read")),
                Ok(_) | Err(Errno::EINTR) => Ok(()),
                Err(errno) => Err(failed("ppoll")(errno)),
            }
        } else {
            Ok(())
        };
        waker.awake();
        outcome
    }
}

impl Engine for PosixEngine {
    fn description(&self) -> String {
        format!("posix ({} threads)", self.transfers.threads() + self.syncs.threads())
    }

    fn depth(&self) -> usize {
        self.transfers.threads()
    }

    unsafe fn submit(&mut self, transfer: Transfer) -> Result<(), EngineError> {
        // SAFETY: the contract of this function.
        unsafe { self.pool(transfer.action).submit(transfer) };
        Ok(())
    }

    fn reap(
        &mut self,
        timeout: Option<Duration>,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        if timeout != Some(Duration::ZERO) && self.done.reaped.is_empty() {
            self.wait(timeout)?;
        }
        while let Some(done) = self.done.reaped.pop() {
            reaped.push(done);
        }
        Ok(())
    }

    fn cancel_all(&mut self) {
        self.transfers.cancel_all();
        self.syncs.cancel_all();
    }
}

/// Does a transfer and returns what io_uring would: bytes moved, or a negative errno.
///
/// # Safety
/// As [`Engine::submit`].
pub(crate) unsafe fn perform(transfer: Transfer) -> i32 {
    let Transfer { action, file, offset_bytes, vectors, vector_count, name, .. } = transfer;
    let (count, offset) = (vector_count as i32, offset_bytes as i64);
    // SAFETY: the caller vouches for the name, for the vectors, and for their memory, writable for a read.
    let moved = unsafe {
        match action {
            Action::Sync => libc::fdatasync(file) as isize,
            Action::SyncDirectory => libc::fsync(file) as isize,
            Action::Preallocate => libc::fallocate(file, 0, 0, offset) as isize,
            Action::Truncate => libc::ftruncate(file, offset) as isize,
            Action::Open(flags) => libc::openat(file, name, flags, FILE_MODE) as isize,
            Action::Read => libc::preadv(file, vectors, count, offset),
            Action::Write => libc::pwritev(file, vectors, count, offset),
        }
    };
    match moved {
        // A transfer has far less than 2 GiB.
        0.. => moved as i32,
        _ => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    }
}

/// Does a transfer, as [`super::Engine::submit`] says, and returns what [`Reaped::result`] is to be.
pub(super) type Perform = unsafe fn(Transfer) -> i32;

/// Finished transfers, and the waker of the thread that reaps them.
pub(super) struct Done {
    pub(super) reaped: SegQueue<Reaped>,
    pub(super) waker: Arc<Waker>,
}

/// Some threads, each of which does one transfer at a time in the order in which they come, and the transfers that wait. All threads
/// are started with it: none has to be had while the store works. Dropping it waits for what they have begun.
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

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::{AsRawFd, BorrowedFd};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn submit(engine: &mut PosixEngine, action: Action, file: &UnixStream, token: usize) {
        let transfer = Transfer::without_memory(action, file.as_raw_fd(), token);
        // SAFETY: there is no vector, and the file is open while the test runs.
        unsafe { engine.submit(transfer) }.unwrap();
    }

    fn reap(engine: &mut PosixEngine, count: usize) -> Vec<(usize, i32)> {
        let mut reaped = Vec::new();
        while reaped.len() < count {
            engine.reap(None, &mut reaped).unwrap();
        }
        let mut results: Vec<_> = reaped.iter().map(|one| (one.token, one.result)).collect();
        results.sort_unstable();
        results
    }

    /// A device that says when it begins, and hangs until it is told to go on.
    ///
    /// # Safety
    /// The file is open.
    unsafe fn hang(transfer: Transfer) -> i32 {
        // SAFETY: the tests keep the file open until the transfer is reaped.
        let file = unsafe { BorrowedFd::borrow_raw(transfer.file) };
        nix::unistd::write(file, b"b").unwrap();
        nix::unistd::read(file, &mut [0]).unwrap() as i32
    }

    #[test]
    fn what_no_thread_has_begun_is_cancelled_and_the_rest_is_waited_for() {
        let mut engine = PosixEngine::with(2, Waker::new().unwrap(), hang).unwrap();
        let (device, mut test) = UnixStream::pair().unwrap();
        for token in 0..5 {
            submit(&mut engine, Action::Read, &device, token);
        }
        test.read_exact(&mut [0; 2]).unwrap();
        engine.cancel_all();
        let cancelled = [2, 3, 4].map(|token| (token, -libc::ECANCELED));
        assert_eq!(reap(&mut engine, 3), cancelled);
        test.write_all(b"go").unwrap();
        assert_eq!(reap(&mut engine, 2), [(0, 1), (1, 1)]);
    }

    #[test]
    fn syncs_keep_no_transfer_waiting() {
        let mut engine = PosixEngine::with(1, Waker::new().unwrap(), hang).unwrap();
        let ((sync, mut test_sync), (device, mut test)) =
            (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        for token in 0..2 * SYNC_THREADS {
            submit(&mut engine, Action::Sync, &sync, token);
        }
        test_sync.read_exact(&mut [0; SYNC_THREADS]).unwrap();
        submit(&mut engine, Action::Write, &device, 99);
        test.write_all(b"g").unwrap();
        assert_eq!(reap(&mut engine, 1), [(99, 1)]);
        test_sync.write_all(&[0; 2 * SYNC_THREADS]).unwrap();
        assert_eq!(reap(&mut engine, 2 * SYNC_THREADS).len(), 2 * SYNC_THREADS);
    }

    /// A thread that panics answers, and does the next one.
    #[test]
    fn a_panic_is_an_answer_too() {
        let perform: Perform = |transfer| match transfer.token {
            1 => panic!("as the test wants"),
            _ => 7,
        };
        let mut engine = PosixEngine::with(1, Waker::new().unwrap(), perform).unwrap();
        let (device, _other) = UnixStream::pair().unwrap();
        for token in 0..3 {
            submit(&mut engine, Action::Read, &device, token);
        }
        assert_eq!(reap(&mut engine, 3), [(0, 7), (1, -libc::EIO), (2, 7)]);
    }

    /// Threads answer while the reactor falls asleep, again and again: a lost wake-up would hang here.
    #[test]
    fn no_answer_is_slept_through() {
        let mut engine = PosixEngine::with(4, Waker::new().unwrap(), |_| 1).unwrap();
        let (device, _other) = UnixStream::pair().unwrap();
        for turn in 0..20_000 {
            submit(&mut engine, Action::Read, &device, turn);
            assert_eq!(reap(&mut engine, 1), [(turn, 1)]);
        }
    }
}
