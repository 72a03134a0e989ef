//! What stores leave in the memory of a process that opens and closes them again and again: nothing. A program of its own, as the
//! numbers are those of the whole process.

#![cfg(target_env = "gnu")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

mod common;

use common::{Client, MIB, Memory, config_of, key};
use kvring::Connector;
use tempfile::TempDir;

const CAPACITY: u64 = 128 * MIB;
const STORES: u64 = 15;
const KEYS: u64 = 24;

/// One store of one to three paths, with one to four reactors each, that stores and loads chunks that are moved through bounce memory.
fn live(root: &TempDir, number: u64) {
    let count = 1 + number % 3;
    let paths: Vec<_> =
        (0..count).map(|path| root.path().join(format!("{count}-{path}"))).collect();
    let mut config = config_of(&paths, CAPACITY);
    config.io_threads = Some(1 + (number % 4) as usize);
    let client = Client::from(Connector::open(config).unwrap());
    let names: Vec<String> = (0..KEYS).map(key).collect();
    let memory: Vec<Memory> =
        (0..KEYS).map(|one| Memory::patterned(300_001 + 10_000 * one as usize, 1, one)).collect();
    let memory: Vec<&Memory> = memory.iter().collect();
    assert!(client.set(&names, &memory).ok);
    assert!(client.get(&names, &memory).ok);
}

/// What the allocator has from the system, and what of it is in use.
fn held_and_used_bytes() -> (usize, usize) {
    // SAFETY: no pointers.
    let info = unsafe { libc::mallinfo2() };
    (info.arena + info.hblkhd, info.uordblks + info.hblkhd)
}

/// Memory of this process that no file is behind.
fn anonymous_bytes() -> u64 {
    let all = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = all.lines().find(|line| line.starts_with("Anonymous:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_closed_store_leaves_no_memory() {
    let root = tempfile::tempdir().unwrap();
    // What is made once for the process.
    (0..3).for_each(|number| live(&root, number));
    let before = (anonymous_bytes(), held_and_used_bytes());
    (3..STORES).for_each(|number| live(&root, number));
    let after = (anonymous_bytes(), held_and_used_bytes());
    println!("{before:?}, then {after:?}");
    let (used_before, used) = (before.1.1 as u64, after.1.1 as u64);
    assert!(used < used_before + MIB / 4, "leaked: {before:?}, then {after:?}");
    assert!(after.0 < used + 8 * MIB, "kept by the allocator: {before:?}, then {after:?}");
}
