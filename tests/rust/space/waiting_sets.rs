//! SETs that find no room beside others in flight: they wait until these are stored and can go for them.

use std::time::Duration;

use crate::common::held_back::HeldBack;
use crate::common::{Client, MIB, Memory, config, config_of, eventually, key, keys, new_paths};
use kvring::testing::Action;
use kvring::{Config, Durability};
use tempfile::TempDir;

const NAMESPACE: &str = "test/model";
const CHUNK: usize = 1 << 20;

fn other_key(number: u64) -> String {
    format!("other@00000000@0@{number:064x}")
}

/// A store whose namespace has room for `chunks`, and the hand on its writes.
fn with_quota(chunks: u64) -> (TempDir, Client, HeldBack) {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path(), 256 * MIB);
    config.quotas = vec![(NAMESPACE.into(), chunks * MIB)];
    config.lease_s = 0;
    let (client, writes) = HeldBack::open(config);
    (directory, client, writes)
}

/// Far more at once than there is room for.
fn assert_all_are_stored(what: &str, capacity_bytes: u64, set_up: impl FnOnce(&mut Config)) {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path(), capacity_bytes);
    config.io_threads = Some(2);
    set_up(&mut config);
    let client = Client::with(config);
    let (keys, chunks) = (keys(0..400), [1, 2].map(|seed| Memory::patterned(CHUNK, 0, seed)));
    let memory: Vec<&Memory> = (0..400).map(|number| &chunks[number % 2]).collect();
    let answer = client.set(&keys, &memory);
    let stored = answer.results.iter().filter(|stored| **stored).count();
    assert!(answer.ok, "{what}: {stored} of 400 are stored; {}", answer.error);
    let loaded = keys.iter().zip(&memory).filter(|(key, memory)| {
        let chunk = client.get_one(key, CHUNK);
        chunk.is_none_or(|bytes| bytes == memory.bytes() && !bytes.is_empty())
    });
    assert_eq!(loaded.count(), 400, "{what}: a hit is what was stored");
    client.assert_consistent();
}

#[test]
fn no_set_fails_beside_others_in_flight() {
    assert_all_are_stored("a quota", 1024 * MIB, |config| {
        config.quotas = vec![(NAMESPACE.into(), 64 * MIB)];
    });
    for capacity_mib in [128, 256] {
        assert_all_are_stored("persistent", capacity_mib * MIB, |config| {
            config.durability = Durability::Persistent;
        });
    }
    assert_all_are_stored("a small store", 128 * MIB, |_| ());
}

#[test]
fn a_set_waits_for_the_quota_that_others_in_flight_take_and_other_namespaces_go_on() {
    let (_directory, client, writes) = with_quota(4);
    let memory = Memory::patterned(CHUNK, 0, 1);
    writes.hold(Action::Write);
    let first = client.submit_set(&keys(0..4), &[&memory; 4]);
    eventually("the namespace is full", || {
        client.connector.check().unwrap().reserved_bytes == 4 * MIB
    });
    let waiting = client.submit_set(&keys(4..7), &[&memory; 3]);
    assert!(client.get_one(&key(4), CHUNK).is_none(), "it is not stored yet");
    let other = client.submit_set(&[other_key(1)], &[&memory]);
    writes.until_all_have_looked();
    assert!(client.take(waiting).is_none());
    writes.release();
    for batch in [first, waiting, other] {
        let answer = client.wait(batch);
        assert!(answer.ok && answer.results.iter().all(|ok| *ok), "{}", answer.error);
    }
    assert!(client.get_one(&key(4), CHUNK).is_some_and(|bytes| bytes == memory.bytes()));
    assert_eq!((client.counter("evicted"), client.counter("set_failed")), (3, 0));
    client.assert_consistent();
}

#[test]
fn a_set_that_waits_fails_only_if_what_must_stay_leaves_no_room() {
    let (_directory, client, writes) = with_quota(4);
    let memory = Memory::patterned(CHUNK, 0, 1);
    assert!(client.set(&keys(0..2), &[&memory; 2]).ok);
    assert!(client.connector.pin(&keys(0..2)).unwrap().iter().all(|pinned| *pinned));
    writes.hold(Action::Write);
    let first = client.submit_set(&keys(2..4), &[&memory; 2]);
    eventually("the namespace is full", || {
        client.connector.check().unwrap().reserved_bytes == 2 * MIB
    });
    let long = Memory::patterned(3 * CHUNK, 0, 2);
    let answer = client.set(&[key(9)], &[&long]);
    assert!(!answer.ok && answer.error.contains("quota"), "{}", answer.error);
    let fits = client.submit_set(&keys(4..6), &[&memory; 2]);
    writes.until_all_have_looked();
    assert!(client.take(fits).is_none());
    writes.release();
    assert!(client.wait(first).ok && client.wait(fits).ok);
    client.assert_consistent();
}

#[test]
fn close_drops_sets_that_wait_for_room() {
    let (_directory, client, writes) = with_quota(4);
    let memory = Memory::patterned(CHUNK, 0, 1);
    writes.hold(Action::Write);
    client.submit_set(&keys(0..4), &[&memory; 4]);
    client.submit_set(&keys(4..9), &[&memory; 5]);
    eventually("the namespace is full", || {
        client.connector.check().unwrap().reserved_bytes == 4 * MIB
    });
    writes.until_all_have_looked();
    let closing = std::thread::scope(|scope| {
        let closing = scope.spawn(|| client.close_after(Duration::ZERO));
        eventually("the store is being closed", || {
            client.connector.submit_exists(&keys(0..1)).is_err()
        });
        writes.until_all_have_looked();
        writes.release();
        closing.join().unwrap()
    });
    let answered = client.counter("set_stored") + closing.abandoned;
    assert_eq!((closing.memory_held, answered), (false, 9), "{closing:?}");
    assert_eq!(client.connector.stats().in_flight, 0);
}

/// A quota is one account over all paths: what ends at one of them makes room for what waits at another.
#[test]
fn sets_wait_for_what_other_paths_write() {
    let (_root, paths) = new_paths(3);
    let mut config = config_of(&paths, 320 * MIB);
    (config.quotas, config.lease_s) = (vec![(NAMESPACE.into(), 8 * MIB)], 0);
    let client = Client::with(config);
    let memory = Memory::patterned(CHUNK, 0, 1);
    let answer = client.set(&keys(0..200), &[&memory; 200]);
    assert!(answer.ok, "{}", answer.error);
    client.assert_consistent();
}
