//! Random operations on an open store, a step at a time, and what must hold between them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvring::OptionValue;

use super::acts::Waiting;
use super::content::{Arena, Contents};
use super::session::{KEYS, Session, quota_bytes};
use super::step::{Did, Guard};
use crate::common::random::Random;
use crate::common::{Client, MIB, on_disk_bytes};
use crate::judge;
use crate::ledger::Ledger;
use crate::plan::{Call, Chunk, name};

/// Steps between two looks at everything.
const STEPS_PER_CHECK: u64 = 64;
/// Steps between two changes of the capacity.
const STEPS_PER_RESIZE: u64 = 128;
const LONGEST_RESIZE: Duration = Duration::from_secs(60);
const CALLS: [(Call, u64); 9] = [
    (Call::Set, 832),
    (Call::Get, 562),
    (Call::Exists, 240),
    (Call::Prefix, 112),
    (Call::Delete, 144),
    (Call::Pin, 64),
    (Call::Unpin, 80),
    (Call::Purge, 1),
    (Call::Expire, 2),
];

pub(crate) struct Driver<'a> {
    pub(crate) client: &'a Client,
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) contents: &'a Contents,
    pub(crate) arena: &'a mut Arena,
    pub(crate) session: &'a Session,
    pub(crate) path: &'a Path,
    pub(crate) clock: Arc<AtomicU64>,
    pub(crate) was_killed: &'a dyn Fn() -> bool,
    pub(crate) random: Random,
    pub(super) guards: HashMap<u64, Guard>,
    pub(super) recent: Vec<u64>,
    pub(super) latest_ms: u64,
    pub(super) log: Vec<(u64, Did)>,
    /// What might be there of each key of the step before it, and when it was used last.
    pub(super) before: HashMap<u64, (Vec<Chunk>, u64)>,
    pub(super) waiting: Vec<Waiting>,
    pub(super) step_bytes: u64,
}

impl<'a> Driver<'a> {
    #[expect(clippy::too_many_arguments, reason = "the parts of one session")]
    pub(crate) fn new(
        client: &'a Client,
        ledger: &'a mut Ledger,
        contents: &'a Contents,
        arena: &'a mut Arena,
        session: &'a Session,
        path: &'a Path,
        clock: Arc<AtomicU64>,
        was_killed: &'a dyn Fn() -> bool,
    ) -> Self {
        Self {
            client,
            ledger,
            contents,
            arena,
            session,
            path,
            clock,
            was_killed,
            random: Random::new(session.seed),
            guards: HashMap::new(),
            recent: Vec::new(),
            latest_ms: 0,
            log: Vec::new(),
            before: HashMap::new(),
            waiting: Vec::new(),
            step_bytes: 0,
        }
    }

    /// The chunks of a key that may be there; nothing may be there of any, as all can be evicted.
    pub(super) fn possible(&self, key: u64) -> Vec<Chunk> {
        self.ledger.possible(key).into_iter().flatten().collect()
    }

    pub(super) fn settle(&mut self, key: u64, chunks: &[Chunk]) {
        let possible = chunks.iter().copied().map(Some).chain([None]);
        self.ledger.settle(key, possible.collect::<Vec<_>>());
    }

    /// Looks at the keys of which several chunks may be there, or at all, and notes what is.
    pub(crate) fn look(&mut self, at_all: bool) -> Result<(), String> {
        self.latest_ms = self.now_ms();
        for key in 0..KEYS {
            let possible = self.possible(key);
            if possible.is_empty() || (possible.len() == 1 && !at_all) {
                continue;
            }
            let is_expired = self.is_expired(Guard::default(), self.ledger.uses(key).latest_ms);
            self.ledger.begin_use(key, self.now_ms());
            let mut found = Vec::new();
            for chunk in &possible {
                self.arena.reset();
                let span = self.arena.take(chunk.length).expect("room for one chunk");
                let buffers = [self.arena.buffer(span)];
                let connector = &self.client.connector;
                let future_id =
                    connector.submit_get(&[name(key)], &buffers, self.arena.keep()).unwrap();
                if self.client.wait(future_id).results[0] {
                    let is = |chunk| self.contents.is(self.arena, span, key, chunk);
                    found.push(judge::identify_by(&name(key), &self.ledger.possible(key), is)?);
                }
            }
            found.dedup();
            if found.len() > 1 || (is_expired && !found.is_empty()) {
                return Err(format!("'{}': {found:?} at once, or expired", name(key)));
            }
            if self.is_dead() {
                return Ok(());
            }
            self.settle(key, &found);
        }
        Ok(())
    }

