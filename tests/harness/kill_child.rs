//! The child of the kill harness: works on a store until it is killed, or until it closes it.

use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::{Arguments, Client, KEYS, Memory, OPEN, Random, content, length, name, open, paths};

/// Most keys of a batch.
const BATCH_KEYS: u64 = 6;
/// Keys that both threads ask for all the time.
const HOT_KEYS: u64 = 6;
/// DELETEs of the second thread that wait for being waited for.
const MAX_UNANSWERED: usize = 16;
const WORKER: u64 = 0;
const EVICTOR: u64 = 1;

struct Child<'a> {
    client: &'a Client,
    /// Number of the last batch.
    number: AtomicU64,
    /// Keys of the second thread's DELETEs, with the batch and its future.
    deletes: Mutex<Vec<Batch>>,
    is_over: AtomicBool,
}

struct Batch {
    future_id: u64,
    number: u64,
    keys: Vec<u64>,
    _memory: Vec<Memory>,
}

/// Tells on standard output what is about to be done, and what was. Each text reaches the parent whole or not at all.
fn say(text: &str) {
    std::io::stdout().lock().write_all(text.as_bytes()).unwrap();
}

impl Child<'_> {
    /// SETs or DELETEs; tells what before it submits.
    fn submit(&self, verb: &str, keys: Vec<u64>, thread: u64) -> Batch {
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        let text: String =
            keys.iter().map(|key| format!("{verb} {number} {key} {thread}\n")).collect();
        let names: Vec<String> = keys.iter().map(|key| name(*key)).collect();
        if verb == "delete" {
            say(&text);
            let future_id = self.client.connector.submit_delete(&names).unwrap();
            return Batch { future_id, number, keys, _memory: Vec::new() };
        }
        let memory: Vec<Memory> = keys
            .iter()
            .map(|key| {
                let memory = Memory::new(length(*key, number), (number % 3) as usize);
                memory.fill(&content(*key, number));
                memory
            })
            .collect();
        say(&text);
        let future_id = self.client.submit_set(&names, &memory.iter().collect::<Vec<_>>());
        Batch { future_id, number, keys, _memory: memory }
    }

    fn wait(&self, batch: Batch) {
        let completion = self.client.wait(batch.future_id);
        assert!(completion.ok, "{}", completion.error);
        let done: String =
            batch.keys.iter().map(|key| format!("done {} {key}\n", batch.number)).collect();
        say(&done);
    }

    /// Two batches in flight at a time, on any keys.
    fn turn(&self, random: &mut Random) {
        let mut batches = Vec::new();
        for _ in 0..2 {
            let keys = some_keys(random);
            match random.below(8) {
                0..4 => batches.push(self.submit("set", keys, WORKER)),
                4..6 => batches.push(self.submit("delete", keys, WORKER)),
                kind => {
                    let names: Vec<String> = keys.iter().map(|key| name(*key)).collect();
                    if kind == 6 {
                        self.client.exists(&names);
                    } else {
                        let memory: Vec<Memory> =
                            keys.iter().map(|key| Memory::new(length(*key, 0), 0)).collect();
                        self.client.get(&names, &memory.iter().collect::<Vec<_>>());
                    }
                }
            }
        }
        let deletes = std::mem::take(&mut *self.deletes.lock().unwrap());
        batches.into_iter().chain(deletes).for_each(|batch| self.wait(batch));
    }

    /// Deletes at the same time, in no order with the other thread.
    fn evict(&self, mut random: Random) {
        while !self.is_over.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_micros(random.below(200)));
            if self.deletes.lock().unwrap().len() < MAX_UNANSWERED {
                let batch = self.submit("delete", some_keys(&mut random), EVICTOR);
                self.deletes.lock().unwrap().push(batch);
            }
        }
    }

    /// Leaves a pile of work to close(). In one half of the cases there are no DELETEs in it, so that it can be counted what
    /// was not done.
    fn pile_up(&self, random: &mut Random) {
        let is_countable = random.below(2) == 0;
        for first in (0..KEYS).step_by(BATCH_KEYS as usize).take(random.below(12) as usize) {
            let is_set = is_countable || random.below(4) > 0;
            let keys = match random.below(2) {
                0 => some_keys(random),
                _ => (first..KEYS.min(first + BATCH_KEYS)).collect(),
            };
            self.submit(if is_set { "set" } else { "delete" }, keys, WORKER);
        }
    }
}

fn some_keys(random: &mut Random) -> Vec<u64> {
    let limit = if random.below(3) == 0 { HOT_KEYS } else { KEYS };
    let mut keys: Vec<u64> =
        (0..1 + random.below(BATCH_KEYS)).map(|_| random.below(limit)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Works until it is killed or has closed the store.
pub(crate) fn work(path: &Path, arguments: &Arguments) {
    let paths = paths(path, arguments.paths, arguments.first_path);
    let client = open(&paths, arguments.persistent, arguments.io_threads).unwrap();
    let child = Child {
        client: &client,
        number: AtomicU64::new(arguments.first_version),
        deletes: Mutex::default(),
        is_over: AtomicBool::new(false),
    };
    let mut random = Random::new(arguments.seed);
    say(&format!("{OPEN}\n"));
    thread::scope(|scope| {
        let evictions = Random::new(!arguments.seed);
        scope.spawn(|| child.evict(evictions));
        let mut turns = 0;
        while arguments.close_after_turns.is_none_or(|limit| turns < limit) {
            child.turn(&mut random);
            turns += 1;
        }
        child.is_over.store(true, Ordering::SeqCst);
    });
    std::mem::take(&mut *child.deletes.lock().unwrap())
        .into_iter()
        .for_each(|batch| child.wait(batch));
    child.pile_up(&mut random);
    let done = client.close_after(Duration::from_millis(arguments.drain_ms));
    let counters = client.connector.stats().counters;
    say(&format!("counters {:?}\n", counters.iter().filter(|one| one.1 > 0).collect::<Vec<_>>()));
    say(&format!("closed {} {} {}\n", done.clean, done.partial_flush, done.abandoned));
}
