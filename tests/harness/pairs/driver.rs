//! A session of a life: rounds of batches and calls that are under way together, and what their answers say.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kvring::{FailureCode, MemoryHandle};

use super::begin_step;
use super::faults::{Faults, Trouble};
use super::model::Model;
use super::plan::{Mechanism, NAMESPACES, Plan, keys_of};
use crate::common::random::Random;
use crate::common::{Client, MIB, Memory};
use crate::judge;
use crate::ledger::{Held, Possible};
use crate::plan::{Chunk, name, namespace};

/// Keys of a batch at most, and batches and calls of a round.
pub(super) const BATCH_KEYS: u64 = 6;
const ACTS: u64 = 6;
/// SETs of a burst, which are submitted before any is answered.
const BURST_KEYS: u64 = 48;
/// What a round of no burst may store, as a part of the capacity or the quota: so that nothing of it has to go for the rest of it.
const ROUND_PART: u64 = 8;

/// A batch of SETs that is under way.
pub(super) struct Sets {
    pub(super) future_id: u64,
    pub(super) chunks: Vec<(u64, Chunk)>,
    _registered: Vec<MemoryHandle>,
    _memory: Vec<Memory>,
}

/// What counters said.
#[derive(Clone, Copy, Default)]
pub(super) struct Gone {
    pub(super) evicted: u64,
    pub(super) expired: u64,
    /// Chunks that could not be read.
    pub(super) damaged: u64,
}

pub(crate) struct Driver<'a> {
    pub(crate) client: &'a Client,
    pub(crate) plan: &'a Plan,
    pub(crate) model: &'a mut Model,
    pub(crate) faults: &'a Faults,
    pub(crate) clock: &'a AtomicU64,
    pub(crate) random: &'a mut Random,
    pub(super) trouble: Trouble,
    /// Since then chunks may be in doubt, which are dropped in an idle moment.
    pub(super) have_reads_failed: bool,
    /// The path whose device has gone.
    pub(super) gone_path: Option<usize>,
    /// Keys that something of this round writes, deletes or loads.
    pub(super) busy: HashSet<u64>,
    pub(super) purged: HashSet<&'static str>,
    pub(super) round_bytes: u64,
    pub(super) under_way: Vec<Sets>,
    pub(super) gone: Gone,
}

impl<'a> Driver<'a> {
    pub(crate) fn new(
        client: &'a Client,
        plan: &'a Plan,
        model: &'a mut Model,
        faults: &'a Faults,
        clock: &'a AtomicU64,
        random: &'a mut Random,
    ) -> Self {
        model.open_books(&client.connector);
        Self {
            client,
            plan,
            model,
            faults,
            clock,
            random,
            trouble: Trouble::default(),
            have_reads_failed: false,
            gone_path: None,
            busy: HashSet::new(),
            purged: HashSet::new(),
            round_bytes: 0,
            under_way: Vec::new(),
            gone: Gone::default(),
        }
    }

