//! From operations to the device and back: a grant of the scheduler becomes a piece, and the result of a piece goes to its operation.

use std::mem;
use std::time::Instant;

use super::chunk_file::{CHUNK_FILE_TOKENS, ChunkFile, NextRequest};
use super::commit::SYNC_TOKEN;
use super::device::Outcome;
use super::errnos::Failure;
use super::operation::Operation;
use super::operations::Operations;
use super::piece::{Piece, PieceTarget, TargetKind};
use crate::block::BLOCK_BYTES;
use crate::engine::{Action, Engine, EngineError, Reaped};
use crate::schedule::{Class, Grant};
use crate::store::Location;

/// Bytes that could be summed up in the time that giving an extent back takes.
const RECLAIM_COSTS_BYTES: u64 = 4096;

impl Operations {
    pub(super) fn start(&mut self, grant: Grant, now: Instant) -> Result<(), EngineError> {
        let active = &mut self.active[grant.id];
        active.waiting_bytes -= grant.length_bytes;
        active.timeline.started.get_or_insert(now);
        if matches!(active.operation, Operation::Reclaim(_)) {
            self.processed_bytes += RECLAIM_COSTS_BYTES;
            self.scheduler.finish(grant);
            self.answer(grant.id);
            return Ok(());
        }
        if !self.begin_set(grant, now) {
            return Ok(());
        }
        let active = &mut self.active[grant.id];
        active.failed_syncs.get_or_insert_with(|| self.shared.failed_syncs());
        active.unfinished += 1;
        if active.awaits_extent() {
            self.awaiting_extents.push_back(grant);
            return Ok(());
        }
        self.start_in_extent(grant)
    }

    /// Starts pieces of SETs whose extents no record names any more.
    pub(super) fn start_freed(&mut self) -> Result<(), EngineError> {
        while let Some(grant) = self.awaiting_extents.front()
            && !self.active[grant.id].awaits_extent()
            && let Some(grant) = self.awaiting_extents.pop_front()
        {
            self.start_in_extent(grant)?;
        }
        Ok(())
    }

    fn start_in_extent(&mut self, grant: Grant) -> Result<(), EngineError> {
        let active = &mut self.active[grant.id];
        if active.chunk_file.is_none()
            && let Some(Location::Own { directory, name }) =
                active.operation.extent().map(|extent| self.shared.cache.store.locate(extent))
        {
            active.chunk_file = Some(Box::new(ChunkFile::new(directory, name)));
        }
        match &mut active.chunk_file {
            Some(file) if !file.is_ready() => {
                if file.hold_back(grant) {
                    self.due_chunk_files.push(grant.id);
                }
                Ok(())
            }
            _ => self.start_piece(grant),
        }
    }

    /// Gives the device a piece; the file that it is in is open.
    pub(super) fn start_piece(&mut self, grant: Grant) -> Result<(), EngineError> {
        let active = &self.active[grant.id];
        let (buffer, action) = match &active.operation {
            Operation::Get(request, _) => (Some(request.buffer), Action::Read),
            Operation::Verify(_) => (None, Action::Read),
            Operation::Set(set) => (Some(set.claim.request.buffer), Action::Write),
            Operation::Reclaim(_) => unreachable!("it has no pieces"),
        };
        let store = &self.shared.cache.store;
        let location = || active.operation.extent().map(|extent| store.locate(extent));
        let (file, kind, chunk_offset_bytes) = match &active.chunk_file {
            Some(file) => (file.descriptor(), TargetKind::ChunkFile, 0),
            None => match location() {
                Some(Location::Shared { file, offset_bytes, is_device: true }) => {
                    (file, TargetKind::Device, offset_bytes)
                }
                Some(Location::Shared { file, offset_bytes, is_device: false }) => {
                    (file, TargetKind::DataFile, offset_bytes)
                }
                Some(Location::Own { .. }) | None => unreachable!("its file is opened first"),
            },
        };
        let target = PieceTarget { action, file, kind, chunk_offset_bytes };
        let operation = &active.operation;
        let checksum_kind = operation.checksum_kind(self.shared.cache.config.checksum);
        let chunk = (operation.bytes(), checksum_kind);
        let piece =
            Piece::new(grant, target, chunk, buffer, store.geometry(), &mut self.device.pool);
        self.shared.cache.counters.bounced_bytes.add(piece.bounced_bytes as u64);
        let started = self.device.start(piece);
        if started.is_err() {
            // Not in flight: nothing to wait for.
            self.end_failed_piece(grant, Failure::Closed, Instant::now());
        }
        started
    }

