//! A store on several paths: who holds what, paths that come and go, and one that fails.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::faults::{Fault, failing, scripted_on};
use crate::common::{
    Client, MIB, Memory, config_of, eventually, keys, layout, new_paths, pattern, side_by_side,
};
use kvring::{Config, Connector, Layout, OpenError, PathStats};

const CAPACITY: u64 = 64 * MIB;
const KEYS: u64 = 600;
const LENGTH: usize = 5000;

fn config(paths: &[PathBuf]) -> Config {
    config_of(paths, CAPACITY)
}

fn open(paths: &[PathBuf]) -> Client {
    Client::with(config(paths))
}

/// Stores key after key, in one batch; `version` decides the bytes.
fn store(client: &Client, numbers: &[u64], version: u64) -> Vec<bool> {
    let memory: Vec<Memory> = numbers
        .iter()
        .map(|number| Memory::patterned(LENGTH, 0, number + version * 1_000_000))
        .collect();
    let memory: Vec<&Memory> = memory.iter().collect();
    client.set(&keys(numbers.iter().copied()), &memory).results
}

/// Which of `numbers` are held, by number, with the version that their bytes are of. Bytes that are of no version fail.
fn load(client: &Client, numbers: &[u64]) -> HashMap<u64, u64> {
    let memory: Vec<Memory> = numbers.iter().map(|_| Memory::new(LENGTH, 0)).collect();
    let completion = client.get(&keys(numbers.iter().copied()), &memory);
    let hits = numbers.iter().zip(&memory).zip(completion.results).filter(|(_, hit)| *hit);
    hits.map(|((number, memory), _)| {
        let version = (1..9)
            .find(|version| memory.bytes() == pattern(LENGTH, number + version * 1_000_000))
            .unwrap_or_else(|| panic!("key {number} has bytes that were never stored"));
        (*number, version)
    })
    .collect()
}

fn all() -> Vec<u64> {
    (0..KEYS).collect()
}

fn paths_of(client: &Client) -> Vec<PathStats> {
    client.connector.stats().paths
}

/// Opens the paths alone, one after the other, and says which keys each holds. Not for a store that is used afterwards.
fn held_by_each(client: &Client) -> Vec<u64> {
    paths_of(client).iter().map(|path| path.keys).collect()
}

#[test]
fn keys_are_shared_and_survive_restarts_in_any_order_of_the_paths() {
    let (_root, mut paths) = new_paths(3);
    let client = open(&paths);
    assert!(store(&client, &all(), 1).iter().all(|stored| *stored));
    let held = held_by_each(&client);
    assert_eq!(held.iter().sum::<u64>(), KEYS);
    // Five standard deviations of a third of 600.
    assert!(held.iter().all(|keys| (140..=260).contains(keys)), "{held:?}");
    let stats = client.connector.stats();
    assert_eq!((stats.keys, stats.capacity_bytes), (KEYS, 3 * CAPACITY));
    assert!(client.connector.close().clean);
    paths.reverse();
    let client = open(&paths);
    let recovery = client.connector.recovery();
    assert_eq!((recovery.kept, recovery.discarded()), (KEYS, 0));
    assert!(recovery.clean_shutdown);
    assert_eq!(load(&client, &all()).len() as u64, KEYS);
    assert_eq!(held_by_each(&client), held.into_iter().rev().collect::<Vec<_>>());
    client.assert_consistent();
}

#[test]
fn every_call_reaches_every_path() {
    let (_root, paths) = new_paths(2);
    let client = open(&paths);
    store(&client, &all(), 1);
    let connector = &client.connector;
    let asked = keys([0, 1, 9999, 2]);
    assert_eq!(client.exists(&asked), [true, true, false, true]);
    let prefix = client.wait(connector.submit_prefix(&asked).unwrap()).results;
    assert_eq!(prefix, [true, true, false, false]);
    assert_eq!(client.counter("exists_misses"), 2);
    assert_eq!(connector.pin(&asked).unwrap(), [true, true, false, true]);
    assert_eq!(connector.unpin(&asked).unwrap(), [true, true, false, true]);
    let usage = connector.usage().unwrap();
    assert_eq!((usage.len(), usage[0].0.as_str(), usage[0].1.keys), (1, "test/model", KEYS));
    let (mut listed, mut cursor) = (Vec::new(), Some(0));
    while let Some(from) = cursor {
        let (some, next) = connector.keys("test/model", from, 50).unwrap();
        assert!(some.len() >= 50 || next.is_none());
        listed.extend(some.into_iter().map(|(key, _)| key));
        cursor = next;
    }
    listed.sort();
    let mut expected = keys(all());
    expected.sort();
    assert_eq!(listed, expected);
    assert_eq!(client.delete(&keys(0..300)), vec![true; 300]);
    assert_eq!(connector.stats().keys, KEYS - 300);
    client.assert_consistent();
    assert_eq!(connector.purge("test/model").unwrap().keys, KEYS - 300);
    assert_eq!(held_by_each(&client), [0, 0]);
}

