//! One operation: what it is for, and how far it is; and the queue of those that no reactor has taken up.

use std::collections::VecDeque;
use std::mem;
use std::time::Instant;

use super::chunk_file::ChunkFile;
use super::io_error_policy::Failure;
use super::latency::Timeline;
use crate::base::block::Extent;
use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicUsize, Ordering};
use crate::cache::{
    Claim, GetRequest, ReadHandle, RecordedWrite, RoomOf, SupersedingWrite, WriteHandle,
};
use crate::config::Checksum;
use crate::schedule::{Class, Ticket};

/// What an operation costs beside its bytes, in bytes that could be moved meanwhile.
pub(super) const OPERATION_COSTS_BYTES: u64 = 4096;

pub(crate) enum Operation {
    Get(GetRequest, ReadHandle),
    Set(Box<SetOperation>),
    /// Gives the extent of a deleted chunk back.
    Reclaim(Extent),
    /// Reads a chunk that may be damaged, piece by piece, for its checksum.
    Verify(ReadHandle),
}

impl Operation {
    pub(crate) fn set(claim: Claim) -> Self {
        Self::Set(Box::new(SetOperation { claim, stage: Stage::Claimed }))
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Get(_, read) | Self::Verify(read) => read.pin.length_bytes,
            Self::Set(set) => set.claim.length_bytes(),
            Self::Reclaim(_) => 0,
        }
    }

    /// When it was submitted, if it was.
    pub(super) fn submitted(&self) -> Option<Instant> {
        match self {
            Self::Get(request, _) => Some(request.submitted),
            Self::Set(set) => Some(set.claim.request.submitted),
            Self::Reclaim(_) | Self::Verify(_) => None,
        }
    }

    /// What it costs, in bytes that could be moved meanwhile.
    pub(crate) fn cost_bytes(&self) -> u64 {
        OPERATION_COSTS_BYTES + self.bytes()
    }

    pub(crate) fn class(&self) -> Class {
        match self {
            Self::Get(..) => Class::Get,
            Self::Reclaim(_) => Class::Delete,
            Self::Set(_) | Self::Verify(_) => Class::Set,
        }
    }

    pub(super) fn extent(&self) -> Option<Extent> {
        match self {
            Self::Get(_, read) | Self::Verify(read) => Some(read.pin.extent),
            Self::Set(set) => set.extent(),
            Self::Reclaim(_) => None,
        }
    }

    /// Write stream of a SET that is to be written; 0 for none.
    pub(super) fn write_stream(&self) -> u8 {
        match self {
            Self::Set(set) => match &set.stage {
                Stage::Writing(write) => write.stream,
                _ => 0,
            },
            _ => 0,
        }
    }

    /// Whether its bytes are summed up, in a store with this option.
    pub(super) fn is_checksummed(&self, option: Checksum) -> bool {
        option.is_on()
            && match self {
                Self::Get(_, read) | Self::Verify(read) => read.pin.checksum.is_some(),
                Self::Set(_) | Self::Reclaim(_) => true,
            }
    }
}

pub(crate) struct SetOperation {
    pub(super) claim: Claim,
    pub(super) stage: Stage,
}

impl SetOperation {
    pub(super) fn extent(&self) -> Option<Extent> {
        match &self.stage {
            Stage::Writing(write) => Some(write.extent),
            Stage::Recorded(write) => Some(write.extent()),
            Stage::Superseding(write) => Some(write.extent()),
            Stage::Claimed => None,
        }
    }
}

pub(super) enum Stage {
    Claimed,
    Writing(WriteHandle),
    Recorded(RecordedWrite),
    Superseding(SupersedingWrite),
}

pub(super) struct Active {
    pub(super) operation: Operation,
    pub(super) timeline: Timeline,
    /// Bytes not granted yet.
    pub(super) waiting_bytes: u64,
    /// Pieces granted and not through (held back, in the kernel, or waiting for their checksum), and requests for its file.
    pub(super) unfinished: usize,
    /// XOR of the combinable checksums of its pieces.
    pub(super) checksum: u64,
    pub(super) failure: Option<Failure>,
    /// Where it waits, or waited, in the scheduler.
    pub(super) ticket: Ticket,
    /// It was the first one to wait for this room, and looks for it again.
    pub(super) looks_again_for: Option<RoomOf>,
    /// Syncs of the store that had failed when its write began.
    pub(super) failed_syncs: Option<u64>,
    pub(super) retries: u32,
    pub(super) chunk_file: Option<Box<ChunkFile>>,
}