    /// Works until the session has done its operations, or its process is dead.
    pub(crate) fn work(&mut self) -> Result<(), String> {
        let end = self.ledger.tally("operations") + self.session.operations;
        let mut steps = 0;
        while self.ledger.tally("operations") < end {
            self.step().map_err(|error| format!("step {steps}: {error}"))?;
            if (self.was_killed)() {
                return Ok(());
            }
            steps += 1;
            if steps % STEPS_PER_CHECK == 0 {
                self.check().map_err(|error| format!("after step {steps}: {error}"))?;
            }
        }
        self.check()
    }

    /// Everything fits together, and the store keeps to what it was given.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        let stats = judge::check(self.client, quota_bytes)?;
        self.ledger.count("checks", 1);
        let counter =
            |name| stats.counters.iter().find(|(other, _)| *other == name).map_or(0, |(_, of)| *of);
        let wrong = counter("checksum_mismatch") + counter("read_errors") + counter("write_errors");
        if wrong > 0 {
            return Err(format!("damage: {stats:?}"));
        }
        let permille = stats.allocated_bytes * 1000 / self.session.capacity_bytes;
        self.ledger.note_most("most_permille", permille);
        self.keeps_to_capacity()
    }

    /// What everything below the store's directory takes, and it as well, is within the capacity.
    fn keeps_to_capacity(&mut self) -> Result<(), String> {
        let on_disk = on_disk_bytes(self.path);
        self.ledger.note_most("most_bytes", on_disk);
        match on_disk <= self.session.capacity_bytes {
            true => Ok(()),
            false => Err(format!("{on_disk} bytes on disk of {}", self.session.capacity_bytes)),
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.clock.load(Ordering::SeqCst)
    }

    fn move_clock(&mut self) {
        let now = self.now_ms();
        let then = match self.random.below(1000) {
            // Somebody sets it: ahead, or back.
            0 => now + 1000 * self.random.below(100_000),
            1 => now - 1000 * self.random.below(100_000),
            2..20 => now + 1000 * self.random.below(30),
            _ => now + self.random.below(50),
        };
        self.clock.store(then, Ordering::SeqCst);
        self.ledger.set_tally("clock_ms", then);
        self.latest_ms = self.latest_ms.max(then);
    }

    fn step(&mut self) -> Result<(), String> {
        self.move_clock();
        self.arena.reset();
        self.step_bytes = 0;
        for _ in 0..1 + self.random.below(3) {
            match Call::draw(&mut self.random, &CALLS) {
                Call::Set => self.set(),
                Call::Exists => self.exists(false),
                Call::Prefix => self.exists(true),
                Call::Delete => self.delete(),
                Call::Pin if self.session.has_guards => self.pin()?,
                Call::Unpin if self.session.has_guards => self.unpin()?,
                Call::Purge => self.purge()?,
                Call::Expire => self.expire()?,
                _ => self.get(),
            }
        }
        for waiting in std::mem::take(&mut self.waiting) {
            self.finish(waiting)?;
        }
        let log = std::mem::take(&mut self.log);
        self.ledger.count("operations", log.len() as u64);
        if (self.was_killed)() {
            return Ok(());
        }
        self.judge(&log)?;
        self.before.clear();
        if !self.session.has_guards && self.random.one_of(STEPS_PER_RESIZE) {
            self.resize()?;
        }
        self.keeps_to_capacity()
    }

    /// Gives it another capacity, up to that of the session. As nothing has to stay it is within that soon.
    fn resize(&mut self) -> Result<(), String> {
        let quarters = if self.session.capacity_bytes < 64 * MIB { 3 } else { 2 };
        let capacity_bytes =
            self.session.capacity_bytes / 4 * (quarters + self.random.below(3)).min(4);
        let value = OptionValue::Integer(capacity_bytes.into());
        let changed = self.client.connector.change_limits([("capacity".to_owned(), value)]);
        // Too little for the index.
        if changed.is_err() {
            return Ok(());
        }
        self.ledger.count("resizes", 1);
        let start = Instant::now();
        while !self.is_dead() && self.client.connector.stats().used_bytes > capacity_bytes {
            if start.elapsed() > LONGEST_RESIZE {
                return Err(format!(
                    "not within {capacity_bytes} bytes: {:?}",
                    self.client.connector.stats()
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let on_disk = on_disk_bytes(self.path);
        match on_disk <= capacity_bytes || self.is_dead() {
            true => Ok(()),
            false => Err(format!("{on_disk} bytes on disk of {capacity_bytes} after a resize")),
        }
    }
}
