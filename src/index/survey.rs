//! What goes over all keys, a shard at a time: expiry, listing and purging a namespace, checking that everything fits.

use std::collections::{HashMap, HashSet};

use super::leases::Guarded;
use super::lookup::Found;
use super::map::{Gone, Index};
use super::shard::{Shard, Waiting};
use crate::evict::{ChunkRef, NamespaceId, NamespaceUsage};
use crate::key::{Digest, Namespace};
use crate::store::Extent;

/// What a look for chunks that have expired took out.
#[derive(Debug, Default)]
pub(crate) struct Expired {
    /// Places that are free now.
    pub(crate) places: Vec<Extent>,
    pub(crate) chunks: u64,
    /// Of their payload.
    pub(crate) bytes: u64,
    /// The entry to go on with, if there are more.
    pub(crate) next: Option<u32>,
}

/// State of a key in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyState {
    /// Its chunk can be loaded.
    Held,
    /// Its chunk is being written; what was held of it before still is.
    Writing,
}

impl KeyState {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Writing => "writing",
        }
    }
}

/// What a purge did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Keys that are not held any more.
    pub keys: u64,
    /// Payload bytes of their chunks.
    pub bytes: u64,
    /// Keys that are pinned, and stayed.
    pub pinned: Vec<String>,
}

/// What was found when everything was compared with everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Keys held.
    pub keys: u64,
    /// Bytes of the data files that their chunks take.
    pub held_bytes: u64,
    /// Bytes of the data files that are given out to chunks being written, read for the last time, or about to be freed.
    pub moving_bytes: u64,
    /// Bytes of quotas that are taken for chunks on their way in.
    pub reserved_bytes: u64,
    /// What does not fit together; empty if everything does.
    pub problems: Vec<String>,
}

impl Purged {
    /// Adds what was done at another path.
    pub(crate) fn add(&mut self, other: Self) {
        self.keys += other.keys;
        self.bytes += other.bytes;
        self.pinned.extend(other.pinned);
    }
}

impl Check {
    /// Adds what was found at another path, whose problems are told as `named` says.
    pub(crate) fn add(&mut self, other: Self, named: impl Fn(String) -> String) {
        self.keys += other.keys;
        self.held_bytes += other.held_bytes;
        self.moving_bytes += other.moving_bytes;
        self.reserved_bytes += other.reserved_bytes;
        self.problems.extend(other.problems.into_iter().map(named));
    }
}

impl<G, S> Index<G, S> {
    /// Shards that [`Index::expire`] goes over.
    pub(crate) fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Looks at `most` entries of shard `number` from `from` on, and takes out those that have expired.
    pub(crate) fn expire(&self, number: usize, from: u32, most: u32, now_ms: u64) -> Expired {
        if self.rules.ttl_ms.is_none() {
            return Expired::default();
        }
        let mut shard = self.shards[number].0.lock();
        let now_s = self.now_s();
        let (end, next) = (shard.entries.end(), from.saturating_add(most));
        let held = |entry: u32| {
            let held = &shard.entries[entry];
            // A number may be nobody's.
            let same = |found: Found| found.entry == entry;
            let find = || shard.lookup.find(held.digest.tag(), same);
            if held.can_go(now_s) && self.is_expired(held, now_ms) { find() } else { None }
        };
        let expired: Vec<Found> = (from..next.min(end)).filter_map(held).collect();
        let (places, bytes) = self.take_out_all(&mut shard, &expired);
        let next = (next < end).then_some(next);
        Expired { places, chunks: expired.len() as u64, bytes, next }
    }

