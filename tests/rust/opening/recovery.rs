//! What opening makes of an index: generations, and records that share the further parts of a long key.

use std::fs;
use std::path::Path;

use crate::common::records::{RECORD_BYTES, RECORDS_AT, Record, index_of, overwrite};
use crate::common::{Client, MIB, Memory, key, pattern};

const CAPACITY: u64 = 64 * MIB;
const SESSION_AT: u64 = 512;
const SESSION_GENERATIONS: u64 = 1 << 32;

fn field(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

// --- generations ---

/// The generation that the session block of an open store carries, and whether all of its chunks' are above.
fn generation_of_session(directory: &Path, new_key: u64) -> u64 {
    let client = Client::open(directory, CAPACITY);
    let session = field(&fs::read(index_of(directory)).unwrap(), SESSION_AT as usize + 16);
    assert!(client.set_one(&key(new_key), &Memory::patterned(100, 0, new_key)));
    let newest = generations(directory).into_iter().max().unwrap();
    assert!(newest > session && newest < session + SESSION_GENERATIONS, "{newest:#x}");
    session
}

fn generations(directory: &Path) -> Vec<u64> {
    let index = fs::read(index_of(directory)).unwrap();
    let records = index[RECORDS_AT as usize..].chunks(RECORD_BYTES);
    records.filter(|record| record[12] == 1).map(|record| field(record, 32)).collect()
}

/// So no chunk gets a generation that a late or lost write of an earlier session had, whatever of that was seen.
#[test]
fn generations_start_at_the_next_multiple_above_all_that_was_seen() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    assert_eq!(generation_of_session(path, 0), SESSION_GENERATIONS);
    assert_eq!(generation_of_session(path, 1), 2 * SESSION_GENERATIONS);

    // A record is ahead of the session block: that block was lost.
    let ahead = (7 * SESSION_GENERATIONS + 5).to_le_bytes();
    Record::read(path, 0).with(32, &ahead).write(path, 0);
    assert_eq!(generation_of_session(path, 2), 8 * SESSION_GENERATIONS);

    // The session block is ahead of all records: they were lost.
    let all: Vec<String> = (0..3).map(key).collect();
    Client::open(path, CAPACITY).delete(&all);
    assert!(generations(path).is_empty());
    assert_eq!(generation_of_session(path, 3), 10 * SESSION_GENERATIONS);

    // The session block cannot be read: the records decide.
    overwrite(&index_of(path), SESSION_AT, &[0xff; 104]);
    assert_eq!(generation_of_session(path, 4), 11 * SESSION_GENERATIONS);

    // A generation that is a multiple itself was given out too.
    let multiple = (20 * SESSION_GENERATIONS).to_le_bytes();
    Record::read(path, 0).with(32, &multiple).write(path, 0);
    assert_eq!(generation_of_session(path, 5), 21 * SESSION_GENERATIONS);
}

// --- a second head of a long key ---

const LENGTH: usize = 9000;
const PARTS: u64 = 4;

fn long_key() -> String {
    "long/".repeat(130)
}

/// Two records of state 1 lead to the same further parts; what damage can make of the second one is in `change`.
fn with_a_second_head(change: impl FnOnce(&mut [u8; RECORD_BYTES])) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let client = Client::open(path, CAPACITY);
    assert!(client.set_one(&long_key(), &Memory::patterned(LENGTH, 0, 1)));
    assert!(client.set_one("short", &Memory::patterned(LENGTH, 0, 2)));
    client.connector.close();
    let mut head = Record::read(path, 0);
    let last_part = Record::read(path, PARTS - 1);
    assert_eq!((head.0[12], last_part.0[12]), (1, 2), "head and last part");
    change(&mut head.0);
    head.write(path, PARTS + 3);

    let client = Client::open(path, CAPACITY);
    let recovery = client.connector.recovery().clone();
    assert_eq!((recovery.torn, recovery.overlapping, recovery.duplicate), (1, 0, 0));
    assert_eq!(recovery.kept, 2);
    let stats = client.connector.stats();
    assert_eq!((stats.keys, stats.records), (2, PARTS + 1), "its slot is free");
    assert_eq!(client.get_one(&long_key(), LENGTH), Some(pattern(LENGTH, 1)));
    // No slot of the kept one is given to others.
    let others: Vec<String> = (0..50).map(key).collect();
    let memory = Memory::patterned(100, 0, 3);
    assert!(client.set(&others, &vec![&memory; others.len()]).ok);
    client.connector.close();
    let client = Client::open(path, CAPACITY);
    assert_eq!((client.connector.recovery().kept, client.connector.recovery().torn), (52, 0));
    assert_eq!(client.get_one(&long_key(), LENGTH), Some(pattern(LENGTH, 1)));
    assert_eq!(client.delete(&[long_key()]), [true]);
    assert_eq!(client.connector.stats().records, 51);
}

#[test]
fn a_second_head_for_the_same_place_is_damage() {
    with_a_second_head(|_| ());
}

#[test]
fn a_second_head_for_another_place_is_damage() {
    with_a_second_head(|head| head[60..64].copy_from_slice(&1000_u32.to_le_bytes()));
}
