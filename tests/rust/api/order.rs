//! Order per key while several operations on it are in flight, and what a load finds then.

use std::path::Path;
use std::time::Duration;

use crate::common::held_back::HeldBack;
use crate::common::{Client, MIB, Memory, config, key, pattern};
use kvring::testing::Action;
use kvring::{Checksum, Config, Durability};

/// A store whose transfers the test can hold back.
fn open(directory: &Path, set_up: impl FnOnce(&mut Config)) -> (Client, HeldBack) {
    let mut config = config(directory, 256 * MIB);
    set_up(&mut config);
    HeldBack::open(config)
}

const LENGTH: usize = 16 << 10;

fn chunk(seed: u64) -> Memory {
    Memory::patterned(LENGTH, 0, seed)
}

/// None of the writes is through, and loads are: of what is held, which is as good an answer while the SET has none.
#[test]
fn a_load_reads_what_is_held_while_its_key_is_written_anew() {
    for durability in [Durability::BestEffort, Durability::Persistent] {
        let directory = tempfile::tempdir().unwrap();
        let (client, held) = open(directory.path(), |config| config.durability = durability);
        let (old, new, other) = (chunk(1), chunk(2), chunk(3));
        assert!(client.set(&[key(1), key(2)], &[&old, &old]).ok);
        held.hold(Action::Write);
        let backlog: Vec<u64> =
            (10..60).map(|number| client.submit_set(&[key(number)], &[&other])).collect();
        let replacing = client.submit_set(&[key(1), key(2), key(2)], &[&new, &old, &new]);
        assert!(client.get_one(&key(1), LENGTH).unwrap() == old.bytes());
        assert!(client.get_one(&key(2), LENGTH).unwrap() == old.bytes());
        assert_eq!(client.get_one(&key(1), LENGTH), client.get_one(&key(2), LENGTH), "again");
        held.release();
        assert!(client.wait(replacing).ok && backlog.into_iter().all(|id| client.wait(id).ok));
        for number in 1..3 {
            assert!(client.get_one(&key(number), LENGTH).unwrap() == new.bytes());
        }
        client.assert_consistent();
    }
}

/// What is gone, whoever is writing, is a miss at once.
#[test]
fn a_load_behind_a_delete_waits_for_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (client, held) = open(directory.path(), |_| ());
    assert!(client.set_one(&key(1), &chunk(1)));
    held.hold(Action::Write);
    let set = client.submit_set(&[key(1)], &[&chunk(2)]);
    assert_eq!(client.delete(&[key(1)]), [true]);
    assert_eq!(client.get_one(&key(1), LENGTH), None);
    held.release();
    assert!(client.wait(set).ok);
    assert_eq!(client.get_one(&key(1), LENGTH), None);
    client.assert_consistent();
}

/// A load that never ends holds SETs up for `set_max_wait`, and no longer.
#[test]
fn sets_get_on_beside_a_load_that_does_not_end() {
    for reactors in [1, 3] {
        let directory = tempfile::tempdir().unwrap();
        let (client, held) = open(directory.path(), |config| {
            config.io_threads = Some(reactors);
            config.tuning.set_max_wait = Duration::from_millis(100);
        });
        assert!(client.set_one(&key(1), &chunk(1)));
        held.hold(Action::Read);
        let loaded = Memory::new(LENGTH, 0);
        let get = client.submit_get(&[key(1)], &[&loaded]);
        held.until_given(1);
        let other = chunk(3);
        let sets: Vec<u64> =
            (10..50).map(|number| client.submit_set(&[key(number)], &[&other])).collect();
        assert!(sets.into_iter().all(|id| client.wait(id).ok));
        held.release();
        assert_eq!(client.wait(get).results, [true]);
        assert!(loaded.bytes() == pattern(LENGTH, 1));
    }
}

/// A chunk of the length that is stored is compared, which takes a while for a long one: loads go between.
#[test]
fn a_load_does_not_wait_until_a_long_chunk_is_compared() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), 2048 * MIB);
    let (long, short) = (Memory::patterned(256 << 20, 0, 1), Memory::patterned(4096, 0, 2));
    assert!(client.set_one("long", &long) && client.set_one("short", &short));
    // The SET may not have begun yet, or be through already.
    let was_first = (0..20).any(|_| {
        let set = client.submit_set(&["long".to_owned()], &[&long]);
        std::thread::sleep(std::time::Duration::from_millis(2));
        let loaded = Memory::new(4096, 0);
        let get = client.submit_get(&["short".to_owned()], &[&loaded]);
        assert!(client.wait(get).results[0]);
        let is_set_under_way = client.connector.stats().set_queued_operations == 1;
        assert!(client.wait(set).results[0]);
        is_set_under_way
    });
    assert!(was_first, "each of 20 loads waited");
    assert_eq!(client.counter("set_unchanged"), client.counter("set_queued") - 2);
}

/// SETs of what is stored already need no device: a load that comes behind many of them must not wait for all.
#[test]
fn sets_that_end_without_a_write_leave_turns_to_others() {
    const SETS: u64 = 4096;
    // So many of them are done in a turn.
    const MOST_IN_A_TURN: u64 = 128;
    let directory = tempfile::tempdir().unwrap();
    let (client, _held) = open(directory.path(), |config| {
        (config.io_threads, config.checksum) = (Some(1), Checksum::Off);
    });
    let keys: Vec<String> = (0..SETS).map(key).collect();
    let content = Memory::patterned(64, 0, 1);
    let memory = vec![&content; keys.len()];
    assert!(client.set(&keys, &memory).ok);
    let before = client.counter("reactor_turns");
    assert!(client.set(&keys, &memory).ok);
    assert_eq!(client.counter("set_unchanged"), SETS);
    let turns = client.counter("reactor_turns") - before;
    assert!(turns >= SETS / MOST_IN_A_TURN, "{turns} turns");
}

/// It takes no room and writes nothing.
#[test]
fn a_set_that_is_deleted_before_it_begins_is_not_written() {
    for purges in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let (client, held) = open(directory.path(), |_| ());
        let (first, second) = (chunk(1), Memory::patterned(2 * LENGTH, 0, 2));
        held.hold(Action::Write);
        let sets =
            [client.submit_set(&[key(1)], &[&first]), client.submit_set(&[key(1)], &[&second])];
        held.until_given(1);
        match purges {
            true => drop(client.connector.purge("test/model").unwrap()),
            false => assert_eq!(client.delete(&[key(1)]), [true]),
        }
        held.release();
        assert!(sets.iter().all(|id| client.wait(*id).ok));
        assert_eq!(client.counter("set_stored"), 1);
        assert_eq!(client.exists(&[key(1)]), [false]);
        client.assert_consistent();
    }
}
