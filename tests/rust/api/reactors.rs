//! Several reactors on one store: work for each, order per key, one end for all, and nothing without an answer.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::faults::{Fault, FaultEngine};
use crate::common::{Client, MIB, Memory, config, eventually, key, layout, pattern};
use kvring::testing::{Action, Waker};
use kvring::{Config, Connector, Durability, EngineError, Layout};

const REACTORS: usize = 3;
const COUNT: u64 = 60;

fn configured(directory: &Path) -> Config {
    let mut config = config(directory, 256 * MIB);
    config.io_threads = Some(REACTORS);
    config
}

fn memory(number: u64, version: u64) -> Memory {
    Memory::patterned(3000 + 40_000 * (number % 7) as usize, 0, 1000 * version + number)
}

/// Stores, replaces, loads and removes, with all of it in flight together.
fn work(client: &Client) {
    let keys: Vec<String> = (0..COUNT).map(key).collect();
    let versions: Vec<Vec<Memory>> =
        (0..2).map(|version| (0..COUNT).map(|number| memory(number, version)).collect()).collect();
    // Half of the memory is not aligned, so these loads go through bounce memory.
    let loaded: Vec<Memory> = (0..COUNT)
        .map(|number| Memory::new(memory(number, 0).bytes().len(), number as usize % 2))
        .collect();
    let sets: Vec<u64> = versions.iter().map(|memory| client.submit_set(&keys, memory)).collect();
    // A load behind SETs without an answer has one of their chunks, or none.
    let get = client.submit_get(&keys, &loaded);
    let removed: Vec<String> = keys.iter().step_by(3).cloned().collect();
    let delete = client.connector.submit_delete(&removed).unwrap();
    for set in sets {
        let done = client.wait(set);
        assert!(done.ok, "{}", done.error);
    }
    let hits = client.wait(get).results;
    client.wait(delete);
    for (number, loaded) in loaded.iter().enumerate().filter(|(number, _)| hits[*number]) {
        let is_either = versions.iter().any(|memory| memory[number].bytes() == loaded.bytes());
        assert!(is_either, "neither of {number}");
    }
    let is_held = |number: usize| !number.is_multiple_of(3);
    assert!(client.exists(&keys).iter().enumerate().all(|(number, held)| *held == is_held(number)));
    let again = client.get(&keys, &loaded.iter().collect::<Vec<_>>()).results;
    for (number, loaded) in loaded.iter().enumerate() {
        assert_eq!(again[number], is_held(number));
        assert!(!again[number] || loaded.bytes() == versions[1][number].bytes(), "{number}");
    }
}

#[test]
fn everything_works_in_order_in_both_durabilities() {
    for durability in [Durability::BestEffort, Durability::Persistent] {
        let directory = tempfile::tempdir().unwrap();
        let mut config = configured(directory.path());
        config.durability = durability;
        let client = Client::from(Connector::open(config.clone()).unwrap());
        assert_eq!(client.connector.stats().io_threads, REACTORS as u64);
        work(&client);
        assert!(client.connector.close().clean);
        drop(client);
        // With another number of reactors too: it is no property of what is stored.
        config.io_threads = Some(1);
        let client = Client::from(Connector::open(config).unwrap());
        assert_eq!(client.connector.stats().keys, COUNT - COUNT.div_ceil(3));
        for number in (0..COUNT).filter(|number| number % 3 != 0) {
            let expected = memory(number, 1);
            let loaded = client.get_one(&key(number), expected.bytes().len());
            assert!(loaded.is_some_and(|loaded| loaded == expected.bytes()));
        }
    }
}

#[test]
fn without_a_further_reactor_the_others_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = configured(directory.path());
    config.io_threads = None;
    let made = AtomicUsize::new(0);
    let make_engine = move |queue_depth, waker: Arc<Waker>| {
        if made.fetch_add(1, Ordering::SeqCst) > 1 {
            let source = std::io::Error::from_raw_os_error(libc::ENOMEM);
            return Err(EngineError::Failed { operation: "starting", source });
        }
        FaultEngine::new(queue_depth, waker, Box::new(|_, _, _| Fault::None), Arc::default())
    };
    let client = Client::from(Connector::open_with_engine(config, make_engine).unwrap());
    assert_eq!(client.connector.stats().io_threads, 2);
    (0..20).for_each(|_| work(&client));
    assert!(client.connector.close().clean);
}