    /// Which of the chunks that may be there is.
    pub(super) fn find(&mut self, key: u64) -> Result<Held, String> {
        let possible = self.model.ledger.possible(key);
        for length in judge::lengths(&possible) {
            let Some(bytes) = self.client.get_one(&name(key), length) else { continue };
            self.model.note_use(key, self.now_ms(), false);
            return judge::identify(&name(key), &possible, &bytes).map(Some);
        }
        self.model.follow(&self.client.connector)?;
        let must_be = self.model.is_stored(key) && possible.iter().any(Option::is_some);
        match must_be && !self.is_expired(key) && !self.trouble.reads_fail {
            true => {
                Err(format!("key {key} is a miss, though it is told to be stored; {possible:?}"))
            }
            false => Ok(None),
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.clock.load(Ordering::SeqCst)
    }

    pub(super) fn is_expired(&self, key: u64) -> bool {
        let last_ms = self.model.ledger.uses(key).earliest_ms;
        let ends = |ttl: std::time::Duration| last_ms + ttl.as_millis() as u64;
        self.plan.ttl.is_some_and(|ttl| ends(ttl) <= self.now_ms())
    }

    // --- a round ---

    pub(crate) fn round(&mut self) -> Result<(), String> {
        self.begin_round();
        if self.plan.has(Mechanism::GonePath) && self.gone_path.is_none() && self.random.one_of(6) {
            return self.lose_path();
        }
        for _ in 0..1 + self.random.below(ACTS) {
            self.act()?;
        }
        for sets in std::mem::take(&mut self.under_way) {
            begin_step(self.plan.seed, "answers to SETs, and loads of them");
            self.finish(sets)?;
        }
        begin_step(self.plan.seed, "a look after a round");
        self.count_gone()?;
        self.sample()?;
        self.look_at_paths()
    }

    fn begin_round(&mut self) {
        self.busy.clear();
        self.purged.clear();
        self.round_bytes = 0;
        let is_calm = self.random.one_of(3);
        let has = |one| self.plan.has(one) && !is_calm;
        self.trouble = Trouble {
            one_in: if has(Mechanism::Faults) { self.random.choose(&[2, 6, 30]) } else { 0 },
            reads_fail: has(Mechanism::AwayPath) || has(Mechanism::Faults) && self.random.one_of(4),
            syncs_one_in: if has(Mechanism::FailedSyncs) { 4 } else { 0 },
            is_read_only: has(Mechanism::ReadOnly),
            is_gone: has(Mechanism::AwayPath),
            ..Trouble::default()
        };
        self.have_reads_failed |= self.trouble.reads_fail;
        self.set_faults();
        if self.plan.ttl.is_some() || self.plan.lease_s > 0 {
            let step_ms = if self.random.one_of(8) { 90_000 } else { 7_000 };
            self.clock.fetch_add(self.random.below(step_ms), Ordering::SeqCst);
        }
    }

    pub(super) fn set_faults(&self) {
        self.faults.set_all(self.trouble);
        if let Some(gone) = self.gone_path {
            self.faults.set(gone, Trouble { is_gone: true, ..Trouble::default() });
        }
    }

    /// Whether the device of a path has gone in this session.
    pub(crate) fn has_lost_a_path(&self) -> bool {
        self.gone_path.is_some()
    }

    fn act(&mut self) -> Result<(), String> {
        let act = self.random.below(24);
        begin_step(
            self.plan.seed,
            &format!("act {act}, with {} batches under way", self.under_way.len()),
        );
        match act {
            0..9 => {
                let count = 1 + self.random.below(BATCH_KEYS);
                self.set(count, None, false);
            }
            9..12 => return self.get(),
            12..14 => {
                let keys = self.take_keys(BATCH_KEYS, None);
                return self.exists(&keys);
            }
            14 => return self.delete(),
            15 | 16 if self.plan.has(Mechanism::Pins) => return self.pin(),
            17 if self.plan.has(Mechanism::Pins) => return self.unpin(),
            18 if self.plan.has(Mechanism::Purge) => return self.purge(),
            19 if self.plan.has(Mechanism::Expiry) => {
                self.client.connector.expire().map_err(|error| error.to_string())?;
            }
            20 if self.plan.has(Mechanism::Quotas) => self.set(BURST_KEYS, Some(1), true),
            21 | 22 if self.plan.has(Mechanism::Leases) => {
                // All of a namespace that nothing else of this round uses: it is not to be leased whole.
                let of = self.random.below(2) as usize;
                let keys = keys_of(of).into_iter().filter(|key| !self.busy.contains(key));
                return self.exists(&keys.collect::<Vec<_>>());
            }
            _ => self.set(2, None, false),
        }
        Ok(())
    }

    /// Keys that nothing of this round uses; they are used from here on.
    pub(super) fn take_keys(&mut self, count: u64, namespace: Option<usize>) -> Vec<u64> {
        let mut keys = Vec::new();
        for _ in 0..count {
            let of = namespace.unwrap_or(self.random.below(NAMESPACES.len() as u64) as usize);
            let key = self.random.choose(&keys_of(of));
            if self.busy.insert(key) {
                keys.push(key);
            }
        }
        keys
    }

    fn room_of_round(&self) -> u64 {
        let least = match self.plan.quota_bytes {
            0 => self.plan.capacity_bytes,
            quota_bytes => self.plan.capacity_bytes.min(quota_bytes),
        };
        least / ROUND_PART
    }

    pub(super) fn set(&mut self, count: u64, namespace: Option<usize>, is_burst: bool) {
        let (mut chunks, mut memory) = (Vec::new(), Vec::new());
        for key in self.take_keys(count, namespace) {
            let chunk = match self.model.ledger.held(key) {
                Some(held) if self.random.one_of(4) => held,
                _ => {
                    self.model.versions += 1;
                    self.plan.chunk(self.model.versions)
                }
            };
            let length = chunk.length as u64;
            if !is_burst && self.round_bytes + length > self.room_of_round() {
                continue;
            }
            self.round_bytes += length;
            memory.push(chunk.memory(self.random.choose(&[0, 0, 3])));
            chunks.push((key, chunk));
        }
        let keys: Vec<String> = chunks.iter().map(|(key, _)| name(*key)).collect();
        let mut registered = self.register(&memory);
        let future_id = self.client.submit_set(&keys, &memory);
        if self.random.one_of(2) {
            registered.clear();
        }
        self.under_way.push(Sets { future_id, chunks, _registered: registered, _memory: memory });
    }

    /// Registers memory, if that is drawn.
    fn register(&self, memory: &[Memory]) -> Vec<MemoryHandle> {
        let memory = if self.plan.has(Mechanism::Registered) { memory } else { &[] };
        let register = |one: &Memory| self.client.connector.register_memory(one.buffer());
        memory.iter().map(|one| register(one).expect("an open store, and other memory")).collect()
    }

    /// The answer to SETs: what is acknowledged is loaded at once.
    fn finish(&mut self, sets: Sets) -> Result<(), String> {
        let done = self.client.wait(sets.future_id);
        if done.ok == done.results.contains(&false) {
            return Err(format!("{:?} with the error '{}'", done.results, done.error));
        }
        for ((key, chunk), stored) in sets.chunks.into_iter().zip(done.results) {
            let is_purged = self.purged.contains(namespace(key));
            let (held, mut possible): (Held, Possible) =
                (self.model.ledger.held(key), self.model.ledger.possible(key));
            if !stored {
                if !self.may_fail(done.code, &done.error) && !is_purged {
                    return Err(format!("key {key} is not stored: {}", done.error));
                }
                possible.insert(None);
                // It may stand all the same: a sync that failed after the record of the older chunk was cleared, or a kill.
                possible.insert(Some(chunk));
                self.model.ledger.settle(key, possible);
                continue;
            }
            let is_same = held == Some(chunk) && self.model.is_stored(key);
            self.model.note_use(key, self.now_ms(), held != Some(chunk));
            possible = [Some(chunk)].into();
            if is_purged || self.plan.may_refuse() && !is_same {
                possible.insert(None);
            }
            self.model.ledger.settle(key, possible.clone());
            let found = self.load_at_once(key, chunk)?;
            self.model.follow(&self.client.connector)?;
            let must_be = self.round_bytes <= self.room_of_round()
                && !possible.contains(&None)
                && !self.is_crowded()
                && !self.has_evicted();
            if must_be && !found {
                let stats = self.client.connector.stats();
                return Err(format!(
                    "key {key} is acknowledged and a miss right after that, stored: {}; {:?}; {:?}",
                    self.model.is_stored(key),
                    (&stats.paths[0].trouble, &stats.paths[0].last_error),
                    stats.counters.iter().filter(|(_, count)| *count > 0).collect::<Vec<_>>(),
                ));
            }
        }
        self.model.follow(&self.client.connector)
    }

    /// Whether the chunk is there; it is the right one. Reads do not fail meanwhile.
    pub(super) fn load_at_once(&mut self, key: u64, chunk: Chunk) -> Result<bool, String> {
        let trouble = self.trouble;
        (self.trouble.reads_fail, self.trouble.is_gone) = (false, false);
        self.set_faults();
        let memory = [Memory::new(chunk.length, 0)];
        let registered = self.register(&memory);
        let done = self.client.get(&[name(key)], &[&memory[0]]);
        drop(registered);
        let found = done.results[0].then(|| memory[0].bytes().to_vec());
        self.trouble = trouble;
        self.set_faults();
        match found {
            Some(bytes) if bytes != chunk.bytes() => {
                Err(format!("key {key}: wrong bytes right after its acknowledgement"))
            }
            found => Ok(found.is_some()),
        }
    }

    /// Whether chunks that must stay leave the newest ones little room.
    fn is_crowded(&self) -> bool {
        self.plan.has(Mechanism::Pins) || self.plan.has(Mechanism::Leases)
    }

    /// Whether chunks have gone in this round for want of space in the file system, which may be whatever there is: it is asked again a
    /// second after it refused some.
    fn has_evicted(&self) -> bool {
        self.plan.has(Mechanism::Faults) && self.client.counter("evicted") > self.gone.evicted
    }

    pub(super) fn may_fail(&self, code: Option<FailureCode>, error: &str) -> bool {
        let is_troubled = self.trouble != Trouble::default();
        // After it was refused, the file system is asked again a second later. No code tells that from a store that is full.
        let is_full = self.plan.has(Mechanism::Faults) && error.contains("cannot grow");
        // Room need be no run of neighbours; a quota needs none.
        let is_scattered =
            self.is_crowded() && !self.plan.has_one_length() && code == Some(FailureCode::NoSpace);
        is_troubled || is_full || is_scattered
    }

    fn get(&mut self) -> Result<(), String> {
        for key in self.take_keys(BATCH_KEYS, None) {
            let found = self.find(key)?;
            let mut possible = self.model.ledger.possible(key);
            match found {
                Some(chunk) => possible = [Some(chunk)].into(),
                None if self.trouble.reads_fail => drop(possible.insert(None)),
                None if possible.contains(&None) || self.is_expired(key) => {
                    possible = [None].into();
                }
                // The count of what has vanished tells whether it may have.
                None => {}
            }
            self.model.ledger.settle(key, possible);
        }
        Ok(())
    }
}

/// Asks for statistics until it is over.
pub(crate) fn ask_beside(client: &Client, is_over: &AtomicBool) {
    while !is_over.load(Ordering::SeqCst) {
        let stats = client.connector.stats();
        assert!(stats.used_bytes <= stats.capacity_bytes + MIB);
    }
}
