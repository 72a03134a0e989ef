//! Expiry: after `ttl` without use a chunk is a miss, and is taken out.

use std::time::Duration;

use super::map::Index;
use crate::base::block::Extent;
use crate::format::record::{use_parts, use_word};
use crate::index::memory::shard::entries::{ChunkEntry, Flag};
use crate::index::memory::shard::lookup::Located;

/// How long a clock has to go on behind uses of chunks until these, and not the clock, are taken to be wrong.
const BELIEVED_AFTER: Duration = Duration::from_secs(3600);

impl<S> Index<S> {
    /// Whether a chunk has expired. A clock that was set back expires nothing.
    pub(crate) fn is_expired(&self, entry: &ChunkEntry, now_ms: u64) -> bool {
        let Some(ttl) = self.ttl() else { return false };
        if use_parts(entry.last_use).0.saturating_add(ttl.as_millis() as u64) > now_ms {
            return false;
        }
        !entry.is(Flag::Pinned) && entry.leased_until_s <= self.now_s()
    }

    /// Takes out what has expired, some chunks at a time. `freed` gets their extents and bytes, and says whether to go on.
    ///
    /// A use in the future is one by a clock that was set back since: its chunk would stay for as long as that clock was ahead. It
    /// counts as a use of now, once the clock has gone on like that for [`BELIEVED_AFTER`]. Not before: it may be the clock of now
    /// that is wrong, as at a boot before the first answer of NTP, and once it is right all would have expired.
    pub(crate) fn expire(&self, mut freed: impl FnMut(Vec<Extent>, u64) -> bool) {
        let Some(ttl) = self.ttl() else { return };
        let since_s = *self.ahead_since_s.lock();
        let believed_after_s = BELIEVED_AFTER.min(ttl).as_secs() as u32;
        let is_believed =
            since_s.is_some_and(|since_s| self.now_s().saturating_sub(since_s) >= believed_after_s);
        let mut are_ahead = false;
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
                    are_ahead |= !ahead.is_empty();
                    for found in ahead.into_iter().filter(|_| is_believed) {
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
        *self.ahead_since_s.lock() =
            (are_ahead && !is_believed).then(|| since_s.unwrap_or_else(|| self.now_s()));
    }
}
