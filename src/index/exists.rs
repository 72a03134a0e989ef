//! EXISTS and its kin: which of many keys are held. What is found is leased.

use std::sync::atomic::Ordering;

use super::lookup::Found;
use super::map::Index;
use super::shard::Shard;
use crate::key::{Digest, Keyed};

/// Keys that EXISTS looks up together: what they touch fits into the first-level cache of a processor.
const ROUND: usize = 64;

/// Most of the capacity that may be leased: promises must not stop the store.
const LEASABLE_PART: u64 = 4;

/// The leases that one batch gives.
struct Leasing {
    now_s: u32,
    until_s: u32,
    /// Bytes of the data files that may still be leased.
    room_bytes: u64,
    given_bytes: u64,
    /// Leases given before that are longer now: their end, and bytes.
    renewed: Vec<(u32, u64)>,
    refused: u64,
}

impl<G, S> Index<G, S> {
    /// EXISTS: which keys are held, and how many leases were refused because too much is leased already. In rounds, so
    /// that what is cold in a large store (buckets first, then records and entries) comes into the processor's cache for
    /// many keys at once instead of one after the other.
    pub(crate) fn contains_each<K: Keyed>(&self, keys: &[K], now_ms: u64) -> (Vec<bool>, u64) {
        self.look(keys, now_ms, false)
    }

    /// How many leading keys are held, leased until the same moment. Stops at the first that is not.
    pub(crate) fn contains_prefix<K: Keyed>(&self, keys: &[K], now_ms: u64) -> (usize, u64) {
        let (held, refused) = self.look(keys, now_ms, true);
        (held.iter().take_while(|held| **held).count(), refused)
    }

    fn look<K: Keyed>(&self, keys: &[K], now_ms: u64, stops_at_miss: bool) -> (Vec<bool>, u64) {
        let mut held = Vec::with_capacity(keys.len());
        let mut digests = Vec::with_capacity(ROUND.min(keys.len()));
        let mut leasing = self.begin_leasing(now_ms);
        'rounds: for keys in keys.chunks(ROUND) {
            digests.clear();
            digests.extend(keys.iter().map(Keyed::digest));
            self.prefetch_each(keys, &digests);
            // Looked up again: what was found may have gone since, and its slot may be another's.
            for (key, digest) in keys.iter().zip(&digests) {
                let (_, mut shard) = self.shard(*digest);
                let is_it = |found: Found| self.table.holds(found.record, *digest, key.key());
                let found = shard.lookup.find(digest.tag(), is_it);
                match found.filter(|found| !self.is_expired(&shard, *found, now_ms)) {
                    Some(found) => {
                        lease(&mut shard, found, &mut leasing);
                        held.push(true);
                    }
                    None => {
                        self.note_ghost(&shard, *digest);
                        held.push(false);
                        if stops_at_miss {
                            break 'rounds;
                        }
                    }
                }
            }
        }
        let refused = leasing.refused;
        self.end_leasing(leasing);
        (held, refused)
    }

    fn begin_leasing(&self, now_ms: u64) -> Leasing {
        let now_s = (now_ms / 1000) as u32;
        let room_bytes = match self.rules.lease_s {
            0 => 0,
            _ => self.leasable_bytes(now_s),
        };
        // Rounded up: a lease is never shorter than it is said to be.
        let until_s = match self.rules.lease_s {
            0 => 0,
            lease_s => now_s.saturating_add(lease_s).saturating_add(1),
        };
        Leasing { now_s, until_s, room_bytes, given_bytes: 0, renewed: Vec::new(), refused: 0 }
    }

    /// Bytes of the data files that may still be leased.
    fn leasable_bytes(&self, now_s: u32) -> u64 {
        (self.rules.capacity_bytes / LEASABLE_PART).saturating_sub(self.leases.lock().bytes(now_s))
    }

    /// Whether what replaces a leased chunk may be leased in its place.
    pub(super) fn can_lease(&self, bytes: u64, now_ms: u64) -> bool {
        bytes <= self.leasable_bytes((now_ms / 1000) as u32)
    }

    fn end_leasing(&self, leasing: Leasing) {
        if leasing.given_bytes == 0 {
            return;
        }
        let mut leases = self.leases.lock();
        leases.add(leasing.until_s, leasing.given_bytes);
        leasing.renewed.into_iter().for_each(|(until_s, bytes)| leases.remove(until_s, bytes));
    }

    /// Bytes that are leased, and that are pinned.
    pub(crate) fn guarded_bytes(&self, now_ms: u64) -> (u64, u64) {
        let leased = self.leases.lock().bytes((now_ms / 1000) as u32);
        (leased, self.pinned_bytes.load(Ordering::Relaxed))
    }

    /// Brings what is known of each of these keys into the processor's cache: of many at once instead of one after the
    /// other.
    pub(crate) fn prefetch_each<K: Keyed>(&self, keys: &[K], digests: &[Digest]) {
        digests.iter().for_each(|digest| self.prefetch(*digest));
        for (key, digest) in keys.iter().zip(digests) {
            let (_, shard) = self.shard(*digest);
            if let Some(found) = shard.lookup.find(digest.tag(), |_| true) {
                self.table.prefetch(found.record, key.key().len());
                shard.entries.prefetch(found.entry);
            }
        }
    }

    /// Brings what finds `digest` into the processor's cache, without waiting for it.
    pub(super) fn prefetch(&self, digest: Digest) {
        self.shard(digest).1.lookup.prefetch(digest.tag());
    }
}

fn lease<G, S>(shard: &mut Shard<G, S>, found: Found, leasing: &mut Leasing) {
    let entry = &mut shard.entries[found.entry];
    // A clock that was set back leaves a longer lease alone.
    if entry.leased_until_s >= leasing.until_s {
        return;
    }
    let bytes = entry.extent().size_bytes();
    if entry.leased_until_s > leasing.now_s {
        match leasing.renewed.iter_mut().find(|(until_s, _)| *until_s == entry.leased_until_s) {
            Some((_, renewed)) => *renewed += bytes,
            None => leasing.renewed.push((entry.leased_until_s, bytes)),
        }
    } else if bytes > leasing.room_bytes {
        leasing.refused += 1;
        return;
    } else {
        leasing.room_bytes -= bytes;
    }
    leasing.given_bytes += bytes;
    entry.leased_until_s = leasing.until_s;
}
