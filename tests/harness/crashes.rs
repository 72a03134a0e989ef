//! Small seeded workloads on a disk that loses power at a seeded moment and keeps, drops, tears and reorders what was not synced. A seed
//! stands for the life of one store: sessions in either durability, each ended by power loss, the death of the process or close(), at any
//! transfer or sync, those of opening and closing among them. Several reactors work on several batches at a time, and syncs of theirs
//! fail. Each session starts on what the one before it left. The same seeds give the same fingerprint.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use kvring::testing::flush;
use kvring::{BLOCK_BYTES, Durability};
use tempfile::TempDir;

use super::common::random::Random;
use super::common::{Client, MIB, Memory, config};
use super::crash_plan::{Plan, Session};
use super::ledger::Ledger;
use super::plan::{Call, Chunk, End, draw_keys, length, name, names};
use super::simulated_disk::{Crash, SimulatedDisk};
use super::{close_idle, judge};

const CAPACITY: u64 = 16 * MIB;
const KEYS: u64 = 12;
const LONGEST: usize = 16 << 10;
const MOST_KEYS: u64 = 4;
const MOST_UNDER_WAY: usize = 4;
const CALLS: [(Call, u64); 3] = [(Call::Set, 5), (Call::Delete, 2), (Call::Flush, 1)];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many power losses at least.
    #[arg(long, default_value_t = 20_000)]
    crashes: u64,
    /// Seed of the first store; each further one has the next.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads that crash stores side by side.
    #[arg(long, default_value_t = 2)]
    threads: u64,
}

/// SETs that are not answered yet.
struct Batch {
    future_id: u64,
    chunks: Vec<(u64, Chunk)>,
    may_fail: bool,
}

/// A store between its sessions.
struct Life {
    disk: Arc<SimulatedDisk>,
    directory: TempDir,
    random: Random,
    /// What may be there now and after the death of the process, and after power loss.
    now: Ledger,
    durable: Ledger,
    versions: u64,
    /// A session was opened completely: its index is durable.
    was_opened: bool,
    /// The last session was closed in order, or nobody has begun to close the store since it was opened, or it left something in the
    /// page cache.
    was_closed: bool,
    was_left_open: bool,
    was_killed: bool,
    /// Chunks that power loss took, of which a record may be there.
    damaged: BTreeSet<u64>,
}

impl Life {
    fn new(plan: Plan) -> (Self, Vec<Session>) {
        let directory = new_directory();
        for (number, blocks) in plan.file_blocks.iter().enumerate() {
            let path = directory.path().join(format!("data-{number:05}.kvring"));
            File::create(path).unwrap().set_len(blocks * BLOCK_BYTES).unwrap();
        }
        let mut random = plan.random;
        let life = Self {
            disk: SimulatedDisk::new(directory.path(), Random::new(random.below(u64::MAX))),
            directory,
            random,
            now: Ledger::default(),
            durable: Ledger::default(),
            versions: 0,
            was_opened: false,
            was_closed: false,
            was_left_open: false,
            was_killed: false,
            damaged: BTreeSet::new(),
        };
        (life, plan.sessions)
    }

    fn run(&mut self, session: &Session) -> Result<(), String> {
        let crash = if session.end == End::Kill { Crash::Kill } else { Crash::PowerLoss };
        self.disk.arm(session.events, crash);
        let client = self.open(session.persistent, session.reactors)?;
        self.was_closed = false;
        if !self.disk.has_crashed() {
            (self.was_opened, self.was_left_open) = (true, true);
            self.look(&client, session.persistent)?;
            self.disk.fail_syncs(session.failing_syncs);
            self.work(&client, session);
            self.disk.fail_syncs(0);
        }
        self.disk.let_transfers_go();
        if matches!(session.end, End::Close | End::CloseThenPowerLoss) {
            self.close(&client)?;
            if session.end == End::Close && self.was_closed {
                return Ok(());
            }
        }
        self.disk.crash(crash);
        self.was_killed = crash == Crash::Kill;
        if !self.was_killed {
            self.now = self.durable.clone();
        }
        let next = new_directory();
        self.disk = self.disk.move_on(next.path());
        // What the old process does from here on is lost with its directory.
        drop(client);
        self.directory = next;
        Ok(())
    }

