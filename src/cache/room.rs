//! Room for a chunk: an extent within the capacity, a record and a share of the quota. Others are evicted for it.

use std::cell::LazyCell;
use std::sync::Arc;

use super::write::WriteHandle;
use super::{Cache, SetRequest};
use crate::base::block::{BLOCK_BYTES, Extent};
use crate::error::StoreError;
use crate::evict::{Room, RoomSearch, Victim};
use crate::index::Reservation;
use crate::key::Digest;
use crate::store::Store;

/// Times that chunks go for one. More than one is needed where another thread takes the room.
pub(super) const ATTEMPTS: usize = 64;

/// Chunks that are looked at together for being in use.
const LOOKED_AT: usize = 64;

/// Victims that are looked at, or evicted, in one step.
pub(super) const VICTIMS_A_STEP: usize = 256;

/// Steps of a turn: about a millisecond, in which a reactor does nothing else.
pub(super) const STEPS_A_TURN: usize = 8;

/// Room that is being made for a chunk, a step at a time. Those that lie in the way of a long one may be very many.
#[derive(Default)]
pub(super) struct RoomMaking {
    search: RoomSearch,
    victims: Vec<Victim>,
    /// Whether any of them must stay.
    staying: VictimWalk,
    /// Whether any of them was evicted.
    evicting: VictimWalk,
    /// Times that room was made and somebody else took it.
    attempts: usize,
    /// The same for its quota.
    pub(super) quota_attempts: usize,
}

impl RoomMaking {
    pub(super) fn new(blocks: u32) -> Self {
        Self { search: RoomSearch::new(blocks), ..Self::default() }
    }
}

/// A walk through victims, some in a step.
#[derive(Default)]
struct VictimWalk {
    done: usize,
    any: bool,
}

impl VictimWalk {
    /// Goes on with the next ones. At the end it says whether `is_so` was for any of them.
    fn go_on(&mut self, victims: &[Victim], is_so: impl FnOnce(&[Victim]) -> bool) -> Option<bool> {
        let end = victims.len().min(self.done + VICTIMS_A_STEP);
        if self.done < end {
            self.any |= is_so(&victims[self.done..end]);
            self.done = end;
        }
        (end == victims.len()).then_some(self.any)
    }
}

/// As long as it lives, nobody else gets what is freed.
struct DeferredReclaim<'store>(&'store dyn Store);

impl Drop for DeferredReclaim<'_> {
    fn drop(&mut self) {
        self.0.defer_reclaim(false);
    }
}

impl Cache {
    /// Takes room for the chunk, its record and its quota, or none of them. Nothing goes for it where the store can grow instead.
    /// `None`: there may be once this was called again, with the same `making`; others may go first.
    pub(super) fn find_room(
        self: &Arc<Self>,
        request: &SetRequest,
        making: &mut Option<Box<RoomMaking>>,
    ) -> Result<Option<WriteHandle>, StoreError> {
        let bytes = request.buffer.length_bytes() as u64;
        self.index.unreadable().map_or(Ok(()), Err)?;
        let held_bytes = Extent::blocks_for(bytes) as u64 * BLOCK_BYTES;
        self.writes.begin(held_bytes);
        let outcome = self.try_to_find_room(request, bytes, making);
        match outcome {
            Ok(Some(_)) => self.grow_ahead(),
            Ok(None) | Err(_) => self.writes.end(held_bytes),
        }
        self.note_placed(bytes);
        outcome
    }

    fn try_to_find_room(
        self: &Arc<Self>,
        request: &SetRequest,
        bytes: u64,
        making: &mut Option<Box<RoomMaking>>,
    ) -> Result<Option<WriteHandle>, StoreError> {
        // Before the first eviction: most chunks need none.
        let deferred = LazyCell::new(|| {
            self.store.defer_reclaim(true);
            DeferredReclaim(&*self.store)
        });
        let defer_reclaim = || _ = LazyCell::force(&deferred);
        let Some(quota) = self.reserve_quota(request, bytes, defer_reclaim, making)? else {
            return Ok(None);
        };
        let digest = request.digest;
        let allocated = self.allocate(bytes, digest, defer_reclaim, making);
        let outcome = allocated.and_then(|extent| {
            let Some(extent) = extent else { return Ok(None) };
            let record = self.reserve_record(request.key.len(), defer_reclaim);
            let record = record.inspect_err(|_| self.reclaim(extent))?;
            let stream = self.streams.of((digest, request.namespace, bytes), &self.index);
            Ok(Some(WriteHandle::new(self, digest, (extent, stream), record, quota)))
        });
        if !matches!(outcome, Ok(Some(_))) {
            self.release_quota(quota);
        }
        outcome
    }

    fn allocate(
        &self,
        bytes: u64,
        digest: Digest,
        defer_reclaim: impl Fn(),
        making: &mut Option<Box<RoomMaking>>,
    ) -> Result<Option<Extent>, StoreError> {
        let mut outcome = self.store.allocate(bytes, digest);
        let mut steps = 0;
        while is_final(&outcome) {
            if steps == STEPS_A_TURN {
                return Ok(None);
            }
            steps += 1;
            defer_reclaim();
            let room =
                making.get_or_insert_with(|| Box::new(RoomMaking::new(Extent::blocks_for(bytes))));
            match self.go_on_making_room(room) {
                None => {}
                Some(true) if room.attempts < ATTEMPTS => {
                    let attempts = room.attempts + 1;
                    **room = RoomMaking { attempts, ..RoomMaking::new(room.search.blocks) };
                    self.counters.foreground_evictions.add(1);
                    outcome = self.store.allocate(bytes, digest);
                }
                Some(_) => break,
            }
        }
        *making = None;
        match outcome {
            // There is room for it, if only somebody let go of theirs.
            Err(StoreError::Full { .. }) if self.store.fill().total_bytes >= bytes => {
                Err(StoreError::InUse { needed_bytes: bytes })
            }
            outcome => outcome.map(Some),
        }
    }

