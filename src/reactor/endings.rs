//! What becomes of operations whose transfers come back: pieces go on, are summed up, and end their operations.

use std::collections::VecDeque;
use std::time::Instant;

use super::Shared;
use super::commit::{SYNC_TOKEN, SyncTarget};
use super::errnos::Request;
use super::health::{Way, errno_of};
use super::operation::{Operation, SetRequest};
use super::own_file::{STEP_TOKENS, Step};
use super::piece::{Piece, Progress};
use super::steps::{
    Failure, Place, checksum_of, end_get, end_set, end_verify, failure_text, write_record,
};
use super::work::{Active, FIRST_RETRY_PAUSE, Kind, LONGEST_RETRY_PAUSE, Work};
use crate::config::Durability;
use crate::engine::{Engine, EngineError, Reaped};
use crate::error::StoreError;
use crate::index::Resumed;
use crate::schedule::{Class, Grant};
use crate::store::Location;

/// Places that a SET tries which finds that they have no blocks.
const MOST_PLACES: u32 = 4;

impl Work {
    /// Takes the results of transfers; answers the operations that are done. One at a time off the list, so that a panic
    /// loses none.
    pub(super) fn finish_reaped(
        &mut self,
        shared: &Shared,
        engine: &mut impl Engine,
        reaped: &mut Vec<Reaped>,
    ) -> Result<(), EngineError> {
        let mut outcome = Ok(());
        let now = Instant::now();
        reaped.reverse();
        while let Some(Reaped { token, result }) = reaped.pop() {
            if token == SYNC_TOKEN {
                outcome = outcome.and(self.finish_sync(result, shared, Some(&mut *engine)));
                continue;
            }
            if token >= STEP_TOKENS {
                self.finish_step(token - STEP_TOKENS, result, false, shared);
                continue;
            }
            let second = self.second_attempts.end(token);
            match self.pieces[token].advance(result) {
                Progress::Again => {
                    shared.counters.transfers_resumed.add(1);
                    outcome = outcome.and(self.submit(token, shared, engine));
                }
                Progress::Done => {
                    let way = self.pieces[token].request().way();
                    if shared.health.note_success(way) && way == Way::Write {
                        // It was the device, and not they.
                        shared.store.retry_bad_extents();
                    }
                    self.end_piece(token, None, now, shared);
                }
                Progress::Failed(errno) => self.fail_piece(token, errno, second, now, shared),
            }
        }
        outcome.and(self.start_second_attempts(now, shared, engine))
    }

    /// Like `finish_reaped` when nothing may be submitted any more.
    pub(super) fn finish_stopped<E: Engine>(&mut self, shared: &Shared, reaped: &mut Vec<Reaped>) {
        while let Some(Reaped { token, result }) = reaped.pop() {
            if token == SYNC_TOKEN {
                // Without an engine it submits nothing, and so cannot fail.
                let _ = self.finish_sync(result, shared, None::<&mut E>);
                continue;
            }
            if token >= STEP_TOKENS {
                self.finish_step(token - STEP_TOKENS, result, true, shared);
                self.drop_due_steps(shared);
                continue;
            }
            let failure = match self.pieces[token].advance(result) {
                Progress::Done => None,
                // Also a failure: it may only be that it was cancelled, which says nothing about the chunk.
                Progress::Again | Progress::Failed(_) => Some(Failure::Closed),
            };
            self.end_piece(token, failure, Instant::now(), shared);
        }
    }

    /// The kernel is done with a piece. What failed ends here; the rest is left to [`Work::settle`], so that the device
    /// gets its next transfers first.
    pub(super) fn end_piece(
        &mut self,
        token: usize,
        failure: Option<Failure>,
        now: Instant,
        shared: &Shared,
    ) {
        let piece = self.pieces.remove(token);
        self.scheduler.finish(piece.grant);
        self.active[piece.grant.id].timeline.moved = Some(now);
        let Some(failure) = failure else {
            let is_load = piece.grant.class == Class::Get || self.active[piece.grant.id].is_awaited;
            let urgency = usize::from(!is_load);
            self.finished_bytes += piece.grant.length_bytes;
            return self.finished[urgency].push_back(piece);
        };
        let (id, class) = (piece.grant.id, piece.grant.class);
        let active = &mut self.active[id];
        active.failure.get_or_insert(failure);
        if active.waiting_bytes > 0 {
            active.waiting_bytes = 0;
            self.scheduler.cancel_rest(class, id);
        }
        self.end_of_piece(piece, shared);
    }

