//! EXISTS: which of many keys are held.

use super::lookup::Found;
use super::map::Index;
use crate::key::Digest;

/// Keys that EXISTS looks up together: what they touch fits into the first-level cache of a processor.
const ROUND: usize = 64;

impl<G, S> Index<G, S> {
    /// EXISTS: which keys are held. In rounds, so that what is cold in a large store (buckets first, then records) comes
    /// into the processor's cache for many keys at once instead of one after the other.
    pub(crate) fn contains_each<K: AsRef<str>>(&self, keys: &[K]) -> Vec<bool> {
        let mut held = Vec::with_capacity(keys.len());
        let mut digests = Vec::with_capacity(ROUND.min(keys.len()));
        for keys in keys.chunks(ROUND) {
            digests.clear();
            digests.extend(keys.iter().map(|key| Digest::of(key.as_ref())));
            self.prefetch_each(keys, &digests);
            // Looked up again: what was found may have gone since, and its slot may be another's.
            held.extend(keys.iter().zip(&digests).map(|(key, digest)| {
                let is_it = |found: Found| self.table.holds(found.record, *digest, key.as_ref());
                self.shard(*digest).1.lookup.find(digest.tag(), is_it).is_some()
            }));
        }
        held
    }

    /// Brings what is known of each of these keys into the processor's cache: of many at once instead of one after the
    /// other.
    pub(crate) fn prefetch_each<K: AsRef<str>>(&self, keys: &[K], digests: &[Digest]) {
        digests.iter().for_each(|digest| self.prefetch(*digest));
        for (key, digest) in keys.iter().zip(digests) {
            let (_, shard) = self.shard(*digest);
            if let Some(found) = shard.lookup.find(digest.tag(), |_| true) {
                self.table.prefetch(found.record, key.as_ref().len());
                shard.entries.prefetch(found.entry);
            }
        }
    }

    /// Brings what finds `digest` into the processor's cache, without waiting for it.
    pub(super) fn prefetch(&self, digest: Digest) {
        self.shard(digest).1.lookup.prefetch(digest.tag());
    }
}
