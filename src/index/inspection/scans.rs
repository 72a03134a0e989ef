//! Scans of all keys: expiry, listing and purging a namespace, checking the index.
//!
//! A scan locks a shard for some entries at a time. Their records may have to come from the disk first: the scan waits for that
//! without the lock, and then looks at the entries again.

use std::collections::{HashMap, HashSet};

use crate::base::block::Extent;
use crate::evict::{ChunkRef, Footprint, GhostCounts, NamespaceId, NamespaceUsage};
use crate::index::memory::map::{Gone, Index};
use crate::index::memory::shard::Shard;
use crate::index::memory::shard::entries::{ChunkEntry, Flag};
use crate::index::memory::shard::lookup::Located;
use crate::key::{Digest, Namespace};

/// Entries that are looked at while a lock is held.
const ENTRIES_AT_ONCE: u32 = 64;

/// State of a key in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyState {
    /// Its chunk can be loaded.
    Stored,
    /// Its chunk is being written; an older one can still be loaded.
    Writing,
}

impl KeyState {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Writing => "writing",
        }
    }
}

/// What a purge did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Keys that were deleted.
    pub keys: u64,
    /// Payload bytes of their chunks.
    pub bytes: u64,
    /// Keys that are pinned, and stayed.
    pub pinned: Vec<String>,
}

/// Result of a check of the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Keys stored.
    pub keys: u64,
    /// Bytes of the data files that their chunks take.
    pub stored_bytes: u64,
    /// Bytes of the data files that chunks take that are being written, read for the last time, or about to be freed.
    pub moving_bytes: u64,
    /// Bytes of quotas that are reserved for chunks being written.
    pub reserved_bytes: u64,
    /// Contradictions; empty if there are none.
    pub problems: Vec<String>,
}

impl Purged {
    /// Adds the result of another path.
    pub(crate) fn add(&mut self, other: Self) {
        self.keys += other.keys;
        self.bytes += other.bytes;
        self.pinned.extend(other.pinned);
    }
}

impl Check {
    /// Adds the result of another path, with its problems as `named` words them.
    pub(crate) fn add(&mut self, other: Self, named: impl Fn(String) -> String) {
        self.keys += other.keys;
        self.stored_bytes += other.stored_bytes;
        self.moving_bytes += other.moving_bytes;
        self.reserved_bytes += other.reserved_bytes;
        self.problems.extend(other.problems.into_iter().map(named));
    }
}

impl<S> Index<S> {
    pub(crate) fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Calls `act` with those of some chunks of shard `number` from entry `from` on that are meant, if there are any. Returns where
    /// to go on, if there are more. `meant` is called with the shard locked.
    pub(crate) fn scan<F: Fn(&ChunkEntry) -> bool>(
        &self,
        number: usize,
        from: u32,
        meant: impl Fn() -> F,
        act: impl FnOnce(&mut Shard<S>, Vec<Located>),
    ) -> Option<u32> {
        let (found, next) = {
            let shard = self.shards[number].0.lock();
            let (end, next) = (shard.entries.end(), from + ENTRIES_AT_ONCE);
            #[cfg(test)]
            tests::note_hold(next.min(end) - from);
            let is_meant = meant();
            let find = |number| find_meant(&shard, number, &is_meant);
            let found: Vec<Located> = (from..next.min(end)).filter_map(find).collect();
            (found, (next < end).then_some(next))
        };
        // Waits until their records are in memory.
        for found in &found {
            std::hint::black_box(self.table.use_word(found.record));
        }
        if !found.is_empty() {
            let mut shard = self.shards[number].0.lock();
            let is_meant = meant();
            // A number may be another's by now.
            let is_still =
                |found: &Located| find_meant(&shard, found.entry, &is_meant) == Some(*found);
            let found = found.into_iter().filter(is_still).collect();
            act(&mut shard, found);
        }
        next
    }

    fn scan_all<F: Fn(&ChunkEntry) -> bool>(
        &self,
        number: usize,
        meant: impl Fn() -> F,
        mut act: impl FnMut(&mut Shard<S>, Vec<Located>),
    ) {
        let mut from = Some(0);
        while let Some(first) = from {
            from = self.scan(number, first, &meant, &mut act);
        }
    }

    /// [`Index::scan_all`] for the chunks of the namespace called `name`.
    fn in_namespace(
        &self,
        number: usize,
        name: &str,
        act: impl FnMut(&mut Shard<S>, Vec<Located>),
    ) {
        // The number of a namespace without chunks may be given to another.
        let meant = || {
            let namespace = self.eviction_index.lock().namespace_called(name);
            move |entry: &ChunkEntry| Some(entry.namespace) == namespace
        };
        self.scan_all(number, meant, act);
    }

