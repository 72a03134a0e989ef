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

use super::Cache;
use super::read::ReadHandle;
use super::requests::{GetRequest, SetRequest};
use super::room::RoomMaking;
use crate::block::Extent;
use crate::checksum::{ChecksumKind, PayloadChecksum};
use crate::error::StoreError;
use crate::evict::PoolId;
use crate::index::table::{ChunkFields, Reservation};
use crate::index::{EnteredSet, Publication, RecordState, Resumed};
use crate::key::Digest;

/// The right to write a key. SETs of the same key that come later wait behind it in the index.
pub(crate) struct Claim {
    pub(crate) request: SetRequest,
    compared: Compared,
    /// It is compared and admitted, and looks for room.
    is_admitted: bool,
    room: Option<Box<RoomMaking>>,
}

pub(crate) enum Begun {
    /// Its very bytes are stored already.
    Unchanged,
    /// It is not worth a write. Its key is not stored afterwards.
    NotAdmitted,
    /// To be asked again: it was compared with what is stored, and nothing differs so far.
    Comparing,
    /// To be asked again: room is being made.
    MakingRoom,
    /// To be asked again when the store has grown.
    Growing,
    Write(WriteHandle),
    Refused(StoreError),
}

#[derive(Default)]
struct Compared {
    bytes: usize,
    checksum: u64,
}

enum Comparison {
    Unchanged,
    Changed,
    Unfinished,
}

/// What to do next with operations that waited for a SET, in this order.
pub(crate) enum Next {
    Read(GetRequest, ReadHandle),
    Miss(GetRequest),
    Write(Claim),
}

pub(crate) struct Committed {
    pub(crate) generation: u64,
    pub(crate) waiting: Vec<Next>,
}

impl Claim {
    pub(crate) fn new(request: SetRequest) -> Self {
        Self { request, compared: Compared::default(), is_admitted: false, room: None }
    }

    pub(crate) fn length_bytes(&self) -> u64 {
        self.request.buffer.length_bytes() as u64
    }

    pub(crate) fn compared_bytes(&self) -> u64 {
        self.compared.bytes as u64
    }

    /// CRC-64/NVME of what is to be stored.
    pub(crate) fn checksum(&self) -> u64 {
        let buffer = &self.request.buffer;
        // SAFETY: a SET's memory is only read, and not written by others until the answer, by the contract of
        // CallerBuffer::new; the request is not answered yet.
        ChecksumKind::Crc64Nvme.of(unsafe { buffer.bytes(0, buffer.length_bytes()) })
    }

    /// Compares at most `limit_bytes`, asks for admission, and takes room for the chunk, its record and its quota, or none of them.
    pub(crate) fn begin(&mut self, cache: &Arc<Cache>, limit_bytes: usize, now: Instant) -> Begun {
        if !self.is_admitted {
            match self.compare(limit_bytes, cache) {
                Comparison::Unfinished => return Begun::Comparing,
                Comparison::Unchanged => {
                    let request = &self.request;
                    cache.counters.set_unchanged.add(1);
                    cache.counters.set_joined.add(u64::from(request.has_waited));
                    cache.index.touch_stored(request.digest, cache.config.clock.now_ms());
                    return Begun::Unchanged;
                }
                Comparison::Changed if !cache.admits(&self.request, now) => {
                    return Begun::NotAdmitted;
                }
                Comparison::Changed => self.is_admitted = true,
            }
        }
        match cache.find_room(&self.request, &mut self.room) {
            Ok(Some(write)) => Begun::Write(write),
            Ok(None) => Begun::MakingRoom,
            Err(StoreError::Growing { needed_bytes }) if cache.order_growth(needed_bytes) => {
                Begun::Growing
            }
            Err(error) => Begun::Refused(error),
        }
    }

