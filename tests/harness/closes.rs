//! A store is closed in the middle of loads and stores, again and again. After close() no buffer may be touched, and the next open finds
//! what was answered before it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kvring::{Connector, Durability};

use super::common::memory::POISON;
use super::common::random::Random;
use super::common::{Client, MIB, Memory, config};
use super::ledger::Ledger;
use super::plan::{Chunk, length, name};
use super::{judge, ledger};

const CAPACITY: u64 = 64 * MIB;
const KEYS: u64 = 32;
const LONGEST: usize = 256 << 10;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How often to close.
    #[arg(long, default_value_t = 500)]
    closes: u64,
    /// Directory to work in; a temporary directory by default.
    #[arg(long)]
    path: Option<PathBuf>,
    /// Start of the random choices; what the kernel makes of them is its own.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

struct Batch {
    future_id: u64,
    key: u64,
    memory: Memory,
    /// The number of a SET.
    id: Option<u64>,
}

struct Closes {
    path: PathBuf,
    random: Random,
    ledger: Ledger,
    versions: u64,
}

fn open(path: &Path, random: &mut Random) -> Result<Client, String> {
    let mut config = config(path, CAPACITY);
    config.io_threads = Some(1 + random.below(3) as usize);
    config.min_free_bytes = Some(0);
    config.durability = random.choose(&[Durability::BestEffort, Durability::Persistent]);
    Connector::open(config).map(Client::from).map_err(|error| format!("open failed: {error}"))
}

impl Closes {
    fn opened(&mut self) -> Result<Client, String> {
        let client = open(&self.path, &mut self.random)?;
        judge::look(&client, &mut self.ledger, 0..KEYS, |_| false)?;
        Ok(client)
    }

    fn submit(&mut self, client: &Client) -> Batch {
        let (key, random) = (self.random.below(KEYS), &mut self.random);
        self.versions += 1;
        let id = self.versions;
        let chunk = Chunk { version: id, length: length(key, id, LONGEST) };
        let shift = random.below(3) as usize;
        if random.one_of(2) {
            let memory = chunk.memory(shift);
            self.ledger.begin(key, id, 0, Some(chunk));
            let future_id = client.submit_set(&[name(key)], &[&memory]);
            return Batch { future_id, key, memory, id: Some(id) };
        }
        let held = self.ledger.held(key).map_or(chunk.length, |held| held.length);
        let memory = Memory::new(held, shift);
        let future_id = client.submit_get(&[name(key)], &[&memory]);
        Batch { future_id, key, memory, id: None }
    }

    /// One life of the store: works, closes in the middle, and looks whether buffers are left alone. Says how many batches were under
    /// way.
    fn live(&mut self) -> Result<usize, String> {
        let client = self.opened()?;
        let mut batches: Vec<Batch> =
            (0..1 + self.random.below(12)).map(|_| self.submit(&client)).collect();
        // Some are answered before it is closed, in the order in which they were submitted.
        let answered = self.random.below(3).min(batches.len() as u64) as usize;
        for Batch { future_id, key, memory, id } in batches.drain(..answered) {
            let done = client.wait(future_id);
            match id {
                _ if !done.ok => return Err(done.error),
                Some(id) => self.ledger.end(key, id),
                None if !done.results[0] => {}
                None => {
                    let readable = self.ledger.readable(key);
                    judge::identify(&name(key), &readable, memory.bytes())?;
                }
            }
        }
        let drain = Duration::from_micros(self.random.choose(&[0, 0, 100, 2000]));
        let closed = client.close_after(drain);
        if !closed.clean || closed.memory_held {
            return Err(format!("{closed}"));
        }
        batches.iter().for_each(|batch| batch.memory.poison());
        drop(client);
        // It would be written to by now, or while the store is opened again.
        self.ledger.end_session(false);
        drop(self.opened()?);
        let is_left_alone = |batch: &Batch| batch.memory.bytes().iter().all(|byte| *byte == POISON);
        match batches.iter().all(is_left_alone) {
            true => Ok(batches.len()),
            false => Err("a buffer was touched after close()".into()),
        }
    }
}

pub(crate) fn run(arguments: Arguments) -> Result<String, String> {
    let temporary = tempfile::tempdir().unwrap();
    let path = arguments.path.unwrap_or_else(|| temporary.path().to_owned());
    let (random, ledger) = (Random::new(arguments.seed), ledger::Ledger::default());
    let mut closes = Closes { path, random, ledger, versions: 0 };
    let mut under_way = 0;
    for number in 0..arguments.closes {
        let outcome = closes.live();
        under_way +=
            outcome.map_err(|error| format!("close {number}, seed {}: {error}", arguments.seed))?;
    }
    Ok(format!(
        "{} closes, {under_way} batches under way: nothing lost, nothing wrong",
        arguments.closes
    ))
}
