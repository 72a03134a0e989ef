//! What must hold: after each round of a life, when a path goes, and at rest.

use std::sync::atomic::Ordering;

use kvring::Completion;

use super::begin_step;
use super::driver::{Driver, Gone};
use super::faults::Trouble;
use super::plan::{Mechanism, NAMESPACES};
use crate::common::{Memory, eventually};
use crate::judge;
use crate::plan::{Chunk, name};

/// That one of three paths gets none of so many keys is a matter of 10^-11.
const PROBES: usize = 64;

impl Driver<'_> {
    /// SETs of the very bytes that a killed session has left, before they can be verified: they stay hits, whatever admission says.
    pub(crate) fn store_again(&mut self) -> Result<(), String> {
        let mut held: Vec<(u64, Chunk)> = Vec::new();
        for key in self.model.ledger.keys() {
            let chunk = self.model.ledger.held(key).filter(|_| self.model.is_stored(key));
            held.extend(chunk.filter(|_| !self.is_expired(key)).map(|chunk| (key, chunk)));
        }
        held.truncate(8);
        let keys: Vec<String> = held.iter().map(|(key, _)| name(*key)).collect();
        let memory: Vec<Memory> = held.iter().map(|(_, chunk)| chunk.memory(0)).collect();
        let done = self.client.set(&keys, &memory);
        if !done.ok && !self.may_fail(done.code, &done.error) {
            return Err(format!("equal bytes are not stored: {}", done.error));
        }
        for (key, chunk) in held {
            self.model.note_use(key, self.now_ms(), false);
            if !self.load_at_once(key, chunk)? {
                return Err(format!("key {key} was a hit until the SET of its very bytes"));
            }
        }
        Ok(())
    }

    /// The first look at what the session before it has left: of each key one of the chunks that may be there, and all that must.
    pub(crate) fn look(&mut self, may_have_lost: bool) -> Result<(), String> {
        if !may_have_lost {
            let vanished = self.model.take_vanished();
            let lost = vanished.iter().find(|key| !self.is_expired(**key));
            if let Some(key) = lost {
                return Err(format!("key {key} is lost: {}", self.client.connector.recovery()));
            }
        }
        for key in self.model.ledger.keys() {
            if may_have_lost {
                self.model.ledger.may_be(key, None);
            }
            let found = self.find(key)?;
            self.model.ledger.settle(key, [found]);
        }
        self.count_gone()
    }

    /// What has gone has gone by a rule, and nothing that is guarded has.
    pub(super) fn count_gone(&mut self) -> Result<(), String> {
        self.model.follow(&self.client.connector)?;
        let counter = |name| self.client.counter(name);
        let vanished = self.model.take_vanished();
        let now = Gone {
            evicted: counter("evicted"),
            expired: counter("expired"),
            damaged: counter("read_dropped") + counter("checksum_mismatch"),
        };
        let before = std::mem::replace(&mut self.gone, now);
        let by_rule = now.evicted - before.evicted + now.expired - before.expired;
        let damaged = now.damaged - before.damaged;
        if damaged > 0 && !self.have_reads_failed {
            return Err("a chunk is damaged, and no read has failed".into());
        }
        if vanished.len() as u64 > by_rule + damaged {
            return Err(format!(
                "{by_rule} chunks went by a rule, but these are gone: {vanished:?}"
            ));
        }
        let (now_ms, model) = (self.now_ms(), &mut self.model);
        for key in vanished {
            let is_leased = model.leased.remove(&key).is_some_and(|until_ms| until_ms > now_ms);
            let is_guarded = model.pinned.remove(&key) || is_leased;
            if is_guarded && damaged == 0 && self.plan.has_one_length() {
                return Err(format!("key {key} is gone, though it is pinned or leased"));
            }
        }
        Ok(())
    }

    /// Some of the chunks that are told to be stored are hits.
    pub(super) fn sample(&mut self) -> Result<(), String> {
        let stored = self.model.stored();
        for _ in 0..4.min(stored.len()) {
            let key = self.random.choose(&stored);
            if self.model.ledger.possible(key).iter().all(Option::is_none) && !self.is_expired(key)
            {
                return Err(format!("key {key} is told to be stored, and must not be"));
            }
            let found = self.find(key)?;
            if let Some(chunk) = found {
                self.model.ledger.settle(key, [Some(chunk)]);
            }
        }
        Ok(())
    }

    /// The device of a path goes for good, perhaps while the others cannot note it: it leaves as soon as they can, and none of them
    /// does. Its chunks are misses from then on.
    pub(super) fn lose_path(&mut self) -> Result<(), String> {
        let gone = self.random.below(self.plan.paths as u64) as usize;
        let cannot_note = self.random.one_of(2);
        self.gone_path = Some(gone);
        self.faults.set_all(Trouble { cannot_note, ..Trouble::default() });
        self.faults.set(gone, Trouble { is_gone: true, ..Trouble::default() });
        self.trouble = Trouble { is_gone: true, ..Trouble::default() };
        let is_out = || !self.client.connector.stats().paths[gone].in_use;
        let is_troubled = || !self.client.connector.stats().paths[gone].trouble.is_empty();
        let awaited: &dyn Fn() -> bool = if cannot_note { &is_troubled } else { &is_out };
        eventually("the path that is gone is found out", || {
            self.probe();
            awaited()
        });
        if cannot_note {
            eventually("it cannot be noted", || {
                self.probe();
                self.faults.notes_refused() > 0
            });
            self.look_at_paths()?;
            (0..self.plan.paths)
                .filter(|path| *path != gone)
                .for_each(|path| self.faults.set(path, Trouble::default()));
            eventually("it is out of use", is_out);
        }
        self.look_at_paths()?;
        let stored = self.probe();
        let may_refuse = self.plan.has(Mechanism::WriteBudget);
        if !stored.ok && !may_refuse {
            return Err(format!("without the path that is gone: {}", stored.error));
        }
        self.trouble = Trouble::default();
        self.model.follow(&self.client.connector)?;
        self.model.take_vanished();
        self.count_gone()
    }

    /// Stores, loads and deletes chunks on all paths; returns the end of the SET. There are so many that each path gets some, and so
    /// short that a budget of writes which is used up soon has room for them.
    fn probe(&self) -> Completion {
        let memory = Memory::patterned(1, 0, 0);
        let keys: Vec<String> = (0..PROBES).map(|number| format!("probe {number}")).collect();
        let stored = self.client.set(&keys, &[&memory; PROBES]);
        // Read, and not only known.
        keys.iter().for_each(|key| drop(self.client.get_one(key, 1)));
        self.client.delete(&keys);
        stored
    }

    /// A path that is well stays in use, and has no trouble.
    pub(super) fn look_at_paths(&self) -> Result<(), String> {
        let paths = self.client.connector.stats().paths;
        let is_well = |(number, path): &(usize, &kvring::PathStats)| {
            self.gone_path == Some(*number) || path.in_use
        };
        match paths.iter().enumerate().find(|path| !is_well(path)).map(|(_, path)| path) {
            Some(path) => Err(format!("{} is out of use: {}", path.path.display(), path.reason)),
            None => Ok(()),
        }
    }

    // --- at rest ---

    /// Nothing is under way and nothing fails: nothing is held, and all is well.
    pub(crate) fn rest(&mut self) -> Result<(), String> {
        begin_step(self.plan.seed, "rest");
        self.trouble = Trouble::default();
        self.set_faults();
        self.until_well()?;
        let connector = &self.client.connector;
        let pinned: Vec<String> = self.model.pinned.iter().map(|key| name(*key)).collect();
        connector.unpin(&pinned).map_err(|error| error.to_string())?;
        self.model.pinned.clear();
        self.clock.fetch_add(1000 * u64::from(self.plan.lease_s + 2), Ordering::SeqCst);
        let stats = judge::check(self.client, |namespace| {
            let quota_bytes = self.plan.quota_bytes;
            (namespace == NAMESPACES[1] && quota_bytes > 0).then_some(quota_bytes)
        })?;
        let held = (stats.pinned_bytes, stats.leased_bytes, stats.in_flight);
        if held != (0, 0, 0) {
            return Err(format!("at rest, pinned and leased bytes and batches are {held:?}"));
        }
        self.look_at_all()
    }

    /// Trouble ends with the first transfers that work.
    fn until_well(&mut self) -> Result<(), String> {
        eventually("the end of the trouble", || {
            let stored = self.probe().ok;
            let paths = self.client.connector.stats().paths;
            let is_admitted = self.plan.has(Mechanism::SecondUse);
            let is_well = |(number, path): (usize, &kvring::PathStats)| {
                self.gone_path == Some(number) || path.trouble.is_empty()
            };
            (stored || is_admitted) && paths.iter().enumerate().all(is_well)
        });
        self.count_gone()
    }

    fn look_at_all(&mut self) -> Result<(), String> {
        for key in self.model.ledger.keys() {
            if let Some(chunk) = self.find(key)? {
                self.model.ledger.settle(key, [Some(chunk)]);
            } else {
                self.model.follow(&self.client.connector)?;
            }
        }
        self.count_gone()
    }
}
