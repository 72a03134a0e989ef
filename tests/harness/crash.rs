//! The crash simulator: small seeded workloads on a disk that loses power at a seeded moment and keeps, drops, tears and
//! reorders what was not synced. A seed stands for the life of one store: sessions in either durability, each ended by
//! power loss, the death of the process or close(), at any transfer or sync, those of opening and closing among them.
//! Several reactors work on several batches at a time, and syncs of theirs fail. Each session starts on what the one before
//! it left.
//!
//! `cargo run --release --example crash_simulator -- --crashes 20000`; a failure prints its seed, and
//! `... -- --seed N --crashes 1` replays it. The same seeds give the same fingerprint.
#![allow(
    clippy::unwrap_used,
    reason = "a harness that unwraps fails with the place and the reason"
)]

#[path = "../common/mod.rs"]
mod common;
#[path = "crash_oracle.rs"]
mod oracle;
#[path = "crash_plan.rs"]
mod plan;
#[path = "../common/simulated_disk.rs"]
mod simulated_disk;
#[path = "../common/simulated_engine.rs"]
mod simulated_engine;
#[path = "../common/turns.rs"]
mod turns;

use std::fs::File;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use clap::Parser;
use common::random::Random;
use common::{Client, MIB, Memory, config};
use kvring::testing::flush;
use kvring::{BLOCK_BYTES, Durability};
use oracle::{KEYS, Oracle, content, length, name};
use plan::{End, Plan, Session};
use simulated_disk::{Crash, SimulatedDisk};
use tempfile::TempDir;

const CAPACITY: u64 = 16 * MIB;
const MOST_UNDER_WAY: usize = 4;

