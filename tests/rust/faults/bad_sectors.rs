//! Sectors of the index that cannot be read: what they held is missed, and everything else goes on.
//!
//! Records are read through the mapped file, where a bad sector raises SIGBUS. Here the file is cut short below the mapping, which raises
//! the very same.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{Client, MIB, Memory, key, pattern};

const CAPACITY: u64 = 256 * MIB;
const HEADER_BYTES: u64 = 4096;
const RECORDS_PER_PAGE: u64 = 16;
const COUNT: u64 = 100;

fn length(number: u64) -> usize {
    4096 + 100 * number as usize
}

fn client(directory: &Path) -> Client {
    let client = Client::open(directory, CAPACITY);
    for number in 0..COUNT {
        assert!(client.set_one(&key(number), &Memory::patterned(length(number), 0, number)));
    }
    client
}

/// Takes all pages of records but the first `kept` away from under the mapping.
fn lose_pages(directory: &Path, kept: u64) {
    let index = File::options().write(true).open(directory.join("index.kvring")).unwrap();
    index.set_len(HEADER_BYTES * (1 + kept)).unwrap();
}

fn all_keys() -> Vec<String> {
    (0..COUNT).map(key).collect()
}

fn held(client: &Client) -> u64 {
    let held = |number: &u64| {
        let found = client.get_one(&key(*number), length(*number));
        let right = found.as_ref().map(|bytes| *bytes == pattern(length(*number), *number));
        assert_ne!(right, Some(false), "wrong bytes for {number}");
        found.is_some()
    };
    (0..COUNT).filter(held).count() as u64
}

#[test]
fn keys_on_a_lost_page_are_missed_and_the_others_are_there() {
    let directory = tempfile::tempdir().unwrap();
    let client = client(directory.path());
    lose_pages(directory.path(), 2);
    let expected: Vec<bool> = (0..COUNT).map(|number| number < 2 * RECORDS_PER_PAGE).collect();
    assert_eq!(client.exists(&all_keys()), expected);
    assert_eq!(held(&client), 2 * RECORDS_PER_PAGE);
    assert!(client.connector.stats().index_pages_lost >= (COUNT - 32) / RECORDS_PER_PAGE);
}

#[test]
fn what_was_lost_can_be_stored_again_and_outlives_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let lossy = client(directory.path());
    lose_pages(directory.path(), 2);
    // The same bytes again: it must not count as unchanged, as the next start would not find it.
    for number in 0..COUNT {
        let done = lossy.set(&[key(number)], &[&Memory::patterned(length(number), 0, number)]);
        assert!(done.ok, "{number}: {}", done.error);
    }
    assert_eq!(lossy.exists(&all_keys()), [true; COUNT as usize]);
    assert_eq!(lossy.counter("hash_collision"), 0);
    assert_eq!(held(&lossy), COUNT);
    lossy.connector.close();
    drop(lossy);
    let again = Client::open(directory.path(), CAPACITY);
    assert_eq!(again.connector.recovery().unreadable_pages, 0);
    assert_eq!(held(&again), COUNT, "{}", again.connector.recovery());
}

#[test]
fn deleting_what_was_lost_gives_its_space_back() {
    let directory = tempfile::tempdir().unwrap();
    let client = client(directory.path());
    lose_pages(directory.path(), 0);
    assert!(client.delete(&all_keys()).iter().all(|gone| *gone));
    assert!(client.set_one("after", &Memory::patterned(5000, 0, 1)));
    assert_eq!(client.get_one("after", 5000), Some(pattern(5000, 1)));
    assert_eq!(client.connector.stats().allocated_bytes, 8192);
}

/// Past the limit of lost pages every slot counts as lost, whichever page it is in: no eviction and no growth makes one usable.
#[test]
fn past_the_limit_of_lost_pages_sets_fail_at_once_and_no_chunk_goes() {
    let directory = tempfile::tempdir().unwrap();
    let client = client(directory.path());
    client.connector.close();
    drop(client);
    let index = File::options().write(true).open(directory.path().join("index.kvring")).unwrap();
    // Pages enough to lose.
    index.set_len(HEADER_BYTES + 8 * MIB).unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    lose_pages(directory.path(), 2);
    for number in 0..3 {
        let done = client.set(&["new".into()], &[&Memory::patterned(5000, 0, number)]);
        assert!(!done.ok && done.error.contains("repair or replace the drive"), "{}", done.error);
    }
    assert_eq!((client.counter("evicted"), client.counter("index_full")), (0, 0));
    assert_eq!(index.metadata().unwrap().len(), HEADER_BYTES * 3, "the index has grown");
    let trouble = client.connector.stats().paths[0].trouble.clone();
    assert!(trouble.contains("repair or replace the drive"), "{trouble}");
    assert_eq!(held(&client), 2 * RECORDS_PER_PAGE);
    client.connector.close();
    drop(client);
    let again = Client::open(directory.path(), CAPACITY);
    assert_eq!(held(&again), 2 * RECORDS_PER_PAGE);
    assert!(again.set_one("new", &Memory::patterned(5000, 0, 1)));
}

/// Without all parts the key cannot be compared: the digest alone stands for it, as where the whole record is lost.
#[test]
fn a_long_key_with_a_lost_part_is_no_collision_and_does_not_come_back_once_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::open(directory.path(), CAPACITY);
    // Its further parts reach into the second page of records, as it is longer than the first one.
    let keys = ["a".repeat(168 * (RECORDS_PER_PAGE as usize + 2))];
    let long = &keys[0];
    let set = |number| client.set(&keys, &[&Memory::patterned(5000, 0, number)]);
    assert!(set(1).ok);
    let path = directory.path().join("index.kvring");
    let index = File::options().read(true).write(true).open(path).unwrap();
    let mut parts = vec![0; HEADER_BYTES as usize];
    index.read_exact_at(&mut parts, 2 * HEADER_BYTES).unwrap();
    lose_pages(directory.path(), 1);
    assert_eq!(client.get_one(long, 5000), None);
    assert_eq!(client.delete(&keys), [true]);
    // The disk has them again.
    index.write_all_at(&parts, 2 * HEADER_BYTES).unwrap();
    client.connector.close();
    drop(client);
    let client = Client::open(directory.path(), CAPACITY);
    assert_eq!(client.exists(&keys), [false], "it is back");
    assert!(client.set(&keys, &[&Memory::patterned(5000, 0, 2)]).ok);
    lose_pages(directory.path(), 1);
    assert_eq!(client.get_one(long, 5000), None);
    let done = client.set(&keys, &[&Memory::patterned(5000, 0, 3)]);
    assert!(done.ok, "{}", done.error);
    assert_eq!(client.get_one(long, 5000), Some(pattern(5000, 3)));
    assert_eq!(client.counter("hash_collision"), 0);
}
