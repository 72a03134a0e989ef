//! Passes over all keys: expiry, listing and purging a namespace, the check of everything.
//!
//! A shard is gone over some entries at a time, since others wait for its lock. What is to be read of their records may have to come
//! from the disk first: that is waited for with no lock held, and then they are looked at again.

use std::collections::{HashMap, HashSet};

use super::entries::Entry;
use super::leases::Guarded;
use super::lookup::Found;
use super::map::{Gone, Index};
use super::shard::{Shard, Waiting};
use crate::block::Extent;
use crate::evict::{ChunkRef, NamespaceId, NamespaceUsage};
use crate::key::{Digest, Namespace};
use crate::sync::MutexGuard;

/// Entries that are looked at while a lock is held.
const LOOKED_AT: u32 = 64;

type ShardGuard<'index, G, S> = MutexGuard<'index, Shard<G, S>>;

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
        let now_s = self.now_s();
        let has_expired = |entry: &Entry| entry.can_go(now_s) && self.is_expired(entry, now_ms);
        let (expired, next) = {
            let shard = self.shards[number].0.lock();
            look_at_some(&shard, from, most, has_expired)
        };
        let mut outcome = Expired { next, ..Expired::default() };
        if let Some(mut shard) = self.lock_with_records(number, &expired) {
            let is_still = |found: &Found| is_there(&shard, *found, has_expired);
            let expired: Vec<Found> = expired.into_iter().filter(is_still).collect();
            outcome.chunks = expired.len() as u64;
            (outcome.places, outcome.bytes) = self.take_out_all(&mut shard, &expired);
        }
        outcome
    }

    /// Waits until the records of these are in memory, and locks their shard, if there are any.
    fn lock_with_records(&self, number: usize, found: &[Found]) -> Option<ShardGuard<'_, G, S>> {
        for found in found {
            std::hint::black_box(self.table.use_word(found.record));
        }
        (!found.is_empty()).then(|| self.shards[number].0.lock())
    }

    /// Calls `act` with the chunks of shard `number` that are in the namespace called `name`, some at a time.
    fn in_namespace(
        &self,
        number: usize,
        name: &str,
        mut act: impl FnMut(&mut Shard<G, S>, Vec<Found>),
    ) {
        let mut from = Some(0);
        while let Some(first) = from {
            // Its number may be another's where nothing is left of it: to be asked for with the shard locked.
            let is_of_it = || {
                let namespace = self.eviction_index.namespace_called(name);
                move |entry: &Entry| Some(entry.namespace) == namespace
            };
            let (found, next) = {
                let shard = self.shards[number].0.lock();
                look_at_some(&shard, first, LOOKED_AT, is_of_it())
            };
            if let Some(mut shard) = self.lock_with_records(number, &found) {
                let is_meant = is_of_it();
                let still = |found: &Found| is_there(&shard, *found, is_meant);
                let found = found.into_iter().filter(still).collect();
                act(&mut shard, found);
            }
            from = next;
        }
    }

    /// Takes out every chunk whose key `stays` denies; nobody may be reading. Returns the places, and how many chunks that were.
    pub(crate) fn retain(&self, stays: impl Fn(Digest) -> bool) -> (Vec<Extent>, u64) {
        let (mut places, mut count) = (Vec::new(), 0);
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            let not_owned: Vec<Found> = shard
                .lookup
                .iter()
                .filter(|found| !stays(shard.entries[found.entry].digest))
                .collect();
            places.extend(self.take_out_all(&mut shard, &not_owned).0);
            count += not_owned.len() as u64;
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
        let mut usage = self.eviction_index.usage();
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
    /// second value is where to go on, if anything is left. What comes or goes meanwhile may be missing.
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
            // What is stored anew meanwhile may be met again: it is told once.
            let mut told = HashSet::new();
            for pending in &shard.0.lock().pending {
                if Namespace::of(&pending.key).name() == name {
                    told.insert(pending.digest);
                    keys.push((pending.key.to_string(), KeyState::Writing));
                }
            }
            self.in_namespace(number, name, |shard, found| {
                let is_new = |found: &Found| told.insert(shard.entries[found.entry].digest);
                let new = found.into_iter().filter(is_new);
                keys.extend(new.filter_map(|found| Some((self.key_of(found)?, KeyState::Held))));
            });
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
        for number in 0..self.shards.len() {
            self.refuse_pending(number, name);
            self.in_namespace(number, name, |shard, found| {
                let (pinned, others): (Vec<Found>, Vec<Found>) =
                    found.into_iter().partition(|found| shard.entries[found.entry].pinned);
                purged.pinned.extend(pinned.into_iter().filter_map(|found| self.key_of(found)));
                let (freed, bytes) = self.take_out_all(shard, &others);
                places.extend(freed);
                purged.keys += others.len() as u64;
                purged.bytes += bytes;
            });
            let mut shard = self.shards[number].0.lock();
            if let Some(namespace) = self.eviction_index.namespace_called(name) {
                let forgotten = shard.ghosts.forget_namespace(namespace);
                self.eviction_index.forget(namespace, forgotten as u64);
            }
        }
        (purged, places)
    }

    /// What is being written of the namespace called `name` is not going to be held, unless it is pinned.
    fn refuse_pending(&self, number: usize, name: &str) {
        let mut shard = self.shards[number].0.lock();
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
    }

    /// Whether what is known of each chunk fits its record, some chunks at a time.
    fn check_records(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for number in 0..self.shards.len() {
            let mut from = Some(0);
            while let Some(first) = from {
                let (found, next) = {
                    let shard = self.shards[number].0.lock();
                    look_at_some(&shard, first, LOOKED_AT, |_| true)
                };
                from = next;
                let Some(shard) = self.lock_with_records(number, &found) else { continue };
                for found in found.into_iter().filter(|found| is_there(&shard, *found, |_| true)) {
                    let entry = &shard.entries[found.entry];
                    let record = self.table.read(found.record);
                    let is_lost = record.digest() != entry.digest;
                    let fits = record.extent() == entry.extent()
                        && record.length_bytes == u64::from(entry.length_bytes);
                    if !(is_lost || fits) {
                        let chunk = ChunkRef { shard: number as u32, entry: found.entry };
                        problems.push(format!("{chunk:?} does not fit its record"));
                    }
                }
            }
        }
        problems
    }

    /// Compares everything with everything: chunks with their records, and then all that is in memory while nothing changes.
    /// `allocated_bytes` tells what the store has given out.
    pub(crate) fn check(&self, allocated_bytes: impl FnOnce() -> u64) -> Check {
        let problems = self.check_records();
        // All of them, in order, so that two checks cannot wait for each other.
        let shards: Vec<_> = self.shards.iter().map(|shard| shard.0.lock()).collect();
        let mut check = Check { problems, ..Check::default() };
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
                if entry.detached || !seen.insert(entry.digest) {
                    check.problems.push(format!("{chunk:?} is gone, or there twice"));
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
        check.problems.extend(self.eviction_index.check(&chunks, &ghosts));
        check.reserved_bytes = self.eviction_index.reserved_bytes();
        match allocated_bytes().checked_sub(check.held_bytes) {
            Some(moving_bytes) => check.moving_bytes = moving_bytes,
            None => check.problems.push("chunks are held where no place was given out".into()),
        }
        check
    }
}

/// Those of `most` entries from number `from` on that are found by their key and `is_meant`, and where to go on, if there are more.
fn look_at_some<G, S>(
    shard: &Shard<G, S>,
    from: u32,
    most: u32,
    is_meant: impl Fn(&Entry) -> bool,
) -> (Vec<Found>, Option<u32>) {
    #[cfg(test)]
    tests::note_hold(most);
    let (end, next) = (shard.entries.end(), from.saturating_add(most));
    let find = |number: u32| {
        let entry = &shard.entries[number];
        // A number may be nobody's.
        let find = || shard.lookup.find(entry.digest.tag(), |found| found.entry == number);
        if !entry.detached && is_meant(entry) { find() } else { None }
    };
    ((from..next.min(end)).filter_map(find).collect(), (next < end).then_some(next))
}

/// Whether a chunk is still there, and meant: its number may be another's by now.
fn is_there<G, S>(shard: &Shard<G, S>, chunk: Found, is_meant: impl Fn(&Entry) -> bool) -> bool {
    let entry = &shard.entries[chunk.entry];
    let is_found = || shard.lookup.find(entry.digest.tag(), |found| found == chunk).is_some();
    !entry.detached && is_meant(entry) && is_found()
}

#[cfg(test)]
mod tests;
