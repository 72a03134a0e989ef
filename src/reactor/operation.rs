//! One operation: what it is for, and how far it is.

use std::mem;
use std::time::Instant;

use super::chunk_file::ChunkFile;
use super::io_error_policy::Failure;
use super::latency::Timeline;
use crate::base::block::Extent;
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
