//! GET, SET, EXISTS and DELETE, as they are submitted: what the index knows at once, and what goes to the reactors.

use std::iter::repeat_n;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::admin::{Removal, not_removed};
use super::{Connector, SubmitError};
use crate::base::buffer::{CallerBuffer, SourceBuffer, Variant};
use crate::base::checksum::crc32c;
use crate::batch::backlog::Amount;
use crate::batch::completion_queue::{FailureCode, FailureReason, KeepAlive};
use crate::batch::responder::{Batch, Responder};
use crate::cache::{Claim, GetRequest, SetRequest};
use crate::error::StoreError;
use crate::index::ClaimOutcome;
use crate::key::{AskedVariant, Digest, Fingerprints, Hashed};
use crate::reactor::{Answer, Operation, ReactorGroup};

impl Connector {
    /// Loads chunks. A key that is not stored, or not in exactly its buffer's length, is answered false and its buffer stays
    /// unchanged. `keep_alive` is dropped with the completion.
    pub fn submit_get<K: AsRef<str>>(
        &self,
        keys: &[K],
        buffers: &[CallerBuffer],
        keep_alive: KeepAlive,
    ) -> Result<u64, SubmitError> {
        let keys = &*self.as_stored(keys);
        let _gate = self.enter(keys)?;
        check_counts(keys.len(), buffers.len())?;
        let future_id = self.future_id();
        let (now_ms, submitted) = (self.config.clock.now_ms(), Instant::now());
        let live = self.volumes.live_set();
        let mut operations = self.volumes.operations(keys.len());
        let items = Batch::start(future_id, keys.len(), keep_alive, &self.completions.common);
        let variants: Vec<Option<Variant>> =
            buffers.iter().map(|buffer| Some(buffer.variant())).collect();
        let asked = self.prefetched(self.asked_for(keys, &variants).collect());
        // The last one is used first: without those before it, it is of no use, and should go before them.
        for ((item, asked), buffer) in items.zip(asked).zip(buffers).rev() {
            let number = self.volumes.number_of(asked.digest, live);
            let shared = &self.volumes.all[number].shared;
            let length_bytes = buffer.length_bytes() as u64;
            let read = match shared.responsiveness.misses_loads() {
                true => None,
                false => shared.cache.open(asked, length_bytes, now_ms),
            };
            match read {
                Some(read) => {
                    let request = GetRequest { item, buffer: *buffer, submitted };
                    operations[number].push(Operation::Get(request, read));
                }
                None => {
                    shared.cache.counters.get_misses.add(1);
                    item.miss();
                }
            }
        }
        self.volumes.push_reversed(operations);
        self.completions.announce();
        Ok(future_id)
    }