    /// Whether there are pieces that the processor has work with.
    pub(super) fn is_unsettled(&self) -> bool {
        self.finished.iter().any(|pieces| !pieces.is_empty()) || !self.unsummed.is_empty()
    }

    /// Copies and sums up pieces that the kernel is done with, loads first, and answers what is through with them. At
    /// least one piece, and about `limit_bytes` in all, or more where it lags behind: then it is time to look at the
    /// device again.
    pub(super) fn settle(&mut self, limit_bytes: u64, shared: &Shared) {
        let mut settled_bytes = 0;
        while (settled_bytes < limit_bytes || self.finished_bytes > self.most_unsettled_bytes)
            && let Some(mut piece) = self.finished.iter_mut().find_map(VecDeque::pop_front)
        {
            self.finished_bytes -= piece.grant.length_bytes;
            piece.deliver();
            let active = &mut self.active[piece.grant.id];
            settled_bytes += piece.bounced_bytes as u64;
            if let Some(kind) = active.kind.checksum_kind(shared.config.checksum) {
                active.checksum ^= piece.placed_checksum(kind);
                settled_bytes += piece.grant.length_bytes;
            }
            self.end_of_piece(piece, shared);
        }
    }

    /// Sums up writes that are still in the kernel, when there is nothing better to do: then they can be answered as soon
    /// as it is done.
    pub(super) fn sum_ahead(&mut self, limit_bytes: u64, shared: &Shared) {
        let Some(kind) = shared.config.checksum.kind() else { return };
        let mut summed_bytes = 0;
        while summed_bytes < limit_bytes
            && self.finished.iter().all(VecDeque::is_empty)
            && let Some(token) = self.unsummed.pop_front()
        {
            // It may be done, and its token another piece's.
            if let Some(piece) = self.pieces.get_mut(token)
                && piece.can_be_summed_early()
            {
                piece.placed_checksum(kind);
                summed_bytes += piece.grant.length_bytes;
            }
        }
    }

    fn end_of_piece(&mut self, piece: Piece, shared: &Shared) {
        let id = piece.grant.id;
        piece.release(&mut self.pool);
        let active = &mut self.active[id];
        active.unfinished -= 1;
        if active.waiting_bytes == 0 && active.unfinished == 0 && !self.has_to_be_cut(id, shared) {
            self.end(id, shared);
        }
    }

    /// Ends a SET that was granted but will not be written.
    pub(super) fn end_unplaced(
        &mut self,
        grant: Grant,
        failure: Option<Failure>,
        shared: &Shared,
    ) -> Result<(), EngineError> {
        if let Some(Failure::NoRoom(StoreError::Grow { source, .. })) = &failure {
            shared.health.note_failure(Request::Grow, errno_of(source), Instant::now());
        }
        self.scheduler.finish(grant);
        if self.active[grant.id].waiting_bytes > 0 {
            self.scheduler.cancel_rest(grant.class, grant.id);
        }
        self.active[grant.id].failure = failure;
        self.end(grant.id, shared);
        Ok(())
    }

    /// An operation is through with its transfers: it is answered, tried again, or waits for its group.
    pub(super) fn end(&mut self, id: usize, shared: &Shared) {
        if self.can_go_elsewhere(id) {
            return self.place_anew(id, shared);
        }
        let active = &mut self.active[id];
        if let Kind::Set(request, Some(place)) = &active.kind
            && shared.config.durability == Durability::Persistent
        {
            match &active.failure {
                None => return self.commit.join(id),
                Some(failure @ Failure::Transfer(..))
                    if active.retries < shared.config.persistent_max_retries =>
                {
                    let pause = (FIRST_RETRY_PAUSE * 2_u32.saturating_pow(active.retries.min(16)))
                        .min(LONGEST_RETRY_PAUSE);
                    if shared.health.may_tell(Way::Write, shared.config.path()) {
                        let text =
                            failure_text(failure, request.digest, Some(place.extent), shared);
                        log::warn!("{text}; trying again in {pause:?}");
                    }
                    self.begin_anew(id, shared);
                    return self.retries.push((Instant::now() + pause, id));
                }
                Some(Failure::Transfer(..)) if active.retries > 0 => {
                    shared.counters.write_retries_exhausted.add(1);
                }
                _ => {}
            }
        }
        self.answer(id, shared);
    }

