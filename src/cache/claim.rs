//! The claim on a key: a SET before it may write. It is compared with what is stored, admitted, and gets room.

use std::sync::Arc;
use std::time::Instant;

use super::quota::QuotaOutlook;
use super::room::RoomMaking;
use super::write::WriteHandle;
use super::writes::RoomOf;
use super::{Cache, SetRequest};
use crate::base::checksum::{crc64, placed};
use crate::error::StoreError;
use crate::index::StoredContent;

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

pub(crate) enum BeginOutcome {
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

    /// Compares at most `limit_bytes`, asks for admission, and takes room for the chunk, its record and its quota, or none of them. If
    /// others wait for that room, it waits `behind` them.
    pub(crate) fn begin(
        &mut self,
        cache: &Arc<Cache>,
        limit_bytes: usize,
        now: Instant,
        behind: Option<RoomOf>,
    ) -> BeginOutcome {
        if cache.index.is_doomed(self.request.digest) {
            cache.counters.set_deleted.add(1);
            return BeginOutcome::Unwritten;
        }
        if !self.is_admitted {
            let Some(comparison) = self.compare(limit_bytes, cache) else {
                return BeginOutcome::Comparing;
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
                return BeginOutcome::Unwritten;
            }
            self.is_admitted = true;
        }
        let changes = cache.writes.changes();
        let is_too_much =
            cache.writes.is_too_much(self.length_bytes(), cache.index.capacity_bytes());
        if let Some(room) = behind.or_else(|| is_too_much.then_some(None)) {
            return BeginOutcome::AwaitingRoom { changes, room };
        }
        match cache.find_room(&self.request, &mut self.room) {
            Ok(Some(write)) => BeginOutcome::Write(write),
            Ok(None) => BeginOutcome::MakingRoom,
            Err(StoreError::Growing { needed_bytes }) if cache.order_growth(needed_bytes) => {
                BeginOutcome::Growing
            }
            Err(error) => self.after_no_room(cache, error, changes),
        }
    }

    /// A SET waits as long as what others write may become room for it. `changes` were there before it looked for room.
    fn after_no_room(&self, cache: &Cache, error: StoreError, changes: u64) -> BeginOutcome {
        let request = &self.request;
        let waits = match &error {
            StoreError::Quota { .. } => match cache.quota_outlook(request) {
                QuotaOutlook::Now => return BeginOutcome::MakingRoom,
                outlook => outlook == QuotaOutlook::Later,
            },
            StoreError::IndexUnreadable { .. } => false,
            _ => {
                let may_come = cache.writes.are_there()
                    || cache.writes.changes() != changes
                    || cache.is_fitting();
                may_come
                    && !cache.config.never_evicts
                    && cache.store.fill().total_bytes >= self.length_bytes()
            }
        };
        if waits {
            let is_quota = matches!(error, StoreError::Quota { .. });
            return BeginOutcome::AwaitingRoom {
                changes,
                room: is_quota.then_some(request.namespace),
            };
        }
        // Others may wait for what this one had while it looked.
        cache.note_room();
        BeginOutcome::Refused(error)
    }

    /// Goes on comparing, and says how the chunk compares with what is stored, once that is known. Without checksums the length has
    /// to do.
    fn compare(&mut self, limit_bytes: usize, cache: &Cache) -> Option<Comparison> {
        let request = &self.request;
        let length = request.buffer.length_bytes();
        let stored = cache.index.stored(request.digest);
        let is_alike = |stored: &StoredContent| {
            stored.length_bytes == length as u64 && stored.variant == request.variant
        };
        let Some(stored) = stored.filter(is_alike) else {
            return Some(Comparison::Different);
        };
        // What is unverified, or cannot be read, is written anew, if that is admitted.
        let same = match stored.is_verified && !cache.suspects.hold(request.digest) {
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
