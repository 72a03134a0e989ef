//! What GETs and SETs ask for, one key each.

use std::sync::Arc;
use std::time::Instant;

use crate::backlog::QueueShare;
use crate::batch_completion::BatchItem;
use crate::buffer::CallerBuffer;
use crate::index::Index;
use crate::key::Digest;

pub(crate) struct GetRequest {
    pub(crate) item: BatchItem,
    pub(crate) buffer: CallerBuffer,
    pub(crate) submitted: Instant,
}

pub(crate) struct SetRequest {
    pub(crate) item: BatchItem,
    pub(crate) buffer: CallerBuffer,
    pub(crate) digest: Digest,
    pub(crate) key: Arc<str>,
    /// Fingerprint of the key's namespace.
    pub(crate) namespace: u64,
    pub(crate) submitted: Instant,
    /// Its batch's share of the SETs that are not answered yet.
    pub(crate) share: Arc<QueueShare>,
}

/// The index, with the requests that wait in it.
pub(crate) type ChunkIndex = Index<GetRequest, SetRequest>;
