//! What happens to the directory of a store while it is open, and what somebody else puts in it.

use std::fs;
use std::path::Path;

use crate::common::{
    Client, MIB, Memory, config_of, eventually, has_data_files, key, layout, logged, pattern,
};
use kvring::Layout;

const CAPACITY: u64 = 256 * MIB;

#[test]
fn a_renamed_store_leaves_its_successor_alone() {
    let parent = tempfile::tempdir().unwrap();
    let (path, moved) = (parent.path().join("store"), parent.path().join("moved"));
    let first = Client::open(&path, CAPACITY);
    let memory = |number| Memory::patterned(MIB as usize, 0, number);
    assert!(first.set_one(&key(0), &memory(0)));
    fs::rename(&path, &moved).unwrap();
    let second = Client::open(&path, CAPACITY);
    // More than one data file each, and more than the capacity of the first.
    for number in 0..150 {
        assert!(second.set_one(&key(number), &memory(1000 + number)));
    }
    for number in 1..300 {
        first.set_one(&key(number), &memory(number));
    }
    first.connector.close();
    second.connector.close();
    let second = Client::open(&path, CAPACITY);
    assert_eq!(second.connector.recovery().kept, 150, "{:?}", second.connector.recovery());
    for number in 0..150 {
        let found = second.get_one(&key(number), MIB as usize);
        assert!(found == Some(pattern(MIB as usize, 1000 + number)), "{number}");
    }
    second.assert_consistent();
}

/// A copy of a data file, or one that a second store put there before it was stopped.
#[test]
fn what_others_put_in_the_place_of_the_next_data_file_stays() {
    if !has_data_files("chunks have names of their own") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    assert!(client.set_one(&key(0), &Memory::patterned(MIB as usize, 0, 0)));
    let other = directory.path().join("data-00001.kvring");
    fs::write(&other, pattern(100_000, 7)).unwrap();
    let keys: Vec<String> = (1..150).map(key).collect();
    for (number, key) in (1..).zip(&keys) {
        assert!(client.set_one(key, &Memory::patterned(MIB as usize, 0, number)));
    }
    assert!(fs::read(&other).unwrap() == pattern(100_000, 7));
    assert_eq!(other.metadata().unwrap().len(), 100_000);
    for (number, key) in (1..).zip(&keys) {
        assert!(client.get_one(key, MIB as usize) == Some(pattern(MIB as usize, number)));
    }
    client.assert_consistent();
    drop(client);
    assert_eq!(Client::open(directory.path(), CAPACITY).connector.recovery().kept, 150);
}

/// Something that is done to the directory `store`, which is in `parent`, while it is open.
type Harm = fn(parent: &Path, store: &Path);

fn remove_all(_parent: &Path, store: &Path) {
    fs::remove_dir_all(store).unwrap();
}

fn rename(parent: &Path, store: &Path) {
    fs::rename(store, parent.join("moved")).unwrap();
}

fn exchange(parent: &Path, store: &Path) {
    rename(parent, store);
    fs::create_dir(store).unwrap();
}

fn rename_above(parent: &Path, store: &Path) {
    let above = store.parent().unwrap();
    fs::rename(above, parent.join("moved")).unwrap();
}

fn remove_index(_parent: &Path, store: &Path) {
    fs::remove_file(store.join("index.kvring")).unwrap();
}

fn replace_data(parent: &Path, store: &Path) {
    let name = if layout() == Layout::Extents { "data-00000.kvring" } else { "chunks" };
    fs::rename(store.join(name), parent.join(name)).unwrap();
    fs::write(store.join(name), "another").unwrap();
}

