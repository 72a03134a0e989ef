//! The stages of a SET that are no transfers: it begins, its record is written, it is stored or fails, and others go on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Shared;
use super::errnos::{Failure, Fate, Request};
use super::health::Direction;
use super::operation::{Operation, SetOperation, Stage};
use super::operations::{CHECKSUM_TURN_BYTES, Operations};
use super::record_writer::Answer;
use crate::cache::{Begun, Claim, Waiting};
use crate::config::Durability;
use crate::error::StoreError;
use crate::index::Resumed;
use crate::schedule::Grant;

/// Extents that a SET tries which finds that they have no blocks, or no space for their file.
const MOST_EXTENTS: u32 = 4;

/// The same where the files of chunks that went for it cannot be removed: each of them is tried once.
const MOST_UNREMOVABLE: u32 = 64;

/// Bytes that could be summed up in the time that a SET takes which ends without a write.
const UNWRITTEN_COSTS_BYTES: u64 = 16 << 10;

/// Pause before the first retry of a failed write; each further one is twice as long.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_RETRY_PAUSE: Duration = Duration::from_secs(1);

fn most_extents(error: &StoreError) -> u32 {
    if matches!(error, StoreError::Full { .. }) { MOST_UNREMOVABLE } else { MOST_EXTENTS }
}

impl SetOperation {
    fn failure_text(&self, failure: &Failure, shared: &Shared) -> String {
        let digest = self.claim.request.digest;
        failure.text(|| match self.extent() {
            Some(extent) => format!("a chunk ({})", shared.cache.extent_text(digest, extent)),
            None => format!("a chunk (digest {digest})"),
        })
    }

    /// Commits or gives everything back, and answers. Returns what waited behind it.
    fn end(self, checksum: u64, failure: Option<Failure>, shared: &Shared) -> Waiting {
        let cache = &shared.cache;
        let text = failure.as_ref().map(|failure| self.failure_text(failure, shared));
        let Self { claim, stage } = self;
        let (request, length_bytes) = (&claim.request, claim.length_bytes());
        let committed = match (stage, &failure) {
            (Stage::Superseding(write), _) => Some(write.commit()),
            (Stage::Recorded(write), None) => Some(write.commit()),
            (Stage::Writing(write), None) => Some(write.commit(request, checksum)),
            (Stage::Writing(write), Some(Failure::Transfer(_, Fate::Doubt))) => {
                write.abort_unwritable();
                None
            }
            (stage, _) => {
                drop(stage);
                None
            }
        };
        let (generation, waiting) = committed.unzip();
        let waiting = waiting.unwrap_or_else(|| cache.end_set(request.digest, None));
        let (item, share) = (claim.request.item, claim.request.share);
        let Some(failure) = failure else {
            // Also if nothing was written: it may have found what is not in the file yet.
            shared.answer_when_written(Answer::Stored { item, share, generation });
            return waiting;
        };
        // Before the answer: the caller may submit more then.
        drop(share);
        let text = text.unwrap_or_default();
        cache.counters.set_failed.add(1);
        match &failure {
            Failure::NoRoom(_) => cache.counters.store_full.add(1),
            Failure::Transfer(..) => {
                cache.counters.write_errors.add(1);
                if shared.health.may_log(Direction::Write, cache.config.path()) {
                    log::error!("{text} ({length_bytes} bytes)");
                }
            }
            Failure::Sync(_) | Failure::Other(_) | Failure::Late | Failure::Closed => {}
        }
        item.fail(|| text);
        waiting
    }
}

