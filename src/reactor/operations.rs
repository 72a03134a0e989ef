//! The operations of one reactor: queued, started piece by piece, through, answered.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{iter, mem};

use slab::Slab;

use super::Shared;
use super::commit::GroupCommit;
use super::device::Device;
use super::errnos::Failure;
use super::get::{Shown, end_get, end_read};
use super::latency::Timeline;
use super::limits::{BEGUN_TURN_BYTES, CHECKSUM_TURN_BYTES, MOST_IN_A_TURN};
use super::operation::{Active, Operation, WaitingBehind};
use super::responsiveness::SILENCE;
use super::room_queue::RoomQueue;
use super::verify::Verification;
use crate::engine::{Engine, EngineError};
use crate::index::ChunkVersion;
use crate::key::Digest;
use crate::schedule::{Elsewhere, Grant, Limits, Line, Scheduler};
use crate::sync::atomic::Ordering;

pub(super) struct Operations {
    pub(super) shared: Arc<Shared>,
    pub(super) number: usize,
    pub(super) scheduler: Scheduler,
    pub(super) device: Device,
    pub(super) active: Slab<Active>,
    pub(super) commit: GroupCommit,
    pub(super) verification: Verification,
    /// The SETs, by digest: one at a time writes a key.
    sets: HashMap<Digest, usize>,
    /// Those that loads wait for.
    awaited: usize,
    /// After this time a load that has not started is late.
    pub(super) load_deadline: Option<Duration>,
    /// When to look whether the drive has fallen silent.
    pub(super) silence_due: Instant,
    /// Keys whose SETs loads wait for, and when the last of these is late.
    pub(super) late_awaited: VecDeque<(Instant, Digest)>,
    /// GETs that are late, and to be answered.
    pub(super) late: VecDeque<usize>,
    /// SETs that share the failure of the one before them, and are to be answered.
    pub(super) failing: VecDeque<WaitingBehind>,
    /// Since the scheduler was asked last, something ended or came: it may have more to start.
    pub(super) has_changed: bool,
    /// What other reactors had when this turn began.
    elsewhere: Elsewhere,
    /// Bytes of the pieces that were begun in this turn, and of what they cost beside.
    pub(super) begun_bytes: u64,
    /// What the processor did in this turn instead of feeding the device, in bytes of summing up.
    pub(super) processed_bytes: u64,
    /// Pieces of SETs whose extents are still named by records in the file.
    pub(super) awaiting_extents: VecDeque<Grant>,
    /// Operations with a request for their chunk file to be made.
    pub(super) due_chunk_files: Vec<usize>,
    /// Failed writes, and when to try them again.
    pub(super) retries: Vec<(Instant, usize)>,
    /// Whether the first SET waits for the store to grow; none goes meanwhile.
    pub(super) awaits_growth: bool,
    pub(super) room_queue: RoomQueue,
}

impl Operations {
    pub(super) fn new(
        number: usize,
        shared: Arc<Shared>,
        unverified: Vec<ChunkVersion>,
        engine: Box<dyn Engine>,
        mut limits: Limits,
    ) -> Self {
        // As many for loads as for stores.
        let most_transfers = 2 * limits.queue_depth;
        limits.queue_depth = limits.queue_depth.min((engine.depth() / 2).max(1));
        let most_bytes = limits.max_in_flight_bytes;
        let device = Device::new(Arc::clone(&shared), engine, most_transfers, most_bytes);
        let load_deadline = shared.cache.config.load_deadline_ms.map(Duration::from_millis);
        Self {
            number,
            shared,
            scheduler: Scheduler::new(limits),
            device,
            active: Slab::new(),
            commit: GroupCommit::default(),
            verification: Verification::of(unverified),
            sets: HashMap::new(),
            awaited: 0,
            load_deadline,
            silence_due: Instant::now() + SILENCE,
            late_awaited: VecDeque::new(),
            late: VecDeque::new(),
            failing: VecDeque::new(),
            has_changed: false,
            elsewhere: Elsewhere::default(),
            begun_bytes: 0,
            processed_bytes: 0,
            awaiting_extents: VecDeque::new(),
            due_chunk_files: Vec::new(),
            retries: Vec::new(),
            awaits_growth: false,
            room_queue: RoomQueue::default(),
        }
    }

