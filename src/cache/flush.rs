//! The flush thread: in `best_effort`, it makes durable once a second what was stored and removed since. So power loss takes the
//! last two seconds, where a flush of the drive takes less than one.
//!
//! The data goes first: a record is not made durable on purpose before its bytes are. A SET that is answered while this goes on is
//! left to the next flush.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::Cache;
use super::threads::CacheThread;
use crate::base::sync::atomic::Ordering;
use crate::config::Durability;

/// Flushes when something has changed. `is_complete`: what was there before is durable.
fn keep(cache: &Cache, mut is_complete: bool, note: &dyn Fn(&io::Result<()>)) {
    let period = cache.config.tuning.flush_period;
    let mut due = Instant::now() + period;
    while cache.flushes.wait(Some(due)) {
        let begin = Instant::now();
        if !is_complete || cache.is_flush_due() {
            note(&cache.flush(!is_complete));
            is_complete = true;
        }
        // From begin to begin; a drive that takes longer rests as long as it worked.
        let took = begin.elapsed();
        due = if took < period { begin + period } else { Instant::now() + took };
    }
}

impl Cache {
    /// Starts the flush thread, which `note` is told what came of each flush. Only what a store left that `was_closed` is durable
    /// already.
    pub(crate) fn start_flushes(
        self: &Arc<Self>,
        was_closed: bool,
        note: impl Fn(&io::Result<()>) + Send + 'static,
    ) -> io::Result<CacheThread> {
        let work = move |cache: &Self| keep(cache, was_closed, &note);
        let lost = "what was stored last is not durable before the store is closed";
        CacheThread::start(self, "kvring-flush", work, |cache| cache.flushes.end(), lost)
    }

    fn is_flush_due(&self) -> bool {
        self.index.changes.lasting_ticket() > self.durable_changes.load(Ordering::SeqCst)
    }

    /// Makes durable what was stored and removed so far; `all`: also what an earlier owner did.
    pub(crate) fn flush(&self, all: bool) -> io::Result<()> {
        if all {
            // A sync of that owner may have failed.
            self.index.write_anew_later();
        }
        // Their bytes were noted as written before.
        let written = self.index.changes.done();
        let of_data = if all { self.store.sync() } else { self.store.flush() };
        let outcome = of_data.and_then(|()| self.index.sync());
        if outcome.is_ok() {
            self.durable_changes.store(written, Ordering::SeqCst);
        }
        outcome
    }

    /// A sync has failed that a flush, or another thread beside it, has made: nothing is trusted that was stored before, and the
    /// store is not closed as in order. A later flush that succeeds says nothing of what this one dropped.
    pub(crate) fn note_failed_flush(&self) {
        self.has_flush_failed.store(true, Ordering::SeqCst);
        self.index.distrust_all();
        // For an owner that comes without a close() of this one. If it fails, so does the next flush.
        let _ = self.index.write_session(self.config.clock.now_ms(), false);
    }

    /// Stores and removals, at most, that are not known to be durable. In `persistent` those whose records are not in the file yet.
    pub(crate) fn changes_not_durable(&self) -> u64 {
        let durable = match self.config.durability {
            Durability::BestEffort => self.durable_changes.load(Ordering::SeqCst),
            Durability::Persistent => self.index.changes.done(),
        };
        self.index.changes.lasting_ticket().saturating_sub(durable)
    }

    /// Whether such a sync has failed since the store was opened.
    pub(crate) fn has_flush_failed(&self) -> bool {
        self.has_flush_failed.load(Ordering::SeqCst)
    }
}
