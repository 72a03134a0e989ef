//! What happens to the directory of a store while it is open, and what somebody else puts in it.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use common::{Client, MIB, Memory, config, has_data_files, key, pattern};
use kvring::{Connector, Layout, OpenError};

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

/// Everything below a directory, with its length and modification time.
fn listing(directory: &Path) -> BTreeMap<PathBuf, (u64, std::time::SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap()) {
        let metadata = entry.metadata().unwrap();
        if metadata.is_dir() {
            found.extend(listing(&entry.path()));
        }
        found.insert(entry.path(), (metadata.len(), metadata.modified().unwrap()));
    }
    found
}

#[test]
fn a_second_open_beside_a_removed_index_is_refused_and_changes_nothing() {
    for layout in [Layout::Files, Layout::Extents] {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path(), CAPACITY);
        config.layout = layout;
        let client = Client::from(Connector::open(config.clone()).unwrap());
        for number in 0..10 {
            assert!(client.set_one(&key(number), &Memory::patterned(MIB as usize, 0, number)));
        }
        fs::remove_file(directory.path().join("index.kvring")).unwrap();
        let before = listing(directory.path());
        let refusal = Connector::open(config.clone()).err().expect("it is in use");
        let pid = format!("process {} ", std::process::id());
        assert!(
            matches!(&refusal, OpenError::InUse { holder, .. } if holder.starts_with(&pid)),
            "{refusal}"
        );
        assert_eq!(listing(directory.path()), before, "{layout:?}");
        for number in 0..10 {
            let found = client.get_one(&key(number), MIB as usize);
            assert!(found == Some(pattern(MIB as usize, number)), "{layout:?} {number}");
        }
        client.connector.close();
        // Whoever comes after it finds no lock left.
        drop(Connector::open(config).unwrap());
    }
}
