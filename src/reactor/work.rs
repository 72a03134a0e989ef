//! The operations a reactor has in hand: placed, in pieces in the device, finished, answered.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hashbrown::HashTable;
use slab::Slab;

use super::commit::GroupCommit;
use super::latency::Timeline;
use super::operation::{GetRequest, OPERATION_COSTS_BYTES, Operation, SetRequest};
use super::own_file::{OwnFile, Step};
use super::piece::{Piece, Target};
use super::room::RoomMaking;
use super::second_attempts::SecondAttempts;
use super::steps::{Compared, Comparison, Failure, Place, compare_with_held};
use super::verification::Verification;
use super::{SETTLE_BYTES, Shared};
use crate::buffer::BouncePool;
use crate::checksum::ChecksumKind;
use crate::config::Checksum;
use crate::engine::{Action, Engine};
use crate::error::{EngineError, StoreError};
use crate::index::{Pin, Suspect};
use crate::key::Digest;
use crate::schedule::{Class, Grant, Limits, Scheduler, Ticket};
use crate::store::{Extent, Location};

/// An operation between its arrival and its answer.
pub(super) struct Active {
    pub(super) kind: Kind,
    pub(super) timeline: Timeline,
    /// Bytes not granted yet.
    pub(super) waiting_bytes: u64,
    /// Pieces granted and not through (held back, in the kernel, or waiting for their checksum), and steps in the kernel.
    pub(super) unfinished: usize,
    /// XOR of the placed checksums of its pieces.
    pub(super) checksum: u64,
    /// How far a SET was compared with what is stored under its key.
    compared: Compared,
    pub(super) failure: Option<Failure>,
    /// Where it waits, or waited, in the scheduler.
    ticket: Ticket,
    /// Loads wait for this SET.
    pub(super) is_awaited: bool,
    /// Syncs of the store that had failed when its write began.
    pub(super) failed_syncs: Option<u64>,
    /// A SET that was compared and admitted, and then found no room.
    pub(super) awaits_room: bool,
    /// Room that is being made for it.
    making_room: Option<Box<RoomMaking>>,
    /// Times it was written again.
    pub(super) retries: u32,
    /// The file of its chunk, if that has one of its own.
    pub(super) own: Option<Box<OwnFile>>,
}

pub(super) enum Kind {
    Get(GetRequest, Pin),
    Set(SetRequest, Option<Place>),
    Free(Extent),
    /// Reads a chunk that may be damaged, piece by piece, for its checksum.
    Verify(Pin),
}

impl Kind {
    pub(super) fn class(&self) -> Class {
        match self {
            Self::Get(..) => Class::Get,
            Self::Free(_) => Class::Delete,
            Self::Set(..) | Self::Verify(..) => Class::Set,
        }
    }

    /// Bytes to transfer.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Get(_, pin) | Self::Verify(pin) => pin.length_bytes,
            Self::Set(request, _) => request.buffer.length_bytes() as u64,
            Self::Free(_) => 0,
        }
    }

    /// What its bytes are summed up to, in a store that keeps `checksum`.
    pub(super) fn checksum_kind(&self, checksum: Checksum) -> Option<ChecksumKind> {
        let kept = checksum.kind()?;
        match self {
            Self::Get(_, pin) | Self::Verify(pin) => pin.checksum.map(|checksum| checksum.kind),
            Self::Set(..) => Some(kept),
            Self::Free(_) => None,
        }
    }

    /// As [`Operation::cost_bytes`].
    pub(super) fn cost_bytes(&self) -> u64 {
        OPERATION_COSTS_BYTES + self.bytes()
    }
}