#[test]
fn a_close_in_the_middle_of_a_burst_answers_everything() {
    let directory = tempfile::tempdir().unwrap();
    let stored = Memory::patterned(1 << 20, 0, 7);
    let loaded: Vec<Memory> = (0..64).map(|_| Memory::new(1 << 20, 0)).collect();
    let keys: Vec<String> = (0..64).map(|number| key(number % 8)).collect();
    for pause_us in (0..30).map(|round| 100 * round) {
        let client = Client::from(Connector::open(configured(directory.path())).unwrap());
        assert!(client.set(&keys[..8], &[&stored; 8]).ok);
        client.submit_get(&keys, &loaded);
        std::thread::sleep(Duration::from_micros(pause_us));
        assert!(client.close_after(Duration::ZERO).clean);
        assert_eq!(client.connector.stats().in_flight, 0, "after {pause_us} us");
    }
    let client = Client::from(Connector::open(configured(directory.path())).unwrap());
    assert!(client.get_one(&keys[0], 1 << 20).is_some_and(|bytes| bytes == stored.bytes()));
}

#[test]
fn latencies_of_all_of_them_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::from(Connector::open(configured(directory.path())).unwrap());
    work(&client);
    // Of chunks that nobody writes or reads any more, the place is freed by a reactor, behind the answer.
    client.delete(&(0..COUNT).map(key).collect::<Vec<_>>());
    let mut latencies = Vec::new();
    eventually("the places are freed", || {
        latencies = client.connector.stats().latencies;
        latency(&latencies, "delete_total_us_max") > 0
    });
    let value = |name: &str| latency(&latencies, name);
    for class in ["get", "set"] {
        for phase in ["wait", "device", "total"] {
            let quantile = |quantile: &str| value(&format!("{class}_{phase}_us_{quantile}"));
            let all = ["p50", "p90", "p99", "max"].map(quantile);
            assert!(all.is_sorted(), "{class} {phase}: {all:?}");
        }
        let [device, total] =
            ["device", "total"].map(|phase| value(&format!("{class}_{phase}_us_max")));
        assert!(0 < device && device <= total, "{class}: {device} of {total}");
    }
}

fn latency(latencies: &[(String, u64)], name: &str) -> u64 {
    latencies.iter().find(|(other, _)| other == name).unwrap().1
}

/// The engines of a store's reactors: each can be made to stand still with the next transfer, or to panic, and counts its transfers.
#[derive(Clone, Default)]
struct Devices {
    stuck: [Arc<AtomicBool>; REACTORS],
    panics: [Arc<AtomicBool>; REACTORS],
    transfers: [Arc<AtomicU64>; REACTORS],
}

impl Devices {
    fn open(&self, config: Config) -> Client {
        let (devices, made) = (self.clone(), AtomicUsize::new(0));
        let make_engine = move |queue_depth, waker| {
            let number = made.fetch_add(1, Ordering::SeqCst);
            let transfers = Arc::clone(&devices.transfers[number]);
            let panics = Arc::clone(&devices.panics[number]);
            let stuck = Arc::clone(&devices.stuck[number]);
            let script = move |_, action, _| {
                // A chunk's own file is opened first, by what would else be its first transfer.
                let is_counted = layout() == Layout::Extents || matches!(action, Action::Open(_));
                transfers.fetch_add(is_counted.into(), Ordering::SeqCst);
                while is_counted && stuck.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_micros(100));
                }
                if panics.load(Ordering::SeqCst) { Fault::Panic } else { Fault::None }
            };
            FaultEngine::new(queue_depth, waker, Box::new(script), Arc::default())
        };
        Client::from(Connector::open_with_engine(config, make_engine).unwrap())
    }

    fn transfers(&self) -> [u64; REACTORS] {
        self.transfers.each_ref().map(|transfers| transfers.load(Ordering::SeqCst))
    }

    /// The reactors that moved something in `work`.
    fn used_by(&self, work: impl FnOnce()) -> Vec<usize> {
        let before = self.transfers();
        work();
        let after = self.transfers();
        (0..REACTORS).filter(|number| after[*number] > before[*number]).collect()
    }

    /// Submits something with which the reactor that takes it up stands still: which one, and the batch.
    fn hold(&self, submit: impl FnOnce() -> u64) -> (usize, u64) {
        let swap = |stuck: &Arc<AtomicBool>| stuck.swap(true, Ordering::SeqCst);
        let (stuck, before) = (self.stuck.each_ref().map(swap), self.transfers());
        let future_id = submit();
        let mut holder = None;
        eventually("one has it", || {
            let after = self.transfers();
            holder = (0..REACTORS).find(|number| after[*number] > before[*number]);
            holder.is_some()
        });
        let holder = holder.unwrap();
        for number in (0..REACTORS).filter(|number| *number != holder) {
            self.stuck[number].store(stuck[number], Ordering::SeqCst);
        }
        (holder, future_id)
    }

    fn release_all(&self) {
        self.stuck.iter().for_each(|stuck| stuck.store(false, Ordering::SeqCst));
    }
}