    /// Takes the results of requests; answers the operations that are done. One at a time off the list, so that a panic
    /// loses none. `stopped`: nothing may be submitted any more.
    pub(super) fn finish_reaped(&mut self, stopped: bool) -> Result<(), EngineError> {
        let mut outcome = Ok(());
        let now = Instant::now();
        self.reaped.reverse();
        while let Some(Reaped { token, result }) = self.reaped.pop() {
            if token == SYNC_TOKEN {
                outcome = outcome.and(self.finish_sync(result, stopped));
                self.end_grouped();
                continue;
            }
            if token >= CHUNK_FILE_TOKENS {
                self.finish_chunk_file(token - CHUNK_FILE_TOKENS, result, stopped);
                if stopped {
                    self.drop_due_chunk_files();
                }
                continue;
            }
            let grant = self.device.grant(token);
            let active = &self.active[grant.id];
            let is_load = grant.class == Class::Get || active.is_awaited;
            let wanted = (active.failure.is_none(), is_load);
            let (ended, submitted) = match stopped {
                true => (self.device.complete_stopped(token, result), Ok(())),
                false => self.device.complete((token, result), wanted, now),
            };
            outcome = outcome.and(submitted);
            self.end_transfer(grant, ended, now);
        }
        if stopped {
            return outcome;
        }
        let active = &self.active;
        let is_wanted = |id: usize| active[id].failure.is_none();
        let (failed, submitted) = self.device.start_isolated(is_wanted, now);
        self.end_failed_pieces(failed, now);
        outcome.and(submitted)
    }

    fn end_transfer(&mut self, grant: Grant, ended: Outcome, now: Instant) {
        match ended {
            Outcome::InFlight => {}
            Outcome::Moved => {
                self.scheduler.finish(grant);
                self.active[grant.id].timeline.moved = Some(now);
            }
            Outcome::Failed(grant, failure) => self.end_failed_piece(grant, failure, now),
        }
    }

    pub(super) fn end_failed_pieces(&mut self, failed: Vec<Outcome>, now: Instant) {
        for ended in failed {
            if let Outcome::Failed(grant, failure) = ended {
                self.end_failed_piece(grant, failure, now);
            }
        }
    }

    fn end_failed_piece(&mut self, grant: Grant, failure: Failure, now: Instant) {
        self.scheduler.finish(grant);
        let active = &mut self.active[grant.id];
        active.timeline.moved = Some(now);
        active.failure.get_or_insert(failure);
        if active.waiting_bytes > 0 {
            active.waiting_bytes = 0;
            self.scheduler.cancel_rest(grant.class, grant.id);
        }
        self.end_piece(grant.id);
    }

    /// Copies and sums up pieces that the kernel is done with, and answers what is through with them. At least one piece, and
    /// about `limit_bytes` in all, or more where it lags behind: then it is time to look at the device again.
    pub(super) fn checksum_moved(&mut self, limit_bytes: u64) {
        let mut processed_bytes = 0;
        while (processed_bytes < limit_bytes || self.device.lags())
            && let Some(piece) = self.device.next_checksummed()
        {
            processed_bytes += piece.processed_bytes;
            self.active[piece.grant.id].checksum ^= piece.checksum;
            self.end_piece(piece.grant.id);
        }
    }

    fn end_piece(&mut self, id: usize) {
        let active = &mut self.active[id];
        active.unfinished -= 1;
        if active.waiting_bytes == 0 && active.unfinished == 0 && !self.has_to_be_truncated(id) {
            self.end(id);
        }
    }