#[test]
fn capacities_are_weights() {
    let (_root, paths) = new_paths(2);
    let mut config = config(&paths);
    config.capacities_bytes = vec![192 * MIB, 64 * MIB];
    let client = Client::with(config);
    let numbers: Vec<u64> = (0..2000).collect();
    store(&client, &numbers, 1);
    let held = held_by_each(&client);
    // Five standard deviations of a quarter of 2000 are 97.
    assert!((1403..=1597).contains(&held[0]) && held[0] + held[1] == 2000, "{held:?}");
}

/// A path that comes takes its share, which is missed once; what the others keep they keep. One that goes takes only its
/// own with it.
#[test]
fn paths_come_and_go() {
    let (_root, paths) = new_paths(3);
    let client = open(&paths[..2]);
    store(&client, &all(), 1);
    drop(client);

    let client = open(&paths);
    let kept = load(&client, &all());
    let moved = client.connector.recovery().moved;
    assert_eq!(kept.len() as u64 + moved, KEYS);
    // A third, within five standard deviations.
    assert!((140..=260).contains(&moved), "{moved} moved");
    assert_eq!(store(&client, &all(), 2), vec![true; KEYS as usize]);
    assert_eq!(load(&client, &all()).values().filter(|version| **version == 2).count(), 600);
    let third = held_by_each(&client)[2];
    assert_eq!(third, moved);
    drop(client);

    let client = open(&paths[..2]);
    let left = load(&client, &all());
    assert_eq!(left.len() as u64, KEYS - third);
    assert!(left.values().all(|version| *version == 2), "nothing older comes back");
    client.assert_consistent();
}

/// What is stored and deleted while a path is away must not be undone by its return.
#[test]
fn a_path_that_was_away_comes_back_empty() {
    let (_root, paths) = new_paths(2);
    let client = open(&paths);
    store(&client, &all(), 1);
    let of_second = held_by_each(&client)[1];
    drop(client);

    let client = open(&paths[..1]);
    store(&client, &(0..200).collect::<Vec<_>>(), 2);
    client.delete(&keys(200..400));
    drop(client);

    // In whatever order they come: the one that went on has seen more.
    let turned: Vec<PathBuf> = paths.iter().rev().cloned().collect();
    let client = open(&turned);
    assert_eq!(client.connector.recovery().stale, of_second);
    let found = load(&client, &all());
    for (number, version) in &found {
        assert!(
            match number {
                0..200 => *version == 2,
                200..400 => false,
                _ => *version == 1,
            },
            "key {number} is back as version {version}"
        );
    }
    assert!(!found.is_empty());
    client.assert_consistent();
    drop(client);
    // From here on they agree.
    let client = open(&paths);
    assert_eq!(client.connector.recovery().discarded(), 0);
    assert_eq!(load(&client, &all()), found);
}

/// Nobody can tell whether the others went on without it.
#[test]
fn a_path_whose_note_is_damaged_comes_back_empty() {
    let (_root, paths) = new_paths(2);
    let client = open(&paths);
    store(&client, &all(), 1);
    let of_second = held_by_each(&client)[1];
    drop(client);
    let client = open(&paths[..1]);
    store(&client, &all(), 2);
    drop(client);
    let index = std::fs::File::options().write(true).open(paths[1].join("index.kvring")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&index, &[0xff], 2048 + 20).unwrap();
    let client = open(&paths);
    assert_eq!(client.connector.recovery().stale, of_second);
    assert!(load(&client, &all()).values().all(|version| *version == 2));
    client.assert_consistent();
}

/// A store that never shared keys is no stranger's: it keeps what belongs to it.
#[test]
fn a_single_store_becomes_one_of_several() {
    let (_root, paths) = new_paths(2);
    let client = Client::open(&paths[0], CAPACITY);
    store(&client, &all(), 1);
    drop(client);
    let client = open(&paths);
    let recovery = client.connector.recovery();
    assert_eq!((recovery.stale, recovery.kept + recovery.moved), (0, KEYS));
    assert_eq!(load(&client, &all()).len() as u64, recovery.kept);
}

