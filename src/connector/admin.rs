//! Administration of a store: prefixes, pins, namespaces, expiry, a check of everything.

use std::collections::BTreeMap;

use super::removal::{Removal, not_removed};
use super::volume::Volume;
use super::{Connector, SubmitError};
use crate::evict::NamespaceUsage;
use crate::index::{Check, KeyState, Purged};
use crate::key::{Hashed, Namespace};

impl Connector {
    /// Asks how many leading keys are stored, and leases these. The answers are as those of [`Connector::submit_exists`] up to
    /// the first key that is not stored, and false from there on.
    pub fn submit_prefix<K: AsRef<str>>(&self, keys: &[K]) -> Result<u64, SubmitError> {
        let keys = &*self.as_stored(keys);
        let _gate = self.enter(keys)?;
        let mut results = self.stored_prefix(keys);
        results.resize(keys.len(), false);
        Ok(self.complete(&self.completions.common, results, None, Box::new(())))
    }

    /// [`Connector::submit_prefix`], answered at once: how many leading keys are stored.
    pub fn prefix<K: AsRef<str>>(&self, keys: &[K]) -> Result<usize, SubmitError> {
        let keys = &*self.as_stored(keys);
        let _gate = self.enter(keys)?;
        let results = self.stored_prefix(keys);
        Ok(results.iter().take_while(|is_stored| **is_stored).count())
    }

