//! A store that grows on a file system which takes its time: loads go on, and no SET fails or sees others go for it.
//!
//! fallocate(2) is held up in this program, as a journal or a slow device does.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

mod common;

use std::os::fd::RawFd;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use common::{Client, MIB, Memory, has_data_files, key};
use kvring::Connector;

const CAPACITY: u64 = 256 * MIB;
/// The first data file has 64 MiB; the next one is made when a quarter of that is free.
const IN_FIRST_FILE: u64 = 63;

/// Calls of fallocate that wait, and whether they are to.
static GATE: Mutex<(usize, bool)> = Mutex::new((0, false));
static OPENED: Condvar = Condvar::new();

/// There is one gate for all tests.
static ALONE: Mutex<()> = Mutex::new(());

/// fallocate(2), which waits while the gate is closed.
// SAFETY: the name is the C library's, and so are signature, meaning and errno.
#[unsafe(no_mangle)]
extern "C" fn fallocate(
    file: RawFd,
    mode: libc::c_int,
    offset: libc::off_t,
    length: libc::off_t,
) -> libc::c_int {
    let mut gate = GATE.lock().unwrap();
    gate.0 += 1;
    while gate.1 {
        gate = OPENED.wait(gate).unwrap();
    }
    gate.0 -= 1;
    drop(gate);
    // SAFETY: a system call that touches no memory.
    unsafe { libc::syscall(libc::SYS_fallocate, file, mode, offset, length) as libc::c_int }
}

fn close_gate(closed: bool) {
    GATE.lock().unwrap().1 = closed;
    OPENED.notify_all();
}

#[test]
fn loads_go_on_while_a_data_file_is_made_and_sets_wait_for_it() {
    let _alone = ALONE.lock().unwrap();
    if !has_data_files("a chunk's file is made by the engine") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let client = Client::from(Connector::open(common::config(directory.path(), CAPACITY)).unwrap());
    let memory = Memory::patterned(MIB as usize, 0, 1);
    let keys: Vec<String> = (0..2 * IN_FIRST_FILE).map(key).collect();
    let (first, rest) = keys.split_at(40);
    assert!(client.set(first, &vec![&memory; first.len()]).ok);
    close_gate(true);
    let future = client.submit_set(rest, &vec![&memory; rest.len()]);
    common::eventually("the next file is being made", || GATE.lock().unwrap().0 > 0);
    // Until all is written that has room in the first file.
    common::eventually("the first file is full", || {
        client.connector.stats().allocated_bytes >= (IN_FIRST_FILE - 1) * MIB
    });
    for key in first {
        assert!(client.get_one(key, MIB as usize).is_some());
    }
    assert_eq!(client.exists(&first[..1]), [true]);
    client.delete(&first[..1]);
    assert!(client.connector.stats().in_flight > 0, "SETs wait");
    close_gate(false);
    let completion = client.wait(future);
    assert!(completion.ok, "{}", completion.error);
    assert_eq!((client.counter("evicted"), client.counter("set_failed")), (0, 0));
    assert!(client.exists(&keys[1..]).iter().all(|held| *held));
    client.assert_consistent();
}

/// What waits for a data file that does not come is dropped at the deadline of close().
#[test]
fn close_drops_what_waits_for_a_data_file() {
    let _alone = ALONE.lock().unwrap();
    if !has_data_files("a chunk's file is made by the engine") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut config = common::config(directory.path(), CAPACITY);
    config.drain_timeout = Duration::from_millis(100);
    let client = Client::from(Connector::open(config).unwrap());
    let memory = Memory::patterned(MIB as usize, 0, 1);
    let keys: Vec<String> = (0..2 * IN_FIRST_FILE).map(key).collect();
    close_gate(true);
    client.submit_set(&keys, &vec![&memory; keys.len()]);
    common::eventually("the first file is full", || {
        client.connector.stats().allocated_bytes >= (IN_FIRST_FILE - 1) * MIB
    });
    let shutdown = client.connector.close();
    close_gate(false);
    let stored = client.counter("set_stored");
    assert!((IN_FIRST_FILE - 1..=IN_FIRST_FILE + 1).contains(&stored), "{stored}");
    assert_eq!((shutdown.partial_flush, shutdown.abandoned), (true, keys.len() as u64 - stored));
}