    /// Takes out every chunk unless its key `stays`; none may be being read. Returns their extents and their number.
    pub(crate) fn retain(&self, stays: impl Fn(Digest) -> bool) -> (Vec<Extent>, u64) {
        let (mut extents, mut count) = (Vec::new(), 0);
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            let goes = |found: &Located| !stays(shard.entries[found.entry].digest);
            let going: Vec<Located> = shard.lookup.iter().filter(goes).collect();
            extents.extend(self.take_out_all(&mut shard, &going).0);
            count += going.len() as u64;
        }
        (extents, count)
    }

    pub(crate) fn take_out_all(
        &self,
        shard: &mut Shard<S>,
        chunks: &[Located],
    ) -> (Vec<Extent>, u64) {
        let mut bytes = 0;
        let mut extents = Vec::with_capacity(chunks.len());
        for found in chunks {
            bytes += u64::from(shard.entries[found.entry].length_bytes);
            extents.extend(self.take_out(shard, found.entry, Gone::Removed));
        }
        (extents, bytes)
    }

    pub(crate) fn usage(&self) -> Vec<(String, NamespaceUsage)> {
        let mut writing: HashMap<String, u64> = HashMap::new();
        for shard in &self.shards {
            for pending in &shard.0.lock().pending {
                *writing.entry(Namespace::of(&pending.key).name()).or_default() += 1;
            }
        }
        let mut usage = self.eviction_index.lock().usage();
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
    /// second value is where to go on, if anything is left. Keys that are stored or deleted meanwhile may be missing.
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
            // A key that is stored anew meanwhile may be met again: it is listed once.
            let mut listed = HashSet::new();
            for pending in &shard.0.lock().pending {
                if Namespace::of(&pending.key).name() == name {
                    listed.insert(pending.digest);
                    keys.push((pending.key.to_string(), KeyState::Writing));
                }
            }
            self.in_namespace(number, name, |shard, found| {
                let is_new = |found: &Located| listed.insert(shard.entries[found.entry].digest);
                let new = found.into_iter().filter(is_new);
                keys.extend(new.filter_map(|found| Some((self.key_of(found)?, KeyState::Stored))));
            });
        }
        (keys, None)
    }

    pub(crate) fn key_of(&self, found: Located) -> Option<String> {
        self.table.key(&self.table.read(found.record))
    }

    /// Takes out all chunks of the namespace called `name` but pinned ones; those being written are not stored afterwards either,
    /// unless their keys are pinned. Also returns the extents that are free now.
    pub(crate) fn purge(&self, name: &str) -> (Purged, Vec<Extent>) {
        let (mut purged, mut extents) = (Purged::default(), Vec::new());
        for number in 0..self.shards.len() {
            self.purge_pending(number, name, &mut purged, &mut extents);
            self.in_namespace(number, name, |shard, found| {
                let (pinned, others): (Vec<Located>, Vec<Located>) = found
                    .into_iter()
                    .partition(|found| shard.entries[found.entry].is(Flag::Pinned));
                purged.pinned.extend(pinned.into_iter().filter_map(|found| self.key_of(found)));
                self.purge_chunks(shard, &others, &mut purged, &mut extents);
            });
            let mut shard = self.shards[number].0.lock();
            let namespace = self.eviction_index.lock().namespace_called(name);
            if let Some(namespace) = namespace {
                let forgotten = shard.ghosts.forget_namespace(namespace);
                // With none in this shard it may be gone by now, and its number too.
                if forgotten.all() > 0 {
                    self.eviction_index.lock().forget(namespace, forgotten);
                }
            }
        }
        (purged, extents)
    }

    /// Purges the keys of shard `number` that are being written, each with the chunk that is stored for it in one step: a mark of
    /// deletion beside a chunk that somebody pins in between would have the SET clear that chunk's record and store nothing.
    fn purge_pending(
        &self,
        number: usize,
        name: &str,
        purged: &mut Purged,
        extents: &mut Vec<Extent>,
    ) {
        let mut shard = self.shards[number].0.lock();
        let shard = &mut *shard;
        let mut stored = Vec::new();
        let (lookup, entries) = (&shard.lookup, &shard.entries);
        for pending in &mut shard.pending {
            if Namespace::of(&pending.key).name() != name {
                continue;
            }
            let same = |found: Located| { entries[found.entry].digest } == pending.digest;
            let found = lookup.find(pending.digest.tag(), same);
            // A pinned chunk stays, and so does the one that replaces it.
            if !found.is_some_and(|found| entries[found.entry].is(Flag::Pinned)) {
                self.delete_pending(pending);
                stored.extend(found);
            }
        }
        self.purge_chunks(shard, &stored, purged, extents);
    }

    fn purge_chunks(
        &self,
        shard: &mut Shard<S>,
        chunks: &[Located],
        purged: &mut Purged,
        extents: &mut Vec<Extent>,
    ) {
        let (freed, bytes) = self.take_out_all(shard, chunks);
        extents.extend(freed);
        purged.keys += chunks.len() as u64;
        purged.bytes += bytes;
    }

    fn check_records(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let every = || |_: &ChunkEntry| true;
        for number in 0..self.shards.len() {
            self.scan_all(number, every, |shard, found| {
                for found in found {
                    let entry = &shard.entries[found.entry];
                    let record = self.table.read(found.record);
                    let is_lost = record.digest() != { entry.digest };
                    let fits = record.extent() == entry.extent()
                        && record.length_bytes == u64::from(entry.length_bytes)
                        && record.variant == entry.variant();
                    if !(is_lost || fits) {
                        let chunk = ChunkRef { shard: number as u32, entry: found.entry };
                        problems.push(format!("{chunk:?} does not fit its record"));
                    }
                }
            });
        }
        problems
    }

    /// Compares chunks with their records, and then all structures in memory, with all shards locked. `allocated_bytes` says
    /// how much the store has allocated.
    pub(crate) fn check(&self, allocated_bytes: impl FnOnce() -> u64) -> Check {
        let problems = self.check_records();
        // All of them, in order, so that two checks cannot wait for each other.
        let shards: Vec<_> = self.shards.iter().map(|shard| shard.0.lock()).collect();
        let mut check = Check { problems, ..Check::default() };
        let mut chunks = HashMap::new();
        let mut ghosts: HashMap<NamespaceId, GhostCounts> = HashMap::new();
        let (mut payload_bytes, mut pinned) = (0, Footprint::default());
        for (number, shard) in shards.iter().enumerate() {
            let mut seen = HashSet::new();
            for found in shard.lookup.iter() {
                let entry = &shard.entries[found.entry];
                let extent = entry.extent();
                check.keys += 1;
                check.stored_bytes += extent.size_bytes();
                payload_bytes += u64::from(entry.length_bytes);
                if entry.is(Flag::Pinned) {
                    pinned += entry.footprint();
                }
                let chunk = ChunkRef { shard: number as u32, entry: found.entry };
                let node = entry.node.filter(|node| !chunks.contains_key(node));
                match node {
                    Some(node) => drop(chunks.insert(node, (chunk, extent, entry.namespace))),
                    None => check.problems.push(format!("{chunk:?} is not in the eviction index")),
                }
                if entry.is(Flag::Detached) || !seen.insert(entry.digest) {
                    check.problems.push(format!("{chunk:?} is gone, or there twice"));
                }
                if shard.ghosts.get(entry.digest).is_some() {
                    check.problems.push(format!("{chunk:?} is stored and remembered as evicted"));
                }
            }
            for ghost in shard.ghosts.iter() {
                ghosts.entry(ghost.namespace).or_default().add(ghost.uses > 0);
            }
        }
        let counted = (self.keys(), self.stored_bytes(), *self.pinned.lock());
        if counted != (check.keys, payload_bytes, pinned) {
            check.problems.push(format!(
                "keys, bytes and pins are counted as {counted:?}, and are {:?}",
                (check.keys, payload_bytes, pinned)
            ));
        }
        check.problems.extend(self.eviction_index.lock().check(&chunks, &ghosts));
        check.reserved_bytes = self.eviction_index.lock().reserved_bytes();
        match allocated_bytes().checked_sub(check.stored_bytes) {
            Some(moving_bytes) => check.moving_bytes = moving_bytes,
            None => check.problems.push("chunks take more than is allocated".into()),
        }
        check
    }
}

/// The chunk with this number in its shard, if it is meant, and found by its key.
fn find_meant<S>(
    shard: &Shard<S>,
    number: u32,
    is_meant: impl Fn(&ChunkEntry) -> bool,
) -> Option<Located> {
    let entry = &shard.entries[number];
    let find = || shard.lookup.find(entry.digest.tag(), |found| found.entry == number);
    if !entry.is(Flag::Detached) && is_meant(entry) { find() } else { None }
}

#[cfg(test)]
mod tests;
