//! Expiry: after `ttl` without use a chunk is a miss, and is taken out.

use super::entries::ChunkEntry;
use super::map::Index;
use crate::block::Extent;
use crate::format::record::use_parts;

/// Chunks that had expired and were taken out.
#[derive(Debug, Default)]
pub(crate) struct Expired {
    pub(crate) extents: Vec<Extent>,
    pub(crate) chunks: u64,
    pub(crate) bytes: u64,
    /// The entry to go on with, if there are more.
    pub(crate) next: Option<u32>,
}

impl<G, S> Index<G, S> {
    /// Whether a chunk has expired. A clock that was set back expires nothing.
    pub(super) fn is_expired(&self, entry: &ChunkEntry, now_ms: u64) -> bool {
        let Some(ttl_ms) = self.rules.ttl_ms else { return false };
        if use_parts(entry.last_use).0.saturating_add(ttl_ms) > now_ms {
            return false;
        }
        !entry.pinned && entry.leased_until_s <= self.now_s()
    }

    /// Looks at `most` entries of shard `number` from `from` on, and takes out those that have expired.
    pub(crate) fn expire(&self, number: usize, from: u32, most: u32, now_ms: u64) -> Expired {
        let mut expired = Expired::default();
        if self.rules.ttl_ms.is_none() {
            return expired;
        }
        let now_s = self.now_s();
        let has_expired =
            || |entry: &ChunkEntry| entry.can_go(now_s) && self.is_expired(entry, now_ms);
        expired.next = self.scan(number, from, most, has_expired, |shard, found| {
            expired.chunks = found.len() as u64;
            (expired.extents, expired.bytes) = self.take_out_all(shard, &found);
        });
        expired
    }
}