/// All operations of one reactor. Pieces in flight sit in a fixed array: the kernel holds their addresses.
pub(super) struct Work {
    /// Number of the reactor.
    pub(super) number: usize,
    pub(super) scheduler: Scheduler,
    pub(super) active: Slab<Active>,
    /// The SETs among these, by digest: one at a time writes a key.
    sets: HashTable<(Digest, usize)>,
    /// Those that loads wait for.
    pub(super) awaited: usize,
    /// Since the scheduler was asked last, something ended or came: it may have more to start.
    pub(super) has_ended_some: bool,
    /// What these cost, by class.
    pub(super) in_hand_bytes: [u64; 3],
    pub(super) pieces: Slab<Piece>,
    pub(super) pool: BouncePool,
    /// Pieces that the kernel is done with, and the processor is not: loads, and the rest.
    pub(super) finished: [VecDeque<Piece>; 2],
    pub(super) finished_bytes: u64,
    /// Most bytes that may wait there, as loads hold bounce memory until then.
    pub(super) most_unsettled_bytes: u64,
    /// Writes in the kernel whose checksum may be computed meanwhile; some may be done by now.
    pub(super) unsummed: VecDeque<usize>,
    /// Whether other reactors had loads when this turn began.
    pub(super) loads_elsewhere: bool,
    /// What the processor did in this turn instead of feeding the device, in bytes of summing up.
    pub(super) processed_bytes: u64,
    pub(super) commit: GroupCommit,
    /// Pieces of SETs whose places are still named by records in the file.
    pub(super) placed: VecDeque<Grant>,
    /// Operations whose file has a step before it.
    pub(super) due_steps: Vec<usize>,
    /// Steps that the kernel has.
    pub(super) steps_in_flight: usize,
    /// Failed writes, and when to try them again.
    pub(super) retries: Vec<(Instant, usize)>,
    pub(super) second_attempts: SecondAttempts,
    pub(super) verification: Verification,
    /// Whether the first SET waits for the store to grow; none goes meanwhile.
    pub(super) awaits_growth: bool,
}

/// Pause before the first retry of a failed write; each further one is twice as long.
pub(super) const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(10);
pub(super) const LONGEST_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Bytes that could be summed up in the time that freeing a place takes.
const FREEING_COSTS_BYTES: u64 = 4096;

impl Work {
    /// Work for a device that takes this many transfers at a time, as the scheduler must make sure.
    pub(super) fn new(
        number: usize,
        limits: Limits,
        most_transfers: usize,
        suspects: Vec<Suspect>,
    ) -> Self {
        Self {
            number,
            scheduler: Scheduler::new(limits),
            active: Slab::new(),
            sets: HashTable::new(),
            awaited: 0,
            has_ended_some: false,
            in_hand_bytes: [0; 3],
            pieces: Slab::with_capacity(most_transfers),
            pool: BouncePool::new(),
            finished: Default::default(),
            finished_bytes: 0,
            most_unsettled_bytes: limits.max_in_flight_bytes,
            unsummed: VecDeque::new(),
            loads_elsewhere: false,
            processed_bytes: 0,
            commit: GroupCommit::default(),
            placed: VecDeque::new(),
            due_steps: Vec::new(),
            steps_in_flight: 0,
            retries: Vec::new(),
            second_attempts: SecondAttempts::default(),
            verification: Verification::of(suspects),
            awaits_growth: false,
        }
    }

    /// Whether there is nothing to do and nothing to wait for.
    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// Transfers, steps and syncs that the kernel has.
    pub(super) fn in_flight(&self) -> usize {
        let moving = self.pieces.len() - self.second_attempts.waiting();
        moving + self.steps_in_flight + self.commit.in_flight()
    }

