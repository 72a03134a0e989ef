//! Writing a chunk: the claim on its key, and the handle that owns its extent, its record and its share of the quota.
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
use std::time::Instant;

use super::read::ReadHandle;
use super::room::RoomMaking;
use super::writes::RoomOf;
use super::{Cache, GetRequest, SetRequest};
use crate::block::Extent;
use crate::checksum::{crc64, placed};
use crate::error::StoreError;
use crate::evict::PoolId;
use crate::index::{ChunkFields, Reservation};
use crate::index::{EnteredSet, Resumed};
use crate::key::Digest;

/// The right to write a key. SETs of the same key that come later wait behind it in the index.
pub(crate) struct Claim {
    pub(crate) request: SetRequest,
    /// It waited for another SET.
    has_waited: bool,
    pub(crate) compared_bytes: usize,
    /// XOR of the combinable checksums of what is compared.
    compared_checksum: u64,
    /// It is compared and admitted, and looks for room.
    is_admitted: bool,
    room: Option<Box<RoomMaking>>,
}

pub(crate) enum Begun {
    /// Its very bytes are stored already, or it is not worth a write, or deleted: then its key is not stored afterwards.
    Unwritten,
    /// To be asked again: it was compared with what is stored, and nothing differs so far.
    Comparing,
    /// To be asked again: room is being made.
    MakingRoom,
    /// To be asked again when the store has grown.
    Growing,
    /// To be asked again when [`WritesInFlight::changes`](super::writes::WritesInFlight::changes) is another number than this one.
    /// `room`: that which is short.
    AwaitingRoom {
        changes: u64,
        room: RoomOf,
    },
    Write(WriteHandle),
    Refused(StoreError),
}

/// What to do next with operations that waited for a SET, in this order.
pub(crate) type Waiting = Vec<Resumed<GetRequest, SetRequest, ReadHandle>>;

impl Claim {
    pub(crate) fn new(request: SetRequest, has_waited: bool) -> Self {
        Self {
            request,
            has_waited,
            compared_bytes: 0,
            compared_checksum: 0,
            is_admitted: false,
            room: None,
        }
    }

    pub(crate) fn length_bytes(&self) -> u64 {
        self.request.buffer.length_bytes() as u64
    }

    /// CRC-64/NVME of what is to be stored.
    pub(crate) fn checksum(&self) -> u64 {
        let buffer = &self.request.buffer;
        crc64(buffer.bytes(0, buffer.length_bytes()))
    }

    /// Compares at most `limit_bytes`, asks for admission, and takes room for the chunk, its record and its quota, or none of them. If
    /// others wait for that room, it waits `behind` them.
    pub(crate) fn begin(
        &mut self,
        cache: &Arc<Cache>,
        limit_bytes: usize,
        now: Instant,
        behind: Option<RoomOf>,
    ) -> Begun {
        if cache.index.is_doomed(self.request.digest) {
            cache.counters.set_deleted.add(1);
            return Begun::Unwritten;
        }
        if !self.is_admitted {
            let Some(comparison) = self.compare(limit_bytes, cache) else {
                return Begun::Comparing;
            };
            let request = &self.request;
            let is_unchanged = comparison == Comparison::Same;
            if is_unchanged {
                cache.counters.set_unchanged.add(1);
                cache.counters.set_coalesced.add(u64::from(self.has_waited));
                cache.index.touch_stored(request.digest, cache.config.clock.now_ms());
            }
            let keeps_stored = comparison == Comparison::SameUnlessDamaged;
            if is_unchanged || !cache.admits(request, keeps_stored, now) {
                return Begun::Unwritten;
            }
            self.is_admitted = true;
        }
        let changes = cache.writes.changes();
        let is_too_much = cache.is_too_much_written(self.length_bytes());
        if let Some(room) = behind.or_else(|| is_too_much.then_some(None)) {
            return Begun::AwaitingRoom { changes, room };
        }
        match cache.find_room(&self.request, &mut self.room) {
            Ok(Some(write)) => Begun::Write(write),
            Ok(None) => Begun::MakingRoom,
            Err(StoreError::Growing { needed_bytes }) if cache.order_growth(needed_bytes) => {
                Begun::Growing
            }
            Err(error) => self.after_no_room(cache, error, changes),
        }
    }

    /// A SET waits as long as what others write may become room for it. `changes` were there before it looked for room.
    fn after_no_room(&self, cache: &Cache, error: StoreError, changes: u64) -> Begun {
        let request = &self.request;
        let waits = match &error {
            StoreError::Quota { .. } => match cache.quota_outlook(request) {
                QuotaOutlook::Now => return Begun::MakingRoom,
                outlook => outlook == QuotaOutlook::Later,
            },
            StoreError::IndexUnreadable { .. } => false,
            _ => {
                let may_come = cache.writes.are_there() || cache.writes.changes() != changes;
                may_come
                    && !cache.config.never_evicts
                    && cache.store.fill().total_bytes >= self.length_bytes()
            }
        };
        if waits {
            let is_quota = matches!(error, StoreError::Quota { .. });
            return Begun::AwaitingRoom { changes, room: is_quota.then_some(request.namespace) };
        }
        // Others may wait for what this one had while it looked.
        cache.note_room();
        Begun::Refused(error)
    }

