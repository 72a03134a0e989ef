//! Calls of a round beside SETs and GETs, and the close with batches under way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::begin_step;
use super::driver::{BATCH_KEYS, Driver};
use super::plan::{Mechanism, NAMESPACES, keys_of};
use crate::common::Memory;
use crate::plan::{key_of, name, names};

impl Driver<'_> {
    pub(super) fn exists(&mut self, keys: &[u64]) -> Result<(), String> {
        let refused = || self.client.counter("leases_refused");
        let before = refused();
        let held = self.client.exists(&names(keys));
        let are_leased = self.plan.lease_s > 0 && refused() == before;
        let until_ms = self.now_ms() + 1000 * u64::from(self.plan.lease_s);
        self.model.follow(&self.client.connector)?;
        for (key, held) in keys.iter().copied().zip(held) {
            let possible = self.model.ledger.possible(key);
            if held && possible.iter().all(Option::is_none) {
                return Err(format!("key {key} exists, and must not"));
            }
            if held && are_leased {
                self.model.leased.insert(key, until_ms);
            }
        }
        Ok(())
    }

    pub(super) fn delete(&mut self) -> Result<(), String> {
        let keys = self.take_keys(3, None);
        if !self.client.delete(&names(&keys)).iter().all(|deleted| *deleted) {
            return Err(format!("not deleted: {keys:?}"));
        }
        keys.iter().for_each(|key| self.model.remove(*key));
        self.model.follow(&self.client.connector)
    }

    pub(super) fn pin(&mut self) -> Result<(), String> {
        let keys = self.take_keys(BATCH_KEYS, None);
        let pinned = self.client.connector.pin(&names(&keys)).map_err(|error| error.to_string())?;
        let pinned = keys.into_iter().zip(pinned).filter(|(_, pinned)| *pinned);
        self.model.pinned.extend(pinned.map(|(key, _)| key));
        Ok(())
    }

    pub(super) fn unpin(&mut self) -> Result<(), String> {
        let mut keys: Vec<u64> = self.model.pinned.iter().copied().collect();
        keys.sort_unstable();
        keys.truncate(1 + self.random.below(20) as usize);
        self.client.connector.unpin(&names(&keys)).map_err(|error| error.to_string())?;
        keys.iter().for_each(|key| {
            self.model.pinned.remove(key);
        });
        Ok(())
    }

    /// Purges a namespace: beside SETs of keys that somebody pins and unpins, if there are pins.
    pub(super) fn purge(&mut self) -> Result<(), String> {
        let number = self.random.below(NAMESPACES.len() as u64) as usize;
        let namespace = NAMESPACES[number];
        let mut contested = Vec::new();
        if self.plan.has(Mechanism::Pins) {
            self.set(BATCH_KEYS, Some(number), false);
            let sets = self.under_way.last().into_iter().flat_map(|sets| &sets.chunks);
            contested.extend(sets.map(|(key, _)| name(*key)));
        }
        let (connector, is_over) = (&self.client.connector, AtomicBool::new(contested.is_empty()));
        let done = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let _ = connector.pin(&contested).and_then(|_| connector.unpin(&contested));
                }
            });
            let done = connector.purge(namespace);
            is_over.store(true, Ordering::SeqCst);
            done
        });
        let done = done.map_err(|error| error.to_string())?;
        connector.unpin(&contested).map_err(|error| error.to_string())?;
        self.purged.insert(namespace);
        for key in keys_of(number) {
            match (done.pinned.contains(&name(key)), self.busy.contains(&key)) {
                (true, _) => {}
                // Its SET may still be under way.
                (false, true) => self.model.ledger.may_be(key, None),
                (false, false) => self.model.remove(key),
            }
            self.model.pinned.remove(&key);
            self.model.leased.remove(&key);
        }
        let stays = done.pinned.into_iter().filter(|key| !contested.contains(key));
        self.model.pinned.extend(stays.map(|key| key_of(&key)));
        self.model.follow(&self.client.connector)
    }

    /// Closes the store with batches under way: each is answered, and what is acknowledged stays.
    pub(crate) fn close_busy(&mut self) -> Result<(), String> {
        self.busy.clear();
        self.round_bytes = 0;
        let evicted = self.client.counter("evicted");
        let mut loads = Vec::new();
        for key in self.take_keys(BATCH_KEYS, None) {
            let Some(chunk) = self.model.ledger.held(key) else { continue };
            let memory = Memory::new(chunk.length, 0);
            let future_id = self.client.submit_get(&[name(key)], &[&memory]);
            loads.push((future_id, key, chunk, memory));
        }
        for _ in 0..3 {
            self.set(BATCH_KEYS, None, false);
        }
        begin_step(self.plan.seed, "close with batches under way");
        let (client, is_over) = (self.client, AtomicBool::new(false));
        let mut answers = HashMap::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                client.connector.close();
                is_over.store(true, Ordering::SeqCst);
            });
            // What nobody has taken is dropped with the close.
            while !is_over.load(Ordering::SeqCst) {
                let ids = loads.iter().map(|load| load.0);
                for id in ids.chain(self.under_way.iter().map(|sets| sets.future_id)) {
                    answers.extend(client.take(id).map(|done| (id, done.results)));
                }
            }
        });
        for (future_id, key, chunk, memory) in loads {
            let is_hit = answers.get(&future_id).is_some_and(|results| results[0]);
            if is_hit && memory.bytes() != chunk.bytes() {
                return Err(format!("key {key}: wrong bytes of a load beside the close"));
            }
        }
        for sets in std::mem::take(&mut self.under_way) {
            let unknown = vec![false; sets.chunks.len()];
            let results = answers.remove(&sets.future_id).unwrap_or(unknown);
            for ((key, chunk), stored) in sets.chunks.into_iter().zip(results) {
                let mut possible = self.model.ledger.possible(key);
                if stored && !self.plan.may_refuse() {
                    possible.clear();
                }
                possible.insert(Some(chunk));
                if !stored || self.plan.may_refuse() {
                    possible.insert(None);
                }
                self.model.note_use(key, self.now_ms(), stored);
                self.model.ledger.settle(key, possible);
            }
        }
        // Nobody is told any more which.
        if self.client.counter("evicted") > evicted {
            self.model.ledger.keys().iter().for_each(|key| self.model.ledger.may_be(*key, None));
        }
        Ok(())
    }
}
