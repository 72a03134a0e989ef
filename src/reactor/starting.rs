//! Starting what the scheduler grants: a SET gets its extent, and the device gets pieces.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::own_file::{OwnFile, Step};
use super::piece::{Piece, Target, TargetKind};
use super::steps::{Comparison, Failure, compare_with_held};
use super::work::{Kind, Work};
use super::{SETTLE_BYTES, Shared};
use crate::config::Checksum;
use crate::engine::{Action, Engine, EngineError};
use crate::error::StoreError;
use crate::schedule::Grant;
use crate::store::Location;

/// Bytes that could be summed up in the time that freeing a place takes.
const FREEING_COSTS_BYTES: u64 = 4096;

impl Work {
    /// Puts a SET that found no room back to where it was, until the store has grown.
    fn await_growth(&mut self, grant: Grant) {
        self.put_back(grant);
        self.scheduler.hold_sets(true);
        self.awaits_growth = true;
    }

    /// Puts a SET that has no room yet back to where it was.
    fn put_back(&mut self, grant: Grant) {
        let active = &mut self.active[grant.id];
        active.awaits_room = true;
        active.waiting_bytes = active.kind.bytes();
        let since = active.timeline.submitted;
        if let Some(ticket) = self.scheduler.take_back(grant, active.waiting_bytes, since) {
            active.ticket = ticket;
            if active.is_awaited {
                self.scheduler.promote(ticket);
            }
        }
    }

    pub(super) fn start(
        &mut self,
        grant: Grant,
        now: Instant,
        shared: &Shared,
        engine: &mut impl Engine,
    ) -> Result<(), EngineError> {
        let active = &mut self.active[grant.id];
        active.waiting_bytes -= grant.length_bytes;
        active.timeline.started.get_or_insert(now);
        match &mut active.kind {
            Kind::Free(_) => {
                self.processed_bytes += FREEING_COSTS_BYTES;
                self.scheduler.finish(grant);
                self.answer(grant.id, shared);
                return Ok(());
            }
            Kind::Set(request, place @ None) => {
                if let Some(reason) = shared.presence.reason() {
                    return self.end_unplaced(grant, Some(Failure::Missed(reason)), shared);
                }
                if !active.awaits_room {
                    // A long one in turns, so that loads go between.
                    let has_more = active.waiting_bytes > 0;
                    let limit_bytes = if has_more { SETTLE_BYTES as usize } else { usize::MAX };
                    let before = active.compared.bytes;
                    let comparison =
                        compare_with_held(request, &mut active.compared, limit_bytes, shared);
                    self.processed_bytes += (active.compared.bytes - before) as u64;
                    match comparison {
                        Comparison::Unfinished => {
                            active.waiting_bytes += grant.length_bytes;
                            let (bytes, since) = (active.waiting_bytes, active.timeline.submitted);
                            // Not all of it was granted: it is where it was.
                            let ticket = self.scheduler.take_back(grant, bytes, since);
                            debug_assert!(ticket.is_none());
                            return Ok(());
                        }
                        Comparison::Unchanged => {
                            shared.counters.set_unchanged.add(1);
                            shared.counters.set_joined.add(u64::from(request.has_waited));
                            shared.index.touch_held(request.digest, shared.config.clock.now_ms());
                            return self.end_unplaced(grant, None, shared);
                        }
                        Comparison::Changed => {}
                    }
                    if !shared.admits(request, now) {
                        return self.end_unplaced(grant, None, shared);
                    }
                }
                match shared.find_place(request, &mut active.making_room) {
                    Ok(Some(found)) => *place = Some(found),
                    Ok(None) => {
                        self.processed_bytes += SETTLE_BYTES;
                        self.put_back(grant);
                        return Ok(());
                    }
                    Err(StoreError::Growing { needed_bytes })
                        if shared.order_growth(needed_bytes) =>
                    {
                        self.await_growth(grant);
                        return Ok(());
                    }
                    Err(error) => {
                        return self.end_unplaced(grant, Some(Failure::NoRoom(error)), shared);
                    }
                }
            }
            Kind::Get(..) | Kind::Verify(..) | Kind::Set(_, Some(_)) => {}
        }
        active.failed_syncs.get_or_insert_with(|| shared.failed_syncs());
        active.unfinished += 1;
        if active.free_ticket().is_some_and(|ticket| !shared.is_written(ticket)) {
            self.placed.push_back(grant);
            return Ok(());
        }
        self.start_in_place(grant, shared, engine)
    }

