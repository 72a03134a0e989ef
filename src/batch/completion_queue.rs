//! Finished batches on their way out: a queue and the eventfd that announces it; and why a key failed: a code for programs, a message for
//! people.

use std::any::Any;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use nix::sys::eventfd::EfdFlags;

use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::base::sync::{EventFd, SegQueue};

/// Whatever keeps a batch's memory alive; dropped by whoever takes the completion.
pub type KeepAlive = Box<dyn Any + Send>;

/// The one answer to one submitted batch.
pub struct Completion {
    /// The id that submit returned.
    pub future_id: u64,
    /// False when the batch failed; a miss is not a failure.
    pub ok: bool,
    /// Why its first key failed that did; none when `ok`.
    pub code: Option<FailureCode>,
    /// The same for people; empty when `ok`.
    pub error: String,
    /// One answer per key, in the order submitted.
    pub results: Vec<bool>,
    /// When the last key was answered.
    pub completed_at: Instant,
    pub(crate) keep_alive: Option<KeepAlive>,
}

impl Completion {
    /// What was given to the submit to keep the memory alive; none if that is leaked.
    pub fn keep_alive(&self) -> Option<&(dyn Any + Send)> {
        self.keep_alive.as_deref()
    }
}

/// Completions that wait to be drained, and the eventfd that says so.
pub(crate) struct CompletionQueue {
    queue: SegQueue<Completion>,
    // Closed first: its descriptor is free then for what `handed_out` has to read.
    pub(crate) event: EventFd,
    handed_out: HandedOut,
    unannounced: AtomicBool,
    unanswered: AtomicU64,
}

impl CompletionQueue {
    pub(crate) fn new() -> io::Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let handed_out = HandedOut::of(&event)?;
        Ok(Self {
            queue: SegQueue::new(),
            event,
            handed_out,
            unannounced: AtomicBool::new(false),
            unanswered: AtomicU64::new(0),
        })
    }

    pub(crate) fn event_fd(&self) -> RawFd {
        self.handed_out.descriptor
    }

    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Keys submitted to a reactor and not answered yet.
    pub(crate) fn unanswered(&self) -> u64 {
        // With the release in `answered`: whoever sees that a key is answered sees what was pushed before.
        self.unanswered.load(Ordering::Acquire)
    }

    pub(crate) fn expect(&self, keys: u64) {
        self.unanswered.fetch_add(keys, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self) {
        self.unanswered.fetch_sub(1, Ordering::Release);
    }

    /// Adds a completion; it is seen by `drain`, and by pollers after the next [`Self::announce`].
    pub(crate) fn push(&self, completion: Completion) {
        self.queue.push(completion);
        // No plain store: whoever announces this completion would not see what others pushed before, nor would whoever is rung.
        self.unannounced.swap(true, Ordering::AcqRel);
    }

    /// Rings the eventfd once for everything pushed since the last ring.
    pub(crate) fn announce(&self) {
        if self.unannounced.swap(false, Ordering::AcqRel) {
            // The only error of this write is EAGAIN at 2^64-2 unread rings: the descriptor is readable then as well.
            let _ = self.event.write(1);
        }
    }

    pub(crate) fn drain(&self, into: &mut Vec<Completion>) {
        // The ring is cleared before the queue is read: what is pushed after that rings again.
        let _ = self.event.read();
        self.take(into);
    }

    /// Takes all that is there, and leaves the eventfd as it is: whoever polls it clears it.
    pub(crate) fn take(&self, into: &mut Vec<Completion>) {
        while let Some(completion) = self.queue.pop() {
            into.push(completion);
        }
    }
}

/// The completions of a connector: in one queue, or those of SETs in a queue of their own.
pub(crate) struct CompletionQueues {
    pub(crate) common: Arc<CompletionQueue>,
    sets: OnceLock<Arc<CompletionQueue>>,
}

impl CompletionQueues {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { common: Arc::new(CompletionQueue::new()?), sets: OnceLock::new() })
    }

    /// Gives SETs a queue of their own, if they have none yet.
    pub(crate) fn split(&self) -> io::Result<()> {
        if self.sets.get().is_none() {
            let _ = self.sets.set(Arc::new(CompletionQueue::new()?));
        }
        Ok(())
    }

    pub(crate) fn of_sets(&self) -> &Arc<CompletionQueue> {
        self.sets.get().unwrap_or(&self.common)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<CompletionQueue>> {
        [&self.common].into_iter().chain(self.sets.get())
    }

    pub(crate) fn announce(&self) {
        self.all().for_each(|queue| queue.announce());
    }

    pub(crate) fn unanswered(&self) -> u64 {
        self.all().map(|queue| queue.unanswered()).sum()
    }
}

/// The eventfd under a number of its own, which callers may close although it is not theirs to close: then it soon is the number
/// of another file, perhaps one of the next store. So nothing is written through it, and it is closed only if it still is the
/// eventfd, by what [`id_of`] says.
struct HandedOut {
    descriptor: RawFd,
    id: Option<String>,
}

impl HandedOut {
    fn of(event: &EventFd) -> io::Result<Self> {
        let own = event.as_fd().try_clone_to_owned()?;
        // Without it nobody could tell later whether the descriptor may be closed.
        let id = id_of(own.as_raw_fd())?;
        Ok(Self { descriptor: own.into_raw_fd(), id })
    }
}

