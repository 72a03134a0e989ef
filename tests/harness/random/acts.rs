//! What a step of the random operations does to the store, and what its batches answer.

use kvring::FailureCode;

use super::content::Span;
use super::driver::Driver;
use super::session::{KEYS, quota_bytes};
use super::step::Did;
use crate::plan::Chunk;
use crate::plan::{key_of, name, names, namespace, namespaces};

/// Keys that are used more often than others, and how many of the last ones are.
const HOT_KEYS: u64 = 48;
const RECENT_KEYS: usize = 96;
const MOST_KEYS: u64 = 16;

/// Batches of a step that are not answered yet.
pub(super) enum Waiting {
    Set(u64, Vec<(usize, u64, Chunk)>),
    Get(u64, Vec<(usize, u64, Span)>),
}

impl Driver<'_> {
    /// Something is about to be done to a key, for the first time in this step or again.
    pub(super) fn note(&mut self, key: u64) {
        let before = (self.possible(key), self.ledger.uses(key).latest_ms);
        self.before.entry(key).or_insert(before);
    }

    fn some_keys(&mut self) -> Vec<u64> {
        let count = 1 + self.random.below(MOST_KEYS);
        let mut keys: Vec<u64> = Vec::new();
        for _ in 0..count {
            let key = match self.random.below(8) {
                0..3 if !self.recent.is_empty() => {
                    self.recent[self.random.below(self.recent.len() as u64) as usize]
                }
                3..5 => self.random.below(HOT_KEYS),
                _ => self.random.below(KEYS),
            };
            // A key has room for few chunks at a time.
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    fn memory(&mut self, length: usize) -> Option<Span> {
        // Beside it there must be room for what stays.
        if self.step_bytes + length as u64 > self.session.capacity_bytes / 4 {
            return None;
        }
        let span = self.arena.take(length)?;
        self.step_bytes += length as u64;
        Some(span)
    }

    pub(super) fn is_dead(&self) -> bool {
        (self.was_killed)()
    }

    pub(super) fn set(&mut self) {
        let (mut keys, mut buffers, mut chunks) = (Vec::new(), Vec::new(), Vec::new());
        for key in self.some_keys() {
            self.note(key);
            let possible = self.possible(key);
            let repeats = possible.len() == 1 && self.random.one_of(6);
            let chunk = if repeats {
                possible[0]
            } else {
                self.ledger.count("versions", 1);
                let version = self.ledger.tally("versions");
                Chunk { version, length: self.session.length(&mut self.random, version) }
            };
            let Some(span) = self.memory(chunk.length) else { break };
            self.contents.fill(self.arena, span, key, chunk);
            self.ledger.may_be(key, Some(chunk));
            self.ledger.begin_use(key, self.now_ms());
            keys.push(name(key));
            buffers.push(self.arena.buffer(span));
            chunks.push((self.log.len(), key, chunk));
            self.log.push((key, Did::Set(chunk, false)));
            self.remember(key);
        }
        let future_id =
            self.client.connector.submit_set(&keys, &buffers, self.arena.keep()).unwrap();
        self.waiting.push(Waiting::Set(future_id, chunks));
    }

    fn remember(&mut self, key: u64) {
        if self.recent.len() < RECENT_KEYS {
            self.recent.push(key);
        } else {
            let place = self.random.below(RECENT_KEYS as u64) as usize;
            self.recent[place] = key;
        }
    }

    pub(super) fn get(&mut self) {
        let (mut keys, mut buffers, mut spans) = (Vec::new(), Vec::new(), Vec::new());
        for key in self.some_keys() {
            let latest = self.possible(key).into_iter().max_by_key(|chunk| chunk.version);
            let length = latest.map_or(4096, |chunk| chunk.length);
            let length = if self.random.one_of(50) { length % 70_000 + 1 } else { length };
            let Some(span) = self.memory(length) else { break };
            self.note(key);
            self.ledger.begin_use(key, self.now_ms());
            keys.push(name(key));
            buffers.push(self.arena.buffer(span));
            spans.push((self.log.len(), key, span));
            self.log.push((key, Did::Get(length, None)));
        }
        let future_id =
            self.client.connector.submit_get(&keys, &buffers, self.arena.keep()).unwrap();
        self.waiting.push(Waiting::Get(future_id, spans));
    }

    pub(super) fn exists(&mut self, is_prefix: bool) {
        let keys = self.some_keys();
        let names = names(&keys);
        let refused = || self.client.counter("leases_refused");
        // Asking costs more than the operation: not every time.
        let before = (self.session.has_guards && self.random.one_of(3)).then(refused);
        let held = if is_prefix {
            let future_id = self.client.connector.submit_prefix(&names).unwrap();
            self.client.wait(future_id).results
        } else {
            self.client.exists(&names)
        };
        let has_lease = before.is_some_and(|before| refused() == before);
        let count = held.iter().take_while(|held| **held).count();
        for (number, (key, held)) in keys.into_iter().zip(held).enumerate() {
            // Behind the first miss nobody looks.
            if !is_prefix || number <= count {
                self.note(key);
                self.log.push((key, Did::Exists(held, has_lease)));
            } else {
                assert!(!held, "a prefix with a gap");
            }
        }
    }

    pub(super) fn delete(&mut self) {
        let mut keys = self.some_keys();
        keys.truncate(6);
        let names = names(&keys);
        assert!(self.client.delete(&names).iter().all(|deleted| *deleted));
        for key in keys {
            self.note(key);
            if !self.is_dead() {
                self.settle(key, &[]);
            }
            self.log.push((key, Did::Delete));
        }
    }

    pub(super) fn pin(&mut self) -> Result<(), String> {
        let keys = self.some_keys();
        let names = names(&keys);
        let pinned = self.client.connector.pin(&names).map_err(|error| error.to_string())?;
        keys.iter().for_each(|key| self.note(*key));
        self.log.extend(keys.into_iter().zip(pinned.into_iter().map(Did::Pin)));
        Ok(())
    }

    pub(super) fn unpin(&mut self) -> Result<(), String> {
        let mut keys = self.some_keys();
        let pinned = self.guards.iter().filter(|(_, guard)| guard.pinned || guard.may_be_pinned);
        let pinned = pinned.map(|(key, _)| *key);
        let mut pinned: Vec<u64> = pinned.collect();
        // Not in the order of a hash table.
        pinned.sort_unstable();
        for key in pinned {
            if self.random.one_of(3) && !keys.contains(&key) {
                keys.push(key);
            }
        }
        let names = names(&keys);
        let unpinned = self.client.connector.unpin(&names).map_err(|error| error.to_string())?;
        keys.iter().for_each(|key| self.note(*key));
        self.log.extend(keys.into_iter().zip(unpinned.into_iter().map(Did::Unpin)));
        Ok(())
    }

    pub(super) fn purge(&mut self) -> Result<(), String> {
        let purged_namespace = self.random.choose(namespaces());
        let done = self.client.connector.purge(purged_namespace);
        let done = done.map_err(|error| error.to_string())?;
        let pinned: Vec<u64> = done.pinned.iter().map(|name| key_of(name)).collect();
        self.ledger.count("purged", done.keys);
        for key in (0..KEYS).filter(|key| namespace(*key) == purged_namespace) {
            let stays = pinned.contains(&key);
            if stays || self.guards.contains_key(&key) || self.before.contains_key(&key) {
                self.note(key);
                self.log.push((key, Did::Purge(stays)));
            }
            if !stays && !self.is_dead() {
                self.settle(key, &[]);
            }
        }
        let listed = self.list(purged_namespace)?;
        match listed.iter().find(|key| !pinned.contains(key)) {
            Some(key) => Err(format!("'{}' is listed after a purge", name(*key))),
            None => Ok(()),
        }
    }

    /// Keys of a namespace that are held.
    fn list(&self, of: &str) -> Result<Vec<u64>, String> {
        let (mut listed, mut cursor) = (Vec::new(), Some(0));
        while let Some(from) = cursor {
            let (keys, next) =
                self.client.connector.keys(of, from, 100).map_err(|error| error.to_string())?;
            let held = keys.iter().filter(|(_, state)| *state == kvring::KeyState::Stored);
            listed.extend(held.map(|(name, _)| key_of(name)));
            cursor = next;
        }
        match listed.iter().find(|key| namespace(**key) != of) {
            Some(key) => Err(format!("'{}' is listed in namespace '{of}'", name(*key))),
            None => Ok(listed),
        }
    }

    pub(super) fn expire(&mut self) -> Result<(), String> {
        let expired = self.client.connector.expire().map_err(|error| error.to_string())?;
        self.ledger.count("expired", expired);
        // What is written meanwhile may be used meanwhile.
        if !self.waiting.is_empty() {
            return Ok(());
        }
        for of in namespaces().iter().copied() {
            for key in self.list(of)? {
                let guard = self.guards.get(&key).copied().unwrap_or_default();
                if self.is_expired(guard, self.ledger.uses(key).latest_ms) && !self.is_dead() {
                    return Err(format!("'{}' is listed after it has expired", name(key)));
                }
            }
        }
        Ok(())
    }

    pub(super) fn finish(&mut self, waiting: Waiting) -> Result<(), String> {
        match waiting {
            Waiting::Set(future_id, chunks) => {
                let completion = self.client.wait(future_id);
                let known = [None, Some(FailureCode::NoSpace), Some(FailureCode::QuotaFull)];
                if completion.ok == completion.results.contains(&false)
                    || !known.contains(&completion.code)
                {
                    return Err(format!("a SET says '{}'", completion.error));
                }
                for ((place, key, chunk), stored) in chunks.into_iter().zip(completion.results) {
                    self.ledger.count("sets", 1);
                    self.ledger.count("sets_failed", u64::from(!stored));
                    // Nothing is in the way but what is being loaded or written, here and there.
                    let has_room =
                        !self.session.has_guards && quota_bytes(namespace(key)).is_none();
                    self.ledger.count("unplaced", u64::from(has_room && !stored));
                    self.log[place].1 = Did::Set(chunk, stored);
                }
            }
            Waiting::Get(future_id, spans) => {
                let completion = self.client.wait(future_id);
                if !completion.ok {
                    return Err(format!("a GET says '{}'", completion.error));
                }
                for ((place, _, span), hit) in spans.into_iter().zip(completion.results) {
                    self.ledger.count(if hit { "hits" } else { "misses" }, 1);
                    self.log[place].1 = Did::Get(span.length, hit.then_some(span));
                }
            }
        }
        Ok(())
    }
}
