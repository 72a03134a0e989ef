//! Loads that cannot start in time are misses.

use std::time::Duration;

use crate::common::held_back::HeldBack;
use crate::common::{Client, MIB, Memory, config, keys};
use kvring::testing::Action;

const LENGTH: usize = 64 << 10;
/// Longer than a busy machine takes to start a load.
const DEADLINE_MS: u64 = 1000;

/// A store whose device takes one piece of a class at a time, and holds back what the test says.
fn open(path: &std::path::Path, load_deadline_ms: Option<u64>) -> (Client, HeldBack) {
    let mut config = config(path, 64 * MIB);
    config.load_deadline_ms = load_deadline_ms;
    (config.tuning.queue_depth, config.tuning.max_io_bytes) = (Some(1), LENGTH as u64);
    HeldBack::open(config)
}

#[test]
fn a_load_that_has_not_started_in_time_is_a_miss() {
    let directory = tempfile::tempdir().unwrap();
    let (client, held) = open(directory.path(), Some(DEADLINE_MS));
    let content = Memory::patterned(4 * LENGTH, 0, 1);
    let keys = keys(0..4);
    assert!(client.set(&keys, &[&content; 4]).ok);
    held.hold(Action::Read);
    let memory: Vec<Memory> = keys.iter().map(|_| Memory::new(4 * LENGTH, 0)).collect();
    let gets: Vec<u64> = keys
        .iter()
        .zip(&memory)
        .map(|(key, memory)| client.submit_get(std::slice::from_ref(key), &[memory]))
        .collect();
    // The first one has started with its first piece, and goes on whatever it takes.
    for (number, get) in gets[1..].iter().enumerate() {
        let completion = client.wait(*get);
        assert_eq!((completion.ok, completion.results), (true, vec![false]));
        assert!(memory[number + 1].bytes().iter().all(|byte| *byte == 0));
    }
    assert_eq!(client.counter("get_late"), 3);
    assert!(client.take(gets[0]).is_none());
    held.release();
    assert_eq!(client.wait(gets[0]).results, [true]);
    assert_eq!(memory[0].bytes(), content.bytes());
    assert_eq!((client.counter("get_hits"), client.counter("get_misses")), (1, 3));
    // Nothing of it is held, and all of it is stored as before.
    assert_eq!(client.get(&keys[3..], &[&memory[3]]).results, [true]);
    client.delete(&keys);
    client.assert_consistent();
    assert_eq!(client.connector.stats().allocated_bytes, 0);
}

#[test]
fn without_a_deadline_a_load_waits() {
    let directory = tempfile::tempdir().unwrap();
    let (client, held) = open(directory.path(), None);
    let content = Memory::patterned(LENGTH, 0, 1);
    assert!(client.set(&keys(0..3), &[&content; 3]).ok);
    held.hold(Action::Read);
    let memory: Vec<Memory> = (0..3).map(|_| Memory::new(LENGTH, 0)).collect();
    let get = client.submit_get(&keys(0..3), &memory.iter().collect::<Vec<_>>());
    std::thread::sleep(Duration::from_millis(200));
    assert!(client.take(get).is_none());
    held.release();
    assert_eq!((client.wait(get).results, client.counter("get_late")), (vec![true; 3], 0));
}
