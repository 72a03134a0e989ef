//! How far a queue is that is worked off in order: a ticket tells when all is done that was queued before it.

use std::sync::Arc;
use std::time::Instant;

use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::base::sync::{Condvar, Mutex};
use crate::base::time::Patience;

#[derive(Debug, Default)]
pub(crate) struct Sequencer {
    queued: AtomicU64,
    done: AtomicU64,
    is_refused: AtomicBool,
    halt: Mutex<Halt>,
    advanced: Condvar,
}

/// Why nothing is done, if so.
#[derive(Debug, Default)]
enum Halt {
    #[default]
    Working,
    /// It may be done later.
    Refused(Arc<str>),
    /// Nobody works any more, or it is not worth waiting for.
    Ended,
}

impl Sequencer {
    /// One more is about to be queued. Returns how many that makes.
    pub(crate) fn note_queued(&self) -> u64 {
        self.queued.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The next `count` are done.
    pub(crate) fn note_done(&self, count: u64) {
        self.done.fetch_add(count, Ordering::SeqCst);
        drop(self.halt.lock());
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

    /// Waits until that is done, or `patience` is over, and says whether it is: not if nobody works any more, or what comes next
    /// is refused.
    pub(crate) fn wait(&self, ticket: u64, patience: Option<&mut Patience>) -> bool {
        self.wait_unless(ticket, patience, |halt| !matches!(halt, Halt::Working))
    }

    /// Waits until that is done, however long it is refused; false if nobody works any more.
    pub(crate) fn wait_out(&self, ticket: u64) -> bool {
        self.wait_unless(ticket, None, |halt| matches!(halt, Halt::Ended))
    }

    fn wait_unless(
        &self,
        ticket: u64,
        mut patience: Option<&mut Patience>,
        is_over: impl Fn(&Halt) -> bool,
    ) -> bool {
        if self.is_done(ticket) {
            return true;
        }
        let mut halt = self.halt.lock();
        while !is_over(&halt) && !self.is_done(ticket) {
            halt = match &mut patience {
                Some(patience) => {
                    let Some(step) = patience.step() else { break };
                    self.advanced.wait_until(halt, Instant::now() + step).0
                }
                None => self.advanced.wait(halt),
            };
        }
        self.is_done(ticket)
    }

    /// What comes next is refused, for this reason, until [`Sequencer::resume`]. Says whether it was not before.
    pub(crate) fn refuse(&self, reason: &str) -> bool {
        let mut halt = self.halt.lock();
        let is_new = matches!(*halt, Halt::Working);
        if !matches!(*halt, Halt::Ended) {
            *halt = Halt::Refused(reason.into());
            self.is_refused.store(true, Ordering::SeqCst);
        }
        self.advanced.notify_all();
        is_new
    }

    /// Nothing is refused any more.
    pub(crate) fn resume(&self) {
        let mut halt = self.halt.lock();
        if matches!(*halt, Halt::Refused(_)) {
            *halt = Halt::Working;
            self.is_refused.store(false, Ordering::SeqCst);
        }
    }

    /// Why what comes next is refused, if it is.
    pub(crate) fn refusal(&self) -> Option<Arc<str>> {
        if !self.is_refused.load(Ordering::SeqCst) {
            return None;
        }
        match &*self.halt.lock() {
            Halt::Refused(reason) => Some(Arc::clone(reason)),
            Halt::Working | Halt::Ended => None,
        }
    }

    /// Nobody works any more, or it is not worth waiting for.
    pub(crate) fn end(&self) {
        *self.halt.lock() = Halt::Ended;
        self.advanced.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_ticket_is_done_with_all_that_was_queued_before_it() {
        let sequencer = Sequencer::default();
        assert!(sequencer.is_done(sequencer.ticket()));
        let first = sequencer.note_queued();
        let second = sequencer.note_queued();
        assert!(!sequencer.is_done(first));
        sequencer.note_done(1);
        assert!(sequencer.is_done(first) && !sequencer.is_done(second));
        sequencer.note_done(1);
        assert!(sequencer.wait(sequencer.ticket(), None));
    }

    #[test]
    fn a_wait_ends_with_its_patience() {
        let sequencer = Sequencer::default();
        let ticket = sequencer.note_queued();
        let mut patience = Patience::new(Duration::from_millis(10));
        assert!(!sequencer.wait(ticket, Some(&mut patience)));
        assert!(patience.step().is_none());
        sequencer.note_done(1);
        assert!(sequencer.wait(ticket, Some(&mut patience)));
    }

    #[test]
    fn who_waits_is_woken_by_the_end() {
        let sequencer = Arc::new(Sequencer::default());
        let ticket = sequencer.note_queued();
        let waiting = thread::spawn({
            let sequencer = Arc::clone(&sequencer);
            move || sequencer.wait(ticket, None)
        });
        sequencer.end();
        assert!(!waiting.join().unwrap());
    }

    #[test]
    fn a_wait_ends_where_what_comes_next_is_refused() {
        let sequencer = Arc::new(Sequencer::default());
        let ticket = sequencer.note_queued();
        let waiting =
            [Sequencer::wait_out, |sequencer: &Sequencer, ticket| sequencer.wait(ticket, None)]
                .map(|wait| {
                    let sequencer = Arc::clone(&sequencer);
                    thread::spawn(move || wait(&sequencer, ticket))
                });
        assert!(sequencer.refuse("full") && !sequencer.refuse("still full"));
        assert_eq!(sequencer.refusal().as_deref(), Some("still full"));
        let [waits_out, waits] = waiting;
        assert!(!waits.join().unwrap());
        assert!(!sequencer.wait(ticket, None));
        sequencer.resume();
        assert_eq!(sequencer.refusal(), None);
        sequencer.note_done(1);
        assert!(waits_out.join().unwrap() && sequencer.wait(ticket, None));
        sequencer.end();
        assert!(!sequencer.refuse("too late") && sequencer.refusal().is_none());
    }
}