    /// Stores chunks. A key that is stored, or being stored, with the same bytes is not written again; with others it is
    /// replaced, and readers see the old chunk or the new one, whole. The completion is `ok` if every key was stored. A chunk
    /// that is longer than the store takes fails alone.
    ///
    /// A batch past `set_queue_bytes`, or past 131,072 keys that are not answered yet, is answered at once: not `ok`, "queue
    /// full".
    pub fn submit_set<K: AsRef<str>>(
        &self,
        keys: &[K],
        buffers: &[CallerBuffer],
        keep_alive: KeepAlive,
    ) -> Result<u64, SubmitError> {
        let keys = &*self.as_stored(keys);
        let _gate = self.enter(keys)?;
        check_counts(keys.len(), buffers.len())?;
        if let Some(position) = buffers.iter().position(|buffer| buffer.length_bytes() == 0) {
            return Err(SubmitError::EmptyChunk { position });
        }
        let limit_bytes = self.max_chunk_bytes();
        let lengths = buffers.iter().map(|buffer| buffer.length_bytes() as u64);
        let wanted = Amount {
            operations: keys.len() as u64,
            bytes: lengths.filter(|length_bytes| *length_bytes <= limit_bytes).sum(),
        };
        let admitted = self.backlog.admit(wanted);
        // The last key takes the share itself, so that none outlives the answers.
        let Some(shares) = admitted.map(|share| repeat_n(Arc::new(share), keys.len())) else {
            return Ok(self.reject_full(keys.len(), keep_alive));
        };
        let future_id = self.future_id();
        let (now_ms, submitted) = (self.config.clock.now_ms(), Instant::now());
        let live = self.volumes.live_set();
        let mut operations = self.volumes.operations(keys.len());
        let items = Batch::start(future_id, keys.len(), keep_alive, self.completions.of_sets());
        let mut fingerprints = Fingerprints::default();
        for (((item, share), key), buffer) in items.zip(shares).zip(keys).zip(buffers) {
            let namespace = fingerprints.of(key.as_ref());
            let key: Arc<str> = key.as_ref().into();
            let (digest, buffer) = (Digest::of(&key), *buffer);
            let request = SetRequest {
                item,
                buffer: SourceBuffer::of_set(buffer),
                digest,
                key: Arc::clone(&key),
                namespace,
                submitted_ms: now_ms,
                variant: buffer.variant() ^ self.epoch(),
                submitted,
                share,
            };
            let number = self.volumes.number_of(digest, live);
            let shared = &self.volumes.all[number].shared;
            if buffer.length_bytes() as u64 > limit_bytes {
                self.refuse_long(request, limit_bytes, shared);
                continue;
            }
            if let Some(silence) = shared.responsiveness.silence() {
                let path = shared.cache.config.path().display();
                let message = format!("nothing is stored in {path}: {silence}");
                refuse(request, shared, FailureReason::new(FailureCode::Unavailable, message));
                continue;
            }
            shared.cache.counters.set_queued.add(1);
            match shared.cache.index.enter_set(digest, &key, now_ms, request) {
                ClaimOutcome::Ready(request) => {
                    operations[number].push(Operation::set(Claim::new(request, false)));
                }
                ClaimOutcome::Collides(request) => {
                    shared.cache.counters.hash_collision.add(1);
                    log::warn!("{}", collision(&key).message);
                    refuse(request, shared, collision(&key));
                }
                ClaimOutcome::Quarantined(request) => refuse(request, shared, collision(&key)),
                ClaimOutcome::Waits => {}
            }
        }
        // The last chunk is stored first: it is to go before those that it is of no use without.
        self.volumes.push_reversed(operations);
        self.completions.announce();
        Ok(future_id)
    }

    /// Asks which keys are stored, and leases these for `lease_s`: the load that follows finds them. Answered from the
    /// index, without I/O as long as that is in memory. False for all keys of a path whose reactors have failed, or whose drive answers
    /// nothing: nobody can load them.
    pub fn submit_exists<K: AsRef<str>>(&self, keys: &[K]) -> Result<u64, SubmitError> {
        let keys = &*self.as_stored(keys);
        let _gate = self.enter(keys)?;
        let results = self.stored_each(keys, &[]);
        Ok(self.complete(&self.completions.common, results, None, Box::new(())))
    }

    /// [`Connector::submit_exists`], answered at once.
    pub fn exists<K: AsRef<str>>(&self, keys: &[K]) -> Result<Vec<bool>, SubmitError> {
        self.exists_as(keys, &[])
    }

    /// [`Connector::exists`] for chunks of `variants`, one for each key; None is any. Where there are none, they are those of callers
    /// that name none.
    pub fn exists_as<K: AsRef<str>>(
        &self,
        keys: &[K],
        variants: &[Option<Variant>],
    ) -> Result<Vec<bool>, SubmitError> {
        let keys = &*self.as_stored(keys);
        let _gate = self.enter(keys)?;
        if !variants.is_empty() {
            check_counts(keys.len(), variants.len())?;
        }
        Ok(self.stored_each(keys, variants))
    }

    fn stored_each<K: AsRef<str>>(&self, keys: &[K], variants: &[Option<Variant>]) -> Vec<bool> {
        let asked = self.asked_for(keys, variants);
        match self.volumes.only() {
            Some(volume) => volume.contains_each(asked, false),
            None => self
                .volumes
                .ask_each(asked, |volume, keys| volume.contains_each(keys.iter().copied(), false)),
        }
    }

