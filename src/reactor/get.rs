//! The end of a GET, and of a read that only verifies: the chunk is intact, dropped, or left as it is.

use std::io;
use std::time::Instant;

use super::Shared;
use super::errnos::{Failure, Fate};
use super::health::{DeviceState, Direction};
use crate::cache::{Finding, GetRequest, ReadHandle};
use crate::index::ChunkVersion;

pub(super) enum Shown {
    Intact,
    Dropped,
    /// Nothing: it is stored as before. It has come into doubt if it is named here.
    Nothing(Option<ChunkVersion>),
}

/// Verifies the chunk and answers. Returns it if it has come into doubt.
pub(super) fn end_get(
    request: GetRequest,
    read: ReadHandle,
    checksum: u64,
    failure: Option<Failure>,
    shared: &Shared,
) -> Option<ChunkVersion> {
    let counters = &shared.cache.counters;
    let length_bytes = read.pin.length_bytes;
    if matches!(failure, Some(Failure::Transfer(..))) {
        counters.read_errors.add(1);
    }
    let shown = end_read(read, checksum, failure, shared);
    if matches!(shown, Shown::Intact) {
        counters.get_hits.add(1);
        counters.read_bytes.add(length_bytes);
        request.item.succeed();
    } else {
        counters.get_misses.add(1);
        request.item.miss();
    }
    match shown {
        Shown::Nothing(version) => version,
        _ => None,
    }
}

/// Closes a chunk that was read, and drops it if it is not what was stored.
pub(super) fn end_read(
    read: ReadHandle,
    checksum: u64,
    failure: Option<Failure>,
    shared: &Shared,
) -> Shown {
    match failure {
        None => match read.finish(checksum) {
            true => Shown::Intact,
            false => Shown::Dropped,
        },
        Some(Failure::Transfer(error, fate)) => end_failed_read(read, &error, fate, shared),
        Some(_) => Shown::Nothing(None),
    }
}

/// A chunk could not be read: it is dropped if that is its own fault.
fn end_failed_read(read: ReadHandle, error: &io::Error, fate: Fate, shared: &Shared) -> Shown {
    let (health, cache) = (&shared.health, &shared.cache);
    let version = read.version();
    // While the device fails, that says all there is to say.
    let finding = version
        .filter(|_| fate != Fate::Drop && health.state(Direction::Read) != DeviceState::Fails);
    let finding = finding.map(|version| {
        let successes = health.successes(Direction::Read);
        cache.doubts.add(version, fate == Fate::Doubt, successes, Instant::now())
    });
    let is_dropped = fate == Fate::Drop || finding == Some(Finding::Unreadable);
    cache.log_limits.reads.log(cache.config.path(), 1, || {
        let what = if is_dropped { "dropped" } else { "a miss, and kept" };
        format!("cannot read a chunk ({}): {error}; it is {what}", read.extent_text())
    });
    if !is_dropped {
        return Shown::Nothing(version.filter(|_| finding == Some(Finding::New)));
    }
    if let Some(version) = version {
        cache.doubts.remove(version.digest);
    }
    read.discard();
    cache.counters.read_dropped.add(1);
    Shown::Dropped
}
