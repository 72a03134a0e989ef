//! What models have in place of an eventfd and of crossbeam's queue.

#[cfg(kvring_model = "shuttle")]
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread::{Scope, ScopedJoinHandle};

use nix::errno::Errno;
use nix::sys::eventfd::EfdFlags;

use super::modelled::locks::{Condvar, Mutex};
use super::modelled::thread::JoinHandle;

/// Whoever asks waits for the thread, and no time passes here: it is joined.
pub(crate) fn is_finished<T>(_: &JoinHandle<T>) -> bool {
    true
}

/// Refuses each: what such threads share out is done by the one that asks.
pub(crate) fn spawn_scoped<'scope, T>(
    _: &'scope Scope<'scope, '_>,
    _: &str,
    _: impl FnOnce() -> T,
) -> Option<ScopedJoinHandle<'scope, T>> {
    None
}

/// An eventfd whose count is known to the model. Each call takes the lock of the count, as in the kernel.
pub(crate) struct EventFd {
    /// Is there for its number alone.
    descriptor: nix::sys::eventfd::EventFd,
    blocks: bool,
    count: Mutex<u64>,
    changed: Condvar,
}

impl EventFd {
    pub(crate) fn from_flags(flags: EfdFlags) -> nix::Result<Self> {
        Ok(Self {
            descriptor: nix::sys::eventfd::EventFd::from_flags(flags)?,
            blocks: !flags.contains(EfdFlags::EFD_NONBLOCK),
            count: Mutex::new(0),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn write(&self, value: u64) -> nix::Result<usize> {
        *self.count.lock().unwrap() += value;
        self.changed.notify_all();
        Ok(8)
    }

    pub(crate) fn read(&self) -> nix::Result<u64> {
        if self.blocks {
            self.wait_readable();
        }
        match std::mem::take(&mut *self.count.lock().unwrap()) {
            0 => Err(Errno::EAGAIN),
            count => Ok(count),
        }
    }

    /// Waits as poll(2) does.
    pub(crate) fn wait_readable(&self) {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.changed.wait(count).unwrap();
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Shuttle runs one thread at a time, with all memory orders as strong as can be: any queue does.
#[cfg(kvring_model = "shuttle")]
#[derive(Debug)]
pub(crate) struct SegQueue<T>(Mutex<VecDeque<T>>);

#[cfg(kvring_model = "shuttle")]
impl<T> Default for SegQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(kvring_model = "shuttle")]
impl<T> SegQueue<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    pub(crate) fn push(&self, value: T) {
        self.0.lock().unwrap().push_back(value);
    }

    pub(crate) fn pop(&self) -> Option<T> {
        self.0.lock().unwrap().pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}

#[cfg(kvring_model = "loom")]
pub(crate) use weak_queue::SegQueue;

#[cfg(kvring_model = "loom")]
mod weak_queue {
    use std::sync::Mutex;

    use crate::base::sync::primitives::modelled::atomic::{
        AtomicBool, AtomicUsize, Ordering, fence,
    };

    /// Most elements from its start to its end.
    const SLOTS: usize = 4;

    /// A queue with the memory orders of crossbeam's, and no stronger ones: of its two indices, and of what says that a slot is written.
    #[derive(Debug)]
    pub(crate) struct SegQueue<T> {
        head: AtomicUsize,
        tail: AtomicUsize,
        slots: [Slot<T>; SLOTS],
    }

    #[derive(Debug)]
    struct Slot<T> {
        is_written: AtomicBool,
        value: Mutex<Option<T>>,
    }

    impl<T> Default for Slot<T> {
        fn default() -> Self {
            Self { is_written: AtomicBool::new(false), value: Mutex::new(None) }
        }
    }

    impl<T> Default for SegQueue<T> {
        fn default() -> Self {
            Self::new()
        }
    }

    impl<T> SegQueue<T> {
        pub(crate) fn new() -> Self {
            Self {
                head: AtomicUsize::new(0),
                tail: AtomicUsize::new(0),
                slots: std::array::from_fn(|_| Slot::default()),
            }
        }

        pub(crate) fn push(&self, value: T) {
            let slot = &self.slots[self.tail.fetch_add(1, Ordering::SeqCst)];
            *slot.value.lock().unwrap() = Some(value);
            slot.is_written.store(true, Ordering::Release);
        }

        pub(crate) fn pop(&self) -> Option<T> {
            let mut head = self.head.load(Ordering::Acquire);
            loop {
                fence(Ordering::SeqCst);
                if head == self.tail.load(Ordering::Relaxed) {
                    return None;
                }
                let (own, foreign) = (Ordering::SeqCst, Ordering::Acquire);
                match self.head.compare_exchange(head, head + 1, own, foreign) {
                    Ok(_) => break,
                    Err(current) => head = current,
                }
            }
            let slot = &self.slots[head];
            while !slot.is_written.load(Ordering::Acquire) {
                loom::thread::yield_now();
            }
            slot.value.lock().unwrap().take()
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.head.load(Ordering::SeqCst) == self.tail.load(Ordering::SeqCst)
        }
    }
}
