//! What becomes of an operation when nothing of it is granted or under way any more: the states of an operation, and what leads
//! from one to the next; and the answers that wait until changes of records are in the index file, or are refused.
//!
//! | state | event | next state |
//! |---|---|---|
//! | pending | a reactor is about to begin it (`fill_classes`) | queued |
//! | queued | its first piece is granted (`start`, `begin_set`) | moving; queued again, or waiting for room, without an extent |
//! | moving | its last piece is through, or failed (`advance`) | truncating, to be written again, in a group, or answered |
//! | truncating | its file has its length (`advance`) | in a group, or answered |
//! | to be written again | its pause is over (`start_due`) | queued |
//! | in a group | the group is durable, or has failed (`finish_group`) | answered |
//! | answered (`answer`) | the next SET of its key goes on (`answer_set`) | |

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, mem};

use super::ReactorGroup;
use super::group::{Answer, Lane};
use super::io_error_policy::{DeviceState, Direction, ErrorAction, Failure, is_of_path};
use super::operation::{Active, Operation};
use super::state::Reactor;
use crate::base::sync::atomic::Ordering;
use crate::batch::completion_queue::{FailureCode, FailureReason};
use crate::cache::{Finding, GetRequest, ReadHandle};
use crate::config::Durability;
use crate::error::StoreError;
use crate::index::{ChunkVersion, RecordWriter, WriterEvent};

/// Extents that a SET tries which finds that they have no blocks, or no space for their file.
const MOST_EXTENTS: u32 = 4;

/// The same where the files of chunks that went for it cannot be removed: each of them is tried once.
const MOST_UNREMOVABLE: u32 = 64;

/// Pause before the first retry of a failed write; each further one is twice as long.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_RETRY_PAUSE: Duration = Duration::from_secs(1);

fn most_extents(error: &StoreError) -> u32 {
    if matches!(error, StoreError::Full { .. }) { MOST_UNREMOVABLE } else { MOST_EXTENTS }
}

fn pause_before(retry: u32) -> Duration {
    (FIRST_RETRY_PAUSE * 2_u32.saturating_pow(retry.min(16))).min(LONGEST_RETRY_PAUSE)
}

impl Reactor {
    /// Goes on with an operation of which nothing is granted or under way any more; of others nothing changes.
    pub(super) fn advance(&mut self, id: usize) {
        let cache = &self.group.cache;
        let is_persistent = cache.config.durability == Durability::Persistent;
        let most_retries = cache.config.tuning.persistent_max_retries;
        let active = &mut self.active[id];
        if active.waiting_bytes > 0 || active.unfinished > 0 {
            return;
        }
        // Its file is made as long as the chunk: padding was written behind it.
        if active.failure.is_none()
            && cache.store.geometry().direct
            && active.chunk_file.as_mut().is_some_and(|file| file.begin_truncate())
        {
            self.due_chunk_files.push(id);
            return;
        }
        let is_begun_set =
            matches!(&active.operation, Operation::Set(set) if set.extent().is_some());
        match &active.failure {
            // It gets another extent: this one has no blocks, or its file no space. It may be a file in the place of one that goes.
            Some(Failure::NoRoom(error))
                if is_begun_set && active.retries < most_extents(error) =>
            {
                active.release_extent();
                self.write_again(id, Duration::ZERO);
            }
            None if is_begun_set && is_persistent => self.commit.waiting.push(id),
            Some(Failure::Transfer(..))
                if is_begun_set && is_persistent && active.retries < most_retries =>
            {
                let pause = pause_before(active.retries);
                self.log_retry(id, pause);
                self.write_again(id, pause);
            }
            failure => {
                let is_exhausted = is_persistent
                    && active.retries > 0
                    && matches!(failure, Some(Failure::Transfer(..)));
                cache.counters.write_retries_exhausted.add(u64::from(is_exhausted));
                self.answer(id);
            }
        }
    }

    fn log_retry(&self, id: usize, pause: Duration) {
        let active = &self.active[id];
        let (cache, Operation::Set(set)) = (&self.group.cache, &active.operation) else { return };
        let Some(failure) = &active.failure else { return };
        let line = || {
            let message = set.failure_reason(failure, &self.group).message;
            format!("{message}; trying again in {pause:?}")
        };
        cache.log_limits.retries.log(cache.config.path(), 1, line);
    }

    /// Tries a SET once more, in the extent that it has, or in another one.
    pub(super) fn write_again(&mut self, id: usize, pause: Duration) {
        self.group.cache.counters.write_retries.add(1);
        let active = &mut self.active[id];
        active.retries += 1;
        active.failed_syncs = None;
        active.failure = None;
        active.checksum = 0;
        active.waiting_bytes = active.operation.bytes();
        if let Some(file) = &mut active.chunk_file {
            file.begin_again();
        }
        self.retries.push((Instant::now() + pause, id));
    }