/// One that cannot go on holds up only what it has.
#[test]
fn one_that_is_stuck_gets_nothing_more() {
    let directory = tempfile::tempdir().unwrap();
    let devices = Devices::default();
    let client = devices.open(configured(directory.path()));
    let chunk = Memory::patterned(4096, 0, 1);
    let (_, held) = devices.hold(|| client.submit_set(&[key(0)], &[&chunk]));
    for number in 1..COUNT {
        assert!(client.set_one(&key(number), &chunk));
        assert_eq!(client.get_one(&key(number), 4096).as_deref(), Some(chunk.bytes()));
        client.delete(&[key(number)]);
    }
    eventually("the places are freed", || client.connector.stats().allocated_bytes == 4096);
    assert!(!client.exists(&[key(0)])[0]);
    devices.release_all();
    assert!(client.wait(held).ok);
}

/// A SET on one reactor waits while another loads, and goes on when that is done although nothing else comes.
#[test]
fn sets_wait_for_the_loads_of_other_reactors() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = configured(directory.path());
    config.tuning.set_max_wait = Duration::from_secs(600);
    let devices = Devices::default();
    let client = devices.open(config);
    let stored = Memory::patterned(64 << 10, 0, 1);
    assert!(client.set_one(&key(0), &stored));
    let loaded = Memory::new(64 << 10, 0);
    let (_, get) = devices.hold(|| client.submit_get(&[key(0)], &[&loaded]));
    let more: Vec<String> = (1..COUNT).map(key).collect();
    let set = client.submit_set(&more, &[&stored; COUNT as usize - 1]);
    // Time enough for a SET that does not wait.
    std::thread::sleep(Duration::from_millis(50));
    assert!(!client.exists(&more).contains(&true), "a SET went ahead of a load");
    devices.release_all();
    assert!(client.wait(get).ok);
    assert!(client.wait(set).ok);
    assert!(client.exists(&more).iter().all(|held| *held));
    // What was held up on one reactor shows in the figures of all.
    let latencies = client.connector.stats().latencies;
    for name in ["get_total_us_max", "set_wait_us_max"] {
        assert!(latency(&latencies, name) >= 50_000, "{name}: {latencies:?}");
    }
}

/// A SET that waits for another reactor's loads goes ahead of them when it is due, although nothing wakes its reactor.
#[test]
fn a_set_that_is_due_goes_ahead_of_the_loads_of_other_reactors() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = configured(directory.path());
    config.tuning.set_max_wait = Duration::from_millis(20);
    let devices = Devices::default();
    let client = devices.open(config);
    let stored = Memory::patterned(4096, 0, 1);
    let keys: Vec<String> = (0..REACTORS as u64).map(key).collect();
    assert!(client.set(&keys, &[&stored; REACTORS]).ok);
    let loaded = Memory::new(4096, 0);
    let (loading, get) = devices.hold(|| client.submit_get(&keys[..1], &[&loaded]));
    let used = devices.used_by(|| {
        let other = Memory::patterned(4096, 0, 2);
        let sets = [1, 2].map(|number| client.submit_set(&keys[number..=number], &[&other]));
        assert!(sets.into_iter().all(|set| client.wait(set).ok));
    });
    assert!(!used.contains(&loading));
    devices.release_all();
    assert_eq!(client.wait(get).results, [true]);
}

