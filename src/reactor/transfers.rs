//! From operations to the device and back: a grant of the scheduler becomes a piece, and the result of a piece goes to its operation.

use std::mem;
use std::time::Instant;

use super::chunk_file::{CHUNK_FILE_TOKENS, ChunkFile};
use super::commit::SYNC_TOKEN;
use super::io_error_policy::{Failure, Request};
use super::operation::Operation;
use super::piece::{Piece, PieceTarget};
use super::responsiveness::Answers;
use super::state::Reactor;
use crate::batch::completion_queue::{FailureCode, FailureReason};
use crate::engine::{EngineError, Reaped};
use crate::schedule::{Class, Grant};
use crate::store::Location;

/// Bytes that could be moved in the time that a piece takes whatever its length.
const PIECE_COSTS_BYTES: u64 = 8192;

/// Bytes that could be summed up in the time that giving an extent back takes.
const RECLAIM_COSTS_BYTES: u64 = 4096;

impl Reactor {
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
        active.failed_syncs.get_or_insert_with(|| self.group.failed_syncs());
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

    /// The index takes no change: fails the SETs here that wait for one.
    pub(super) fn fail_refused(&mut self, now: Instant) {
        let Some(reason) = self.group.cache.index.changes.refusal() else { return };
        let failure =
            || Failure::Other(FailureReason::new(FailureCode::Unavailable, reason.to_string()));
        let awaiting = mem::take(&mut self.awaiting_extents);
        self.device.failed.extend(awaiting.into_iter().map(|grant| (grant, failure())));
        self.fail_pieces(now);
        // A file goes only when no record names it.
        let awaits_space = |id: &usize| {
            self.active[*id].chunk_file.as_ref().is_some_and(|file| file.awaits_space())
        };
        let all = mem::take(&mut self.due_chunk_files).into_iter();
        let (awaiting, due): (Vec<usize>, _) = all.partition(awaits_space);
        self.due_chunk_files = due;
        awaiting.into_iter().for_each(|id| self.fail_chunk_file(id, failure()));
        self.fail_awaiting_group(failure);
    }

    fn start_in_extent(&mut self, grant: Grant) -> Result<(), EngineError> {
        let active = &mut self.active[grant.id];
        let file = match &mut active.chunk_file {
            Some(file) => file,
            none => {
                let Some(extent) = active.operation.extent() else {
                    unreachable!("what has pieces has an extent")
                };
                match self.group.cache.store.locate(extent) {
                    Location::Shared { file, offset_bytes, is_device } => {
                        let request = match (&active.operation, is_device) {
                            (Operation::Set(_), true) => Request::Write,
                            (Operation::Set(_), false) => Request::WriteDataFile,
                            _ => Request::Read,
                        };
                        let target =
                            PieceTarget { request, file, chunk_offset_bytes: offset_bytes };
                        return self.start_piece(grant, target);
                    }
                    Location::Own { directory, name } => none.insert(Box::new(ChunkFile::new(
                        directory,
                        name,
                        extent,
                        active.operation.bytes(),
                        matches!(active.operation, Operation::Set(_)),
                    ))),
                }
            }
        };
        if let Some(target) = file.target() {
            return self.start_piece(grant, target);
        }
        file.held_back.push(grant);
        if file.held_back.len() == 1 {
            self.due_chunk_files.push(grant.id);
        }
        Ok(())
    }

    /// Gives the device a piece; the file that it is in is open.
    fn start_piece(&mut self, grant: Grant, target: PieceTarget) -> Result<(), EngineError> {
        self.begun_bytes += grant.length_bytes + PIECE_COSTS_BYTES;
        let operation = &self.active[grant.id].operation;
        let buffer = match operation {
            Operation::Get(request, _) => Some(request.buffer),
            Operation::Set(set) => Some(set.claim.request.buffer.caller()),
            Operation::Verify(_) | Operation::Reclaim(_) => None,
        };
        let cache = &self.group.cache;
        let chunk = (operation.bytes(), operation.is_checksummed(cache.config.checksum));
        let (geometry, pool) = (cache.store.geometry(), &mut self.device.pool);
        let mut piece = Piece::of_chunk(grant, target, chunk, buffer, geometry, pool);
        piece.write_stream = operation.write_stream();
        cache.counters.bounced_bytes.add(piece.memory.bounced_bytes() as u64);
        self.device.start(piece)
    }

    /// Takes the results of requests; answers the operations that are done. One at a time off the list, so that a panic
    /// loses none.
    pub(super) fn finish_reaped(&mut self) -> Result<(), EngineError> {
        let mut outcome = Ok(());
        let now = Instant::now();
        let mut answers = [Answers::default(); 2];
        while let Some(Reaped { token, result }) = self.device.requests.take_reaped() {
            if let Some(pending) = self.device.requests.take_pending(token)
                && answers[usize::from(pending.is_write)].add(pending.since, now)
            {
                self.group.cache.counters.transfers_slow.add(1);
            }
            if token == SYNC_TOKEN {
                outcome = outcome.and(self.finish_sync(result));
                continue;
            }
            if token >= CHUNK_FILE_TOKENS {
                self.finish_chunk_file(token - CHUNK_FILE_TOKENS, result);
                if self.device.is_stopping {
                    self.drop_due_chunk_files();
                }
                continue;
            }
            let grant = self.device.requests.about(token).grant;
            let active = &self.active[grant.id];
            let wanted = (active.failure.is_none(), grant.class == Class::Get);
            let completed = self.device.complete((token, result), wanted, now);
            if let Ok(true) = completed {
                self.scheduler.finish(grant);
                self.active[grant.id].timeline.moved = Some(now);
            }
            outcome = outcome.and(completed.map(drop));
            self.fail_pieces(now);
        }
        if self.device.is_stopping {
            // What it has cancelled says nothing.
            return outcome;
        }
        self.note_answers(answers, now);
        let active = &self.active;
        let submitted = self.device.start_isolated(|id| active[id].failure.is_none(), now);
        self.fail_pieces(now);
        outcome.and(submitted)
    }