    /// Takes up what came for this reactor alone, as much of it as one turn may: [`Shared::has_work`] says whether there is more.
    pub(super) fn take_up(&mut self) {
        let shared = Arc::clone(&self.shared);
        let deleted = iter::from_fn(|| shared.cache.deleted.pop());
        for (extent, since) in deleted.take(MOST_IN_A_TURN) {
            self.enqueue(Operation::Reclaim(extent), since);
        }
        // A SET that is not taken up yet looks itself whether loads wait for it.
        let awaited = &shared.lanes[self.number].awaited;
        for digest in iter::from_fn(|| awaited.pop()).take(MOST_IN_A_TURN) {
            if let Some(id) = self.sets.get(&digest).copied() {
                self.promote(id, digest);
            }
        }
    }

    /// The lines of the scheduler that are empty although there is something to take up for them. Others can take up what this reactor
    /// does not, so it takes up what it is about to begin.
    fn lines_to_fill(&self) -> impl Iterator<Item = Line> {
        let is_to_fill = |line: &Line| {
            self.shared.pending.count(*line) > 0
                && self.scheduler.is_line_empty(*line)
                && (*line == Line::Get || !self.holds_sets())
        };
        [Line::Promoted, Line::Get, Line::Set].into_iter().filter(is_to_fill)
    }

    fn fill_lines(&mut self) {
        let to_fill: Vec<Line> = self.lines_to_fill().collect();
        for line in to_fill {
            if line != Line::Set {
                self.shared.note_taking_up(self.number);
            }
            let taken = self.shared.pending.take(line);
            taken.into_iter().for_each(|operation| self.accept(operation));
        }
    }

    fn holds_sets(&self) -> bool {
        self.awaits_growth || self.commit.has_too_many_files(self.shared.cache.config.layout)
    }

    pub(super) fn accept(&mut self, operation: Operation) {
        let submitted = operation.submitted().unwrap_or_else(Instant::now);
        let digest = operation.set_digest();
        let id = self.enqueue(operation, submitted);
        if let Some(digest) = digest {
            self.sets.insert(digest, id);
            if self.shared.cache.index.is_awaited(digest) {
                self.promote(id, digest);
            }
        }
    }

    /// Loads wait for SET `id`: it is served as they are, and counts as one of them until it is answered.
    fn promote(&mut self, id: usize, digest: Digest) {
        self.note_awaited(digest);
        let active = &mut self.active[id];
        if !mem::replace(&mut active.is_awaited, true) {
            self.awaited += 1;
            active.ticket = self.scheduler.promote(active.ticket);
        }
    }

    pub(super) fn enqueue(&mut self, operation: Operation, submitted: Instant) -> usize {
        self.has_changed = true;
        let (class, bytes) = (operation.class(), operation.bytes());
        let entry = self.active.vacant_entry();
        let id = entry.key();
        let ticket = self.scheduler.push(class, id, bytes, submitted);
        entry.insert(Active {
            operation,
            ticket,
            is_awaited: false,
            looks_again_for: None,
            timeline: Timeline { submitted, started: None, moved: None },
            waiting_bytes: bytes,
            unfinished: 0,
            checksum: 0,
            failure: None,
            failed_syncs: None,
            retries: 0,
            chunk_file: None,
        });
        id
    }

    /// Takes up the next chunk to be verified if there is nothing else to do.
    pub(super) fn verify_if_idle(&mut self, now: Instant) {
        if self.active.is_empty()
            && self.shared.pending.is_empty()
            && let Some(read) = self.verification.next(now, &self.shared.cache)
        {
            self.enqueue(Operation::Verify(read), now);
        }
    }

    /// Starts what the scheduler allows now. Says whether it stopped before the end, as the turn is over.
    pub(super) fn start_some(&mut self, now: Instant) -> Result<bool, EngineError> {
        self.has_changed = false;
        self.note_work();
        self.elsewhere = self.shared.elsewhere(self.number);
        self.elsewhere.are_loads_present |= self.awaited > 0;
        (self.processed_bytes, self.begun_bytes) = (0, 0);
        self.awaits_growth &= self.shared.cache.is_growing();
        self.scheduler.hold_sets(self.holds_sets());
        self.look_for_room_again();
        self.go_on_failing();
        let mut outcome = Ok(false);
        loop {
            self.fill_lines();
            let Some(grant) = self.scheduler.next_grant(now, &self.elsewhere) else { break };
            if let Err(error) = self.start(grant, now) {
                outcome = Err(error);
                break;
            }
            if self.processed_bytes >= CHECKSUM_TURN_BYTES || self.begun_bytes >= BEGUN_TURN_BYTES {
                outcome = Ok(true);
                break;
            }
        }
        self.note_work();
        self.has_changed |= !self.failing.is_empty();
        outcome
    }