    /// Whether a SET found no blocks where it was to be written, and may where there are some.
    fn can_go_elsewhere(&self, id: usize) -> bool {
        let Active { failure, retries, .. } = &self.active[id];
        matches!(failure, Some(Failure::NoRoom(StoreError::NoBlocks { .. })))
            && *retries < MOST_PLACES
    }

    /// Gives the place of a SET back, and looks for another one when it is known which there are.
    fn place_anew(&mut self, id: usize, shared: &Shared) {
        if let Kind::Set(_, place) = &mut self.active[id].kind
            && let Some(place) = place.take()
        {
            shared.give_back(place);
        }
        self.begin_anew(id, shared);
        self.active[id].awaits_room = true;
        shared.store.note_no_blocks();
        self.awaits_growth |= shared.order_growth(0);
        self.retries.push((Instant::now(), id));
    }

    /// Makes a SET that was written one of which nothing was.
    fn begin_anew(&mut self, id: usize, shared: &Shared) {
        shared.counters.write_retries.add(1);
        let active = &mut self.active[id];
        active.retries += 1;
        active.failed_syncs = None;
        active.failure = None;
        active.checksum = 0;
        active.waiting_bytes = active.kind.bytes();
        // An open file is written to once more.
        if let Some(own) = &mut active.own
            && own.step == Step::Cut
        {
            own.step = Step::Transfer;
        }
    }

    /// Whether no sync of the store has failed since the write of a SET began.
    pub(super) fn is_untouched(&self, id: usize, shared: &Shared) -> bool {
        self.active[id].failed_syncs == Some(shared.failed_syncs())
    }

    /// A failed sync may have dropped what a SET has written, and it has no record yet: it is written once more, unless that
    /// was done too often.
    pub(super) fn write_anew(&mut self, id: usize, shared: &Shared) {
        if self.active[id].retries >= shared.config.persistent_max_retries {
            return self.end_grouped(id, Some(shared.sync_failure()), shared);
        }
        self.begin_anew(id, shared);
        self.retries.push((Instant::now(), id));
    }

    /// What has to be synced so that the data of a SET is durable.
    pub(super) fn written_files(&self, id: usize, shared: &Shared) -> Vec<SyncTarget> {
        let Active { kind: Kind::Set(_, Some(place)), own, .. } = &self.active[id] else {
            return Vec::new();
        };
        if let Some(own) = own {
            // Its name too: without it a sync of the file is worth nothing after power loss.
            return vec![SyncTarget::Own(own.descriptor()), SyncTarget::Names(own.directory())];
        }
        match shared.store.locate(place.extent) {
            Location::Shared { file, .. } => vec![SyncTarget::Lasting(file)],
            Location::Own { .. } => Vec::new(),
        }
    }

    /// Writes the record of a SET, without anybody finding it yet.
    pub(super) fn write_record(&mut self, id: usize, shared: &Shared) {
        let active = &mut self.active[id];
        if let Kind::Set(request, Some(place)) = &mut active.kind {
            write_record(request, place, active.checksum, shared);
        }
    }

    /// Clears the record of what a SET replaces, while its entry still serves. Says whether there was one.
    pub(super) fn clear_replaced(&mut self, id: usize, shared: &Shared) -> bool {
        match &mut self.active[id].kind {
            Kind::Set(request, Some(place)) => {
                place.stands = shared.index.invalidate(request.digest);
                place.stands
            }
            _ => false,
        }
    }

    /// Answers a member of a group that is durable, or never will be.
    pub(super) fn end_grouped(&mut self, id: usize, failure: Option<Failure>, shared: &Shared) {
        self.active[id].failure = failure;
        self.answer(id, shared);
    }

