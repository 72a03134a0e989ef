//! The operations of one reactor: queued, started piece by piece, through, answered.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{iter, mem};

use slab::Slab;

use super::Shared;
use super::bytes_bound::{Account, BytesBound, OfLoadsAndStores};
use super::commit::GroupCommit;
use super::device::Device;
use super::errnos::Failure;
use super::get::{Shown, end_get, end_read};
use super::lanes::MOST_IN_A_TURN;
use super::latency::Timeline;
use super::limits;
use super::operation::{Active, Operation, WaitingBehind};
use super::responsiveness::SILENCE;
use super::room_queue::RoomQueue;
use super::verify::Verification;
use crate::engine::{Engine, EngineError};
use crate::index::ChunkVersion;
use crate::key::Digest;
use crate::schedule::{Grant, Limits, Scheduler};
use crate::sync::atomic::Ordering;

/// Bytes that are summed up between two looks at the device: a tenth of a millisecond at most, in which a device has enough
/// with what it was given before.
pub(super) const CHECKSUM_TURN_BYTES: u64 = 1 << 20;

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
    /// Bytes of each class that came, less those that were answered, since the lane was told.
    load_changes_bytes: [i64; 3],
    /// Whether other reactors had loads when this turn began.
    loads_elsewhere: bool,
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
    /// Bytes that it has moved, and when others were told.
    pub(super) moved_bytes: OfLoadsAndStores<u64>,
    pub(super) told_at: Instant,
    /// What moved while more waited than went into the device.
    pub(super) account: Account,
    /// Decides how many bytes go in, in the first reactor.
    pub(super) bytes_bound: Option<BytesBound>,
    /// Most transfers of its part of the device, which its memory is made for.
    most_depth: usize,
    /// How many reactors share how many bytes in the device.
    shares: (usize, u64),
    part_bytes: u64,
}

impl Operations {
    pub(super) fn new(
        number: usize,
        shared: Arc<Shared>,
        unverified: Vec<ChunkVersion>,
        engine: Box<dyn Engine>,
        mut limits: Limits,
    ) -> Self {
        let most_transfers = 2 * limits.queue_depth;
        // Half for loads, half for stores.
        limits.queue_depth = limits.queue_depth.min((engine.depth() / 2).max(1));
        let most_bytes = limits.max_in_flight_bytes;
        let device = Device::new(Arc::clone(&shared), engine, most_transfers, most_bytes);
        let shares = (shared.active().max(number + 1), shared.device_limits().1);
        let load_deadline = shared.cache.config.load_deadline_ms.map(Duration::from_millis);
        let bytes_bound = if number == 0 { shared.bytes_bound() } else { None };
        Self {
            moved_bytes: [0; 2],
            told_at: Instant::now(),
            most_depth: limits.queue_depth,
            shares,
            part_bytes: most_bytes,
            account: Account::default(),
            bytes_bound,
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
            load_changes_bytes: [0; 3],
            loads_elsewhere: false,
            processed_bytes: 0,
            awaiting_extents: VecDeque::new(),
            due_chunk_files: Vec::new(),
            retries: Vec::new(),
            awaits_growth: false,
            room_queue: RoomQueue::default(),
        }
    }

    /// Takes up what came, as much of it as one turn may: [`Shared::has_work`] says whether there is more.
    pub(super) fn take_up(&mut self) {
        let shared = Arc::clone(&self.shared);
        let lane = &shared.lanes[self.number];
        for intake in &lane.intake {
            let mut taken = 0;
            while taken < MOST_IN_A_TURN
                && let Some(operations) = intake.pop()
            {
                taken += operations.len();
                for operation in operations {
                    // It is counted since it was pushed.
                    self.count_load(&operation, -1);
                    self.accept(operation);
                }
            }
        }
        if shared.reclaims_deleted(self.number) {
            let deleted = iter::from_fn(|| shared.cache.deleted.pop());
            for (extent, since) in deleted.take(MOST_IN_A_TURN) {
                self.enqueue(Operation::Reclaim(extent), since);
            }
        }
        // A SET that is not taken up yet looks itself whether loads wait for it.
        for digest in iter::from_fn(|| lane.awaited.pop()).take(MOST_IN_A_TURN) {
            if let Some(id) = self.sets.get(&digest).copied() {
                self.promote(id, digest);
            }
        }
        lane.load.change(&mut self.load_changes_bytes);
    }

