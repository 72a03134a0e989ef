//! The map in RAM: which keys are stored, and their readers.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::collisions::Quarantine;
use super::key_events::KeyEvents;
use super::shard::{Pending, Shard};
use crate::base::block::Extent;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::sync::{IS_MODELLED, Mutex, MutexGuard, RwLock};
use crate::config::Config;
use crate::evict::{EvictionIndex, Footprint, GhostCounts, Leases, NamespaceId, Quota, Quotas};
use crate::format::record::use_parts;
use crate::index::file::table::Table;
use crate::index::memory::shard::entries::Flag;
use crate::index::memory::shard::ghosts::{Fingerprint, Ghost, MOST_USES};
use crate::index::memory::shard::lookup::Located;
use crate::key::Digest;

/// Enough that threads rarely meet, and that the growth of one shard is short: at 10,000,000 keys it moves about 5,000 elements.
pub(crate) const SHARDS: usize = if IS_MODELLED { 2 } else { 2048 };

/// Keys that are stored or being written. `G` and `S` are waiting GETs and SETs, opaque here.
pub(crate) struct Index<S> {
    pub(crate) table: Arc<Table>,
    pub(crate) shards: Box<[LockedShard<S>]>,
    generation: AtomicU64,
    /// First generation of this session.
    pub(crate) first_generation: u64,
    keys: AtomicU64,
    stored_bytes: AtomicU64,
    pub(crate) quarantine: Quarantine,
    /// As in [`Session`](crate::format::header::Session).
    pub(crate) verify_from: AtomicU64,
    /// As in [`Session`](crate::format::header::Session).
    pub(crate) untrusted_before: AtomicU64,
    pub(crate) config: Config,
    pub(crate) eviction_index: Mutex<EvictionIndex>,
    pub(crate) leases: Mutex<Leases>,
    pub(crate) quotas: Quotas,
    /// By the number of their namespace, which stays what it is.
    quota_by_namespace: RwLock<Vec<Option<Arc<Quota>>>>,
    /// In milliseconds; `u64::MAX` for none.
    ttl_ms: AtomicU64,
    /// Bytes that chunks can have: less than the capacity once the file system gives no more.
    pub(crate) usable_bytes: AtomicU64,
    pub(crate) pinned: Mutex<Footprint>,
    /// Since when there are uses in the future, by [`Index::now_s`], as far as they are found.
    pub(crate) ahead_since_s: Mutex<Option<u32>>,
    /// Bytes evicted since the store was opened: the clock of ghosts.
    pub(crate) evicted_bytes: AtomicU64,
    /// GETs and EXISTS that would hit in a store with one and a half times the capacity, and with twice the capacity.
    would_hit: [AtomicU64; 2],
    /// SETs of keys that were remembered.
    returned_keys: AtomicU64,
    /// Where keys that come and go are told, if somebody watches them.
    pub(crate) key_events: OnceLock<Arc<KeyEvents>>,
}

/// The index file is asked through it.
impl<S> Deref for Index<S> {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

fn ttl_word(ttl: Option<Duration>) -> u64 {
    ttl.map_or(u64::MAX, |ttl| ttl.as_millis() as u64)
}

/// Why a chunk is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// For want of room: its key becomes a ghost.
    Evicted,
    /// For any other reason.
    Removed,
}

/// In cache lines of its own.
#[repr(align(64))]
pub(crate) struct LockedShard<S>(pub(in crate::index) Mutex<Shard<S>>);

impl<S> Index<S> {
    /// An empty one. All paths of the store share `quotas`.
    pub(crate) fn new(table: Table, generation: u64, config: Config, quotas: &Quotas) -> Self {
        Self {
            eviction_index: Mutex::new(EvictionIndex::new(config.eviction, quotas)),
            leases: Mutex::new(Leases::new(config.lease_s)),
            quotas: quotas.with_leases(config.lease_s),
            // They are the first ones to get their numbers, in this order.
            quota_by_namespace: RwLock::new(quotas.all().into_iter().map(Some).collect()),
            ttl_ms: AtomicU64::new(ttl_word(config.ttl)),
            usable_bytes: AtomicU64::new(config.capacity_bytes()),
            pinned: Mutex::default(),
            ahead_since_s: Mutex::default(),
            evicted_bytes: AtomicU64::new(0),
            would_hit: Default::default(),
            returned_keys: AtomicU64::new(0),
            key_events: OnceLock::new(),
            config,
            table: Arc::new(table),
            shards: (0..SHARDS).map(|_| LockedShard(Mutex::new(Shard::new()))).collect(),
            generation: AtomicU64::new(generation),
            first_generation: generation,
            keys: AtomicU64::new(0),
            stored_bytes: AtomicU64::new(0),
            quarantine: Quarantine::default(),
            verify_from: AtomicU64::new(u64::MAX),
            untrusted_before: AtomicU64::new(0),
        }
    }