    /// Transfers came back, of reads and of writes.
    fn note_answers(&self, answers: [Answers; 2], now: Instant) {
        for (is_write, answers) in [false, true].into_iter().zip(answers) {
            if let Some(lasted) = self.group.responsiveness.note_answers(is_write, answers, now) {
                let path = self.group.cache.config.path().display();
                log::warn!("{path}: the drive answers again, after {} s", lasted.as_secs());
            }
        }
    }

    pub(super) fn fail_pieces(&mut self, now: Instant) {
        while let Some((grant, failure)) = self.device.failed.pop_front() {
            self.scheduler.finish(grant);
            let active = &mut self.active[grant.id];
            active.timeline.moved = Some(now);
            active.failure.get_or_insert(failure);
            self.cancel_rest(grant.id);
            self.finish_piece(grant.id);
        }
    }

    /// Nothing more of an operation is granted.
    pub(super) fn cancel_rest(&mut self, id: usize) {
        let active = &mut self.active[id];
        if mem::take(&mut active.waiting_bytes) > 0 {
            self.scheduler.cancel_rest(active.ticket);
        }
    }

    /// Copies and sums up pieces that the kernel is done with, and answers what is through with them. At least one piece, and
    /// about `limit_bytes` in all, or more where it lags behind: then it is time to look at the device again.
    pub(super) fn checksum_moved(&mut self, limit_bytes: u64) {
        let mut processed_bytes = 0;
        while (processed_bytes < limit_bytes
            || self.device.moved_bytes > self.device.most_moved_bytes)
            && let Some(piece) = self.device.next_checksummed()
        {
            processed_bytes += piece.processed_bytes;
            self.active[piece.grant.id].checksum ^= piece.checksum;
            self.finish_piece(piece.grant.id);
        }
    }

    fn finish_piece(&mut self, id: usize) {
        self.active[id].unfinished -= 1;
        self.advance(id);
    }

    pub(super) fn start_chunk_files(&mut self) -> Result<(), EngineError> {
        let mut outcome = Ok(());
        for id in mem::take(&mut self.due_chunk_files) {
            match outcome {
                Ok(()) => outcome = self.start_chunk_file(id),
                // It ends with everything else.
                Err(_) => self.due_chunk_files.push(id),
            }
        }
        outcome
    }

    fn start_chunk_file(&mut self, id: usize) -> Result<(), EngineError> {
        let active = &mut self.active[id];
        let Some(file) = &mut active.chunk_file else { return Ok(()) };
        if let Some(target) = file.target() {
            let mut outcome = Ok(());
            for grant in mem::take(&mut file.held_back) {
                match outcome {
                    Ok(()) => outcome = self.start_piece(grant, target),
                    Err(_) => self.device.failed.push_back((grant, Failure::Closed)),
                }
            }
            return outcome;
        }
        match file.next(id, &*self.group.cache.store) {
            Ok(None) => self.due_chunk_files.push(id),
            Err(error) => self.fail_chunk_file(id, Failure::NoRoom(error)),
            Ok(Some((transfer, name))) => {
                if let Err(error) = self.device.requests.request(transfer, name) {
                    self.due_chunk_files.push(id);
                    return Err(error);
                }
                active.unfinished += 1;
            }
        }
        Ok(())
    }

    /// Takes the result of a request for a chunk file.
    fn finish_chunk_file(&mut self, id: usize, result: i32) {
        let opened = self.device.requests.take_opened(CHUNK_FILE_TOKENS | id);
        let active = &mut self.active[id];
        active.unfinished -= 1;
        let Some(file) = &mut active.chunk_file else { return };
        if let Some(opened) = opened {
            file.set_opened(opened);
        }
        // Also a failure: it may only be that it was cancelled, which says nothing about the chunk.
        if active.failure.is_some() || self.device.is_stopping && result < 0 {
            return self.fail_chunk_file(id, Failure::Closed);
        }
        match file.finish(result, &self.group.cache, &self.group.health) {
            Ok(true) => self.advance(id),
            Ok(false) => self.due_chunk_files.push(id),
            Err(failure) => self.fail_chunk_file(id, failure),
        }
    }

    /// The file will not be ready, or not whole: the operation ends when nothing of it is in flight.
    fn fail_chunk_file(&mut self, id: usize, failure: Failure) {
        let active = &mut self.active[id];
        active.failure.get_or_insert(failure);
        let file = active.chunk_file.as_mut();
        let held_back = file.map_or_else(Vec::new, |file| mem::take(&mut file.held_back));
        self.cancel_rest(id);
        self.active[id].unfinished -= held_back.len();
        held_back.into_iter().for_each(|grant| self.scheduler.finish(grant));
        self.advance(id);
    }

    /// Ends what waits for its next request, when no request may be made any more.
    pub(super) fn drop_due_chunk_files(&mut self) {
        for id in mem::take(&mut self.due_chunk_files) {
            self.fail_chunk_file(id, Failure::Closed);
        }
    }
}
