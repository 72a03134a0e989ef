//! The locks of this crate: those of the standard library, which wait in the kernel (futex), without poisoning.
//!
//! A fork has one thread, whatever its parent had. `parking_lot` keeps a list, for the whole process, of all threads that wait
//! for one of its locks; it links memory that belongs to those threads. In a fork that memory is given to new threads, so the list
//! is broken, and a fork that opened a store of its own hung or died whenever threads of its parent were asleep. The locks
//! here have no state but their own.
//!
//! [`primitives`] says what they are made of, which models replace.

mod primitives;

use std::sync::{PoisonError, TryLockError};
use std::time::Instant;

use atomic::{AtomicUsize, Ordering};
use primitives::locks;
pub(crate) use primitives::locks::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
pub(crate) use primitives::{
    EventFd, IS_MODELLED, SegQueue, atomic, is_finished, mpsc, spawn_scoped, thread,
};

/// A mutex. A panic while it is locked leaves it usable: what is behind it is kept in order by who changes it.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(locks::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(locks::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// A lock that many readers share, or one writer has.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(locks::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(locks::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where threads wait for a change of what a [`Mutex`] guards. Who makes the change holds that mutex meanwhile and notifies
/// afterwards; that costs no system call while nobody waits.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    inner: locks::Condvar,
    /// Threads that wait, or were woken and do not run yet. Raised before the mutex is let go: whoever has it next sees that.
    waiting: AtomicUsize,
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self { inner: locks::Condvar::new(), waiting: AtomicUsize::new(0) }
    }

    pub(crate) fn notify_one(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.inner.notify_one();
        }
    }

    pub(crate) fn notify_all(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.inner.notify_all();
        }
    }

    /// Waits to be woken; it may also return without that.
    pub(crate) fn wait<'lock, T>(&self, guard: MutexGuard<'lock, T>) -> MutexGuard<'lock, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.inner.wait(guard).unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// The same until `deadline` at most; says whether that has passed.
    pub(crate) fn wait_until<'lock, T>(
        &self,
        guard: MutexGuard<'lock, T>,
        deadline: Instant,
    ) -> (MutexGuard<'lock, T>, bool) {
        let left = deadline.saturating_duration_since(Instant::now());
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let outcome = self.inner.wait_timeout(guard, left);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let (guard, _) = outcome.unwrap_or_else(PoisonError::into_inner);
        (guard, Instant::now() >= deadline)
    }
}