    fn open(&self, persistent: bool, reactors: usize) -> Result<Client, String> {
        let mut config = config(self.directory.path(), CAPACITY);
        config.io_threads = Some(reactors);
        if persistent {
            config.durability = Durability::Persistent;
        }
        let opened = self.disk.open(config);
        let client = Client::from(opened.map_err(|error| format!("open failed: {error}"))?);
        let recovery = client.connector.recovery();
        let Self { was_opened, was_closed, was_left_open, .. } = *self;
        let is_reset = was_opened && recovery.reset.is_some();
        let is_unclean = was_closed && (!recovery.clean_shutdown || recovery.to_verify > 0);
        if is_reset || is_unclean || was_left_open && recovery.clean_shutdown {
            return Err(format!("{was_opened}, {was_closed}, {was_left_open}, but {recovery}"));
        }
        Ok(client)
    }

    /// Closes the store, if the power does not go before that or meanwhile.
    fn close(&mut self, client: &Client) -> Result<(), String> {
        if self.disk.has_crashed() {
            return Ok(());
        }
        self.was_left_open = false;
        close_idle(client)?;
        self.was_closed = !self.disk.has_crashed();
        if self.was_closed {
            self.was_killed = false;
            self.durable = self.now.clone();
        }
        Ok(())
    }

    /// Compares what is there with what may be.
    fn look(&mut self, client: &Client, persistent: bool) -> Result<(), String> {
        self.disk.let_transfers_go();
        self.disk.wait_idle();
        let before = self.now.clone();
        let may_be_damaged = |key| self.damaged.contains(&key);
        let found = judge::look(client, &mut self.now, 0..KEYS, may_be_damaged);
        if self.disk.has_crashed() {
            // A miss may come from the crash.
            self.now = before;
            return Ok(());
        }
        let found = found?;
        let is_lost = |key: &u64| before.possible(*key).iter().any(Option::is_some);
        let lost = found.iter().filter(|(key, held)| held.is_none() && is_lost(key));
        self.damaged.extend(lost.map(|(key, _)| *key));
        // What power loss has left is on the disk; what a kill has left is so from an open in `persistent` on.
        if persistent || !self.was_killed {
            found.into_iter().for_each(|(key, held)| self.durable.settle(key, [held]));
        }
        Ok(())
    }

    /// Random operations until the crash: what is completed at a turn of this thread was completed before the crash, if that has not
    /// come then.
    fn work(&mut self, client: &Client, session: &Session) {
        let disk = Arc::clone(&self.disk);
        disk.turns.join();
        let mut under_way: Vec<Batch> = Vec::new();
        for _ in 0..session.steps {
            while under_way.len() >= MOST_UNDER_WAY || self.random.one_of(3) {
                disk.turns.pass_of_test(self.random.one_of(3));
                self.collect(client, &mut under_way, session.persistent);
            }
            if disk.has_crashed() {
                break;
            }
            let mut keys = draw_keys(&mut self.random, MOST_KEYS, KEYS, KEYS);
            let chunks = || under_way.iter().flat_map(|batch| &batch.chunks);
            keys.retain(|key| chunks().all(|(other, _)| other != key));
            match Call::draw(&mut self.random, &CALLS) {
                Call::Flush if !session.persistent => self.flush(client),
                _ if keys.is_empty() => {}
                Call::Delete => self.delete(client, &keys),
                _ => under_way.push(self.submit_set(client, &keys, session)),
            }
        }
        while !under_way.is_empty() {
            disk.turns.pass_of_test(true);
            self.collect(client, &mut under_way, session.persistent);
        }
        disk.turns.part();
    }

    /// As the thread does that there is where reactors do not take turns. All that was completed is durable then; of a key that is under
    /// way either chunk may be, or neither.
    fn flush(&mut self, client: &Client) {
        let flushed = flush(&client.connector, self.was_killed);
        if self.disk.has_crashed() {
            return;
        }
        flushed.unwrap();
        self.was_killed = false;
        for key in 0..KEYS {
            let now = self.now.possible(key);
            if now.len() == 1 {
                self.durable.settle(key, now);
            }
        }
    }

    /// A DELETE is not synced: power loss may bring back what was there.
    fn delete(&mut self, client: &Client, keys: &[u64]) {
        for key in keys {
            self.now.may_be(*key, None);
            self.durable.may_be(*key, None);
        }
        let names = names(keys);
        assert!(client.delete(&names).iter().all(|deleted| *deleted));
        keys.iter().for_each(|key| self.now.settle(*key, [None]));
    }

