//! The kill harness: a child works on a store and is killed at a random moment, again and again; what it was told is
//! compared with what is there afterwards.
//!
//! `cargo run --release --example kill_harness -- --rounds 5000` works in a temporary directory; `--path` names another,
//! `--seed` repeats the child's operations (not the moment of the kill). Every wrong byte, lost chunk, resurrected key or
//! failed open ends it with a message and status 1.
#![allow(
    clippy::unwrap_used,
    reason = "a harness that unwraps fails with the place and the reason"
)]

#[path = "../common/mod.rs"]
mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use clap::Parser;
use common::{Client, MIB, Memory, config, key, pattern};
use kvring::{Connector, Durability};

const CAPACITY: u64 = 64 * MIB;
const KEYS: u64 = 64;
/// Some keys are as long as they can be: their records are chains.
const LONG_KEYS_FROM: u64 = 56;

/// Kills a working store again and again and checks what is left.
#[derive(Parser)]
struct Arguments {
    /// How often to kill.
    #[arg(long, default_value_t = 200)]
    rounds: u64,
    /// Directory to work in; a temporary one by default.
    #[arg(long)]
    path: Option<PathBuf>,
    /// Start of the random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Longest life of a child, in milliseconds.
    #[arg(long, default_value_t = 60)]
    life_ms: u64,
    /// Work as the child until killed.
    #[arg(long, hide = true)]
    child: bool,
    /// First version that the child may write.
    #[arg(long, hide = true, default_value_t = 0)]
    first_version: u64,
    /// Sync before completing.
    #[arg(long, hide = true)]
    persistent: bool,
}

/// A small generator of our own: the choices are to be the same for a seed on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

fn name(number: u64) -> String {
    if number < LONG_KEYS_FROM { key(number) } else { format!("{number:0>3000}") }
}

/// Lengths depend on key and version, odd ones and long ones among them; two for each key.
fn length(number: u64, version: u64) -> usize {
    (1 + number * number * 61 + (version % 2) * 5000) as usize
}

fn content(number: u64, version: u64) -> Vec<u8> {
    pattern(length(number, version), version * 1000 + number)
}

fn open(path: &Path, persistent: bool) -> Result<Client, kvring::OpenError> {
    let mut config = config(path, CAPACITY);
    config.durability = if persistent { Durability::Persistent } else { Durability::BestEffort };
    Connector::open(config).map(Client::from)
}

// --- the child ---

