//! How far a queue is that is worked off in order: a ticket tells when all is done that was queued before it.

use std::time::Instant;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::time::Patience;

#[derive(Debug, Default)]
pub(crate) struct Progress {
    queued: AtomicU64,
    done: AtomicU64,
    has_ended: Mutex<bool>,
    advanced: Condvar,
}

impl Progress {
    /// One more is about to be queued. Returns how many that makes.
    pub(crate) fn note_queued(&self) -> u64 {
        self.queued.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The next `count` are done.
    pub(crate) fn note_done(&self, count: u64) {
        self.done.fetch_add(count, Ordering::SeqCst);
        drop(self.has_ended.lock());
        self.advanced.notify_all();
    }

    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    /// Done when all is done that is queued by now.
    pub(crate) fn ticket(&self) -> u64 {
        self.queued.load(Ordering::SeqCst)
    }

    pub(crate) fn is_done(&self, ticket: u64) -> bool {
        self.done.load(Ordering::SeqCst) >= ticket
    }

    /// Waits until that is done, or `patience` is over, and says whether it is: not if nobody works any more.
    pub(crate) fn wait(&self, ticket: u64, mut patience: Option<&mut Patience>) -> bool {
        if self.is_done(ticket) {
            return true;
        }
        let mut has_ended = self.has_ended.lock();
        while !*has_ended && !self.is_done(ticket) {
            has_ended = match &mut patience {
                Some(patience) => {
                    let Some(step) = patience.step() else { break };
                    self.advanced.wait_until(has_ended, Instant::now() + step).0
                }
                None => self.advanced.wait(has_ended),
            };
        }
        self.is_done(ticket)
    }

    /// Nobody works any more, or it is not worth waiting for.
    pub(crate) fn end(&self) {
        *self.has_ended.lock() = true;
        self.advanced.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_ticket_is_done_with_all_that_was_queued_before_it() {
        let progress = Progress::default();
        assert!(progress.is_done(progress.ticket()));
        let first = progress.note_queued();
        let second = progress.note_queued();
        assert!(!progress.is_done(first));
        progress.note_done(1);
        assert!(progress.is_done(first) && !progress.is_done(second));
        progress.note_done(1);
        assert!(progress.wait(progress.ticket(), None));
    }

    #[test]
    fn a_wait_ends_with_its_patience() {
        let progress = Progress::default();
        let ticket = progress.note_queued();
        let mut patience = Patience::new(Duration::from_millis(10));
        assert!(!progress.wait(ticket, Some(&mut patience)));
        assert!(patience.step().is_none());
        progress.note_done(1);
        assert!(progress.wait(ticket, Some(&mut patience)));
    }

    #[test]
    fn who_waits_is_woken_by_the_end() {
        let progress = Arc::new(Progress::default());
        let ticket = progress.note_queued();
        let waiting = thread::spawn({
            let progress = Arc::clone(&progress);
            move || progress.wait(ticket, None)
        });
        progress.end();
        assert!(!waiting.join().unwrap());
    }
}
