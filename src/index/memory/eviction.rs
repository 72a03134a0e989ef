//! Eviction of single chunks, pins of users, and admission at the second SET.

use std::sync::Arc;

use super::map::{Gone, Index};
use super::shard::Shard;
use crate::base::block::Extent;
use crate::base::sync::atomic::Ordering;
use crate::evict::{Footprint, NamespaceId, PoolBlocks, PoolId, UNTIL_RELEASED_S, Victim};
use crate::format::record::use_parts;
use crate::index::memory::shard::entries::{ChunkEntry, Flag};
use crate::index::memory::shard::ghosts::Ghost;
use crate::key::{Digest, Hashed, Namespace};

/// One part in so many of the capacity may be pinned: a quarter of it is neither pinned nor leased.
const PINNABLE_PART: u64 = 2;

impl<S> Index<S> {
    /// The blocks of a pool with a quota. Others have the eviction index in between.
    pub(crate) fn blocks_of(&self, pool: PoolId) -> PoolBlocks {
        loop {
            let blocks = self.eviction_index.lock().blocks_of(pool, self.now_s());
            if let Some(blocks) = blocks {
                return blocks;
            }
        }
    }

    /// At most `count` chunks that go first.
    pub(crate) fn coldest(&self, count: usize) -> Vec<Victim> {
        self.eviction_index.lock().coldest(count, self.now_s())
    }

    /// Whether a victim must stay: it is still stored, and read, leased or pinned. Then it is not chosen again before that ends.
    pub(crate) fn must_stay(&self, victim: Victim) -> bool {
        let mut shard = self.shards[victim.chunk.shard as usize].0.lock();
        entry_of(&mut shard, victim).is_some_and(|entry| !self.can_go(entry))
    }

    /// Evicts a chunk, if it can go. Returns its extent, free now, and for how many ms it was not used.
    pub(crate) fn evict(&self, victim: Victim) -> Option<(Extent, u64)> {
        let mut shard = self.shards[victim.chunk.shard as usize].0.lock();
        let entry = entry_of(&mut shard, victim)?;
        let unused_ms = self.config.clock.now_ms().saturating_sub(use_parts(entry.last_use).0);
        let can_go = self.can_go(entry);
        let take_out = || self.take_out(&mut shard, victim.chunk.entry, Gone::Evicted);
        can_go.then(take_out).flatten().map(|extent| (extent, unused_ms))
    }

    fn can_go(&self, entry: &mut ChunkEntry) -> bool {
        let can_go = entry.can_go(self.now_s());
        if !can_go {
            self.exclude(entry);
        }
        can_go
    }

    /// Takes a chunk that must stay out of the eviction index.
    pub(crate) fn exclude(&self, entry: &mut ChunkEntry) {
        if let Some(node) = entry.node {
            entry.set(Flag::Excluded, true);
            self.eviction_index.lock().exclude(node, entry.stays_until_s());
        }
    }

    /// Enters a chunk into the eviction index again, if it need not stay any more.
    pub(crate) fn release(&self, entry: &mut ChunkEntry) {
        let until_s = entry.stays_until_s();
        if let Some(node) =
            entry.node.filter(|_| entry.is(Flag::Excluded) && until_s < UNTIL_RELEASED_S)
        {
            entry.set(Flag::Excluded, false);
            self.eviction_index.lock().release(node, until_s);
        }
    }

