//! What submitting threads hand to a reactor.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_queue::SegQueue;

use crate::backlog::QueueShare;
use crate::batch::BatchItem;
use crate::block::Extent;
use crate::buffer::CallerBuffer;
use crate::index::{Index, Pin};
use crate::key::Digest;
use crate::schedule::Class;

/// One key of a GET batch.
pub(crate) struct GetRequest {
    pub(crate) item: BatchItem,
    pub(crate) buffer: CallerBuffer,
    pub(crate) submitted: Instant,
}

/// One key of a SET batch.
pub(crate) struct SetRequest {
    pub(crate) item: BatchItem,
    pub(crate) buffer: CallerBuffer,
    pub(crate) digest: Digest,
    pub(crate) key: Arc<str>,
    /// Fingerprint of the key's namespace.
    pub(crate) namespace: u64,
    pub(crate) submitted: Instant,
    /// Whether it waited for another SET of its key.
    pub(crate) has_waited: bool,
    /// Its batch's share of the SETs that are not answered yet.
    pub(crate) share: Arc<QueueShare>,
}

/// The index, with the requests that wait in it.
pub(crate) type ChunkIndex = Index<GetRequest, SetRequest>;

/// What an operation costs beside its bytes, in bytes that could be moved meanwhile.
pub(super) const OPERATION_COSTS_BYTES: u64 = 4096;

/// Work for a reactor.
pub(crate) enum Operation {
    /// Read the pinned chunk into caller memory.
    Get(GetRequest, Pin),
    /// Write a chunk; its key is claimed in the index.
    Set(SetRequest),
    /// Give a place back; since when it can be.
    Free(Extent, Instant),
}

impl Operation {
    /// Bytes to transfer.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Get(_, pin) => pin.length_bytes,
            Self::Set(request) => request.buffer.length_bytes() as u64,
            Self::Free(..) => 0,
        }
    }

    /// What it costs, in bytes that could be moved meanwhile.
    pub(crate) fn cost_bytes(&self) -> u64 {
        OPERATION_COSTS_BYTES + self.bytes()
    }

    pub(crate) fn submitted(&self) -> Instant {
        match self {
            Self::Get(request, _) => request.submitted,
            Self::Set(request) => request.submitted,
            Self::Free(_, since) => *since,
        }
    }

    pub(crate) fn class(&self) -> Class {
        match self {
            Self::Get(..) => Class::Get,
            Self::Set(_) => Class::Set,
            Self::Free(..) => Class::Delete,
        }
    }
}

/// Submitted batches on their way to a reactor: a queue per class, an element per batch.
#[derive(Default)]
pub(crate) struct Intake {
    queues: [SegQueue<Vec<Operation>>; 3],
    /// Keys whose SETs are to be promoted.
    awaited: SegQueue<Digest>,
}

impl Intake {
    pub(crate) fn push(&self, class: Class, operations: Vec<Operation>) {
        self.queues[class as usize].push(operations);
    }

    pub(crate) fn pop(&self) -> Option<Vec<Operation>> {
        self.queues.iter().find_map(SegQueue::pop)
    }

    /// GETs wait for what is being written for this key.
    pub(crate) fn push_awaited(&self, digest: Digest) {
        self.awaited.push(digest);
    }

    pub(crate) fn pop_awaited(&self) -> Option<Digest> {
        self.awaited.pop()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.iter().all(SegQueue::is_empty) && self.awaited.is_empty()
    }
}
