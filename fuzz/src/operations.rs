//! Operations on a small store whose device fails as an input says, against a model: a hit has the bytes that were stored last,
//! each batch completes once, nothing is out of balance, and once nothing fails any more the store goes on.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvring::testing::Action;
use kvring::{Config, Connector, Durability, Eviction, Layout};

use crate::common::faults::{Fault, FaultEngine};
use crate::common::{Client, MIB, Memory, key, pattern};
use crate::input::Input;
use crate::open_index::config;

const KEYS: usize = 24;
const LENGTHS: [usize; 6] = [1, 4096, 5000, 65_536, 300_000, 1 << 20];
const ERRNOS: [i32; 6] =
    [libc::EIO, libc::ENOSPC, libc::EAGAIN, libc::EINTR, libc::ETIMEDOUT, libc::EINVAL];
const GOES_ON_WITHIN: Duration = Duration::from_secs(30);

/// Which transfers fail next, and how often.
#[derive(Default)]
struct Faults {
    due: VecDeque<(Kind, Fault, u64)>,
    /// The last transfer was a write.
    is_written: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Any,
    Read,
    Write,
    Sync,
    /// One that is not the first behind a write: of records, and not of data.
    IndexSync,
    Other,
}

impl Faults {
    fn next(&mut self, action: Action) -> Fault {
        let kind = match action {
            Action::Read => Kind::Read,
            Action::Write => Kind::Write,
            Action::Sync => Kind::Sync,
            _ => Kind::Other,
        };
        let is_of_data = mem::replace(&mut self.is_written, kind == Kind::Write);
        let fits = |(wanted, ..): &(Kind, Fault, u64)| match wanted {
            Kind::Any => true,
            Kind::IndexSync => kind == Kind::Sync && !is_of_data,
            wanted => *wanted == kind,
        };
        let Some(at) = self.due.iter().position(fits) else { return Fault::None };
        self.due[at].2 -= 1;
        let fault = self.due[at].1;
        if self.due[at].2 == 0 {
            self.due.remove(at);
        }
        match fault {
            // Only bytes come in part.
            Fault::Short(_) if !matches!(kind, Kind::Read | Kind::Write) => Fault::None,
            fault => fault,
        }
    }
}

/// A chunk, by its length and the seed of its bytes.
type Chunk = (usize, u64);

/// What may be stored of each key. That nothing is, may always be: chunks are evicted.
#[derive(Default)]
struct Model(BTreeMap<usize, Vec<Chunk>>);

impl Model {
    /// In `persistent` one that failed may be there all the same, where the record of the one before it was cleared already.
    fn set(&mut self, key: usize, chunk: Chunk, is_stored: bool, is_persistent: bool) {
        let possible = self.0.entry(key).or_default();
        if is_stored {
            possible.clear();
        }
        if is_stored || is_persistent {
            possible.push(chunk);
        }
    }

    fn chunks(&self) -> impl Iterator<Item = (usize, Chunk)> {
        self.0.iter().flat_map(|(key, chunks)| chunks.iter().map(|chunk| (*key, *chunk)))
    }

    fn found(&self, key: usize, bytes: &[u8]) {
        let possible = self.0.get(&key).map(Vec::as_slice).unwrap_or_default();
        let is_one =
            |(length, seed): &Chunk| *length == bytes.len() && pattern(*length, *seed) == bytes;
        assert!(possible.iter().any(is_one), "key {key}: wrong bytes, not {possible:?}");
    }
}

fn open(path: &Path, faults: &Arc<Mutex<Faults>>, set: impl Fn(&mut Config)) -> Client {
    let mut config = config(path, 16 * MIB, Layout::Extents);
    set(&mut config);
    let faults = Arc::clone(faults);
    let connector = Connector::open_with_engine(config, move |queue_depth, waker| {
        let faults = Arc::clone(&faults);
        let script = move |_, action, _| faults.lock().unwrap().next(action);
        FaultEngine::new(queue_depth, waker, Box::new(script), Arc::default())
    });
    Client::from(connector.unwrap())
}