/// Crashes a store on a simulated disk again and again and checks what is left.
#[derive(Parser)]
struct Arguments {
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

/// A store between its sessions.
struct Life {
    disk: Arc<SimulatedDisk>,
    directory: TempDir,
    random: Random,
    oracle: Oracle,
    version: u64,
    /// A session was opened completely: its index is durable.
    was_opened: bool,
    /// The last session was closed in order.
    was_closed: bool,
    /// A session was opened completely, and nobody has begun to close the store since.
    was_left_open: bool,
    /// The last session left something in the page cache.
    was_killed: bool,
}

impl Life {
    fn new(plan: Plan) -> (Self, Vec<Session>) {
        let directory = new_directory();
        for (number, blocks) in plan.file_blocks.iter().enumerate() {
            let path = directory.path().join(format!("data-{number:05}.kvring"));
            File::create(path).unwrap().set_len(blocks * BLOCK_BYTES).unwrap();
        }
        let mut random = plan.random;
        let disk = SimulatedDisk::new(directory.path(), Random::new(random.below(u64::MAX)));
        let life = Self {
            disk,
            directory,
            random,
            oracle: Oracle::new(),
            version: 0,
            was_opened: false,
            was_closed: false,
            was_left_open: false,
            was_killed: false,
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
            self.oracle.lose_power();
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
        if self.was_opened && recovery.reset.is_some() {
            return Err(format!("the index was durable, but {recovery}"));
        }
        if self.was_closed && (!recovery.clean_shutdown || recovery.to_verify > 0) {
            return Err(format!("it was closed, but {recovery}"));
        }
        if self.was_left_open && recovery.clean_shutdown {
            return Err(format!("it was not closed, but {recovery}"));
        }
        Ok(client)
    }

    /// Closes the store, if the power does not go before that or meanwhile.
    fn close(&mut self, client: &Client) -> Result<(), String> {
        if self.disk.has_crashed() {
            return Ok(());
        }
        self.was_left_open = false;
        let shutdown = client.connector.close();
        if !shutdown.clean || shutdown.partial_flush {
            return Err(format!("closed with nothing to do, but {shutdown}"));
        }
        self.was_closed = !self.disk.has_crashed();
        if self.was_closed {
            self.was_killed = false;
            self.oracle.close();
        }
        Ok(())
    }

    /// Compares what is there with what may be.
    fn look(&mut self, client: &Client, persistent: bool) -> Result<(), String> {
        self.disk.let_transfers_go();
        self.disk.wait_idle();
        // What power loss has left is on the disk; what a kill has left is so from an open in `persistent` on.
        let durable = persistent || !self.was_killed;
        self.oracle.look(client, durable)
    }

    /// Random operations until the crash: what is completed at a turn of this thread was completed before the crash, if that
    /// has not come then.
    fn work(&mut self, client: &Client, session: &Session) {
        let disk = Arc::clone(&self.disk);
        disk.turns.join();
        let mut under_way = Vec::new();
        for _ in 0..session.steps {
            while under_way.len() >= MOST_UNDER_WAY || self.random.one_of(3) {
                disk.turns.pass_of_test(self.random.one_of(3));
                self.collect(client, &mut under_way);
            }
            if disk.has_crashed() {
                break;
            }
            let mut numbers: Vec<u64> =
                (0..1 + self.random.below(4)).map(|_| self.random.below(KEYS)).collect();
            numbers.sort_unstable();
            numbers.dedup();
            let is_under_way =
                |number: &u64| under_way.iter().any(|batch: &Batch| batch.is_of(*number));
            numbers.retain(|number| !is_under_way(number));
            match self.random.below(8) {
                7 if !session.persistent => self.flush(client),
                _ if numbers.is_empty() => {}
                0..2 => self.delete(client, &numbers),
                kind => under_way.push(self.submit_set(client, &numbers, session, kind == 2)),
            }
        }
        while !under_way.is_empty() {
            disk.turns.pass_of_test(true);
            self.collect(client, &mut under_way);
        }
        disk.turns.part();
    }

    /// As the thread does that there is where reactors do not take turns.
    fn flush(&mut self, client: &Client) {
        let flushed = flush(&client.connector, self.was_killed);
        if !self.disk.has_crashed() {
            flushed.unwrap();
            self.was_killed = false;
            self.oracle.flush();
        }
    }

    fn delete(&mut self, client: &Client, numbers: &[u64]) {
        numbers.iter().for_each(|number| self.oracle.begin_delete(*number));
        let keys: Vec<String> = numbers.iter().map(|number| name(*number)).collect();
        let deleted = client.delete(&keys);
        assert!(deleted.iter().all(|deleted| *deleted));
        numbers.iter().for_each(|number| self.oracle.end_delete(*number));
    }

    fn submit_set(
        &mut self,
        client: &Client,
        numbers: &[u64],
        session: &Session,
        unchanged: bool,
    ) -> Batch {
        let Session { persistent, failing_syncs, .. } = *session;
        self.version += 1;
        let version =
            |number| self.oracle.held(number).filter(|_| unchanged).unwrap_or(self.version);
        let chunks: Vec<(u64, u64)> =
            numbers.iter().map(|number| (*number, version(*number))).collect();
        for (number, version) in &chunks {
            self.oracle.begin_set(*number, *version, persistent);
        }
        let keys: Vec<String> = numbers.iter().map(|number| name(*number)).collect();
        let chunk = |(number, version): &(u64, u64)| {
            let memory = Memory::unwatched(length(*number, *version));
            memory.fill(&content(*number, *version));
            memory
        };
        let memory: Vec<Memory> = chunks.iter().map(chunk).collect();
        let future_id = client.submit_set(&keys, &memory.iter().collect::<Vec<_>>());
        Batch { future_id, chunks, persistent, may_fail: failing_syncs > 0 }
    }

    fn collect(&mut self, client: &Client, under_way: &mut Vec<Batch>) {
        let has_crashed = self.disk.has_crashed();
        under_way.retain(|batch| {
            let Some(completion) = client.take(batch.future_id) else { return true };
            assert!(completion.ok || batch.may_fail, "{}", completion.error);
            for ((number, version), stored) in batch.chunks.iter().zip(&completion.results) {
                if *stored && !has_crashed {
                    self.oracle.end_set(*number, *version, batch.persistent);
                }
            }
            false
        });
    }
}

/// SETs that are not answered yet.
struct Batch {
    future_id: u64,
    /// Keys and versions, by number.
    chunks: Vec<(u64, u64)>,
    persistent: bool,
    may_fail: bool,
}

impl Batch {
    fn is_of(&self, number: u64) -> bool {
        self.chunks.iter().any(|(other, _)| *other == number)
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
    let persistent = life.random.below(2) == 1;
    let client = life.open(persistent, 1)?;
    life.look(&client, persistent)?;
    let number = life.random.below(KEYS);
    life.version += 1;
    let version = life.version;
    life.oracle.begin_set(number, version, persistent);
    let memory = Memory::unwatched(length(number, version));
    memory.fill(&content(number, version));
    let completion = client.set(&[name(number)], &[&memory]);
    assert!(completion.ok, "{}", completion.error);
    life.oracle.end_set(number, version, persistent);
    life.oracle.look(&client, false)?;
    Ok(life.disk.fingerprint())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (mut plans, mut power_losses) = (Vec::new(), 0);
    while power_losses < arguments.crashes {
        plans.push(Plan::new(arguments.seed + plans.len() as u64));
        power_losses += plans.last().map_or(0, Plan::power_losses);
    }
    let (next, failed, fingerprint) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= plans.len() as u64 || failed.load(Ordering::Relaxed) > 0 {
                        return;
                    }
                    let seed = arguments.seed + number;
                    let outcome = std::panic::catch_unwind(|| one_store(seed));
                    match outcome.unwrap_or_else(|_| Err("a panic, see above".into())) {
                        Ok(own) => drop(fingerprint.fetch_add(own, Ordering::Relaxed)),
                        Err(message) => {
                            eprintln!(
                                "seed {seed}: {message}; replay with --seed {seed} --crashes 1"
                            );
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    if failed.into_inner() > 0 {
        return ExitCode::FAILURE;
    }
    let count = |end| plans.iter().map(|plan| plan.count(&[end])).sum::<u64>();
    println!(
        "{power_losses} crashes of {} stores, {} kills and {} closes between them: nothing durable lost, nothing wrong; \
         fingerprint {:016x}",
        plans.len(),
        count(End::Kill),
        count(End::Close),
        fingerprint.into_inner()
    );
    ExitCode::SUCCESS
}
