//! A turn of a reactor: take up, start, wait, sum up; from its start to its end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{iter, mem};

use super::latency::Timeline;
use super::limits::{BEGUN_TURN_BYTES, CHECKSUM_TURN_BYTES, MOST_IN_A_TURN};
use super::operation::{Active, Operation};
use super::state::Reactor;
use super::threads::ReactorEnd;
use crate::base::sync::atomic::Ordering;
use crate::base::time::Patience;
use crate::engine::EngineError;
use crate::schedule::{Class, Grant};

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
            self.take_up_deleted();
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
                && self.group.cache.deleted.is_empty();
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
                self.group.cache.index.changes.announce();
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
            || !self.group.cache.deleted.is_empty()
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
        self.group.cache.index.changes.announce();
        true
    }

    /// Takes up extents of deleted chunks, as many as one turn may.
    fn take_up_deleted(&mut self) {
        let group = Arc::clone(&self.group);
        let deleted = iter::from_fn(|| group.cache.deleted.pop());
        for (extent, since) in deleted.take(MOST_IN_A_TURN) {
            self.enqueue(Operation::Reclaim(extent), since);
        }
    }

    /// The classes of which the scheduler has nothing although there is something to take up. Others can take up what this reactor does
    /// not, so it takes up what it is about to begin.
    fn classes_to_fill(&self) -> impl Iterator<Item = Class> {
        let is_to_fill = |class: &Class| {
            self.group.pending.count(*class) > 0
                && self.scheduler.is_empty_of(*class)
                && (*class == Class::Get || !self.holds_sets())
        };
        [Class::Get, Class::Set].into_iter().filter(is_to_fill)
    }

    fn fill_classes(&mut self) {
        let to_fill: Vec<Class> = self.classes_to_fill().collect();
        for class in to_fill {
            if class == Class::Get {
                self.group.note_taking_up(self.number);
            }
            let taken = self.group.pending.take(class);
            taken.into_iter().for_each(|operation| self.accept(operation));
        }
    }

    fn holds_sets(&self) -> bool {
        self.awaits_growth || self.commit.has_too_many_files(self.group.cache.config.layout)
    }

    pub(super) fn accept(&mut self, operation: Operation) {
        let submitted = operation.submitted().unwrap_or_else(Instant::now);
        self.enqueue(operation, submitted);
    }

    fn enqueue(&mut self, operation: Operation, submitted: Instant) {
        self.has_changed = true;
        let (class, bytes) = (operation.class(), operation.bytes());
        let entry = self.active.vacant_entry();
        let id = entry.key();
        let ticket = self.scheduler.push(class, id, bytes, submitted);
        entry.insert(Active {
            operation,
            ticket,
            looks_again_for: None,
            timeline: Timeline { submitted, started: None, moved: None },
            waiting_bytes: bytes,
            unfinished: 0,
            checksum: 0,
            failure: None,
            failed_syncs: None,
            retries: 0,
            chunk_file: None,
        });
    }

    /// Takes up the next chunk to be verified if there is nothing else to do.
    fn verify_if_idle(&mut self, now: Instant) {
        if self.active.is_empty()
            && self.group.pending.is_empty()
            && let Some(read) = self.verification.next(now, &self.group.cache)
        {
            self.enqueue(Operation::Verify(read), now);
        }
    }

    /// Starts what the scheduler allows now. Says whether it stopped before the end, as the turn is over.
    fn start_some(&mut self, now: Instant) -> Result<bool, EngineError> {
        self.has_changed = false;
        self.note_work();
        self.elsewhere = self.group.elsewhere(self.number);
        (self.processed_bytes, self.begun_bytes) = (0, 0);
        self.awaits_growth &= self.group.cache.is_growing();
        self.scheduler.hold_sets(self.holds_sets());
        self.look_for_room_again();
        let mut outcome = Ok(false);
        loop {
            self.fill_classes();
            let Some(grant) = self.scheduler.next_grant(now, &self.elsewhere) else { break };
            if let Err(error) = self.start(grant, now) {
                outcome = Err(error);
                break;
            }
            if self.processed_bytes >= CHECKSUM_TURN_BYTES || self.begun_bytes >= BEGUN_TURN_BYTES {
                outcome = Ok(true);
                break;
            }
        }
        self.note_work();
        outcome
    }

    /// After the kernel was given what this turn began: whether all of it is back, so that the device waits for the processor.
    fn note_processor_bound(&self) {
        if self.begun_bytes > 0 {
            self.group.note_processor_bound(self.device.requests.in_flight() == 0);
        }
    }

    fn note_work(&mut self) {
        self.group.note_work(self.number, self.scheduler.loads(), &self.scheduler);
    }

    /// Whether something that it waits for has come since `start_some` looked. To be asked once more before sleeping: others
    /// wake only a reactor that sleeps.
    fn can_go_on(&self) -> bool {
        let loads_ended = self.elsewhere.are_loads_present
            && self.scheduler.has_waiting_sets()
            && !self.group.elsewhere(self.number).are_loads_present;
        let has_grown = self.awaits_growth && !self.group.cache.is_growing();
        let is_extent_free = |grant: &Grant| !self.active[grant.id].awaits_extent();
        let awaits_records =
            !self.awaiting_extents.is_empty() || self.commit.awaited_records.is_some();
        self.group.lanes[self.number].awaits_records.store(awaits_records, Ordering::SeqCst);
        let can_go_on = |id: &usize| {
            let file = self.active[*id].chunk_file.as_ref();
            file.is_none_or(|file| file.can_go_on(&*self.group.cache.store))
        };
        loads_ended
            || self.classes_to_fill().next().is_some()
            || has_grown
            || self.room_may_have_come()
            || self.awaiting_extents.front().is_some_and(is_extent_free)
            || self.group_can_go_on()
            || self.due_chunk_files.iter().any(can_go_on)
            || (awaits_records || !self.due_chunk_files.is_empty())
                && self.group.cache.index.changes.refusal().is_some()
    }
}
