//! EXISTS: which of many keys are stored. Those are leased.

use super::leases::Footprint;
use super::lookup::Located;
use super::map::Index;
use super::shard::Shard;
use crate::key::{Digest, Hashed};

/// Keys that are looked up together: their cache lines fit into the first-level cache of a processor.
const ROUND: usize = 64;

/// One part in so many of the capacity may be leased: leases must not stop the store.
const LEASABLE_PART: u64 = 4;

struct Leasing {
    now_s: u32,
    until_s: u32,
    /// What may still be leased.
    room: Footprint,
    given: Footprint,
    /// Earlier leases that end later now, by their old end.
    renewed: Vec<(u32, Footprint)>,
    refused: u64,
}

impl<G, S> Index<G, S> {
    /// EXISTS: which keys are stored, all leased until the same moment, and how many leases were refused because too much is leased
    /// already. If it `stops_at_miss`, there are no answers behind the first miss. In rounds, so that the cold memory of a large
    /// store (buckets first, then records and entries) comes into the processor's cache for many keys at once instead of one
    /// after the other.
    pub(crate) fn contains_each<'key>(
        &self,
        keys: impl Iterator<Item = Hashed<'key>>,
        stops_at_miss: bool,
        now_ms: u64,
    ) -> (Vec<bool>, u64) {
        let mut keys = keys.peekable();
        let (mut stored, mut round) = (Vec::with_capacity(keys.size_hint().0), Vec::new());
        let mut leasing = self.begin_leasing();
        'rounds: while keys.peek().is_some() {
            round.clear();
            round.extend(keys.by_ref().take(ROUND));
            self.prefetch_each(&round);
            // Looked up again: the chunk may have gone since, and its slot may be another's.
            for Hashed { key, digest } in &round {
                let (_, mut shard) = self.shard(*digest);
                let is_it = |found: Located| self.table.holds(found.record, *digest, key);
                let found = shard.lookup.find(digest.tag(), is_it);
                let found =
                    found.filter(|found| !self.is_expired(&shard.entries[found.entry], now_ms));
                stored.push(found.is_some());
                match found {
                    Some(found) => lease(&mut shard, found, &mut leasing),
                    None => self.note_ghost(&shard, *digest),
                }
                if stops_at_miss && found.is_none() {
                    break 'rounds;
                }
            }
        }
        let refused = leasing.refused;
        self.end_leasing(leasing);
        (stored, refused)
    }

    fn begin_leasing(&self) -> Leasing {
        let now_s = self.now_s();
        let (room, until_s) = match self.config.lease_s {
            0 => (Footprint::default(), 0),
            // Rounded up: a lease is never shorter than it is said to be.
            lease_s => (self.leasable(now_s), now_s.saturating_add(lease_s).saturating_add(1)),
        };
        let given = Footprint::default();
        Leasing { now_s, until_s, room, given, renewed: Vec::new(), refused: 0 }
    }

    /// What may still be leased.
    pub(super) fn leasable(&self, now_s: u32) -> Footprint {
        self.one_in(LEASABLE_PART).without(self.leases.lock().sum(now_s))
    }

    /// One part in `parts` of what all chunks together may take.
    pub(super) fn one_in(&self, parts: u64) -> Footprint {
        let (bytes, slots) = (self.config.capacity_bytes(), self.table.assured_slots());
        Footprint { bytes: bytes / parts, slots: slots / parts }
    }

    fn end_leasing(&self, leasing: Leasing) {
        if leasing.given == Footprint::default() {
            return;
        }
        let mut leases = self.leases.lock();
        leases.add(leasing.until_s, leasing.given);
        leasing.renewed.into_iter().for_each(|(until_s, one)| leases.remove(until_s, one));
    }

    /// Bytes that are leased, and that are pinned.
    pub(crate) fn leased_and_pinned_bytes(&self) -> (u64, u64) {
        let leased = self.leases.lock().sum(self.now_s());
        (leased.bytes, self.pinned.lock().bytes)
    }

    /// Brings bucket, record and entry of each key into the processor's cache: of many at once instead of one after the other.
    pub(crate) fn prefetch_each(&self, keys: &[Hashed<'_>]) {
        keys.iter().for_each(|key| self.prefetch(key.digest));
        for Hashed { key, digest } in keys {
            let (_, shard) = self.shard(*digest);
            if let Some(found) = shard.lookup.find(digest.tag(), |_| true) {
                self.table.prefetch(found.record, key.len());
                shard.entries.prefetch(found.entry);
            }
        }
    }

    pub(super) fn prefetch(&self, digest: Digest) {
        self.shard(digest).1.lookup.prefetch(digest.tag());
    }
}

fn lease<G, S>(shard: &mut Shard<G, S>, found: Located, leasing: &mut Leasing) {
    let entry = &mut shard.entries[found.entry];
    if entry.leased_until_s >= leasing.until_s {
        return;
    }
    let chunk = entry.footprint();
    if entry.leased_until_s > leasing.now_s {
        match leasing.renewed.iter_mut().find(|(until_s, _)| *until_s == entry.leased_until_s) {
            Some((_, renewed)) => *renewed += chunk,
            None => leasing.renewed.push((entry.leased_until_s, chunk)),
        }
    } else if !leasing.room.fits(chunk) {
        leasing.refused += 1;
        return;
    } else {
        leasing.room -= chunk;
    }
    leasing.given += chunk;
    entry.leased_until_s = leasing.until_s;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::block::Extent;
    use crate::index::map::tests::{TestIndex, finish, index_with, reserved};
    use crate::index::table::ChunkFields;
    use crate::index::writing::EnteredSet;
    use crate::sync::atomic::Ordering;
    use crate::time::Clock;

    fn store(index: &TestIndex, key: &str, blocks: u32) {
        let digest = Digest::of(key);
        assert!(matches!(index.enter_set(digest, &key.into(), 0, 0), EnteredSet::Ready(_)));
        let extent = Extent { file: 0, first_block: 0, blocks };
        let content = ChunkFields {
            digest,
            namespace: 0,
            extent,
            length_bytes: extent.size_bytes(),
            generation: index.next_generation(),
            checksum: None,
            created_ms: 0,
        };
        assert_eq!(finish(index, digest, Some((reserved(index, key.len()), content))), 0);
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
            let (stored, refused) = index.contains_each(
                keys.iter().map(Hashed::of),
                false,
                index.config.clock.now_ms(),
            );
            assert!(stored.iter().all(|is_stored| *is_stored));
            refused
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
}
