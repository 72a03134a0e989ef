//! The steps of GET and SET that are no transfers: finding a place, publishing, verifying, answering.

use std::io;

use super::Shared;
use super::operation::{GetRequest, SetRequest};
use crate::config::Checksum;
use crate::error::StoreError;
use crate::index::table::Content;
use crate::index::{PAYLOAD_CRC32C, PAYLOAD_UNCHECKED, Pin, Publication, RecordState, Resumed};
use crate::key::Namespace;
use crate::store::Extent;
use crate::time::unix_ms;

/// Where a chunk goes: its blocks, and its record.
pub(super) struct Place {
    pub(super) extent: Extent,
    record: RecordState,
    /// The record of the chunk that this one replaces is cleared: whatever happens now, this one stands for its key.
    pub(super) stands: bool,
}

/// Why an operation did not do what it was asked.
pub(super) enum Failure {
    /// Not placed, or refused before any transfer.
    NoRoom(StoreError),
    /// The device said no.
    Transfer(io::Error),
    /// It could not be made durable.
    Sync(io::Error),
    /// close() came first.
    Closed,
}

/// Whether the very bytes of `request` are held already. Without checksums the length has to do.
pub(super) fn is_unchanged(request: &SetRequest, shared: &Shared) -> bool {
    let length = request.buffer.length_bytes();
    let Some((_, held_checksum)) =
        shared.index.held(request.digest).filter(|(held_bytes, _)| *held_bytes == length as u64)
    else {
        return false;
    };
    if shared.config.checksum == Checksum::Off {
        return true;
    }
    // SAFETY: a SET's memory is only read, by the contract of CallerBuffer::new.
    let bytes = unsafe { request.buffer.bytes(0, length) };
    held_checksum.is_some_and(|held| held == crc32c::crc32c(bytes))
}

/// Room for the chunk and its record, or neither.
pub(super) fn find_place(request: &SetRequest, shared: &Shared) -> Result<Place, StoreError> {
    let extent = shared.store.allocate(request.buffer.length_bytes() as u64)?;
    match shared.index.table().reserve(request.key.len()) {
        Ok(reservation) => {
            Ok(Place { extent, record: RecordState::Reserved(reservation), stands: false })
        }
        Err(error) => {
            shared.store.free(extent);
            Err(error)
        }
    }
}

/// Verifies, unpins, answers.
pub(super) fn end_get(
    request: GetRequest,
    pin: Pin,
    checksum: u32,
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
pub(super) fn end_verify(pin: Pin, checksum: u32, failure: Option<Failure>, shared: &Shared) {
    if !matches!(failure, Some(Failure::Closed)) {
        shared.counters.verified_after_crash.add(1);
    }
    end_read(pin, checksum, failure, shared);
}

/// Unpins a chunk that was read, and drops it if it is not what was stored. Says whether it is.
fn end_read(pin: Pin, checksum: u32, failure: Option<Failure>, shared: &Shared) -> bool {
    let counters = &shared.counters;
    let verified = shared.config.checksum == Checksum::Off
        || pin.checksum.is_none_or(|expected| expected == checksum);
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
            log::error!("cannot read key '{key}' at {:?}: {error}; it is dropped", pin.extent);
            false
        }
        Some(Failure::Closed | Failure::NoRoom(_) | Failure::Sync(_)) => false,
    };
    if let Some(extent) = shared.index.unpin(pin) {
        shared.store.free(extent);
    }
    intact
}

/// Publishes or gives the place back, answers; returns what waited behind it.
pub(super) fn end_set(
    request: SetRequest,
    place: Option<Place>,
    checksum: u32,
    failure: Option<Failure>,
    shared: &Shared,
) -> Vec<Resumed<GetRequest, SetRequest>> {
    let counters = &shared.counters;
    let length_bytes = request.buffer.length_bytes() as u64;
    let publication = match (place, &failure) {
        (Some(Place { extent, record, stands }), failure) if stands || failure.is_none() => {
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
            shared.store.free(extent);
            None
        }
        (None, _) => None,
    };
    let resumed = shared.index.finish_set(request.digest, publication);
    match failure {
        None => request.item.succeed(),
        Some(failure) => {
            counters.set_failed.add(1);
            match failure {
                Failure::NoRoom(error) => {
                    counters.store_full.add(1);
                    request.item.fail(|| error.to_string());
                }
                Failure::Transfer(error) => {
                    counters.write_errors.add(1);
                    log::error!("cannot write a chunk of {length_bytes} bytes: {error}");
                    request
                        .item
                        .fail(|| format!("cannot write a chunk of {length_bytes} bytes: {error}"));
                }
                Failure::Sync(error) => {
                    request.item.fail(|| format!("cannot make a chunk durable: {error}"));
                }
                Failure::Closed => request
                    .item
                    .fail(|| "the connector was closed before the chunk was written".into()),
            }
        }
    }
    resumed
}

/// Writes the record of a chunk whose data is durable, before anybody can find it.
pub(super) fn write_record(
    request: &SetRequest,
    place: &mut Place,
    checksum: u32,
    shared: &Shared,
) {
    if let RecordState::Reserved(reservation) = &place.record {
        let content = content_of(request, place.extent, checksum, shared);
        if let Some(slot) = shared.index.record_early(reservation, &content, &request.key) {
            place.record = RecordState::Written(slot, content);
        }
    }
}

fn content_of(request: &SetRequest, extent: Extent, checksum: u32, shared: &Shared) -> Content {
    let (payload_checksum_kind, payload_checksum) = match shared.config.checksum {
        Checksum::Crc32c => (PAYLOAD_CRC32C, u64::from(checksum)),
        Checksum::Off => (PAYLOAD_UNCHECKED, 0),
    };
    Content {
        digest: request.digest,
        namespace: Namespace::of(&request.key).fingerprint(),
        extent,
        length_bytes: request.buffer.length_bytes() as u64,
        generation: shared.index.next_generation(),
        payload_checksum_kind,
        payload_checksum,
        created_ms: unix_ms(),
    }
}

/// The failure that an errno stands for; see [`Progress::Failed`](super::piece::Progress).
pub(super) fn failure_of(errno: i32) -> Failure {
    Failure::Transfer(match errno {
        0 => io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before the chunk does"),
        errno => io::Error::from_raw_os_error(errno),
    })
}
