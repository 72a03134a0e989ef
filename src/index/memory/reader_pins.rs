//! Reading a chunk: the pin of a GET or of a verification, and its return.

use super::map::{Gone, Index};
use super::shard::{ChunkVersion, Pin, WaitingGet};
use crate::base::block::Extent;
use crate::base::sync::atomic::Ordering;
use crate::index::memory::shard::entries::Flag;
use crate::key::Digest;

/// GETs that may wait for the SETs of one key: each SET that ends looks at all of them under the lock of the shard.
pub(in crate::index) const MAX_WAITING_GETS: usize = 1024;

/// Outcome of [`Index::enter_get`].
pub(crate) enum ReadOutcome<G, R> {
    Hit(G, R),
    /// The key is not stored in this length, and too many wait for it already, if it is being written.
    Miss(G),
    /// It waits for a SET of the same key, which is to be promoted, and comes back from [`Index::finish_set`].
    Waits,
}

impl<G, S> Index<G, S> {
    /// GET: pins the chunk of `key` if it is stored in exactly `length_bytes`, though another may be being written: that SET is
    /// not answered yet. Else waits for that SET. `held` is what has the pin.
    pub(crate) fn enter_get<R>(
        &self,
        digest: Digest,
        key: &str,
        length_bytes: u64,
        now_ms: u64,
        request: G,
        held: impl Fn(Pin) -> R,
    ) -> ReadOutcome<G, R> {
        let (_, mut shard) = self.shard(digest);
        let stored = self.find_stored(&shard, digest, key, now_ms);
        if let Some(found) = stored
            && let Some(pin) = shard.pin(found.entry, length_bytes)
        {
            self.touch(&mut shard, found, now_ms);
            return ReadOutcome::Hit(request, held(pin));
        }
        if let Some(pending) = shard.pending_mut(digest) {
            // A chunk that is written before a DELETE, which is answered, is not stored any more.
            let set = pending.last_set();
            let is_deleted = pending.deletes.back() == Some(&set);
            if *pending.key != *key || is_deleted || pending.gets.len() == MAX_WAITING_GETS {
                return ReadOutcome::Miss(request);
            }
            pending.gets.push_back(WaitingGet { set, length_bytes, request });
            if pending.gets.len() == 1 {
                self.awaited.fetch_add(1, Ordering::SeqCst);
            }
            return ReadOutcome::Waits;
        }
        if stored.is_none() {
            self.note_ghost(&shard, digest);
        }
        ReadOutcome::Miss(request)
    }

    /// Takes the GETs that are `late` out of those that wait for a SET of this key.
    pub(crate) fn take_late_gets(&self, digest: Digest, late: impl Fn(&G) -> bool) -> Vec<G> {
        let mut shard = self.shard(digest).1;
        let Some(pending) = shard.pending_mut(digest) else { return Vec::new() };
        let mut taken = Vec::new();
        for get in std::mem::take(&mut pending.gets) {
            match late(&get.request) {
                true => taken.push(get.request),
                false => pending.gets.push_back(get),
            }
        }
        if !taken.is_empty() && pending.gets.is_empty() {
            self.awaited.fetch_sub(1, Ordering::SeqCst);
        }
        taken
    }

    /// Pins a chunk to verify it, if it is still the same.
    pub(crate) fn pin_version(&self, version: ChunkVersion) -> Option<Pin> {
        let (_, mut shard) = self.shard(version.digest);
        let found = shard.find(version.digest)?;
        if self.table.read(found.record).generation != version.generation {
            return None;
        }
        let length_bytes = u64::from(shard.entries[found.entry].length_bytes);
        shard.pin(found.entry, length_bytes)
    }

    /// Names the chunk behind `pin` for [`Index::pin_version`]; none if it is gone already.
    pub(crate) fn version_of(&self, pin: &Pin) -> Option<ChunkVersion> {
        let (_, shard) = self.shard(pin.digest);
        let found = shard.find(pin.digest).filter(|found| found.entry == pin.entry)?;
        Some(ChunkVersion {
            digest: pin.digest,
            generation: self.table.read(found.record).generation,
        })
    }

    /// Drops the chunk behind `pin`, whose bytes are damaged.
    pub(crate) fn discard(&self, pin: &Pin) {
        let (_, mut shard) = self.shard(pin.digest);
        // Its readers include the pin: the extent is freed when that is returned.
        self.take_out(&mut shard, pin.entry, Gone::Removed);
    }

    /// Returns a pin; `matched` says whether the chunk was read and matched its checksum. Returns the extent that is free now, if
    /// this was the last reader of a chunk that is gone.
    pub(crate) fn unpin(&self, pin: &Pin, matched: bool) -> Option<Extent> {
        let (_, mut shard) = self.shard(pin.digest);
        let entry = &mut shard.entries[pin.entry];
        if matched {
            entry.set(Flag::WasRead, true);
        }
        entry.remove_reader();
        let is_detached = entry.is(Flag::Detached);
        if !is_detached {
            self.release(entry);
        }
        let unused = is_detached && entry.readers() == 0;
        unused.then(|| shard.entries.remove(pin.entry).extent())
    }
}