    /// Keys with the variants that are asked for, in the epoch of now.
    pub(super) fn asked_for<'key, K: AsRef<str>>(
        &self,
        keys: &'key [K],
        variants: &'key [Option<Variant>],
    ) -> impl ExactSizeIterator<Item = Hashed<'key>> + use<'key, K> {
        let epoch = self.epoch();
        keys.iter().enumerate().map(move |(number, key)| {
            let variant = variants.get(number).copied().unwrap_or(Some(0));
            Hashed {
                variant: variant.map(|variant| AskedVariant::new(variant, epoch)),
                ..Hashed::of(key)
            }
        })
    }

    /// Begins an epoch: what was stored in another one is missed from now on, and found again when its epoch returns. For weights that
    /// change under one model name. "" is the first epoch of a store.
    pub fn set_epoch(&self, name: &str) {
        let variant = if name.is_empty() { 0 } else { crc32c(name.as_bytes()).max(1) };
        self.epoch.store(variant, Ordering::SeqCst);
    }

    /// What the epoch of now is in variants; 0 in the first one.
    pub fn epoch(&self) -> Variant {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Removes keys. None of them is found when this returns. The completion follows when the index file has it, so that no restart
    /// brings them back; the space is freed after the last reader. True means "not here any more", also for a key that was not
    /// stored: LMCache picks a key that is answered false again and again, and its accounting never comes down. A key of a path whose index
    /// takes no change stays, and fails.
    pub fn submit_delete<K: AsRef<str>>(&self, keys: &[K]) -> Result<u64, SubmitError> {
        let keys = &*self.as_stored(keys);
        let _gate = self.enter(keys)?;
        let future_id = self.future_id();
        let mut removed: Vec<Vec<Responder>> = Vec::new();
        removed.resize_with(self.volumes.all.len(), Vec::new);
        let items = Batch::start(future_id, keys.len(), Box::new(()), &self.completions.common);
        for ((number, was_there), item) in self.remove_each(keys).into_iter().zip(items) {
            match was_there {
                Some(_) => removed[number].push(item),
                None => item.fail(|| {
                    let error = not_removed(&self.volumes.all[number].shared);
                    FailureReason::new(FailureCode::Unavailable, error.to_string())
                }),
            }
        }
        for (volume, items) in self.volumes.all.iter().zip(removed) {
            if !items.is_empty() {
                volume.shared.reclaim_deleted();
                volume.shared.answer_when_written(Answer::Removed(items));
                volume.shared.cache.index.changes.announce();
            }
        }
        self.completions.announce();
        Ok(future_id)
    }

    /// [`Connector::submit_delete`], done when it returns: it waits for the index file, for 30 s at most. Says of each key whether it was
    /// stored, or being written.
    ///
    /// # Errors
    /// As [`Removal::wait`].
    pub fn delete<K: AsRef<str>>(&self, keys: &[K]) -> Result<Vec<bool>, SubmitError> {
        let (were_there, removal) = self.begin_delete(keys)?;
        removal.wait()?;
        Ok(were_there)
    }

    /// The part of [`Connector::delete`] that does not wait for the index file: none of `keys` is found when this returns, but those of
    /// a path whose index takes no change.
    pub fn begin_delete<K: AsRef<str>>(
        &self,
        keys: &[K],
    ) -> Result<(Vec<bool>, Removal), SubmitError> {
        let keys = &*self.as_stored(keys);
        let _gate = self.enter(keys)?;
        let removed = self.remove_each(keys);
        let mut removal = Removal::default();
        for (number, volume) in self.volumes.all.iter().enumerate() {
            let mut own = removed.iter().filter(|(of, _)| *of == number).peekable();
            if own.peek().is_some() {
                volume.shared.reclaim_deleted();
                removal.add(&volume.shared);
            }
            if own.any(|(_, was_there)| was_there.is_none()) {
                removal.refused = Some(not_removed(&volume.shared));
            }
        }
        let were_there = removed.into_iter().map(|(_, was_there)| was_there.unwrap_or_default());
        Ok((were_there.collect(), removal))
    }

    /// Takes keys out of the index. Returns the volume of each, and whether it was there; none if that takes no change.
    fn remove_each<K: AsRef<str>>(&self, keys: &[K]) -> Vec<(usize, Option<bool>)> {
        let (now, live) = (Instant::now(), self.volumes.live_set());
        let remove = |Hashed { key, digest, .. }: Hashed<'_>| {
            let number = self.volumes.number_of(digest, live);
            let cache = &self.volumes.all[number].shared.cache;
            (
                number,
                cache.index.changes.refusal().is_none().then(|| cache.delete(digest, key, now)),
            )
        };
        self.prefetched(keys.iter().map(Hashed::of).collect()).into_iter().map(remove).collect()
    }

    /// Brings what the index has of keys into the processor's cache: of all at once instead of one after the other.
    fn prefetched<'key>(&self, keys: Vec<Hashed<'key>>) -> Vec<Hashed<'key>> {
        if let Some(volume) = self.volumes.only() {
            volume.index().prefetch_each(&keys);
        }
        keys
    }

    pub(super) fn max_chunk_bytes(&self) -> u64 {
        let all = self.volumes.live().map(|volume| volume.shared.cache.store.max_chunk_bytes());
        all.min().unwrap_or(0)
    }

    /// Fails one SET whose chunk is too long; the others of its batch are stored.
    fn refuse_long(&self, request: SetRequest, limit_bytes: u64, shared: &ReactorGroup) {
        let error = StoreError::TooLong {
            digest: request.digest,
            length_bytes: request.buffer.length_bytes() as u64,
            limit_bytes,
            capacity_bytes: shared.cache.index.capacity_bytes(),
        };
        let path = shared.cache.config.path();
        let line = || format!("{}: {error}", path.display());
        shared.cache.log_limits.too_long.log(path, 1, line);
        refuse(request, shared, (&error).into());
    }

    fn reject_full(&self, keys: usize, keep_alive: KeepAlive) -> u64 {
        // No path's more than another's: the first one counts them.
        let counters = &self.volumes.all[0].shared.cache.counters;
        counters.fail_sets(FailureCode::QueueFull, keys as u64);
        let (queued, config) = (self.backlog.queued(), &self.config);
        let message = format!(
            "queue full: {} SETs of {} bytes are under way, the limits are {} SETs and set_queue_bytes = {}; store more \
             slowly, or raise set_queue_bytes",
            queued.operations,
            queued.bytes,
            config.tuning.set_queue_operations,
            config.set_queue_bytes
        );
        let failure = FailureReason::new(FailureCode::QueueFull, message);
        self.complete(self.completions.of_sets(), vec![false; keys], Some(failure), keep_alive)
    }
}

