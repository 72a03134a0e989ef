//! The child: works on a store until it is killed, or until it closes it. Operations meet on the same keys, in order from one thread and
//! without order from another.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::super::common::random::Random;
use super::super::common::{Client, Memory};
use super::super::ledger::Ledger;
use super::super::plan::{Call, Chunk, draw_keys, length, names};
use super::{Arguments, CLOSED, KEYS, OPEN, Round};

/// Most keys of a batch.
const BATCH_KEYS: u64 = 6;
/// Keys that both threads ask for all the time.
const HOT_KEYS: u64 = 6;
const LONGEST: usize = 192 << 10;
/// DELETEs of the second thread that wait for being waited for.
const MOST_UNANSWERED: usize = 16;
const WORKER: u64 = 0;
const EVICTOR: u64 = 1;
const CALLS: [(Call, u64); 4] =
    [(Call::Set, 4), (Call::Delete, 2), (Call::Exists, 1), (Call::Get, 1)];

struct Child<'a> {
    client: &'a Client,
    /// What it tells its parent, and the number of the last operation.
    told: Mutex<(Ledger, u64)>,
    /// DELETEs of the second thread.
    deletes: Mutex<Vec<Batch>>,
    is_over: AtomicBool,
}

struct Batch {
    future_id: u64,
    /// Each with the number of its operation.
    keys: Vec<(u64, u64)>,
    _memory: Vec<Memory>,
}

impl Child<'_> {
    /// SETs or DELETEs; tells what before it submits.
    fn submit(&self, is_set: bool, keys: Vec<u64>, thread: u64) -> Batch {
        let names = names(&keys);
        let (mut numbered, mut memory) = (Vec::new(), Vec::new());
        for key in keys {
            let mut told = self.told.lock().unwrap();
            let (ledger, last) = &mut *told;
            *last += 1;
            let id = *last;
            let chunk = Chunk { version: id, length: length(key, id, LONGEST) };
            ledger.begin(key, id, thread, is_set.then_some(chunk));
            drop(told);
            numbered.push((key, id));
            if is_set {
                memory.push(chunk.memory((id % 3) as usize));
            }
        }
        let future_id = match is_set {
            true => self.client.submit_set(&names, &memory),
            false => self.client.connector.submit_delete(&names).unwrap(),
        };
        Batch { future_id, keys: numbered, _memory: memory }
    }

    fn wait(&self, batch: Batch) {
        let completion = self.client.wait(batch.future_id);
        assert!(completion.ok, "{}", completion.error);
        let mut told = self.told.lock().unwrap();
        batch.keys.iter().for_each(|(key, id)| told.0.end(*key, *id));
    }

    /// Two batches in flight at a time, on any keys.
    fn turn(&self, random: &mut Random) {
        let mut batches = Vec::new();
        for _ in 0..2 {
            let keys = draw_keys(random, BATCH_KEYS, HOT_KEYS, KEYS);
            let names = names(&keys);
            match Call::draw(random, &CALLS) {
                Call::Exists => drop(self.client.exists(&names)),
                Call::Get => {
                    let of = |key: &u64| Memory::new(length(*key, 0, LONGEST), 0);
                    let memory: Vec<Memory> = keys.iter().map(of).collect();
                    self.client.get(&names, &memory);
                }
                call => batches.push(self.submit(call == Call::Set, keys, WORKER)),
            }
        }
        let deletes = std::mem::take(&mut *self.deletes.lock().unwrap());
        batches.into_iter().chain(deletes).for_each(|batch| self.wait(batch));
    }

    /// Deletes at the same time, in no order with the other thread.
    fn evict(&self, mut random: Random) {
        while !self.is_over.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_micros(random.below(200)));
            if self.deletes.lock().unwrap().len() < MOST_UNANSWERED {
                let keys = draw_keys(&mut random, BATCH_KEYS, HOT_KEYS, KEYS);
                let batch = self.submit(false, keys, EVICTOR);
                self.deletes.lock().unwrap().push(batch);
            }
        }
    }

    /// Leaves a pile of work to close(). In one half of the cases there are no DELETEs in it, so that it can be counted what was not
    /// done.
    fn pile_up(&self, random: &mut Random) {
        let is_countable = random.one_of(2);
        for first in (0..KEYS).step_by(BATCH_KEYS as usize).take(random.below(12) as usize) {
            let is_set = is_countable || random.below(4) > 0;
            let keys = match random.one_of(2) {
                true => draw_keys(random, BATCH_KEYS, HOT_KEYS, KEYS),
                false => (first..KEYS.min(first + BATCH_KEYS)).collect(),
            };
            self.submit(is_set, keys, WORKER);
        }
    }
}

/// Works until it is killed or has closed the store.
pub(super) fn work(path: &Path, arguments: &Arguments, round: &Round) {
    let client = round.open(path, arguments.paths, round.reactors).unwrap();
    let mut ledger = Ledger::default();
    ledger.tells = true;
    let child = Child {
        client: &client,
        told: Mutex::new((ledger, round.first_version)),
        deletes: Mutex::default(),
        is_over: AtomicBool::new(false),
    };
    let mut random = Random::new(round.seed);
    println!("{OPEN}");
    thread::scope(|scope| {
        scope.spawn(|| child.evict(Random::new(!round.seed)));
        let mut turns = 0;
        while !arguments.closes || turns < round.turns {
            child.turn(&mut random);
            turns += 1;
        }
        child.is_over.store(true, Ordering::SeqCst);
    });
    let deletes = std::mem::take(&mut *child.deletes.lock().unwrap());
    deletes.into_iter().for_each(|batch| child.wait(batch));
    child.pile_up(&mut random);
    let done = client.close_after(round.drain);
    let counters = client.connector.stats().counters;
    let counted: Vec<_> = counters.iter().filter(|(_, count)| *count > 0).collect();
    println!("{CLOSED}{} {} {} {counted:?}", done.clean, done.partial_flush, done.abandoned);
}
