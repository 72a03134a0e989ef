//! The operations a reactor has in hand: placed, in pieces in the device, finished, answered.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use slab::Slab;

use super::commit::{GroupCommit, SYNC_TOKEN};
use super::latency::Timeline;
use super::operation::{GetRequest, Operation, SetRequest};
use super::piece::{Piece, Progress, Target};
use super::steps::{
    Failure, Place, checksum_of, compare_with_held, end_get, end_set, end_verify, failure_of,
    find_place, write_record,
};
use super::{MAX_UNSETTLED_BYTES, SETTLE_BYTES, Shared};
use crate::buffer::{AlignedBlock, BouncePool, CallerBuffer};
use crate::config::{Checksum, Durability};
use crate::engine::{Action, Engine, Reaped};
use crate::error::EngineError;
use crate::index::{Pin, Resumed, Suspect};
use crate::schedule::{Class, Grant, Scheduler};
use crate::store::Extent;

/// An operation between its arrival and its answer.
struct Active {
    kind: Kind,
    timeline: Timeline,
    /// Bytes not granted yet.
    waiting_bytes: u64,
    /// Pieces granted and not through: in the kernel, or waiting for their checksum.
    unfinished_pieces: usize,
    /// XOR of the placed checksums of its pieces.
    checksum: u32,
    failure: Option<Failure>,
    /// Times its write was tried again.
    retries: u32,
}

enum Kind {
    Get(GetRequest, Pin),
    Set(SetRequest, Option<Place>),
    Free(Extent),
    /// Reads a chunk that may be damaged into memory of our own.
    Verify(Pin, AlignedBlock),
}

impl Kind {
    fn class(&self) -> Class {
        match self {
            Self::Get(..) => Class::Get,
            Self::Free(_) => Class::Delete,
            Self::Set(..) | Self::Verify(..) => Class::Set,
        }
    }
}

/// All operations of one reactor. Pieces in flight sit in a fixed array: the kernel holds their addresses.
pub(super) struct Work {
    /// Number of the reactor.
    number: usize,
    scheduler: Scheduler,
    active: Slab<Active>,
    pieces: Slab<Piece>,
    pool: BouncePool,
    /// Pieces that the kernel is done with, and the processor is not: loads, and the rest.
    finished: [VecDeque<Piece>; 2],
    finished_bytes: u64,
    /// What the processor did in this turn instead of feeding the device, in bytes of summing up.
    processed_bytes: u64,
    pub(super) commit: GroupCommit,
    /// Failed writes, and when to try them again.
    retries: Vec<(Instant, usize)>,
    /// Chunks still to be verified.
    suspects: Vec<Suspect>,
    all_verified: bool,
}

/// Pause before the first retry of a failed write; each further one is twice as long.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Bytes that could be summed up in the time that freeing a place takes.
const FREEING_COSTS_BYTES: u64 = 4096;

impl Work {
    /// Work for a device that takes this many transfers at a time, as the scheduler must make sure.
    pub(super) fn new(
        number: usize,
        scheduler: Scheduler,
        most_transfers: usize,
        suspects: Vec<Suspect>,
    ) -> Self {
        Self {
            number,
            scheduler,
            active: Slab::new(),
            pieces: Slab::with_capacity(most_transfers),
            pool: BouncePool::new(),
            finished: Default::default(),
            finished_bytes: 0,
            processed_bytes: 0,
            commit: GroupCommit::default(),
            retries: Vec::new(),
            all_verified: suspects.is_empty(),
            suspects,
        }
    }

    /// Takes up the next chunk to be verified if there is nothing else to do: one at a time, so that little
    /// of it stands in the way of what comes.
    pub(super) fn verify_if_idle(&mut self, shared: &Shared) {
        while self.active.is_empty() && !self.all_verified {
            let Some(suspect) = self.suspects.pop() else {
                shared.index.all_verified();
                self.all_verified = true;
                return;
            };
            let Some(pin) = shared.index.pin_suspect(suspect) else { continue };
            let bytes = pin.length_bytes;
            let block = AlignedBlock::zeroed(bytes as usize);
            self.enqueue(Kind::Verify(pin, block), Class::Set, bytes, Instant::now());
        }
    }

