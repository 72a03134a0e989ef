//! The steps of GET and SET that are no transfers: finding a place, publishing, verifying, answering.

use std::io;

use super::Shared;
use super::health::Way;
use super::operation::{GetRequest, SetRequest};
use super::quota::QuotaShare;
use crate::checksum::{ChecksumKind, PayloadChecksum};
use crate::config::Checksum;
use crate::error::StoreError;
use crate::index::table::Content;
use crate::index::{Pin, Publication, RecordState, Resumed};
use crate::store::Extent;

/// Where a chunk goes: its blocks, and its record.
pub(super) struct Place {
    pub(super) extent: Extent,
    pub(super) record: RecordState,
    pub(super) quota: Option<QuotaShare>,
    /// The record of the chunk that this one replaces is cleared: whatever happens now, this one stands for its key.
    pub(super) stands: bool,
}

/// Why an operation did not do what it was asked.
pub(super) enum Failure {
    /// Not placed, or refused before any transfer.
    NoRoom(StoreError),
    /// The device said no.
    Transfer(io::Error),
    /// The file of a chunk to be read could not be opened now, which says nothing about the chunk.
    Unopened(io::Error),
    /// It could not be made durable.
    Sync(io::Error),
    /// It joined a SET of its key that failed, with this message.
    Joined(String),
    /// close() came first.
    Closed,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoRoom(error) => error.fmt(formatter),
            Self::Transfer(error) => write!(formatter, "cannot write a chunk: {error}"),
            Self::Unopened(error) => write!(formatter, "cannot open the file of a chunk: {error}"),
            Self::Sync(error) => write!(formatter, "cannot make a chunk durable: {error}"),
            Self::Joined(message) => formatter.write_str(message),
            Self::Closed => {
                formatter.write_str("the connector was closed before the chunk was written")
            }
        }
    }
}

/// What was found of a chunk that is to be stored.
#[derive(Default)]
pub(super) struct Comparison {
    /// Its very bytes are held already.
    pub(super) is_unchanged: bool,
    /// Bytes that had to be read to tell.
    pub(super) compared_bytes: u64,
}

/// Whether the very bytes of `request` are held already. Without checksums the length has to do.
pub(super) fn compare_with_held(request: &SetRequest, shared: &Shared) -> Comparison {
    let length = request.buffer.length_bytes();
    let Some((_, held_checksum)) =
        shared.index.held(request.digest).filter(|(held_bytes, _)| *held_bytes == length as u64)
    else {
        return Comparison::default();
    };
    let Some(kind) = shared.config.checksum.kind() else {
        return Comparison { is_unchanged: true, compared_bytes: 0 };
    };
    // A CRC-32C is too short to tell: such a chunk is stored anew.
    let Some(held) = held_checksum.filter(|held| held.kind == kind) else {
        return Comparison::default();
    };
    Comparison { is_unchanged: held.value == checksum_of(request), compared_bytes: length as u64 }
}

/// CRC-64/NVME of what a SET is to store.
pub(super) fn checksum_of(request: &SetRequest) -> u64 {
    // SAFETY: a SET's memory is only read, and not written by others until the answer, by the contract of
    // CallerBuffer::new; the request is not answered yet.
    ChecksumKind::Crc64Nvme.of(unsafe { request.buffer.bytes(0, request.buffer.length_bytes()) })
}

/// Verifies, unpins, answers.
pub(super) fn end_get(
    request: GetRequest,
    pin: Pin,
    checksum: u64,
    failure: Option<Failure>,
    shared: &Shared,
) {
    let counters = &shared.counters;
    let length_bytes = pin.length_bytes;
    if end_read(pin, checksum, failure, shared) {
        counters.get_hits.add(1);
        counters.read_bytes.add(length_bytes);
        request.item.succeed();
    } else {
        counters.get_misses.add(1);
        request.item.miss();
    }
}

/// The end of a look at a chunk that may be damaged.
pub(super) fn end_verify(pin: Pin, checksum: u64, failure: Option<Failure>, shared: &Shared) {
    if !matches!(failure, Some(Failure::Closed)) {
        shared.counters.verified_after_crash.add(1);
    }
    end_read(pin, checksum, failure, shared);
}