impl Drop for HandedOut {
    fn drop(&mut self) {
        if self.id.is_some() && id_of(self.descriptor).is_ok_and(|found| found == self.id) {
            // It is the descriptor that `of` made, and nothing else closes it but a caller, who has not.
            let _ = nix::unistd::close(self.descriptor);
        }
    }
}

/// What tells an eventfd from all others (`eventfd-id` in proc(5), since Linux 5.2); none of other files, and where there is no /proc.
///
/// # Errors
/// It cannot be known now, for want of a descriptor or of memory.
fn id_of(descriptor: RawFd) -> io::Result<Option<String>> {
    match fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")) {
        Ok(info) => {
            Ok(info.lines().find(|line| line.starts_with("eventfd-id:")).map(str::to_owned))
        }
        Err(error) if is_for_want(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

fn is_for_want(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// The kind of a failure, with the action that clears it. A key that is not stored is no failure: it is a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureCode {
    /// `set_queue_bytes`, or the number of SETs, is used up; nothing of the batch is queued. Action: if it lasts, a faster drive, more paths, or `admit: second_use`.
    QueueFull,
    /// No space, and chunks are read, leased or pinned. Action: raise `capacity`, free space, unpin keys, remove reflink copies.
    NoSpace,
    /// The quota is used up by chunks that cannot be evicted. Action: raise it.
    QuotaFull,
    /// The chunk is longer than `stats()["max_chunk_bytes"]`. Action: raise `capacity`.
    TooLong,
    /// Another key has this key's digest; it is refused for an hour. Action: check the source of the keys.
    Collision,
    /// The drive does not answer, the index is unreadable or not writable for 10 s, the I/O engine failed, or files were moved. Action: repair the named cause.
    Unavailable,
    /// The write or the sync failed. Action: see the kernel's log.
    Io,
    /// The connector was closed before the SET was done. Action: give `close()` more time.
    Closed,
    /// The connector ended before the outcome was known. Action: none.
    Abandoned,
}

impl FailureCode {
    /// Each of them.
    pub const ALL: [Self; 9] = [
        Self::QueueFull,
        Self::NoSpace,
        Self::QuotaFull,
        Self::TooLong,
        Self::Collision,
        Self::Unavailable,
        Self::Io,
        Self::Closed,
        Self::Abandoned,
    ];

    /// Its name outside of Rust.
    pub fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::NoSpace => "no_space",
            Self::QuotaFull => "quota_full",
            Self::TooLong => "too_long",
            Self::Collision => "collision",
            Self::Unavailable => "unavailable",
            Self::Io => "io",
            Self::Closed => "closed",
            Self::Abandoned => "abandoned",
        }
    }
}

/// The failure of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailureReason {
    pub(crate) code: FailureCode,
    pub(crate) message: String,
}

impl FailureReason {
    pub(crate) fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use nix::fcntl::{FcntlArg, fcntl};

    use super::*;

    #[test]
    fn the_descriptor_is_closed_as_long_as_it_is_the_eventfd() {
        let is_closed_with_its_queue = || {
            let queue = CompletionQueue::new().unwrap();
            let descriptor = queue.event_fd();
            let id = id_of(descriptor).unwrap();
            assert!(id.as_ref().is_some_and(|id| id.starts_with("eventfd-id:")), "{id:?}");
            drop(queue);
            id_of(descriptor).unwrap() != id
        };
        // Another test may get both numbers at once, and not again and again.
        assert!((0..20).any(|_| is_closed_with_its_queue()));
    }

    #[test]
    fn a_descriptor_that_is_another_file_by_now_stays_open() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // Another test may get the number in between.
        let queue = loop {
            let queue = CompletionQueue::new().unwrap();
            nix::unistd::close(queue.event_fd()).unwrap();
            let number = fcntl(&file, FcntlArg::F_DUPFD_CLOEXEC(queue.event_fd())).unwrap();
            if number == queue.event_fd() {
                break queue;
            }
            nix::unistd::close(number).unwrap();
        };
        let descriptor = queue.event_fd();
        drop(queue);
        let link = format!("/proc/self/fd/{descriptor}");
        assert_eq!(fs::read_link(link).unwrap(), file.path());
        nix::unistd::close(descriptor).unwrap();
    }

    #[test]
    fn only_want_of_something_leaves_it_unknown_what_a_descriptor_is() {
        assert_eq!(id_of(-1).unwrap(), None);
        let is_want = |errno| is_for_want(&io::Error::from_raw_os_error(errno));
        assert_eq!([libc::EMFILE, libc::ENFILE, libc::ENOMEM].map(is_want), [true; 3]);
        assert_eq!([libc::ENOENT, libc::EACCES].map(is_want), [false; 2]);
    }

    #[test]
    fn keys_without_answers_of_both_queues_are_counted() {
        let queues = CompletionQueues::new().unwrap();
        queues.split().unwrap();
        queues.common.expect(3);
        queues.of_sets().expect(4);
        queues.common.answered();
        assert_eq!((queues.common.unanswered(), queues.unanswered()), (2, 6));
    }

    #[test]
    fn a_completion_lends_what_keeps_memory_alive() {
        let completion = |keep_alive| Completion {
            future_id: 1,
            ok: true,
            code: None,
            error: String::new(),
            results: Vec::new(),
            completed_at: Instant::now(),
            keep_alive,
        };
        let lent = completion(Some(Box::new(7)));
        assert_eq!(lent.keep_alive().and_then(|kept| kept.downcast_ref()), Some(&7));
        assert!(completion(None).keep_alive().is_none());
    }
}