    pub(crate) fn ttl(&self) -> Option<Duration> {
        let ttl_ms = self.ttl_ms.load(Ordering::Relaxed);
        (ttl_ms != u64::MAX).then_some(Duration::from_millis(ttl_ms))
    }

    /// It is that of what is stored already as well.
    pub(crate) fn set_ttl(&self, ttl: Option<Duration>) {
        self.ttl_ms.store(ttl_word(ttl), Ordering::Relaxed);
    }

    pub(crate) fn quota_of(&self, namespace: NamespaceId) -> Option<Arc<Quota>> {
        self.quota_by_namespace.read().get(namespace as usize).cloned().flatten()
    }

    /// Gives a namespace a quota and an order of eviction of its own. All shards are locked meanwhile, so that what is pinned and
    /// leased of it is counted once.
    pub(crate) fn add_quota(&self, name: &str, quota: &Arc<Quota>) {
        // In order, as of check().
        let shards: Vec<_> = self.shards.iter().map(|shard| shard.0.lock()).collect();
        let mut eviction_index = self.eviction_index.lock();
        let namespace = eviction_index.add_quota(name, quota);
        {
            let mut quotas = self.quota_by_namespace.write();
            let length = quotas.len().max(namespace as usize + 1);
            quotas.resize(length, None);
            quotas[namespace as usize] = Some(Arc::clone(quota));
        }
        let entries = shards
            .iter()
            .flat_map(|shard| shard.lookup.iter().map(|found| shard.entries[found.entry]));
        let mut chunks = Vec::new();
        for entry in entries.filter(|entry| entry.namespace == namespace) {
            if entry.is(Flag::Pinned) {
                quota.pinned_bytes.fetch_add(entry.footprint().bytes, Ordering::Relaxed);
            }
            if entry.leased_until_s > self.now_s() {
                quota.leases.lock().add(entry.leased_until_s, entry.footprint());
            }
            chunks.extend(entry.node.map(|node| (use_parts(entry.last_use).0, node)));
        }
        // The order of last use is all that is known by now of the one that they had.
        chunks.sort_unstable();
        chunks.into_iter().for_each(|(_, node)| eviction_index.join_pool(node, namespace));
    }

