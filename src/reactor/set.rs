//! The stages of a SET that are no transfers: it begins, its record is written, it is stored or fails, and others go on.

use std::collections::VecDeque;
use std::time::Instant;

use super::ReactorGroup;
use super::group::Answer;
use super::io_error_policy::{ErrorAction, Failure, Request};
use super::limits::CHECKSUM_TURN_BYTES;
use super::operation::{Operation, SetOperation, Stage};
use super::state::Reactor;
use crate::batch::completion_queue::{FailureCode, FailureReason};
use crate::cache::{BeginOutcome, Claim, RoomOf, SetRequest};
use crate::error::StoreError;
use crate::schedule::Grant;

/// Bytes that could be summed up in the time that a SET takes which ends without a write.
const UNWRITTEN_COSTS_BYTES: u64 = 16 << 10;

impl SetOperation {
    pub(super) fn failure_reason(&self, failure: &Failure, group: &ReactorGroup) -> FailureReason {
        let digest = self.claim.request.digest;
        if matches!(failure, Failure::Closed) && group.has_failed() {
            return FailureReason::new(
                FailureCode::Unavailable,
                "the I/O of this path stopped before the chunk was written, and the log says why; close the \
                 connector and open it again",
            );
        }
        let message = failure.text(|| match self.extent() {
            Some(extent) => format!("a chunk ({})", group.cache.extent_text(digest, extent)),
            None => format!("a chunk (digest {digest})"),
        });
        FailureReason::new(failure.code(), message)
    }

    /// Commits or gives everything back, and answers. Returns the next SET of its key.
    fn finish(
        self,
        checksum: u64,
        failure: Option<Failure>,
        group: &ReactorGroup,
    ) -> Option<SetRequest> {
        let cache = &group.cache;
        let reason = failure.as_ref().map(|failure| self.failure_reason(failure, group));
        let Self { claim, stage } = self;
        let (request, length_bytes) = (&claim.request, claim.length_bytes());
        let committed = match (stage, &failure) {
            (Stage::Superseding(write), _) => Some(write.commit()),
            (Stage::Recorded(write), None) => Some(write.commit()),
            (Stage::Writing(write), None) => Some(write.commit(request, checksum)),
            (Stage::Writing(write), Some(Failure::Transfer(_, ErrorAction::Doubt))) => {
                write.abort_unwritable();
                None
            }
            (stage, _) => {
                drop(stage);
                None
            }
        };
        let (generation, next) = match committed {
            Some((generation, next)) => (Some(generation), next),
            None => (None, cache.end_set(request.digest, None)),
        };
        let (item, share) = (claim.request.item, claim.request.share);
        let Some((failure, reason)) = failure.zip(reason) else {
            // Also if nothing was written: it may have found what is not in the file yet.
            group.answer_when_written(Answer::Stored { item, share, generation });
            return next;
        };
        // Before the answer: the caller may submit more then.
        drop(share);
        cache.counters.fail_sets(reason.code, 1);
        if matches!(failure, Failure::Transfer(..)) {
            cache.counters.write_errors.add(1);
            let line = || format!("{} ({length_bytes} bytes)", reason.message);
            cache.log_limits.writes.log(cache.config.path(), 1, line);
        }
        item.fail(|| reason);
        next
    }
}

