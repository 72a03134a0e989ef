//! The end of a GET, and of a read that only verifies: the chunk is intact, dropped, or left as it is.

use std::io;
use std::time::Instant;

use super::ReactorGroup;
use super::io_error_policy::{DeviceState, Direction};
use super::io_error_policy::{ErrorAction, Failure};
use crate::cache::{Finding, GetRequest, ReadHandle};
use crate::index::ChunkVersion;

pub(super) enum ReadOutcome {
    Intact,
    Dropped,
    /// Nothing: it is stored as before. It has come into doubt if it is named here.
    Nothing(Option<ChunkVersion>),
}

/// Verifies the chunk and answers. Returns it if it has come into doubt.
pub(super) fn answer_get(
    request: GetRequest,
    read: ReadHandle,
    checksum: u64,
    failure: Option<Failure>,
    group: &ReactorGroup,
) -> Option<ChunkVersion> {
    let counters = &group.cache.counters;
    let length_bytes = read.pin.length_bytes;
    if matches!(failure, Some(Failure::Transfer(..))) {
        counters.read_errors.add(1);
    }
    let outcome = judge_read(read, checksum, failure, group);
    if matches!(outcome, ReadOutcome::Intact) {
        counters.get_hits.add(1);
        counters.read_bytes.add(length_bytes);
        request.item.succeed();
    } else {
        counters.get_misses.add(1);
        request.item.miss();
    }
    match outcome {
        ReadOutcome::Nothing(version) => version,
        _ => None,
    }
}

/// Closes a chunk that was read, and drops it if it is not what was stored.
pub(super) fn judge_read(
    read: ReadHandle,
    checksum: u64,
    failure: Option<Failure>,
    group: &ReactorGroup,
) -> ReadOutcome {
    match failure {
        None => match read.finish(checksum) {
            true => ReadOutcome::Intact,
            false => ReadOutcome::Dropped,
        },
        Some(Failure::Transfer(error, action)) => judge_failed_read(read, &error, action, group),
        Some(_) => ReadOutcome::Nothing(None),
    }
}

/// A chunk could not be read: it is dropped if that is its own fault.
fn judge_failed_read(
    read: ReadHandle,
    error: &io::Error,
    action: ErrorAction,
    group: &ReactorGroup,
) -> ReadOutcome {
    let (health, cache) = (&group.health, &group.cache);
    let version = read.version();
    // While the device fails, that says all there is to say.
    let finding = version.filter(|_| {
        action != ErrorAction::Drop && health.state(Direction::Read) != DeviceState::Fails
    });
    let finding = finding.map(|version| {
        let successes = health.successes(Direction::Read);
        cache.suspects.add(version, action == ErrorAction::Doubt, successes, Instant::now())
    });
    let is_dropped = action == ErrorAction::Drop || finding == Some(Finding::Unreadable);
    cache.log_limits.reads.log(cache.config.path(), 1, || {
        let what = if is_dropped { "dropped" } else { "a miss, and kept" };
        format!("cannot read a chunk ({}): {error}; it is {what}", read.extent_text())
    });
    if !is_dropped {
        return ReadOutcome::Nothing(version.filter(|_| finding == Some(Finding::New)));
    }
    if let Some(version) = version {
        cache.suspects.remove(version.digest);
    }
    read.discard();
    cache.counters.read_dropped.add(1);
    ReadOutcome::Dropped
}
