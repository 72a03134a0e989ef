//! EXISTS: which of many keys are stored. Those are leased.

use super::map::Index;
use super::shard::Shard;
use crate::base::sync::atomic::Ordering;
use crate::evict::{Footprint, NamespaceId, Quota};
use crate::index::memory::shard::lookup::Located;
use crate::key::{Digest, Hashed};

/// Keys that are looked up together: their cache lines fit into the first-level cache of a processor.
const ROUND: usize = 64;

/// One part in so many of the capacity may be leased: leases must not stop the store.
const LEASABLE_PART: u64 = 4;

/// What the leases of one batch have in common.
struct Leasing {
    now_s: u32,
    until_s: u32,
    limit: Footprint,
    refused: u64,
}

/// What EXISTS finds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Lookups {
    /// Of each key whether it is stored.
    pub(crate) stored: Vec<bool>,
    /// Leases that were refused because too much is leased already.
    pub(crate) leases_refused: u64,
    /// Keys of chunks that are stored in another variant than is asked for: misses.
    pub(crate) other_variants: u64,
}

impl Lookups {
    pub(crate) fn misses(keys: usize) -> Self {
        Self { stored: vec![false; keys], ..Self::default() }
    }
}

impl<S> Index<S> {
    /// EXISTS: which keys are stored, all leased until the same moment. If it `stops_at_miss`, there are no answers behind the first miss. In rounds, so that the cold memory of a large
    /// store (buckets first, then records and entries) comes into the processor's cache for many keys at once instead of one
    /// after the other.
    pub(crate) fn contains_each<'key>(
        &self,
        keys: impl Iterator<Item = Hashed<'key>>,
        stops_at_miss: bool,
        now_ms: u64,
    ) -> Lookups {
        let mut keys = keys.peekable();
        let (mut stored, mut round) = (Vec::with_capacity(keys.size_hint().0), Vec::new());
        let mut other_variants = 0;
        let mut leasing = self.begin_leasing();
        'rounds: while keys.peek().is_some() {
            round.clear();
            round.extend(keys.by_ref().take(ROUND));
            self.prefetch_each(&round);
            // Looked up again: the chunk may have gone since, and its slot may be another's.
            for Hashed { key, digest, variant } in &round {
                let (_, mut shard) = self.shard(*digest);
                let is_it = |found: Located| self.table.holds(found.record, *digest, key);
                let found = shard.lookup.find(digest.tag(), is_it);
                let found =
                    found.filter(|found| !self.is_expired(&shard.entries[found.entry], now_ms));
                let is_hit = match found {
                    Some(found) if shard.entries[found.entry].meets(*variant) => {
                        self.lease(&mut shard, found, &mut leasing);
                        true
                    }
                    Some(_) => {
                        other_variants += 1;
                        false
                    }
                    None => {
                        self.note_ghost(&shard, *digest);
                        false
                    }
                };
                stored.push(is_hit);
                if stops_at_miss && !is_hit {
                    break 'rounds;
                }
            }
        }
        Lookups { stored, leases_refused: leasing.refused, other_variants }
    }

    fn begin_leasing(&self) -> Leasing {
        let now_s = self.now_s();
        let (limit, until_s) = match self.config.lease_s {
            0 => (Footprint::default(), 0),
            // Rounded up: a lease is never shorter than it is said to be.
            lease_s => {
                (self.one_in(LEASABLE_PART), now_s.saturating_add(lease_s).saturating_add(1))
            }
        };
        Leasing { now_s, until_s, limit, refused: 0 }
    }

    /// Whether a chunk of this namespace may be leased beside what is leased.
    pub(crate) fn is_leasable(&self, chunk: Footprint, namespace: NamespaceId) -> bool {
        let now_s = self.now_s();
        let fits_quota = |quota: &Quota| {
            let leased = quota.leases.lock().sum(now_s);
            leasable_of(quota).without(leased).fits(chunk)
        };
        self.leasable(now_s).fits(chunk)
            && self.quota_of(namespace).as_deref().is_none_or(fits_quota)
    }

    /// What may still be leased.
    pub(crate) fn leasable(&self, now_s: u32) -> Footprint {
        self.one_in(LEASABLE_PART).without(self.leases.lock().sum(now_s))
    }

    /// Leases a chunk. It is booked at once: others lease at the same time.
    fn lease(&self, shard: &mut Shard<S>, found: Located, leasing: &mut Leasing) {
        let entry = &mut shard.entries[found.entry];
        if entry.leased_until_s >= leasing.until_s {
            return;
        }
        let (chunk, ends_s) = (entry.footprint(), (entry.leased_until_s, leasing.until_s));
        let now_s = leasing.now_s;
        let quota = self.quota_of(entry.namespace);
        let fits_quota =
            |quota: &Quota| quota.leases.lock().lease(chunk, ends_s, now_s, leasable_of(quota));
        let is_leased = self.leases.lock().lease(chunk, ends_s, now_s, leasing.limit);
        if is_leased && quota.as_deref().is_none_or(fits_quota) {
            entry.leased_until_s = leasing.until_s;
            return;
        }
        if is_leased {
            self.leases.lock().remove(leasing.until_s, chunk);
        }
        leasing.refused += 1;
    }

    /// Chunks can have so many bytes.
    pub(crate) fn set_usable_bytes(&self, bytes: u64) {
        self.usable_bytes.store(bytes, Ordering::Relaxed);
    }

    /// One part in `parts` of what all chunks together may take.
    pub(crate) fn one_in(&self, parts: u64) -> Footprint {
        let (bytes, slots) =
            (self.usable_bytes.load(Ordering::Relaxed), self.table.assured_slots());
        Footprint { bytes: bytes / parts, slots: slots / parts }
    }

    /// Bytes that are leased, and that are pinned.
    pub(crate) fn leased_and_pinned_bytes(&self) -> (u64, u64) {
        let leased = self.leases.lock().sum(self.now_s());
        (leased.bytes, self.pinned.lock().bytes)
    }

    /// Brings bucket, record and entry of each key into the processor's cache: of many at once instead of one after the other.
    pub(crate) fn prefetch_each(&self, keys: &[Hashed<'_>]) {
        keys.iter().for_each(|key| self.prefetch(key.digest));
        for Hashed { key, digest, .. } in keys {
            let (_, shard) = self.shard(*digest);
            if let Some(found) = shard.lookup.find(digest.tag(), |_| true) {
                self.table.prefetch(found.record, key.len());
                shard.entries.prefetch(found.entry);
            }
        }
    }

    pub(crate) fn prefetch(&self, digest: Digest) {
        self.shard(digest).1.lookup.prefetch(digest.tag());
    }
}