    /// When to look again although nothing has come: a failed write is to be tried again, a SET that waits for loads, however
    /// long these take, is due, or a chunk in doubt is to be read again. `now` is when the last pieces were started: what was
    /// due then waits for others to end.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let set_is_due = self.scheduler.next_due(now);
        let verify_is_due = self.verification.next_due().filter(|_| self.active.is_empty());
        let retries = self.retries.iter().map(|(due, _)| *due);
        retries.chain(set_is_due).chain(verify_is_due).min()
    }

    /// Queues the failed writes whose pause is over.
    pub(super) fn start_due(&mut self, now: Instant) {
        let (scheduler, active) = (&mut self.scheduler, &mut self.active);
        self.retries.retain(|(due, id)| {
            if *due <= now {
                let retried = &mut active[*id];
                retried.ticket = scheduler.push(Class::Set, *id, retried.waiting_bytes, now);
                if retried.is_awaited {
                    scheduler.promote(retried.ticket);
                }
            }
            *due > now
        });
    }

    /// Queues an operation.
    pub(super) fn accept(&mut self, operation: Operation, shared: &Shared) {
        let submitted = operation.submitted();
        match operation {
            Operation::Get(request, pin) => self.enqueue(Kind::Get(request, pin), submitted),
            Operation::Free(extent, _) => self.enqueue(Kind::Free(extent), submitted),
            Operation::Set(request) => {
                let digest = request.digest;
                let id = self.enqueue(Kind::Set(request, None), submitted);
                self.sets.insert_unique(digest.table_hash(), (digest, id), |(other, _)| {
                    other.table_hash()
                });
                if shared.index.is_awaited(digest) {
                    self.promote(id);
                }
                id
            }
        };
    }

    /// The SET that writes the key with this digest, if it is here.
    pub(super) fn set_of(&self, digest: Digest) -> Option<usize> {
        let found = self.sets.find(digest.table_hash(), |(other, _)| *other == digest);
        found.map(|(_, id)| *id)
    }

    /// It is answered.
    pub(super) fn forget_set(&mut self, digest: Digest) {
        let found = self.sets.find_entry(digest.table_hash(), |(other, _)| *other == digest);
        if let Ok(found) = found {
            found.remove();
        }
    }

    /// Loads wait for SET `id`: it is served as they are, and counts as one of them until it is answered.
    pub(super) fn promote(&mut self, id: usize) {
        let active = &mut self.active[id];
        if !std::mem::replace(&mut active.is_awaited, true) {
            self.awaited += 1;
            self.scheduler.promote(active.ticket);
        }
    }

    pub(super) fn enqueue(&mut self, kind: Kind, submitted: Instant) -> usize {
        self.has_ended_some = true;
        let (class, bytes) = (kind.class(), kind.bytes());
        self.in_hand_bytes[class as usize] += kind.cost_bytes();
        let entry = self.active.vacant_entry();
        let id = entry.key();
        let ticket = self.scheduler.push(class, id, bytes, submitted);
        entry.insert(Active {
            kind,
            ticket,
            is_awaited: false,
            timeline: Timeline { submitted, started: None, moved: None },
            waiting_bytes: bytes,
            unfinished: 0,
            checksum: 0,
            compared: Compared::default(),
            failure: None,
            failed_syncs: None,
            awaits_room: false,
            making_room: None,
            retries: 0,
            own: None,
        });
        id
    }

    /// Starts what the scheduler allows now. Says whether it stopped before the end, because what needs the processor
    /// alone (freeing, comparing) would have kept the device waiting.
    pub(super) fn start_some(
        &mut self,
        now: Instant,
        shared: &Shared,
        engine: &mut impl Engine,
    ) -> Result<bool, EngineError> {
        self.has_ended_some = false;
        self.note_work(shared);
        self.loads_elsewhere = shared.loads_elsewhere(self.number);
        self.processed_bytes = 0;
        self.awaits_growth &= shared.growth.is_under_way();
        self.scheduler.hold_sets(self.awaits_growth || self.has_too_many_files(shared));
        let mut outcome = Ok(false);
        while let Some(grant) =
            self.scheduler.next_grant(now, self.loads_elsewhere || self.awaited > 0)
        {
            if let Err(error) = self.start(grant, now, shared, engine) {
                outcome = Err(error);
                break;
            }
            if self.processed_bytes >= SETTLE_BYTES {
                outcome = Ok(true);
                break;
            }
        }
        self.note_work(shared);
        outcome
    }

    fn note_work(&self, shared: &Shared) {
        let loads = self.scheduler.loads() + self.awaited;
        let sets_wait = self.scheduler.has_waiting_sets();
        shared.note_work(self.number, &self.in_hand_bytes, loads, sets_wait);
    }

    /// Whether SETs wait for loads of other reactors that have ended since `start_some` looked. To be asked once more
    /// before sleeping: who ends the last load rings only for a sleeper.
    pub(super) fn loads_elsewhere_ended(&self, shared: &Shared) -> bool {
        self.loads_elsewhere
            && self.scheduler.has_waiting_sets()
            && !shared.loads_elsewhere(self.number)
    }

    /// Whether the store has grown since `start_some` looked, or will not. To be asked once more before sleeping, like
    /// [`Self::loads_elsewhere_ended`].
    pub(super) fn has_grown(&self, shared: &Shared) -> bool {
        self.awaits_growth && !shared.growth.is_under_way()
    }

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

    fn start(
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
        let target = match &active.own {
            Some(own) => {
                let file = own.descriptor();
                let is_device = false;
                Target { action, file, is_lasting: false, is_device, chunk_offset_bytes: 0 }
            }
            None => match shared.store.locate(extent) {
                Location::Shared { file, offset_bytes, is_device } => Target {
                    action,
                    file,
                    is_lasting: true,
                    is_device,
                    chunk_offset_bytes: offset_bytes,
                },
                Location::Own { .. } => unreachable!("its file is opened first"),
            },
        };
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