    /// Takes as much of the device as the number of reactors leaves to each.
    pub(super) fn follow_limits(&mut self) {
        let (active, device) = (self.shared.active(), self.shared.device_limits());
        let shares = (active, device.1);
        if mem::replace(&mut self.shares, shares) != shares {
            let mut limits = limits::of_reactor(&self.shared.cache.config, device, active);
            limits.queue_depth = limits.queue_depth.min(self.most_depth);
            self.part_bytes = limits.max_in_flight_bytes;
            self.device.most_moved_bytes = self.part_bytes;
            self.scheduler.set_limits(limits);
            self.account.begin_anew();
        }
    }

    /// Notes whether more waits than goes into its part of the device, after `start_some`.
    pub(super) fn note_saturation(&mut self, now: Instant) {
        let held_back = self.scheduler.held_back(now);
        self.account.look(now, self.moved_bytes, held_back, self.part_bytes);
    }

    fn count_load(&mut self, operation: &Operation, sign: i64) {
        self.load_changes_bytes[operation.class() as usize] += sign * operation.cost_bytes() as i64;
    }

    pub(super) fn accept(&mut self, operation: Operation) {
        let (submitted, digest) = match &operation {
            Operation::Get(request, _) => (request.submitted, None),
            Operation::Set(set) => (set.claim.request.submitted, Some(set.claim.request.digest)),
            Operation::Reclaim(_) | Operation::Verify(_) => (Instant::now(), None),
        };
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
        self.count_load(&operation, 1);
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
            && let Some(read) = self.verification.next(now, &self.shared.cache)
        {
            self.enqueue(Operation::Verify(read), now);
        }
    }

    /// Starts what the scheduler allows now. Says whether it stopped before the end, because what needs the processor
    /// alone (giving extents back, comparing) would have kept the device waiting.
    pub(super) fn start_some(&mut self, now: Instant) -> Result<bool, EngineError> {
        self.has_changed = false;
        self.note_work();
        self.loads_elsewhere = self.shared.loads_elsewhere(self.number);
        self.processed_bytes = 0;
        self.awaits_growth &= self.shared.cache.is_growing();
        self.scheduler.hold_sets(
            self.awaits_growth || self.commit.has_too_many_files(self.shared.cache.config.layout),
        );
        self.look_for_room_again();
        self.go_on_failing();
        let mut outcome = Ok(false);
        while let Some(grant) =
            self.scheduler.next_grant(now, self.loads_elsewhere || self.awaited > 0)
        {
            if let Err(error) = self.start(grant, now) {
                outcome = Err(error);
                break;
            }
            if self.processed_bytes >= CHECKSUM_TURN_BYTES {
                outcome = Ok(true);
                break;
            }
        }
        self.note_work();
        self.has_changed |= !self.failing.is_empty();
        outcome
    }

    fn note_work(&mut self) {
        let loads = self.scheduler.loads() + self.awaited;
        let sets_wait = self.scheduler.has_waiting_sets();
        self.shared.lanes[self.number].load.change(&mut self.load_changes_bytes);
        self.shared.note_work(self.number, loads, sets_wait);
    }

    /// Whether something that it waits for has come since `start_some` looked. To be asked once more before sleeping: others
    /// wake only a reactor that sleeps.
    pub(super) fn can_go_on(&self) -> bool {
        let loads_ended = self.loads_elsewhere
            && self.scheduler.has_waiting_sets()
            && !self.shared.loads_elsewhere(self.number);
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
        self.count_load(&operation, -1);
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
        self.await_returned();
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