    /// Takes out every chunk whose key `stays` denies; nobody may be reading. Returns the places, and how many chunks that were.
    pub(crate) fn retain(&self, stays: impl Fn(Digest) -> bool) -> (Vec<Extent>, u64) {
        let (mut places, mut count) = (Vec::new(), 0);
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            let foreign: Vec<Found> = shard
                .lookup
                .iter()
                .filter(|found| !stays(shard.entries[found.entry].digest))
                .collect();
            places.extend(self.take_out_all(&mut shard, &foreign).0);
            count += foreign.len() as u64;
        }
        (places, count)
    }

    fn take_out_all(&self, shard: &mut Shard<G, S>, chunks: &[Found]) -> (Vec<Extent>, u64) {
        let mut bytes = 0;
        let mut places = Vec::with_capacity(chunks.len());
        for found in chunks {
            bytes += u64::from(shard.entries[found.entry].length_bytes);
            places.extend(self.take_out(shard, found.entry, Gone::Removed));
        }
        (places, bytes)
    }

    /// What there is of each namespace.
    pub(crate) fn usage(&self) -> Vec<(String, NamespaceUsage)> {
        let mut writing: HashMap<String, u64> = HashMap::new();
        for shard in &self.shards {
            for pending in &shard.0.lock().pending {
                *writing.entry(Namespace::of(&pending.key).name()).or_default() += 1;
            }
        }
        let mut usage = self.residents.usage();
        for (name, usage) in &mut usage {
            usage.writing_keys = writing.remove(name).unwrap_or_default();
        }
        usage.extend(writing.into_iter().map(|(name, writing_keys)| {
            (name, NamespaceUsage { writing_keys, ..NamespaceUsage::default() })
        }));
        usage.sort_by(|left, right| left.0.cmp(&right.0));
        usage
    }

    /// Keys of the namespace called `name` from `cursor` (a shard) on, whole shards until there are at least `limit`. The
    /// second value is where to go on, if anything is left.
    pub(crate) fn keys_of(
        &self,
        name: &str,
        cursor: usize,
        limit: usize,
    ) -> (Vec<(String, KeyState)>, Option<usize>) {
        let mut keys = Vec::new();
        for (number, shard) in self.shards.iter().enumerate().skip(cursor) {
            if keys.len() >= limit {
                return (keys, Some(number));
            }
            let shard = shard.0.lock();
            let mut writing = HashSet::new();
            for pending in &shard.pending {
                if Namespace::of(&pending.key).name() == name {
                    writing.insert(pending.digest);
                    keys.push((pending.key.to_string(), KeyState::Writing));
                }
            }
            let Some(namespace) = self.residents.namespace_called(name) else { continue };
            for found in shard.lookup.iter() {
                let entry = &shard.entries[found.entry];
                if entry.namespace == namespace && !writing.contains(&entry.digest) {
                    keys.extend(self.key_of(found).map(|key| (key, KeyState::Held)));
                }
            }
        }
        (keys, None)
    }

    pub(super) fn key_of(&self, found: Found) -> Option<String> {
        let key = self.table.key(found.record, &self.table.read(found.record))?;
        Some(String::from_utf8_lossy(&key).into_owned())
    }

    /// Takes out everything of the namespace called `name` but what is pinned; what is being written of it is not held
    /// afterwards either, unless its key is pinned. Returns the places that are free now too.
    pub(crate) fn purge(&self, name: &str) -> (Purged, Vec<Extent>) {
        let (mut purged, mut places) = (Purged::default(), Vec::new());
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            let shard = &mut *shard;
            let (lookup, entries) = (&shard.lookup, &shard.entries);
            let is_pinned = |digest: Digest| {
                let same = |found: Found| entries[found.entry].digest == digest;
                lookup.find(digest.tag(), same).is_some_and(|found| entries[found.entry].pinned)
            };
            for pending in &mut shard.pending {
                // What is pinned stays, and so does what is to take its place.
                if Namespace::of(&pending.key).name() == name && !is_pinned(pending.digest) {
                    pending.waiting.push_back(Waiting::Delete);
                    if let Some(slot) = pending.written.take() {
                        self.table.invalidate(slot);
                    }
                }
            }
            let Some(namespace) = self.residents.namespace_called(name) else { continue };
            let of_it = |found: &Found| shard.entries[found.entry].namespace == namespace;
            let (pinned, others): (Vec<Found>, Vec<Found>) = shard
                .lookup
                .iter()
                .filter(of_it)
                .partition(|found| shard.entries[found.entry].pinned);
            purged.pinned.extend(pinned.into_iter().filter_map(|found| self.key_of(found)));
            let (freed, bytes) = self.take_out_all(shard, &others);
            places.extend(freed);
            purged.keys += others.len() as u64;
            purged.bytes += bytes;
            let forgotten = shard.ghosts.forget_namespace(namespace);
            (0..forgotten).for_each(|_| self.residents.forget(namespace));
        }
        (purged, places)
    }

    /// Compares everything with everything while nothing changes. `allocated_bytes` tells what the store has given out.
    pub(crate) fn check(&self, allocated_bytes: impl FnOnce() -> u64) -> Check {
        // All of them, in order, so that two checks cannot wait for each other.
        let shards: Vec<_> = self.shards.iter().map(|shard| shard.0.lock()).collect();
        let mut check = Check::default();
        let mut chunks = HashMap::new();
        let mut ghosts: HashMap<NamespaceId, u64> = HashMap::new();
        let (mut payload_bytes, mut pinned) = (0, Guarded::default());
        for (number, shard) in shards.iter().enumerate() {
            let mut seen = HashSet::new();
            for found in shard.lookup.iter() {
                let entry = &shard.entries[found.entry];
                let extent = entry.extent();
                check.keys += 1;
                check.held_bytes += extent.size_bytes();
                payload_bytes += u64::from(entry.length_bytes);
                if entry.pinned {
                    pinned += entry.guarded();
                }
                let chunk = ChunkRef { shard: number as u32, entry: found.entry };
                let node = entry.node.filter(|node| !chunks.contains_key(node));
                match node {
                    Some(node) => drop(chunks.insert(node, (chunk, extent, entry.namespace))),
                    None => check.problems.push(format!("{chunk:?} has no place in the order")),
                }
                let record = self.table.read(found.record);
                let is_lost = record.digest() != entry.digest;
                let fits = record.extent() == extent
                    && record.length_bytes == u64::from(entry.length_bytes);
                if entry.detached || !seen.insert(entry.digest) || !(is_lost || fits) {
                    check.problems.push(format!("{chunk:?} does not fit its record, or is twice"));
                }
                if shard.ghosts.get(entry.digest).is_some() {
                    check.problems.push(format!("{chunk:?} is held and remembered as gone"));
                }
            }
            for ghost in shard.ghosts.iter() {
                *ghosts.entry(ghost.namespace).or_default() += 1;
            }
        }
        let counted = (self.keys(), self.held_bytes(), *self.pinned.lock());
        if counted != (check.keys, payload_bytes, pinned) {
            check.problems.push(format!(
                "keys, bytes and what is pinned are counted as {counted:?}, and are {:?}",
                (check.keys, payload_bytes, pinned)
            ));
        }
        check.problems.extend(self.residents.check(&chunks, &ghosts));
        check.reserved_bytes = self.residents.reserved_bytes();
        match allocated_bytes().checked_sub(check.held_bytes) {
            Some(moving_bytes) => check.moving_bytes = moving_bytes,
            None => check.problems.push("chunks are held where no place was given out".into()),
        }
        check
    }
}
