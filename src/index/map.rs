//! The map in RAM: which keys are held, and who reads them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::entries::Entry;
use super::ghosts::Ghost;
use super::leases::{Guarded, Leases};
use super::lookup::Found;
use super::quarantine::Quarantine;
use super::shard::{Pin, Shard, Suspect, Waiting};
use super::table::Table;
use crate::block::Extent;
use crate::config::Eviction;
use crate::evict::{ChunkRef, EvictionIndex, NamespaceOf, Quotas};
use crate::format::record::use_parts;
use crate::key::{Digest, Namespace};
use crate::sync::{Mutex, MutexGuard};
use crate::time::Clock;

/// Enough that threads rarely meet, and that the growth of one shard stalls nobody for long: at 10,000,000 keys it
/// moves what finds some 5,000 entries.
const SHARDS: usize = 2048;

/// Keys held and on their way. `G` and `S` are what waits: GETs and SETs, opaque here.
pub(crate) struct Index<G, S> {
    pub(super) table: Table,
    pub(super) shards: Box<[LockedShard<G, S>]>,
    generation: AtomicU64,
    /// Where the generations of this session begin.
    pub(super) first_generation: u64,
    keys: AtomicU64,
    held_bytes: AtomicU64,
    /// Keys being written that GETs wait for.
    pub(super) awaited: AtomicUsize,
    pub(super) quarantine: Quarantine,
    /// Chunks from this generation on are to be verified after a crash; none if it is `u64::MAX`.
    pub(super) verify_from: AtomicU64,
    /// Chunks below this generation vouch for nothing until they are read; see [`super::record::Session`].
    pub(super) distrust_below: AtomicU64,
    pub(super) rules: Rules,
    pub(super) eviction_index: EvictionIndex,
    pub(super) leases: Mutex<Leases>,
    /// What pinned chunks take.
    pub(super) pinned: Mutex<Guarded>,
    /// Bytes evicted since the store was opened: the clock of what is remembered.
    pub(super) evicted_bytes: AtomicU64,
    pub(super) would_hit: WouldHit,
}

/// What the index keeps to.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) capacity_bytes: u64,
    pub(crate) eviction: Eviction,
    /// Shared by all paths of the store.
    pub(crate) quotas: Quotas,
    /// After this time without use a chunk is missed.
    pub(crate) ttl_ms: Option<u64>,
    /// Which boot of the machine this is.
    pub(crate) boot: u32,
    /// For this time a chunk that EXISTS found is not evicted.
    pub(crate) lease_s: u32,
    /// What tells how much of that has passed.
    pub(crate) clock: Clock,
}

/// Keys asked for that are not held and would be in a larger store.
#[derive(Debug, Default)]
pub(crate) struct WouldHit {
    /// With one and a half times the capacity.
    pub(crate) at_1_5x: AtomicU64,
    /// With twice the capacity.
    pub(crate) at_2x: AtomicU64,
}

/// Why a chunk is not held any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// For want of room: its key is remembered.
    Evicted,
    /// For any other reason.
    Removed,
}

/// A shard and its lock, which share a cache line with no other's.
#[repr(align(64))]
pub(super) struct LockedShard<G, S>(pub(super) Mutex<Shard<G, S>>);

/// What became of a GET.
pub(crate) enum EnteredGet<G> {
    /// The chunk is held, and pinned.
    Hit(G, Pin),
    /// It is not held in this length.
    Miss(G),
    /// It waits for a SET of the same key, which is to be promoted, and comes back from [`Index::finish_set`].
    Waits,
}

impl<G, S> Index<G, S> {
    pub(super) fn new(table: Table, generation: u64, rules: Rules) -> Self {
        Self {
            eviction_index: EvictionIndex::new(rules.eviction, &rules.quotas),
            leases: Mutex::new(Leases::new(rules.lease_s)),
            pinned: Mutex::default(),
            evicted_bytes: AtomicU64::new(0),
            would_hit: WouldHit::default(),
            rules,
            table,
            shards: (0..SHARDS).map(|_| LockedShard(Mutex::new(Shard::new()))).collect(),
            generation: AtomicU64::new(generation),
            first_generation: generation,
            keys: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            awaited: AtomicUsize::new(0),
            quarantine: Quarantine::default(),
            verify_from: AtomicU64::new(u64::MAX),
            distrust_below: AtomicU64::new(0),
        }
    }

