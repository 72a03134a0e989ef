//! Several reactors on one store: work for each, order per key, one end for all, and nothing without an answer.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use common::faults::{Fault, FaultEngine};
use common::{Client, MIB, Memory, config, key, pattern};
use kvring::{Config, Connector, Durability, EngineError, UringEngine, Waker};

const REACTORS: usize = 3;
const COUNT: u64 = 60;

fn configured(directory: &Path) -> Config {
    let mut config = config(directory, 256 * MIB);
    config.io_threads = REACTORS;
    config
}

/// A store whose devices can be made to stop answering.
struct Stoppable {
    client: Client,
    stuck: [Arc<AtomicBool>; REACTORS],
    /// Transfers that each device was given.
    transfers: Arc<[AtomicU64; REACTORS]>,
}

impl Stoppable {
    fn open(config: Config) -> Self {
        let stuck: [Arc<AtomicBool>; REACTORS] = Default::default();
        let transfers: Arc<[AtomicU64; REACTORS]> = Arc::default();
        let (made, each, counts) = (AtomicUsize::new(0), stuck.clone(), Arc::clone(&transfers));
        let make_engine = move |queue_depth, waker| {
            let number = made.fetch_add(1, Ordering::SeqCst);
            let counts = Arc::clone(&counts);
            let script = move |_, _, _| {
                counts[number].fetch_add(1, Ordering::SeqCst);
                Fault::None
            };
            FaultEngine::new(queue_depth, waker, Box::new(script), Arc::clone(&each[number]))
        };
        let client = Client::from(Connector::open_with_engine(config, make_engine).unwrap());
        Self { client, stuck, transfers }
    }

    /// Lets those devices answer for which `is_stuck` says no.
    fn stop(&self, is_stuck: impl Fn(usize) -> bool) {
        for (number, stuck) in self.stuck.iter().enumerate() {
            stuck.store(is_stuck(number), Ordering::SeqCst);
        }
    }

    /// Waits until the devices were given `total` transfers; how many each.
    fn wait_for_transfers(&self, total: u64) -> [u64; REACTORS] {
        loop {
            let each = std::array::from_fn(|number| self.transfers[number].load(Ordering::SeqCst));
            if each.iter().sum::<u64>() >= total {
                return each;
            }
            std::thread::yield_now();
        }
    }
}

fn memory(number: u64, version: u64) -> Memory {
    Memory::patterned(3000 + 40_000 * (number % 7) as usize, 0, 1000 * version + number)
}

/// Stores, replaces, loads and removes, with all of it in flight together.
fn work(client: &Client) {
    let keys: Vec<String> = (0..COUNT).map(key).collect();
    let versions: Vec<Vec<Memory>> =
        (0..2).map(|version| (0..COUNT).map(|number| memory(number, version)).collect()).collect();
    let loaded: Vec<Memory> =
        (0..COUNT).map(|number| Memory::new(memory(number, 0).bytes().len(), 0)).collect();
    let sets: Vec<u64> = versions
        .iter()
        .map(|memory| client.submit_set(&keys, &memory.iter().collect::<Vec<_>>()))
        .collect();
    let get = client.submit_get(&keys, &loaded.iter().collect::<Vec<_>>());
    let removed: Vec<String> = keys.iter().step_by(3).cloned().collect();
    let delete = client.connector.submit_delete(&removed).unwrap();
    for set in sets {
        let done = client.wait(set);
        assert!(done.ok, "{}", done.error);
    }
    assert_eq!(client.wait(get).results, [true; COUNT as usize]);
    client.wait(delete);
    for (number, loaded) in loaded.iter().enumerate() {
        assert!(loaded.bytes() == versions[1][number].bytes(), "not the younger of {number}");
    }
    let held = client.exists(&keys);
    assert!(held.iter().enumerate().all(|(number, held)| *held == (number % 3 != 0)));
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
        config.io_threads = 1;
        let client = Client::from(Connector::open(config).unwrap());
        assert_eq!(client.connector.stats().keys, COUNT - COUNT.div_ceil(3));
        for number in (0..COUNT).filter(|number| number % 3 != 0) {
            let expected = memory(number, 1);
            let loaded = client.get_one(&key(number), expected.bytes().len());
            assert!(loaded.is_some_and(|loaded| loaded == expected.bytes()));
        }
    }
}

/// What is submitted together, or while the others have as much in hand, is shared equally: few chunks too.
#[test]
fn each_gets_as_much_as_the_others() {
    const EACH: u64 = 4;
    let directory = tempfile::tempdir().unwrap();
    let store = Stoppable::open(configured(directory.path()));
    store.stop(|_| true);
    let chunk = Memory::patterned(300_000, 0, 1);
    let count = EACH * REACTORS as u64;
    let keys: Vec<String> = (0..count).map(key).collect();
    let (together, alone) = keys.split_at(keys.len() / 2);
    let mut ids = vec![store.client.submit_set(together, &vec![&chunk; together.len()])];
    ids.extend(
        alone.iter().map(|key| store.client.submit_set(std::slice::from_ref(key), &[&chunk])),
    );
    assert_eq!(store.wait_for_transfers(count), [EACH; REACTORS]);
    store.stop(|_| false);
    assert!(ids.into_iter().all(|id| store.client.wait(id).ok));
}

