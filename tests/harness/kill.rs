//! The kill harness: a child works on a store and is killed at a random moment, again and again; what it was told is
//! compared with what is there afterwards. Its operations meet on the same keys, in order from one thread and without
//! order from another. In between, a child closes the store with little time to finish what it has begun, and what it
//! says of that is compared with what is there too.
//!
//! `cargo run --release --example kill_harness -- --rounds 5000` works in a temporary directory; `--path` names another,
//! `--seed` repeats the child's operations (not the moment of the kill). Every wrong byte, lost chunk, resurrected key or
//! failed open ends it with a message and status 1.
#![allow(
    clippy::unwrap_used,
    reason = "a harness that unwraps fails with the place and the reason"
)]

#[path = "kill_child.rs"]
mod child;
#[path = "../common/mod.rs"]
mod common;
#[path = "kill_oracle.rs"]
mod oracle;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use common::random::Random;
use common::{Client, MIB, Memory, config_of, key, pattern};
use kvring::{Connector, Durability};
use oracle::Oracle;

const CAPACITY: u64 = 64 * MIB;
const KEYS: u64 = 64;
/// Some keys are as long as they can be: their records are chains.
const LONG_KEYS_FROM: u64 = 56;
const KILLS_PER_CLOSE: u64 = 4;
/// Of a small store; a recovery takes milliseconds.
const LONGEST_OPEN: Duration = Duration::from_secs(60);
/// What a child says when its store is open.
const OPEN: &str = "open";

/// Kills a working store again and again and checks what is left.
#[derive(Parser)]
struct Arguments {
    /// How often to kill.
    #[arg(long, default_value_t = 200)]
    rounds: u64,
    /// Directory or block device to work in; a temporary directory by default.
    #[arg(long)]
    path: Option<PathBuf>,
    /// How many paths the store has: directories below --path. Each owner names them in an order of its own.
    #[arg(long, default_value_t = 1)]
    paths: usize,
    /// The one of them that is named first.
    #[arg(long, hide = true, default_value_t = 0)]
    first_path: usize,
    /// Start of the random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Longest life of a child, of some from its start and of others from when its store is open, in milliseconds.
    #[arg(long, default_value_t = 60)]
    life_ms: u64,
    /// Work as the child until killed.
    #[arg(long, hide = true)]
    child: bool,
    /// First version that the child may write.
    #[arg(long, hide = true, default_value_t = 0)]
    first_version: u64,
    /// Layout of the store: 'extents' or 'files'; by default what KVRING_TEST_LAYOUT says.
    #[arg(long)]
    layout: Option<String>,
    /// Sync before completing.
    #[arg(long, hide = true)]
    persistent: bool,
    /// Reactors of the store.
    #[arg(long, hide = true, default_value_t = 1)]
    io_threads: usize,
    /// Close the store after so many turns.
    #[arg(long, hide = true)]
    close_after_turns: Option<u64>,
    /// Time that closing has for what is begun, in milliseconds.
    #[arg(long, hide = true, default_value_t = 0)]
    drain_ms: u64,
}

fn name(number: u64) -> String {
    if number < LONG_KEYS_FROM { key(number) } else { format!("{number:0>3000}") }
}

/// Lengths depend on key and version, odd ones and long ones among them; two for each key. Never so short that two versions
/// are alike.
fn length(number: u64, version: u64) -> usize {
    (13 + number * number * 61 + (version % 2) * 5000) as usize
}

fn content(number: u64, version: u64) -> Vec<u8> {
    pattern(length(number, version), version * 1000 + number)
}

/// The paths of a store below `path`, number `first` first.
fn paths(path: &Path, count: usize, first: usize) -> Vec<PathBuf> {
    match count {
        1 => vec![path.to_owned()],
        _ => (0..count).map(|number| path.join(format!("{}", (first + number) % count))).collect(),
    }
}

fn open(
    paths: &[PathBuf],
    persistent: bool,
    io_threads: usize,
) -> Result<Client, kvring::OpenError> {
    let mut config = config_of(paths, CAPACITY);
    config.io_threads = Some(io_threads);
    // Else others could fill the disk, and chunks would be evicted.
    config.min_free_bytes = Some(0);
    config.durability = if persistent { Durability::Persistent } else { Durability::BestEffort };
    Connector::open(config).map(Client::from)
}

/// How a child ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Kill,
    Close,
}

struct Harness {
    path: PathBuf,
    arguments: Arguments,
    oracle: Oracle,
    /// Children started so far.
    children: u64,
    /// Whether the store was open once: before, a kill can leave a device formatted and its index not begun.
    has_begun: bool,
}