    /// The answers up to the first key that is not stored, at least.
    fn stored_prefix<K: AsRef<str>>(&self, keys: &[K]) -> Vec<bool> {
        let live = self.volumes.live_set();
        let hashed = keys.iter().map(Hashed::of);
        match self.volumes.only() {
            Some(volume) => volume.contains_each(hashed, true),
            None => {
                let is_stored = |key: Hashed<'_>| {
                    let volume = &self.volumes.all[self.volumes.number_of(key.digest, live)];
                    volume.contains_each(std::iter::once(key), false)[0].then_some(true)
                };
                // One by one: those after the first miss are not leased.
                hashed.map_while(is_stored).collect()
            }
        }
    }

    /// Pins `keys`: a pinned chunk is neither evicted nor expires before it is unpinned or deleted, or the store is closed.
    /// Says of each key whether it is pinned now: not if it is not stored, or half of the capacity is pinned.
    pub fn pin<K: AsRef<str>>(&self, keys: &[K]) -> Result<Vec<bool>, SubmitError> {
        let keys = &*self.as_stored(keys);
        let _gate = self.enter(keys)?;
        let now_ms = self.config.clock.now_ms();
        Ok(self.volumes.ask_each(keys, |volume, keys| volume.pin_keys(keys, now_ms)))
    }

    /// Unpins keys. Says of each key whether it was pinned.
    pub fn unpin<K: AsRef<str>>(&self, keys: &[K]) -> Result<Vec<bool>, SubmitError> {
        let keys = &*self.as_stored(keys);
        let _gate = self.enter(keys)?;
        Ok(self.volumes.ask_each(keys, |volume, keys| volume.index().unpin_keys(keys)))
    }

    /// Says of each of `keys` whether it is stored now. Unlike EXISTS it leases nothing and counts no lookup.
    pub fn holds<K: AsRef<str>>(&self, keys: &[K]) -> Result<Vec<bool>, SubmitError> {
        let keys = &*self.as_stored(keys);
        let _gate = self.enter(keys)?;
        let now_ms = self.config.clock.now_ms();
        Ok(self.volumes.ask_each(keys, |volume, keys| volume.index().holds_keys(keys, now_ms)))
    }

    /// Counts a use of each of `keys` now, without loading it: for chunks that are used in a tier above. As with a load, they go later and expire
    /// later. Says of each key whether it is stored.
    pub fn touch<K: AsRef<str>>(&self, keys: &[K]) -> Result<Vec<bool>, SubmitError> {
        let keys = &*self.as_stored(keys);
        let _gate = self.enter(keys)?;
        let now_ms = self.config.clock.now_ms();
        Ok(self.volumes.ask_each(keys, |volume, keys| volume.index().touch_keys(keys, now_ms)))
    }

    /// What each namespace takes, by name: the model, or `model@salt`; empty for keys that are not of LMCache's form.
    pub fn usage(&self) -> Result<Vec<(String, NamespaceUsage)>, SubmitError> {
        let _gate = self.enter::<&str>(&[])?;
        let mut all: BTreeMap<String, NamespaceUsage> = BTreeMap::new();
        for (name, usage) in self.volumes.live().flat_map(|volume| volume.index().usage()) {
            all.entry(name).or_default().add(&usage);
        }
        Ok(all.into_iter().collect())
    }

    /// Keys of a namespace that are stored or being written: at least `limit` from `cursor` (0 at first) on, if there are so
    /// many, and the cursor to continue with, if there are more. Keys stored or removed meanwhile may be missing. A path whose
    /// reactors have failed has none.
    #[expect(clippy::type_complexity, reason = "a list, and where to go on")]
    pub fn keys(
        &self,
        namespace: &str,
        cursor: usize,
        limit: usize,
    ) -> Result<(Vec<(String, KeyState)>, Option<usize>), SubmitError> {
        let _gate = self.enter::<&str>(&[])?;
        // The shards of all paths, one path after the other.
        let (mut keys, mut skipped) = (Vec::new(), 0);
        for (number, volume) in self.volumes.all.iter().enumerate() {
            let shards = volume.index().shard_count();
            let from = cursor.saturating_sub(skipped);
            // Those of a path that is out of use count too: one may go between two pages.
            if from < shards && self.volumes.is_live(number) && !volume.shared.has_failed() {
                let left = limit.max(1).saturating_sub(keys.len());
                let (own, next) = volume.index().keys_of(namespace, from, left);
                keys.extend(own);
                if let Some(next) = next {
                    return Ok((keys, Some(skipped + next)));
                }
            }
            skipped += shards;
        }
        Ok((keys, None))
    }

    /// Stored keys of this engine, of a model or all, with the lengths of their chunks: up to `limit` from `cursor` (0 at first) on, and the cursor to
    /// continue with, if there are more. Keys stored or removed meanwhile may be missing. A path whose reactors have failed has none.
    #[expect(clippy::type_complexity, reason = "a list, and where to go on")]
    pub fn stored_keys(
        &self,
        model: Option<&str>,
        cursor: u64,
        limit: usize,
    ) -> Result<(Vec<(String, u64)>, Option<u64>), SubmitError> {
        let _gate = self.enter::<&str>(&[])?;
        let is_meant = |stored: &str| {
            let own = self.own_key(stored);
            own.is_some_and(|key| model.is_none_or(|model| Namespace::of(key).model == model))
        };
        let own = |(stored, length_bytes): (String, u64)| {
            Some((self.own_key(&stored)?.to_owned(), length_bytes))
        };
        let mut keys = Vec::new();
        let (first, mut from) = (cursor >> 48, ((cursor >> 32) as usize & 0xffff, cursor as u32));
        for (number, volume) in self.volumes.all.iter().enumerate().skip(first as usize) {
            let start = std::mem::take(&mut from);
            if self.volumes.is_live(number) && !volume.shared.has_failed() {
                let left = limit.max(1) - keys.len();
                let (stored, next) = volume.index().stored_keys(start, left, is_meant);
                keys.extend(stored.into_iter().filter_map(own));
                if let Some((shard, entry)) = next {
                    let cursor = (number << 48 | shard << 32) as u64 | u64::from(entry);
                    return Ok((keys, Some(cursor)));
                }
            }
        }
        Ok((keys, None))
    }

    /// Removes a namespace: its chunks, those being written, and the keys remembered for admission. It waits for the index file.
    /// A pinned key stays, with the chunk that is being written for it.
    ///
    /// # Errors
    /// [`SubmitError::NotRemoved`]: the index of a path takes no change, and nothing is removed, or it did not take all of it.
    pub fn purge(&self, namespace: &str) -> Result<Purged, SubmitError> {
        let gate = self.enter::<&str>(&[])?;
        let mut all = Purged::default();
        let mut removal = Removal::default();
        let mut live = self.volumes.live().map(|volume| &volume.shared);
        if let Some(refused) = live.find(|shared| shared.cache.refusal().is_some()) {
            return Err(not_removed(refused));
        }
        for shared in self.volumes.live().map(|volume| &volume.shared) {
            all.add(shared.cache.purge(namespace));
            removal.add(shared);
        }
        // Not with the gate: close() and other submits would wait as well.
        drop(gate);
        removal.wait_within(None).map(|()| all)
    }

    /// Removes expired chunks now, and returns how many. This happens in the background as well.
    pub fn expire(&self) -> Result<u64, SubmitError> {
        let _gate = self.enter::<&str>(&[])?;
        let expire = |volume: &Volume| {
            let count = volume.shared.cache.expire(false);
            volume.shared.cache.index.announce_changes();
            count
        };
        Ok(self.volumes.live().map(expire).sum())
    }

    /// Compares map, index, order of eviction, namespaces and allocated space with each other while nothing changes: all
    /// submits wait for it, for about a second with 10,000,000 keys.
    pub fn check(&self) -> Result<Check, SubmitError> {
        let _gate = self.enter::<&str>(&[])?;
        let mut all = Check::default();
        for (path, shared) in self.volumes.live().map(|volume| (volume.path(), &volume.shared)) {
            let check = shared.cache.index.check(|| shared.cache.store.usage().allocated_bytes);
            all.add(check, |problem| format!("{}: {problem}", path.display()));
        }
        Ok(all)
    }
}
