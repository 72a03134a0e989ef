//! The steps of GET and SET that are no transfers: finding a place, publishing, verifying, answering.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::Shared;
use super::doubts::Finding;
use super::errnos::{Attempt, END_OF_FILE, Fate, Request, Verdict, judge};
use super::health::{State, Way};
use super::operation::{GetRequest, SetRequest};
use super::quota::QuotaShare;
use super::record_writer::Answer;
use crate::block::Extent;
use crate::checksum::{ChecksumKind, PayloadChecksum};
use crate::config::Checksum;
use crate::error::StoreError;
use crate::index::table::Content;
use crate::index::{Pin, Publication, RecordState, Resumed, Suspect};
use crate::key::Digest;

/// Where a chunk goes: its blocks, and its record.
pub(super) struct Place {
    pub(super) extent: Extent,
    pub(super) record: RecordState,
    pub(super) quota: Option<QuotaShare>,
    /// Done when no record in the file names these blocks any more. Nothing is written there before.
    pub(super) free_ticket: u64,
    /// The record of the chunk that this one replaces is cleared: whatever happens now, this one stands for its key.
    pub(super) stands: bool,
}

/// Why an operation did not do what it was asked.
pub(super) enum Failure {
    /// Not placed, or refused before any transfer.
    NoRoom(StoreError),
    /// The next open would not find it, for this reason.
    Missed(Arc<str>),
    /// The device or the file system said no; what that means for the chunk to be read, or the place to be written.
    Transfer(io::Error, Fate),
    /// It could not be made durable.
    Sync(io::Error),
    /// It joined a SET of its key that failed, with this message.
    Joined(String),
    /// close() came first.
    Closed,
}

impl Failure {
    /// That of a `request` that failed with `errno` and is not tried again.
    pub(super) fn of(request: Request, errno: i32, attempt: Attempt, state: State) -> Self {
        let error = match errno {
            END_OF_FILE => {
                io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before the chunk does")
            }
            errno => io::Error::from_raw_os_error(errno),
        };
        let fate = match judge(request, errno, attempt, state) {
            Verdict::Fail(fate, _) => fate,
            Verdict::RetryAlone => Fate::Keep,
        };
        Self::Transfer(error, fate)
    }

    /// What is said of it, about `what` was to be written.
    pub(super) fn text(&self, what: impl FnOnce() -> String) -> String {
        match self {
            Self::NoRoom(error) => error.to_string(),
            Self::Missed(reason) => format!(
                "nothing is stored any more: {reason}; put it back, or open the store again (what is held is still loaded)"
            ),
            Self::Transfer(error, _) => format!("cannot write {}: {error}", what()),
            Self::Sync(error) => format!("cannot make {} durable: {error}", what()),
            Self::Joined(message) => message.clone(),
            Self::Closed => "the connector was closed before the chunk was written".into(),
        }
    }
}

/// How a chunk that is to be stored compares with what is stored under its key.
pub(super) enum Comparison {
    /// Its very bytes are stored already.
    Unchanged,
    Changed,
    /// So far nothing differs.
    Unfinished,
}

/// How far a chunk was compared.
#[derive(Default)]
pub(super) struct Compared {
    pub(super) bytes: usize,
    checksum: u64,
}

/// Goes on comparing `request`, by `limit_bytes` at most. Without checksums the length has to do.
pub(super) fn compare_with_held(
    request: &SetRequest,
    compared: &mut Compared,
    limit_bytes: usize,
    shared: &Shared,
) -> Comparison {
    let length = request.buffer.length_bytes();
    let Some((_, held_checksum)) =
        shared.index.held(request.digest).filter(|(held_bytes, _)| *held_bytes == length as u64)
    else {
        return Comparison::Changed;
    };
    // What cannot be read is written anew.
    if shared.doubts.hold(request.digest) {
        return Comparison::Changed;
    }
    let Some(kind) = shared.config.checksum.kind() else { return Comparison::Unchanged };
    // A CRC-32C is too short to tell: such a chunk is stored anew.
    let Some(held) = held_checksum.filter(|held| held.kind == kind) else {
        return Comparison::Changed;
    };
    let part_bytes = limit_bytes.min(length - compared.bytes);
    // SAFETY: as in `checksum_of`.
    let part = unsafe { request.buffer.bytes(compared.bytes, part_bytes) };
    compared.bytes += part_bytes;
    compared.checksum ^= kind.placed(kind.of(part), (length - compared.bytes) as u64);
    match compared.bytes == length {
        false => Comparison::Unfinished,
        true if held.value == compared.checksum => Comparison::Unchanged,
        true => Comparison::Changed,
    }
}

