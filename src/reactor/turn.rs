//! A turn of a reactor: take up, start, wait, sum up; from its start to its end.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::limits::CHECKSUM_TURN_BYTES;
use super::state::Reactor;
use super::threads::ReactorEnd;
use crate::base::sync::atomic::Ordering;
use crate::base::time::Patience;
use crate::engine::EngineError;

/// How long transfers are waited for after close() has cancelled them; then their memory is leaked.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// From so many bytes to be summed up on, what comes back is followed by the next transfers first: fewer cost less time than
/// asking the kernel once more.
const FEED_FIRST_BYTES: u64 = 256 << 10;

/// Changes of records wait for the reactor to sleep, or for so many turns: waking the thread that makes them costs more than they do.
const ANNOUNCED_TURNS: u32 = 4;

impl Reactor {
    /// Runs until it is stopped, or dies; answers everything in either case.
    pub(super) fn live(mut self) -> ReactorEnd {
        let group = Arc::clone(&self.group);
        let failure = match catch_unwind(AssertUnwindSafe(|| self.run())) {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!(": {error}")),
            Err(_) => Some(" after a panic".to_owned()),
        };
        if let Some(how) = &failure {
            let path = group.cache.config.path().display();
            log::error!("{path}: the reactor stops{how}; every operation fails from here on");
            // Before the first operation is answered for it.
            group.has_failed.store(true, Ordering::SeqCst);
        }
        let is_dropped = catch_unwind(AssertUnwindSafe(|| {
            self.device.is_stopping = true;
            self.drop_queued();
        }));
        group.note_settled();
        let quiet = is_dropped.is_ok()
            && catch_unwind(AssertUnwindSafe(|| self.quiesce())).unwrap_or(false);
        if failure.is_some() {
            group.health.fail(|| "a thread that moves its bytes has stopped".into());
            // Without this one the others would leave keys without an answer.
            group.stop(Duration::ZERO);
        }
        let ending = match (quiet, failure) {
            (true, None) => ReactorEnd::Orderly,
            (true, Some(_)) => ReactorEnd::Failed,
            (false, _) => ReactorEnd::Leaked,
        };
        if quiet {
            debug_assert!(self.active.is_empty(), "an operation has no answer");
            drop(self);
        } else {
            let count = self.device.requests.in_flight();
            let path = group.cache.config.path().display();
            log::error!("{path}: the kernel still holds memory of {count} transfers: it is leaked");
            self.abandon();
            mem::forget(self);
        }
        group.note_stopped();
        ending
    }

    fn run(&mut self) -> Result<(), EngineError> {
        let mut has_fed = false;
        let mut turns_unannounced = 0;
        loop {
            self.take_up();
            let now = Instant::now();
            self.start_due(now);
            let deadline = *self.group.deadline.lock();
            if deadline.is_none() {
                self.verify_if_idle(now);
            }
            // First, as what it ends may have been waited for.
            self.start_group()?;
            self.start_freed()?;
            self.fail_refused(now);
            self.answer_late_loads(now);
            let has_more = self.start_some(now)?;
            self.start_chunk_files()?;
            self.group.completions.announce();

            let idle = self.active.is_empty()
                && self.group.pending.is_empty()
                && !self.group.has_work(self.number);
            if deadline.is_some_and(|deadline| idle || Instant::now() >= deadline) {
                return Ok(());
            }
            let until = [deadline, self.next_due(now)].into_iter().flatten().min();
            let is_asked_again = has_more || self.has_changed || self.device.has_checksums_to_do();
            let timeout = match is_asked_again {
                true => Some(Duration::ZERO),
                false => until.map(|until| until.saturating_duration_since(Instant::now())),
            };
            turns_unannounced += 1;
            if !is_asked_again || turns_unannounced >= ANNOUNCED_TURNS {
                self.group.cache.index.announce_changes();
                turns_unannounced = 0;
            }
            let came_back = self.reap_or_sleep(timeout, deadline)?;
            self.finish_reaped()?;
            if has_more {
                self.note_processor_bound();
            }
            self.look_for_silence(Instant::now());
            self.start_chunk_files()?;
            // Every other turn at most, and twice as much is summed up then: what is done must not wait for all that comes.
            if came_back && !has_fed && self.device.moved_bytes >= FEED_FIRST_BYTES {
                has_fed = true;
                continue;
            }
            let turns = 1 + u64::from(mem::take(&mut has_fed));
            self.checksum_moved(turns * CHECKSUM_TURN_BYTES);
        }
    }

    /// Says whether something came back.
    fn reap_or_sleep(
        &mut self,
        timeout: Option<Duration>,
        deadline: Option<Instant>,
    ) -> Result<bool, EngineError> {
        let lane = &self.group.lanes[self.number];
        lane.waker.prepare_sleep();
        let work_came = *self.group.deadline.lock() != deadline
            || self.group.has_work(self.number)
            || self.can_go_on();
        let timeout = if work_came { Some(Duration::ZERO) } else { timeout };
        let outcome = self.device.requests.reap(timeout);
        lane.waker.awake();
        self.group.cache.counters.reactor_turns.add(1);
        outcome
    }

    /// Waits for what is in the kernel, when what is queued was dropped. Says whether the kernel is done.
    fn quiesce(&mut self) -> bool {
        if self.device.requests.in_flight() > 0 {
            self.device.requests.cancel_all();
        }
        let mut patience = Patience::new(CANCEL_TIMEOUT);
        while self.device.requests.in_flight() > 0 {
            let Some(step) = patience.step() else { return false };
            if self.device.requests.reap(Some(step)).is_err() {
                return false;
            }
            // It submits nothing, and so cannot fail.
            let _ = self.finish_reaped();
            // What waited behind a SET that ended now will not start any more either.
            self.drop_queued();
        }
        self.group.completions.announce();
        self.group.cache.index.announce_changes();
        true
    }
}