/// Unpins a chunk that was read, and drops it if it is not what was stored. Says whether it is.
fn end_read(pin: Pin, checksum: u64, failure: Option<Failure>, shared: &Shared) -> bool {
    let counters = &shared.counters;
    let verified = shared.config.checksum == Checksum::Off
        || pin.checksum.is_none_or(|expected| expected.value == checksum);
    let intact = match failure {
        None if verified => true,
        None => {
            counters.checksum_mismatch.add(1);
            let key = shared.index.discard(&pin);
            log::error!("key '{key}' does not match its checksum at {:?}: dropped", pin.extent);
            false
        }
        Some(Failure::Transfer(error)) => {
            counters.read_errors.add(1);
            let key = shared.index.discard(&pin);
            // Once it is the device, that is said, and not chunk by chunk.
            if shared.health.may_tell(Way::Read, shared.config.path()) {
                log::error!("cannot read key '{key}' at {:?}: {error}; it is dropped", pin.extent);
            }
            false
        }
        Some(failure @ Failure::Unopened(_)) => {
            counters.read_errors.add(1);
            log::warn!("{failure}: a miss, and it is kept");
            false
        }
        Some(_) => false,
    };
    let matched = intact && pin.checksum.is_some() && shared.config.checksum != Checksum::Off;
    if let Some(extent) = shared.index.unpin(pin, matched) {
        shared.store.free(extent);
    }
    intact
}

/// Publishes or gives the place back, answers; returns what waited behind it.
pub(super) fn end_set(
    request: SetRequest,
    place: Option<Place>,
    checksum: u64,
    failure: Option<Failure>,
    shared: &Shared,
) -> Vec<Resumed<GetRequest, SetRequest>> {
    let counters = &shared.counters;
    let length_bytes = request.buffer.length_bytes() as u64;
    let quota = place.as_ref().and_then(|place| place.quota);
    let publication = match (place, &failure) {
        (Some(Place { extent, record, stands, .. }), failure) if stands || failure.is_none() => {
            counters.set_stored.add(1);
            counters.written_bytes.add(length_bytes);
            let content = match &record {
                RecordState::Written(_, content) => *content,
                RecordState::Reserved(_) => content_of(&request, extent, checksum, shared),
            };
            Some(Publication { record, content })
        }
        (Some(Place { extent, record, .. }), _) => {
            match record {
                RecordState::Reserved(reservation) => shared.index.table().release(reservation),
                RecordState::Written(slot, _) => shared.index.table().clear(slot),
            }
            match failure {
                Some(Failure::Transfer(_)) => shared.store.free_unwritable(extent),
                _ => shared.store.free(extent),
            }
            None
        }
        (None, _) => None,
    };
    let resumed = shared.index.finish_set(request.digest, publication);
    // Only now: meanwhile it counts twice rather than not at all.
    shared.release_quota(quota);
    let SetRequest { item, share, .. } = request;
    // Before the answer: who sees that finds the room.
    drop(share);
    let Some(failure) = failure else {
        item.succeed();
        return resumed;
    };
    counters.set_failed.add(1);
    match &failure {
        Failure::NoRoom(_) => counters.store_full.add(1),
        Failure::Transfer(_) => {
            counters.write_errors.add(1);
            if shared.health.may_tell(Way::Write, shared.config.path()) {
                log::error!("{failure} ({length_bytes} bytes)");
            }
        }
        Failure::Unopened(_) | Failure::Sync(_) | Failure::Joined(_) | Failure::Closed => {}
    }
    item.fail(|| failure.to_string());
    resumed
}

/// Writes the record of a chunk whose data is durable, before anybody can find it.
pub(super) fn write_record(
    request: &SetRequest,
    place: &mut Place,
    checksum: u64,
    shared: &Shared,
) {
    if let RecordState::Reserved(reservation) = &place.record {
        let content = content_of(request, place.extent, checksum, shared);
        if let Some(slot) = shared.index.record_early(reservation, &content, &request.key) {
            place.record = RecordState::Written(slot, content);
        }
    }
}

fn content_of(request: &SetRequest, extent: Extent, checksum: u64, shared: &Shared) -> Content {
    let kind = shared.config.checksum.kind();
    Content {
        digest: request.digest,
        namespace: request.namespace,
        extent,
        length_bytes: request.buffer.length_bytes() as u64,
        generation: shared.index.next_generation(),
        checksum: kind.map(|kind| PayloadChecksum { kind, value: checksum }),
        created_ms: shared.config.clock.now_ms(),
    }
}

/// The failure that an errno stands for; see [`Progress::Failed`](super::piece::Progress).
pub(super) fn failure_of(errno: i32) -> Failure {
    Failure::Transfer(match errno {
        0 => io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before the chunk does"),
        errno => io::Error::from_raw_os_error(errno),
    })
}
