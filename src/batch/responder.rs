//! A batch counts down its keys and yields exactly one completion, whatever happens to its operations.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::batch::completion_queue::{
    Completion, CompletionQueue, FailureCode, FailureReason, KeepAlive,
};

/// Keys of one submit that are still to be answered.
pub(crate) struct Batch {
    future_id: u64,
    remaining: AtomicUsize,
    results: Box<[AtomicBool]>,
    /// Why the first key failed that did.
    failure: OnceLock<FailureReason>,
    /// None once it is leaked, as the kernel may still hold that memory.
    keep_alive: Mutex<Option<KeepAlive>>,
    completions: Arc<CompletionQueue>,
}

impl Batch {
    /// A batch of `size` keys, as one handle per key. One without keys is completed at once.
    pub(crate) fn start(
        future_id: u64,
        size: usize,
        keep_alive: KeepAlive,
        completions: &Arc<CompletionQueue>,
    ) -> impl DoubleEndedIterator<Item = Responder> + ExactSizeIterator + use<> {
        completions.expect(size as u64);
        let batch = Arc::new(Self {
            future_id,
            remaining: AtomicUsize::new(size),
            results: (0..size).map(|_| AtomicBool::new(false)).collect(),
            failure: OnceLock::new(),
            keep_alive: Mutex::new(Some(keep_alive)),
            completions: Arc::clone(completions),
        });
        if size == 0 {
            batch.complete();
        }
        (0..size).map(move |position| Responder { batch: Some(Arc::clone(&batch)), position })
    }

    fn count_down(&self) {
        // AcqRel: the last one to count down sees the results of all others.
        if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.complete();
        }
        // After the push: nothing in flight means that every completion can be drained.
        self.completions.answered();
    }

    fn complete(&self) {
        let failure = self.failure.get();
        self.completions.push(Completion {
            future_id: self.future_id,
            ok: failure.is_none(),
            code: failure.map(|failure| failure.code),
            error: failure.map(|failure| failure.message.clone()).unwrap_or_default(),
            results: self.results.iter().map(|result| result.load(Ordering::Relaxed)).collect(),
            completed_at: Instant::now(),
            keep_alive: self.keep_alive.lock().take(),
        });
    }
}

/// The right, and the duty, to answer one key of a batch. Dropped unanswered, it answers "failed".
pub(crate) struct Responder {
    batch: Option<Arc<Batch>>,
    position: usize,
}

impl Responder {
    /// The key was stored or loaded.
    pub(crate) fn succeed(mut self) {
        if let Some(batch) = self.batch.take() {
            batch.results[self.position].store(true, Ordering::Relaxed);
            batch.count_down();
        }
    }

    /// The key is not there: a normal answer.
    pub(crate) fn miss(mut self) {
        if let Some(batch) = self.batch.take() {
            batch.count_down();
        }
    }

    /// The key failed, and with it the batch; the first reason is the one reported.
    pub(crate) fn fail(mut self, reason: impl FnOnce() -> FailureReason) {
        if let Some(batch) = self.batch.take() {
            batch.failure.get_or_init(reason);
            batch.count_down();
        }
    }

    /// The key failed while the kernel still holds the batch's memory: that memory is leaked.
    pub(crate) fn abandon(self) {
        if let Some(batch) = &self.batch {
            std::mem::forget(batch.keep_alive.lock().take());
        }
        let message = "the kernel did not finish in time; the memory of the batch is leaked";
        self.fail(|| FailureReason::new(FailureCode::Abandoned, message));
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            let reason = || FailureReason::new(FailureCode::Abandoned, "the operation was dropped");
            batch.failure.get_or_init(reason);
            batch.count_down();
            batch.completions.announce();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(size: usize) -> (Arc<CompletionQueue>, Vec<Responder>) {
        let completions = Arc::new(CompletionQueue::new().unwrap());
        let items = Batch::start(7, size, Box::new(()), &completions).collect();
        (completions, items)
    }

    fn drained(completions: &CompletionQueue) -> Vec<Completion> {
        let mut all = Vec::new();
        completions.drain(&mut all);
        all
    }

    #[test]
    fn one_completion_after_the_last_key() {
        let (completions, mut items) = started(3);
        items.pop().unwrap().succeed();
        items.pop().unwrap().miss();
        assert!(drained(&completions).is_empty());
        items.pop().unwrap().succeed();
        let all = drained(&completions);
        assert_eq!(all.len(), 1);
        assert!(all[0].ok && all[0].code.is_none() && all[0].future_id == 7);
        assert_eq!(all[0].results, [true, false, true]);
    }

    #[test]
    fn a_dropped_item_still_answers() {
        let (completions, items) = started(2);
        drop(items);
        let all = drained(&completions);
        assert_eq!(all.len(), 1);
        assert!(!all[0].ok && !all[0].error.is_empty());
        assert_eq!(all[0].code, Some(FailureCode::Abandoned));
        assert_eq!(all[0].results, [false, false]);
    }

    #[test]
    fn the_first_error_is_reported_beside_the_results() {
        let (completions, mut items) = started(3);
        items.remove(0).succeed();
        items.remove(0).fail(|| FailureReason::new(FailureCode::NoSpace, "first"));
        items.remove(0).fail(|| FailureReason::new(FailureCode::Io, "second"));
        let all = drained(&completions);
        assert_eq!((all[0].code, all[0].error.as_str()), (Some(FailureCode::NoSpace), "first"));
        assert_eq!(all[0].results, [true, false, false]);
    }

    #[test]
    fn memory_lives_until_the_completion_is_dropped() {
        let completions = Arc::new(CompletionQueue::new().unwrap());
        let memory = Arc::new(());
        let items: Vec<_> =
            Batch::start(1, 1, Box::new(Arc::clone(&memory)), &completions).collect();
        drop(items);
        let all = drained(&completions);
        assert_eq!(Arc::strong_count(&memory), 2);
        drop(all);
        assert_eq!(Arc::strong_count(&memory), 1);
    }

    #[test]
    fn memory_that_the_kernel_still_holds_is_never_freed() {
        static IS_FREED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        /// Of no size, so that the test leaks nothing.
        struct CallerMemory;
        impl Drop for CallerMemory {
            fn drop(&mut self) {
                IS_FREED.store(true, Ordering::SeqCst);
            }
        }
        let completions = Arc::new(CompletionQueue::new().unwrap());
        let mut items = Batch::start(1, 2, Box::new(CallerMemory), &completions);
        items.next().unwrap().abandon();
        items.next().unwrap().succeed();
        let all = drained(&completions);
        assert!(!all[0].ok && all[0].error.contains("leaked"), "{}", all[0].error);
        assert!(all[0].results == [false, true] && all[0].keep_alive().is_none());
        drop((all, items));
        assert!(!IS_FREED.load(Ordering::SeqCst));
    }
}