    fn reserve_record(
        &self,
        key_bytes: usize,
        defer_reclaim: impl Fn(),
    ) -> Result<Reservation, StoreError> {
        let mut outcome = self.index.reserve_record(key_bytes);
        let mut attempts = 0;
        if matches!(outcome, Err(StoreError::IndexUnreadable { .. })) {
            return outcome;
        }
        if let (true, Err(error)) = (is_final(&outcome), &outcome) {
            self.note_index_full(error);
        }
        // One at a time: the record of one chunk is room for that of another, if its key is no longer.
        while is_final(&outcome) && attempts < ATTEMPTS {
            defer_reclaim();
            if self.config.never_evicts {
                break;
            }
            let Some(has_evicted) = self.evict_coldest() else { break };
            if has_evicted {
                attempts += 1;
                outcome = self.index.reserve_record(key_bytes);
            }
        }
        outcome
    }

    /// Counts a SET for whose record another chunk goes.
    fn note_index_full(&self, error: &StoreError) {
        self.counters.index_full.add(1);
        self.log_limits.index_full.log(self.config.path(), 1, || {
            let fill = self.store.fill();
            format!(
                "{}: the index has no room for another record, so chunks go although {} of {} bytes for chunks are free: {error}",
                self.config.path().display(),
                fill.total_bytes.saturating_sub(fill.allocated_bytes),
                fill.total_bytes
            )
        });
    }

    /// Evicts chunks in their order until those that are left fit the capacity, as far as they can go.
    pub(crate) fn evict_beyond_capacity(&self) {
        let is_over = || {
            let fill = self.store.fill();
            fill.allocated_bytes > fill.total_bytes
        };
        while is_over() && self.evict_coldest().is_some() {}
    }

    /// Evicts the coldest chunk, if it can go, and says whether it did. None if there is none.
    pub(crate) fn evict_coldest(&self) -> Option<bool> {
        let victims = self.index.coldest(1);
        (!victims.is_empty()).then(|| self.evict_all(&victims))
    }

    /// Evicts chunks so that there is a run of `blocks` free, as cheaply as it can; says whether it did.
    pub(super) fn make_room(&self, blocks: u32) -> bool {
        let mut room = RoomMaking::new(blocks);
        loop {
            if let Some(made) = self.go_on_making_room(&mut room) {
                return made;
            }
        }
    }

    /// One step of it; `None` until it is known. It ends: each round goes on, takes a chunk that must stay out of the order of eviction,
    /// or another thread has evicted one.
    fn go_on_making_room(&self, room: &mut RoomMaking) -> Option<bool> {
        if self.config.never_evicts {
            return Some(false);
        }
        if room.victims.is_empty() {
            let now_s = self.index.now_s();
            let found =
                self.index.eviction_index.lock().for_room(&mut room.search, &*self.store, now_s);
            match found {
                Room::Found(victims) => room.victims = victims,
                Room::Unfinished => return None,
                Room::Nowhere => return Some(false),
            }
        }
        // All of them or none: what goes in vain is lost.
        let must_any_stay = room.staying.go_on(&room.victims, |some| self.must_any_stay(some))?;
        let has_evicted =
            !must_any_stay && room.evicting.go_on(&room.victims, |some| self.evict_all(some))?;
        (room.victims, room.staying, room.evicting) = Default::default();
        if has_evicted {
            // Where room is room wherever it is, it comes in parts.
            let is_enough =
                self.store.missing_blocks(room.search.blocks).is_none_or(|missing| missing == 0);
            return is_enough.then_some(true);
        }
        // Where one must stay, more may have to.
        self.must_any_stay(&self.index.coldest(LOOKED_AT));
        room.search.begin_anew();
        None
    }

    /// Looks at each of `victims`, so that those that must stay are not chosen again. Says whether there are any.
    fn must_any_stay(&self, victims: &[Victim]) -> bool {
        victims.iter().fold(false, |any, victim| self.index.must_stay(*victim) | any)
    }

    /// Room may have come for SETs that wait, of other paths too if it is that of a quota.
    pub(super) fn note_room(&self) {
        let note = |cache: &Self| {
            if cache.writes.note_room() {
                cache.wake_reactors();
            }
        };
        match self.index.quotas.are_there() {
            false => note(self),
            true => self.all_paths().iter().for_each(|path| note(path)),
        }
    }

    pub(super) fn evict_all(&self, victims: &[Victim]) -> bool {
        let extents = victims.iter().filter_map(|victim| self.index.evict(*victim));
        extents.fold(false, |_, (extent, unused_ms)| {
            self.counters.evicted.add(1);
            self.counters.evicted_unused_ms.add(unused_ms);
            self.counters.evicted_bytes.add(extent.size_bytes());
            self.reclaim(extent);
            true
        })
    }
}

/// Whether there is no room, and the store does not grow.
fn is_final<T>(outcome: &Result<T, StoreError>) -> bool {
    outcome.as_ref().is_err_and(|error| !matches!(error, StoreError::Growing { .. }))
}

#[cfg(test)]
mod tests;
