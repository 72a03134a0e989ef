//! Expiry: after `ttl` without use a chunk is a miss, and is taken out.

use super::entries::{ChunkEntry, Flag};
use super::lookup::Located;
use super::map::Index;
use crate::block::Extent;
use crate::format::record::{use_parts, use_word};

impl<G, S> Index<G, S> {
    /// Whether a chunk has expired. A clock that was set back expires nothing.
    pub(super) fn is_expired(&self, entry: &ChunkEntry, now_ms: u64) -> bool {
        let Some(ttl) = self.config.ttl else { return false };
        if use_parts(entry.last_use).0.saturating_add(ttl.as_millis() as u64) > now_ms {
            return false;
        }
        !entry.is(Flag::Pinned) && entry.leased_until_s <= self.now_s()
    }

    /// Takes out what has expired, some chunks at a time. A use in the future, by a clock that was set back since, counts as one of
    /// now: its chunk would stay for as long as the clock was ahead. `freed` gets their extents and bytes, and says whether to go on.
    pub(crate) fn expire(&self, mut freed: impl FnMut(Vec<Extent>, u64) -> bool) {
        if self.config.ttl.is_none() {
            return;
        }
        for number in 0..self.shards.len() {
            let mut from = Some(0);
            while let Some(first) = from {
                let (now_ms, now_s) = (self.config.clock.now_ms(), self.now_s());
                let is_ahead = |entry: &ChunkEntry| use_parts(entry.last_use).0 > now_ms;
                let has_expired =
                    |entry: &ChunkEntry| entry.can_go(now_s) && self.is_expired(entry, now_ms);
                let meant = || |entry: &ChunkEntry| is_ahead(entry) || has_expired(entry);
                let mut expired = (Vec::new(), 0);
                from = self.scan(number, first, meant, |shard, found| {
                    let (ahead, old): (Vec<Located>, Vec<Located>) =
                        found.into_iter().partition(|found| is_ahead(&shard.entries[found.entry]));
                    for found in ahead {
                        let (_, uses) = use_parts(shard.entries[found.entry].last_use);
                        shard.note_use(found.entry, use_word(now_ms, uses));
                    }
                    expired = self.take_out_all(shard, &old);
                });
                if !freed(expired.0, expired.1) {
                    return;
                }
            }
        }
    }
}