fn refuse(request: SetRequest, shared: &ReactorGroup, reason: FailureReason) {
    shared.cache.counters.fail_sets(reason.code, 1);
    let SetRequest { item, share, .. } = request;
    drop(share);
    item.fail(|| reason);
}

fn collision(key: &str) -> FailureReason {
    let digest = Digest::of(key);
    let message = format!("key {digest} has the digest of another key: not stored for an hour");
    FailureReason::new(FailureCode::Collision, message)
}

fn check_counts(keys: usize, buffers: usize) -> Result<(), SubmitError> {
    if keys == buffers { Ok(()) } else { Err(SubmitError::CountMismatch { keys, buffers }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::key::Namespace;

    /// The answer to a key that has another one's digest, which nobody can produce.
    #[test]
    fn a_refused_set_fails_and_gives_its_room_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let connector = Connector::open(Config::new(path, 64 << 20).unwrap()).unwrap();
        let share = connector.backlog.admit(Amount { operations: 1, bytes: 1 });
        let mut byte = 0;
        let key: Arc<str> = "k".into();
        let mut items = Batch::start(7, 1, Box::new(()), connector.completions.of_sets());
        let shared = &connector.volumes.all[0].shared;
        let request = SetRequest {
            item: items.next().unwrap(),
            // SAFETY: a refused chunk is not looked at, and the byte lives longer.
            buffer: SourceBuffer::of_set(unsafe { CallerBuffer::new(&raw mut byte, 1) }),
            digest: Digest::of(&key),
            namespace: Namespace::of(&key).fingerprint(),
            submitted_ms: 0,
            variant: 0,
            key,
            submitted: Instant::now(),
            share: Arc::new(share.unwrap()),
        };
        refuse(request, shared, collision("k"));
        let mut completions = Vec::new();
        connector.drain(&mut completions);
        assert_eq!(completions[0].future_id, 7);
        assert_eq!(completions[0].code, Some(FailureCode::Collision));
        assert!(completions[0].error.contains("has the digest of another key"));
        assert_eq!(connector.backlog.queued(), Amount::default());
        assert_eq!(shared.cache.counters.set_failed.get(), 1);
    }
}