    /// Goes on comparing. Without checksums the length has to do.
    fn compare(&mut self, limit_bytes: usize, cache: &Cache) -> Comparison {
        let (request, compared) = (&self.request, &mut self.compared);
        let length = request.buffer.length_bytes();
        let Some((_, stored_checksum)) =
            cache.index.stored(request.digest).filter(|(bytes, _)| *bytes == length as u64)
        else {
            return Comparison::Changed;
        };
        // What cannot be read is written anew.
        if cache.doubts.hold(request.digest) {
            return Comparison::Changed;
        }
        let Some(kind) = cache.config.checksum.kind() else { return Comparison::Unchanged };
        // A CRC-32C is too short to tell: such a chunk is stored anew.
        let Some(stored) = stored_checksum.filter(|stored| stored.kind == kind) else {
            return Comparison::Changed;
        };
        let part_bytes = limit_bytes.min(length - compared.bytes);
        // SAFETY: as in `checksum`.
        let part = unsafe { request.buffer.bytes(compared.bytes, part_bytes) };
        compared.bytes += part_bytes;
        compared.checksum ^= kind.placed(kind.of(part), (length - compared.bytes) as u64);
        match compared.bytes == length {
            false => Comparison::Unfinished,
            true if stored.value == compared.checksum => Comparison::Unchanged,
            true => Comparison::Changed,
        }
    }
}

/// A part of a namespace's quota, in blocks; given back when its chunk is stored, or is not going to be.
pub(super) type QuotaShare = (PoolId, u32);

/// What a chunk on its way owns. Dropped, all of it is given back.
struct Unstored {
    cache: Arc<Cache>,
    digest: Digest,
    extent: Extent,
    /// None once the chunk is stored.
    record: Option<RecordState>,
    quota: Option<QuotaShare>,
    /// The extent could not be written.
    is_unwritable: bool,
}

impl Unstored {
    fn commit(mut self, content: ChunkFields) -> Committed {
        let cache = Arc::clone(&self.cache);
        cache.counters.set_stored.add(1);
        cache.counters.written_bytes.add(content.length_bytes);
        // They were about the chunk that this one replaces.
        if cache.doubts.are_there() {
            cache.doubts.remove(self.digest);
        }
        let generation = content.generation;
        let publication = self.record.take().map(|record| Publication { record, content });
        Committed { generation, waiting: cache.end_set(self.digest, publication) }
    }
}

impl Drop for Unstored {
    fn drop(&mut self) {
        // The panic may be about this very chunk: a second one would end the process.
        if std::thread::panicking() {
            return;
        }
        match self.record.take() {
            None => {}
            Some(RecordState::Written(slot)) => {
                self.cache.index.withdraw(self.digest, slot);
                self.cache.withdrawn.lock().push(self.extent);
            }
            Some(RecordState::Reserved(reservation)) => {
                self.cache.index.table().release(reservation);
                match self.is_unwritable {
                    true => self.cache.store.free_unwritable(self.extent),
                    false => self.cache.reclaim(self.extent),
                }
            }
        }
        // After the chunk counts as stored: meanwhile it counts twice rather than not at all.
        self.cache.release_quota(self.quota);
    }
}

pub(crate) struct WriteHandle {
    unstored: Unstored,
    free_ticket: u64,
}

/// A chunk whose record is in the index. Nobody finds it by its key yet.
pub(crate) struct RecordedWrite {
    unstored: Unstored,
    content: ChunkFields,
}

pub(crate) enum Superseded {
    Older(SupersedingWrite),
    Nothing(RecordedWrite),
}

/// A chunk that stands for its key from now on: the record of the one before it is cleared.
pub(crate) struct SupersedingWrite(Option<RecordedWrite>);

impl WriteHandle {
    pub(super) fn new(
        cache: &Arc<Cache>,
        digest: Digest,
        extent: Extent,
        reservation: Reservation,
        quota: Option<QuotaShare>,
    ) -> Self {
        let unstored = Unstored {
            cache: Arc::clone(cache),
            digest,
            extent,
            record: Some(RecordState::Reserved(reservation)),
            quota,
            is_unwritable: false,
        };
        Self { unstored, free_ticket: cache.index.table().changes.freed_ticket() }
    }