    pub(crate) fn would_hit(&self) -> [u64; 2] {
        self.would_hit.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    pub(crate) fn returned_keys(&self) -> u64 {
        self.returned_keys.load(Ordering::Relaxed)
    }

    /// A remembered key is stored: the order of eviction learns from it.
    pub(crate) fn note_return(&self, ghost: Ghost) {
        self.eviction_index.lock().learn(ghost.namespace, ghost.uses > 0);
        self.returned_keys.fetch_add(1, Ordering::Relaxed);
        self.forget(ghost);
    }

    /// A number that no chunk of this store has had before.
    pub(crate) fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn all_verified(&self) {
        self.verify_from.store(u64::MAX, Ordering::Relaxed);
    }

    pub(crate) fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    pub(crate) fn stored_bytes(&self) -> u64 {
        self.stored_bytes.load(Ordering::Relaxed)
    }

    /// Whether a chunk is stored under a key with this digest.
    pub(crate) fn is_stored(&self, digest: Digest) -> bool {
        self.shard(digest).1.find(digest).is_some()
    }

    /// The entry of `key`, unless it has expired.
    pub(crate) fn find_stored(
        &self,
        shard: &Shard<S>,
        digest: Digest,
        key: &str,
        now_ms: u64,
    ) -> Option<Located> {
        let found = shard.find(digest).filter(|found| self.table.key_is(found.record, key))?;
        (!self.is_expired(&shard.entries[found.entry], now_ms)).then_some(found)
    }

    /// DELETE: the key is not stored any more. Returns whether it was, and the extent that is free now, if any.
    pub(crate) fn delete(&self, digest: Digest, key: &str) -> (bool, Option<Extent>) {
        let (_, mut shard) = self.shard(digest);
        let mut found = false;
        if let Some(pending) = shard.pending_mut(digest)
            && *pending.key == *key
        {
            self.delete_pending(pending);
            found = true;
        }
        match shard.find(digest) {
            Some(stored) if self.is_of(digest, stored.record, key) => {
                (true, self.take_out(&mut shard, stored.entry, Gone::Removed))
            }
            _ => (found, None),
        }
    }

    /// The chunk that is being written for the key will not be stored.
    pub(crate) fn delete_pending(&self, pending: &mut Pending<S>) {
        pending.deleted_behind = Some(pending.last_set());
        // A record that waits for its sync must not come back after a kill.
        if let Some(slot) = pending.written.take() {
            self.table.invalidate(slot);
        }
    }

    /// Removes an entry from the map and its record from the index file. Returns the extent if it has no readers.
    pub(crate) fn take_out(&self, shard: &mut Shard<S>, number: u32, gone: Gone) -> Option<Extent> {
        let entry = shard.entries[number];
        let length_bytes = u64::from(entry.length_bytes);
        shard.entries[number].set(Flag::Detached, true);
        if let Some(slot) = shard.unlink(number) {
            self.note_gone(shard, Located { entry: number, record: slot });
            self.table.clear(slot);
            self.count(-1, -(length_bytes as i64));
            if gone == Gone::Evicted {
                let size_bytes = entry.extent().size_bytes();
                let before = self.evicted_bytes.fetch_add(size_bytes, Ordering::Relaxed);
                let uses = use_parts(entry.last_use).1.min(MOST_USES.into()) as u8;
                self.eviction_index.lock().remember_leaving(entry.namespace, uses > 0);
                let ghost = Ghost {
                    fingerprint: Fingerprint::of(entry.digest),
                    namespace: entry.namespace,
                    since_mib: Ghost::mib(before + size_bytes),
                    refused_sets: 0,
                    uses,
                    was_evicted: true,
                };
                self.remember(shard, ghost);
            }
            if let Some(node) = entry.node {
                self.eviction_index.lock().leave(node, entry.namespace);
            }
            if entry.is(Flag::Pinned) {
                self.give_back_pinned(&entry);
            }
            if entry.leased_until_s > 0 {
                self.leases.lock().remove(entry.leased_until_s, entry.footprint());
                if let Some(quota) = self.quota_of(entry.namespace) {
                    quota.leases.lock().remove(entry.leased_until_s, entry.footprint());
                }
            }
        }
        (entry.readers() == 0).then(|| shard.entries.remove(number).extent())
    }

    pub(crate) fn now_s(&self) -> u32 {
        self.config.clock.passed_s()
    }

    /// Counts a miss that would be a hit in a larger store.
    pub(crate) fn note_ghost(&self, shard: &Shard<S>, digest: Digest) {
        let Some(ghost) = shard.ghosts.get(digest).filter(|ghost| ghost.was_evicted) else {
            return;
        };
        let evicted_since = self
            .evicted_bytes
            .load(Ordering::Relaxed)
            .saturating_sub(u64::from(ghost.since_mib) << 20);
        let capacity_bytes = self.capacity_bytes();
        for (count, more_bytes) in self.would_hit.iter().zip([capacity_bytes / 2, capacity_bytes]) {
            count.fetch_add(u64::from(evicted_since <= more_bytes), Ordering::Relaxed);
        }
    }

    /// Remembers a key, which its namespace counts already.
    pub(crate) fn remember(&self, shard: &mut Shard<S>, ghost: Ghost) {
        let stored = shard.lookup.len();
        shard.ghosts.insert(ghost, stored, |ghost| self.forget(ghost));
    }

    pub(crate) fn forget(&self, ghost: Ghost) {
        let mut counts = GhostCounts::default();
        counts.add(ghost.uses > 0);
        self.eviction_index.lock().forget(ghost.namespace, counts);
    }

    /// Whether the entry with this digest and record is that of `key`, or has lost its record, with its key: then it counts as
    /// that of `key`.
    pub(crate) fn is_of(&self, digest: Digest, slot: u32, key: &str) -> bool {
        self.table.key_is(slot, key) || self.has_lost_its_record(digest, slot)
    }

    /// Whether the index file does not have the entry's record any more, or a part of its key: the disk did not return it.
    pub(crate) fn has_lost_its_record(&self, digest: Digest, slot: u32) -> bool {
        self.table.digest(slot) != digest || !self.table.has_whole_key(slot)
    }

    pub(crate) fn count(&self, keys: i64, bytes: i64) {
        self.keys.fetch_add(keys as u64, Ordering::Relaxed);
        self.stored_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Of a new index: all after this one are higher.
    pub(crate) fn set_first_generation(&mut self, generation: u64) {
        (self.generation, self.first_generation) = (AtomicU64::new(generation), generation);
    }

    pub(crate) fn shard(&self, digest: Digest) -> (u32, MutexGuard<'_, Shard<S>>) {
        let number = digest.shard_hash() % SHARDS as u64;
        (number as u32, self.shards[number as usize].0.lock())
    }
}

#[cfg(test)]
pub(crate) mod tests;