    /// Whether there is nothing to do and nothing to wait for.
    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// Transfers and syncs that the kernel has.
    pub(super) fn in_flight(&self) -> usize {
        self.pieces.len() + self.commit.in_flight()
    }

    /// When to look again although nothing has come: a failed write is to be tried again, or a SET that waits for the
    /// loads of other reactors is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let set_is_due = match self.in_flight() {
            0 => self.scheduler.set_is_due(),
            _ => None,
        };
        self.retries.iter().map(|(due, _)| *due).chain(set_is_due).min()
    }

    /// Queues the failed writes whose pause is over.
    pub(super) fn start_due(&mut self, now: Instant) {
        let (scheduler, active) = (&mut self.scheduler, &self.active);
        self.retries.retain(|(due, id)| {
            if *due <= now {
                scheduler.push(Class::Set, *id, active[*id].waiting_bytes, now);
            }
            *due > now
        });
    }

    /// Queues an operation.
    pub(super) fn accept(&mut self, operation: Operation) {
        let (class, bytes, submitted) =
            (operation.class(), operation.bytes(), operation.submitted());
        let kind = match operation {
            Operation::Get(request, pin) => Kind::Get(request, pin),
            Operation::Set(request) => Kind::Set(request, None),
            Operation::Free(extent, _) => Kind::Free(extent),
        };
        self.enqueue(kind, class, bytes, submitted);
    }

    fn enqueue(&mut self, kind: Kind, class: Class, bytes: u64, submitted: Instant) {
        let id = self.active.insert(Active {
            kind,
            timeline: Timeline { submitted, started: None, moved: None },
            waiting_bytes: bytes,
            unfinished_pieces: 0,
            checksum: 0,
            failure: None,
            retries: 0,
        });
        self.scheduler.push(class, id, bytes, submitted);
    }

    /// Starts what the scheduler allows now. Says whether it stopped before the end, because what needs the processor
    /// alone (freeing, comparing) would have kept the device waiting.
    pub(super) fn start_some(
        &mut self,
        now: Instant,
        shared: &Shared,
        engine: &mut impl Engine,
    ) -> Result<bool, EngineError> {
        shared.note_loads(self.number, self.scheduler.loads(), self.scheduler.has_waiting_sets());
        self.processed_bytes = 0;
        let mut outcome = Ok(false);
        while let Some(grant) = self.scheduler.next_grant(now, shared.loads_elsewhere(self.number))
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
        shared.note_loads(self.number, self.scheduler.loads(), self.scheduler.has_waiting_sets());
        outcome
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
        let (extent, buffer, action) = match &mut active.kind {
            Kind::Free(_) => {
                self.processed_bytes += FREEING_COSTS_BYTES;
                self.scheduler.finish(grant);
                self.answer(grant.id, shared);
                return Ok(());
            }
            Kind::Get(request, pin) => (pin.extent, request.buffer, Action::Read),
            Kind::Verify(pin, block) => {
                // SAFETY: the block is as long, is ours alone, and lives in `active` until its pieces are reaped.
                let buffer =
                    unsafe { CallerBuffer::new(block.as_ptr(), pin.length_bytes as usize) };
                (pin.extent, buffer, Action::Read)
            }
            Kind::Set(request, place @ None) => {
                let comparison = compare_with_held(request, shared);
                self.processed_bytes += comparison.compared_bytes;
                if comparison.is_unchanged {
                    shared.counters.set_unchanged.add(1);
                    return self.end_unplaced(grant, None, shared);
                }
                match find_place(request, shared) {
                    Ok(found) => {
                        let extent = found.extent;
                        *place = Some(found);
                        (extent, request.buffer, Action::Write)
                    }
                    Err(error) => {
                        return self.end_unplaced(grant, Some(Failure::NoRoom(error)), shared);
                    }
                }
            }
            Kind::Set(request, Some(place)) => (place.extent, request.buffer, Action::Write),
        };
        let (file, chunk_offset_bytes) = shared.store.locate(extent);
        let target = Target { action, file, chunk_offset_bytes };
        let piece = Piece::new(grant, target, buffer, shared.store.geometry(), &mut self.pool);
        shared.counters.bounced_bytes.add(piece.bounced_bytes as u64);
        active.unfinished_pieces += 1;
        // Never over the capacity it was made with, so that no piece ever moves.
        assert!(
            self.pieces.len() < self.pieces.capacity(),
            "the scheduler granted more than there is room for"
        );
        let token = self.pieces.insert(piece);
        self.submit(token, shared, engine)
    }

    fn submit(
        &mut self,
        token: usize,
        shared: &Shared,
        engine: &mut impl Engine,
    ) -> Result<(), EngineError> {
        shared.counters.transfers.add(1);
        let transfer = self.pieces[token].transfer(token);
        // SAFETY: the piece stays where it is in `pieces` until it is reaped (or everything is leaked); it owns vectors
        // and bounce memory; the caller's memory lives until the answer, which comes after the reaping; the store keeps
        // its files open as long as `shared` lives, which the reactor holds.
        let submitted = unsafe { engine.submit(transfer) };
        if submitted.is_err() {
            // Not under way: nothing to wait for.
            self.end_piece(token, Some(Failure::Closed), Instant::now(), shared);
        }
        submitted
    }

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
            match self.pieces[token].advance(result) {
                Progress::Again => {
                    shared.counters.transfers_resumed.add(1);
                    outcome = outcome.and(self.submit(token, shared, engine));
                }
                Progress::Done => self.end_piece(token, None, now, shared),
                Progress::Failed(errno) => {
                    self.end_piece(token, Some(failure_of(errno)), now, shared);
                }
            }
        }
        outcome
    }

    /// Like `finish_reaped` when nothing may be submitted any more.
    pub(super) fn finish_stopped<E: Engine>(&mut self, shared: &Shared, reaped: &mut Vec<Reaped>) {
        while let Some(Reaped { token, result }) = reaped.pop() {
            if token == SYNC_TOKEN {
                // Without an engine it submits nothing, and so cannot fail.
                let _ = self.finish_sync(result, shared, None::<&mut E>);
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
    fn end_piece(&mut self, token: usize, failure: Option<Failure>, now: Instant, shared: &Shared) {
        let piece = self.pieces.remove(token);
        self.scheduler.finish(piece.grant);
        self.active[piece.grant.id].timeline.moved = Some(now);
        let Some(failure) = failure else {
            let urgency = usize::from(piece.grant.class != Class::Get);
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

    /// Whether there are pieces that only the processor has work with.
    pub(super) fn is_unsettled(&self) -> bool {
        self.finished.iter().any(|pieces| !pieces.is_empty())
    }

    /// Copies and sums up pieces that the kernel is done with, loads first, and answers what is through with them. At
    /// least one piece, and about `limit_bytes` in all, or more where it lags behind: then it is time to look at the
    /// device again.
    pub(super) fn settle(&mut self, limit_bytes: u64, shared: &Shared) {
        let mut settled_bytes = 0;
        while (settled_bytes < limit_bytes || self.finished_bytes > MAX_UNSETTLED_BYTES)
            && let Some(piece) = self.finished.iter_mut().find_map(VecDeque::pop_front)
        {
            self.finished_bytes -= piece.grant.length_bytes;
            piece.deliver();
            let active = &mut self.active[piece.grant.id];
            let is_summed = match &active.kind {
                Kind::Get(_, pin) => pin.checksum.is_some(),
                Kind::Set(..) | Kind::Verify(..) => true,
                Kind::Free(_) => false,
            };
            settled_bytes += piece.bounced_bytes as u64;
            if is_summed && shared.config.checksum == Checksum::Crc32c {
                active.checksum ^= piece.placed_checksum();
                settled_bytes += piece.grant.length_bytes;
            }
            self.end_of_piece(piece, shared);
        }
    }

    fn end_of_piece(&mut self, piece: Piece, shared: &Shared) {
        let id = piece.grant.id;
        piece.release(&mut self.pool);
        let active = &mut self.active[id];
        active.unfinished_pieces -= 1;
        if active.waiting_bytes == 0 && active.unfinished_pieces == 0 {
            self.end(id, shared);
        }
    }

    /// Ends a SET that was granted but will not be written.
    fn end_unplaced(
        &mut self,
        grant: Grant,
        failure: Option<Failure>,
        shared: &Shared,
    ) -> Result<(), EngineError> {
        self.scheduler.finish(grant);
        if self.active[grant.id].waiting_bytes > 0 {
            self.scheduler.cancel_rest(grant.class, grant.id);
        }
        self.active[grant.id].failure = failure;
        self.end(grant.id, shared);
        Ok(())
    }

    /// An operation is through with its transfers: it is answered, tried again, or waits for its group.
    fn end(&mut self, id: usize, shared: &Shared) {
        let active = &mut self.active[id];
        if let Kind::Set(request, Some(_)) = &active.kind
            && shared.config.durability == Durability::Persistent
        {
            match &active.failure {
                None => return self.commit.join(id),
                Some(Failure::Transfer(error))
                    if active.retries < shared.config.persistent_max_retries =>
                {
                    let pause = (FIRST_RETRY_PAUSE * 2_u32.saturating_pow(active.retries.min(16)))
                        .min(LONGEST_RETRY_PAUSE);
                    log::warn!("cannot write a chunk: {error}; trying again in {pause:?}");
                    shared.counters.write_retries.add(1);
                    active.retries += 1;
                    active.failure = None;
                    active.checksum = 0;
                    active.waiting_bytes = request.buffer.length_bytes() as u64;
                    return self.retries.push((Instant::now() + pause, id));
                }
                _ => {}
            }
        }
        self.answer(id, shared);
    }

    /// The file that a SET has written to.
    pub(super) fn written_file(&self, id: usize, shared: &Shared) -> Option<RawFd> {
        match &self.active[id].kind {
            Kind::Set(_, Some(place)) => Some(shared.store.locate(place.extent).0),
            _ => None,
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

    fn answer(&mut self, id: usize, shared: &Shared) {
        let Active { kind, checksum, failure, timeline, .. } = self.active.remove(id);
        if !matches!(failure, Some(Failure::Closed)) && !matches!(kind, Kind::Verify(..)) {
            let mut latencies = shared.lanes[self.number].latencies.lock();
            latencies.record(kind.class(), timeline, Instant::now());
        }
        let asked_for = matches!(kind, Kind::Get(..) | Kind::Set(..));
        if asked_for && matches!(failure, Some(Failure::Closed)) {
            shared.counters.abandoned.add(1);
        }
        match kind {
            Kind::Free(extent) => shared.store.free(extent),
            Kind::Get(request, pin) => end_get(request, pin, checksum, failure, shared),
            Kind::Verify(pin, _) => end_verify(pin, checksum, failure, shared),
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
        checksum: u32,
        failure: Option<Failure>,
        shared: &Shared,
    ) {
        // Now: the memory is the caller's again with the answer.
        let shared_failure = failure
            .as_ref()
            .filter(|_| shared.index.has_waiting_set(request.digest))
            .map(|failure| (failure.to_string(), checksum_of(&request)));
        let length_bytes = request.buffer.length_bytes();
        let mut resumed = VecDeque::from(end_set(request, place, checksum, failure, shared));
        while let Some(next) = resumed.pop_front() {
            match next {
                Resumed::Hit(request, pin) => self.accept(Operation::Get(request, pin)),
                Resumed::Start(request) => match &shared_failure {
                    Some((message, checksum))
                        if request.buffer.length_bytes() == length_bytes
                            && checksum_of(&request) == *checksum =>
                    {
                        let failure = Some(Failure::Joined(message.clone()));
                        resumed.extend(end_set(request, None, 0, failure, shared));
                    }
                    _ => self.accept(Operation::Set(request)),
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
        self.commit.forget();
        self.retries.clear();
        self.suspects.clear();
        // Ending a SET may resume others behind it: until nothing is left.
        loop {
            self.scheduler.clear();
            let ids: Vec<usize> = self.active.iter().map(|(id, _)| id).collect();
            let mut ended = 0;
            for id in ids {
                let active = &mut self.active[id];
                let unfinished = active.waiting_bytes > 0 || active.unfinished_pieces == 0;
                active.waiting_bytes = 0;
                if unfinished {
                    active.failure.get_or_insert(Failure::Closed);
                }
                if active.unfinished_pieces == 0 {
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
            match active.kind {
                Kind::Get(request, _) => request.item.abandon(),
                Kind::Set(request, _) => request.item.abandon(),
                Kind::Free(_) => {}
                // The kernel may still write into it.
                Kind::Verify(_, block) => std::mem::forget(block),
            }
        }
    }
}
