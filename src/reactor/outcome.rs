//! What becomes of an operation when nothing of it is granted or under way any more: the states of an operation, and what leads
//! from one to the next.
//!
//! | state | event | next state |
//! |---|---|---|
//! | pending | a reactor is about to begin it (`fill_classes`) | queued |
//! | queued | its first piece is granted (`start`, `begin_set`) | moving; queued again, or waiting for room, without an extent |
//! | moving | its last piece is through, or failed (`advance`) | by [`NextStep`] |
//! | truncating | its file has its length (`advance`) | by [`NextStep`] |
//! | to be written again | its pause is over (`start_due`) | queued |
//! | in a group | the group is durable, or has failed (`finish_group`) | answered |
//! | answered (`answer`) | the next SET of its key goes on (`answer_set`) | |

use std::time::{Duration, Instant};
use std::{io, mem};

use super::ReactorGroup;
use super::io_error_policy::{DeviceState, Direction, ErrorAction, Failure};
use super::operation::{Active, Operation, Stage};
use super::state::Reactor;
use crate::cache::{Finding, GetRequest, ReadHandle};
use crate::config::Durability;
use crate::error::StoreError;
use crate::index::ChunkVersion;

/// Extents that a SET tries which finds that they have no blocks, or no space for their file.
const MOST_EXTENTS: u32 = 4;

/// The same where the files of chunks that went for it cannot be removed: each of them is tried once.
const MOST_UNREMOVABLE: u32 = 64;

/// Pause before the first retry of a failed write; each further one is twice as long.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// What an operation does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextStep {
    /// Its file is made as long as the chunk: padding was written behind it.
    Truncate,
    /// A SET gets another extent: this one has no blocks, or its file no space. It may be a file in the place of one that goes.
    WriteElsewhere,
    /// A SET is written once more after a pause.
    WriteAgain(Duration),
    /// A SET waits until it is durable together with others.
    AwaitGroup,
    /// It is answered.
    Answer,
}

fn most_extents(error: &StoreError) -> u32 {
    if matches!(error, StoreError::Full { .. }) { MOST_UNREMOVABLE } else { MOST_EXTENTS }
}

fn pause_before(retry: u32) -> Duration {
    (FIRST_RETRY_PAUSE * 2_u32.saturating_pow(retry.min(16))).min(LONGEST_RETRY_PAUSE)
}

impl Active {
    /// What comes after its transfers. `most_retries` of a failed write are made before it fails.
    fn next_step(&mut self, is_direct: bool, is_persistent: bool, most_retries: u32) -> NextStep {
        let is_whole = self.failure.is_none();
        let has_padding = |active: &mut Self| {
            active.chunk_file.as_mut().is_some_and(|file| file.begin_truncate())
        };
        if is_whole && is_direct && has_padding(self) {
            return NextStep::Truncate;
        }
        let Operation::Set(set) = &self.operation else { return NextStep::Answer };
        let has_extent = !matches!(set.stage, Stage::Claimed);
        match &self.failure {
            _ if !has_extent => NextStep::Answer,
            Some(Failure::NoRoom(error)) if self.retries < most_extents(error) => {
                NextStep::WriteElsewhere
            }
            None if is_persistent => NextStep::AwaitGroup,
            Some(Failure::Transfer(..)) if is_persistent && self.retries < most_retries => {
                NextStep::WriteAgain(pause_before(self.retries))
            }
            _ => NextStep::Answer,
        }
    }
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
        let is_direct = cache.store.geometry().direct;
        match active.next_step(is_direct, is_persistent, most_retries) {
            NextStep::Truncate => self.due_chunk_files.push(id),
            NextStep::WriteElsewhere => {
                active.release_extent();
                self.write_again(id, Duration::ZERO);
            }
            NextStep::WriteAgain(pause) => {
                self.log_retry(id, pause);
                self.write_again(id, pause);
            }
            NextStep::AwaitGroup => self.commit.waiting.push(id),
            NextStep::Answer => {
                let is_exhausted = is_persistent
                    && active.retries > 0
                    && matches!(active.failure, Some(Failure::Transfer(..)));
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
