//! The close harness: a store is closed in the middle of loads and stores, again and again. After close() no buffer may be touched, and
//! the next open finds what was answered before it.
//!
//! `cargo run --release --example close_harness -- --closes 50000`; `--seed` repeats the operations, not what the kernel makes of them.
#![allow(
    clippy::unwrap_used,
    reason = "a harness that unwraps fails with the place and the reason"
)]

#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use common::memory::POISON;
use common::random::Random;
use common::{Client, MIB, Memory, config, key, pattern};
use kvring::{Connector, Durability};

const CAPACITY: u64 = 64 * MIB;
const KEYS: u64 = 32;

/// Closes a store with I/O in flight again and again, and checks what is left.
#[derive(Parser)]
struct Arguments {
    /// How often to close.
    #[arg(long, default_value_t = 500)]
    closes: u64,
    /// Directory to work in; a temporary directory by default.
    #[arg(long)]
    path: Option<PathBuf>,
    /// Start of the random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Which versions of a key may be there.
type Possible = BTreeSet<Option<u64>>;

fn content(number: u64, version: u64) -> Vec<u8> {
    pattern(length(number), version * 1000 + number)
}

/// Odd ones, and some that go through memory of the store's.
fn length(number: u64) -> usize {
    (1 + number * number * number * 9) as usize
}

fn open(path: &Path, random: &mut Random) -> Result<Client, String> {
    let mut config = config(path, CAPACITY);
    config.io_threads = Some(1 + random.below(3) as usize);
    config.min_free_bytes = Some(0);
    config.durability = [Durability::BestEffort, Durability::Persistent][random.below(2) as usize];
    Connector::open(config).map(Client::from).map_err(|error| format!("open failed: {error}"))
}

/// Compares what a store has with what it may have.
fn look(client: &Client, possible: &mut [Possible]) -> Result<(), String> {
    for (number, possible) in (0..).zip(possible) {
        let found = client.get_one(&key(number), length(number));
        let fits = |version: &&Option<u64>| {
            found.as_deref() == version.map(|version| content(number, version)).as_deref()
        };
        let Some(version) = possible.iter().find(fits).copied() else {
            let what = if found.is_some() { "wrong bytes" } else { "nothing" };
            let recovery = client.connector.recovery();
            return Err(format!("key {number}: {what}; possible: {possible:?}; {recovery}"));
        };
        *possible = BTreeSet::from([version]);
    }
    Ok(())
}

/// One life of the store: works, closes in the middle, and looks whether buffers are left alone. Says how many batches were under way.
fn live(
    path: &Path,
    random: &mut Random,
    version: u64,
    possible: &mut [Possible],
) -> Result<usize, String> {
    let client = open(path, random)?;
    look(&client, possible)?;
    // A load that was submitted beside a store may find what was there before it, also when it is answered after it.
    let before = possible.to_vec();
    let mut batches = Vec::new();
    for _ in 0..1 + random.below(12) {
        let number = random.below(KEYS);
        let memory = Memory::new(length(number), random.below(3) as usize);
        if random.below(2) == 0 {
            memory.fill(&content(number, version));
            batches.push((client.submit_set(&[key(number)], &[&memory]), memory, number, true));
            possible[number as usize].insert(Some(version));
        } else {
            batches.push((client.submit_get(&[key(number)], &[&memory]), memory, number, false));
        }
    }
    // Some are answered before it is closed, in the order in which they were submitted.
    let answered = random.below(3).min(batches.len() as u64) as usize;
    for (future_id, memory, number, is_set) in batches.drain(..answered) {
        let done = client.wait(future_id);
        let mut loadable = before[number as usize].iter().flatten().chain([&version]);
        match is_set {
            _ if !done.ok => return Err(done.error),
            true => possible[number as usize] = Possible::from([Some(version)]),
            false if !done.results[0] => {}
            false if loadable.any(|version| memory.bytes() == content(number, *version)) => {}
            false => return Err(format!("key {number}: wrong bytes were loaded")),
        }
    }
    let drain = Duration::from_micros([0, 0, 100, 2000][random.below(4) as usize]);
    let closed = client.close_after(drain);
    if !closed.clean || closed.memory_held {
        return Err(format!("{closed}"));
    }
    for (_, memory, ..) in &batches {
        memory.poison();
    }
    drop(client);
    // It would be written to by now, or while the store is opened again.
    let (again, count) = (open(path, random)?, batches.len());
    look(&again, possible)?;
    match batches.iter().all(|(_, memory, ..)| memory.bytes().iter().all(|byte| *byte == POISON)) {
        true => Ok(count),
        false => Err("a buffer was touched after close()".into()),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let temporary = tempfile::tempdir().unwrap();
    let path = arguments.path.unwrap_or_else(|| temporary.path().to_owned());
    let mut random = Random::new(arguments.seed);
    let mut possible = vec![Possible::from([None]); KEYS as usize];
    let mut under_way = 0;
    for number in 0..arguments.closes {
        match live(&path, &mut random, number + 1, &mut possible) {
            Ok(count) => under_way += count,
            Err(message) => {
                eprintln!("close {number}, seed {}: {message}", arguments.seed);
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{} closes, {under_way} batches under way: nothing lost, nothing wrong",
        arguments.closes
    );
    ExitCode::SUCCESS
}