impl Harness {
    /// Lets a child work, and checks what it leaves. Says whether it came to work at all.
    fn round(&mut self, end: End) -> Result<bool, String> {
        self.children += 1;
        let seed = self.arguments.seed + self.children;
        let mut random = Random::new(seed);
        let persistent = self.children.is_multiple_of(2);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("--child").arg("--path").arg(&self.path);
        command.arg("--paths").arg(self.arguments.paths.to_string());
        command.arg("--first-path").arg(random.below(self.arguments.paths as u64).to_string());
        command.arg("--seed").arg(seed.to_string());
        command.arg("--first-version").arg((self.children * 1_000_000).to_string());
        command.arg("--io-threads").arg((1 + self.children / 2 % 3).to_string());
        if persistent {
            command.arg("--persistent");
        }
        if end == End::Close {
            let drain_ms = [0, 0, 1, 20, 5000][random.below(5) as usize];
            command.arg("--close-after-turns").arg(random.below(30).to_string());
            command.arg("--drain-ms").arg(drain_ms.to_string());
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (is_open, opened) = mpsc::channel();
        let reader = thread::spawn(move || {
            let note = |line: &String| {
                if line == OPEN {
                    // Nobody may wait for it.
                    let _ = is_open.send(());
                }
            };
            lines.map_while(Result::ok).inspect(note).collect::<Vec<String>>()
        });
        if end == End::Kill {
            // Many kills within the first milliseconds: during the open, and so during recovery. However long that takes, half
            // of all children come to work.
            let (from_its_start, life_ms) = match random.below(4) {
                0 => (true, 5),
                1 => (true, self.arguments.life_ms),
                _ => (false, self.arguments.life_ms),
            };
            let is_in_time = from_its_start || opened.recv_timeout(LONGEST_OPEN).is_ok();
            thread::sleep(Duration::from_micros(random.below(life_ms * 1000)));
            if !is_in_time || child.try_wait().unwrap().is_some() {
                let _ = child.kill();
                let status = child.wait().unwrap();
                return Err(format!(
                    "the child did not open in time, or ended by itself: {status}"
                ));
            }
            child.kill().unwrap();
        }
        let status = child.wait().unwrap();
        let lines = reader.join().unwrap();
        let closed = lines.iter().filter_map(|line| self.oracle.read(line)).last();
        let worked = lines.iter().any(|line| line == OPEN);
        self.has_begun |= worked;
        match (end, closed) {
            (End::Close, Some(closed)) if status.success() => {
                let client = self.open(persistent)?;
                let outcome = self.oracle.end_closed_round(closed, &client, persistent);
                outcome
                    .and_then(|()| self.oracle.check(&client))
                    .map_err(|error| told(&client, &error))?;
            }
            (End::Close, _) => {
                return Err(format!("instead of closing, the child ended: {status}"));
            }
            (End::Kill, _) => {
                self.oracle.end_round();
                // Now and then nobody looks before the next child starts on what this one left.
                if random.below(4) > 0 {
                    let client = self.open(persistent)?;
                    self.oracle.check(&client).map_err(|error| told(&client, &error))?;
                }
            }
        }
        Ok(worked)
    }

    fn open(&mut self, persistent: bool) -> Result<Client, String> {
        let first = self.children as usize % self.arguments.paths;
        let client = open(&paths(&self.path, self.arguments.paths, first), persistent, 1)
            .map_err(|error| format!("open failed: {error}"))?;
        if let Some(path) = client.connector.stats().paths.iter().find(|path| !path.in_use) {
            return Err(format!("{} is not in use: {}", path.path.display(), path.reason));
        }
        let recovery = client.connector.recovery();
        // A kill between two stores of one record leaves it torn, and between two records both of them: nothing else.
        let is_reset = std::mem::replace(&mut self.has_begun, true) && recovery.reset.is_some();
        if is_reset || recovery.out_of_range + recovery.overlapping > 0 {
            return Err(format!("unexpected damage: {recovery}"));
        }
        // All paths are there in each life, so every key stays where it is.
        if recovery.moved + recovery.stale > 0 {
            return Err(format!("keys of another path: {recovery}"));
        }
        Ok(client)
    }
}

/// What went wrong, with what the store says of itself.
fn told(client: &Client, error: &str) -> String {
    let counters = client.connector.stats().counters;
    let counted: Vec<_> = counters.iter().filter(|(_, count)| *count > 0).collect();
    format!("{error}; {}; {counted:?}", client.connector.recovery())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(layout) = &arguments.layout {
        // SAFETY: there is one thread yet. Children inherit it.
        unsafe { std::env::set_var("KVRING_TEST_LAYOUT", layout) };
    }
    if arguments.child {
        let path = arguments.path.as_deref().expect("a child is told where");
        child::work(path, &arguments);
        return ExitCode::SUCCESS;
    }
    // Not in a child, which is killed before it could remove it.
    let temporary = tempfile::tempdir().unwrap();
    let path = arguments.path.clone().unwrap_or_else(|| temporary.path().to_owned());
    let mut harness =
        Harness { path, arguments, oracle: Oracle::new(), children: 0, has_begun: false };
    let (mut worked, mut closes) = (0, 0);
    for round in 0..harness.arguments.rounds {
        let mut outcome = harness.round(End::Kill);
        worked += u64::from(outcome == Ok(true));
        if outcome.is_ok() && round % KILLS_PER_CLOSE == 0 {
            outcome = harness.round(End::Close);
            closes += 1;
        }
        if let Err(message) = outcome {
            eprintln!("round {round}, seed {}: {message}", harness.arguments.seed);
            return ExitCode::FAILURE;
        }
    }
    println!(
        "{} kills, {worked} of them after the store was open, and {closes} closes: nothing lost, nothing wrong",
        harness.arguments.rounds
    );
    ExitCode::SUCCESS
}
