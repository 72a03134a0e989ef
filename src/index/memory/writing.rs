//! Keys that are being written: the claim of a SET, the operations that wait behind it, and the entry of its chunk.
//!
//! Order per key: while a SET is in flight, later SETs of its key queue up behind it and resume in order when it is done. A GET
//! reads the stored chunk. A DELETE answers at once: it takes out the stored chunk, and leaves a mark in the queue so that the SETs
//! before it are never published.

use std::sync::Arc;

use super::map::{Gone, Index};
use super::shard::{Pending, Shard};
use crate::base::block::Extent;
use crate::base::buffer::Variant;
use crate::base::sync::atomic::Ordering;
use crate::config::Eviction;
use crate::evict::ChunkRef;
use crate::format::record::{use_parts, use_word};
use crate::index::file::table::{ChunkFields, Reservation};
use crate::index::memory::shard::entries::{ChunkEntry, Flag};
use crate::index::memory::shard::lookup::Located;
use crate::key::{Digest, Namespace};

/// Outcome of [`Index::enter_set`].
pub(crate) enum ClaimOutcome<S> {
    Ready(S),
    /// Another key has this digest; the key is in quarantine from now on.
    Collides(S),
    Quarantined(S),
    /// It waits behind a SET of the same key and comes back from [`Index::finish_set`].
    Waits,
}

/// What is stored under a key, by its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredContent {
    pub(crate) length_bytes: u64,
    pub(crate) checksum: Option<u64>,
    pub(crate) variant: Variant,
    /// Its bytes are what its record says. If not, they may be damaged: it must not pass for a copy of other bytes.
    pub(crate) is_verified: bool,
}

impl<S> Index<S> {
    /// SET: claims the right to write `key`. Refused if another key has its digest, and for an hour after that.
    pub(crate) fn enter_set(
        &self,
        digest: Digest,
        key: &Arc<str>,
        now_ms: u64,
        request: S,
    ) -> ClaimOutcome<S> {
        if self.quarantine.holds(key, now_ms) {
            return ClaimOutcome::Quarantined(request);
        }
        let (_, mut shard) = self.shard(digest);
        if let Some(pending) = shard.pending_mut(digest) {
            if pending.key == *key {
                pending.sets.push_back(request);
                return ClaimOutcome::Waits;
            }
            self.quarantine.add(key, now_ms);
            return ClaimOutcome::Collides(request);
        }
        let taken = shard.find(digest);
        if taken.is_some_and(|found| !self.is_of(digest, found.record, key)) {
            self.quarantine.add(key, now_ms);
            return ClaimOutcome::Collides(request);
        }
        shard.insert_pending(Pending::new(digest, Arc::clone(key)));
        ClaimOutcome::Ready(request)
    }

    /// The chunk stored under `digest`, for a SET that has claimed its key.
    pub(crate) fn stored(&self, digest: Digest) -> Option<StoredContent> {
        let shard = self.shard(digest).1;
        let found = shard.find(digest)?;
        let entry = &shard.entries[found.entry];
        if self.has_lost_its_record(digest, found.record) {
            return None;
        }
        let generation = self.table.read(found.record).generation;
        let is_unverified = (self.verify_from.load(Ordering::Relaxed)..self.first_generation)
            .contains(&generation)
            || generation < self.untrusted_before.load(Ordering::Relaxed)
                && !entry.is(Flag::WasRead);
        Some(StoredContent {
            length_bytes: u64::from(entry.length_bytes),
            checksum: entry.checksum(),
            variant: entry.variant(),
            is_verified: !is_unverified,
        })
    }

    /// Whether the SET that is writing under `digest` is for nobody: its key is deleted already.
    pub(crate) fn is_doomed(&self, digest: Digest) -> bool {
        self.shard(digest).1.pending_mut(digest).is_some_and(|pending| pending.is_deleted())
    }

    /// Writes the record of a chunk that its key does not find yet, unless it is deleted already.
    pub(crate) fn record_early(
        &self,
        reservation: &mut Reservation,
        content: &ChunkFields,
        key: &str,
    ) {
        let mut shard = self.shard(content.digest).1;
        if let Some(pending) = shard.pending_mut(content.digest)
            && !pending.is_deleted()
        {
            pending.written = Some(self.table.publish(reservation, content, key));
            reservation.is_written = true;
        }
    }

    /// Takes back the record of a SET that fails: from here on the slots may be another's.
    pub(crate) fn withdraw(&self, digest: Digest, reservation: Reservation) {
        let mut shard = self.shard(digest).1;
        if let Some(pending) = shard.pending_mut(digest) {
            pending.written = None;
        }
        self.table.release(reservation);
    }

    /// Makes the record of the chunk stored under `digest` invalid for the next open; the entry stays. False if there is none.
    pub(crate) fn invalidate(&self, digest: Digest) -> bool {
        let shard = self.shard(digest).1;
        shard.find(digest).map(|found| self.table.invalidate(found.record)).is_some()
    }

