//! When chunks were used, and how often: known in memory at once, and written into their records behind that.
//!
//! A store into the mapped sidecar may wait for the file system, for as long as that is frozen. So nobody does it whom others
//! wait for: the keeper writes what was used every few seconds, with no lock held. A kill loses what was not written.

use super::lookup::Found;
use super::map::Index;
use super::record::{use_parts, use_word};
use super::shard::Shard;

/// Most chunks of a shard whose uses are collected while its lock is held.
const MOST_AT_ONCE: usize = 64;

/// What the record in a slot is to say of the uses of its chunk.
struct Behind {
    slot: u32,
    from: u64,
    to: u64,
}

impl<G, S> Index<G, S> {
    /// Notes a use of a chunk.
    pub(super) fn touch(&self, shard: &mut Shard<G, S>, found: Found, now_ms: u64) {
        let entry = &mut shard.entries[found.entry];
        let (_, uses) = use_parts(entry.last_use);
        entry.last_use = use_word(now_ms, uses.saturating_add(1));
        if !std::mem::replace(&mut entry.is_behind, true) {
            shard.used.push(found.entry);
        }
        if let Some(node) = entry.node {
            self.residents.touch(node);
        }
    }

    /// Writes uses of some chunks of shard `number` into their records; says whether there are more. May wait for the file system,
    /// with no lock held.
    pub(crate) fn write_uses(&self, number: usize) -> bool {
        // It is worth no page.
        if self.table.lacks_blocks() {
            return false;
        }
        let (behind, has_more) = self.take_behind(number);
        for Behind { slot, from, to } in behind {
            // The slot may be another chunk's by now, which says something else then.
            let _ = self.table.replace_use(slot, from, to);
        }
        has_more
    }

    /// Writes all of them.
    pub(crate) fn write_all_uses(&self) {
        for number in 0..self.shard_count() {
            while self.write_uses(number) {}
        }
    }

    fn take_behind(&self, number: usize) -> (Vec<Behind>, bool) {
        let mut shard = self.shards[number].0.lock();
        let shard = &mut *shard;
        let first = shard.used.len().saturating_sub(MOST_AT_ONCE);
        let mut behind = Vec::with_capacity(shard.used.len() - first);
        for number in shard.used.drain(first..) {
            let entry = &mut shard.entries[number];
            // It may be gone, and its number another's.
            if !std::mem::take(&mut entry.is_behind) || entry.detached {
                continue;
            }
            let same = |found: Found| found.entry == number;
            if let Some(Found { record: slot, .. }) = shard.lookup.find(entry.digest.tag(), same) {
                behind.push(Behind { slot, from: self.table.use_word(slot), to: entry.last_use });
            }
        }
        (behind, first > 0)
    }
}