    pub(crate) fn extent(&self) -> Extent {
        self.unstored.extent
    }

    /// Whether no record in the file names the extent any more. Nothing is written there before.
    pub(crate) fn is_extent_free(&self) -> bool {
        self.unstored.cache.is_recorded(self.free_ticket)
    }

    /// Gives everything back. The store does not give out the extent again soon.
    pub(crate) fn abort_unwritable(mut self) {
        self.unstored.is_unwritable = true;
    }

    /// The chunk is written: it is stored from now on.
    pub(crate) fn commit(self, request: &SetRequest, checksum: u64) -> Committed {
        let content = self.content_of(request, checksum);
        self.unstored.commit(content)
    }

    /// The chunk is durable: its record is written, unless it is deleted already.
    pub(crate) fn record(mut self, request: &SetRequest, checksum: u64) -> RecordedWrite {
        let content = self.content_of(request, checksum);
        let Unstored { cache, record, .. } = &mut self.unstored;
        if let Some(RecordState::Reserved(reservation)) = record
            && let Some(slot) = cache.index.record_early(reservation, &content, &request.key)
        {
            *record = Some(RecordState::Written(slot));
        }
        RecordedWrite { unstored: self.unstored, content }
    }

    fn content_of(&self, request: &SetRequest, checksum: u64) -> ChunkFields {
        let Unstored { cache, extent, .. } = &self.unstored;
        let kind = cache.config.checksum.kind();
        ChunkFields {
            digest: request.digest,
            namespace: request.namespace,
            extent: *extent,
            length_bytes: request.buffer.length_bytes() as u64,
            generation: cache.index.next_generation(),
            checksum: kind.map(|kind| PayloadChecksum { kind, value: checksum }),
            created_ms: cache.config.clock.now_ms(),
        }
    }
}

impl RecordedWrite {
    pub(crate) fn extent(&self) -> Extent {
        self.unstored.extent
    }

    /// The record is durable: clears that of the chunk which this one replaces, if there is one.
    pub(crate) fn supersede(self) -> Superseded {
        match self.unstored.cache.index.invalidate(self.unstored.digest) {
            true => Superseded::Older(SupersedingWrite(Some(self))),
            false => Superseded::Nothing(self),
        }
    }

    pub(crate) fn commit(self) -> Committed {
        self.unstored.commit(self.content)
    }
}

impl SupersedingWrite {
    pub(crate) fn extent(&self) -> Option<Extent> {
        self.0.as_ref().map(RecordedWrite::extent)
    }

    pub(crate) fn commit(mut self) -> Option<Committed> {
        self.0.take().map(RecordedWrite::commit)
    }
}

impl Drop for SupersedingWrite {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // Those that waited fail: nobody goes on with them.
        drop(self.0.take().map(RecordedWrite::commit));
    }
}

impl Cache {
    /// SET: claims the right to write a key. Refused if another key has its digest.
    pub(crate) fn claim(&self, now_ms: u64, request: SetRequest) -> EnteredSet<SetRequest> {
        let key = Arc::clone(&request.key);
        self.index.enter_set(request.digest, &key, now_ms, request)
    }

    /// A SET ends without a chunk. Returns what waited behind it.
    pub(crate) fn end_claim(self: &Arc<Self>, digest: Digest) -> Vec<Next> {
        self.end_set(digest, None)
    }

    fn end_set(self: &Arc<Self>, digest: Digest, publication: Option<Publication>) -> Vec<Next> {
        let next = |resumed| match resumed {
            Resumed::Hit(request, pin) => Some(Next::Read(request, ReadHandle::new(self, pin))),
            Resumed::Miss(request) => Some(Next::Miss(request)),
            Resumed::Start(request) => {
                Some(Next::Write(Claim::new(SetRequest { has_waited: true, ..request })))
            }
            Resumed::Free(extent) => {
                self.reclaim(extent);
                None
            }
        };
        let resumed = self.index.finish_set(digest, publication);
        resumed.into_iter().filter_map(next).collect()
    }
}