/// One that cannot go on holds up only what it has.
#[test]
fn one_that_is_stuck_gets_nothing_more() {
    let directory = tempfile::tempdir().unwrap();
    let store = Stoppable::open(configured(directory.path()));
    let client = &store.client;
    store.stop(|_| true);
    let chunk = Memory::patterned(4096, 0, 1);
    let first = client.submit_set(&[key(0)], &[&chunk]);
    let has_it = store.wait_for_transfers(1).map(|transfers| transfers > 0);
    store.stop(|number| has_it[number]);
    for number in 1..COUNT {
        assert!(client.set_one(&key(number), &chunk));
        assert_eq!(client.get_one(&key(number), 4096).as_deref(), Some(chunk.bytes()));
        client.delete(&[key(number)]);
    }
    // Places are given back behind the answer to DELETE.
    while client.connector.stats().allocated_bytes > 4096 {
        std::thread::yield_now();
    }
    assert!(!client.exists(&[key(0)])[0]);
    store.stop(|_| false);
    assert!(client.wait(first).ok);
}

#[test]
fn latencies_of_all_of_them_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::from(Connector::open(configured(directory.path())).unwrap());
    work(&client);
    let latencies = client.connector.stats().latencies;
    let value = |name: &str| latencies.iter().find(|(other, _)| other == name).unwrap().1;
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

/// A SET on one reactor waits while another loads, and goes on when that is done although nothing else comes.
#[test]
fn sets_wait_for_the_loads_of_other_reactors() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = configured(directory.path());
    config.set_max_wait = Duration::from_secs(600);
    let store = Stoppable::open(config);
    let client = &store.client;
    let stored = Memory::patterned(4096, 0, 1);
    for number in 0..COUNT {
        assert!(client.set_one(&key(number), &stored));
    }
    // Some of these loads are on reactors whose device does not answer.
    store.stop(|number| number > 0);
    let keys: Vec<String> = (0..COUNT).map(key).collect();
    let loaded: Vec<Memory> = (0..COUNT).map(|_| Memory::new(4096, 0)).collect();
    let get = client.submit_get(&keys, &loaded.iter().collect::<Vec<_>>());
    // Each reactor has taken up its loads.
    store.wait_for_transfers(2 * COUNT);
    let more: Vec<String> = (COUNT..2 * COUNT).map(key).collect();
    let set = client.submit_set(&more, &[&stored; COUNT as usize]);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!client.exists(&more).contains(&true), "a SET went ahead of a load");
    store.stop(|_| false);
    assert!(client.wait(get).ok);
    assert!(client.wait(set).ok);
    assert!(client.exists(&more).iter().all(|held| *held));
}

/// Without one of them the others would leave keys without an answer: they all stop.
#[test]
fn one_that_panics_stops_all_and_every_batch_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let made = AtomicUsize::new(0);
    let make_engine = move |queue_depth, waker| {
        let panics = made.fetch_add(1, Ordering::SeqCst) == 1;
        let script = move |_, _, _| if panics { Fault::Panic } else { Fault::None };
        FaultEngine::new(queue_depth, waker, Box::new(script), Arc::default())
    };
    let connector = Connector::open_with_engine(configured(directory.path()), make_engine);
    let client = Client::from(connector.unwrap());
    let memory = Memory::patterned(300_000, 0, 1);
    let batches: Vec<[String; REACTORS]> = (0..COUNT / 3)
        .map(|number| [3 * number, 3 * number + 1, 3 * number + 2].map(key))
        .collect();
    let ids: Vec<u64> =
        batches.iter().map(|keys| client.submit_set(keys, &[&memory; REACTORS])).collect();
    let stored = ids.iter().filter(|id| client.wait(**id).ok).count();
    assert!(stored < batches.len());
    assert!(!client.set(&[key(500), key(501), key(502)], &[&memory; 3]).ok);
    assert!(!client.connector.close().clean);
}

#[test]
fn if_one_cannot_start_the_store_is_not_opened_and_not_held() {
    let directory = tempfile::tempdir().unwrap();
    let made = AtomicUsize::new(0);
    let make_engine =
        move |queue_depth: usize, waker: Arc<Waker>| match made.fetch_add(1, Ordering::SeqCst) {
            2 => Err(EngineError::Unavailable { source: std::io::Error::other("enough rings") }),
            _ => UringEngine::new(queue_depth, waker),
        };
    let opened = Connector::open_with_engine(configured(directory.path()), make_engine);
    assert!(opened.map(drop).unwrap_err().to_string().contains("enough rings"));
    let client = Client::open(directory.path(), 256 * MIB);
    assert!(client.set_one("k", &Memory::patterned(10, 0, 1)));
    assert_eq!(client.get_one("k", 10), Some(pattern(10, 1)));
}

/// Whether a reactor whose SETs wait for another's loads learns of their end must not depend on when it looks: a SET used
/// to wait for `set_max_wait_ms` if the last load ended while its reactor was about to sleep.
#[test]
fn no_end_of_loads_elsewhere_is_missed() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut config = configured(directory.path());
    config.set_max_wait = Duration::from_secs(600);
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