    /// Pins the stored ones of `keys`: they are neither evicted nor expire until they are unpinned, deleted, or the store is
    /// closed. Says of each key whether it is pinned now: not if it is not stored, or too much is pinned.
    pub(crate) fn pin_keys(&self, keys: &[Hashed<'_>], now_ms: u64) -> Vec<bool> {
        self.ask_stored(keys, now_ms, |shard, found| {
            let entry = &mut shard.entries[found.entry];
            if entry.is(Flag::Pinned) {
                return true;
            }
            let is_pinned = self.take_pinned(entry.footprint(), entry.namespace);
            entry.set(Flag::Pinned, is_pinned);
            if is_pinned {
                self.exclude(entry);
            }
            is_pinned
        })
    }

    /// Counts a chunk as pinned, if there is room for it.
    pub(crate) fn take_pinned(&self, chunk: Footprint, namespace: NamespaceId) -> bool {
        let mut pinned = self.pinned.lock();
        let fits = self.one_in(PINNABLE_PART).without(*pinned).fits(chunk);
        if fits {
            *pinned += chunk;
            if let Some(quota) = self.quota_of(namespace) {
                quota.pinned_bytes.fetch_add(chunk.bytes, Ordering::Relaxed);
            }
        }
        fits
    }

    /// Least capacity of which what is pinned now may be.
    pub(crate) fn least_bytes_of_pins(&self) -> u64 {
        self.pinned.lock().bytes * PINNABLE_PART
    }

    /// A chunk that counted as pinned does not any more.
    pub(crate) fn give_back_pinned(&self, entry: &ChunkEntry) {
        let chunk = entry.footprint();
        *self.pinned.lock() -= chunk;
        if let Some(quota) = self.quota_of(entry.namespace) {
            quota.pinned_bytes.fetch_sub(chunk.bytes, Ordering::Relaxed);
        }
    }

    /// Says of each key whether it was pinned.
    pub(crate) fn unpin_keys(&self, keys: &[Hashed<'_>]) -> Vec<bool> {
        let unpin = |&Hashed { key, digest, .. }: &Hashed<'_>| {
            let (_, mut shard) = self.shard(digest);
            let found = shard.find(digest).filter(|found| self.table.key_is(found.record, key));
            let Some(found) = found else { return false };
            let entry = &mut shard.entries[found.entry];
            let was_pinned = entry.set(Flag::Pinned, false);
            if was_pinned {
                self.give_back_pinned(entry);
                self.release(entry);
            }
            was_pinned
        };
        keys.iter().map(unpin).collect()
    }

    /// Whether `key` is to be stored: this is its SET number `sets_needed` at least, or it was evicted not long ago. If not, the SET
    /// is counted, and the stored chunk, which is outdated, goes: `Err` has its extent, if that is free.
    pub(crate) fn admits(
        &self,
        digest: Digest,
        key: &Arc<str>,
        sets_needed: u8,
    ) -> Result<(), Option<Extent>> {
        let (_, mut shard) = self.shard(digest);
        let since_bytes = self.evicted_bytes.load(Ordering::Relaxed);
        let ghost = match shard.ghosts.remove(digest) {
            Some(ghost) => ghost,
            None => {
                let namespace = Namespace::of(key);
                let named = (namespace.fingerprint(), || namespace.name());
                let namespace = self.eviction_index.lock().remember(named, false);
                Ghost::refused(digest, namespace, since_bytes)
            }
        };
        let admitted = ghost.was_evicted || ghost.refused_sets.saturating_add(1) >= sets_needed;
        let refused_sets = ghost.refused_sets.saturating_add(u8::from(!admitted));
        // Also if it is admitted: it is a ghost until it is stored.
        let since_mib = if admitted { ghost.since_mib } else { Ghost::mib(since_bytes) };
        // A key is stored or a ghost, never both.
        let outdated = if admitted { None } else { self.take_out_stored(&mut shard, digest) };
        self.remember(&mut shard, Ghost { refused_sets, since_mib, ..ghost });
        if admitted { Ok(()) } else { Err(outdated) }
    }

    /// Whether the key of a SET of `namespace`, whose batch was submitted at `submitted_ms`, is to be stored: it is stored, or
    /// remembered, or its window is admitted. If not, it is remembered.
    pub(crate) fn admits_by_share(
        &self,
        (digest, key): (Digest, &Arc<str>),
        namespace: u64,
        submitted_ms: u64,
    ) -> bool {
        let (_, mut shard) = self.shard(digest);
        if shard.find(digest).is_some() || shard.ghosts.get(digest).is_some() {
            return true;
        }
        let mut eviction_index = self.eviction_index.lock();
        if eviction_index.bonus(namespace).admits(submitted_ms) {
            return true;
        }
        let namespace = eviction_index.remember((namespace, || Namespace::of(key).name()), false);
        drop(eviction_index);
        let since_bytes = self.evicted_bytes.load(Ordering::Relaxed);
        self.remember(&mut shard, Ghost::refused(digest, namespace, since_bytes));
        false
    }

    /// Whether this is the key of a chunk that was evicted or not admitted, and is remembered.
    pub(crate) fn is_remembered(&self, digest: Digest) -> bool {
        self.shard(digest).1.ghosts.get(digest).is_some()
    }

    /// Fingerprints of the `count` largest namespaces, by what `weight` makes of fingerprint and bytes.
    pub(crate) fn largest_namespaces(
        &self,
        count: usize,
        weight: impl Fn(u64, u64) -> u64,
    ) -> Vec<u64> {
        self.eviction_index.lock().largest_namespaces(count, weight)
    }

    /// A SET is not going to write: the chunk stored under its key is outdated, so it goes.
    pub(crate) fn drop_outdated(&self, digest: Digest) -> Option<Extent> {
        self.take_out_stored(&mut self.shard(digest).1, digest)
    }

    fn take_out_stored(&self, shard: &mut Shard<S>, digest: Digest) -> Option<Extent> {
        let found = shard.find(digest)?;
        self.take_out(shard, found.entry, Gone::Removed)
    }

    /// A SET found its very bytes stored: that is a use.
    pub(crate) fn touch_stored(&self, digest: Digest, now_ms: u64) {
        let (_, mut shard) = self.shard(digest);
        if let Some(found) = shard.find(digest) {
            self.touch(&mut shard, found, now_ms);
            self.note_stored_again(&shard, found);
        }
    }
}

/// The entry of a victim, if it is still stored.
fn entry_of<S>(shard: &mut Shard<S>, victim: Victim) -> Option<&mut ChunkEntry> {
    let entry = &mut shard.entries[victim.chunk.entry];
    (!entry.is(Flag::Detached) && entry.node == Some(victim.node)).then_some(entry)
}

#[cfg(test)]
mod tests;
