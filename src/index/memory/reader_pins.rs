//! Reading a chunk: the pin of a GET or of a verification, and its return.

use super::map::{Gone, Index};
use super::shard::{ChunkVersion, Pin};
use crate::base::block::Extent;
use crate::index::memory::shard::entries::Flag;
use crate::key::Hashed;

/// Why a GET gets no chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinRefusal {
    /// Nothing is stored under its key in this length.
    Missing,
    /// A chunk is stored under its key that means something else.
    OtherVariant,
}

impl<S> Index<S> {
    /// GET: pins the chunk that is asked for if it is stored in exactly `length_bytes`, though another may be being written: that SET is
    /// not answered yet.
    pub(crate) fn pin_stored(
        &self,
        asked: Hashed<'_>,
        length_bytes: u64,
        now_ms: u64,
    ) -> Result<Pin, PinRefusal> {
        let Hashed { key, digest, variant } = asked;
        let (_, mut shard) = self.shard(digest);
        let Some(found) = self.find_stored(&shard, digest, key, now_ms) else {
            if shard.pending_mut(digest).is_none() {
                self.note_ghost(&shard, digest);
            }
            return Err(PinRefusal::Missing);
        };
        if !shard.entries[found.entry].meets(variant) {
            return Err(PinRefusal::OtherVariant);
        }
        let pin = shard.pin(found.entry, length_bytes).ok_or(PinRefusal::Missing)?;
        self.touch(&mut shard, found, now_ms);
        Ok(pin)
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