    pub(super) fn start_chunk_files(&mut self) -> Result<(), EngineError> {
        let mut outcome = Ok(());
        for id in mem::take(&mut self.due_chunk_files) {
            if outcome.is_err() {
                // It ends with everything else.
                self.due_chunk_files.push(id);
                continue;
            }
            outcome = self.start_chunk_file(id);
        }
        outcome
    }

    fn start_chunk_file(&mut self, id: usize) -> Result<(), EngineError> {
        let active = &mut self.active[id];
        let Some((file, chunk)) = active.chunk_file() else { return Ok(()) };
        match file.next(chunk, id, &*self.shared.cache.store) {
            NextRequest::Wait => self.due_chunk_files.push(id),
            NextRequest::Fail(error) => self.fail_chunk_file(id, Failure::NoRoom(error)),
            NextRequest::Pieces(pieces) => {
                let mut outcome = Ok(());
                for grant in pieces {
                    // A piece that could not be started is ended by `start_piece`.
                    match outcome {
                        Ok(()) => outcome = self.start_piece(grant),
                        Err(_) => self.finish_held_back(grant),
                    }
                }
                return outcome;
            }
            NextRequest::Submit(transfer) => {
                // SAFETY: the request names no memory but the name, which does not move with its owner; that stays in `active`,
                // with the file, until the request is reaped (or is leaked): an operation with one in flight is not ended. The
                // directory is open as long as `shared` lives.
                if let Err(error) = unsafe { self.device.engine.submit(transfer) } {
                    self.fail_chunk_file(id, Failure::Closed);
                    return Err(error);
                }
                active.unfinished += 1;
                self.chunk_files_in_flight += 1;
            }
        }
        Ok(())
    }

    /// Takes the result of a request for a chunk file. `stopped`: no further one may be made.
    fn finish_chunk_file(&mut self, id: usize, result: i32, stopped: bool) {
        self.chunk_files_in_flight -= 1;
        let active = &mut self.active[id];
        active.unfinished -= 1;
        // Also a failure: it may only be that it was cancelled, which says nothing about the chunk.
        let is_abandoned = active.failure.is_some() || stopped && result < 0;
        let Some((file, chunk)) = active.chunk_file() else { return };
        file.take_opened(chunk, result);
        if is_abandoned {
            return self.fail_chunk_file(id, Failure::Closed);
        }
        match file.finish(chunk, result, &self.shared.cache, &self.shared.health) {
            Ok(true) => self.end(id),
            Ok(false) => self.due_chunk_files.push(id),
            Err(failure) => self.fail_chunk_file(id, failure),
        }
    }

    /// The file will not be ready, or not whole: the operation ends when nothing of it is in flight.
    fn fail_chunk_file(&mut self, id: usize, failure: Failure) {
        let active = &mut self.active[id];
        active.failure.get_or_insert(failure);
        let class = active.operation.class();
        let held_back = active.chunk_file.as_mut().map_or(Vec::new(), |file| file.take_held_back());
        if active.waiting_bytes > 0 {
            active.waiting_bytes = 0;
            self.scheduler.cancel_rest(class, id);
        }
        held_back.into_iter().for_each(|grant| self.finish_held_back(grant));
        if self.active[id].unfinished == 0 {
            self.end(id);
        }
    }

    fn finish_held_back(&mut self, grant: Grant) {
        self.active[grant.id].unfinished -= 1;
        self.scheduler.finish(grant);
    }

    /// All pieces of an operation are through. Says whether the padding behind the chunk has to be truncated before it ends.
    fn has_to_be_truncated(&mut self, id: usize) -> bool {
        let active = &mut self.active[id];
        let is_padded = self.shared.cache.store.geometry().direct
            && active.is_written()
            && active.failure.is_none()
            && !active.operation.bytes().is_multiple_of(BLOCK_BYTES);
        let is_due =
            is_padded && active.chunk_file.as_mut().is_some_and(|file| file.begin_truncate());
        if is_due {
            self.due_chunk_files.push(id);
        }
        is_due
    }

    /// Ends what waits for its next request, when no request may be made any more.
    pub(super) fn drop_due_chunk_files(&mut self) {
        for id in mem::take(&mut self.due_chunk_files) {
            self.fail_chunk_file(id, Failure::Closed);
        }
    }
}