impl Reactor {
    /// A SET that has no extent was granted its first piece. Says whether it has one now and is to be written; if not, it is
    /// back in the queue, or ended.
    pub(super) fn begin_set(&mut self, grant: Grant, now: Instant) -> bool {
        let active = &mut self.active[grant.id];
        // A long one in turns, so that loads go between.
        let has_more = active.waiting_bytes > 0;
        let limit_bytes = if has_more { CHECKSUM_TURN_BYTES as usize } else { usize::MAX };
        let Operation::Set(set) = &mut active.operation else { return true };
        if !matches!(set.stage, Stage::Claimed) {
            return true;
        }
        let cache = &self.group.cache;
        let missed = cache.directory_watch.reason().map(|reason| {
            format!(
                "nothing is stored any more: {reason}; put it back, or open the store again (what is stored is still loaded)"
            )
        });
        if let Some(message) =
            missed.or_else(|| cache.index.changes.refusal().map(|reason| reason.to_string()))
        {
            let reason = FailureReason::new(FailureCode::Unavailable, message);
            self.finish_unwritten(grant, Some(Failure::Other(reason)));
            return false;
        }
        let before = set.claim.compared_bytes;
        let behind = match active.looks_again_for {
            None => self.room_queue.ahead_of(set.claim.request.namespace),
            Some(_) => None,
        };
        let begun = set.claim.begin(&self.group.cache, limit_bytes, now, behind);
        self.processed_bytes += (set.claim.compared_bytes - before) as u64;
        match begun {
            BeginOutcome::Write(write) => {
                set.stage = Stage::Writing(write);
                self.release_next(grant.id);
                return true;
            }
            BeginOutcome::AwaitingRoom { changes, room } => {
                // Also room that a sync of the index gives back.
                self.commit.is_to_free = true;
                self.take_off(grant);
                self.await_room(grant.id, room, changes);
            }
            BeginOutcome::Comparing => self.put_back(grant),
            BeginOutcome::MakingRoom => {
                self.processed_bytes += CHECKSUM_TURN_BYTES;
                self.put_back(grant);
            }
            BeginOutcome::Growing => {
                self.put_back(grant);
                self.scheduler.hold_sets(true);
                self.awaits_growth = true;
            }
            BeginOutcome::Unwritten => self.finish_unwritten(grant, None),
            BeginOutcome::Refused(error) => {
                self.commit.is_to_free = true;
                if let StoreError::Grow { source, .. } = &error {
                    // One without an errno is an error of the device too.
                    let errno = source.raw_os_error().unwrap_or(libc::EIO);
                    self.group.health.note_failure(Request::Grow, errno, Instant::now());
                }
                self.finish_unwritten(grant, Some(Failure::NoRoom(error)));
            }
        }
        false
    }

    /// It is not in the scheduler any more, as if nothing had been granted.
    fn take_off(&mut self, grant: Grant) {
        self.scheduler.finish(grant);
        self.cancel_rest(grant.id);
        let active = &mut self.active[grant.id];
        active.waiting_bytes = active.operation.bytes();
    }

    fn put_back(&mut self, grant: Grant) {
        self.take_off(grant);
        let active = &mut self.active[grant.id];
        let (bytes, since) = (active.waiting_bytes, active.timeline.submitted);
        active.ticket = self.scheduler.push_first(grant.id, bytes, since);
    }

    fn finish_unwritten(&mut self, grant: Grant, failure: Option<Failure>) {
        self.processed_bytes += UNWRITTEN_COSTS_BYTES;
        self.release_next(grant.id);
        self.scheduler.finish(grant);
        self.cancel_rest(grant.id);
        self.active[grant.id].failure = failure;
        self.advance(grant.id);
    }

    /// Ends a SET, and goes on with the next one of its key.
    pub(super) fn answer_set(
        &mut self,
        set: SetOperation,
        checksum: u64,
        failure: Option<Failure>,
    ) {
        if let Some(next) = set.finish(checksum, failure, &self.group) {
            self.accept(Operation::set(Claim::new(next, true)));
        }
    }

    pub(super) fn await_room(&mut self, id: usize, room: RoomOf, changes: u64) {
        let was_first = self.active[id].looks_again_for.take() == Some(room);
        self.room_queue.push(id, room, changes, was_first);
        self.group.cache.writes.add_waiting(1);
    }

    /// Whether room may have come for those that wait. To be asked again before sleeping.
    pub(super) fn room_may_have_come(&self) -> bool {
        !self.room_queue.is_empty()
            && self.group.cache.writes.changes() != self.room_queue.seen_changes
    }

    /// If room may have come, the first one of each queue looks again, before other SETs.
    pub(super) fn look_for_room_again(&mut self) {
        if self.room_may_have_come() {
            self.room_queue.seen_changes = self.group.cache.writes.changes();
            let rooms: Vec<RoomOf> = self.room_queue.queues.iter().map(|(of, _)| *of).collect();
            rooms.into_iter().for_each(|room| self.release_first(room));
        }
    }

    /// The first one that waited has begun, or ended: the next one looks for room.
    pub(super) fn release_next(&mut self, id: usize) {
        if let Some(room) = self.active[id].looks_again_for.take() {
            self.release_first(room);
        }
    }

    fn release_first(&mut self, room: RoomOf) {
        let Some(id) = self.room_queue.of(room).and_then(VecDeque::pop_front) else { return };
        self.group.cache.writes.remove_waiting(1);
        let active = &mut self.active[id];
        active.looks_again_for = Some(room);
        let (bytes, since) = (active.waiting_bytes, active.timeline.submitted);
        active.ticket = self.scheduler.push_first(id, bytes, since);
    }

    /// None of them waits any more.
    pub(super) fn clear_room_queue(&mut self) {
        let count = self.room_queue.queues.drain(..).map(|(_, queue)| queue.len()).sum();
        self.group.cache.writes.remove_waiting(count);
    }
}
