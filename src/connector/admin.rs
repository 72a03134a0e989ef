//! Administration of a store: prefixes, pins, namespaces, expiry, a check of everything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::volume::Volume;
use super::{Connector, SubmitError};
use crate::base::buffer::CallerBuffer;
use crate::base::time::Patience;
use crate::engine::MemoryHandle;
use crate::evict::NamespaceUsage;
use crate::index::{Check, KeyState, Purged};
use crate::key::{Hashed, Namespace};
use crate::reactor::ReactorGroup;

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
        let hashed = self.asked_for(keys, &[]);
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
        Ok(self
            .volumes
            .ask_each(keys.iter().map(Hashed::of), |volume, keys| volume.pin_keys(keys, now_ms)))
    }

    /// Unpins keys. Says of each key whether it was pinned.
    pub fn unpin<K: AsRef<str>>(&self, keys: &[K]) -> Result<Vec<bool>, SubmitError> {
        let keys = &*self.as_stored(keys);
        let _gate = self.enter(keys)?;
        Ok(self
            .volumes
            .ask_each(keys.iter().map(Hashed::of), |volume, keys| volume.index().unpin_keys(keys)))
    }

    /// Says of each of `keys` whether it is stored now. Unlike EXISTS it leases nothing and counts no lookup.
    pub fn holds<K: AsRef<str>>(&self, keys: &[K]) -> Result<Vec<bool>, SubmitError> {
        let keys = &*self.as_stored(keys);
        let _gate = self.enter(keys)?;
        let now_ms = self.config.clock.now_ms();
        Ok(self.volumes.ask_each(keys.iter().map(Hashed::of), |volume, keys| {
            volume.index().holds_keys(keys, now_ms)
        }))
    }

    /// The length of the chunk of each of `keys`, in bytes; none where a GET would miss. It leases nothing and counts no lookup.
    pub fn lengths<K: AsRef<str>>(&self, keys: &[K]) -> Result<Vec<Option<u64>>, SubmitError> {
        let keys = &*self.as_stored(keys);
        let _gate = self.enter(keys)?;
        let now_ms = self.config.clock.now_ms();
        Ok(self.volumes.ask_each(self.asked_for(keys, &[]), |volume, keys| {
            volume.index().lengths_of(keys, now_ms)
        }))
    }

    /// Counts a use of each of `keys` now, without loading it: for chunks that are used in a tier above. As with a load, they go later and expire
    /// later. Says of each key whether it is stored.
    pub fn touch<K: AsRef<str>>(&self, keys: &[K]) -> Result<Vec<bool>, SubmitError> {
        let keys = &*self.as_stored(keys);
        let _gate = self.enter(keys)?;
        let now_ms = self.config.clock.now_ms();
        Ok(self.volumes.ask_each(keys.iter().map(Hashed::of), |volume, keys| {
            volume.index().touch_keys(keys, now_ms)
        }))
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
        if let Some(refused) = live.find(|shared| shared.cache.index.changes.refusal().is_some()) {
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
            volume.shared.cache.index.changes.announce();
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

impl Connector {
    /// Registers memory with the rings, so that the kernel does not look up and pin its pages for each transfer: a host's arena of chunks, say. A
    /// transfer that is wholly inside uses that. What the system refuses is said once in the log, and goes without.
    ///
    /// It pins the memory, which takes a while for long memory of small pages, and waits for the reactors to take note, for 1 s at most.
    ///
    /// The memory stays mapped as it is until the handle is closed or dropped, or the connector is closed, as [`CallerBuffer::new`] says.
    ///
    /// # Errors
    /// `SubmitError::Memory` for no bytes, and for memory that is registered already.
    pub fn register_memory(&self, memory: CallerBuffer) -> Result<MemoryHandle, SubmitError> {
        // Nothing here looks at the memory, and the kernel refuses what is not mapped.
        let _gate = self.enter::<&str>(&[])?;
        Ok(self.memory.register(memory.address(), memory.length_bytes())?)
    }
}

/// As long as LMCache waits for a delete of a native connector.
const LONGEST_DELETE: Duration = Duration::from_secs(30);

/// Keys that are removed in memory, and may still be in the index file.
#[must_use = "a kill may bring the keys back before it was waited for"]
#[derive(Default)]
pub struct Removal {
    waits: Vec<(Arc<ReactorGroup>, u64)>,
    /// Keys of a path stay.
    pub(super) refused: Option<SubmitError>,
}

impl Removal {
    /// What was queued for the index of a path by now.
    pub(super) fn add(&mut self, shared: &Arc<ReactorGroup>) {
        let index = &shared.cache.index;
        index.changes.announce();
        self.waits.push((Arc::clone(shared), index.changes.ticket()));
    }

    /// Waits for the index file, for 30 s at most; without the gate, or close() would wait as well.
    ///
    /// # Errors
    /// [`SubmitError::NotRemoved`]: the index of a path did not take all of it, or its keys were not removed at all.
    pub fn wait(self) -> Result<(), SubmitError> {
        self.wait_within(Some(&mut Patience::new(LONGEST_DELETE)))
    }

    /// As long as `patience` lasts.
    pub(super) fn wait_within(
        self,
        mut patience: Option<&mut Patience>,
    ) -> Result<(), SubmitError> {
        let mut outcome = self.refused.map_or(Ok(()), Err);
        for (shared, ticket) in self.waits {
            if !shared.cache.index.changes.wait(ticket, patience.as_deref_mut()) {
                outcome = outcome.and(Err(not_removed(&shared)));
            }
        }
        outcome
    }
}

/// The error of a removal that the index of a path does not take.
pub(super) fn not_removed(shared: &ReactorGroup) -> SubmitError {
    let refusal = shared.cache.index.changes.refusal().map(|reason| reason.to_string());
    let reason = refusal.or_else(|| shared.health.reason()).unwrap_or_else(|| {
        "its file system did not take the change in time, or the store was closed; a restart may bring keys back: remove them \
         again"
            .into()
    });
    SubmitError::NotRemoved { path: shared.cache.config.path().to_owned(), reason }
}
