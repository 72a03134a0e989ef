//! The crash simulator: small seeded workloads on a disk that loses power at a seeded moment and keeps, drops, tears and
//! reorders what was not synced. Afterwards the store is opened on what is left.
//!
//! `cargo run --release --example crash_simulator -- --crashes 20000`; a failure prints its seed, and
//! `... -- --seed N --crashes 1` replays it.
#![allow(
    clippy::unwrap_used,
    reason = "a harness that unwraps fails with the place and the reason"
)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/simulated_disk.rs"]
mod simulated_disk;

use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use clap::Parser;
use common::{Client, MIB, Memory, config, pattern};
use kvring::{Connector, Durability};
use simulated_disk::{Random, SimulatedDisk, SimulatedEngine};

const CAPACITY: u64 = 16 * MIB;
const KEYS: u64 = 12;
const STEPS: u64 = 25;

/// Crashes a store on a simulated disk again and again and checks what is left.
#[derive(Parser)]
struct Arguments {
    /// How many crashes.
    #[arg(long, default_value_t = 20_000)]
    crashes: u64,
    /// Seed of the first one; each further one has the next.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads that crash stores side by side.
    #[arg(long, default_value_t = 2)]
    threads: u64,
}

/// What is known of a key.
#[derive(Default)]
struct Known {
    /// Every version that was ever handed in.
    ever: Vec<u64>,
    /// What may be there if nothing completed is lost: versions, or nothing. Empty stands for nothing.
    possible: Vec<Option<u64>>,
}

fn name(number: u64) -> String {
    // Every third key is a chain of records.
    if number.is_multiple_of(3) { format!("{number:0>400}") } else { format!("key-{number}") }
}

fn length(number: u64, version: u64) -> usize {
    (1 + number * 700 + (version % 3) * 4096) as usize
}

fn content(number: u64, version: u64) -> Vec<u8> {
    pattern(length(number, version), version * 100 + number)
}

/// Random operations until the power goes. One batch at a time, so that it is known what was completed before that.
fn work(
    client: &Client,
    disk: &SimulatedDisk,
    random: &mut Random,
    known: &mut HashMap<u64, Known>,
) {
    for step in 0..STEPS {
        let mut numbers: Vec<u64> = (0..1 + random.below(4)).map(|_| random.below(KEYS)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let keys: Vec<String> = numbers.iter().map(|number| name(*number)).collect();
        let version = step + 1;
        let deletes = random.below(4) == 0;
        for number in &numbers {
            let known = known
                .entry(*number)
                .or_insert_with(|| Known { ever: vec![], possible: vec![None] });
            known.possible.push((!deletes).then_some(version));
            if !deletes {
                known.ever.push(version);
            }
        }
        let completed = if deletes {
            client.delete(&keys).iter().all(|deleted| *deleted)
        } else {
            let memory: Vec<Memory> = numbers
                .iter()
                .map(|number| {
                    let memory = Memory::new(length(*number, version), 0);
                    memory.fill(&content(*number, version));
                    memory
                })
                .collect();
            client.set(&keys, &memory.iter().collect::<Vec<_>>()).ok
        };
        if disk.crashed.load(Ordering::SeqCst) {
            return;
        }
        assert!(completed);
        for number in &numbers {
            // A delete is not synced: power loss may bring back what was there.
            if !deletes {
                known.get_mut(number).unwrap().possible = vec![Some(version)];
            }
        }
    }
}

fn check(client: &Client, known: &HashMap<u64, Known>, persistent: bool) -> Result<(), String> {
    for (number, known) in known {
        let found: Vec<Vec<u8>> = (0..3)
            .filter_map(|kind| client.get_one(&name(*number), length(*number, kind)))
            .collect();
        let version = match &found[..] {
            [] => None,
            [bytes] => {
                let mut versions = known.ever.iter().copied();
                let version = versions.find(|version| *bytes == content(*number, *version));
                Some(version.ok_or(format!("key {number}: wrong bytes"))?)
            }
            _ => return Err(format!("key {number}: there in two lengths")),
        };
        if persistent && !known.possible.contains(&version) {
            return Err(format!(
                "key {number}: {version:?} is there; possible: {:?}",
                known.possible
            ));
        }
    }
    Ok(())
}

fn one_crash(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let persistent = random.below(2) == 1;
    let before = tempfile::tempdir_in("/dev/shm").unwrap();
    let after = tempfile::tempdir_in("/dev/shm").unwrap();
    let disk = SimulatedDisk::new(before.path(), 1 + random.below(4 * STEPS));
    let open = |directory: &Path| {
        let mut config = config(directory, CAPACITY);
        if persistent {
            config.durability = Durability::Persistent;
        }
        config
    };
    let mut known = HashMap::new();
    let client = Client::from(
        Connector::open_with_engine(open(before.path()), {
            let disk = Arc::clone(&disk);
            let random = Random::new(seed ^ 0xdead);
            move |_, waker| Ok(SimulatedEngine::new(disk, waker, random))
        })
        .unwrap(),
    );
    work(&client, &disk, &mut random, &mut known);
    disk.crash(&mut random);
    disk.write_image(after.path());
    drop(client);

    let client = Connector::open_with_engine(open(after.path()), {
        let disk = SimulatedDisk::new(after.path(), u64::MAX);
        let random = Random::new(seed);
        move |_, waker| Ok(SimulatedEngine::new(disk, waker, random))
    });
    let client = Client::from(client.map_err(|error| format!("open failed: {error}"))?);
    check(&client, &known, persistent)?;
    // Usable: what is stored now is there, and so is what was there before.
    let number = random.below(KEYS);
    let memory = Memory::new(length(number, 100), 0);
    memory.fill(&content(number, 100));
    if !client.set_one(&name(number), &memory) {
        return Err("cannot store after the crash".into());
    }
    known.insert(number, Known { ever: vec![100], possible: vec![Some(100)] });
    check(&client, &known, persistent)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let next = AtomicU64::new(0);
    let failed = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= arguments.crashes || failed.load(Ordering::Relaxed) > 0 {
                        return;
                    }
                    let seed = arguments.seed + number;
                    let outcome = std::panic::catch_unwind(|| one_crash(seed));
                    let outcome = outcome.unwrap_or_else(|_| Err("a panic, see above".into()));
                    if let Err(message) = outcome {
                        eprintln!("seed {seed}: {message}; replay with --seed {seed} --crashes 1");
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    if failed.into_inner() > 0 {
        return ExitCode::FAILURE;
    }
    println!("{} crashes: nothing durable lost, nothing wrong", arguments.crashes);
    ExitCode::SUCCESS
}