/// Works until it is killed. Tells on standard output what it is about to do and what it was told.
fn work(path: &Path, arguments: &Arguments) {
    let client = open(path, arguments.persistent).unwrap();
    let mut random = Random(arguments.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut version = arguments.first_version;
    let mut out = std::io::stdout().lock();
    let mut say = move |text: String| out.write_all(text.as_bytes()).unwrap();
    say("open\n".into());
    loop {
        // Two batches in flight at a time, on keys of their own.
        let mut batches = Vec::new();
        for half in 0..2 {
            let numbers: Vec<u64> =
                (0..1 + random.below(6)).map(|_| random.below(KEYS / 2) * 2 + half).collect();
            let mut numbers = numbers;
            numbers.sort_unstable();
            numbers.dedup();
            let keys: Vec<String> = numbers.iter().map(|number| name(*number)).collect();
            version += 1;
            match random.below(8) {
                0..4 => {
                    for number in &numbers {
                        say(format!("set {number} {version}\n"));
                    }
                    let memory: Vec<Memory> = numbers
                        .iter()
                        .map(|number| {
                            let memory =
                                Memory::new(length(*number, version), (version % 3) as usize);
                            memory.fill(&content(*number, version));
                            memory
                        })
                        .collect();
                    let id = client.submit_set(&keys, &memory.iter().collect::<Vec<_>>());
                    batches.push((id, 's', numbers, version, memory));
                }
                4..6 => {
                    for number in &numbers {
                        say(format!("delete {number}\n"));
                    }
                    let id = client.connector.submit_delete(&keys).unwrap();
                    batches.push((id, 'd', numbers, version, Vec::new()));
                }
                6 => {
                    client.exists(&keys);
                }
                _ => {
                    let memory: Vec<Memory> =
                        numbers.iter().map(|number| Memory::new(length(*number, 0), 0)).collect();
                    client.get(&keys, &memory.iter().collect::<Vec<_>>());
                }
            }
        }
        for (id, kind, numbers, version, _memory) in batches {
            let completion = client.wait(id);
            assert!(completion.ok, "{}", completion.error);
            let told: String = numbers
                .iter()
                .map(|number| match kind {
                    's' => format!("stored {number} {version}\n"),
                    _ => format!("deleted {number}\n"),
                })
                .collect();
            say(told);
        }
    }
}

// --- the parent ---

/// What may be there for each key: versions, or nothing.
struct Oracle(HashMap<u64, Vec<Option<u64>>>);

impl Oracle {
    fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |position: usize| words[position].parse::<u64>().unwrap();
        match words[0] {
            "set" => self.0.entry(number(1)).or_insert_with(|| vec![None]).push(Some(number(2))),
            "delete" => self.0.entry(number(1)).or_insert_with(|| vec![None]).push(None),
            "stored" => drop(self.0.insert(number(1), vec![Some(number(2))])),
            "deleted" => drop(self.0.insert(number(1), vec![None])),
            _ => {}
        }
    }

    /// Compares every key with what may be there.
    fn check(&mut self, client: &Client) -> Result<(), String> {
        for number in 0..KEYS {
            let possible = self.0.entry(number).or_insert_with(|| vec![None]);
            let held = client.exists(&[name(number)])[0];
            let found: Vec<Vec<u8>> = (0..2)
                .filter_map(|parity| client.get_one(&name(number), length(number, parity)))
                .collect();
            let actual = match &found[..] {
                [] if !held => None,
                [bytes] if held => {
                    let versions = possible.iter().flatten();
                    let version =
                        versions.copied().find(|version| *bytes == content(number, *version));
                    Some(
                        version
                            .ok_or(format!("key {number}: wrong bytes; possible: {possible:?}"))?,
                    )
                }
                _ => {
                    return Err(format!(
                        "key {number}: held {held}, {} lengths found",
                        found.len()
                    ));
                }
            };
            if !possible.contains(&actual) {
                return Err(format!("key {number}: {actual:?} is there; possible: {possible:?}"));
            }
            *possible = vec![actual];
        }
        if client.counter("checksum_mismatch") > 0 {
            return Err("a chunk did not match its checksum".into());
        }
        Ok(())
    }
}

fn one_round(
    path: &Path,
    arguments: &Arguments,
    round: u64,
    oracle: &mut Oracle,
) -> Result<bool, String> {
    let mut random = Random((arguments.seed + round).wrapping_mul(0xd134_2543_de82_ef95) | 1);
    let persistent = round % 2 == 1;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("--child").arg("--path").arg(path);
    command.arg("--seed").arg((arguments.seed + round).to_string());
    command.arg("--first-version").arg((round * 1_000_000).to_string());
    if persistent {
        command.arg("--persistent");
    }
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let reader = thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<String>>());
    // Many kills within the first milliseconds: during the open, and so during recovery.
    let life_us = if random.below(4) == 0 { 5_000 } else { arguments.life_ms * 1000 };
    thread::sleep(Duration::from_micros(random.below(life_us)));
    let ended_itself = child.try_wait().unwrap().is_some();
    child.kill().unwrap();
    child.wait().unwrap();
    let lines = reader.join().unwrap();
    if ended_itself {
        return Err("the child ended by itself, see its message above".into());
    }
    let worked = lines.iter().any(|line| line == "open");
    lines.iter().for_each(|line| oracle.read(line));
    // Now and then nobody looks before the next child starts on what this one left.
    if random.below(4) == 0 {
        return Ok(worked);
    }
    let client = open(path, persistent).map_err(|error| format!("open failed: {error}"))?;
    let recovery = client.connector.recovery();
    // A kill between two stores of one record leaves it torn, and between two records both of them: nothing else.
    if recovery.reset.is_some() || recovery.out_of_range + recovery.overlapping > 0 {
        return Err(format!("unexpected damage: {recovery}"));
    }
    oracle.check(&client)?;
    Ok(worked)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let temporary = tempfile::tempdir().unwrap();
    let path = arguments.path.clone().unwrap_or_else(|| temporary.path().to_owned());
    if arguments.child {
        work(&path, &arguments);
    }
    let mut oracle = Oracle(HashMap::new());
    let mut worked = 0;
    for round in 0..arguments.rounds {
        match one_round(&path, &arguments, round, &mut oracle) {
            Ok(did) => worked += u64::from(did),
            Err(message) => {
                eprintln!("round {round}, seed {}: {message}", arguments.seed);
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{} kills, {worked} of them after the store was open: nothing lost, nothing wrong",
        arguments.rounds
    );
    ExitCode::SUCCESS
}
