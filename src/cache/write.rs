//! Writing a chunk: the handle that owns its extent, its record and its share of the quota.
//!
//! ```text
//! Claim --begin--> WriteHandle --commit--> stored                        best_effort
//!                       | record (data is durable)
//!                  RecordedWrite --commit--> stored                      persistent, a new key
//!                       | supersede (the record is durable)
//!                  SupersedingWrite --commit--> stored                   persistent, a key that is replaced
//! ```
//!
//! Dropping a handle gives all of it back, but for a [`SupersedingWrite`]: the record of the chunk that it replaces is cleared, so
//! the new one stands whatever happens, and dropping it commits.

use std::sync::Arc;

use super::{Cache, SetRequest};
use crate::base::block::Extent;
use crate::evict::PoolId;
use crate::index::{ChunkFields, Reservation};
use crate::key::Digest;

/// A part of a namespace's quota, in blocks, if it has one; given back when its chunk is stored, or is not going to be.
#[derive(Clone, Copy)]
pub(super) struct QuotaShare(pub(super) Option<(PoolId, u32)>);

/// What a chunk on its way owns. Dropped, all of it is given back.
pub(crate) struct WriteHandle {
    cache: Arc<Cache>,
    digest: Digest,
    pub(crate) extent: Extent,
    /// Stream of the drive that it is written to; 0 for none.
    pub(crate) stream: u8,
    free_ticket: u64,
    /// None once the chunk is stored.
    record: Option<Reservation>,
    quota: QuotaShare,
    /// The extent could not be written.
    is_unwritable: bool,
}

/// A chunk whose record is in the index. Nobody finds it by its key yet.
pub(crate) struct RecordedWrite {
    write: WriteHandle,
    content: ChunkFields,
}

/// A chunk that stands for its key from now on: the record of the one before it is cleared.
pub(crate) struct SupersedingWrite(RecordedWrite);

impl WriteHandle {
    pub(super) fn new(
        cache: &Arc<Cache>,
        digest: Digest,
        (extent, stream): (Extent, u8),
        reservation: Reservation,
        quota: QuotaShare,
    ) -> Self {
        Self {
            cache: Arc::clone(cache),
            digest,
            extent,
            stream,
            free_ticket: cache.index.changes.freed_ticket(),
            record: Some(reservation),
            quota,
            is_unwritable: false,
        }
    }

    /// Whether no record in the file names the extent any more. Nothing is written there before.
    pub(crate) fn is_extent_free(&self) -> bool {
        self.cache.index.changes.is_done(self.free_ticket)
    }

    /// Gives everything back. The store does not give out the extent again soon.
    pub(crate) fn abort_unwritable(mut self) {
        self.is_unwritable = true;
    }

    /// The chunk is written: it is stored from now on. Returns its generation, and the next SET of its key.
    pub(crate) fn commit(
        mut self,
        request: &SetRequest,
        checksum: u64,
    ) -> (u64, Option<SetRequest>) {
        // Before the record is on its way, which has it flushed.
        self.cache.store.note_written(self.extent);
        let content = self.content_of(request, checksum);
        self.store(content)
    }

    /// The chunk is durable: its record is written, unless it is deleted already.
    pub(crate) fn record(mut self, request: &SetRequest, checksum: u64) -> RecordedWrite {
        let content = self.content_of(request, checksum);
        if let Some(record) = &mut self.record {
            self.cache.index.record_early(record, &content, &request.key);
        }
        RecordedWrite { write: self, content }
    }

    fn content_of(&self, request: &SetRequest, checksum: u64) -> ChunkFields {
        ChunkFields {
            digest: request.digest,
            namespace: request.namespace,
            extent: self.extent,
            length_bytes: request.buffer.length_bytes() as u64,
            generation: self.cache.index.next_generation(),
            checksum: self.cache.config.checksum.is_on().then_some(checksum),
            variant: request.variant,
            created_ms: self.cache.config.clock.now_ms(),
        }
    }

    fn store(&mut self, content: ChunkFields) -> (u64, Option<SetRequest>) {
        let cache = &self.cache;
        cache.counters.set_stored.add(1);
        cache.counters.written_bytes.add(content.length_bytes);
        cache.streams.note_written(self.stream, self.extent.size_bytes());
        // They were about the chunk that this one replaces.
        if cache.suspects.are_there() {
            cache.suspects.remove(self.digest);
        }
        let publication = self.record.take().map(|record| (record, content));
        (content.generation, cache.end_set(self.digest, publication))
    }
}

impl Drop for WriteHandle {
    fn drop(&mut self) {
        // The panic may be about this very chunk: a second one would end the process.
        if std::thread::panicking() {
            return;
        }
        if let Some(record) = self.record.take() {
            let was_written = record.is_written;
            self.cache.index.withdraw(self.digest, record);
            match was_written {
                true => self.cache.withdrawn.lock().push(self.extent),
                false if self.is_unwritable => self.cache.store.free_unwritable(self.extent),
                false => self.cache.reclaim(self.extent),
            }
        }
        // After the chunk counts as stored: meanwhile it counts twice rather than not at all.
        self.cache.release_quota(self.quota);
        self.cache.writes.end(self.extent.size_bytes());
        self.cache.note_room();
    }
}

impl RecordedWrite {
    pub(crate) fn extent(&self) -> Extent {
        self.write.extent
    }

    /// The record is durable: clears that of the chunk which this one replaces. Returns itself if there is none.
    #[expect(clippy::result_large_err, reason = "the other variant is as large")]
    pub(crate) fn supersede(self) -> Result<SupersedingWrite, Self> {
        match self.write.cache.index.invalidate(self.write.digest) {
            true => Ok(SupersedingWrite(self)),
            false => Err(self),
        }
    }

    pub(crate) fn commit(mut self) -> (u64, Option<SetRequest>) {
        self.write.store(self.content)
    }
}

impl SupersedingWrite {
    pub(crate) fn extent(&self) -> Extent {
        self.0.extent()
    }

    pub(crate) fn commit(mut self) -> (u64, Option<SetRequest>) {
        self.0.write.store(self.0.content)
    }
}

impl Drop for SupersedingWrite {
    fn drop(&mut self) {
        // One that waited fails: nobody goes on with it.
        if self.0.write.record.is_some() && !std::thread::panicking() {
            drop(self.0.write.store(self.0.content));
        }
    }
}

impl Cache {
    /// A SET is done, with or without a chunk to publish. Returns the next one of its key.
    pub(crate) fn end_set(
        &self,
        digest: Digest,
        publication: Option<(Reservation, ChunkFields)>,
    ) -> Option<SetRequest> {
        let (next, freed) = self.index.finish_set(digest, publication);
        self.reclaim_all(freed);
        next
    }
}
