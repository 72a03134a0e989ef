//! The operations a reactor has in hand: placed, in pieces in the device, finished, answered.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hashbrown::HashTable;
use slab::Slab;

use super::commit::GroupCommit;
use super::latency::Timeline;
use super::operation::{GetRequest, OPERATION_COSTS_BYTES, Operation, SetRequest};
use super::own_file::OwnFile;
use super::piece::Piece;
use super::room::RoomMaking;
use super::second_attempts::SecondAttempts;
use super::steps::{Compared, Failure, Place};
use super::verification::Verification;
use super::{SETTLE_BYTES, Shared};
use crate::block::Extent;
use crate::buffer::BouncePool;
use crate::checksum::ChecksumKind;
use crate::config::Checksum;
use crate::engine::{Engine, EngineError};
use crate::index::{Pin, Suspect};
use crate::key::Digest;
use crate::schedule::{Class, Grant, Limits, Scheduler, Ticket};

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
    pub(super) compared: Compared,
    pub(super) failure: Option<Failure>,
    /// Where it waits, or waited, in the scheduler.
    pub(super) ticket: Ticket,
    /// Loads wait for this SET.
    pub(super) is_awaited: bool,
    /// Syncs of the store that had failed when its write began.
    pub(super) failed_syncs: Option<u64>,
    /// A SET that was compared and admitted, and then found no room.
    pub(super) awaits_room: bool,
    /// Room that is being made for it.
    pub(super) making_room: Option<Box<RoomMaking>>,
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
}
