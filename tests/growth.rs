//! A store that grows on a file system which takes its time: loads go on, and no SET fails or sees others go for it.
//!
//! Preallocation is held up here, as a journal or a slow device does it.

#![allow(clippy::unwrap_used, reason = "a test that unwraps fails with the place and the reason")]

mod common;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::{Client, MIB, Memory, has_data_files, key};
use kvring::testing::{FileOperations, SystemFiles};
use kvring::{Config, Connector};

const CAPACITY: u64 = 256 * MIB;
/// The first data file has 64 MiB; the next one is made when a quarter of that is free.
const IN_FIRST_FILE: u64 = 63;

/// Preallocation that waits while the gate is closed.
#[derive(Debug, Default)]
struct Gate {
    /// Calls that wait, and whether they are to.
    state: Mutex<(usize, bool)>,
    opened: Condvar,
}

impl FileOperations for Gate {
    fn preallocate(&self, file: &File, bytes: Range<u64>, flags: libc::c_int) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        while state.1 {
            state = self.opened.wait(state).unwrap();
        }
        state.0 -= 1;
        drop(state);
        SystemFiles.preallocate(file, bytes, flags)
    }
}

impl Gate {
    fn close(&self, closed: bool) {
        self.state.lock().unwrap().1 = closed;
        self.opened.notify_all();
    }

    fn is_waited_at(&self) -> bool {
        self.state.lock().unwrap().0 > 0
    }
}

fn open(mut config: Config) -> (Client, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    config.files = Arc::<Gate>::clone(&gate);
    (Client::from(Connector::open(config).unwrap()), gate)
}

#[test]
fn loads_go_on_while_a_data_file_is_made_and_sets_wait_for_it() {
    if !has_data_files("a chunk's file is made by the engine") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (client, gate) = open(common::config(directory.path(), CAPACITY));
    let memory = Memory::patterned(MIB as usize, 0, 1);
    let keys: Vec<String> = (0..2 * IN_FIRST_FILE).map(key).collect();
    let (first, rest) = keys.split_at(40);
    assert!(client.set(first, &vec![&memory; first.len()]).ok);
    gate.close(true);
    let future = client.submit_set(rest, &vec![&memory; rest.len()]);
    common::eventually("the next file is being made", || gate.is_waited_at());
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
    gate.close(false);
    let completion = client.wait(future);
    assert!(completion.ok, "{}", completion.error);
    assert_eq!((client.counter("evicted"), client.counter("set_failed")), (0, 0));
    assert!(client.exists(&keys[1..]).iter().all(|held| *held));
    client.assert_consistent();
}

/// What waits for a data file that does not come is dropped at the deadline of close().
#[test]
fn close_drops_what_waits_for_a_data_file() {
    if !has_data_files("a chunk's file is made by the engine") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let config = common::config(directory.path(), CAPACITY);
    let (client, gate) = open(config);
    let memory = Memory::patterned(MIB as usize, 0, 1);
    let keys: Vec<String> = (0..2 * IN_FIRST_FILE).map(key).collect();
    gate.close(true);
    client.submit_set(&keys, &vec![&memory; keys.len()]);
    common::eventually("the first file is full", || {
        client.counter("set_stored") >= IN_FIRST_FILE - 1
    });
    let shutdown = client.connector.close_within(Duration::from_millis(100));
    gate.close(false);
    let stored = client.counter("set_stored");
    assert!((IN_FIRST_FILE - 1..=IN_FIRST_FILE + 1).contains(&stored), "{stored}");
    assert_eq!((shutdown.partial_flush, shutdown.abandoned), (true, keys.len() as u64 - stored));
}
