//! When chunks were used, and how often. It is known in memory at once. The maintenance thread has it written into the records every
//! few seconds. A kill loses what was not written.

use super::map::Index;
use super::shard::Shard;
use crate::format::record::{use_parts, use_word};
use crate::index::file::changes::Change;
use crate::index::memory::shard::entries::Flag;
use crate::index::memory::shard::lookup::Located;
use crate::key::Hashed;

const MOST_AT_ONCE: usize = 64;

impl<S> Shard<S> {
    /// Gives an entry this word of uses, which is to be written into its record.
    pub(crate) fn note_use(&mut self, number: u32, use_word: u64) {
        let entry = &mut self.entries[number];
        entry.last_use = use_word;
        if !entry.set(Flag::IsBehind, true) {
            self.used.push(number);
        }
    }
}

impl<S> Index<S> {
    /// A use. It never makes a chunk one that was used longer ago: the clock may be behind, as at a boot before the first answer of
    /// NTP, and once it is right the chunk would have expired.
    pub(crate) fn touch(&self, shard: &mut Shard<S>, found: Located, now_ms: u64) {
        let (before_ms, uses) = use_parts(shard.entries[found.entry].last_use);
        shard.note_use(found.entry, use_word(now_ms.max(before_ms), uses.saturating_add(1)));
        if let Some(node) = shard.entries[found.entry].node {
            self.eviction_index.lock().touch(node);
        }
    }

    /// Says of each of `keys` whether it is stored and, if so, what `act` says of its chunk.
    pub(crate) fn ask_stored(
        &self,
        keys: &[Hashed<'_>],
        now_ms: u64,
        act: impl Fn(&mut Shard<S>, Located) -> bool,
    ) -> Vec<bool> {
        keys.iter().map(|key| self.act_on_stored(key, now_ms, &act) == Some(true)).collect()
    }

    /// What `act` says of the chunk of a key, if it is stored.
    fn act_on_stored<T>(
        &self,
        &Hashed { key, digest, .. }: &Hashed<'_>,
        now_ms: u64,
        act: impl FnOnce(&mut Shard<S>, Located) -> T,
    ) -> Option<T> {
        let (_, mut shard) = self.shard(digest);
        let found = self.find_stored(&shard, digest, key, now_ms)?;
        Some(act(&mut shard, found))
    }

    /// Says of each of `keys` whether it is stored, which is no use and no lease.
    pub(crate) fn holds_keys(&self, keys: &[Hashed<'_>], now_ms: u64) -> Vec<bool> {
        self.ask_stored(keys, now_ms, |_, _| true)
    }

    /// The length of the chunk of each of `keys`, in bytes, where it is stored in the variant that is asked for. No use and no lease.
    pub(crate) fn lengths_of(&self, keys: &[Hashed<'_>], now_ms: u64) -> Vec<Option<u64>> {
        let length_of = |key: &Hashed<'_>| {
            self.act_on_stored(key, now_ms, |shard, found| {
                let entry = &shard.entries[found.entry];
                entry.meets(key.variant).then_some(u64::from(entry.length_bytes))
            })
        };
        keys.iter().map(|key| length_of(key).flatten()).collect()
    }

    /// A use of each of `keys`, without a load, the last one first: it goes before those that it is of no use without. Says of each
    /// whether it is stored.
    pub(crate) fn touch_keys(&self, keys: &[Hashed<'_>], now_ms: u64) -> Vec<bool> {
        let touch = |key: &Hashed<'_>| {
            let act = |shard: &mut Shard<S>, found| self.touch(shard, found, now_ms);
            self.act_on_stored(key, now_ms, act).is_some()
        };
        let mut are_stored: Vec<bool> = keys.iter().rev().map(touch).collect();
        are_stored.reverse();
        are_stored
    }

    /// Has uses of some chunks of shard `number` written into their records; says whether there are more.
    pub(crate) fn write_uses(&self, number: usize) -> bool {
        let mut shard = self.shards[number].0.lock();
        let shard = &mut *shard;
        let first = shard.used.len().saturating_sub(MOST_AT_ONCE);
        for number in shard.used.drain(first..) {
            let entry = &mut shard.entries[number];
            // It may be gone, and its number another's.
            if !entry.set(Flag::IsBehind, false) || entry.is(Flag::Detached) {
                continue;
            }
            let same = |found: Located| found.entry == number;
            if let Some(Located { record: slot, .. }) = shard.lookup.find(entry.digest.tag(), same)
            {
                self.table.change(Change::Use(slot, entry.last_use));
            }
        }
        first > 0
    }

    pub(crate) fn write_all_uses(&self) {
        for number in 0..self.shard_count() {
            while self.write_uses(number) {}
        }
    }
}