impl Active {
    /// A SET gives its extent back as one that cannot be written, and its file with it: what it gets next is another one. The file
    /// is closed before anybody can remove it, as its blocks are free only then.
    pub(super) fn release_extent(&mut self) {
        self.chunk_file = None;
        if let Operation::Set(set) = &mut self.operation
            && let Stage::Writing(write) = mem::replace(&mut set.stage, Stage::Claimed)
        {
            write.abort_unwritable();
        }
    }

    /// Whether it has to wait before it writes: a record in the file still names its extent.
    pub(super) fn awaits_extent(&self) -> bool {
        let Operation::Set(set) = &self.operation else { return false };
        matches!(&set.stage, Stage::Writing(write) if !write.is_extent_free())
    }
}

/// Operations that are queued, or taken out, under one lock: some ten microseconds.
const MOST_AT_A_TIME: usize = 256;

/// A reactor takes up so many bytes at once, or one operation: small ones cost less together.
const TAKEN_BYTES: u64 = 128 << 10;

/// Operations that no reactor has taken up: loads, and SETs, in the order in which they came, by class. Whichever reactor has room
/// for one takes it up. How many there are is read without a lock.
#[derive(Default)]
pub(super) struct Pending {
    queues: Mutex<[VecDeque<Operation>; 3]>,
    counts: [AtomicUsize; 3],
}

impl Pending {
    pub(super) fn push(&self, operations: Vec<Operation>) {
        let mut rest = operations.into_iter().peekable();
        while rest.peek().is_some() {
            let mut queues = self.queues.lock();
            for operation in rest.by_ref().take(MOST_AT_A_TIME) {
                queues[operation.class() as usize].push_back(operation);
            }
            self.note_counts(&queues);
        }
    }

    fn note_counts(&self, queues: &[VecDeque<Operation>; 3]) {
        let counted = self.counts.iter().zip(queues);
        counted.for_each(|(count, queue)| count.store(queue.len(), Ordering::SeqCst));
    }

    pub(super) fn count(&self, class: Class) -> usize {
        self.counts[class as usize].load(Ordering::SeqCst)
    }

    pub(super) fn has_loads(&self) -> bool {
        self.count(Class::Get) > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.has_loads() && self.count(Class::Set) == 0
    }

    /// The next one of a class, or several small ones.
    pub(super) fn take(&self, class: Class) -> Vec<Operation> {
        let mut taken = Vec::new();
        if self.count(class) == 0 {
            return taken;
        }
        let mut queues = self.queues.lock();
        let mut bytes = 0;
        while bytes < TAKEN_BYTES
            && let Some(operation) = queues[class as usize].pop_front()
        {
            bytes += operation.cost_bytes();
            taken.push(operation);
        }
        self.note_counts(&queues);
        taken
    }

    /// Some of whatever is left.
    pub(super) fn drain_some(&self) -> Vec<Operation> {
        let mut queues = self.queues.lock();
        let mut taken = Vec::new();
        for queue in queues.iter_mut() {
            let most = queue.len().min(MOST_AT_A_TIME - taken.len());
            taken.extend(queue.drain(..most));
        }
        self.note_counts(&queues);
        taken
    }

    /// When the first load came.
    pub(super) fn oldest_load(&self) -> Option<Instant> {
        if !self.has_loads() {
            return None;
        }
        self.queues.lock()[Class::Get as usize].front().and_then(Operation::submitted)
    }

    /// Loads that came by `latest`, some of them if they are many.
    pub(super) fn take_late_loads(&self, latest: Instant) -> Vec<Operation> {
        if !self.has_loads() {
            return Vec::new();
        }
        let mut queues = self.queues.lock();
        let loads = &mut queues[Class::Get as usize];
        let is_late = |load: &Operation| load.submitted().is_some_and(|since| since <= latest);
        let late = loads.iter().take(MOST_AT_A_TIME).take_while(|load| is_late(load)).count();
        let late = loads.drain(..late).collect();
        self.note_counts(&queues);
        late
    }
}