impl Operations {
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
        let cache = &self.shared.cache;
        let missed = cache.presence.reason().map(|reason| {
            format!(
                "nothing is stored any more: {reason}; put it back, or open the store again (what is stored is still loaded)"
            )
        });
        if let Some(message) = missed.or_else(|| cache.refusal().map(|reason| reason.to_string())) {
            self.end_unwritten(grant, Some(Failure::Other(message)));
            return false;
        }
        let before = set.claim.compared_bytes;
        let begun = set.claim.begin(&self.shared.cache, limit_bytes, now);
        self.processed_bytes += (set.claim.compared_bytes - before) as u64;
        match begun {
            Begun::Write(write) => {
                set.stage = Stage::Writing(write);
                return true;
            }
            Begun::Comparing => self.put_back(grant),
            Begun::MakingRoom => {
                self.processed_bytes += CHECKSUM_TURN_BYTES;
                self.put_back(grant);
            }
            Begun::Growing => {
                self.put_back(grant);
                self.scheduler.hold_sets(true);
                self.awaits_growth = true;
            }
            Begun::Unwritten => self.end_unwritten(grant, None),
            Begun::Refused(error) => {
                self.commit.is_to_free = true;
                if let StoreError::Grow { source, .. } = &error {
                    // One without an errno is an error of the device too.
                    let errno = source.raw_os_error().unwrap_or(libc::EIO);
                    self.shared.health.note_failure(Request::Grow, errno, Instant::now());
                }
                self.end_unwritten(grant, Some(Failure::NoRoom(error)));
            }
        }
        false
    }

    fn put_back(&mut self, grant: Grant) {
        let active = &mut self.active[grant.id];
        active.waiting_bytes = active.operation.bytes();
        let since = active.timeline.submitted;
        active.ticket = self.scheduler.take_back(grant, active.waiting_bytes, since);
    }

    fn end_unwritten(&mut self, grant: Grant, failure: Option<Failure>) {
        self.processed_bytes += UNWRITTEN_COSTS_BYTES;
        self.scheduler.finish(grant);
        self.cancel_rest(grant.id);
        self.active[grant.id].failure = failure;
        self.end(grant.id);
    }

    /// An operation is through with its transfers. It is answered; or a SET is written again, or waits for its group.
    pub(super) fn end(&mut self, id: usize) {
        let cache = &self.shared.cache;
        let is_persistent = cache.config.durability == Durability::Persistent;
        let most_retries = cache.config.tuning.persistent_max_retries;
        let active = &mut self.active[id];
        let retries = active.retries;
        let Operation::Set(set) = &mut active.operation else { return self.answer(id) };
        match &active.failure {
            // Its extent has no blocks, or its file no space. Another extent may, or a file in the place of one that goes.
            Some(Failure::NoRoom(error))
                if retries < most_extents(error) && !matches!(set.stage, Stage::Claimed) =>
            {
                active.release_extent();
                cache.store.note_no_blocks();
                self.awaits_growth |= cache.order_growth(0);
                self.write_again(id, Duration::ZERO);
            }
            _ if !is_persistent || matches!(set.stage, Stage::Claimed) => self.answer(id),
            None => self.commit.waiting.push(id),
            Some(failure @ Failure::Transfer(..)) if retries < most_retries => {
                let pause = (FIRST_RETRY_PAUSE * 2_u32.saturating_pow(retries.min(16)))
                    .min(LONGEST_RETRY_PAUSE);
                if self.shared.health.may_log(Direction::Write, cache.config.path()) {
                    let text = set.failure_text(failure, &self.shared);
                    log::warn!("{text}; trying again in {pause:?}");
                }
                self.write_again(id, pause);
            }
            Some(Failure::Transfer(..)) if retries > 0 => {
                cache.counters.write_retries_exhausted.add(1);
                self.answer(id);
            }
            _ => self.answer(id),
        }
    }

    pub(super) fn write_again(&mut self, id: usize, pause: Duration) {
        self.shared.cache.counters.write_retries.add(1);
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

    /// Ends a SET, and goes on with what waited behind it. A SET of the same bytes was as good as on its way with this one: it
    /// shares its failure.
    pub(super) fn end_set(&mut self, set: SetOperation, checksum: u64, failure: Option<Failure>) {
        let (digest, length_bytes) = (set.claim.request.digest, set.claim.length_bytes());
        // Now: the memory is the caller's again with the answer.
        let shared_failure = failure
            .as_ref()
            // What close() drops is dropped, and counted, one by one.
            .filter(|failure| !matches!(failure, Failure::Closed))
            .filter(|_| self.shared.cache.index.has_waiting_set(digest))
            .map(|failure| (set.failure_text(failure, &self.shared), set.claim.checksum()));
        let mut waiting = VecDeque::from(set.end(checksum, failure, &self.shared));
        while let Some(next) = waiting.pop_front() {
            match next {
                Resumed::Hit(request, read) => self.accept(Operation::Get(request, read)),
                Resumed::Miss(request) => {
                    self.shared.cache.counters.get_misses.add(1);
                    request.item.miss();
                }
                Resumed::Start(request) => {
                    let claim = Claim::new(request, true);
                    match &shared_failure {
                        Some((message, checksum))
                            if claim.length_bytes() == length_bytes
                                && claim.checksum() == *checksum =>
                        {
                            let failure = Some(Failure::Other(message.clone()));
                            let set = SetOperation { claim, stage: Stage::Claimed };
                            waiting.extend(set.end(0, failure, &self.shared));
                        }
                        _ => self.accept(Operation::set(claim)),
                    }
                }
            }
        }
    }
}