/// CRC-64/NVME of what a SET is to store.
pub(super) fn checksum_of(request: &SetRequest) -> u64 {
    // SAFETY: a SET's memory is only read, and not written by others until the answer, by the contract of
    // CallerBuffer::new; the request is not answered yet.
    ChecksumKind::Crc64Nvme.of(unsafe { request.buffer.bytes(0, request.buffer.length_bytes()) })
}

/// What a read has shown of a chunk.
enum Shown {
    /// It is what was stored.
    Intact,
    /// It is not, and is dropped.
    Dropped,
    /// Nothing: it is held as before. It has come into doubt if it is named here.
    Nothing(Option<Suspect>),
}

/// Verifies, unpins, answers. Returns the chunk if it has come into doubt.
pub(super) fn end_get(
    request: GetRequest,
    pin: Pin,
    checksum: u64,
    failure: Option<Failure>,
    shared: &Shared,
) -> Option<Suspect> {
    let counters = &shared.counters;
    let length_bytes = pin.length_bytes;
    if matches!(failure, Some(Failure::Transfer(..))) {
        counters.read_errors.add(1);
    }
    let shown = end_read(pin, checksum, failure, shared);
    if matches!(shown, Shown::Intact) {
        counters.get_hits.add(1);
        counters.read_bytes.add(length_bytes);
        request.item.succeed();
    } else {
        counters.get_misses.add(1);
        request.item.miss();
    }
    match shown {
        Shown::Nothing(suspect) => suspect,
        _ => None,
    }
}

/// The end of a look at a chunk that may be damaged. Says whether nothing is known of it after that.
pub(super) fn end_verify(
    pin: Pin,
    checksum: u64,
    failure: Option<Failure>,
    shared: &Shared,
) -> bool {
    matches!(end_read(pin, checksum, failure, shared), Shown::Nothing(_))
}

/// Unpins a chunk that was read, and drops it if it is not what was stored.
fn end_read(pin: Pin, checksum: u64, failure: Option<Failure>, shared: &Shared) -> Shown {
    let verified = shared.config.checksum == Checksum::Off
        || pin.checksum.is_none_or(|expected| expected.value == checksum);
    let shown = match failure {
        None if verified => {
            if shared.doubts.are_there()
                && let Some(suspect) = shared.index.suspect_of(&pin)
            {
                shared.doubts.remove(suspect.digest);
            }
            Shown::Intact
        }
        None => {
            shared.counters.checksum_mismatch.add(1);
            let place = shared.extent_text(shared.index.digest_of(&pin), pin.extent);
            shared.index.discard(&pin);
            log::error!("a chunk ({place}) does not match its checksum: dropped");
            Shown::Dropped
        }
        Some(Failure::Transfer(error, fate)) => end_failed_read(&pin, &error, fate, shared),
        Some(_) => Shown::Nothing(None),
    };
    let matched = matches!(shown, Shown::Intact)
        && pin.checksum.is_some()
        && shared.config.checksum != Checksum::Off;
    if let Some(extent) = shared.index.unpin(pin, matched) {
        shared.store.free(extent);
    }
    shown
}