    /// The index file.
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// The order of eviction.
    pub(crate) fn eviction_index(&self) -> &EvictionIndex {
        &self.eviction_index
    }

    /// Keys asked for that are not held and would be in a larger store: one and a half times as large, and twice.
    pub(crate) fn would_hit(&self) -> (u64, u64) {
        let WouldHit { at_1_5x, at_2x } = &self.would_hit;
        (at_1_5x.load(Ordering::Relaxed), at_2x.load(Ordering::Relaxed))
    }

    /// A number that no chunk of this store has had before.
    pub(crate) fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::Relaxed)
    }

    /// Every chunk that had to be verified was.
    pub(crate) fn all_verified(&self) {
        self.verify_from.store(u64::MAX, Ordering::Relaxed);
    }

    /// Keys held.
    pub(crate) fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// Payload bytes held.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// GET: pins the chunk of `key` if it is held in exactly `length_bytes`, whatever is being written for the key: that is
    /// not answered yet. Else it waits for what is being written.
    pub(crate) fn enter_get(
        &self,
        digest: Digest,
        key: &str,
        length_bytes: u64,
        now_ms: u64,
        request: G,
    ) -> EnteredGet<G> {
        let (number, mut shard) = self.shard(digest);
        let held = shard.find(digest).filter(|found| self.table.key_is(found.record, key));
        let held = held.filter(|found| !self.is_expired(&shard.entries[found.entry], now_ms));
        if let Some(found) = held
            && let Some(pin) = shard.pin(number, found.entry, length_bytes)
        {
            self.touch(&mut shard, found, now_ms);
            return EnteredGet::Hit(request, pin);
        }
        if let Some(pending) = shard.pending_mut(digest) {
            // What is written before a DELETE, which is answered, is not held any more.
            let is_deleted = matches!(pending.waiting.back(), Some(Waiting::Delete));
            if *pending.key != *key || is_deleted {
                return EnteredGet::Miss(request);
            }
            pending.waiting.push_back(Waiting::Get { length_bytes, request });
            pending.waiting_gets += 1;
            if pending.waiting_gets == 1 {
                self.awaited.fetch_add(1, Ordering::SeqCst);
            }
            return EnteredGet::Waits;
        }
        if held.is_none() {
            self.note_ghost(&shard, digest);
        }
        EnteredGet::Miss(request)
    }

    /// Pins a chunk to verify it, if it is still the one that was suspected.
    pub(crate) fn pin_suspect(&self, suspect: Suspect) -> Option<Pin> {
        let (number, mut shard) = self.shard(suspect.digest);
        let found = shard.find(suspect.digest)?;
        if self.table.read(found.record).generation != suspect.generation {
            return None;
        }
        let length_bytes = u64::from(shard.entries[found.entry].length_bytes);
        shard.pin(number, found.entry, length_bytes)
    }

    /// What names the chunk behind `pin` for later; none if it is gone already.
    pub(crate) fn suspect_of(&self, pin: &Pin) -> Option<Suspect> {
        let shard = self.shards[pin.shard as usize].0.lock();
        let digest = shard.entries[pin.entry].digest;
        let found = shard.find(digest).filter(|found| found.entry == pin.entry)?;
        Some(Suspect { digest, generation: self.table.read(found.record).generation })
    }

    /// DELETE: the key is not held from here on. Says whether it was, and which place is free now, if any.
    pub(crate) fn delete(&self, digest: Digest, key: &str) -> (bool, Option<Extent>) {
        let (_, mut shard) = self.shard(digest);
        let mut found = false;
        if let Some(pending) = shard.pending_mut(digest)
            && *pending.key == *key
        {
            pending.waiting.push_back(Waiting::Delete);
            found = true;
            // A record that waits for its barrier must not come back after a kill.
            if let Some(slot) = pending.written.take() {
                self.table.invalidate(slot);
            }
        }
        match shard.find(digest) {
            Some(held) if self.is_of(digest, held.record, key) => {
                (true, self.take_out(&mut shard, held.entry, Gone::Removed))
            }
            _ => (found, None),
        }
    }

    /// Drops the chunk behind `pin`, whose bytes are not what was stored.
    pub(crate) fn discard(&self, pin: &Pin) {
        let mut shard = self.shards[pin.shard as usize].0.lock();
        let tag = shard.entries[pin.entry].digest.tag();
        if shard.lookup.find(tag, |found| found.entry == pin.entry).is_some() {
            // Its readers include the pin: the place is freed when that is returned.
            self.take_out(&mut shard, pin.entry, Gone::Removed);
        }
    }

    /// Digest of the key of the chunk behind `pin`, also if it is gone already.
    pub(crate) fn digest_of(&self, pin: &Pin) -> Digest {
        self.shards[pin.shard as usize].0.lock().entries[pin.entry].digest
    }

    /// Returns a pin; `matched` tells whether the chunk was read and matched its checksum. Says which place is free now, if
    /// this was the last reader of a chunk that is gone.
    pub(crate) fn unpin(&self, pin: &Pin, matched: bool) -> Option<Extent> {
        let mut shard = self.shards[pin.shard as usize].0.lock();
        let entry = &mut shard.entries[pin.entry];
        entry.was_read |= matched;
        entry.readers -= 1;
        if !entry.detached {
            self.release(entry);
        }
        let unused = entry.detached && entry.readers == 0;
        unused.then(|| shard.entries.remove(pin.entry).extent())
    }

    /// Whether the digest, with others that are there, makes searches long: so only a forged one does.
    pub(super) fn is_crowded(&self, digest: Digest) -> bool {
        self.shard(digest).1.lookup.is_crowded(digest.tag())
    }

    /// Makes room for what finds `keys` keys.
    pub(super) fn reserve(&self, keys: usize) {
        let each = keys / SHARDS;
        // Some get more than others, by as much as chance makes likely.
        let each = each + 3 * each.isqrt();
        for shard in &self.shards {
            shard.0.lock().lookup.reserve(each);
        }
    }

    /// Enters what recovery found; of two chunks of one key the younger stays. Returns the slot and place of the other.
    pub(super) fn restore(&self, entry: Entry, record: u32) -> Option<(u32, Extent)> {
        let (shard_number, mut shard) = self.shard(entry.digest);
        let mut displaced = None;
        if let Some(other) = shard.find(entry.digest) {
            let generation = |slot| self.table.read(slot).generation;
            if generation(other.record) >= generation(record) {
                return Some((record, entry.extent()));
            }
            shard.unlink(other.entry);
            let held = shard.entries.remove(other.entry);
            if let Some(node) = held.node {
                self.eviction_index.forget_restored(node, held.namespace);
            }
            displaced = Some((other.record, held.extent()));
            self.count(-1, -i64::from(held.length_bytes));
        }
        self.count(1, i64::from(entry.length_bytes));
        let number = shard.entries.insert(entry);
        let head = self.table.read(record);
        let name = || {
            let key = self.table.key(record, &head).unwrap_or_default();
            Namespace::of(&String::from_utf8_lossy(&key)).name()
        };
        let namespace = NamespaceOf { fingerprint: head.namespace, name: &name };
        let moment = match self.rules.eviction {
            Eviction::Fifo => head.generation,
            _ => head.last_used_ms(),
        };
        let (node, namespace) = self.eviction_index.restore(
            ChunkRef { shard: shard_number, entry: number },
            entry.extent(),
            &namespace,
            (moment, head.uses()),
        );
        let held = &mut shard.entries[number];
        (held.node, held.namespace) = (Some(node), namespace);
        shard.link(Found { entry: number, record });
        displaced
    }

    /// Removes an entry from the map and its record from the index file; its place is free if nobody reads it.
    pub(super) fn take_out(
        &self,
        shard: &mut Shard<G, S>,
        number: u32,
        gone: Gone,
    ) -> Option<Extent> {
        let entry = shard.entries[number];
        let length_bytes = u64::from(entry.length_bytes);
        shard.entries[number].detached = true;
        if let Some(slot) = shard.unlink(number) {
            self.table.clear(slot);
            self.count(-1, -(length_bytes as i64));
            if gone == Gone::Evicted {
                let size_bytes = entry.extent().size_bytes();
                let before = self.evicted_bytes.fetch_add(size_bytes, Ordering::Relaxed);
                self.eviction_index.remember_leaving(entry.namespace);
                let ghost = Ghost {
                    digest: entry.digest,
                    namespace: entry.namespace,
                    since_bytes: before + size_bytes,
                    refused_sets: 0,
                    was_held: true,
                };
                self.remember(shard, ghost);
            }
            if let Some(node) = entry.node {
                self.eviction_index.leave(node, entry.namespace);
            }
            if entry.pinned {
                *self.pinned.lock() -= entry.guarded();
            }
            if entry.leased_until_s > 0 {
                self.leases.lock().remove(entry.leased_until_s, entry.guarded());
            }
        }
        (entry.readers == 0).then(|| shard.entries.remove(number).extent())
    }

    /// Whether a chunk was not used for so long that it counts as gone. A clock that was set back expires nothing.
    pub(super) fn is_expired(&self, entry: &Entry, now_ms: u64) -> bool {
        let Some(ttl_ms) = self.rules.ttl_ms else { return false };
        if use_parts(entry.last_use).0.saturating_add(ttl_ms) > now_ms {
            return false;
        }
        !entry.pinned && entry.leased_until_s <= self.now_s()
    }

    /// The second that leases count by.
    pub(crate) fn now_s(&self) -> u32 {
        self.rules.clock.passed_s()
    }

    /// Counts a key that is asked for and not held, if it would be in a larger store.
    pub(super) fn note_ghost(&self, shard: &Shard<G, S>, digest: Digest) {
        let Some(ghost) = shard.ghosts.get(digest).filter(|ghost| ghost.was_held) else { return };
        let evicted_since =
            self.evicted_bytes.load(Ordering::Relaxed).saturating_sub(ghost.since_bytes);
        if evicted_since <= self.rules.capacity_bytes / 2 {
            self.would_hit.at_1_5x.fetch_add(1, Ordering::Relaxed);
        }
        if evicted_since <= self.rules.capacity_bytes {
            self.would_hit.at_2x.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Remembers a key, whose namespace has been told so.
    pub(super) fn remember(&self, shard: &mut Shard<G, S>, ghost: Ghost) {
        let mut forgotten = Vec::new();
        let held = shard.lookup.len();
        shard.ghosts.insert(ghost, self.rules.capacity_bytes, held, &mut forgotten);
        forgotten.iter().for_each(|ghost| self.eviction_index.forget(ghost.namespace, 1));
    }

    /// Whether the entry with this digest and record is that of `key`, or has lost its record, with its key: then it is
    /// nobody else's.
    pub(super) fn is_of(&self, digest: Digest, slot: u32, key: &str) -> bool {
        self.table.key_is(slot, key) || self.has_lost_its_record(digest, slot)
    }

    /// Whether the index file has something else where the entry's record was: the disk did not return it, or returned
    /// something else.
    pub(super) fn has_lost_its_record(&self, digest: Digest, slot: u32) -> bool {
        self.table.digest(slot) != digest
    }

    pub(super) fn count(&self, keys: i64, bytes: i64) {
        self.keys.fetch_add(keys as u64, Ordering::Relaxed);
        self.held_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn shard(&self, digest: Digest) -> (u32, MutexGuard<'_, Shard<G, S>>) {
        let number = digest.shard_hash() % SHARDS as u64;
        (number as u32, self.shards[number as usize].0.lock())
    }
}

#[cfg(test)]
pub(super) mod tests;
