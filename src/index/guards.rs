//! Which chunks may be evicted and which must stay: eviction, pins of users, admission.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::entries::Entry;
use super::ghosts::Ghost;
use super::leases::Guarded;
use super::map::{Gone, Index};
use super::shard::Shard;
use crate::block::Extent;
use crate::evict::{NamespaceOf, UNTIL_RELEASED_S, Victim};
use crate::key::{Digest, Keyed, Namespace};

/// Most of the capacity that may be pinned: with what may be leased, a quarter of the store can still go.
const PINNABLE_PART: u64 = 2;

impl<G, S> Index<G, S> {
    /// Whether a chunk chosen to go must stay: it is still held, and somebody reads it, has leased or pinned it. Then it is not
    /// chosen again before that ends.
    pub(crate) fn must_stay(&self, victim: Victim) -> bool {
        let mut shard = self.shards[victim.chunk.shard as usize].0.lock();
        let entry = &shard.entries[victim.chunk.entry];
        let is_there = !entry.detached && entry.node == Some(victim.node);
        is_there && !self.can_go_from(&mut shard, victim)
    }

    /// Evicts a chunk, if it can go. Returns its place, free now.
    pub(crate) fn evict(&self, victim: Victim) -> Option<Extent> {
        let mut shard = self.shards[victim.chunk.shard as usize].0.lock();
        let can_go = self.can_go_from(&mut shard, victim);
        if can_go { self.take_out(&mut shard, victim.chunk.entry, Gone::Evicted) } else { None }
    }

    fn can_go_from(&self, shard: &mut Shard<G, S>, victim: Victim) -> bool {
        let entry = &mut shard.entries[victim.chunk.entry];
        if entry.detached || entry.node != Some(victim.node) {
            return false;
        }
        let can_go = entry.can_go(self.now_s());
        if !can_go {
            self.exclude(entry);
        }
        can_go
    }

    /// Takes a chunk that must stay out of the order of eviction.
    pub(super) fn exclude(&self, entry: &mut Entry) {
        if let Some(node) = entry.node {
            entry.excluded = true;
            self.eviction_index.exclude(node, entry.stays_until_s());
        }
    }

    /// A chunk may have to stay no longer: then it is in the order of eviction again.
    pub(super) fn release(&self, entry: &mut Entry) {
        let until_s = entry.stays_until_s();
        if let Some(node) = entry.node.filter(|_| entry.excluded && until_s < UNTIL_RELEASED_S) {
            entry.excluded = false;
            self.eviction_index.release(node, until_s);
        }
    }

    /// Pins what is held of `keys`: it is neither evicted nor expires until it is unpinned, deleted, or the store is closed.
    /// Says of each key whether it is pinned now: not if it is not held, or too much is pinned.
    pub(crate) fn pin_keys<K: Keyed>(&self, keys: &[K], now_ms: u64) -> Vec<bool> {
        let pin = |key: &K| {
            let digest = key.digest();
            let (_, mut shard) = self.shard(digest);
            let found = shard.find(digest).filter(|found| {
                self.table.key_is(found.record, key.key())
                    && !self.is_expired(&shard.entries[found.entry], now_ms)
            });
            let Some(found) = found else { return false };
            let entry = &mut shard.entries[found.entry];
            if entry.pinned {
                return true;
            }
            entry.pinned = self.take_pinned(entry.guarded());
            if entry.pinned {
                self.exclude(entry);
            }
            entry.pinned
        };
        keys.iter().map(pin).collect()
    }

    /// Takes what a chunk needs of what may be pinned, if it is left.
    pub(super) fn take_pinned(&self, chunk: Guarded) -> bool {
        let mut pinned = self.pinned.lock();
        let fits = Guarded::part_of(self.all(), PINNABLE_PART).without(*pinned).fits(chunk);
        if fits {
            *pinned += chunk;
        }
        fits
    }

    /// Takes pins back. Says of each key whether it was pinned.
    pub(crate) fn unpin_keys<K: Keyed>(&self, keys: &[K]) -> Vec<bool> {
        let unpin = |key: &K| {
            let digest = key.digest();
            let (_, mut shard) = self.shard(digest);
            let found =
                shard.find(digest).filter(|found| self.table.key_is(found.record, key.key()));
            let Some(found) = found else { return false };
            let entry = &mut shard.entries[found.entry];
            let was_pinned = std::mem::take(&mut entry.pinned);
            if was_pinned {
                *self.pinned.lock() -= entry.guarded();
                self.release(entry);
            }
            was_pinned
        };
        keys.iter().map(unpin).collect()
    }

    /// Whether `key` is to be stored although it has to be asked for `sets_needed` times: it has been, or it was held not
    /// long ago. If not, it is remembered that it was asked for, and what is held of it goes, as it is not what was to be
    /// stored: `Err` has its place, if that is free.
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
                let name = || Namespace::of(key).name();
                let fingerprint = Namespace::of(key).fingerprint();
                let namespace =
                    self.eviction_index.remember(&NamespaceOf { fingerprint, name: &name });
                Ghost { digest, namespace, since_bytes, refused_sets: 0, was_held: false }
            }
        };
        let admitted = ghost.was_held || ghost.refused_sets.saturating_add(1) >= sets_needed;
        let refused_sets = ghost.refused_sets.saturating_add(u8::from(!admitted));
        // Also if it is admitted: it counts as remembered until it is held.
        let since_bytes = if admitted { ghost.since_bytes } else { since_bytes };
        // A key is held or remembered, never both.
        let outdated = if admitted { None } else { self.take_out_held(&mut shard, digest) };
        self.remember(&mut shard, Ghost { refused_sets, since_bytes, ..ghost });
        if admitted { Ok(()) } else { Err(outdated) }
    }

    /// A SET that is not going to write: what is held of its key is not what was to be stored any more, so it goes.
    pub(crate) fn drop_outdated(&self, digest: Digest) -> Option<Extent> {
        self.take_out_held(&mut self.shard(digest).1, digest)
    }

    fn take_out_held(&self, shard: &mut Shard<G, S>, digest: Digest) -> Option<Extent> {
        let found = shard.find(digest)?;
        self.take_out(shard, found.entry, Gone::Removed)
    }

    /// A SET found its very bytes held: that is a use.
    pub(crate) fn touch_held(&self, digest: Digest, now_ms: u64) {
        let (_, mut shard) = self.shard(digest);
        if let Some(found) = shard.find(digest) {
            self.touch(&mut shard, found, now_ms);
        }
    }
}