    pub(super) fn answer(&mut self, id: usize) {
        let active = self.active.remove(id);
        let Active { operation, checksum, failure, timeline, chunk_file, .. } = active;
        self.has_changed = true;
        // Before anybody can remove the file.
        drop(chunk_file);
        let is_closed = matches!(failure, Some(Failure::Closed));
        if !is_closed && !matches!(operation, Operation::Verify(_)) {
            let mut latencies = self.group.lanes[self.number].latencies.lock();
            latencies.record(operation.class(), timeline, Instant::now());
        }
        if is_closed && matches!(operation, Operation::Get(..) | Operation::Set(_)) {
            self.group.cache.counters.abandoned.add(1);
        }
        match operation {
            Operation::Reclaim(extent) => self.group.cache.reclaim(extent),
            Operation::Get(request, read) => {
                if let Some(version) = answer_get(request, read, checksum, failure, &self.group) {
                    self.verification.add(version, Instant::now());
                }
            }
            Operation::Verify(read) => {
                let outcome = judge_read(read, checksum, failure, &self.group);
                self.verification
                    .note_read(matches!(outcome, ReadOutcome::Nothing(_)), &self.group.cache);
            }
            Operation::Set(set) => self.answer_set(*set, checksum, failure),
        }
    }

    /// Drops what is queued; what has pieces in flight ends with the last of them.
    pub(super) fn drop_queued(&mut self) {
        self.checksum_moved(u64::MAX);
        // Syncs in flight are still to be reaped.
        self.commit.waiting.clear();
        self.commit.members.clear();
        self.retries.clear();
        self.late.clear();
        self.verification.clear();
        self.device.drop_isolated();
        let awaiting_extents = self.awaiting_extents.drain(..);
        self.device.failed.extend(awaiting_extents.map(|grant| (grant, Failure::Closed)));
        self.fail_pieces(Instant::now());
        // Ending a SET may resume others behind it: until nothing is left.
        loop {
            let pending = self.group.pending.drain_some();
            pending.into_iter().for_each(|operation| self.accept(operation));
            self.scheduler.clear();
            self.clear_room_queue();
            self.drop_due_chunk_files();
            let ids: Vec<usize> = self.active.iter().map(|(id, _)| id).collect();
            let mut ended = 0;
            for id in ids {
                let active = &mut self.active[id];
                let unfinished = active.waiting_bytes > 0 || active.unfinished == 0;
                active.waiting_bytes = 0;
                if unfinished {
                    active.failure.get_or_insert(Failure::Closed);
                }
                if active.unfinished == 0 {
                    self.answer(id);
                    ended += 1;
                }
            }
            if ended == 0 {
                return;
            }
        }
    }

    /// Answers everything that the kernel does not give back; the memory is leaked.
    pub(super) fn abandon(&mut self) {
        for active in self.active.drain() {
            // The kernel may still use the file and its name, and write to the extent.
            mem::forget(active.chunk_file);
            if matches!(active.operation, Operation::Get(..) | Operation::Set(_)) {
                self.group.cache.counters.abandoned.add(1);
            }
            match active.operation {
                Operation::Get(request, read) => {
                    mem::forget(read);
                    request.item.abandon();
                }
                Operation::Set(set) => {
                    self.group.cache.counters.fail_sets(FailureCode::Abandoned, 1);
                    mem::forget(set.stage);
                    set.claim.request.item.abandon();
                }
                Operation::Verify(read) => mem::forget(read),
                Operation::Reclaim(_) => {}
            }
        }
    }
}

pub(super) enum ReadOutcome {
    Intact,
    Dropped,
    /// Nothing: it is stored as before. It has come into doubt if it is named here.
    Nothing(Option<ChunkVersion>),
}

/// Verifies the chunk and answers. Returns it if it has come into doubt.
pub(super) fn answer_get(
    request: GetRequest,
    read: ReadHandle,
    checksum: u64,
    failure: Option<Failure>,
    group: &ReactorGroup,
) -> Option<ChunkVersion> {
    let counters = &group.cache.counters;
    let length_bytes = read.pin.length_bytes;
    if matches!(failure, Some(Failure::Transfer(..))) {
        counters.read_errors.add(1);
    }
    let outcome = judge_read(read, checksum, failure, group);
    if matches!(outcome, ReadOutcome::Intact) {
        counters.get_hits.add(1);
        counters.read_bytes.add(length_bytes);
        request.item.succeed();
    } else {
        counters.get_misses.add(1);
        request.item.miss();
    }
    match outcome {
        ReadOutcome::Nothing(version) => version,
        _ => None,
    }
}

/// Closes a chunk that was read, and drops it if it is not what was stored.
pub(super) fn judge_read(
    read: ReadHandle,
    checksum: u64,
    failure: Option<Failure>,
    group: &ReactorGroup,
) -> ReadOutcome {
    match failure {
        None => match read.finish(checksum) {
            true => ReadOutcome::Intact,
            false => ReadOutcome::Dropped,
        },
        Some(Failure::Transfer(error, action)) => judge_failed_read(read, &error, action, group),
        Some(_) => ReadOutcome::Nothing(None),
    }
}