    /// A SET that had claimed its key is done, with or without a chunk to publish. Returns the next one of its key, and the extents
    /// that are free now.
    pub(crate) fn finish_set(
        &self,
        digest: Digest,
        publication: Option<(Reservation, ChunkFields)>,
    ) -> (Option<S>, Vec<Extent>) {
        let (number, mut shard) = self.shard(digest);
        let shard = &mut *shard;
        let is_it = |other: &Pending<S>| other.digest == digest;
        let Ok(pending) = shard.pending.find_entry(digest.table_hash(), is_it) else {
            debug_assert!(false, "a SET finished that had not been entered");
            return (None, Vec::new());
        };
        let (mut pending, _) = pending.remove();
        pending.written = None;
        let mut freed = Vec::new();
        if let Some(publication) = publication {
            self.enter_chunk((number, shard), publication, &pending, &mut freed);
        }
        pending.deleted_behind = pending.deleted_behind.filter(|set| *set != pending.set);
        let next_set = pending.sets.pop_front();
        pending.set += 1;
        if next_set.is_some() {
            shard.insert_pending(pending);
        }
        (next_set, freed)
    }

    /// Makes a written chunk an entry that its key finds, unless it was deleted meanwhile. Readers of the chunk that it replaces
    /// are not disturbed.
    fn enter_chunk(
        &self,
        (shard_number, shard): (u32, &mut Shard<S>),
        (reservation, content): (Reservation, ChunkFields),
        pending: &Pending<S>,
        freed: &mut Vec<Extent>,
    ) {
        let ChunkFields { digest, extent, length_bytes, checksum, variant, .. } = content;
        let key = &pending.key;
        let content_of = (checksum, variant);
        let mut entry = ChunkEntry::new(digest, extent, length_bytes, content_of, key.len());
        entry.last_use = use_word(content.created_ms, 0);
        debug_assert_eq!(entry.extent(), extent, "an extent is as long as its chunk");
        if pending.is_deleted() {
            self.table.release(reservation);
            freed.push(extent);
            return;
        }
        let record = match reservation.is_written {
            false => self.table.publish(&reservation, &content, key),
            true => reservation.slots[0],
        };
        let mut replaced_ms = 0;
        // The younger record is there before the older one goes: a kill in between leaves both, and the younger wins.
        if let Some(old) = shard.find(digest) {
            let old_entry = shard.entries[old.entry];
            freed.extend(self.take_out(shard, old.entry, Gone::Removed));
            self.inherit(&mut entry, &old_entry);
            replaced_ms = use_parts(old_entry.last_use).0;
        }
        let uses = self.uses_of_ghost(shard, digest);
        entry.last_use = use_word(content.created_ms, uses);
        let number = shard.entries.insert(entry);
        let chunk = ChunkRef { shard: shard_number, entry: number };
        let namespace = (content.namespace, || Namespace::of(key).name());
        let (node, namespace) = self.eviction_index.lock().enter(chunk, extent, namespace, uses);
        let entry = &mut shard.entries[number];
        (entry.node, entry.namespace) = (Some(node), namespace);
        if entry.is(Flag::Pinned) {
            self.exclude(entry);
        }
        if entry.leased_until_s > 0 {
            self.leases.lock().add(entry.leased_until_s, entry.footprint());
            if let Some(quota) = self.quota_of(entry.namespace) {
                quota.leases.lock().add(entry.leased_until_s, entry.footprint());
            }
        }
        // The later time as a use by a clock that is behind; see `touch`.
        if replaced_ms > content.created_ms || uses > 0 {
            shard.note_use(number, use_word(replaced_ms.max(content.created_ms), uses));
        }
        shard.link(Located { entry: number, record });
        self.note_stored(shard, key, length_bytes);
        self.count(1, length_bytes as i64);
    }

    /// A key that is stored is no ghost any more. Returns the uses that its chunk begins with: those it had, and this one.
    fn uses_of_ghost(&self, shard: &mut Shard<S>, digest: Digest) -> u16 {
        let Some(ghost) = shard.ghosts.remove(digest) else { return 0 };
        self.note_return(ghost);
        match self.config.eviction {
            Eviction::Adaptive => u16::from(ghost.uses) + 1,
            _ => 0,
        }
    }

    /// A pin or lease is of the key: it goes from a chunk, which is taken out, to the one that replaces it, within the limits.
    fn inherit(&self, entry: &mut ChunkEntry, old: &ChunkEntry) {
        let footprint = entry.footprint();
        let is_pinned = old.is(Flag::Pinned) && self.take_pinned(footprint, old.namespace);
        entry.set(Flag::Pinned, is_pinned);
        let is_leased = old.leased_until_s > self.now_s();
        let fits = || old.footprint().fits(footprint) || self.is_leasable(footprint, old.namespace);
        if is_leased && fits() {
            entry.leased_until_s = old.leased_until_s;
        }
    }

    /// Takes all waiting SETs out of the queues; none will resume any more.
    pub(crate) fn abandon_waiting(&self) -> Vec<S> {
        let mut sets = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            sets.extend(shard.pending.drain().flat_map(|pending| pending.sets));
        }
        sets
    }
}

#[cfg(test)]
mod tests;