#[test]
fn a_store_whose_files_are_gone_stores_nothing_and_says_so() {
    let harms: [(&str, Harm); 6] = [
        ("its directory was removed", remove_all),
        ("its path leads nowhere", rename),
        ("its path leads to another directory", exchange),
        ("its path leads nowhere", rename_above),
        ("its index.kvring was removed", remove_index),
        ("was replaced by another one", replace_data),
    ];
    for (expected, harm) in harms {
        let parent = tempfile::tempdir().unwrap();
        let store = parent.path().join("above").join("store");
        let client = Client::open(&store, CAPACITY);
        let memory = Memory::patterned(MIB as usize, 0, 1);
        assert!(client.set_one("held", &memory), "{expected}");
        harm(parent.path(), &store);
        let mut last = String::new();
        // Also one whose bytes are held already.
        eventually(expected, || {
            let completion = client.set(&["held".to_owned()], &[&memory]);
            last = completion.error;
            !completion.ok
        });
        assert!(last.contains("nothing is stored any more") && last.contains(expected), "{last}");
        assert!(!client.set_one("new", &memory), "{expected}");
        let stats = client.connector.stats();
        assert!(stats.paths[0].reason.contains(expected) && stats.paths[0].in_use, "{expected}");
        let is_there = expected != "its directory was removed" || layout() == Layout::Extents;
        let found = client.get_one("held", MIB as usize);
        assert_eq!(found.as_deref(), is_there.then_some(memory.bytes()), "{expected}");
        assert!(!client.connector.close().clean, "{expected}");
    }
}

#[test]
fn a_directory_that_is_put_back_is_stored_in_again() {
    let parent = tempfile::tempdir().unwrap();
    let (path, moved) = (parent.path().join("store"), parent.path().join("moved"));
    let client = Client::open(&path, CAPACITY);
    let memory = Memory::patterned(5000, 0, 1);
    fs::rename(&path, &moved).unwrap();
    eventually("a refusal", || !client.set_one("k", &memory));
    fs::rename(&moved, &path).unwrap();
    eventually("storing again", || client.set_one("k", &memory));
    assert_eq!(client.connector.stats().paths[0].reason, "");
    assert!(client.connector.close().clean);
    let client = Client::open(&path, CAPACITY);
    assert_eq!(client.get_one("k", 5000).unwrap(), memory.bytes());
}

/// Closed before anybody looked, it is not said to be in order either.
#[test]
fn a_store_that_is_gone_is_not_closed_in_order() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("store");
    let client = Client::open(&path, CAPACITY);
    assert!(client.set_one("k", &Memory::patterned(5000, 0, 1)));
    fs::rename(&path, parent.path().join("moved")).unwrap();
    assert!(!client.connector.close().clean);
    let moved = Client::open(&parent.path().join("moved"), CAPACITY);
    assert_eq!(moved.get_one("k", 5000).unwrap(), pattern(5000, 1));
}

/// The trouble of the last path ends with its reason, and one that is out of use does not say that it is well.
#[test]
fn a_last_path_whose_files_are_back_is_well_again() {
    logged::keep();
    let parent = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| parent.path().join(name));
    let moved = ["c", "d"].map(|name| parent.path().join(name));
    let client = Client::with(config_of(&paths, CAPACITY));
    let memory = Memory::patterned(5000, 0, 1);
    let state = |number: usize| client.connector.stats().paths[number].clone();
    fs::rename(&paths[0], &moved[0]).unwrap();
    eventually("the first one is out of use", || !state(0).in_use);
    assert!(state(0).reason.contains("its path leads nowhere"), "{:?}", state(0));
    fs::rename(&moved[0], &paths[0]).unwrap();
    fs::rename(&paths[1], &moved[1]).unwrap();
    let stays = || logged::lines(&paths[1], "it stays in use").len();
    eventually("the second one stays", || stays() == 1);
    assert!(state(1).trouble.contains("its path leads nowhere"), "{:?}", state(1));
    fs::rename(&moved[1], &paths[1]).unwrap();
    eventually("it stores again", || client.set_one("k", &memory));
    assert_eq!((state(1).in_use, state(1).trouble.as_str()), (true, ""));
    let again = |number: usize| logged::lines(&paths[number], "it stores chunks again").len();
    assert_eq!((again(0), again(1), state(0).in_use), (0, 1, false));
}