/// A chunk could not be read: it is dropped if that is its own fault.
fn end_failed_read(pin: &Pin, error: &io::Error, fate: Fate, shared: &Shared) -> Shown {
    let health = &shared.health;
    let suspect = shared.index.suspect_of(pin);
    // While the device fails, that says all there is to say.
    let finding = suspect.filter(|_| fate != Fate::Drop && health.state(Way::Read) != State::Fails);
    let finding = finding.map(|suspect| {
        let successes = health.successes(Way::Read);
        shared.doubts.add(suspect, fate == Fate::Doubt, successes, Instant::now())
    });
    let is_dropped = fate == Fate::Drop || finding == Some(Finding::Unreadable);
    let what = if is_dropped { "dropped" } else { "a miss, and kept" };
    let tell = || {
        // Once it is the device, that is said, and not chunk by chunk.
        if health.may_tell(Way::Read, shared.config.path()) {
            let place = shared.extent_text(shared.index.digest_of(pin), pin.extent);
            log::error!("cannot read a chunk ({place}): {error}; it is {what}");
        }
    };
    if !is_dropped {
        tell();
        return Shown::Nothing(suspect.filter(|_| finding == Some(Finding::New)));
    }
    if let Some(suspect) = suspect {
        shared.doubts.remove(suspect.digest);
    }
    tell();
    shared.index.discard(pin);
    shared.counters.read_dropped.add(1);
    Shown::Dropped
}

/// What is said of a SET that failed, of the chunk with this digest, which was to go there.
pub(super) fn failure_text(
    failure: &Failure,
    digest: Digest,
    extent: Option<Extent>,
    shared: &Shared,
) -> String {
    failure.text(|| match extent {
        Some(extent) => format!("a chunk ({})", shared.extent_text(digest, extent)),
        None => format!("a chunk (digest {digest})"),
    })
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
    let extent = place.as_ref().map(|place| place.extent);
    let mut generation = None;
    let publication = match (place, &failure) {
        (Some(Place { extent, record, stands, .. }), failure) if stands || failure.is_none() => {
            counters.set_stored.add(1);
            counters.written_bytes.add(length_bytes);
            // They were about the chunk that this one replaces.
            if shared.doubts.are_there() {
                shared.doubts.remove(request.digest);
            }
            let content = match &record {
                RecordState::Written(_, content) => *content,
                RecordState::Reserved(_) => content_of(&request, extent, checksum, shared),
            };
            generation = Some(content.generation);
            Some(Publication { record, content })
        }
        (Some(Place { extent, record, .. }), _) => {
            match (record, &failure) {
                (RecordState::Written(slot, _), _) => {
                    shared.index.withdraw(request.digest, slot);
                    shared.cleared.lock().push(extent);
                }
                (RecordState::Reserved(reservation), failure) => {
                    shared.index.table().release(reservation);
                    match failure {
                        Some(Failure::Transfer(_, Fate::Doubt)) => {
                            shared.store.free_unwritable(extent)
                        }
                        _ => shared.store.free(extent),
                    }
                }
            }
            None
        }
        (None, _) => None,
    };
    let resumed = shared.index.finish_set(request.digest, publication);
    // Only now: meanwhile it counts twice rather than not at all.
    shared.release_quota(quota);
    let SetRequest { item, share, digest, .. } = request;
    let Some(failure) = failure else {
        // Also if nothing was written: it may have found what is not in the file yet.
        shared.answer_when_written(Answer::Stored { item, share, generation });
        return resumed;
    };
    // Before the answer: who sees that finds the room.
    drop(share);
    counters.set_failed.add(1);
    let text = || failure_text(&failure, digest, extent, shared);
    match &failure {
        Failure::NoRoom(_) => counters.store_full.add(1),
        Failure::Transfer(..) => {
            counters.write_errors.add(1);
            if shared.health.may_tell(Way::Write, shared.config.path()) {
                log::error!("{} ({length_bytes} bytes)", text());
            }
        }
        Failure::Missed(_) | Failure::Sync(_) | Failure::Joined(_) | Failure::Closed => {}
    }
    item.fail(text);
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