    pub(super) fn answer(&mut self, id: usize, shared: &Shared) {
        let Active { kind, checksum, failure, timeline, own, is_awaited, .. } =
            self.active.remove(id);
        self.has_ended_some = true;
        // Before anybody can remove the file.
        drop(own);
        if let Kind::Set(request, _) = &kind {
            self.forget_set(request.digest);
            self.awaited -= usize::from(is_awaited);
        }
        self.in_hand_bytes[kind.class() as usize] -= kind.cost_bytes();
        if !matches!(failure, Some(Failure::Closed)) && !matches!(kind, Kind::Verify(_)) {
            let mut latencies = shared.lanes[self.number].latencies.lock();
            latencies.record(kind.class(), timeline, Instant::now());
        }
        let asked_for = matches!(kind, Kind::Get(..) | Kind::Set(..));
        if asked_for && matches!(failure, Some(Failure::Closed)) {
            shared.counters.abandoned.add(1);
        }
        match kind {
            Kind::Free(extent) => shared.store.free(extent),
            Kind::Get(request, pin) => {
                if let Some(suspect) = end_get(request, pin, checksum, failure, shared) {
                    self.verification.add(suspect, Instant::now());
                }
            }
            Kind::Verify(pin) => {
                let stays = end_verify(pin, checksum, failure, shared);
                self.end_verification(stays, shared);
            }
            Kind::Set(request, place) => {
                self.answer_set(request, place, checksum, failure, shared);
            }
        }
    }

    /// Answers a SET, and goes on with what waited behind it. A SET of the same bytes was as good as on its way with this
    /// one: it shares its failure.
    fn answer_set(
        &mut self,
        request: SetRequest,
        place: Option<Place>,
        checksum: u64,
        failure: Option<Failure>,
        shared: &Shared,
    ) {
        // Now: the memory is the caller's again with the answer.
        let shared_failure = failure
            .as_ref()
            // What close() drops is dropped, and counted, one by one.
            .filter(|failure| !matches!(failure, Failure::Closed))
            .filter(|_| shared.index.has_waiting_set(request.digest))
            .map(|failure| failure_text(failure, request.digest, place.as_ref().map(|place| place.extent), shared))
            .map(|text| (text, checksum_of(&request)));
        let length_bytes = request.buffer.length_bytes();
        let mut resumed = VecDeque::from(end_set(request, place, checksum, failure, shared));
        while let Some(next) = resumed.pop_front() {
            match next {
                Resumed::Hit(request, pin) => self.accept(Operation::Get(request, pin), shared),
                Resumed::Start(request) => match &shared_failure {
                    Some((message, checksum))
                        if request.buffer.length_bytes() == length_bytes
                            && checksum_of(&request) == *checksum =>
                    {
                        let failure = Some(Failure::Joined(message.clone()));
                        resumed.extend(end_set(request, None, 0, failure, shared));
                    }
                    _ => {
                        let request = SetRequest { has_waited: true, ..request };
                        self.accept(Operation::Set(request), shared);
                    }
                },
                Resumed::Free(extent) => shared.store.free(extent),
                Resumed::Miss(request) => {
                    shared.counters.get_misses.add(1);
                    request.item.miss();
                }
            }
        }
    }

    /// Drops what is queued; what has pieces in flight ends with the last of them.
    pub(super) fn drop_queued(&mut self, shared: &Shared) {
        self.settle(u64::MAX, shared);
        self.drop_due_steps(shared);
        self.commit.forget();
        for grant in std::mem::take(&mut self.placed) {
            self.active[grant.id].unfinished -= 1;
            self.active[grant.id].failure.get_or_insert(Failure::Closed);
            self.scheduler.finish(grant);
        }
        self.retries.clear();
        self.verification.clear();
        for token in self.second_attempts.drain() {
            self.end_piece(token, Some(Failure::Closed), Instant::now(), shared);
        }
        // Ending a SET may resume others behind it: until nothing is left.
        loop {
            self.scheduler.clear();
            self.drop_due_steps(shared);
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
                    self.answer(id, shared);
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
            // The kernel may still use the file, and its name.
            std::mem::forget(active.own);
            match active.kind {
                Kind::Get(request, _) => request.item.abandon(),
                Kind::Set(request, _) => request.item.abandon(),
                Kind::Free(_) | Kind::Verify(_) => {}
            }
        }
    }
}
