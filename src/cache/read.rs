//! Reading a chunk: a handle that keeps its extent from being given away.

use std::sync::Arc;

use super::Cache;
use crate::index::{ChunkVersion, Pin, PinRefusal};
use crate::key::Hashed;

/// A reader's hold on a stored chunk. Dropped, it lets go of the chunk; the last reader of one that is gone gives its extent back.
pub(crate) struct ReadHandle {
    cache: Arc<Cache>,
    pub(crate) pin: Pin,
    /// The chunk was read, and its checksum fitted.
    has_matched: bool,
}

impl Cache {
    /// GET: opens the chunk that is asked for if it is stored in exactly this length.
    pub(crate) fn open(
        self: &Arc<Self>,
        asked: Hashed<'_>,
        length_bytes: u64,
        now_ms: u64,
    ) -> Option<ReadHandle> {
        match self.index.pin_stored(asked, length_bytes, now_ms) {
            Ok(pin) => Some(ReadHandle::new(self, pin)),
            Err(PinRefusal::OtherVariant) => {
                self.note_other_variants(1);
                None
            }
            Err(PinRefusal::Missing) => None,
        }
    }

    /// Opens a chunk to verify it, if it is still the one that was suspected.
    pub(crate) fn open_version(self: &Arc<Self>, version: ChunkVersion) -> Option<ReadHandle> {
        self.index.pin_version(version).map(|pin| ReadHandle::new(self, pin))
    }
}

impl ReadHandle {
    pub(super) fn new(cache: &Arc<Cache>, pin: Pin) -> Self {
        Self { cache: Arc::clone(cache), pin, has_matched: false }
    }

    /// What names the chunk for later; none if it is gone already.
    pub(crate) fn version(&self) -> Option<ChunkVersion> {
        self.cache.index.version_of(&self.pin)
    }

    /// Which chunk it is and where it lies, for messages.
    pub(crate) fn extent_text(&self) -> String {
        self.cache.extent_text(self.pin.digest, self.pin.extent)
    }

    /// All of it was read. Says whether `checksum` is that of what was stored; a chunk that is damaged is dropped.
    pub(crate) fn finish(mut self, checksum: u64) -> bool {
        let is_verified = self.cache.config.checksum.is_on();
        let expected = self.pin.checksum.filter(|_| is_verified);
        if expected.is_some_and(|expected| expected != checksum) {
            self.cache.counters.checksum_mismatch.add(1);
            self.cache.log_limits.mismatches.log(self.cache.config.path(), 1, || {
                format!("a chunk ({}) does not match its checksum: dropped", self.extent_text())
            });
            self.discard();
            return false;
        }
        if self.cache.suspects.are_there()
            && let Some(version) = self.version()
        {
            self.cache.suspects.remove(version.digest);
        }
        self.has_matched = expected.is_some();
        true
    }

    pub(crate) fn discard(self) {
        self.cache.index.discard(&self.pin);
    }
}

impl Drop for ReadHandle {
    fn drop(&mut self) {
        // As in a write handle.
        if std::thread::panicking() {
            return;
        }
        if let Some(extent) = self.cache.index.unpin(&self.pin, self.has_matched) {
            self.cache.reclaim(extent);
        }
    }
}