    /// Starts pieces of SETs whose places nobody names any more.
    pub(super) fn start_placed(
        &mut self,
        shared: &Shared,
        engine: &mut impl Engine,
    ) -> Result<(), EngineError> {
        while let Some(grant) = self.placed.front()
            && self.active[grant.id].free_ticket().is_none_or(|ticket| shared.is_written(ticket))
            && let Some(grant) = self.placed.pop_front()
        {
            self.start_in_place(grant, shared, engine)?;
        }
        Ok(())
    }

    /// Whether something waits for records, and these have been written since it looked. To be asked once more before sleeping.
    pub(super) fn awaited_records_are_written(&self, shared: &Shared) -> bool {
        let placed = self.placed.front().and_then(|grant| self.active[grant.id].free_ticket());
        let mut tickets = placed.into_iter().chain(self.commit.awaited_records()).peekable();
        shared.lanes[self.number].awaits_records.store(tickets.peek().is_some(), Ordering::SeqCst);
        tickets.any(|ticket| shared.is_written(ticket))
    }

    fn start_in_place(
        &mut self,
        grant: Grant,
        shared: &Shared,
        engine: &mut impl Engine,
    ) -> Result<(), EngineError> {
        let active = &mut self.active[grant.id];
        if active.own.is_none()
            && let Some(Location::Own { directory, name }) =
                active.extent().map(|extent| shared.store.locate(extent))
        {
            active.own = Some(Box::new(OwnFile::new(directory, name)));
        }
        match &mut active.own {
            Some(own) if own.step != Step::Transfer => {
                if own.held_back.is_empty() {
                    self.due_steps.push(grant.id);
                }
                own.held_back.push(grant);
                Ok(())
            }
            _ => self.start_piece(grant, shared, engine),
        }
    }

    /// Gives the device a piece; the file that it is in is open.
    pub(super) fn start_piece(
        &mut self,
        grant: Grant,
        shared: &Shared,
        engine: &mut impl Engine,
    ) -> Result<(), EngineError> {
        let active = &mut self.active[grant.id];
        let (extent, buffer, action) = match &active.kind {
            Kind::Get(request, pin) => (pin.extent, Some(request.buffer), Action::Read),
            Kind::Verify(pin) => (pin.extent, None, Action::Read),
            Kind::Set(request, Some(place)) => (place.extent, Some(request.buffer), Action::Write),
            Kind::Set(_, None) | Kind::Free(_) => unreachable!("it has no pieces"),
        };
        let (file, kind, chunk_offset_bytes) = match &active.own {
            Some(own) => (own.descriptor(), TargetKind::ChunkFile, 0),
            None => match shared.store.locate(extent) {
                Location::Shared { file, offset_bytes, is_device: true } => {
                    (file, TargetKind::Device, offset_bytes)
                }
                Location::Shared { file, offset_bytes, is_device: false } => {
                    (file, TargetKind::DataFile, offset_bytes)
                }
                Location::Own { .. } => unreachable!("its file is opened first"),
            },
        };
        let target = Target { action, file, kind, chunk_offset_bytes };
        let (chunk_bytes, geometry) = (active.kind.bytes(), shared.store.geometry());
        let piece = Piece::new(grant, target, chunk_bytes, buffer, geometry, &mut self.pool);
        shared.counters.bounced_bytes.add(piece.bounced_bytes as u64);
        // Never over the capacity it was made with, so that no piece ever moves.
        assert!(
            self.pieces.len() < self.pieces.capacity(),
            "the scheduler granted more than there is room for"
        );
        let token = self.pieces.insert(piece);
        if action == Action::Write && shared.config.checksum != Checksum::Off {
            self.unsummed.push_back(token);
        }
        self.submit(token, shared, engine)
    }

    pub(super) fn submit(
        &mut self,
        token: usize,
        shared: &Shared,
        engine: &mut impl Engine,
    ) -> Result<(), EngineError> {
        shared.counters.transfers.add(1);
        let transfer = self.pieces[token].transfer(token);
        // SAFETY: the piece stays where it is in `pieces` until it is reaped (or everything is leaked); it owns vectors
        // and bounce memory; the caller's memory lives until the answer, which comes after the reaping; the store keeps
        // its files open as long as `shared` lives, which the reactor holds, and a chunk's own file is closed with the answer.
        let submitted = unsafe { engine.submit(transfer) };
        if submitted.is_err() {
            // Not under way: nothing to wait for.
            self.end_piece(token, Some(Failure::Closed), Instant::now(), shared);
        }
        submitted
    }
}
