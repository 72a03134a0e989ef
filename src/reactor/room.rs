//! Room for chunks: places within the capacity, made by evicting others.

use std::time::{Duration, Instant};

use super::Shared;
use super::operation::SetRequest;
use super::steps::Place;
use crate::error::StoreError;
use crate::evict::{Room, RoomSearch, Victim};
use crate::index::RecordState;
use crate::key::Digest;
use crate::store::{Extent, Store};

/// Times that chunks go for one. More than one is needed where another thread takes the room.
pub(super) const ATTEMPTS: usize = 64;

/// A SET for whose record no chunk had to go for so long is the first of a streak, which is told.
const STREAK_ENDS_AFTER: Duration = Duration::from_secs(60);

/// Chunks that are looked at together for being in use.
const LOOKED_AT: usize = 64;

/// Once begun, and as long as it lives, what is freed is there for who makes room.
struct HeldFreed<'store> {
    store: &'store dyn Store,
    is_begun: bool,
}

impl HeldFreed<'_> {
    /// Before the first eviction: most chunks need none.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.is_begun, true) {
            self.store.hold_freed(true);
        }
    }
}

impl Drop for HeldFreed<'_> {
    fn drop(&mut self) {
        if self.is_begun {
            self.store.hold_freed(false);
        }
    }
}

impl Shared {
    /// Room for the chunk and its record, or neither. Nothing goes for it where the store can grow instead.
    pub(super) fn find_place(&self, request: &SetRequest) -> Result<Place, StoreError> {
        let bytes = request.buffer.length_bytes() as u64;
        let mut held = HeldFreed { store: &*self.store, is_begun: false };
        let quota = self.reserve_quota(request, bytes, || held.begin())?;
        let outcome = self.allocate(bytes, request.digest, &mut held).and_then(|extent| match self
            .reserve_record(request.key.len(), &mut held)
        {
            Ok(record) => Ok(Place { extent, record, stands: false, quota }),
            Err(error) => {
                self.store.free(extent);
                Err(error)
            }
        });
        if outcome.is_err() {
            self.release_quota(quota);
        }
        if outcome.is_ok() {
            self.grow_ahead();
        }
        self.keeper.note_placed(bytes, || self.store.fill());
        outcome
    }

    fn allocate(
        &self,
        bytes: u64,
        digest: Digest,
        held: &mut HeldFreed<'_>,
    ) -> Result<Extent, StoreError> {
        let mut outcome = self.store.allocate(bytes, digest);
        for _ in 0..ATTEMPTS {
            if !is_final(&outcome) {
                return outcome;
            }
            held.begin();
            if !self.make_room(Extent::blocks_for(bytes)) {
                break;
            }
            self.counters.evicted_in_the_way.add(1);
            outcome = self.store.allocate(bytes, digest);
        }
        match outcome {
            // There is room for it, if only somebody let go of theirs.
            Err(StoreError::Full { .. }) if self.store.fill().total_bytes >= bytes => {
                Err(StoreError::Guarded { needed_bytes: bytes })
            }
            outcome => outcome,
        }
    }

    fn reserve_record(
        &self,
        key_bytes: usize,
        held: &mut HeldFreed<'_>,
    ) -> Result<RecordState, StoreError> {
        let mut outcome = self.index.table().reserve(key_bytes);
        let mut attempts = 0;
        if let (true, Err(error)) = (is_final(&outcome), &outcome) {
            self.note_index_full(error);
        }
        // One at a time: the record of one chunk is room for that of another, if its key is no longer.
        while is_final(&outcome) && attempts < ATTEMPTS {
            let victims = self.index.residents().coldest(1, self.index.now_s());
            if victims.is_empty() {
                break;
            }
            held.begin();
            if self.evict_all(&victims) {
                attempts += 1;
                outcome = self.index.table().reserve(key_bytes);
            }
        }
        outcome.map(RecordState::Reserved)
    }

    /// Counts a SET for whose record another chunk goes; tells the first of a streak of them.
    fn note_index_full(&self, error: &StoreError) {
        self.counters.index_full.add(1);
        let now = Instant::now();
        let before = self.index_full_at.lock().replace(now);
        if before.is_some_and(|before| now - before < STREAK_ENDS_AFTER) {
            return;
        }
        let fill = self.store.fill();
        log::warn!(
            "{}: the index has no room for another record, so chunks go although {} of {} bytes for chunks are free: {error}",
            self.config.path().display(),
            fill.total_bytes.saturating_sub(fill.allocated_bytes),
            fill.total_bytes
        );
    }

    /// Evicts chunks until a store that was opened with a smaller capacity than before is within it.
    pub(crate) fn fit_capacity(&self) {
        let is_over = || {
            let fill = self.store.fill();
            fill.allocated_bytes > fill.total_bytes
        };
        if !is_over() {
            return;
        }
        while is_over() {
            let victims = self.index.residents().coldest(LOOKED_AT, self.index.now_s());
            if victims.is_empty() {
                break;
            }
            for victim in victims {
                if is_over() {
                    self.evict_all(&[victim]);
                }
            }
        }
        self.store.settle();
    }

    /// Evicts chunks so that there is a run of `blocks` free, as cheaply as it can; says whether it did.
    pub(super) fn make_room(&self, blocks: u32) -> bool {
        // It ends: each turn goes on, takes a chunk that must stay out of the order of eviction, or another thread has evicted one.
        let mut search = RoomSearch::new(blocks);
        loop {
            let residents = self.index.residents();
            let victims = match residents.for_room(&mut search, &*self.store, self.index.now_s()) {
                Room::Found(victims) => victims,
                Room::Unfinished => continue,
                Room::Nowhere => return false,
            };
            // All of them or none: what goes in vain is lost.
            if self.count_staying(&victims) == 0 && self.evict_all(&victims) {
                return true;
            }
            // Where one must stay, more may have to.
            self.count_staying(&residents.coldest(LOOKED_AT, self.index.now_s()));
        }
    }

    /// Looks at each of `victims`, so that those that must stay are not chosen again, and counts these.
    fn count_staying(&self, victims: &[Victim]) -> usize {
        victims.iter().filter(|victim| !self.index.can_go(**victim)).count()
    }

    /// Evicts what can go; says whether anything did.
    pub(super) fn evict_all(&self, victims: &[Victim]) -> bool {
        let places = victims.iter().filter_map(|victim| self.index.evict(*victim));
        places.fold(false, |_, extent| {
            self.counters.evicted.add(1);
            self.counters.evicted_bytes.add(extent.size_bytes());
            self.store.free(extent);
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
