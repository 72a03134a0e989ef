//! Expiry: after `ttl` without use a chunk is a miss, and is taken out.

use super::entries::{ChunkEntry, Flag};
use super::map::Index;
use crate::block::Extent;
use crate::format::record::use_parts;

impl<G, S> Index<G, S> {
    /// Whether a chunk has expired. A clock that was set back expires nothing.
    pub(super) fn is_expired(&self, entry: &ChunkEntry, now_ms: u64) -> bool {
        let Some(ttl) = self.config.ttl else { return false };
        if use_parts(entry.last_use).0.saturating_add(ttl.as_millis() as u64) > now_ms {
            return false;
        }
        !entry.is(Flag::Pinned) && entry.leased_until_s <= self.now_s()
    }

    /// Takes out what has expired, some chunks at a time. `freed` gets their extents and bytes, and says whether to go on.
    pub(crate) fn expire(&self, mut freed: impl FnMut(Vec<Extent>, u64) -> bool) {
        if self.config.ttl.is_none() {
            return;
        }
        for number in 0..self.shards.len() {
            let mut from = Some(0);
            while let Some(first) = from {
                let (now_ms, now_s) = (self.config.clock.now_ms(), self.now_s());
                let has_expired =
                    || |entry: &ChunkEntry| entry.can_go(now_s) && self.is_expired(entry, now_ms);
                let mut expired = (Vec::new(), 0);
                from = self.scan(number, first, has_expired, |shard, found| {
                    expired = self.take_out_all(shard, &found);
                });
                if !freed(expired.0, expired.1) {
                    return;
                }
            }
        }
    }
}