/// On close each works off what it has, also if others had nothing to do.
#[test]
fn one_that_is_done_does_not_drop_what_others_have() {
    let directory = tempfile::tempdir().unwrap();
    let devices = Devices::default();
    let client = devices.open(configured(directory.path()));
    let memory = [0, 1, 2].map(|version| Memory::patterned(4096, 0, version));
    devices.hold(|| client.submit_set(&[key(0)], &[&memory[0]]));
    for memory in &memory[1..] {
        client.submit_set(&[key(0)], &[memory]);
    }
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| client.connector.close());
        // Time enough for the others to end.
        std::thread::sleep(Duration::from_millis(50));
        devices.release_all();
        let shutdown = closing.join().unwrap();
        assert_eq!((shutdown.clean, shutdown.abandoned), (true, 0));
    });
    let client = Client::from(Connector::open(configured(directory.path())).unwrap());
    assert_eq!(client.get_one(&key(0), 4096), Some(pattern(4096, 2)));
}

/// Without one of them the others would leave keys without an answer: they all stop. What comes while they do, and
/// afterwards, is answered too.
#[test]
fn one_that_panics_stops_all_and_every_batch_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let devices = Devices::default();
    let client = devices.open(configured(directory.path()));
    let memory: Vec<Memory> = (0..4).map(|version| Memory::patterned(4096, 0, version)).collect();
    // The others cannot end before their devices answer, and have more to do than the one that panics.
    let large = Memory::patterned(64 << 10, 0, 1);
    let held = [0, 1].map(|number| devices.hold(|| client.submit_set(&[key(number)], &[&large])));
    devices.panics.iter().for_each(|panics| panics.store(true, Ordering::SeqCst));
    assert!(!client.set(&[key(2)], &[&memory[1]]).ok);
    // Nobody takes these: one is for the reactor that is gone, the other waits behind it.
    let late = [2, 3].map(|version| client.submit_set(&[key(2)], &[&memory[version]]));
    devices.release_all();
    for id in late {
        assert!(!client.wait(id).ok);
    }
    for (_, id) in held {
        client.wait(id);
    }
    for round in 1..4 {
        let more: Vec<String> = (round * COUNT..(round + 1) * COUNT).map(key).collect();
        assert_eq!(
            client.set(&more, &[&memory[0]; COUNT as usize]).results,
            [false; COUNT as usize]
        );
    }
    eventually("their room is given back", || {
        let stats = client.connector.stats();
        (stats.set_queued_operations, stats.set_queued_bytes, stats.in_flight) == (0, 0, 0)
    });
    assert!(!client.connector.close().clean);
}

#[test]
fn if_one_cannot_start_the_store_is_not_opened_and_not_held() {
    let directory = tempfile::tempdir().unwrap();
    let made = AtomicUsize::new(0);
    let make_engine = move |queue_depth: usize, waker: Arc<Waker>| match made
        .fetch_add(1, Ordering::SeqCst)
    {
        2 => Err(EngineError::Failed {
            operation: "starting",
            source: std::io::Error::other("enough engines"),
        }),
        _ => FaultEngine::new(queue_depth, waker, Box::new(|_, _, _| Fault::None), Arc::default()),
    };
    let opened = Connector::open_with_engine(configured(directory.path()), make_engine);
    assert!(opened.map(drop).unwrap_err().to_string().contains("enough engines"));
    let client = Client::open(directory.path(), 256 * MIB);
    assert!(client.set_one("k", &Memory::patterned(10, 0, 1)));
    assert_eq!(client.get_one("k", 10), Some(pattern(10, 1)));
}

/// Whether a reactor whose SETs wait for another's loads learns of their end must not depend on when it looks: a SET used
/// to wait for `set_max_wait` if the last load ended while its reactor was about to sleep.
#[test]
fn no_end_of_loads_elsewhere_is_missed() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut config = configured(directory.path());
    config.tuning.set_max_wait = Duration::from_secs(600);
    let client = Client::from(Connector::open(config).unwrap());
    let small = Memory::patterned(1, 0, 1);
    let (versions, loaded) = ([1, 2].map(|seed| Memory::patterned(1, 0, seed)), Memory::new(1, 0));
    let keys: Vec<String> = (0..8).map(key).collect();
    assert!(client.set(&keys, &[&small; 8]).ok);
    for round in 0..20_000 {
        let get = client.submit_get(&keys[round % 8..=round % 8], &[&loaded]);
        let other = (round + 1 + round / 8) % 8;
        let set = client.submit_set(&keys[other..=other], &[&versions[round % 2]]);
        assert!(client.wait(set).ok && client.wait(get).ok);
    }
}