    fn submit_set(&mut self, client: &Client, keys: &[u64], session: &Session) -> Batch {
        let is_unchanged = self.random.one_of(6);
        let chunks: Vec<(u64, Chunk)> = keys
            .iter()
            .map(|key| (*key, self.begin_set(*key, is_unchanged, session.persistent)))
            .collect();
        let memory: Vec<Memory> = chunks.iter().map(|(_, chunk)| chunk.memory(0)).collect();
        let names = names(keys);
        let future_id = client.submit_set(&names, &memory);
        Batch { future_id, chunks, may_fail: session.failing_syncs > 0 }
    }

    fn begin_set(&mut self, key: u64, is_unchanged: bool, persistent: bool) -> Chunk {
        // Bytes that are held are not written again.
        if let Some(held) = self.now.held(key).filter(|_| is_unchanged) {
            return held;
        }
        self.versions += 1;
        let chunk = Chunk { version: self.versions, length: length(key, self.versions, LONGEST) };
        self.now.may_be(key, Some(chunk));
        self.durable.may_be(key, Some(chunk));
        if !persistent {
            self.durable.may_be(key, None);
        }
        chunk
    }

    fn end_set(&mut self, key: u64, chunk: Chunk, persistent: bool) {
        self.now.settle(key, [Some(chunk)]);
        self.damaged.remove(&key);
        if persistent {
            self.durable.settle(key, [Some(chunk)]);
        }
    }

    fn collect(&mut self, client: &Client, under_way: &mut Vec<Batch>, persistent: bool) {
        let has_crashed = self.disk.has_crashed();
        under_way.retain(|batch| {
            let Some(completion) = client.take(batch.future_id) else { return true };
            assert!(completion.ok || batch.may_fail, "{}", completion.error);
            for ((key, chunk), stored) in batch.chunks.iter().zip(&completion.results) {
                if *stored && !has_crashed {
                    self.end_set(*key, *chunk, persistent);
                }
            }
            false
        });
    }
}

fn new_directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// Lives the life of one store. Returns its fingerprint.
fn one_store(seed: u64) -> Result<u64, String> {
    let (mut life, sessions) = Life::new(Plan::new(seed));
    for (number, session) in sessions.iter().enumerate() {
        life.run(session).map_err(|error| format!("session {number}, {session:?}: {error}"))?;
    }
    // Usable: what is stored now is there, and so is what was there before.
    let persistent = life.random.one_of(2);
    let client = life.open(persistent, 1)?;
    life.look(&client, persistent)?;
    let key = life.random.below(KEYS);
    let chunk = life.begin_set(key, false, persistent);
    let completion = client.set(&[name(key)], &[chunk.memory(0)]);
    assert!(completion.ok, "{}", completion.error);
    life.end_set(key, chunk, persistent);
    life.look(&client, persistent)?;
    Ok(life.disk.fingerprint())
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, String> {
    let (mut plans, mut power_losses) = (Vec::new(), 0);
    while power_losses < arguments.crashes {
        plans.push(Plan::new(arguments.seed + plans.len() as u64));
        power_losses += plans.last().map_or(0, Plan::power_losses);
    }
    let (next, fingerprint) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = || -> Result<(), String> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= plans.len() as u64 {
                return Ok(());
            }
            let seed = arguments.seed + number;
            let outcome = std::panic::catch_unwind(|| one_store(seed));
            let own = outcome.unwrap_or_else(|_| Err("a panic, see above".into()));
            let own = own.map_err(|error| {
                next.store(u64::MAX / 2, Ordering::Relaxed);
                format!("seed {seed}: {error}; replay with --seed {seed} --crashes 1")
            })?;
            fingerprint.fetch_add(own, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..arguments.threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap())
    })?;
    let count = |end| plans.iter().map(|plan| plan.count(&[end])).sum::<u64>();
    Ok(format!(
        "{power_losses} crashes of {} stores, {} kills and {} closes between them: nothing durable lost, nothing wrong; \
         fingerprint {:016x}",
        plans.len(),
        count(End::Kill),
        count(End::Close),
        fingerprint.into_inner()
    ))
}