/// What may be leased of a namespace with a quota: a quarter of what is not pinned of it.
fn leasable_of(quota: &Quota) -> Footprint {
    let limit_bytes = quota.limit_bytes().unwrap_or(u64::MAX);
    let free_bytes = limit_bytes.saturating_sub(quota.pinned_bytes.load(Ordering::Relaxed));
    Footprint { bytes: free_bytes / LEASABLE_PART, slots: u64::MAX }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::base::block::Extent;
    use crate::base::time::Clock;
    use crate::index::memory::map::tests::{TestIndex, index_with, store_in};

    fn store(index: &TestIndex, key: &str, blocks: u32) {
        store_in(index, Digest::of(key), key, Extent { file: 0, first_block: 0, blocks });
    }

    /// Leases are counted once, however often and in whatever groups they are renewed, and a quarter of the capacity at most.
    #[test]
    fn a_renewed_lease_takes_no_more_and_a_new_one_has_to_fit() {
        let (_directory, mut index) = index_with(None);
        let now_ms = Arc::new(AtomicU64::new(5000));
        index.config.clock = Clock::by_hand(Arc::clone(&now_ms));
        [("a", 1), ("b", 2), ("c", 4)]
            .into_iter()
            .for_each(|(key, blocks)| store(&index, key, blocks));
        let leased_blocks = || index.leases.lock().sum(index.now_s()).bytes / 4096;
        let refused = |keys: &[&str], at_s: u32| {
            now_ms.store(u64::from(at_s) * 1000, Ordering::SeqCst);
            let now_ms = index.config.clock.now_ms();
            let found = index.contains_each(keys.iter().map(Hashed::of), false, now_ms);
            assert!(found.stored.iter().all(|is_stored| *is_stored));
            found.leases_refused
        };
        assert_eq!(index.one_in(4).bytes, index.config.capacity_bytes() / 4);
        assert_eq!((refused(&["a", "c"], 5), leased_blocks()), (0, 5));
        assert_eq!((refused(&["b"], 6), leased_blocks()), (0, 7));
        assert_eq!((refused(&["a", "b", "c"], 7), leased_blocks()), (0, 7));
        // Where no more may be leased, renewing goes on.
        let room = index.leasable(index.now_s());
        let ends_s = 7 + index.config.lease_s + 1;
        index.leases.lock().add(ends_s, room);
        assert_eq!(refused(&["a", "b", "c"], 8), 0);
        index.leases.lock().remove(ends_s, room);
        assert_eq!(leased_blocks(), 7);
        // One that ends now has ended.
        let end_s = 8 + index.config.lease_s + 1;
        now_ms.store(u64::from(end_s) * 1000, Ordering::SeqCst);
        let room = index.leasable(index.now_s());
        index.leases.lock().add(end_s + 1, room);
        assert_eq!(refused(&["a"], end_s), 1);
    }

    /// Each of several batches at a time takes what is left then, not what was left when it began.
    #[test]
    fn batches_at_the_same_time_lease_a_quarter_together() {
        let (_directory, index) = index_with(None);
        let blocks = (index.one_in(LEASABLE_PART).bytes / 4096) as u32;
        [("a", blocks), ("b", blocks)].iter().for_each(|(key, blocks)| store(&index, key, *blocks));
        let mut inner = None;
        let lookup =
            |key: &'static str| index.contains_each([Hashed::of(key)].into_iter(), false, 0);
        let keys = std::iter::repeat_n("none", ROUND).chain(std::iter::from_fn(|| {
            inner.is_none().then(|| {
                inner = Some(lookup("a"));
                "b"
            })
        }));
        let outer = index.contains_each(keys.map(Hashed::of), false, 0);
        let refused = (outer.leases_refused, inner.unwrap().leases_refused);
        assert_eq!(refused, (1, 0), "one of them is leased");
        assert_eq!(index.leases.lock().sum(index.now_s()).bytes, u64::from(blocks) * 4096);
    }
}
