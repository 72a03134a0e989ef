//! Which keys are stored, told to whoever keeps books of it: each key that is stored is told once, and once that it is gone.
//!
//! Changes go into a queue, in order for each key, under the lock of its shard. Chunks that are stored when that begins are told
//! one by one afterwards; one that goes before is never told.

use std::sync::Arc;

use super::key_events::{KeyChange, KeyEvent, KeyEvents, UntoldChunk};
use super::map::Index;
use super::shard::Shard;
use crate::format::record::use_parts;
use crate::index::memory::shard::entries::ChunkEntry;
use crate::index::memory::shard::lookup::Located;

/// Keys with the lengths of their chunks, and the shard and the entry to go on with.
type StoredKeys = (Vec<(String, u64)>, Option<(usize, u32)>);

impl<S> Index<S> {
    /// Tells `events` of changes from here on. Returns the chunks that are stored, which are told by [`Index::tell_stored`].
    pub(crate) fn watch_keys(&self, events: &Arc<KeyEvents>) -> Vec<UntoldChunk> {
        let mut all = Vec::new();
        if self.key_events.set(Arc::clone(events)).is_err() {
            return all;
        }
        for (number, shard) in self.shards.iter().enumerate() {
            let mut shard = shard.0.lock();
            let untold = shard.lookup.iter().map(|found| found.entry).collect();
            for found in shard.lookup.iter() {
                all.push(UntoldChunk {
                    last_used_ms: use_parts(shard.entries[found.entry].last_use).0,
                    shard: number as u32,
                    entry: found.entry,
                });
            }
            shard.untold = Some(untold);
        }
        all
    }

    /// Tells of a chunk, if it is still stored.
    pub(crate) fn tell_stored(&self, chunk: UntoldChunk) -> Option<KeyEvent> {
        let located = |shard: &Shard<S>| {
            let is_untold =
                shard.untold.as_ref().is_some_and(|untold| untold.contains(&chunk.entry));
            let same = |found: Located| found.entry == chunk.entry;
            let tag = || shard.entries[chunk.entry].digest.tag();
            if is_untold { shard.lookup.find(tag(), same) } else { None }
        };
        let shard = &self.shards[chunk.shard as usize].0;
        let found = located(&shard.lock())?;
        // Waits until its record is in memory, without the lock.
        std::hint::black_box(self.table.use_word(found.record));
        let mut shard = shard.lock();
        let found = located(&shard)?;
        let key = self.table.key(&self.table.read(found.record))?;
        shard.untold.as_mut()?.remove(&chunk.entry);
        let length_bytes = u64::from(shard.entries[chunk.entry].length_bytes);
        Some(KeyEvent { key, length_bytes, change: KeyChange::Stored })
    }

    /// A chunk is stored. Its shard is locked, here and below.
    pub(crate) fn note_stored(&self, shard: &Shard<S>, key: &str, length_bytes: u64) {
        if let Some(events) = self.key_events.get()
            && shard.untold.is_some()
        {
            events.push(KeyEvent { key: key.to_owned(), length_bytes, change: KeyChange::Stored });
        }
    }

    /// A SET found its very bytes stored.
    pub(crate) fn note_stored_again(&self, shard: &Shard<S>, found: Located) {
        if shard.untold.as_ref().is_some_and(|untold| !untold.contains(&found.entry)) {
            self.note_change(shard, found, KeyChange::StoredAgain);
        }
    }

    /// An entry goes.
    pub(crate) fn note_gone(&self, shard: &mut Shard<S>, found: Located) {
        if shard.untold.as_mut().is_some_and(|untold| !untold.remove(&found.entry)) {
            self.note_change(shard, found, KeyChange::Gone);
        }
    }

    fn note_change(&self, shard: &Shard<S>, found: Located, change: KeyChange) {
        // Of a chunk whose record the disk did not return nobody knows the key any more.
        if let Some(events) = self.key_events.get()
            && let Some(key) = self.table.key(&self.table.read(found.record))
        {
            let length_bytes = u64::from(shard.entries[found.entry].length_bytes);
            events.push(KeyEvent { key, length_bytes, change });
        }
    }

    /// Nothing here can be loaded any more: tells that all keys are gone, and nothing after that.
    pub(crate) fn note_all_gone(&self) {
        for shard in self.shards.iter().filter(|_| self.key_events.get().is_some()) {
            let mut shard = shard.0.lock();
            let all: Vec<Located> = shard.lookup.iter().collect();
            all.into_iter().for_each(|found| self.note_gone(&mut shard, found));
            shard.untold = None;
        }
    }

    /// Stored keys that are `meant`, with the lengths of their chunks, from a shard and an entry of it on: up to `limit`, and where to
    /// go on if there are more. Keys that are stored or deleted meanwhile may be missing.
    pub(crate) fn stored_keys(
        &self,
        (first_shard, mut first_entry): (usize, u32),
        limit: usize,
        meant: impl Fn(&str) -> bool,
    ) -> StoredKeys {
        let mut keys = Vec::new();
        for number in first_shard..self.shards.len() {
            let mut from = Some(std::mem::take(&mut first_entry));
            while let Some(first) = from {
                let mut left = None;
                let every = || |_: &ChunkEntry| true;
                from = self.scan(number, first, every, |shard, found| {
                    for found in found {
                        let Some(key) = self.key_of(found).filter(|key| meant(key)) else {
                            continue;
                        };
                        if keys.len() == limit {
                            left = Some(found.entry);
                            return;
                        }
                        keys.push((key, u64::from(shard.entries[found.entry].length_bytes)));
                    }
                });
                if let Some(entry) = left {
                    return (keys, Some((number, entry)));
                }
            }
        }
        (keys, None)
    }
}