    /// Goes on comparing, and says how the chunk compares with what is stored, once that is known. Without checksums the length has
    /// to do.
    fn compare(&mut self, limit_bytes: usize, cache: &Cache) -> Option<Comparison> {
        let request = &self.request;
        let length = request.buffer.length_bytes();
        let stored = cache.index.stored(request.digest);
        let Some(stored) = stored.filter(|stored| stored.length_bytes == length as u64) else {
            return Some(Comparison::Different);
        };
        // What is unverified, or cannot be read, is written anew, if that is admitted.
        let same = match stored.is_verified && !cache.doubts.hold(request.digest) {
            true => Comparison::Same,
            false => Comparison::SameUnlessDamaged,
        };
        if !cache.config.checksum.is_on() {
            return Some(same);
        }
        let Some(checksum) = stored.checksum else { return Some(Comparison::Different) };
        let part_bytes = limit_bytes.min(length - self.compared_bytes);
        let part = request.buffer.bytes(self.compared_bytes, part_bytes);
        self.compared_bytes += part_bytes;
        let left_bytes = (length - self.compared_bytes) as u64;
        self.compared_checksum ^= placed(crc64(part), left_bytes);
        let is_same = checksum == self.compared_checksum;
        (left_bytes == 0).then_some(if is_same { same } else { Comparison::Different })
    }
}

/// How the bytes of a SET compare with those stored under its key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Same,
    /// The record of the stored chunk says that they are the same; its bytes may be damaged.
    SameUnlessDamaged,
    Different,
}

/// A part of a namespace's quota, in blocks, if it has one; given back when its chunk is stored, or is not going to be.
#[derive(Clone, Copy)]
pub(super) struct QuotaShare(pub(super) Option<(PoolId, u32)>);

/// What becomes of a SET that found no room in a quota.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum QuotaOutlook {
    /// What must stay leaves no room for it.
    Nothing,
    /// What is being written takes the room.
    Later,
    /// There is room by now.
    Now,
}

/// What a chunk on its way owns. Dropped, all of it is given back.
pub(crate) struct WriteHandle {
    cache: Arc<Cache>,
    digest: Digest,
    pub(crate) extent: Extent,
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
        extent: Extent,
        reservation: Reservation,
        quota: QuotaShare,
    ) -> Self {
        Self {
            cache: Arc::clone(cache),
            digest,
            extent,
            free_ticket: cache.index.freeing_changes(),
            record: Some(reservation),
            quota,
            is_unwritable: false,
        }
    }

    /// Whether no record in the file names the extent any more. Nothing is written there before.
    pub(crate) fn is_extent_free(&self) -> bool {
        self.cache.is_recorded(self.free_ticket)
    }

    /// Gives everything back. The store does not give out the extent again soon.
    pub(crate) fn abort_unwritable(mut self) {
        self.is_unwritable = true;
    }

    /// The chunk is written: it is stored from now on. Returns its generation, and what waited for it.
    pub(crate) fn commit(mut self, request: &SetRequest, checksum: u64) -> (u64, Waiting) {
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
            created_ms: self.cache.config.clock.now_ms(),
        }
    }

    fn store(&mut self, content: ChunkFields) -> (u64, Waiting) {
        let cache = &self.cache;
        cache.counters.set_stored.add(1);
        cache.counters.written_bytes.add(content.length_bytes);
        // They were about the chunk that this one replaces.
        if cache.doubts.are_there() {
            cache.doubts.remove(self.digest);
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

    pub(crate) fn commit(mut self) -> (u64, Waiting) {
        self.write.store(self.content)
    }
}

impl SupersedingWrite {
    pub(crate) fn extent(&self) -> Extent {
        self.0.extent()
    }

    pub(crate) fn commit(mut self) -> (u64, Waiting) {
        self.0.write.store(self.0.content)
    }
}

impl Drop for SupersedingWrite {
    fn drop(&mut self) {
        // Those that waited fail: nobody goes on with them.
        if self.0.write.record.is_some() && !std::thread::panicking() {
            drop(self.0.write.store(self.0.content));
        }
    }
}

impl Cache {
    /// SET: claims the right to write a key. Refused if another key has its digest.
    pub(crate) fn claim(&self, now_ms: u64, request: SetRequest) -> EnteredSet<SetRequest> {
        let key = Arc::clone(&request.key);
        self.index.enter_set(request.digest, &key, now_ms, request)
    }

    /// A SET is done, with or without a chunk to publish. Returns what waited behind it.
    pub(crate) fn end_set(
        self: &Arc<Self>,
        digest: Digest,
        publication: Option<(Reservation, ChunkFields)>,
    ) -> Waiting {
        let held = |pin| ReadHandle::new(self, pin);
        let (waiting, freed) = self.index.finish_set(digest, publication, held);
        self.reclaim_all(freed);
        waiting
    }
}