    /// After the kernel was given what this turn began: whether all of it is back, or more than can be summed up at once.
    pub(super) fn note_processor_bound(&self) {
        let is_lagging = self.device.moved_bytes >= CHECKSUM_TURN_BYTES;
        if is_lagging || self.begun_bytes > 0 {
            let is_all_back = self.device.requests.in_flight() == 0;
            self.shared.note_processor_bound(is_lagging || is_all_back);
        }
    }

    fn note_work(&mut self) {
        let loads = self.scheduler.loads() + self.awaited;
        self.shared.note_work(self.number, loads, &self.scheduler);
    }

    /// Whether something that it waits for has come since `start_some` looked. To be asked once more before sleeping: others
    /// wake only a reactor that sleeps.
    pub(super) fn can_go_on(&self) -> bool {
        let loads_ended = self.elsewhere.are_loads_present
            && self.scheduler.has_waiting_sets()
            && !self.shared.elsewhere(self.number).are_loads_present;
        let has_grown = self.awaits_growth && !self.shared.cache.is_growing();
        let is_extent_free = |grant: &Grant| !self.active[grant.id].awaits_extent();
        let awaits_records =
            !self.awaiting_extents.is_empty() || self.commit.awaited_records.is_some();
        self.shared.lanes[self.number].awaits_records.store(awaits_records, Ordering::SeqCst);
        let can_go_on = |id: &usize| {
            let file = self.active[*id].chunk_file.as_ref();
            file.is_none_or(|file| file.can_go_on(&*self.shared.cache.store))
        };
        loads_ended
            || self.lines_to_fill().next().is_some()
            || has_grown
            || self.room_may_have_come()
            || self.awaiting_extents.front().is_some_and(is_extent_free)
            || self.group_can_go_on()
            || self.due_chunk_files.iter().any(can_go_on)
            || (awaits_records || !self.due_chunk_files.is_empty())
                && self.shared.cache.refusal().is_some()
    }

    pub(super) fn answer(&mut self, id: usize) {
        let active = self.active.remove(id);
        let Active { operation, checksum, failure, timeline, chunk_file, is_awaited, .. } = active;
        self.has_changed = true;
        // Before anybody can remove the file.
        drop(chunk_file);
        let is_closed = matches!(failure, Some(Failure::Closed));
        if !is_closed && !matches!(operation, Operation::Verify(_)) {
            let mut latencies = self.shared.lanes[self.number].latencies.lock();
            latencies.record(operation.class(), timeline, Instant::now());
        }
        if is_closed && matches!(operation, Operation::Get(..) | Operation::Set(_)) {
            self.shared.cache.counters.abandoned.add(1);
        }
        match operation {
            Operation::Reclaim(extent) => self.shared.cache.reclaim(extent),
            Operation::Get(request, read) => {
                if let Some(version) = end_get(request, read, checksum, failure, &self.shared) {
                    self.verification.add(version, Instant::now());
                }
            }
            Operation::Verify(read) => {
                let shown = end_read(read, checksum, failure, &self.shared);
                self.verification.end(matches!(shown, Shown::Nothing(_)), &self.shared.cache);
            }
            Operation::Set(set) => {
                self.sets.remove(&set.claim.request.digest);
                self.awaited -= usize::from(is_awaited);
                self.end_set(*set, checksum, failure);
            }
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
        self.end_failed_pieces(Instant::now());
        // Ending a SET may resume others behind it: until nothing is left.
        loop {
            let pending = self.shared.pending.drain_some();
            pending.into_iter().for_each(|operation| self.accept(operation));
            self.scheduler.clear();
            self.clear_room_queue();
            self.drop_due_chunk_files();
            while !self.failing.is_empty() {
                self.processed_bytes = 0;
                self.go_on_failing();
            }
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
                self.shared.cache.counters.abandoned.add(1);
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