/// Different keys, between one and four of them.
fn some_keys(input: &mut Input) -> Vec<usize> {
    let (first, step, count) = (input.below(KEYS), 1 + input.below(5), 1 + input.below(4));
    (0..count).map(|number| (first + number * step) % KEYS).collect()
}

fn names(keys: &[usize]) -> Vec<String> {
    keys.iter().map(|number| key(*number as u64)).collect()
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let layout = input.choose(&[Layout::Extents, Layout::Files]);
    let durability = input.choose(&[Durability::Persistent, Durability::BestEffort]);
    let is_persistent = durability == Durability::Persistent;
    let eviction = input.choose(&Eviction::ALL);
    let retries = input.number::<1>() as u32 % 2;
    let set = |config: &mut Config| {
        (config.layout, config.durability, config.eviction) = (layout, durability, eviction);
        config.tuning.persistent_max_retries = retries;
    };
    let directory = tempfile::tempdir().unwrap();
    let faults: Arc<Mutex<Faults>> = Arc::default();
    let mut client = open(directory.path(), &faults, set);
    let mut model = Model::default();
    for seed in 1..=64 {
        if input.is_empty() {
            break;
        }
        match input.choose(&[0, 0, 0, 1, 1, 2, 3, 4, 4, 5]) {
            0 => {
                let keys = some_keys(&mut input);
                let length = input.choose(&LENGTHS);
                let memory: Vec<Memory> =
                    keys.iter().map(|_| Memory::patterned(length, 0, seed)).collect();
                let done = client.set(&names(&keys), &memory.iter().collect::<Vec<_>>());
                assert_eq!(done.ok, done.results.iter().all(|is_stored| *is_stored));
                for (key, is_stored) in keys.iter().zip(done.results) {
                    model.set(*key, (length, seed), is_stored, is_persistent);
                }
            }
            1 => {
                let keys = some_keys(&mut input);
                let length = input.choose(&LENGTHS);
                let memory: Vec<Memory> = keys.iter().map(|_| Memory::new(length, 0)).collect();
                let done = client.get(&names(&keys), &memory.iter().collect::<Vec<_>>());
                let found = keys.iter().zip(&memory).zip(done.results);
                for ((key, memory), _) in found.filter(|(_, is_hit)| *is_hit) {
                    model.found(*key, memory.bytes());
                }
            }
            2 => {
                let keys = some_keys(&mut input);
                for (key, is_there) in keys.iter().zip(client.exists(&names(&keys))) {
                    let may_be = model.0.get(key).is_some_and(|chunks| !chunks.is_empty());
                    assert!(may_be || !is_there, "key {key} is there");
                }
            }
            3 => {
                let keys = some_keys(&mut input);
                client.delete(&names(&keys));
                keys.iter().for_each(|key| drop(model.0.remove(key)));
            }
            4 => {
                let kind = input.choose(&[
                    Kind::Sync,
                    Kind::Write,
                    Kind::Read,
                    Kind::Any,
                    Kind::Other,
                    Kind::IndexSync,
                ]);
                let fault = match input.is_so() {
                    true => Fault::Short(1 + input.below(8192)),
                    false => Fault::Errno(input.choose(&ERRNOS)),
                };
                let count = 1 + input.number::<1>() % 16;
                faults.lock().unwrap().due.push_back((kind, fault, count));
            }
            _ => {
                client.connector.close();
                drop(client);
                faults.lock().unwrap().due.clear();
                client = open(directory.path(), &faults, set);
                client.assert_consistent();
            }
        }
    }
    faults.lock().unwrap().due.clear();
    let last = Memory::patterned(1 << 20, 0, 99);
    let begin = Instant::now();
    while !client.set_one("last", &last) {
        assert!(
            begin.elapsed() < GOES_ON_WITHIN,
            "it does not go on: {:?}",
            client.connector.stats()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    for (number, (length, _)) in model.chunks() {
        if let Some(bytes) = client.get_one(&key(number as u64), length) {
            model.found(number, &bytes);
        }
    }
    client.assert_consistent();
    client.connector.close();
}