/// Whatever way they are written, and whether they are there or not.
#[test]
fn paths_inside_each_other_are_refused_and_nothing_is_made() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    std::fs::create_dir(at("real")).unwrap();
    std::os::unix::fs::symlink(at("real"), at("alias")).unwrap();
    for (inner, outer) in [
        ("new/inside", "new"),
        ("real/inside", "real"),
        ("alias/inside/deep", "real"),
        ("real/inside", "alias"),
        ("new/../real/inside", "alias/."),
    ] {
        for paths in [[at(inner), at(outer)], [at(outer), at(inner)]] {
            let error = Connector::open(config(&paths)).map(drop).unwrap_err();
            assert!(
                matches!(&error, OpenError::Nested { path, outer: other }
                    if (path, other) == (&at(inner), &at(outer))),
                "{error}"
            );
        }
    }
    assert_eq!(at("real").read_dir().unwrap().count() + root.path().read_dir().unwrap().count(), 2);
    drop(open(&[at("real/a"), at("alias/ab")]));
}

fn a_path_fails(errno: i32, layout: Layout) {
    let (_root, paths) = new_paths(2);
    let config = || Config { layout, ..config(&paths) };
    let fails = Arc::new(AtomicBool::new(false));
    let client = Client::over(config(), scripted_on(1, failing(Fault::Errno(errno), &fails)));
    assert!(store(&client, &all(), 1).iter().all(|stored| *stored));
    let before = held_by_each(&client);
    fails.store(true, Ordering::SeqCst);
    // Every batch is answered; keys of the other path are hits all the while.
    let mut asked = (0..100).cycle();
    eventually("the path that fails is taken out", || {
        // Few at a time: what cannot be read is dropped, and some is to be left.
        let some: Vec<u64> = asked.by_ref().take(10).collect();
        assert!(load(&client, &some).values().all(|version| *version == 1));
        let others: Vec<u64> = some.iter().map(|number| number + KEYS).collect();
        store(&client, &others, 1);
        client.delete(&keys(others));
        !paths_of(&client)[1].in_use
    });
    let stats = client.connector.stats();
    assert!(!stats.paths[1].reason.is_empty() && stats.paths[0].reason.is_empty());
    assert_eq!((stats.keys, stats.capacity_bytes), (before[0], CAPACITY));
    assert_eq!(client.exists(&keys(all())).iter().filter(|held| **held).count() as u64, before[0]);
    // New chunks go elsewhere, all of them.
    assert_eq!(store(&client, &all(), 2), vec![true; KEYS as usize]);
    assert_eq!(load(&client, &all()).values().filter(|version| **version == 2).count(), 600);
    assert_eq!(client.delete(&keys(0..300)), vec![true; 300]);
    client.assert_consistent();
    assert!(client.connector.close().clean, "the path that works is left in order");

    // It works again: what it held is outdated.
    let client = Client::with(config());
    assert!(client.connector.recovery().stale > 0);
    let found = load(&client, &all());
    assert!(found.iter().all(|(number, version)| *number >= 300 && *version == 2), "{found:?}");
    assert_eq!(store(&client, &all(), 3), vec![true; KEYS as usize]);
    assert!(paths_of(&client).iter().all(|path| path.in_use && path.keys > 0));
}

/// Errors in a row, a device that is gone, or no file that can be opened.
#[test]
fn a_path_that_fails_is_taken_out() {
    let faults = [(libc::EIO, layout()), (libc::ENODEV, layout()), (libc::EIO, Layout::Files)];
    side_by_side(faults, |(errno, layout)| a_path_fails(errno, layout));
}

/// A bad sector costs its chunk, not the path.
#[test]
fn errors_with_successes_between_them_take_nothing_out() {
    let (_root, paths) = new_paths(2);
    let engines = scripted_on(1, |number, _, _| match number.is_multiple_of(5) {
        true => Fault::Errno(libc::EIO),
        false => Fault::None,
    });
    let client = Client::over(config(&paths), engines);
    for version in 1..4 {
        let stored = store(&client, &all(), version);
        let failed = stored.iter().filter(|stored| !**stored).count();
        assert!(failed > 0 && failed < stored.len(), "{failed} failed");
        load(&client, &all());
    }
    assert!(paths_of(&client).iter().all(|path| path.in_use && path.reason.is_empty()));
}
