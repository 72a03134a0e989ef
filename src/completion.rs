//! Finished batches on their way out: a queue and the eventfd that announces it.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_queue::SegQueue;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Whatever keeps a batch's memory alive; dropped by whoever takes the completion.
pub type KeepAlive = Box<dyn Any + Send>;

/// The one answer to one submitted batch.
pub struct Completion {
    /// The id that submit returned.
    pub future_id: u64,
    /// False when the batch failed; a miss is not a failure.
    pub ok: bool,
    /// Why it failed; empty when `ok`.
    pub error: String,
    /// One answer per key, in the order submitted.
    pub results: Vec<bool>,
    pub(crate) _keep_alive: Option<KeepAlive>,
}

/// Completions that wait to be drained, and the eventfd that says so.
pub(crate) struct CompletionQueue {
    queue: SegQueue<Completion>,
    event: EventFd,
    unannounced: AtomicBool,
    unanswered: AtomicU64,
}

impl CompletionQueue {
    pub(crate) fn new() -> io::Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self {
            queue: SegQueue::new(),
            event,
            unannounced: AtomicBool::new(false),
            unanswered: AtomicU64::new(0),
        })
    }

    /// Descriptor to poll for reading.
    pub(crate) fn event_fd(&self) -> RawFd {
        self.event.as_fd().as_raw_fd()
    }

    /// Keys submitted to a reactor and not answered yet.
    pub(crate) fn unanswered(&self) -> u64 {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// Counts `keys` that are to be answered.
    pub(crate) fn expect(&self, keys: u64) {
        self.unanswered.fetch_add(keys, Ordering::Relaxed);
    }

    /// Counts one key that is answered.
    pub(crate) fn answered(&self) {
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
    }

    /// Adds a completion; it is seen by `drain`, and by pollers after the next [`Self::announce`].
    pub(crate) fn push(&self, completion: Completion) {
        self.queue.push(completion);
        self.unannounced.store(true, Ordering::Release);
    }

    /// Rings the eventfd once for everything pushed since the last ring.
    pub(crate) fn announce(&self) {
        if self.unannounced.swap(false, Ordering::AcqRel) {
            // The only error of this write is EAGAIN at 2^64-2 unread rings: the descriptor is readable then as well.
            let _ = self.event.write(1);
        }
    }

    /// Takes all completions that are there.
    pub(crate) fn drain(&self, into: &mut Vec<Completion>) {
        // The ring is cleared before the queue is read: what is pushed after that rings again.
        let _ = self.event.read();
        while let Some(completion) = self.queue.pop() {
            into.push(completion);
        }
    }
}