/// A chunk could not be read: it is dropped if that is its own fault.
fn judge_failed_read(
    read: ReadHandle,
    error: &io::Error,
    action: ErrorAction,
    group: &ReactorGroup,
) -> ReadOutcome {
    let (health, cache) = (&group.health, &group.cache);
    let version = read.version();
    // While the device fails, that says all there is to say.
    let finding = version.filter(|_| {
        action != ErrorAction::Drop && health.state(Direction::Read) != DeviceState::Fails
    });
    let finding = finding.map(|version| {
        let successes = health.successes(Direction::Read);
        cache.suspects.add(version, action == ErrorAction::Doubt, successes, Instant::now())
    });
    let is_dropped = action == ErrorAction::Drop || finding == Some(Finding::Unreadable);
    cache.log_limits.reads.log(cache.config.path(), 1, || {
        let what = if is_dropped { "dropped" } else { "a miss, and kept" };
        format!("cannot read a chunk ({}): {error}; it is {what}", read.extent_text())
    });
    if !is_dropped {
        return ReadOutcome::Nothing(version.filter(|_| finding == Some(Finding::New)));
    }
    if let Some(version) = version {
        cache.suspects.remove(version.digest);
    }
    read.discard();
    cache.counters.read_dropped.add(1);
    ReadOutcome::Dropped
}

/// The index takes no change, for this reason.
fn unavailable(refusal: &str) -> FailureReason {
    FailureReason::new(FailureCode::Unavailable, refusal)
}

impl ReactorGroup {
    /// Starts the thread that writes records, which answers what waits for them.
    pub(crate) fn start_record_writer(self: &Arc<Self>) -> io::Result<RecordWriter> {
        let group = Arc::clone(self);
        RecordWriter::start(&self.cache.index.table, move |event| match event {
            WriterEvent::Written => group.note_changes_made(),
            WriterEvent::Refused(error) => group.note_index_refuses(error),
            WriterEvent::Panicked => {
                group.fail_for("the thread that writes its records has stopped after a panic");
            }
        })
    }

    /// Answers when all changes of records are made that were queued by now. If they are refused, or nobody makes them any more, it
    /// fails.
    pub(crate) fn answer_when_written(&self, answer: Answer) {
        let index = &self.cache.index;
        let mut waiting = self.answers.lock();
        let ticket = index.changes.ticket();
        match index.changes.is_done(ticket) {
            true => {
                drop(waiting);
                answer.give(&self.cache);
            }
            false if waiting.have_ended => {}
            false => match index.changes.refusal() {
                Some(reason) => {
                    drop(waiting);
                    answer.fail(&self.cache, &unavailable(&reason));
                }
                None => waiting.answers.push_back((ticket, answer)),
            },
        }
    }

    /// The index takes no change: fails what waits for it, and what reactors have that does.
    fn note_index_refuses(&self, error: &io::Error) {
        let reason = self.cache.index.changes.refusal().unwrap_or_default();
        if error.raw_os_error().is_none_or(is_of_path) && self.cache.path_count() > 1 {
            self.health.fail_for_now(|| reason.to_string());
        }
        // After the refusal is known: whoever comes later sees it.
        let answers = mem::take(&mut self.answers.lock().answers);
        let reason = unavailable(&reason);
        answers.into_iter().for_each(|(_, answer)| answer.fail(&self.cache, &reason));
        self.completions.announce();
        self.lanes.iter().for_each(|lane| lane.waker.wake());
    }

    /// Some changes were made: gives the answers that waited for them, and wakes the reactors that do.
    fn note_changes_made(&self) {
        let mut waiting = self.answers.lock();
        let is_due = |(ticket, _): &(u64, Answer)| self.cache.index.changes.is_done(*ticket);
        let end = waiting.answers.partition_point(is_due);
        let due: Vec<Answer> = waiting.answers.drain(..end).map(|(_, answer)| answer).collect();
        drop(waiting);
        if !due.is_empty() {
            due.into_iter().for_each(|answer| answer.give(&self.cache));
            self.completions.announce();
        }
        let waits = |lane: &&Lane| lane.awaits_records.load(Ordering::SeqCst);
        self.lanes.iter().filter(waits).for_each(|lane| lane.waker.wake());
    }

    /// Nothing is stored or deleted any more.
    fn fail_for(&self, reason: &str) {
        let path = self.cache.config.path().display();
        log::error!("{path}: {reason}; every operation fails from here on");
        self.has_failed.store(true, Ordering::SeqCst);
        self.health.fail(|| reason.into());
        self.stop(Duration::ZERO);
        self.fail_answers();
    }

    /// Nobody makes changes any more, or it is not worth waiting for: fails what waits for them.
    pub(crate) fn fail_answers(&self) {
        self.cache.index.changes.sequencer.end();
        let mut waiting = self.answers.lock();
        waiting.have_ended = true;
        let left = mem::take(&mut waiting.answers);
        drop(waiting);
        let count: usize = left.iter().map(|(_, answer)| answer.count()).sum();
        self.cache.counters.abandoned.add(count as u64);
        let sets = left.iter().filter(|(_, answer)| matches!(answer, Answer::Stored { .. }));
        self.cache.counters.fail_sets(FailureCode::Abandoned, sets.count() as u64);
        drop(left);
        self.completions.announce();
    }
}
